//! What a server tells of itself: asked on each new connection, and some of it again every five seconds.
//!
//! Knows the commands and their answers. What follows from them is decided by [`super::health`] and the protocol.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, join3};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value, cmd};
use uuid::Uuid;

use super::command::{self, Abilities, Form, NativeDelete};
use super::names;
use crate::clock::Clock;
use crate::protocol::restart::Role;
use crate::protocol::time::Instant;

/// What a server told at one moment.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    /// How often the clock had been put forward when that moment was read.
    pub(super) put_forward: u64,
    /// Whether the connection is new, so that everything was asked.
    pub(super) whole: bool,
    pub(super) info: Info,
    /// The server's time, in microseconds.
    pub(super) time: Option<u64>,
    pub(super) marker: Mark,
    /// Whether the server tells when the marker goes; `None` if it was not asked to.
    pub(super) tracked: Option<bool>,
    /// What the server kept of the count of the run that was known before.
    pub(super) kept: Option<u64>,
    /// How often the node had been doubted when the look began.
    pub(super) doubts: u64,
    /// What this user must not ask.
    pub(super) forbidden: Vec<&'static str>,
}

/// What a look for the marker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nobody looked, or it may not be read or set.
    Unread,
    Absent,
    Found(Arc<[u8]>),
}

/// What a look is to find out.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// What stands before the names of the marker and the counts, for a client that needs them.
    pub(super) prefix: Option<Arc<[u8]>>,
    /// All, as on a new connection.
    pub(super) whole: bool,
    /// The server is to tell when the marker goes.
    pub(super) tracked: bool,
    /// The run whose count was raised before, for a client that raises counts.
    pub(super) run: Option<Arc<str>>,
    /// How often the node has been doubted.
    pub(super) doubts: u64,
}

/// The questions of a look, in order; the first three are asked of an old connection as well. That may lead to another run
/// by now, where something between ends connections.
const QUESTIONS: [(&str, &[&str]); 6] = [
    ("INFO", &["replication"]),
    ("TIME", &[]),
    ("INFO", &["server"]),
    ("INFO", &["persistence"]),
    ("INFO", &["memory"]),
    // In one pattern: older servers take one only. An append-only file that is not synced during a rewrite forgets.
    ("CONFIG", &["GET", "*appendfsync*"]),
];

/// So many counts of earlier runs are kept.
const MOST_BEATS: usize = 32;

/// Asks a server about itself: all of it on a new connection, else its run, role, replication history, time and marker.
///
/// The error of a server that is not ready, or of the connection. What is forbidden is left out.
pub(super) async fn look(
    connection: &MultiplexedConnection,
    clock: &Clock,
    asked: &Asked,
) -> RedisResult<Look> {
    let Asked { whole, tracked, doubts, .. } = *asked;
    let prefix = asked.prefix.as_deref();
    let questions = if whole { &QUESTIONS[..] } else { &QUESTIONS[..3] };
    let mut commands: Vec<Cmd> = Vec::with_capacity(questions.len() + 3);
    let kept = prefix.zip(asked.run.as_deref());
    if let Some((prefix, run)) = kept {
        let mut get = cmd("HGET");
        get.arg(names::beats(prefix)).arg(run);
        commands.push(get);
    }
    // Before the time: so a marker that is missing was missing before the time that was read.
    if let Some(prefix) = prefix {
        commands.extend(tracked.then(track_next));
        commands.push(get_marker(prefix));
    }
    commands.extend(questions.iter().map(|(name, arguments)| {
        let mut command = cmd(name);
        command.arg(*arguments);
        command
    }));
    let sent = clock.now();
    let answers = join_all(commands.iter().map(|command| ask(connection.clone(), command))).await;
    let put_forward = clock.times_put_forward();
    let received = clock.now();
    let mut answers = answers.into_iter();
    let (mut info, mut time, mut forbidden) = (Info::default(), None, Vec::new());
    let kept = match kept.and_then(|_| answers.next()) {
        None => None,
        Some(answer) => count(answer, "HGET of the count of looks", &mut forbidden)?,
    };
    let tracked = match prefix.filter(|_| tracked).and_then(|_| answers.next()) {
        None => None,
        Some(answer) => Some(read_tracked(answer, &mut forbidden)?),
    };
    let marker = match prefix.and_then(|_| answers.next()) {
        None => Mark::Unread,
        Some(answer) => read_marker(answer)?,
    };
    if prefix.is_some() && marker == Mark::Unread {
        forbidden.push("GET of the marker");
    }
    for ((name, _), answer) in questions.iter().zip(answers) {
        match answer {
            Ok(value) if *name == "TIME" => time = micros(&value),
            Ok(value) if *name == "CONFIG" => info.read_config(&value),
            Ok(value) => info.read(&value),
            Err(error) if is_forbidden(&error) => {
                if !forbidden.contains(name) {
                    forbidden.push(name);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Look { sent, received, put_forward, whole, info, time, marker, tracked, kept, doubts, forbidden })
}

/// The next command reads what the server is to watch for this connection.
fn track_next() -> Cmd {
    let mut next = cmd("CLIENT");
    next.arg("CACHING").arg("YES");
    next
}

fn read_tracked(answer: RedisResult<Value>, forbidden: &mut Vec<&'static str>) -> RedisResult<bool> {
    match answer {
        Ok(_) => Ok(true),
        // The server says so if it would not track, too.
        Err(error) if error.code().is_some() => {
            forbidden.push("CLIENT TRACKING");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// A count, zero if there is none. `None` if the server does not tell: what is not told shows nothing.
fn count(
    answer: RedisResult<Value>,
    what: &'static str,
    forbidden: &mut Vec<&'static str>,
) -> RedisResult<Option<u64>> {
    match answer {
        Ok(Value::Nil) => Ok(Some(0)),
        Ok(Value::Int(count)) => Ok(u64::try_from(count).ok()),
        Ok(Value::BulkString(bytes)) => {
            Ok(std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok()))
        }
        Ok(_) => Ok(None),
        Err(error) => {
            if is_forbidden(&error) {
                forbidden.push(what);
            }
            // A full memory or a replica, for instance.
            if error.code().is_some() { Ok(None) } else { Err(error) }
        }
    }
}

/// What raising a count came to.
#[derive(Debug)]
pub(super) struct Beat {
    /// The count, now. `None` if it was not raised.
    pub(super) count: Option<u64>,
    pub(super) received: Instant,
    pub(super) forbidden: Vec<&'static str>,
}

/// Raises the count of a run. The first one of a run clears away those of runs long gone.
pub(super) async fn beat(
    connection: &MultiplexedConnection,
    clock: &Clock,
    prefix: &[u8],
    run: &str,
) -> RedisResult<Beat> {
    let beats = names::beats(prefix);
    let mut raise = cmd("HINCRBY");
    raise.arg(&beats).arg(run).arg(1);
    let mut forbidden = Vec::new();
    let raised = ask(connection.clone(), &raise).await;
    let count = count(raised, "HINCRBY of the count of looks", &mut forbidden)?;
    let received = clock.now();
    if count == Some(1) {
        let mut list = cmd("HKEYS");
        list.arg(&beats);
        if let Ok(Value::Array(runs)) = ask(connection.clone(), &list).await
            && runs.len() > MOST_BEATS
        {
            let mut clear = cmd("HDEL");
            clear.arg(&beats);
            for earlier in &runs {
                if let Value::BulkString(earlier) = earlier
                    && earlier != run.as_bytes()
                {
                    clear.arg(earlier);
                }
            }
            // Who remembers one of these goes by the uptime once more.
            let _ = ask(connection.clone(), &clear).await;
        }
    }
    Ok(Beat { count, received, forbidden })
}

/// Sets a marker where there is none, dated `age` before the server's present time, and tells what is there then.
pub(super) async fn mark(
    connection: &MultiplexedConnection,
    clock: &Clock,
    asked: &Asked,
    age: Duration,
) -> RedisResult<Look> {
    let Asked { tracked, doubts, .. } = *asked;
    let prefix = asked.prefix.as_deref().unwrap_or_default();
    let (whole, kept) = (false, None);
    let sent = clock.now();
    let time = match ask(connection.clone(), &cmd("TIME")).await {
        Ok(time) => micros(&time),
        Err(error) if is_forbidden(&error) => None,
        Err(error) => return Err(error),
    };
    let Some(now) = time else {
        // Without a date a marker would be no use to anybody.
        let put_forward = clock.times_put_forward();
        let (info, received, forbidden) = (Info::default(), clock.now(), vec!["TIME"]);
        let (marker, tracked) = (Mark::Unread, None);
        return Ok(Look {
            sent,
            received,
            put_forward,
            whole,
            info,
            time,
            marker,
            tracked,
            kept,
            doubts,
            forbidden,
        });
    };
    let since = now.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
    let mut set = cmd("SET");
    set.arg(names::marker(prefix)).arg(format!("{}:{since}", Uuid::new_v4().simple())).arg("NX");
    let (get, track) = (get_marker(prefix), track_next());
    let track = async {
        match tracked {
            true => Some(ask(connection.clone(), &track).await),
            false => None,
        }
    };
    // Somebody else may have been first.
    let (set, track, get) = join3(ask(connection.clone(), &set), track, ask(connection.clone(), &get)).await;
    let mut forbidden = Vec::new();
    let tracked = track.map(|answer| read_tracked(answer, &mut forbidden)).transpose()?;
    let marker = match (set, read_marker(get)?) {
        (Err(error), Mark::Absent) if is_forbidden(&error) => Mark::Unread,
        (_, marker) => marker,
    };
    if marker == Mark::Unread {
        forbidden.push("SET of the marker");
    }
    let put_forward = clock.times_put_forward();
    let (received, info) = (clock.now(), Info::default());
    Ok(Look { sent, received, put_forward, whole, info, time, marker, tracked, kept, doubts, forbidden })
}

/// Takes this marker away, if it still stands there. Returns whether the server did as it was asked.
pub(super) async fn unmark(
    connection: &MultiplexedConnection,
    prefix: &[u8],
    marker: &[u8],
    delete: Option<NativeDelete>,
) -> RedisResult<bool> {
    let name = names::marker(prefix);
    // A command that the server knows may be forbidden all the same.
    let forms = delete.map(Form::Delete).into_iter().chain([Form::Text]);
    for form in forms {
        match ask(connection.clone(), &command::delete_if(&name, marker, form)).await {
            Ok(_) => return Ok(true),
            Err(error) if error.code().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn get_marker(prefix: &[u8]) -> Cmd {
    let mut get = cmd("GET");
    get.arg(names::marker(prefix));
    get
}

pub(super) fn read_marker(answer: RedisResult<Value>) -> RedisResult<Mark> {
    match answer {
        Ok(Value::BulkString(marker)) => Ok(Mark::Found(marker.into())),
        Ok(_) => Ok(Mark::Absent),
        // Under that name is something else, which is not ours to change.
        Err(error) if is_forbidden(&error) || error.code() == Some("WRONGTYPE") => Ok(Mark::Unread),
        Err(error) => Err(error),
    }
}

/// When a marker says that it was set: what follows its last colon. The end of days where it says nothing.
pub(super) fn since(marker: &[u8]) -> u64 {
    let text = std::str::from_utf8(marker).ok();
    text.and_then(|text| text.rsplit_once(':')?.1.parse().ok()).unwrap_or(u64::MAX)
}

/// Asks one thing.
pub(super) async fn ask(mut connection: MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

/// A command that this user must not use, or that was renamed away, says nothing about the server's health.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    error.code() == Some("NOPERM") || is_unknown_command(error)
}

pub(super) fn is_unknown_command(error: &RedisError) -> bool {
    error.to_string().to_ascii_lowercase().contains("unknown command")
}

/// The answer to TIME: seconds and microseconds.
pub(super) fn micros(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let number = |value: &Value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = parts.as_slice() else { return None };
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

/// What INFO and CONFIG tell, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    redis: Option<(u32, u32)>,
    valkey: Option<(u32, u32)>,
    pub(super) run_id: Option<Arc<str>>,
    pub(super) uptime: Option<Duration>,
    pub(super) role: Option<Role>,
    pub(super) replication: Option<Arc<str>>,
    /// The history that its present one follows on.
    pub(super) former: Option<Arc<str>>,
    pub(super) append_only: Option<bool>,
    pub(super) eviction: Option<Arc<str>>,
    pub(super) fsync: Option<Arc<str>>,
    /// Whether the append-only file is synced also while it is rewritten.
    syncs_in_rewrite: bool,
    /// Whether it is a node of a cluster, where keys of one command share a slot.
    cluster: bool,
}

impl Info {
    pub(super) fn read(&mut self, info: &Value) {
        let text = match info {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
            _ => return,
        };
        for (field, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match field {
                "redis_version" => self.redis = version(value),
                "valkey_version" => self.valkey = version(value),
                "redis_mode" | "server_mode" => self.cluster = value == "cluster",
                "run_id" => self.run_id = Some(value.into()),
                "uptime_in_seconds" => self.uptime = value.parse().ok().map(Duration::from_secs),
                "role" => {
                    self.role = match value {
                        "master" | "primary" => Some(Role::Primary),
                        "slave" | "replica" => Some(Role::Replica),
                        _ => None,
                    }
                }
                "master_replid" => self.replication = Some(value.into()),
                // All zeros where there is none.
                "master_replid2" if value.bytes().any(|byte| byte != b'0') => {
                    self.former = Some(value.into())
                }
                "aof_enabled" => self.append_only = Some(value == "1"),
                "maxmemory_policy" => self.eviction = Some(value.into()),
                _ => {}
            }
        }
    }

    pub(super) fn read_config(&mut self, config: &Value) {
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        };
        let pairs: Vec<(Option<String>, Option<String>)> = match config {
            Value::Map(pairs) => pairs.iter().map(|(name, value)| (text(name), text(value))).collect(),
            Value::Array(flat) => flat.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
            _ => return,
        };
        for pair in pairs {
            match (pair.0.as_deref(), pair.1.as_deref()) {
                (Some("appendfsync"), Some(value)) => self.fsync = Some(value.into()),
                (Some("no-appendfsync-on-rewrite"), Some(value)) => self.syncs_in_rewrite = value == "no",
                _ => {}
            }
        }
    }

    /// Whether the server certainly writes every change to disk before it answers.
    pub(super) fn is_durable(&self) -> bool {
        self.append_only == Some(true) && self.fsync.as_deref() == Some("always") && self.syncs_in_rewrite
    }

    pub(super) fn abilities(&self) -> Abilities {
        let at_least = |version: Option<(u32, u32)>, least| version.is_some_and(|version| version >= least);
        let delete = if self.valkey.is_some() {
            at_least(self.valkey, (9, 0)).then_some(NativeDelete::Delifeq)
        } else {
            at_least(self.redis, (8, 4)).then_some(NativeDelete::Delex)
        };
        // Every Valkey reports a Redis version of 7.2 or newer here.
        let set_ifeq =
            if self.valkey.is_some() { at_least(self.valkey, (8, 1)) } else { at_least(self.redis, (8, 4)) };
        Abilities {
            set_get: at_least(self.redis, (7, 0)),
            delete,
            one_slot: self.cluster,
            no_scripts: false,
            set_ifeq,
        }
    }

    /// What the server is, where it told.
    pub(super) fn version(&self) -> Option<Arc<str>> {
        match (self.valkey, self.redis) {
            (Some((major, minor)), _) => Some(format!("Valkey {major}.{minor}").into()),
            (None, Some((major, minor))) => Some(format!("Redis {major}.{minor}").into()),
            (None, None) => None,
        }
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().and_then(|minor| minor.parse().ok()).unwrap_or(0);
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Info {
        let mut info = Info::default();
        info.read(&Value::BulkString(text.as_bytes().to_vec()));
        info
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// Which server can do what, by the versions that the servers report.
    #[test]
    fn abilities_follow_the_version() {
        let cases = [
            ("redis_version:6.2.14\r\n", false, None, false),
            ("redis_version:7.0.15\r\n", true, None, false),
            ("redis_version:8.2.1\r\n", true, None, false),
            ("redis_version:8.4.0\r\n", true, Some(NativeDelete::Delex), true),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.3\r\n", true, None, false),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\n", true, None, true),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n", true, Some(NativeDelete::Delifeq), true),
            ("", false, None, false),
            ("redis_version:nonsense\r\n", false, None, false),
        ];
        for (text, set_get, delete, set_ifeq) in cases {
            let expected = Abilities { set_get, delete, set_ifeq, ..Abilities::default() };
            assert_eq!(info(text).abilities(), expected, "{text}");
        }
        assert!(info("redis_version:7.0.15\r\nredis_mode:cluster\r\n").abilities().one_slot);
        assert!(!info("redis_version:7.0.15\r\nredis_mode:standalone\r\n").abilities().one_slot);
        let mut nothing = Info::default();
        nothing.read(&Value::Int(3));
        assert_eq!((nothing.clone(), nothing.version()), (Info::default(), None));
        assert_eq!(
            info("redis_version:7.2.4\nvalkey_version:9.1.0").version().as_deref(),
            Some("Valkey 9.1")
        );
    }

    /// Durable is only who was read to be so in every respect, in both shapes of the answer.
    #[test]
    fn durable_is_read_and_never_assumed() {
        let config = |fsync: &str, rewrite: &str| {
            [bulk("no-appendfsync-on-rewrite"), bulk(rewrite), bulk("appendfsync"), bulk(fsync)]
        };
        let is_durable = |text: &str, config: &Value| {
            let mut info = info(text);
            info.read_config(config);
            info.is_durable()
        };
        let good = config("always", "no");
        let map = Value::Map(vec![(good[0].clone(), good[1].clone()), (good[2].clone(), good[3].clone())]);
        let good = Value::Array(good.to_vec());

        assert!(is_durable("aof_enabled:1\r\n", &good) && is_durable("aof_enabled:1\r\n", &map));
        assert!(!is_durable("aof_enabled:0\r\n", &good) && !is_durable("", &good));
        assert!(!is_durable("aof_enabled:1\r\n", &Value::Array(config("everysec", "no").to_vec())));
        assert!(!is_durable("aof_enabled:1\r\n", &Value::Array(config("always", "yes").to_vec())));
        assert!(!is_durable("aof_enabled:1\r\n", &Value::Nil));
    }

    /// A marker carries its date; one that does not is from the end of days.
    #[test]
    fn markers_carry_their_date() {
        assert_eq!(since(b"0123abcd:1700000000000000"), 1_700_000_000_000_000);
        assert_eq!([since(b"somebody else's"), since(b"a:b"), since(&[0xff])], [u64::MAX; 3]);
    }
}
