//! A real server on which histories are played, with scripts of any text.
//!
//! Before each script stands a piece of Lua that gives it the history's time in place of the server's, answers a command with an
//! error or ends a life if the history says so, and ends a script that runs more commands than it may. Time passes by taking it off the lives
//! of all keys. So a history needs no time of its own, and all of it is sent at once.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionLike as _, PushInfo, PushKind, Value};
use redquorum::protocol::message::{Holder, Operation, Reply, Unknown};
use redquorum::testing::script_reply;

use crate::history::{Answer, Data, History, KeepAlive, Kept, LISTENING, Sent, channel, client};
use harness::Server;

/// Stands before each script, and takes its own arguments off the end of the script's.
const BEFORE: &str = r#"
local server = redis
local most, old = table.remove(ARGV), table.remove(ARGV)
local ending, ends_before = table.remove(ARGV), table.remove(ARGV)
local denied_key, denied = table.remove(ARGV), ' ' .. table.remove(ARGV) .. ' '
local micros, seconds = table.remove(ARGV), table.remove(ARGV)
local real = server.call('TIME')
local ahead = seconds * 1000 + math.floor(micros / 1000) - real[1] * 1000 - math.floor(real[2] / 1000)
local calls = 0
local function run(call, refuse, ...)
    local count, command = select('#', ...), { ... }
    calls = calls + 1
    if calls > tonumber(most) then error('too many commands', 0) end
    if command[1] == 'TIME' then return { seconds, micros } end
    if command[1] == ends_before and command[2] == ending then
        server.call('DEL', ending)
        ends_before = ''
    end
    local may_be_denied = string.find(denied, ' ' .. command[1] .. ' ', 1, true)
    for i = 2, count do
        if may_be_denied and (denied_key == '' or denied_key == command[i]) then return refuse('NOPERM denied') end
        if command[i] == 'PXAT' then command[i + 1] = string.format('%.0f', command[i + 1] - ahead) end
    end
    if command[1] == 'PEXPIRE' and count > 3 and old == '1' then return refuse('ERR wrong number of arguments') end
    if command[1] == 'PEXPIREAT' then command[3] = string.format('%.0f', command[3] - ahead) end
    return call(unpack(command, 1, count))
end
local redis = {
    call = function(...) return run(server.call, function(why) error(why, 0) end, ...) end,
    pcall = function(...) return run(server.pcall, function(why) return { err = why } end, ...) end,
    error_reply = server.error_reply,
}
"#;

/// So much time passes, in milliseconds.
const PASS: &str = r"
for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end";

/// Everything that the server keeps: name, type, what is in it, what is left of its life.
const LOOK: &str = r"
local kept = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
    local kind, data = redis.call('TYPE', key).ok, {}
    if kind == 'string' then data = { redis.call('GET', key) } end
    if kind == 'zset' then data = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
    if kind == 'hash' then data = redis.call('HGETALL', key) end
    kept[i] = { key, kind, data, redis.call('PTTL', key) }
end
return kept";

/// A history that took longer says nothing: lives on the server end in real time.
const SLOW: Duration = Duration::from_millis(400);

/// How far two lives may be apart that are the same.
const CLOSE: u64 = 700;

/// The digests of scripts on the server, by the text that a client would run.
pub type Digests = BTreeMap<Vec<u8>, String>;

pub struct Bench {
    connection: Connection,
    ears: Connection,
    heard: mpsc::Receiver<PushInfo>,
    pass: String,
    look: String,
}

impl Bench {
    pub fn new(server: &Server) -> Self {
        let open = |protocol: &str| {
            let client = redis::Client::open(format!("{}{protocol}", server.unix_url())).expect("an address");
            client.get_connection().expect("a connection")
        };
        let (mut connection, mut ears) = (open(""), open("?protocol=resp3"));
        let (said, heard) = mpsc::channel();
        ears.set_push_sender(said);
        for byte in LISTENING {
            ears.subscribe_resp3(channel(client(byte))).expect("a channel");
        }
        let mut load = |text: &str| {
            redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(text)
                .query(&mut connection)
                .expect("a script of the harness")
        };
        let (pass, look) = (load(PASS), load(LOOK));
        Self { connection, ears, heard, pass, look }
    }

    /// Makes a script known to the server; nothing if it is no Lua.
    pub fn load(&mut self, text: &str) -> Option<String> {
        let script = [BEFORE, text].concat();
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut self.connection).ok()
    }

    /// Plays a history. Fails with the first thing that is not as it has to be.
    pub fn play(&mut self, history: &History, digests: &Digests) -> Result<(), String> {
        for _ in 0..20 {
            let started = Instant::now();
            let played = self.play_once(history, digests);
            if started.elapsed() < SLOW {
                return played;
            }
        }
        panic!("the machine is too busy: a history took longer than {SLOW:?} in each of twenty attempts");
    }

    fn play_once(&mut self, history: &History, digests: &Digests) -> Result<(), String> {
        let mut packed = Vec::new();
        let mut count = 0;
        let mut send = |words: &[&[u8]]| {
            let mut command = redis::Cmd::new();
            words.iter().for_each(|word| {
                command.arg(*word);
            });
            command.write_packed_command(&mut packed);
            count += 1;
        };
        send(&[b"FLUSHALL"]);
        for step in &history.steps {
            match &step.sent {
                Sent::Foreign(commands) => commands.iter().for_each(|words| {
                    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    send(&words);
                }),
                Sent::Pass(micros) => {
                    let millis = (micros / 1_000).to_string();
                    send(&[b"EVALSHA", self.pass.as_bytes(), b"0", millis.as_bytes()]);
                }
                Sent::Script { words, .. } => {
                    let mut command: Vec<&[u8]> = vec![b"EVALSHA", digests[&words[1]].as_bytes()];
                    command.extend(words[2..].iter().map(Vec::as_slice));
                    send(&command);
                }
            }
            send(&[b"EVALSHA", self.look.as_bytes(), b"0"]);
        }
        let answers = self.connection.req_packed_commands(&packed, 0, count);
        let mut answers = answers.expect("answers of the server").into_iter();
        let mut next = || answers.next().expect("an answer for each command");

        let heard = self.heard();
        next();
        for (number, step) in history.steps.iter().enumerate() {
            let wrong = |what: String| Err(format!("step {number}, {}: {what}", step.what));
            match &step.sent {
                Sent::Foreign(commands) => commands.iter().for_each(|_| drop(next())),
                Sent::Pass(_) => drop(next()),
                Sent::Script { operation, answer, .. } => {
                    let real = next();
                    if let Some(why) = malformed(operation, &real) {
                        return wrong(format!("{why}: {real:?}"));
                    }
                    let reply = script_reply(operation, real.clone());
                    if !is_answer(answer, &reply) {
                        return wrong(format!("the answer is {reply:?}, and not {answer:?}"));
                    }
                }
            }
            let kept = kept(next());
            if let Some(name) = differing(&step.kept, &kept) {
                let (real, expected) = (kept.get(name), step.kept.get(name));
                let name = name.escape_ascii();
                return wrong(format!("{name} is {real:?}, and not {expected:?}"));
            }
        }
        if heard != history.wake_ups {
            return Err(format!("{heard:?} were woken, and not {:?}", history.wake_ups));
        }
        Ok(())
    }

    /// What was said on the channels since the last time.
    fn heard(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        // Comes behind everything that was said before.
        redis::cmd("PING").exec(&mut self.ears).expect("an answer");
        let messages = self.heard.try_iter().filter(|push| push.kind == PushKind::Message);
        let message = |push: PushInfo| match <[Value; 2]>::try_from(push.data) {
            Ok([Value::BulkString(channel), Value::BulkString(said)]) => (channel, said),
            other => panic!("a message of another shape: {other:?}"),
        };
        messages.map(message).collect()
    }
}

/// What is wrong with the form of an answer. A life that is not known or has no end is -1, and no value is longer than 64 bytes.
fn malformed(operation: &Operation, answer: &Value) -> Option<&'static str> {
    let Value::Array(parts) = answer else { return None };
    if let Operation::ExtendAll { extensions } = operation {
        let mut each = parts.iter().zip(extensions.as_slice());
        return each.find_map(|(part, extension)| malformed(&extension.clone().into(), part));
    }
    let queue = matches!(operation, Operation::Queue { .. });
    match parts.as_slice() {
        [_, _, entered, ..] if queue && !matches!(entered, Value::Int(0 | 1)) => Some("neither 0 nor 1"),
        [.., Value::Int(..-1)] => Some("a life below -1"),
        [.., Value::BulkString(value), Value::Int(_)] if value.len() > 64 => Some("a long value"),
        _ => None,
    }
}

fn is_answer(answer: &Answer, reply: &Reply) -> bool {
    match (answer, reply) {
        (Answer::This(expected), real) => same(expected, real),
        (Answer::Error(says), Reply::Refused(message) | Reply::Unknown(Unknown::Error(message))) => {
            message.contains(says)
        }
        (Answer::Error(_), _) => false,
        (Answer::Each(answers), Reply::Each(replies)) => {
            answers.len() == replies.len()
                && answers.iter().zip(&**replies).all(|(answer, reply)| is_answer(answer, reply))
        }
        (Answer::Each(_), _) => false,
    }
}

/// The same, but for what is left of lives.
fn same(expected: &Reply, real: &Reply) -> bool {
    match (expected, real) {
        (Reply::Held(expected), Reply::Held(real)) => holds(Some(expected), Some(real)),
        (Reply::Queued(expected), Reply::Queued(real)) => {
            (expected.before, expected.score, expected.entered) == (real.before, real.score, real.entered)
                && holds(expected.holder.as_ref(), real.holder.as_ref())
        }
        (Reply::Found(expected), Reply::Found(real)) => {
            expected.waiting == real.waiting && holds(expected.holder.as_ref(), real.holder.as_ref())
        }
        (expected, real) => expected == real,
    }
}

fn holds(expected: Option<&Holder>, real: Option<&Holder>) -> bool {
    match (expected, real) {
        (Some(expected), Some(real)) => {
            let millis = |left: Option<Duration>| left.map(|left| left.as_millis() as u64);
            expected.value == real.value && is_close(millis(expected.remaining), millis(real.remaining))
        }
        (expected, real) => expected.is_none() && real.is_none(),
    }
}

fn is_close(expected: Option<u64>, real: Option<u64>) -> bool {
    match (expected, real) {
        (Some(expected), Some(real)) => expected.abs_diff(real) <= CLOSE,
        (expected, real) => expected == real,
    }
}

/// A name under which there is not what has to be there.
fn differing<'a>(expected: &'a KeepAlive, real: &'a KeepAlive) -> Option<&'a [u8]> {
    let mut names = expected.keys().chain(real.keys());
    let differs = |name: &&Vec<u8>| match (expected.get(*name), real.get(*name)) {
        (Some(expected), Some(real)) => expected.data != real.data || !is_close(expected.left, real.left),
        (expected, real) => expected.is_some() || real.is_some(),
    };
    names.find(differs).map(Vec::as_slice)
}

/// Reads what [`LOOK`] answers.
fn kept(answer: Value) -> KeepAlive {
    let Value::Array(names) = answer else { panic!("no list: {answer:?}") };
    let read = |entry: Value| {
        let Value::Array(parts) = entry else { panic!("no list: {entry:?}") };
        match <[Value; 4]>::try_from(parts) {
            Ok([Value::BulkString(name), Value::BulkString(kind), Value::Array(data), Value::Int(left)]) => {
                (name, Kept { data: read_data(&kind, data), left: u64::try_from(left).ok() })
            }
            other => panic!("no entry: {other:?}"),
        }
    };
    names.into_iter().map(read).collect()
}

fn read_data(kind: &[u8], data: Vec<Value>) -> Data {
    let texts = data.into_iter().map(|value| match value {
        Value::BulkString(text) => text,
        other => panic!("no text: {other:?}"),
    });
    let mut texts: Vec<Vec<u8>> = texts.collect();
    let pairs = |texts: Vec<Vec<u8>>| -> Vec<(Vec<u8>, Vec<u8>)> {
        texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    };
    match kind {
        b"string" => {
            let mut text = texts.remove(0);
            text.truncate(64);
            Data::Text(text)
        }
        b"zset" => {
            let score = |text: Vec<u8>| {
                let text = String::from_utf8(text).expect("digits");
                text.parse().unwrap_or_else(|_| text.parse::<f64>().expect("a number") as u64)
            };
            Data::Ordered(pairs(texts).into_iter().map(|(member, text)| (member, score(text))).collect())
        }
        b"hash" => Data::Fields(pairs(texts).into_iter().collect()),
        _ => Data::Other,
    }
}
