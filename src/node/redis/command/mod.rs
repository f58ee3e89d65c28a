//! How an operation is put into commands, and what their answers mean.
//!
//! One operation may have several forms: newer servers do in a plain command what older ones need a script for. An
//! answer is decoded by the form that was *sent*, never by what the server can do now: with `GET`, nil means granted;
//! without it, nil means held.

use std::sync::LazyLock;

use redis::{Cmd, RedisError, Script, Value};

use super::names;
use crate::protocol::fencing::{Carry, END, Fence, FencingToken};
use crate::protocol::message::{
    Extension, Found, Holder, HolderValue, Operation, Owner, OwnerHex, Place, Reply, ServerMessage, Unknown,
};
use crate::protocol::wait_queue::rank::MOST_QUEUED;

/// A script from its parts, in their order.
macro_rules! script {
    ($($part:literal),+) => {
        LazyLock::new(|| {
            Source::new(concat!($(include_str!(concat!("../../scripts/", $part, ".lua"))),+))
        })
    };
}

static CLAIM: LazyLock<Source> = script!("found", "lengthen", "claim");
static FENCED_CLAIM: LazyLock<Source> = script!("found", "lengthen", "fenced_claim");
static RAISE: LazyLock<Source> = script!("found", "ours", "lift", "raise");
static EXTEND: LazyLock<Source> = script!("found", "ours", "lift", "lengthen", "extend");
static RELEASE: LazyLock<Source> = script!("release", "found", "ours", "refused");
static HAND_OVER: LazyLock<Source> = script!("nobody_waits", "found", "hand_over");
static QUEUE: LazyLock<Source> = script!("found", "lengthen", "queue");
static INSPECT: LazyLock<Source> = script!("found", "inspect");

/// A script and its digest.
struct Source {
    code: &'static str,
    digest: String,
}

impl Source {
    fn new(code: &'static str) -> Self {
        Self { code, digest: Script::new(code).get_hash().to_owned() }
    }
}

/// The scripts, for loading them on a new connection.
pub(super) fn sources() -> [&'static str; 8] {
    [&CLAIM, &FENCED_CLAIM, &RAISE, &EXTEND, &RELEASE, &HAND_OVER, &QUEUE, &INSPECT].map(|source| source.code)
}

/// What the server at the other end can do. Found out by its version; taken back for the rest of the connection when
/// it refuses after all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Abilities {
    /// `SET … NX GET`: Redis 7.0 and newer, every Valkey.
    pub(super) set_get: bool,
    /// A native compare-and-delete.
    pub(super) delete: Option<NativeDelete>,
    /// Only keys of one slot in one command: a server in cluster mode.
    pub(super) one_slot: bool,
    /// Scripts may not be run, by this user or on this server.
    pub(super) no_scripts: bool,
    /// `SET … IFEQ`: Redis 8.4 and newer, Valkey 8.1 and newer.
    pub(super) set_ifeq: bool,
}

impl Abilities {
    /// Whether each lease has its own command.
    pub(super) fn one_by_one(&self) -> bool {
        self.one_slot || self.no_scripts
    }

    /// Whether a lock that is set can be extended and released: a life of a millisecond is as good as a native delete.
    pub(super) fn keeps_locks(&self) -> bool {
        !self.no_scripts || self.set_ifeq
    }

    /// Why an operation is refused before anything is sent, if it is: nothing is set that could not be extended or released.
    pub(super) fn refuses(&self, operation: &Operation) -> Option<ServerMessage> {
        if !self.no_scripts {
            return None;
        }
        let what = match operation {
            Operation::Claim { fence: Some(_), .. }
            | Operation::Raise { .. }
            | Operation::Extend { carry: Some(_), .. } => "a fenced lock needs scripts",
            Operation::Queue { .. } => "the wait queue needs scripts",
            Operation::Inspect { .. } | Operation::ExtendAll { .. } => return None,
            Operation::Release { .. } | Operation::HandOver { .. } if self.delete.is_some() => return None,
            _ if self.set_ifeq => return None,
            _ => {
                "a lock needs scripts, or SET IFEQ (Redis 8.4, Valkey 8.1) in their place, to be extended and released"
            }
        };
        Some(format!("scripts are refused here, and {what}: allow EVALSHA and EVAL").into())
    }
}

/// The servers' own compare-and-delete commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NativeDelete {
    /// `DELEX key IFEQ value`: Redis 8.4 and newer.
    Delex,
    /// `DELIFEQ key value`: Valkey 9.0 and newer.
    Delifeq,
}

impl NativeDelete {
    fn name(self) -> &'static str {
        match self {
            Self::Delex => "delex",
            Self::Delifeq => "delifeq",
        }
    }
}

/// The form in which an operation was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// `SET … NX PX`.
    Set,
    /// `SET … NX GET PX`.
    SetGet,
    /// A native compare-and-delete.
    Delete(NativeDelete),
    /// `SET … IFEQ … GET PX`, with a life of a millisecond to release.
    SetIfEq,
    /// `GET`.
    Get,
    /// A script by its digest.
    Digest,
    /// A script by its text.
    Text,
}

/// The form for an operation on a server with these abilities.
pub(super) fn form(operation: &Operation, abilities: Abilities) -> Form {
    let without_scripts = |form| if abilities.no_scripts { form } else { Form::Digest };
    match operation {
        Operation::Claim { fence: None, .. } if abilities.no_scripts && abilities.set_get => Form::SetGet,
        Operation::Claim { fence: None, .. } => without_scripts(Form::Set),
        Operation::Extend { carry: None, .. } => without_scripts(Form::SetIfEq),
        Operation::Inspect { .. } => without_scripts(Form::Get),
        Operation::HandOver { .. } if abilities.no_scripts => {
            abilities.delete.map_or(Form::SetIfEq, Form::Delete)
        }
        Operation::Release { .. } if abilities.no_scripts => {
            abilities.delete.map_or(Form::SetIfEq, Form::Delete)
        }
        Operation::Set { .. } if abilities.set_get => Form::SetGet,
        Operation::Set { .. } => Form::Set,
        Operation::Release { .. } => abilities.delete.map_or(Form::Digest, Form::Delete),
        Operation::Claim { .. }
        | Operation::Extend { .. }
        | Operation::ExtendAll { .. }
        | Operation::Raise { .. }
        | Operation::HandOver { .. }
        | Operation::Queue { .. } => Form::Digest,
    }
}

/// Commands about one key that is not longer are made in memory that is used again.
pub(super) const SHORT_KEY: usize = 256;

/// Room for the longest command about a short key.
pub(super) fn of_usual_length() -> Cmd {
    Cmd::with_capacity(12, 2 * SHORT_KEY)
}

/// Makes this command, which may have been another before, the operation in this form. `prefix` is the client's.
pub(super) fn encode(cmd: &mut Cmd, operation: &Operation, form: Form, prefix: &[u8]) {
    let key = operation.key().as_bytes();
    let owner = operation.owner().map(Owner::to_hex).unwrap_or_default();
    cmd.clear();
    match form {
        Form::Set | Form::SetGet => {
            cmd.arg("SET").arg(key).arg(&owner[..]).arg("NX");
            if form == Form::SetGet {
                cmd.arg("GET");
            }
            cmd.arg("PX").arg(ttl(operation));
        }
        Form::Delete(native) => encode_delete(cmd, native, key, &owner),
        Form::SetIfEq => {
            cmd.arg("SET").arg(key).arg(&owner[..]).arg("IFEQ").arg(&owner[..]).arg("GET");
            cmd.arg("PX").arg(ttl(operation).unwrap_or(1));
        }
        Form::Get => drop(cmd.arg("GET").arg(key)),
        Form::Digest | Form::Text => {
            let source = source(operation);
            match form {
                Form::Digest => cmd.arg("EVALSHA").arg(source.digest.as_str()),
                _ => cmd.arg("EVAL").arg(source.code),
            };
            script_arguments(cmd, operation, &owner, prefix);
        }
    }
}

fn encode_delete(cmd: &mut Cmd, native: NativeDelete, key: &[u8], value: &[u8]) {
    match native {
        NativeDelete::Delex => cmd.arg("DELEX").arg(key).arg("IFEQ").arg(value),
        NativeDelete::Delifeq => cmd.arg("DELIFEQ").arg(key).arg(value),
    };
}

/// Deletes a key if it carries this value: natively, or by the text of the script.
pub(super) fn delete_if(key: &[u8], value: &[u8], form: Form) -> Cmd {
    let mut cmd = Cmd::new();
    match form {
        Form::Delete(native) => encode_delete(&mut cmd, native, key, value),
        _ => drop(cmd.arg("EVAL").arg(RELEASE.code).arg(1).arg(key).arg(value)),
    }
    cmd
}

fn script_arguments(cmd: &mut Cmd, operation: &Operation, owner: &OwnerHex, prefix: &[u8]) {
    match operation {
        Operation::Set { key, .. }
        | Operation::Claim { key, fence: None, .. }
        | Operation::Extend { key, carry: None, .. }
        | Operation::Release { key, .. } => {
            cmd.arg(1).arg(key.as_bytes()).arg(&owner[..]).arg(ttl(operation));
        }
        Operation::Claim { key, fence: Some(fence), .. } => {
            cmd.arg(2).arg(key.as_bytes()).arg(&names::counter(key.as_bytes(), prefix)[..]);
            cmd.arg(&owner[..]).arg(ttl(operation));
            match fence {
                Fence::Advance { candidate, retention } => cmd.arg(retention.as_millis()).arg(candidate),
                Fence::Carry(Carry { token, retention }) => {
                    cmd.arg(retention.as_millis()).arg("").arg(token.as_u64())
                }
            };
        }
        Operation::Raise { key, carry: Carry { token, retention }, .. } => {
            cmd.arg(2).arg(key.as_bytes()).arg(&names::counter(key.as_bytes(), prefix)[..]);
            cmd.arg(&owner[..]).arg(token.as_u64()).arg(retention.as_millis());
        }
        Operation::Extend { key, ttl, carry: Some(Carry { token, retention }), .. } => {
            cmd.arg(2).arg(key.as_bytes()).arg(&names::counter(key.as_bytes(), prefix)[..]);
            cmd.arg(&owner[..]).arg(ttl.as_millis()).arg(1).arg(token.as_u64()).arg(retention.as_millis());
        }
        Operation::ExtendAll { extensions } => {
            let each = extensions.as_slice();
            let carried = || {
                let each = each.iter().enumerate();
                each.filter_map(|(index, extension)| Some((index, &extension.key, extension.carry?)))
            };
            cmd.arg(each.len() + carried().count());
            for Extension { key, .. } in each {
                cmd.arg(key.as_bytes());
            }
            for (_, key, _) in carried() {
                cmd.arg(&names::counter(key.as_bytes(), prefix)[..]);
            }
            for Extension { owner, ttl, .. } in each {
                cmd.arg(&owner.to_hex()[..]).arg(ttl.as_millis());
            }
            for (index, _, Carry { token, retention }) in carried() {
                cmd.arg(index + 1).arg(token.as_u64()).arg(retention.as_millis());
            }
        }
        Operation::HandOver { key, client, hand_over, .. } => {
            names::with_line(key.as_bytes(), prefix, |line, lives| {
                cmd.arg(3).arg(key.as_bytes()).arg(line).arg(lives);
            });
            cmd.arg(&owner[..]).arg(&client.to_hex()[..]).arg(hand_over.as_millis());
            cmd.arg(&names::channels(prefix)[..]);
        }
        Operation::Queue { key, client, polls, rename_from, score, hand_over, .. } => {
            names::with_line(key.as_bytes(), prefix, |line, lives| {
                cmd.arg(3).arg(key.as_bytes()).arg(line).arg(lives);
            });
            cmd.arg(&owner[..]).arg(&client.to_hex()[..]).arg(u8::from(*polls));
            match rename_from {
                Some(earlier) => cmd.arg(&earlier.to_hex()[..]),
                None => cmd.arg(""),
            };
            match score {
                Some(score) => cmd.arg(score),
                None => cmd.arg(""),
            };
            cmd.arg(hand_over.as_millis()).arg(MOST_QUEUED).arg(&names::channels(prefix)[..]);
        }
        Operation::Inspect { key } => names::with_line(key.as_bytes(), prefix, |line, _| {
            cmd.arg(2).arg(key.as_bytes()).arg(line);
        }),
    }
}

fn ttl(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Set { ttl, .. } | Operation::Claim { ttl, .. } | Operation::Extend { ttl, .. } => {
            Some(ttl.as_millis())
        }
        _ => None,
    }
}

fn source(operation: &Operation) -> &'static Source {
    match operation {
        Operation::Claim { fence: Some(_), .. } => &FENCED_CLAIM,
        Operation::Set { .. } | Operation::Claim { .. } => &CLAIM,
        Operation::Raise { .. } => &RAISE,
        Operation::Extend { .. } | Operation::ExtendAll { .. } => &EXTEND,
        Operation::Release { .. } => &RELEASE,
        Operation::HandOver { .. } => &HAND_OVER,
        Operation::Queue { .. } => &QUEUE,
        Operation::Inspect { .. } => &INSPECT,
    }
}

/// What an error says about this form of the operation, before it is taken for the answer: the form to try instead,
/// with the ability taken back.
///
/// Only for errors that say that *nothing was executed*.
pub(super) fn other_form(form: Form, error: &ServerError, abilities: &mut Abilities) -> Option<Form> {
    let unknown = error.code == "ERR" && error.detail.contains("unknown command");
    match form {
        Form::SetGet if error.detail.contains("syntax error") => {
            abilities.set_get = false;
            Some(Form::Set)
        }
        // The user may write this key and not read it: that says nothing about other keys.
        Form::SetGet if error.code == "NOPERM" => Some(Form::Set),
        Form::Delete(native) if unknown || forbids(error, native.name()) => {
            abilities.delete = None;
            Some(if abilities.no_scripts && abilities.set_ifeq { Form::SetIfEq } else { Form::Digest })
        }
        Form::Digest if error.code == "NOSCRIPT" || unknown || forbids(error, "evalsha") => Some(Form::Text),
        _ => None,
    }
}

/// The same for an operation whose script was refused in its last form: from then on, the connection goes without scripts.
pub(super) fn without_scripts(
    operation: &Operation,
    form: Form,
    error: &ServerError,
    abilities: &mut Abilities,
) -> Option<Form> {
    let unknown = error.code == "ERR" && error.detail.starts_with("unknown command");
    if form != Form::Text || !(unknown || forbids(error, "eval")) {
        return None;
    }
    abilities.no_scripts = true;
    let can = abilities.refuses(operation).is_none() && operation.keys() == 1;
    can.then(|| self::form(operation, *abilities))
}

/// The form that follows on an answer: a claim without a script finds that the key is its owner's, and lengthens its life.
pub(super) fn next_form(
    operation: &Operation,
    form: Form,
    answer: &Value,
    abilities: Abilities,
) -> Option<Form> {
    let Value::BulkString(found) = answer else { return None };
    let claims = matches!(operation, Operation::Claim { .. }) && form == Form::SetGet && abilities.set_ifeq;
    let owns = operation.owner().is_some_and(|owner| found[..] == owner.to_hex()[..]);
    (claims && owns).then_some(Form::SetIfEq)
}

/// Commands that show whether scripts may be run, by digest and by text. They find no key, and do nothing.
pub(super) fn script_probes(key: &[u8]) -> [Cmd; 2] {
    let (mut digest, mut text) = (Cmd::new(), Cmd::new());
    digest.arg("EVALSHA").arg(EXTEND.digest.as_str());
    text.arg("EVAL").arg(EXTEND.code);
    [digest, text].map(|mut probe| {
        probe.arg(1).arg(key).arg("").arg(1);
        probe
    })
}

/// Whether this command was refused before a script began, by the server, its access list, or something in between.
pub(super) fn is_refused(error: &RedisError, command: &str) -> bool {
    let Some(code) = error.code() else { return false };
    let error = ServerError { code: code.to_owned(), detail: error.detail().unwrap_or_default().to_owned() };
    forbids(&error, &command.to_lowercase()) || (error.code == "ERR" && !is_from_inside(&error))
}

/// Whether an error comes from inside a script.
fn is_from_inside(error: &ServerError) -> bool {
    let marks = ["script: ", "@user_script", "user_script:", "running script"];
    marks.iter().any(|mark| error.detail.contains(mark))
}

/// Whether the server refused a command because of some of its keys: asked for each alone, it takes the others.
pub(super) fn is_about_keys(error: &ServerError) -> bool {
    ["CROSSSLOT", "NOPERM"].contains(&error.code.as_str())
}

/// Whether this user must not use this command itself, whatever the key.
fn forbids(error: &ServerError, command: &str) -> bool {
    error.code == "NOPERM" && error.detail.contains(&format!("'{command}'"))
}

/// An error that a server answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerError {
    pub(super) code: String,
    pub(super) detail: String,
}

impl ServerError {
    /// The error in one line of bounded length, whatever the server sent.
    pub(super) fn message(&self) -> ServerMessage {
        let separator = if self.detail.is_empty() { "" } else { " " };
        shown(&[self.code.as_str(), separator, self.detail.as_str()].concat())
    }
}

/// What a server said, in one line of bounded length.
fn shown(text: &str) -> ServerMessage {
    const LONGEST: usize = 240;
    let mut line: String = text.chars().take(LONGEST).flat_map(escape_control).collect();
    if text.len() > LONGEST {
        line.push('…');
    }
    line.into()
}

/// Line ends and terminal sequences as digits, everything else as it is.
fn escape_control(character: char) -> impl Iterator<Item = char> {
    let control = character.is_control();
    let escaped = control.then(|| character.escape_default()).into_iter().flatten();
    escaped.chain((!control).then_some(character))
}

/// Codes with which servers refuse before executing anything.
const REFUSALS: [&str; 17] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "DENIED",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
];

/// The meaning of an error, where no other form is left to try (rule 5).
pub(super) fn decode_error(form: Form, error: &ServerError) -> Reply {
    let message = error.message();
    match form {
        Form::Set | Form::SetGet | Form::SetIfEq | Form::Delete(_) if error.code == "WRONGTYPE" => {
            Reply::Held(Holder { value: HolderValue::NotALock, remaining: None })
        }
        Form::Get if error.code == "WRONGTYPE" => {
            let holder = Holder { value: HolderValue::NotALock, remaining: None };
            Reply::Found(Found { holder: Some(holder), waiting: 0 })
        }
        // A server executes a plain command or refuses it, never both. But a proxy in between may answer with an error of
        // its own after it sent the command on: so only errors of the server's own are refusals.
        Form::Set | Form::SetGet | Form::SetIfEq | Form::Get | Form::Delete(_) => {
            let known = ["unknown command", "syntax error", "wrong number of arguments", "invalid expire"];
            let faulty = error.code == "ERR" && known.iter().any(|text| error.detail.contains(text));
            if faulty || REFUSALS.contains(&error.code.as_str()) {
                Reply::Refused(message)
            } else {
                Reply::Unknown(Unknown::Error(message))
            }
        }
        Form::Digest | Form::Text => {
            // A script may have written before it failed; servers mark such errors with the script's name. Where the key
            // itself is of another type, scripts answer so: as an error, that is about another key, a counter or a line.
            let inside = is_from_inside(error);
            let unknown_command = error.code == "ERR" && error.detail.starts_with("unknown command");
            if !inside && (REFUSALS.contains(&error.code.as_str()) || unknown_command) {
                Reply::Refused(message)
            } else {
                Reply::Unknown(Unknown::Error(message))
            }
        }
    }
}

/// The meaning of an answer to an operation in this form.
pub(super) fn decode(operation: &Operation, form: Form, value: &Value) -> Reply {
    match (form, value) {
        (Form::Set, Value::Okay) | (Form::SetGet, Value::Nil) | (Form::Delete(_), Value::Int(1)) => {
            Reply::Granted
        }
        (Form::Set, Value::Nil) => Reply::Held(Holder::UNNAMED),
        (Form::SetGet, Value::BulkString(found)) => match HolderValue::read(found) {
            // One's own value: this owner is sent in one set per node only, so that very set made it. (Two addresses of
            // one server would make this untrue: the later of them has no vote.)
            HolderValue::Owner(found) if Some(found) == operation.owner() => Reply::Granted,
            value => Reply::Held(Holder { value, remaining: None }),
        },
        (Form::Delete(_), Value::Int(0)) => Reply::NotOurs,
        (Form::SetIfEq, Value::Nil) if operation.creates() => Reply::Held(Holder::UNNAMED),
        (Form::SetIfEq, Value::Nil) => Reply::Absent,
        (Form::SetIfEq, Value::BulkString(found)) => match HolderValue::read(found) {
            HolderValue::Owner(found) if Some(found) == operation.owner() => Reply::Granted,
            value => Reply::Held(Holder { value, remaining: None }),
        },
        (Form::Get, Value::Nil) => Reply::Found(Found { holder: None, waiting: 0 }),
        (Form::Get, Value::BulkString(found)) => {
            let holder = Holder { value: HolderValue::read(found), remaining: None };
            Reply::Found(Found { holder: Some(holder), waiting: 0 })
        }
        (Form::Digest | Form::Text, value) => decode_script(operation, value),
        _ => garbled(value),
    }
}

fn decode_script(operation: &Operation, value: &Value) -> Reply {
    match (operation, value) {
        (Operation::ExtendAll { extensions }, Value::Array(answers)) => {
            let each = extensions.as_slice();
            if answers.len() != each.len() {
                return garbled(value);
            }
            let read = |(answer, extension): (&Value, &Extension)| match answer {
                Value::BulkString(error) => {
                    Reply::Unknown(Unknown::Error(shown(&String::from_utf8_lossy(error))))
                }
                answer => decode_script(&extension.clone().into(), answer),
            };
            Reply::Each(answers.iter().zip(each).map(read).collect())
        }
        (Operation::ExtendAll { .. }, _) => garbled(value),
        (Operation::Queue { .. }, Value::Int(1)) => Reply::Voted,
        (Operation::Queue { .. }, Value::Int(2)) => Reply::QueueFull,
        (Operation::Queue { .. }, Value::Array(parts)) => {
            let place = |before: &i64, score: &[u8], entered: &i64, rest: &[Value]| {
                let score = std::str::from_utf8(score).ok()?.parse().ok()?;
                let before = u32::try_from(*before).ok()?;
                Some(Place { before, score, entered: *entered == 1, holder: holder(rest)? })
            };
            let place = match parts.as_slice() {
                [Value::Int(before), Value::BulkString(score), Value::Int(entered), rest @ ..] => {
                    place(before, score, entered, rest)
                }
                _ => None,
            };
            place.map_or_else(|| garbled(value), Reply::Queued)
        }
        (Operation::Inspect { .. }, Value::Array(parts)) => match parts.as_slice() {
            [Value::Int(waiting), rest @ ..] => match (u32::try_from(*waiting), holder(rest)) {
                (Ok(waiting), Some(holder)) => Reply::Found(Found { holder, waiting }),
                _ => garbled(value),
            },
            _ => garbled(value),
        },
        (Operation::Queue { .. } | Operation::Inspect { .. }, _) => garbled(value),
        (Operation::HandOver { .. }, Value::Int(2)) => Reply::HandedOver,
        (Operation::Claim { fence: Some(_), .. }, Value::Int(0)) => Reply::CounterExhausted,
        (Operation::Claim { fence: Some(_), .. }, Value::Int(number)) => match u64::try_from(*number) {
            Ok(number) if number < END => Reply::Fenced(FencingToken::new(number)),
            _ => garbled(value),
        },
        (_, Value::Int(1)) => Reply::Granted,
        // A claim has no such answer: where there is no key it makes one.
        (_, Value::Int(0)) if !operation.creates() => Reply::Absent,
        (_, Value::Array(parts)) => match holder(parts) {
            Some(Some(holder)) => Reply::Held(holder),
            _ => garbled(value),
        },
        _ => garbled(value),
    }
}

/// The value found and its remaining life, as scripts answer them: nothing where the key is free. `None` for any other
/// shape.
fn holder(parts: &[Value]) -> Option<Option<Holder>> {
    match parts {
        [] => Some(None),
        [Value::BulkString(found), Value::Int(left)] => {
            Some(Some(Holder { value: HolderValue::read(found), remaining: remaining(*left) }))
        }
        [Value::Int(0), Value::Int(left)] => {
            Some(Some(Holder { value: HolderValue::NotALock, remaining: remaining(*left) }))
        }
        _ => None,
    }
}

/// `PTTL` answers below zero where there is no expiry or no key.
fn remaining(millis: i64) -> Option<std::time::Duration> {
    u64::try_from(millis).ok().map(std::time::Duration::from_millis)
}

/// Names the shape only: what a confused server sends may be large, and may be anything.
fn garbled(value: &Value) -> Reply {
    let shape = match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(number) => format!("the number {number}"),
        Value::BulkString(bytes) => format!("a string of {} bytes", bytes.len()),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::SimpleString(_) | Value::Okay => "a status".to_owned(),
        Value::Map(_) => "a map".to_owned(),
        Value::Set(_) => "a set".to_owned(),
        Value::Double(_) => "a fraction".to_owned(),
        Value::Boolean(_) => "a truth value".to_owned(),
        _ => "something else".to_owned(),
    };
    Reply::Unknown(Unknown::Garbled(format!("the server answered with {shape}").into()))
}

#[cfg(test)]
mod tests;
