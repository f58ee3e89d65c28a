//! What one node tells of itself, asked over a connection of the doctor's own.
//!
//! Judges nothing. Past the library, since that hides what is none of a client's business: settings, denied commands, clocks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, Value,
};
use tokio::time::timeout;

use crate::places::Places;

/// How long one answer may take before the node counts as one that does not answer.
const ANSWER: Duration = Duration::from_secs(2);

/// How often the clock is read at each end of the comparison; the quickest answer counts.
const CLOCK_READINGS: usize = 5;

/// How many connections are asked which server they lead to.
const CONNECTIONS: usize = 4;

/// How many round trips are measured.
const PINGS: usize = 11;

/// The settings that are looked at.
const SETTINGS: [&str; 8] = [
    "aof-load-truncated",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory",
    "maxmemory-policy",
    "maxclients",
    "min-replicas-to-write",
    "timeout",
];

/// Where a node is, and how to reach it by hand.
#[derive(Clone, Debug)]
pub struct Place {
    info: ConnectionInfo,
    /// Without credentials.
    pub name: String,
    pub host: Option<String>,
}

/// What a node told. What it did not tell is not there.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Why it could not be asked.
    pub trouble: Option<Trouble>,
    pub info: HashMap<String, String>,
    pub settings: HashMap<String, String>,
    pub marker: Option<Vec<u8>>,
    /// Commands that a client needs, and why this node does not take them.
    pub refused: Vec<(&'static str, String)>,
    pub round_trip: Option<Duration>,
    pub speaks_resp3: bool,
    /// Why it does not tell when a key that was read changes.
    pub no_tracking: Option<String>,
    /// The run that answered on each connection.
    pub runs: Vec<String>,
    pub clock: Option<Clock>,
}

/// Why a node could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Unreachable(String),
    Denied(String),
}

/// A node's clock against this machine's, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    /// How far it is ahead of this machine's wall clock.
    pub ahead: f64,
    /// By how much it gained on this machine's clock, per microsecond.
    pub gains: f64,
    /// How far either may be off.
    pub doubt: f64,
    pub rate_doubt: f64,
}

impl Place {
    pub fn of(url: &str) -> Option<Self> {
        let info = url.into_connection_info().ok()?;
        let (name, host) = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (format!("{host}:{port}"), Some(host.clone()))
            }
            ConnectionAddr::Unix(path) => (format!("unix:{}", path.display()), None),
            _ => ("?".to_owned(), None),
        };
        Some(Self { info, name, host })
    }

    /// The beginning of a command line that speaks to this node.
    pub fn cli(&self) -> String {
        let settings = self.info.redis_settings();
        let user = settings.username().map(|user| format!(" --user {user}")).unwrap_or_default();
        let password = if settings.password().is_some() { " --askpass" } else { "" };
        match self.info.addr() {
            ConnectionAddr::Unix(path) => format!("redis-cli -s {}{user}{password}", path.display()),
            ConnectionAddr::TcpTls { host, port, .. } => {
                format!("redis-cli --tls -h {host} -p {port}{user}{password}")
            }
            ConnectionAddr::Tcp(host, port) => format!("redis-cli -h {host} -p {port}{user}{password}"),
            _ => "redis-cli".to_owned(),
        }
    }

    /// Who the client is on this node.
    pub fn user(&self) -> &str {
        self.info.redis_settings().username().unwrap_or("default")
    }

    fn redacted(&self, error: &RedisError) -> String {
        let text = error.to_string();
        match self.info.redis_settings().password() {
            Some(password) if !password.is_empty() => text.replace(password, "***"),
            _ => text,
        }
    }
}

/// Asks a node everything. Takes a little longer than `clocks`.
pub async fn probe(place: &Place, places: &Places, clocks: Duration) -> Facts {
    let mut facts = Facts::default();
    let within = places.connect_timeout.unwrap_or(Duration::from_secs(1));
    let mut connection = match connect(&place.info, within).await {
        Ok(connection) => connection,
        Err(error) => {
            let text = place.redacted(&error);
            let denied = ["WRONGPASS", "NOAUTH", "AUTH", "uthentication", "invalid username"];
            let is_denied = denied.iter().any(|word| text.contains(word));
            facts.trouble = Some(if is_denied { Trouble::Denied(text) } else { Trouble::Unreachable(text) });
            return facts;
        }
    };
    if let Err(error) = ask::<String>(&mut connection, &["PING"]).await {
        let text = place.redacted(&error);
        if text.contains("NOAUTH") || error.is_timeout() || error.is_io_error() {
            let denied = text.contains("NOAUTH");
            facts.trouble = Some(if denied { Trouble::Denied(text) } else { Trouble::Unreachable(text) });
            return facts;
        }
    }
    let began = Instant::now();
    let first = clock(&mut connection, began).await;
    let info: Result<String, _> = ask(&mut connection, &["INFO"]).await;
    facts.info = info.as_deref().map(fields).unwrap_or_default();
    for name in SETTINGS {
        if let Ok(found) = ask::<HashMap<String, String>>(&mut connection, &["CONFIG", "GET", name]).await {
            facts.settings.extend(found);
        }
    }
    let marker = format!("{}redquorum:node", places.prefix);
    facts.marker = ask(&mut connection, &["GET", &marker]).await.ok().flatten();
    facts.round_trip = round_trip(&mut connection).await;
    facts.refused = refused(&mut connection, place, &places.prefix).await;
    facts.runs.extend(facts.info.get("run_id").cloned());
    let settings = place.info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
    if let Ok(mut other) = connect(&place.info.clone().set_redis_settings(settings), within).await {
        facts.speaks_resp3 = true;
        let tracking: Result<Value, _> = ask(&mut other, &["CLIENT", "TRACKING", "ON", "OPTIN"]).await;
        let caching: Result<Value, _> = ask(&mut other, &["CLIENT", "CACHING", "YES"]).await;
        facts.no_tracking = tracking.and(caching).err().map(|error| place.redacted(&error));
    }
    for _ in 1..CONNECTIONS {
        if let Ok(mut other) = connect(&place.info, within).await
            && let Ok(text) = ask::<String>(&mut other, &["INFO", "server"]).await
        {
            facts.runs.extend(fields(&text).remove("run_id"));
        }
    }
    tokio::time::sleep(clocks.saturating_sub(began.elapsed())).await;
    let second = clock(&mut connection, began).await;
    facts.clock = first.zip(second).map(|(first, second)| compare(first, second));
    facts
}

async fn connect(info: &ConnectionInfo, within: Duration) -> Result<MultiplexedConnection, RedisError> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(Some(ANSWER));
    Client::open(info.clone())?.get_multiplexed_async_connection_with_config(&config).await
}

async fn ask<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &[&str],
) -> Result<T, RedisError> {
    let (name, args) = command.split_first().unwrap_or((&"PING", &[]));
    redis::cmd(name).arg(args).query_async(connection).await
}

/// `name:value` lines.
fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

async fn round_trip(connection: &mut MultiplexedConnection) -> Option<Duration> {
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let asked = Instant::now();
        ask::<i64>(connection, &["EXISTS", "redquorum:node"]).await.ok()?;
        took.push(asked.elapsed());
    }
    took.sort();
    took.get(PINGS / 2).copied()
}

/// One reading of a node's clock: when that was on this machine, since the beginning and by its wall clock, and how far it
/// may be off, all in microseconds.
#[derive(Clone, Copy, Debug)]
struct Reading {
    node: f64,
    here: f64,
    wall: f64,
    doubt: f64,
}

async fn clock(connection: &mut MultiplexedConnection, began: Instant) -> Option<Reading> {
    let mut best: Option<Reading> = None;
    for _ in 0..CLOCK_READINGS {
        let before = began.elapsed();
        let (seconds, micros): (u64, u64) = ask(connection, &["TIME"]).await.ok()?;
        let after = began.elapsed();
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
        let doubt = (after - before).as_secs_f64() * 1e6 / 2.0;
        let reading = Reading {
            node: seconds as f64 * 1e6 + micros as f64,
            here: before.as_secs_f64() * 1e6 + doubt,
            wall: wall.as_secs_f64() * 1e6 - doubt,
            doubt,
        };
        if best.is_none_or(|best| doubt < best.doubt) {
            best = Some(reading);
        }
    }
    best
}

fn compare(first: Reading, second: Reading) -> Clock {
    let here = (second.here - first.here).max(1.0);
    Clock {
        ahead: second.node - second.wall,
        gains: (second.node - first.node - here) / here,
        doubt: second.doubt,
        rate_doubt: (first.doubt + second.doubt) / here,
    }
}

/// Every command that a client sends or a script calls, on a key of the doctor's own.
async fn refused(
    connection: &mut MultiplexedConnection,
    place: &Place,
    prefix: &str,
) -> Vec<(&'static str, String)> {
    let key = format!("{prefix}redquorum-doctor:{:016x}", rand::random::<u64>());
    let (lines, lives) = (format!("{key}:line"), format!("{key}:lives"));
    let wake = format!("{prefix}redquorum:wake:doctor");
    let far = "4102444800000";
    let commands: [(&'static str, &[&str]); 31] = [
        ("SET", &["SET", &key, "doctor", "NX", "PX", "10000"]),
        ("GET", &["GET", &key]),
        ("PTTL", &["PTTL", &key]),
        ("PEXPIRE", &["PEXPIRE", &key, "10000"]),
        ("EXISTS", &["EXISTS", &key]),
        ("EXPIRE", &["EXPIRE", &key, "10"]),
        ("PEXPIREAT", &["PEXPIREAT", &lives, far]),
        ("EVAL", &["EVAL", "return 1", "1", &key]),
        ("EVALSHA", &["EVALSHA", "0000000000000000000000000000000000000000", "1", &key]),
        ("SCRIPT LOAD", &["SCRIPT", "LOAD", "return 1"]),
        ("ZADD", &["ZADD", &lines, "1", "doctor"]),
        ("ZCARD", &["ZCARD", &lines]),
        ("ZRANGE", &["ZRANGE", &lines, "0", "0"]),
        ("ZREVRANGE", &["ZREVRANGE", &lines, "0", "0"]),
        ("ZRANK", &["ZRANK", &lines, "doctor"]),
        ("ZSCORE", &["ZSCORE", &lines, "doctor"]),
        ("ZREM", &["ZREM", &lines, "doctor"]),
        ("ZPOPMIN", &["ZPOPMIN", &lines]),
        ("HSET", &["HSET", &lives, "doctor", "1"]),
        ("HGET", &["HGET", &lives, "doctor"]),
        ("HDEL", &["HDEL", &lives, "doctor"]),
        ("TIME", &["TIME"]),
        ("INFO", &["INFO", "server"]),
        ("CONFIG GET", &["CONFIG", "GET", "appendfsync"]),
        ("CLIENT SETNAME", &["CLIENT", "SETNAME", "redquorum-doctor"]),
        ("PING", &["PING"]),
        ("PUBLISH", &["PUBLISH", &wake, "doctor"]),
        ("SUBSCRIBE", &["ACL", "DRYRUN", place.user(), "SUBSCRIBE", &wake]),
        ("DEL", &["DEL", &key]),
        ("DEL", &["DEL", &lines]),
        ("DEL", &["DEL", &lives]),
    ];
    let mut refused: Vec<(&'static str, String)> = Vec::new();
    for (name, command) in commands {
        let words = match ask::<Value>(connection, command).await {
            Ok(Value::SimpleString(text) | Value::VerbatimString { text, .. }) => text,
            Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(_) => continue,
            Err(error) => place.redacted(&error),
        };
        // To ask what somebody may do, one has to be allowed to ask: then nothing is known, and nothing said.
        let may_ask = name != "SUBSCRIBE" || words.contains("subscribe") || words.contains("channel");
        let denied = ["NOPERM", "no permissions", "unknown command", "MISCONF", "NOREPLICAS", "OOM"];
        let denied = may_ask && denied.iter().any(|word| words.to_lowercase().contains(&word.to_lowercase()));
        if denied && !refused.iter().any(|(earlier, _)| *earlier == name) {
            refused.push((name, words));
        }
    }
    refused
}

/// Finds all that all nodes tell, at the same time.
pub async fn all(known: &[Place], places: &Places, clocks: Duration) -> Vec<Facts> {
    let probes = known.iter().map(|place| async move {
        // Each answer is waited for; this is for a node that answers everything just in time.
        timeout(clocks + 30 * ANSWER, probe(place, places, clocks)).await.unwrap_or_else(|_| Facts {
            trouble: Some(Trouble::Unreachable("it answers too slowly to be asked".to_owned())),
            ..Facts::default()
        })
    });
    futures::future::join_all(probes).await
}
