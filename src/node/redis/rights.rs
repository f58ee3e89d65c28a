//! What this user may do on a server: asked on each new connection, with commands that change nothing.
//!
//! All are about a key that never exists, so the server has nothing to do but to say whether it would. Whether scripts may run,
//! and what stands in their place, decides in which form operations go: see [`super::command`].

use std::iter::once;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value, cmd};

use super::command::{Abilities, NativeDelete, is_refused, script_probes};
use super::facts::{ask, is_forbidden};
use super::names;
use crate::registry::ScriptUse;

/// What is missing, and what is lost without it.
pub(super) type Missing = (&'static str, &'static str);

/// What was found out.
#[derive(Debug, Default)]
pub(super) struct Rights {
    pub(super) missing: Vec<Missing>,
    /// Scripts may not be run, in any form.
    no_scripts: bool,
    /// Which commands stand in their place; `None` if that was not asked, or not told.
    set_ifeq: Option<bool>,
    delete: Option<Option<NativeDelete>>,
}

impl Rights {
    /// What the server can do for this user, where its version says `by_version`.
    pub(super) fn abilities(&self, by_version: Abilities) -> Abilities {
        Abilities {
            no_scripts: self.no_scripts,
            set_ifeq: self.set_ifeq.unwrap_or(by_version.set_ifeq),
            delete: self.delete.unwrap_or(by_version.delete),
            ..by_version
        }
    }
}

/// Whether scripts may be used, and what stands in their place.
pub(super) fn script_use(abilities: Abilities) -> ScriptUse {
    match (abilities.no_scripts, abilities.keeps_locks()) {
        (false, _) => ScriptUse::Allowed,
        (true, true) => ScriptUse::Replaced,
        (true, false) => ScriptUse::Missing,
    }
}

/// What is lost without a right.
const LOST: [Missing; 32] = [
    ("PING", "nothing but convenience"),
    ("CLIENT SETNAME", "the client's name in CLIENT LIST"),
    ("CLIENT TRACKING", "the node's word that it forgot: a flush is noticed at the next look only"),
    ("INFO", "the run and its uptime: the node stands aside after each connection; use of newer commands"),
    ("TIME", "the date of the node's memory; the wait queue, fenced locks"),
    ("CONFIG", "a node that writes before it answers is not recognised, and stands aside after a restart"),
    ("GET of the marker", "the date of the node's memory: a flush is not noticed"),
    ("SET of the marker", "the date of the node's memory: a flush is not noticed"),
    ("HGET of the count of looks", "an older state of the node is not recognised"),
    ("HINCRBY of the count of looks", "an older state of the node is not recognised"),
    ("SCRIPT LOAD", "nothing but convenience: scripts are sent as text at first"),
    ("EVALSHA", "scripts are sent as text each time"),
    ("EVAL", "scripts that the server forgot are there again with the next connection only"),
    ("SET", "everything: no lock can be set"),
    ("GET", "extending and releasing by scripts, the holder's name in refusals"),
    ("DEL", "releasing by scripts"),
    ("PEXPIRE", "extending by scripts"),
    ("PTTL", "how much longer a lock is held; before Redis 7.0, extending"),
    ("PEXPIREAT", "fenced locks"),
    ("EXISTS", "the short way of a release: it takes longer"),
    ("EXPIRE", "the wait queue: waiters ask again"),
    ("HDEL", "the wait queue: it hands nothing over"),
    ("HGET", "the wait queue: it hands nothing over"),
    ("HKEYS", "the clearing away of counts of earlier runs"),
    ("HSET", "the wait queue: waiters ask again"),
    ("ZADD", "the wait queue: waiters ask again"),
    ("ZCARD", "the wait queue: waiters ask again"),
    ("ZPOPMIN", "the wait queue: it hands nothing over"),
    (
        "ZRANGE, ZRANK, ZREM, ZREVRANGE or ZSCORE",
        "the wait queue: waiters ask again, or it hands nothing over",
    ),
    (
        "scripts",
        "order among waiters, and fenced locks: locks are extended by SET IFEQ and released natively",
    ),
    ("scripts, and SET IFEQ in their place", "all locks: none is set that could not be extended or released"),
    (
        "CLIENT TRACKING (RESP2 only)",
        "the node's word that it forgot: a flush is noticed at the next look only",
    ),
];

/// What is lost without this.
pub(super) fn lost(right: &str) -> &'static str {
    LOST.iter().find(|(name, _)| *name == right).map_or("", |(_, lost)| lost)
}

/// Commands that scripts call, each with arguments that change nothing where there is no key. Those after the first six serve
/// the wait queue alone, or the counts of looks.
const CALLED: [(&str, &[&str]); 22] = [
    ("SET", &["", "XX"]),
    ("GET", &[]),
    ("DEL", &[]),
    ("PEXPIRE", &["1000"]),
    ("PTTL", &[]),
    ("PEXPIREAT", &["1"]),
    ("EXISTS", &[]),
    ("EXPIRE", &["1"]),
    ("HDEL", &["f"]),
    ("HGET", &["f"]),
    ("HKEYS", &[]),
    // A field too many: the server looks at the right first.
    ("HSET", &["f", "v", "f"]),
    ("ZADD", &["XX", "1", "m"]),
    ("ZCARD", &[]),
    ("ZPOPMIN", &[]),
    ("ZRANGE", &["0", "0"]),
    ("ZRANK", &["m"]),
    ("ZREM", &["m"]),
    ("ZREVRANGE", &["0", "0"]),
    ("ZSCORE", &["m"]),
    ("EVALSHA", &[]),
    ("EVAL", &[]),
];

const OF_LOCKS: usize = 6;

/// Asks what this user may do, with a queue or without. The error of a connection that ended.
pub(super) async fn ask_rights(
    connection: &MultiplexedConnection,
    prefix: &[u8],
    in_queue: bool,
) -> RedisResult<Rights> {
    let none = names::none(prefix);
    let called = &CALLED[..if in_queue { CALLED.len() - 2 } else { OF_LOCKS }];
    let mut commands: Vec<Cmd> = script_probes(&none).into();
    commands.extend(called.iter().map(|(name, arguments)| {
        let mut command = cmd(name);
        command.arg(&none).arg(*arguments);
        command
    }));
    let answers = all(connection, &commands).await?;
    let mut rights = Rights::default();
    let (scripts, called_answers) = answers.split_at(2);
    let [digest, text] = ["EVALSHA", "EVAL"].map(|name| {
        let answer = &scripts[usize::from(name == "EVAL")];
        answer.as_ref().is_err_and(|error| is_refused(error, name))
    });
    // A digest that may be used and is not known needs the text once.
    let unknown = scripts[0].as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT"));
    rights.no_scripts = text && (digest || unknown);
    if rights.no_scripts {
        return without_scripts(connection, &none, rights).await;
    }
    let mut missing = Vec::new();
    missing.extend(digest.then_some("EVALSHA"));
    missing.extend(text.then_some("EVAL"));
    for ((name, _), answer) in called.iter().zip(called_answers) {
        if answer.as_ref().is_err_and(is_forbidden_command) {
            let of_order = ["ZRANGE", "ZRANK", "ZREM", "ZREVRANGE", "ZSCORE"].contains(name);
            missing.push(if of_order { "ZRANGE, ZRANK, ZREM, ZREVRANGE or ZSCORE" } else { name });
        }
    }
    missing.dedup();
    rights.missing = missing.into_iter().map(|name| (name, lost(name))).collect();
    Ok(rights)
}

/// What stands in the place of scripts, whatever the version is said to be.
async fn without_scripts(
    connection: &MultiplexedConnection,
    none: &[u8],
    mut rights: Rights,
) -> RedisResult<Rights> {
    let (mut set, mut delifeq, mut delex) = (cmd("SET"), cmd("DELIFEQ"), cmd("DELEX"));
    set.arg(none).arg("").arg("IFEQ").arg("").arg("GET").arg("PX").arg(1);
    delifeq.arg(none).arg("");
    delex.arg(none).arg("IFEQ").arg("");
    let answers = all(connection, &[set, delifeq, delex]).await?;
    let has = |at: usize, answer: &Value| match &answers[at] {
        Ok(value) => Some(value == answer),
        Err(error) if error.code() == Some("ERR") || is_forbidden(error) => Some(false),
        // A full or a read-only server, for instance: the version says.
        Err(_) => None,
    };
    rights.set_ifeq = has(0, &Value::Nil);
    rights.delete = match (has(1, &Value::Int(0)), has(2, &Value::Int(0))) {
        (Some(true), _) => Some(Some(NativeDelete::Delifeq)),
        (_, Some(true)) => Some(Some(NativeDelete::Delex)),
        (Some(false), Some(false)) => Some(None),
        _ => None,
    };
    Ok(rights)
}

async fn all(connection: &MultiplexedConnection, commands: &[Cmd]) -> RedisResult<Vec<RedisResult<Value>>> {
    let answers = join_all(commands.iter().map(|command| ask(connection.clone(), command))).await;
    let mut ended = None;
    let answers = answers.into_iter().chain(once(Ok(Value::Nil))).filter_map(|answer| match answer {
        Err(error) if error.code().is_none() => {
            ended = Some(error);
            None
        }
        answer => Some(answer),
    });
    let mut answers: Vec<_> = answers.collect();
    answers.pop();
    ended.map_or(Ok(answers), Err)
}

/// Whether the command itself is forbidden, and not just for the key, which may lie outside of the user's pattern.
fn is_forbidden_command(error: &RedisError) -> bool {
    let of_keys = error.code() == Some("NOPERM") && error.to_string().contains("key");
    is_forbidden(error) && !of_keys
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that may be said to be missing has a word for what is lost.
    #[test]
    fn each_right_has_a_loss() {
        let of_order = ["ZRANGE", "ZRANK", "ZREM", "ZREVRANGE", "ZSCORE"];
        for (name, _) in CALLED.iter().filter(|(name, _)| !of_order.contains(name)) {
            assert!(!lost(name).is_empty(), "{name}");
        }
        assert!(LOST.iter().all(|(name, lost)| !name.is_empty() && lost.len() > 5));
        assert_eq!(lost("something else"), "");
    }

    /// What was found out stands over what the version says.
    #[test]
    fn what_was_asked_counts() {
        let by_version =
            Abilities { set_ifeq: true, delete: Some(NativeDelete::Delifeq), ..Abilities::default() };
        assert_eq!(Rights::default().abilities(by_version), by_version);
        let rights = Rights { no_scripts: true, delete: Some(None), ..Rights::default() };
        let abilities = rights.abilities(by_version);
        assert_eq!((abilities.no_scripts, abilities.set_ifeq, abilities.delete), (true, true, None));
        assert_eq!(script_use(abilities), ScriptUse::Replaced, "a life of a millisecond is as good");
        assert_eq!(script_use(Abilities { no_scripts: true, ..Abilities::default() }), ScriptUse::Missing);
        assert_eq!(script_use(Abilities::default()), ScriptUse::Allowed);
    }
}
