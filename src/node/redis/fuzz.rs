//! Everything here that reads what others wrote, given anything at all: answers of every shape, valid ones bent out of
//! shape, and bytes that the `redis` crate's own parser makes an answer of. Nothing panics or hangs, what comes out is no
//! larger than it may be, and an answer means only what a table beside the decoder says that it means.
//!
//! An execution is one input, drawn from a seed and a number, so that each can be repeated alone:
//! `REDQUORUM_FUZZ_SEED=7 REDQUORUM_FUZZ_FROM=4711 REDQUORUM_FUZZ=1 cargo test --lib --all-features fuzz -- --ignored`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use redis::{PushInfo, PushKind, RedisResult, Value, parse_redis_value};

use super::address::{Address, AddressError};
use super::command::{
    Abilities, Form, NativeDelete, ServerError, decode, decode_error, form, is_about_keys, other_form,
};
use super::facts::{self, Beat, Info, Look, Mark, micros, read_marker};
use super::handshake::wake_up;
use super::health::Health;
use super::session::{is_echo, read};
use crate::clock::Clock;
use crate::protocol::fencing::{Carry, END, Fence, FencingToken, Retention};
use crate::protocol::message::{
    ClientId, Extension, Extensions, HolderValue, Key, Operation, Owner, Reply, Unknown,
};
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::restart::RestartDelay;
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};
use crate::registry::NodeTable;

/// No input takes longer, on however busy a machine.
const MOST_TIME: Duration = Duration::from_secs(10);

/// Inputs are not longer than this, but for the odd repetition.
const LONGEST: usize = 4_096;

const OWNER: Owner = Owner::from_bytes([7; 16]);
const OWN: &str = "07070707070707070707070707070707";
const SECRET: &str = "S3ntinel";

/// The numbers of a seed (SplitMix64): quick, and any seed is a good one.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Answers that servers give, and words that mean something somewhere.
fn answers() -> Vec<Vec<u8>> {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let (own, other) = (bulk(OWN), bulk("0123456789ABCDEF0123456789ABCDEF"));
    let info = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.0\r\nredis_mode:standalone\r\nrun_id:ab01\r\n\
                uptime_in_seconds:4711\r\nrole:master\r\nmaster_replid:cd02\r\naof_enabled:1\r\nmaxmemory_policy:noeviction\r\n";
    let marker = bulk("0123abcd:1700000000000000");
    let wake = bulk(&format!("{OWN}the key"));
    let config =
        [bulk("appendfsync"), bulk("always"), bulk("no-appendfsync-on-rewrite"), bulk("no")].concat();
    let texts = [
        "+OK\r\n".to_owned(),
        "$-1\r\n".to_owned(),
        "_\r\n".to_owned(),
        ":0\r\n".to_owned(),
        ":1\r\n".to_owned(),
        ":2\r\n".to_owned(),
        ":1700000000000000\r\n".to_owned(),
        ":8999999999999999\r\n".to_owned(),
        own.clone(),
        bulk("a foreign value"),
        "*0\r\n".to_owned(),
        format!("*2\r\n{other}:1000\r\n"),
        "*2\r\n:0\r\n:-1\r\n".to_owned(),
        "*1\r\n:3\r\n".to_owned(),
        format!("*3\r\n:1\r\n{other}:900\r\n"),
        format!("*5\r\n:4\r\n{}:1\r\n{other}:900\r\n", bulk("1700000000000001")),
        format!("*3\r\n:0\r\n{}:0\r\n", bulk("1700000000000001")),
        format!("*3\r\n:1\r\n:0\r\n*2\r\n{other}:-1\r\n"),
        format!("*3\r\n:1\r\n{}:1\r\n", bulk("MISCONF no writes")),
        "-ERR unknown command 'DELIFEQ', with args beginning with: 'k'\r\n".to_owned(),
        "-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(),
        "-NOPERM User app has no permissions to run the 'evalsha' command\r\n".to_owned(),
        "-OOM command not allowed when used memory > 'maxmemory'. script: 12, on @user_script:4.\r\n"
            .to_owned(),
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n".to_owned(),
        "-LOADING\r\n".to_owned(),
        bulk(info),
        "=15\r\ntxt:role:master\r\n".to_owned(),
        format!("*2\r\n{}{}", bulk("1700000000"), bulk("123456")),
        format!("*4\r\n{config}"),
        format!("%2\r\n{config}"),
        marker,
        format!(">3\r\n{}{}{wake}", bulk("message"), bulk("redquorum:wake:x")),
        format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk("redquorum:wake:x")),
        "+PONG\r\n".to_owned(),
        bulk("7"),
        "#t\r\n".to_owned(),
        ",1.5\r\n".to_owned(),
        "(12345678901234567890\r\n".to_owned(),
        "~2\r\n:1\r\n:2\r\n".to_owned(),
        "|1\r\n+a\r\n:1\r\n:1\r\n".to_owned(),
        "!9\r\nERR wrong\r\n".to_owned(),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}

/// What is put into inputs.
const TOKENS: [&str; 46] = [
    "\r\n",
    "+",
    "-",
    ":",
    "$",
    "*",
    "%",
    "~",
    ">",
    "|",
    "=",
    "!",
    "_\r\n",
    "#t\r\n",
    ",nan\r\n",
    ",inf\r\n",
    "(",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    ":1\r\n",
    ":-1\r\n",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "4294967296",
    "9007199254740993",
    "OK",
    "message",
    "ERR ",
    "NOPERM ",
    "unknown command",
    "syntax error",
    "script: ",
    "@user_script",
    OWN,
    "redis_version:",
    "valkey_version:9.",
    "uptime_in_seconds:",
    "aof_enabled:1",
    "role:slave",
    "appendfsync",
    "\u{1f512}",
    "\u{1b}[31m",
    "\0",
    "é",
];

/// Bends bytes out of shape: a few changes, of the kinds that networks, proxies and enemies make.
fn bend(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(9) {
            0 => bytes.truncate(at),
            1 => {
                let token = random.pick(&TOKENS).as_bytes();
                bytes.splice(at..at, token.iter().copied());
            }
            2 => {
                let other = random.pick(others);
                bytes.splice(at..at, other.iter().copied());
            }
            3 if at < bytes.len() => bytes[at] = random.next() as u8,
            4 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            5 if at < bytes.len() => drop(bytes.remove(at)),
            6 => {
                // A length, a count or a number that is another.
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    bytes[at + digit] = b'0' + random.below(10) as u8;
                }
            }
            7 => {
                let end = at + random.below(bytes.len() - at + 1).min(64);
                let piece = bytes[at..end].to_vec();
                for _ in 0..random.below(8) {
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
            _ => {
                let token = random.pick(&TOKENS).as_bytes();
                let end = (at + token.len()).min(bytes.len());
                bytes.splice(at..end, token.iter().copied());
            }
        }
        bytes.truncate(LONGEST);
    }
}

/// Text for inputs that are text.
fn any_text(random: &mut Random) -> String {
    (0..random.below(4)).map(|_| *random.pick(&TOKENS)).collect()
}

/// An answer of any kind, the usual ones more often.
fn any_value(random: &mut Random, depth: u32) -> Value {
    let kinds = if depth == 0 { 10 } else { 16 };
    let many = |random: &mut Random| -> Vec<Value> {
        (0..random.below(6)).map(|_| any_value(random, depth - 1)).collect()
    };
    match random.below(kinds) {
        0 => Value::Nil,
        1 => Value::Int(*random.pick(&[0, 1, 2, 3, -1, -2, i64::MAX, i64::MIN, 1_700_000_000_000_000])),
        2 => Value::Int(random.next() as i64),
        3 => Value::Okay,
        4 => Value::BulkString(OWN.into()),
        5 => Value::BulkString(any_text(random).into_bytes()),
        6 => Value::SimpleString(any_text(random)),
        7 => Value::Boolean(random.once_in(2)),
        8 => Value::Double(f64::from_bits(random.next())),
        9 => Value::BigNumber(any_text(random).into_bytes()),
        10..=12 => Value::Array(many(random)),
        13 => Value::Set(many(random)),
        14 => Value::Map(many(random).into_iter().map(|value| (value.clone(), value)).collect()),
        _ => Value::Push { kind: PushKind::Message, data: many(random) },
    }
}

/// An answer with the shape of one to a script, each part of it right more often than not.
fn like_an_answer(random: &mut Random) -> Value {
    let part = |random: &mut Random, usual: Value| {
        if random.once_in(6) { any_value(random, 2) } else { usual }
    };
    let text = |text: &str| Value::BulkString(text.into());
    let left = random.below(30_000) as i64;
    let value = random.pick(&[OWN, "0123456789ABCDEF0123456789ABCDEF", "foreign"]);
    let usual = match random.below(5) {
        0 => vec![text(value), Value::Int(left)],
        1 => vec![Value::Int(left), text("1700000000000001"), Value::Int(1), text(value), Value::Int(left)],
        2 => vec![Value::Int(left), text("1700000000000001"), Value::Int(0)],
        3 => vec![Value::Int(left), text(value), Value::Int(left)],
        _ => vec![Value::Int(1), Value::Int(0), Value::Array(vec![text(value), Value::Int(-1)])],
    };
    let mut parts: Vec<_> = usual.into_iter().map(|usual| part(random, usual)).collect();
    if random.once_in(12) {
        parts.pop();
    }
    Value::Array(parts)
}

/// What the network brought: made of bytes half of the time, as the `redis` crate reads them.
fn any_answer(answers: &[Vec<u8>], random: &mut Random) -> RedisResult<Value> {
    match random.below(4) {
        0 => Ok(any_value(random, 4)),
        1 => Ok(like_an_answer(random)),
        _ => {
            let mut bytes = random.pick(answers).clone();
            bend(&mut bytes, answers, random);
            parse_redis_value(&bytes)
        }
    }
}

fn operations() -> Vec<Operation> {
    let (key, owner, client) = (Key::new(*b"k"), OWNER, ClientId::from_bytes([1; 16]));
    let ttl = Ttl::unchecked(Duration::from_secs(10));
    let retention = Retention::new(Duration::from_secs(60));
    let carry = Carry { token: FencingToken::new(1_700_000_000_000_000), retention };
    let extension = |key: &[u8]| Extension { key: Key::new(key), owner, ttl, carry: None };
    let extensions = Extensions::new([&b"a"[..], b"b", b"c"].map(extension).to_vec()).expect("three");
    let fence = Some(Fence::Advance { candidate: 1_700_000_000_000_000, retention });
    let queue = |rename_from, score| Operation::Queue {
        key: key.clone(),
        owner,
        client,
        polls: false,
        rename_from,
        score,
        hand_over: ttl,
    };
    vec![
        Operation::Set { key: key.clone(), owner, ttl },
        Operation::Claim { key: key.clone(), owner, ttl, fence: None },
        Operation::Claim { key: key.clone(), owner, ttl, fence },
        Operation::Claim { key: key.clone(), owner, ttl, fence: Some(Fence::Carry(carry)) },
        Operation::Extend { key: key.clone(), owner, ttl, carry: None },
        Operation::Extend { key: key.clone(), owner, ttl, carry: Some(carry) },
        Operation::Raise { key: key.clone(), owner, carry },
        Operation::ExtendAll { extensions },
        Operation::Release { key: key.clone(), owner },
        Operation::HandOver { key: key.clone(), owner, client, hand_over: ttl },
        queue(None, None),
        queue(Some(Owner::from_bytes([9; 16])), Some(4_711)),
        Operation::Inspect { key },
    ]
}

/// What an answer to one operation in one form certainly says; nothing where that is told by more than a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    Granted,
    Fenced(i64),
    CounterExhausted,
    Voted,
    QueueFull,
    HandedOver,
    Absent,
    NotOurs,
    Nothing,
}

/// The table: read beside the scripts and the servers' documentation, not beside the decoder.
fn says(operation: &Operation, form: Form, value: &Value) -> Says {
    let number = match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    match form {
        Form::Set if *value == Value::Okay => Says::Granted,
        Form::SetGet if *value == Value::Nil => Says::Granted,
        Form::SetGet if *value == Value::BulkString(OWN.into()) => Says::Granted,
        Form::SetIfEq if *value == Value::BulkString(OWN.into()) => Says::Granted,
        Form::SetIfEq if *value == Value::Nil && !operation.creates() => Says::Absent,
        Form::Set | Form::SetGet | Form::SetIfEq | Form::Get => Says::Nothing,
        Form::Delete(_) => match number {
            Some(1) => Says::Granted,
            Some(0) => Says::NotOurs,
            _ => Says::Nothing,
        },
        Form::Digest | Form::Text => match (operation, number) {
            (_, None) | (Operation::Inspect { .. } | Operation::ExtendAll { .. }, _) => Says::Nothing,
            (Operation::Claim { fence: Some(_), .. }, Some(0)) => Says::CounterExhausted,
            (Operation::Claim { fence: Some(_), .. }, Some(number @ 1..)) if (number as u64) < END => {
                Says::Fenced(number)
            }
            (Operation::Claim { fence: Some(_), .. }, _) => Says::Nothing,
            (Operation::Queue { .. }, Some(1)) => Says::Voted,
            (Operation::Queue { .. }, Some(2)) => Says::QueueFull,
            (Operation::Queue { .. }, _) => Says::Nothing,
            (Operation::HandOver { .. }, Some(2)) => Says::HandedOver,
            (Operation::Claim { .. } | Operation::Set { .. }, Some(0)) => Says::Nothing,
            (_, Some(1)) => Says::Granted,
            (_, Some(0)) => Says::Absent,
            _ => Says::Nothing,
        },
    }
}

fn said(reply: &Reply) -> Says {
    match reply {
        Reply::Granted => Says::Granted,
        Reply::Fenced(token) => Says::Fenced(i64::try_from(token.as_u64()).unwrap_or(-1)),
        Reply::CounterExhausted => Says::CounterExhausted,
        Reply::Voted => Says::Voted,
        Reply::QueueFull => Says::QueueFull,
        Reply::HandedOver => Says::HandedOver,
        Reply::Absent => Says::Absent,
        Reply::NotOurs => Says::NotOurs,
        _ => Says::Nothing,
    }
}

/// A line for people, short and without control characters, whatever a server sent.
fn is_fit_to_be_shown(message: &str) -> bool {
    message.chars().count() <= 240 * 10 + 1 && !message.chars().any(char::is_control)
}

/// What has to hold for any reply.
fn check_reply(operation: &Operation, reply: &Reply) {
    match reply {
        Reply::Each(each) => {
            let Operation::ExtendAll { extensions } = operation else { panic!("each of one") };
            assert_eq!(each.len(), extensions.as_slice().len());
            assert!(!each.iter().any(|reply| matches!(reply, Reply::Each(_))));
            each.iter().for_each(|reply| check_reply(operation, reply));
        }
        Reply::Held(holder) => {
            assert!(!matches!(&holder.value, HolderValue::Foreign(value) if value.len() > 64))
        }
        Reply::Queued(_) => assert!(matches!(operation, Operation::Queue { .. })),
        Reply::Found(_) => assert!(matches!(operation, Operation::Inspect { .. })),
        Reply::Refused(message)
        | Reply::Unknown(
            Unknown::Error(message) | Unknown::Garbled(message) | Unknown::ConnectionLost(message),
        ) => {
            assert!(is_fit_to_be_shown(message), "{message:?}");
        }
        _ => {}
    }
}

/// What was seen, so that a run that reaches nothing is noticed.
type Seen = BTreeMap<&'static str, u64>;

fn note(seen: &mut Seen, what: &'static str) {
    *seen.entry(what).or_default() += 1;
}

/// Everything that inputs are made of.
struct Bench {
    answers: Vec<Vec<u8>>,
    operations: Vec<Operation>,
    seen: Seen,
}

impl Bench {
    fn new() -> Self {
        Self { answers: answers(), operations: operations(), seen: Seen::new() }
    }

    /// One execution.
    fn run(&mut self, random: &mut Random) {
        match random.below(16) {
            0..=7 => self.answer(random),
            8 => self.error(random),
            9..=10 => self.facts(random),
            11 => self.push(random),
            12..=13 => self.address(random),
            14 => self.parts(random),
            _ => self.small(random),
        }
    }

    /// An answer to an operation, in each form in which it may have been sent.
    fn answer(&mut self, random: &mut Random) {
        let operation = random.pick(&self.operations);
        let delete = *random.pick(&[None, Some(NativeDelete::Delex), Some(NativeDelete::Delifeq)]);
        let set_get = random.once_in(2);
        let (set_ifeq, no_scripts) = (random.once_in(2), random.once_in(4));
        let mut abilities = Abilities { set_get, delete, set_ifeq, no_scripts, one_slot: false };
        let mut form = form(operation, abilities);
        if form == Form::Digest && random.once_in(2) {
            form = Form::Text;
        }
        let Ok(read) = read(any_answer(&self.answers, random)) else {
            return note(&mut self.seen, "the end of a connection");
        };
        let value = match read {
            Ok(value) => value,
            Err(error) => return check_error(form, &error, &mut abilities, &mut self.seen),
        };
        let reply = decode(operation, form, &value);
        assert_eq!(said(&reply), says(operation, form, &value), "{operation:?} as {form:?}: {value:?}");
        if let (Reply::Each(each), Value::Array(answers)) = (&reply, &value) {
            for (reply, answer) in each.iter().zip(answers) {
                assert_eq!(reply.is_granted(), *answer == Value::Int(1), "{answer:?}");
            }
        }
        check_reply(operation, &reply);
        let _ = is_echo(&Ok(value), random.next() % 10);
        note(
            &mut self.seen,
            match reply {
                Reply::Granted => "granted",
                Reply::Fenced(_) => "fenced",
                Reply::CounterExhausted => "counter spent",
                Reply::Held(_) => "held",
                Reply::Absent => "absent",
                Reply::NotOurs => "not ours",
                Reply::HandedOver => "handed over",
                Reply::Voted => "voted",
                Reply::Each(_) => "each",
                Reply::Queued(_) => "queued",
                Reply::QueueFull => "line full",
                Reply::Found(_) => "found",
                Reply::Unknown(_) => "unusable",
                _ => "another",
            },
        );
    }

    /// An error as a server words it.
    fn error(&mut self, random: &mut Random) {
        let codes = ["ERR", "NOPERM", "NOSCRIPT", "WRONGTYPE", "OOM", "MOVED", "BUSY", "x", ""];
        let code = if random.once_in(4) { any_text(random) } else { (*random.pick(&codes)).to_owned() };
        let detail = any_text(random).repeat(random.below(40));
        let forms = [
            Form::Set,
            Form::SetGet,
            Form::Delete(NativeDelete::Delex),
            Form::Delete(NativeDelete::Delifeq),
            Form::SetIfEq,
            Form::Get,
            Form::Digest,
            Form::Text,
        ];
        let delete = Some(NativeDelete::Delex);
        let mut abilities = Abilities { set_get: true, delete, ..Abilities::default() };
        let error = ServerError { code, detail };
        check_error(*random.pick(&forms), &error, &mut abilities, &mut self.seen);
    }

    /// Any answer, or the sound one in which this stands.
    fn told(&self, what: &str, sound: bool, random: &mut Random) -> RedisResult<Value> {
        let is_it = |answer: &&Vec<u8>| answer.windows(what.len()).any(|piece| piece == what.as_bytes());
        match self.answers.iter().find(is_it).filter(|_| sound) {
            Some(answer) => parse_redis_value(answer),
            None => any_answer(&self.answers, random),
        }
    }

    /// What a server tells of itself, and what is made of it over several connections.
    fn facts(&mut self, random: &mut Random) {
        let delay = Ttl::unchecked(Duration::from_secs(10));
        let delay = random.once_in(2).then(|| RestartDelay::new(delay, Drift::default()));
        let node_table = NodeTable::new(Quorum::of(3).expect("three nodes"));
        let clock = Clock::Tokio(tokio::time::Instant::now());
        let mut health = Health::new(NodeId::new(0), Arc::from("n"), node_table, delay, clock);
        let mut now = random.next() % 1_000_000_000;
        for _ in 0..=random.below(3) {
            let mut info = Info::default();
            let (mut said, mut config) = (String::new(), String::new());
            // Now and then what is told is sound, so that it comes to more than one bent field.
            let sound = random.once_in(3);
            for _ in 0..random.below(4) {
                if let Ok(value) = self.told("redis_version", sound, random) {
                    info.read(&value);
                    said.push_str(&format!("{}\n", text_of(&value)));
                }
            }
            if let Ok(value) = self.told("appendfsync", sound, random) {
                info.read_config(&value);
                config = format!("{value:?}");
            }
            if info.is_durable() {
                let told = said.contains("aof_enabled:1") && config.contains("appendfsync");
                assert!(told, "durable by {said:?} and {config}");
                note(&mut self.seen, "durable");
            }
            assert!(info.version().is_none() || said.contains("_version:"), "{said:?}");
            assert!(info.abilities().delete.is_none() || info.version().is_some());
            let time = any_answer(&self.answers, random).ok().and_then(|value| micros(&value));
            let marker = read_marker(any_answer(&self.answers, random)).unwrap_or(Mark::Absent);
            if let Mark::Found(_) = &marker {
                note(&mut self.seen, "marker");
            }
            let sent = Instant::from_nanos(now);
            now += random.next() % 10_000_000_000;
            let received = Instant::from_nanos(now);
            let whole = random.once_in(2);
            let (tracked, kept, doubts) = (None, random.once_in(2).then(|| random.next() % 4), 0);
            let forbidden = Vec::new();
            health.take(&Look {
                sent,
                received,
                put_forward: 0,
                whole,
                info,
                time,
                marker,
                tracked,
                kept,
                doubts,
                forbidden,
            });
            let count = random.once_in(2).then(|| random.next() % 4);
            health.take_beat(&Beat { count, received, forbidden: Vec::new() });
            let _ = (health.name(), health.uptime(), health.is_unmarked());
        }
        note(&mut self.seen, "facts");
    }

    /// Something that nobody asked for.
    fn push(&mut self, random: &mut Random) {
        let push = match any_answer(&self.answers, random) {
            Ok(Value::Push { kind, data }) => PushInfo { kind, data },
            Ok(value) if random.once_in(2) => PushInfo {
                kind: PushKind::Message,
                data: vec![Value::BulkString(b"channel".to_vec()), value],
            },
            Ok(Value::Array(data)) => PushInfo { kind: PushKind::Message, data },
            _ => return,
        };
        let woken = wake_up(&push);
        let payload = match push.data.as_slice() {
            [_, Value::BulkString(payload)] if push.kind == PushKind::Message => payload.as_slice(),
            _ => &[],
        };
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
        let is_one = payload.len() > 32 && payload[..32].iter().all(is_digit);
        assert_eq!(woken.is_some(), is_one, "{push:?}");
        if let Some((owner, key)) = woken {
            assert_eq!([&owner.to_hex()[..], key.as_bytes()].concat(), payload);
            note(&mut self.seen, "woken");
        }
    }

    /// An address: usable, or refused without its password.
    fn address(&mut self, random: &mut Random) {
        const SCHEMES: [&str; 8] =
            ["redis", "rediss", "valkey", "valkeys", "redis+unix", "unix", "http", "re dis"];
        const PIECES: [&str; 26] = [
            "host",
            "h.example",
            "127.0.0.1",
            "[::1]",
            ":6379",
            ":99999",
            ":",
            "/",
            "/3",
            "/x",
            "?",
            "?db=1",
            "?protocol=resp3",
            "#insecure",
            "#",
            "%41",
            "%",
            "%zz",
            "é",
            " ",
            "\\",
            "\0",
            "\n",
            "//",
            ";",
            "&",
        ];
        let pieces = |random: &mut Random, most: usize| -> String {
            (0..random.below(most)).map(|_| *random.pick(&PIECES)).collect()
        };
        let scheme = *random.pick(&SCHEMES);
        // The password is all of what stands between a colon and the last `@`, whatever is in it.
        let (before, after) = (pieces(random, 3), pieces(random, 3));
        let place = pieces(random, 6);
        let password = format!("{before}{SECRET}{after}");
        let url = match random.below(4) {
            0 => format!("{scheme}://:{password}@{place}"),
            1 => format!("{scheme}://user:{password}@{place}"),
            2 => format!("user:{password}@{place}"),
            _ => format!("{scheme}://{place}?pass={password}"),
        };
        let shown = match Address::parse(&url) {
            Ok(address) => {
                note(&mut self.seen, "address");
                let again = Address::parse(&url).expect("read before");
                assert!(address.is_same_server(&again), "{url:?}");
                let _ = (address.is_tls(), address.is_plain_tcp());
                format!("{address:?} {}", address.name())
            }
            Err(AddressError::Malformed { url, reason }) => format!("{url} {reason}"),
            Err(AddressError::TlsNotCompiled { url }) => url,
        };
        assert!(!shown.to_lowercase().contains(&SECRET.to_lowercase()), "{url:?} shows as {shown:?}");
    }

    /// The parts of a lock on their way from another process.
    #[cfg(feature = "serde")]
    fn parts(&mut self, random: &mut Random) {
        let whole = format!(
            r#"{{"key":[107],"prefix":[],"owner":"{OWN}","remaining":{{"secs":9,"nanos":1}},"longest":{{"secs":10,
            "nanos":0}},"settled":true,"token":1700000000000000,"until":{{"clock":"x","nanos":5}}}}"#
        );
        let tokens = [
            "null",
            "true",
            "0",
            "-1",
            "[]",
            "[107,256]",
            "\"\"",
            "1e999",
            "18446744073709551615",
            "{}",
            ",",
        ];
        let mut bytes = whole.into_bytes();
        if random.once_in(2) {
            // Another value in the place of one.
            let colons: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] == b':').collect();
            let at = *random.pick(&colons) + 1;
            let end = at + bytes[at..].iter().position(|byte| b",}".contains(byte)).unwrap_or(0);
            bytes.splice(at..end, random.pick(&tokens).bytes());
        }
        if !random.once_in(3) {
            bend(&mut bytes, &self.answers, random);
        }
        if let Ok(parts) = serde_json::from_slice::<crate::LockParts>(&bytes) {
            note(&mut self.seen, "parts");
            let usable = parts.read(&crate::config::Config::default());
            if let Ok((key, owner)) = usable {
                assert!(!key.as_bytes().is_empty() && parts.key() == key.as_bytes());
                assert!(parts.fencing_token().is_none_or(|token| token.as_u64() < END));
                let _ = (owner, parts.longest().as_millis(), parts.remaining(), format!("{parts:?}"));
                note(&mut self.seen, "usable parts");
            }
        }
    }

    #[cfg(not(feature = "serde"))]
    fn parts(&mut self, random: &mut Random) {
        self.small(random);
    }

    /// Values and markers: read byte by byte.
    fn small(&mut self, random: &mut Random) {
        let mut bytes =
            if random.once_in(3) { OWN.as_bytes().to_vec() } else { random.pick(&self.answers).clone() };
        bend(&mut bytes, &self.answers, random);
        let owner = Owner::from_hex(&bytes);
        assert!(owner.is_none_or(|owner| owner.to_hex()[..] == bytes[..]), "{bytes:?}");
        match HolderValue::read(&bytes) {
            HolderValue::Owner(read) => assert_eq!(Some(read), owner),
            HolderValue::Foreign(value) => assert!(value.len() <= 64 && bytes.starts_with(&value)),
            other => panic!("{other:?}"),
        }
        let since = facts::since(&bytes);
        assert!(since == u64::MAX || bytes.contains(&b':'), "{bytes:?}");
        note(&mut self.seen, if owner.is_some() { "owner" } else { "no owner" });
    }
}

/// The text that an answer of INFO brings.
fn text_of(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    }
}

/// An error never grants anything, leads to another form once at most, and is fit to be shown.
fn check_error(form: Form, error: &ServerError, abilities: &mut Abilities, seen: &mut Seen) {
    let reply = decode_error(form, error);
    match &reply {
        Reply::Refused(message) | Reply::Unknown(Unknown::Error(message)) => {
            assert!(is_fit_to_be_shown(message), "{message:?}");
        }
        Reply::Held(holder) => assert!(error.code == "WRONGTYPE" && holder.value == HolderValue::NotALock),
        Reply::Found(_) if form == Form::Get && error.code == "WRONGTYPE" => {}
        other => panic!("{error:?} is {other:?}"),
    }
    let mut next = form;
    for tried in 0.. {
        let Some(other) = other_form(next, error, abilities) else { break };
        assert!(tried < 2 && other != next, "{form:?} again and again: {error:?}");
        next = other;
    }
    let _ = (is_about_keys(error), is_echo(&Err(error.clone()), 1));
    note(
        seen,
        if matches!(reply, Reply::Refused(_)) { "refused" } else { "an error, perhaps after executing" },
    );
}

/// Runs the executions of a seed; the first that fails is named, with how to repeat it.
fn executions(seed: u64, from: u64, count: u64) -> (Seen, Duration) {
    let (mut bench, mut slowest) = (Bench::new(), Duration::ZERO);
    for number in from..from + count {
        let mut random = Random(
            seed.wrapping_mul(0x0100_0000_01b3).wrapping_add(number.wrapping_mul(0xd134_2543_de82_ef95)),
        );
        let started = StdInstant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| bench.run(&mut random)));
        let took = started.elapsed();
        slowest = slowest.max(took);
        assert!(
            ended.is_ok() && took < MOST_TIME,
            "execution {number} took {took:?}: REDQUORUM_FUZZ_SEED={seed} REDQUORUM_FUZZ_FROM={number} REDQUORUM_FUZZ=1"
        );
    }
    (bench.seen, slowest)
}

/// Everything that an execution may come to; a run that is long enough comes to all of it.
const REACHED: [&str; 24] = [
    "granted",
    "fenced",
    "counter spent",
    "held",
    "absent",
    "not ours",
    "handed over",
    "voted",
    "each",
    "queued",
    "line full",
    "found",
    "unusable",
    "refused",
    "an error, perhaps after executing",
    "the end of a connection",
    "durable",
    "marker",
    "facts",
    "woken",
    "address",
    "owner",
    "no owner",
    "parts",
];

fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

fn fuzz(seed: u64, from: u64, count: u64) {
    let started = StdInstant::now();
    let (seen, slowest) = executions(seed, from, count);
    println!(
        "{count} executions of seed {seed} from {from} in {:.1?}, the slowest {slowest:.1?}: {seen:?}",
        started.elapsed()
    );
    let optional = |what: &str| what == "parts" && cfg!(not(feature = "serde"));
    let missing: Vec<_> =
        REACHED.iter().filter(|what| !optional(what) && !seen.contains_key(**what)).collect();
    assert!(count < 100_000 || missing.is_empty(), "never reached: {missing:?}");
}

/// Law: whatever bytes come, nothing panics, hangs or grows, and they mean no more than they say.
#[test]
fn fuzz_answers_addresses_and_parts() {
    fuzz(1, 0, 100_000);
}

/// The same, ten million times or `REDQUORUM_FUZZ`, from a seed of its own or `REDQUORUM_FUZZ_SEED`.
#[test]
#[ignore = "minutes"]
fn fuzz_for_long() {
    let seed = told("REDQUORUM_FUZZ_SEED").unwrap_or_else(|| rand::random::<u64>() >> 16);
    fuzz(seed, told("REDQUORUM_FUZZ_FROM").unwrap_or(0), told("REDQUORUM_FUZZ").unwrap_or(10_000_000));
}
