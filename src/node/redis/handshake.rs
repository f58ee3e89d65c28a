//! How a connection comes up: resolved anew each time, authenticated, ready, and with what the server can do.
//!
//! RESP3 is tried first, since only there a closed connection is noticed without asking; where HELLO is refused (renamed
//! away, or a proxy), RESP2. What an ACL forbids beyond that is done without: a lock needs SET and scripts, nothing
//! else here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use futures::task::AtomicWaker;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult, Value, cmd,
};

use uuid::Uuid;

use super::Settings;
use super::command::{Abilities, NativeDelete, ServerError, sources};
use super::names;
use crate::protocol::line::NodeName;
use crate::protocol::message::{Key, Owner, OwnerHex, ServerMessage};
use crate::protocol::quorum::NodeId;

/// A connection that is ready for work.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) abilities: Abilities,
    /// Set when the connection ends, where the protocol tells (RESP3).
    pub(super) ending: Arc<Ending>,
    /// Whether [`Link::ending`] will tell at all.
    pub(super) tells_ending: bool,
    /// What names the node for all clients alike.
    pub(super) name: NodeName,
    /// Why the server cannot wake this client, where it cannot.
    pub(super) deaf: Option<ServerMessage>,
    /// What the server says it is, for the log.
    pub(super) server: String,
    /// The name of this run of the server, by which two addresses of one server are recognised.
    pub(super) run_id: Option<Arc<str>>,
}

/// The end of a connection, noticed by the connection itself.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub(super) ended: AtomicBool,
    pub(super) waker: AtomicWaker,
}

/// Connects and shakes hands, within the connect timeout. The error is fit to be shown once redacted.
pub(super) async fn connect(settings: &Settings, node: NodeId) -> Result<Link, ServerMessage> {
    let limit = settings.connect_timeout;
    match tokio::time::timeout(limit, connect_unlimited(settings, node)).await {
        Ok(Ok(link)) => Ok(link),
        Ok(Err(error)) => Err(describe(&error, settings).into()),
        // A plain server waits for the end of what it takes for a command, and never answers a TLS greeting.
        Err(_) if settings.address.is_tls() => {
            let hint = "does the port speak plain? then the address begins with redis://";
            Err(format!("no connection within {limit:?} ({hint})").into())
        }
        Err(_) => Err(format!("no connection within {limit:?}").into()),
    }
}

async fn connect_unlimited(settings: &Settings, node: NodeId) -> RedisResult<Link> {
    let resp3 = settings.address.with_protocol(ProtocolVersion::RESP3);
    match connect_as(settings, node, resp3, true).await {
        Err(error) if knows_no_hello(&error, settings.address.has_password()) => {
            let resp2 = settings.address.with_protocol(ProtocolVersion::RESP2);
            connect_as(settings, node, resp2, false).await
        }
        connected => connected,
    }
}

async fn connect_as(
    settings: &Settings,
    node: NodeId,
    info: ConnectionInfo,
    resp3: bool,
) -> RedisResult<Link> {
    #[cfg(feature = "tls")]
    if settings.address.is_tls() {
        choose_crypto();
    }
    let ending = Arc::<Ending>::default();
    let mut config = AsyncConnectionConfig::new()
        // Both limits are kept by this crate: the connect timeout around all of this, the reply timeout per round.
        .set_connection_timeout(None)
        .set_response_timeout(None)
        // Every admitted call finds room, and so is written in the order of admission; probes and second forms are
        // within the factor of two.
        .set_pipeline_buffer_size(4 * settings.backlog + 16);
    if resp3 {
        let ending = ending.clone();
        let wakeups = settings.wakeups.clone();
        // A closure, not a queue: pushes that nobody asked for must not pile up.
        config = config.set_push_sender(move |push: PushInfo| -> Result<(), std::convert::Infallible> {
            if push.kind == PushKind::Disconnection {
                ending.ended.store(true, Ordering::SeqCst);
                ending.waker.wake();
            } else if let Some((owner, key)) = wake_up(&push) {
                wakeups.heard(node, owner, key);
            }
            Ok(())
        });
    }
    let client = Client::open(info)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let facts = greet(&mut connection, &settings.client_name).await?;
    let (name, deaf) = if settings.in_line {
        let name = name(&connection, settings, &facts).await;
        let deaf = match resp3 {
            true => listen(&mut connection, settings).await.err().map(|why| why.to_string().into()),
            false => Some("the server speaks RESP2 only".into()),
        };
        (name, deaf)
    } else {
        (NodeName::of(settings.address.name().as_bytes()), None)
    };
    Ok(Link {
        connection,
        abilities: facts.abilities(),
        ending,
        tells_ending: resp3,
        name,
        deaf,
        server: facts.to_string(),
        run_id: facts.run_id,
    })
}

/// The `redis` crate takes the process's choice of cryptography, and panics where a process that has several compiled in
/// has chosen none. A choice that was made stands; losing a race for it is as good.
#[cfg(feature = "tls")]
fn choose_crypto() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
}

/// Listens on the client's channel, and finds out whether scripts of this user may publish there.
async fn listen(connection: &mut MultiplexedConnection, settings: &Settings) -> RedisResult<()> {
    let mut channel = names::channels(&settings.prefix);
    channel.extend_from_slice(&settings.wakeups.client().to_hex());
    connection.subscribe(&channel).await?;
    let mut publish = cmd("PUBLISH");
    publish.arg(&channel).arg("");
    ask(connection.clone(), &publish).await?;
    Ok(())
}

/// The owner and the key that a wake-up names.
fn wake_up(push: &PushInfo) -> Option<(Owner, Key)> {
    let (PushKind::Message, [_, Value::BulkString(payload)]) = (&push.kind, push.data.as_slice()) else {
        return None;
    };
    let (owner, key) = payload.split_at_checked(size_of::<OwnerHex>())?;
    (!key.is_empty()).then_some(())?;
    Some((Owner::from_hex(owner)?, Key::new(key)))
}

/// The node's name: the hash of its marker, a random id and the node's time under one key, set by whoever comes first.
/// Without a marker, because an ACL or a replica does not allow it, the run id; failing that, the address.
async fn name(connection: &MultiplexedConnection, settings: &Settings, facts: &Facts) -> NodeName {
    let key = names::marker(&settings.prefix);
    let mut get = cmd("GET");
    get.arg(&key);
    let mut found = ask(connection.clone(), &get).await;
    if let Ok(Value::Nil) = found
        && let Ok(time) = ask(connection.clone(), &cmd("TIME")).await
        && let Some(micros) = micros(&time)
    {
        let mut set = cmd("SET");
        set.arg(&key).arg(format!("{}:{micros}", Uuid::new_v4().simple())).arg("NX");
        found = match ask(connection.clone(), &set).await {
            // Somebody else may have been first.
            Ok(_) => ask(connection.clone(), &get).await,
            Err(error) => Err(error),
        };
    }
    match found {
        Ok(Value::BulkString(marker)) => return NodeName::of(&marker),
        Err(why) => tracing::debug!(%why, "the node has no marker"),
        Ok(_) => {}
    }
    match &facts.run_id {
        Some(run_id) => NodeName::of(run_id.as_bytes()),
        None => NodeName::of(settings.address.name().as_bytes()),
    }
}

/// The answer to TIME: seconds and microseconds.
fn micros(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let number = |value: &Value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = parts.as_slice() else { return None };
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

/// Names the client, asks whether the server is ready and what it is, and loads the scripts: in one round trip.
async fn greet(connection: &mut MultiplexedConnection, client_name: &str) -> RedisResult<Facts> {
    let mut commands = vec![cmd("PING"), cmd("INFO"), cmd("CLIENT")];
    commands[1].arg("server");
    commands[2].arg("SETNAME").arg(client_name);
    commands.extend(sources().map(|code| {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(code);
        load
    }));
    let answers = join_all(commands.iter().map(|command| ask(connection.clone(), command))).await;
    let mut answers = answers.into_iter();
    if let Some(ping) = answers.next()
        && let Err(error) = ping
        && !is_forbidden(&error)
    {
        // LOADING, MASTERDOWN, NOAUTH, a lost connection: not ready. All other answers are of no interest then.
        return Err(error);
    }
    let info = answers.next().and_then(Result::ok).unwrap_or_default();
    Ok(Facts::read(&info))
}

async fn ask(mut connection: MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

/// A command that this user must not use, or that was renamed away, says nothing about the server's health.
fn is_forbidden(error: &RedisError) -> bool {
    error.code() == Some("NOPERM") || is_unknown_command(error)
}

fn is_unknown_command(error: &RedisError) -> bool {
    error.to_string().to_ascii_lowercase().contains("unknown command")
}

/// Newer servers tell nobody who is not authenticated which commands they know: HELLO itself brought the password, so
/// "not authenticated" as its answer says that it was not understood.
fn knows_no_hello(error: &RedisError, gave_password: bool) -> bool {
    // Proxies refuse it in words of their own, with the general code.
    error.kind() == ErrorKind::RESP3NotSupported
        || matches!(error.code(), Some("NOPROTO" | "ERR"))
        || (gave_password && error.code() == Some("NOAUTH"))
        || is_unknown_command(error)
}

/// What INFO tells, as far as it matters here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    redis: Option<(u32, u32)>,
    valkey: Option<(u32, u32)>,
    run_id: Option<Arc<str>>,
    cluster: bool,
}

impl Facts {
    fn read(info: &Value) -> Self {
        let text = match info {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
            _ => return Self::default(),
        };
        let mut facts = Self::default();
        for (field, value) in text.lines().filter_map(|line| line.split_once(':')) {
            match field {
                "redis_version" => facts.redis = version(value),
                "valkey_version" => facts.valkey = version(value),
                "run_id" => facts.run_id = Some(value.trim().into()),
                "redis_mode" | "server_mode" => facts.cluster = value.trim() == "cluster",
                _ => {}
            }
        }
        facts
    }

    fn abilities(&self) -> Abilities {
        let at_least = |version: Option<(u32, u32)>, least| version.is_some_and(|version| version >= least);
        let delete = if self.valkey.is_some() {
            at_least(self.valkey, (9, 0)).then_some(NativeDelete::Delifeq)
        } else {
            at_least(self.redis, (8, 4)).then_some(NativeDelete::Delex)
        };
        // Every Valkey reports a Redis version of 7.2 or newer here.
        Abilities { set_get: at_least(self.redis, (7, 0)), delete, one_slot: self.cluster }
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.valkey, self.redis) {
            (Some((major, minor)), _) => write!(f, "Valkey {major}.{minor}"),
            (None, Some((major, minor))) => write!(f, "Redis {major}.{minor}"),
            (None, None) => f.write_str("unknown version"),
        }
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().and_then(|minor| minor.parse().ok()).unwrap_or(0);
    Some((major, minor))
}

/// An error of connecting, with a hint where the usual cause is known.
fn describe(error: &RedisError, settings: &Settings) -> String {
    let text = match error.code() {
        Some(code) => {
            let server = ServerError { code: code.into(), detail: error.detail().unwrap_or_default().into() };
            server.message().to_string()
        }
        None => error.to_string(),
    };
    // A TLS server answers a plain greeting with an alert, or hangs up.
    let confused = error.kind() == ErrorKind::Parse || error.is_connection_dropped();
    let refused = error.is_connection_refusal();
    if settings.address.is_plain_tcp() && confused && !refused {
        return format!("{text} (does the port speak TLS? then the address begins with rediss://)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(info: &str) -> Facts {
        Facts::read(&Value::BulkString(info.as_bytes().to_vec()))
    }

    /// Which server can do what, by the versions that the servers report.
    #[test]
    fn abilities_follow_the_version() {
        let cases = [
            ("redis_version:6.2.14\r\n", false, None),
            ("redis_version:7.0.15\r\n", true, None),
            ("redis_version:8.2.1\r\n", true, None),
            ("redis_version:8.4.0\r\n", true, Some(NativeDelete::Delex)),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\n", true, None),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n", true, Some(NativeDelete::Delifeq)),
            ("", false, None),
            ("redis_version:nonsense\r\n", false, None),
        ];
        for (info, set_get, delete) in cases {
            assert_eq!(facts(info).abilities(), Abilities { set_get, delete, one_slot: false }, "{info}");
        }
        assert!(facts("redis_version:7.0.15\r\nredis_mode:cluster\r\n").abilities().one_slot);
        assert!(!facts("redis_version:7.0.15\r\nredis_mode:standalone\r\n").abilities().one_slot);
        assert_eq!(Facts::read(&Value::Int(3)), Facts::default());
        assert_eq!(facts("redis_version:7.2.4\nvalkey_version:9.1.0").to_string(), "Valkey 9.1");
    }
}
