//! Where a server is: parsed once, named without secrets, told apart from the others.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};

use crate::protocol::message::ServerMessage;

/// What stands in place of a secret.
const REDACTED: &str = "***";

/// Why an address cannot be used. Shows no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressError {
    /// It is no URL of a server.
    Malformed { url: String, reason: String },
    /// It asks for TLS, which was not compiled in.
    TlsNotCompiled { url: String },
}

/// One server's address with its credentials, which never show in any output.
#[derive(Clone)]
pub(crate) struct Address {
    info: ConnectionInfo,
    name: Arc<str>,
}

impl Address {
    /// Reads a URL. The error quotes it without its password.
    pub(crate) fn parse(url: &str) -> Result<Self, AddressError> {
        // The parser reports a missing TLS feature as a plain parse error, so it is told apart here.
        let wants_tls = ["rediss://", "valkeys://"].iter().any(|scheme| url.starts_with(scheme));
        if wants_tls && !cfg!(feature = "tls") {
            return Err(AddressError::TlsNotCompiled { url: redact_url(url) });
        }
        let info = url.into_connection_info().map_err(|error| AddressError::Malformed {
            url: redact_url(url),
            reason: without_quotes(&error),
        })?;
        Self::new(info)
    }

    /// Takes connection info made elsewhere, with TLS certificates for instance.
    pub(crate) fn new(info: ConnectionInfo) -> Result<Self, AddressError> {
        let name = name(&info);
        if !info.addr().is_supported() {
            return Err(AddressError::TlsNotCompiled { url: name });
        }
        if info.redis_settings().db() < 0 {
            return Err(AddressError::Malformed { url: name, reason: "negative database number".into() });
        }
        // A lock waits for small packets; delaying them for company only costs.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let redis = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_tcp_settings(tcp).set_redis_settings(redis);
        Ok(Self { info, name: name.into() })
    }

    /// The name in reports and logs: host, port, database; no credentials.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether both lead to the same server, whatever the database and user: then they are not independent.
    pub(crate) fn is_same_server(&self, other: &Address) -> bool {
        match (self.info.addr(), other.info.addr()) {
            (ConnectionAddr::Unix(mine), ConnectionAddr::Unix(theirs)) => mine == theirs,
            (mine, theirs) => host_and_port(mine).is_some_and(|mine| host_and_port(theirs) == Some(mine)),
        }
    }

    /// The same address, spoken to with this protocol version.
    pub(crate) fn with_protocol(&self, protocol: ProtocolVersion) -> ConnectionInfo {
        let redis = self.info.redis_settings().clone().set_protocol(protocol);
        self.info.clone().set_redis_settings(redis)
    }

    /// Whether it is a plain TCP address: a hint for errors.
    pub(crate) fn is_plain_tcp(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::Tcp(..))
    }

    /// Whether it comes with a password.
    pub(crate) fn has_password(&self) -> bool {
        self.info.redis_settings().password().is_some()
    }

    /// Whether it is an address with TLS: a hint for errors.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// A message of the server's or the network's without this node's password: a server that does not know HELLO
    /// answers with its arguments.
    pub(crate) fn redact(&self, message: &str) -> ServerMessage {
        match self.info.redis_settings().password() {
            Some(password) if !password.is_empty() => message.replace(password, REDACTED).into(),
            _ => message.into(),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.name).finish()
    }
}

fn name(info: &ConnectionInfo) -> String {
    let db = info.redis_settings().db();
    let db = if db == 0 { String::new() } else { format!("/{db}") };
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => format!("{host}:{port}{db}"),
        ConnectionAddr::TcpTls { host, port, .. } => format!("tls://{host}:{port}{db}"),
        ConnectionAddr::Unix(path) => format!("unix:{}{db}", path.display()),
        other => format!("{other}{db}"),
    }
}

fn host_and_port(addr: &ConnectionAddr) -> Option<(String, u16)> {
    match addr {
        ConnectionAddr::Tcp(host, port) => Some((host.to_ascii_lowercase(), *port)),
        ConnectionAddr::TcpTls { host, port, .. } => Some((host.to_ascii_lowercase(), *port)),
        _ => None,
    }
}

/// The parser's words without what it stumbled over, which may be a part of a password: a `?` in one begins the query.
fn without_quotes(error: &RedisError) -> String {
    let text = error.to_string();
    let said = error.detail().and_then(|detail| text.strip_suffix(detail));
    said.map_or(text.as_str(), |said| said.trim_end_matches([':', ' '])).to_owned()
}

/// A URL that may be malformed, fit to be shown: everything before the last `@` is hidden, and so are query parameters,
/// which may carry a password. A password may itself hold a `?`, a `#` or a `/`, so nothing is cut before that `@`.
fn redact_url(url: &str) -> String {
    let is_scheme =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", url));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let without_query = |text: &str| match text.split_once('?') {
        Some((before, _)) => format!("{before}?…"),
        None => text.to_owned(),
    };
    let shown = match (rest.rfind('@'), rest.find('?')) {
        // A `?` in the password, or an `@` in the query: there is no telling which.
        (Some(at), Some(query)) if query < at => REDACTED.to_owned(),
        (Some(at), _) => format!("{REDACTED}@{}", without_query(&rest[at + 1..])),
        (None, _) => without_query(rest),
    };
    format!("{scheme}{separator}{shown}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Address {
        Address::parse(url).unwrap()
    }

    /// Rule 10: passwords never show, whatever is wrong with the URL.
    #[test]
    fn no_password_in_any_output() {
        let good = address("redis://user:S3ntinel@127.0.0.1:7000/3");
        assert_eq!(&**good.name(), "127.0.0.1:7000/3");
        assert!(!format!("{good:?}").contains("S3ntinel"));
        assert_eq!(
            &*good.redact("unknown command 'HELLO', args: '3' 'AUTH' 'S3ntinel'"),
            "unknown command 'HELLO', args: '3' 'AUTH' '***'"
        );

        let bad = [
            "redis://user:S3ntinel@host:99999",
            "redis://:S3ntinel@",
            "http://user:S3ntinel@host",
            "user:S3ntinel@host",
            "redis://user:S3ntinel@host/notadb",
            "redis+unix:///nowhere?pass=S3ntinel&db=x",
            "redis://:S3ntinel?x@host:6379",
            "redis://user:S3ntinel?x@host:99999",
            "redis://user:x?S3ntinel@host:99999",
            "redis://:S3ntinel#x?a@host:99999",
            "redis://host:99999?pass=x@S3ntinel",
            "redis://user:x?protocol=S3ntinel@host",
            "user:S3ntinel@://",
            "redis://host?protocol=resp3&pass=x#S3ntinel",
        ];
        for url in bad {
            let shown = match Address::parse(url) {
                Ok(address) => format!("{address:?}"),
                Err(error) => format!("{error:?}"),
            };
            assert!(!shown.contains("S3ntinel"), "{url}: {shown}");
        }
    }

    /// Two addresses of one server are not two nodes, whatever the database, the user or the spelling of the case.
    #[test]
    fn same_server_is_recognised() {
        let one = address("redis://LOCALHOST:7000/1");
        assert!(one.is_same_server(&address("redis://me:pw@localhost:7000/2")));
        assert!(!one.is_same_server(&address("redis://localhost:7001/1")));
        let unix = address("redis+unix:///tmp/a.sock?db=1");
        assert!(unix.is_same_server(&address("redis+unix:///tmp/a.sock")));
        assert!(!unix.is_same_server(&one));
        assert_eq!(&**unix.name(), "unix:/tmp/a.sock/1");
    }
}
