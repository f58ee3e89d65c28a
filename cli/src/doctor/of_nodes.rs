//! Faults of single nodes.

use std::time::Duration;

use redquorum::NodeVote;

use super::faults::{Hit, Set};
use super::probe::{Facts, Place, Trouble};
use crate::words::time;

/// Without these, no lock.
const FOR_LOCKS: [&str; 8] = ["SET", "GET", "DEL", "PEXPIRE", "PTTL", "EVAL", "EVALSHA", "TIME"];

/// The library looks at each node so often, which keeps a connection from being quiet.
const LOOK_EVERY: u64 = 5;

/// Looks at each node that could be asked.
fn each(set: &Set, look: impl Fn(&Place, &Facts) -> Option<(String, String)>) -> Vec<Hit> {
    let found = set.asked().filter_map(|(index, place, facts)| {
        let (what, mend) = look(place, facts)?;
        Some(Hit { node: Some(index), what, mend })
    });
    found.collect()
}

fn each_trouble(set: &Set, look: impl Fn(&Place, &Trouble) -> Option<(String, String)>) -> Vec<Hit> {
    let all = set.places.iter().zip(&set.facts).enumerate();
    let found = all.filter_map(|(index, (place, facts))| {
        let (what, mend) = look(place, facts.trouble.as_ref()?)?;
        Some(Hit { node: Some(index), what, mend })
    });
    found.collect()
}

/// A setting changed for now and for the next start.
fn set(place: &Place, name: &str, value: &str) -> String {
    let cli = place.cli();
    format!("{cli} CONFIG SET {name} {value} && {cli} CONFIG REWRITE")
}

fn info<'a>(facts: &'a Facts, name: &str) -> Option<&'a str> {
    facts.info.get(name).map(String::as_str)
}

fn info_number(facts: &Facts, name: &str) -> Option<u64> {
    info(facts, name)?.parse().ok()
}

/// A setting, as `INFO` or as `CONFIG GET` tells it.
fn setting<'a>(facts: &'a Facts, name: &str) -> Option<&'a str> {
    facts.settings.get(name).map(String::as_str).or_else(|| info(facts, &name.replace('-', "_")))
}

fn setting_number(facts: &Facts, name: &str) -> Option<u64> {
    setting(facts, name)?.parse().ok()
}

pub fn unreachable(set: &Set) -> Vec<Hit> {
    each_trouble(set, |place, trouble| match trouble {
        Trouble::Unreachable(why) => Some((
            format!("cannot be reached: {why}"),
            format!("{} PING   # on this machine; then start the server, or open the way to it", place.cli()),
        )),
        Trouble::Denied(_) => None,
    })
}

pub fn denied(set: &Set) -> Vec<Hit> {
    each_trouble(set, |place, trouble| match trouble {
        Trouble::Denied(why) => Some((
            format!("lets nobody in as \"{}\": {why}", place.user()),
            format!(
                "{} ACL WHOAMI   # try the user and password that the address names, redis://user:password@host",
                place.cli()
            ),
        )),
        Trouble::Unreachable(_) => None,
    })
}

pub fn replica(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let primary =
            (info(facts, "role") == Some("slave")).then(|| info(facts, "master_host").unwrap_or("?"))?;
        Some((
            format!("is a replica of {primary}"),
            format!("{} REPLICAOF NO ONE   # or name its primary instead", place.cli()),
        ))
    })
}

pub fn old_version(set: &Set) -> Vec<Hit> {
    each(set, |_, facts| {
        let (name, version, least) = match info(facts, "valkey_version") {
            Some(version) => ("Valkey", version, (8, 0)),
            None => ("Redis", info(facts, "redis_version")?, (6, 2)),
        };
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        (found < least).then(|| {
            let upgrade = format!("upgrade it to {name} {}.{} or newer", least.0, least.1);
            (format!("runs {name} {version}"), upgrade)
        })
    })
}

/// Whether keys may be evicted, and whether a limit is set that would bring it about.
fn evicts(facts: &Facts) -> Option<(&str, bool)> {
    let policy = setting(facts, "maxmemory-policy").filter(|policy| *policy != "noeviction")?;
    Some((policy, setting_number(facts, "maxmemory").is_some_and(|limit| limit > 0)))
}

pub fn eviction(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let (policy, _) = evicts(facts).filter(|(_, limited)| *limited)?;
        Some((
            format!("evicts keys when its memory is full ({policy})"),
            self::set(place, "maxmemory-policy", "noeviction"),
        ))
    })
}

pub fn eviction_armed(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let (policy, _) = evicts(facts).filter(|(_, limited)| !limited)?;
        Some((
            format!("would evict keys ({policy}), were its memory limited"),
            self::set(place, "maxmemory-policy", "noeviction"),
        ))
    })
}

pub fn memory_full(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let (used, limit) = (info_number(facts, "used_memory")?, setting_number(facts, "maxmemory")?);
        (limit > 0 && used * 10 >= limit * 9).then(|| {
            let what = format!("has used {} % of its memory", used * 100 / limit);
            (what, self::set(place, "maxmemory", &(used * 4).to_string()) + "   # or find out who fills it")
        })
    })
}

pub fn write_stopped(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let failed = |name| info(facts, name).is_some_and(|status| status != "ok");
        let misconf = facts.refused.iter().any(|(_, why)| why.contains("MISCONF"));
        let what = match (failed("aof_last_write_status"), misconf) {
            (true, _) => "cannot write its append-only file",
            (false, true) => "refuses writes, because its last snapshot failed",
            (false, false) => return None,
        };
        Some((
            what.to_owned(),
            format!("{} CONFIG GET dir   # then make room there, or let it be written to", place.cli()),
        ))
    })
}

pub fn needs_replicas(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let wanted = setting_number(facts, "min-replicas-to-write").filter(|wanted| *wanted > 0)?;
        Some((
            format!("wants {wanted} replicas before it writes"),
            self::set(place, "min-replicas-to-write", "0"),
        ))
    })
}

/// Commands that were refused for want of rights, or do not exist.
fn refusals(place: &Place, facts: &Facts, wanted: impl Fn(&str) -> bool) -> Option<(String, String)> {
    let refused: Vec<_> = facts
        .refused
        .iter()
        .filter(|(name, why)| {
            let state = ["misconf", "noreplicas", "oom"];
            wanted(name) && !state.iter().any(|word| why.to_lowercase().contains(word))
        })
        .collect();
    let (_, why) = refused.first()?;
    let names: Vec<_> = refused.iter().map(|(name, _)| *name).collect();
    let mend = if why.to_lowercase().contains("unknown command") {
        "take the rename-command lines for these from the server's configuration, and restart it".to_owned()
    } else {
        let rights: Vec<_> =
            names.iter().map(|name| format!("+{}", name.to_lowercase().replace(' ', "|"))).collect();
        let channel = if why.contains("channel") { " '&redquorum:wake:*'" } else { "" };
        format!(
            "{} ACL SETUSER {} {}{channel}   # and ~PREFIX* for its keys",
            place.cli(),
            place.user(),
            rights.join(" ")
        )
    };
    Some((format!("refuses {} to \"{}\": {why}", names.join(", "), place.user()), mend))
}

pub fn lock_command_refused(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| refusals(place, facts, |name| FOR_LOCKS.contains(&name)))
}

pub fn line_command_refused(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| refusals(place, facts, |name| !FOR_LOCKS.contains(&name)))
}

pub fn reply_timeout(set: &Set) -> Vec<Hit> {
    each(set, |_, facts| {
        let took = facts.round_trip.filter(|took| *took > set.reply_timeout)?;
        let what = format!("answers after {}, a round waits for {}", time(took), time(set.reply_timeout));
        let wanted =
            Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX).saturating_mul(3) + 1);
        Some((
            what,
            format!(
                "set the reply timeout to {wanted:?}, and the TTL to {:?} or more; or use a nearer node",
                wanted * 10
            ),
        ))
    })
}

pub fn no_append_only_file(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        (info(facts, "aof_enabled") == Some("0")).then(|| {
            let cli = place.cli();
            let mend =
                format!("{cli} CONFIG SET appendonly yes && {}", self::set(place, "appendfsync", "always"));
            ("keeps no append-only file: a restart forgets its keys".to_owned(), mend)
        })
    })
}

pub fn fsync(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let enabled = info(facts, "aof_enabled") == Some("1");
        let policy = setting(facts, "appendfsync").filter(|policy| enabled && *policy != "always")?;
        Some((format!("writes to disk {policy}, not always"), self::set(place, "appendfsync", "always")))
    })
}

pub fn fsync_on_rewrite(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let off = setting(facts, "no-appendfsync-on-rewrite") == Some("yes")
            && info(facts, "aof_enabled") == Some("1");
        off.then(|| {
            let what = "writes nothing to disk while it rewrites its file".to_owned();
            (what, self::set(place, "no-appendfsync-on-rewrite", "no"))
        })
    })
}

pub fn load_truncated(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let durable =
            info(facts, "aof_enabled") == Some("1") && setting(facts, "appendfsync") == Some("always");
        let cuts = durable && setting(facts, "aof-load-truncated") == Some("yes");
        cuts.then(|| {
            let what = "starts with a file whose end is missing, as if nothing had been".to_owned();
            (what, self::set(place, "aof-load-truncated", "no"))
        })
    })
}

/// The history that a server followed before its own; zeros for one that was never a replica.
pub fn promoted(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let was = info(facts, "master_replid2").is_some_and(|id| id.bytes().any(|digit| digit != b'0'));
        let is_primary = info(facts, "role") == Some("master");
        (was && is_primary).then(|| {
            let mend = format!(
                "{} INFO replication   # if that was less than the longest TTL ago, stop it until then; and give it no primary",
                place.cli()
            );
            ("was a replica, and was promoted".to_owned(), mend)
        })
    })
}

pub fn several_servers(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let runs = facts.runs.iter().collect::<std::collections::BTreeSet<_>>().len();
        (runs > 1).then(|| {
            (
                format!("led to {runs} different servers in {} connections", facts.runs.len()),
                format!(
                    "{} INFO server   # ask again and again; then name one server by an address of its own",
                    place.cli()
                ),
            )
        })
    })
}

pub fn no_tracking(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let why = facts.no_tracking.as_ref()?;
        let mend = format!("{} ACL SETUSER {} +client|tracking +client|caching", place.cli(), place.user());
        Some((format!("refuses CLIENT TRACKING: {why}"), mend))
    })
}

pub fn has_replicas(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let replicas = info_number(facts, "connected_slaves").filter(|count| *count > 0)?;
        Some((
            format!("has {replicas} replicated to it")
                .replace("replicated to it", if replicas == 1 { "replica" } else { "replicas" }),
            format!("{} INFO replication   # then, on each replica: REPLICAOF NO ONE", place.cli()),
        ))
    })
}

pub fn cluster(set: &Set) -> Vec<Hit> {
    each(set, |_, facts| {
        (info(facts, "cluster_enabled") == Some("1")).then(|| {
            (
                "is in cluster mode".to_owned(),
                "use a server of its own, started with cluster-enabled no".to_owned(),
            )
        })
    })
}

pub fn no_wake_up(set: &Set) -> Vec<Hit> {
    each(set, |_, facts| {
        (!facts.speaks_resp3).then(|| {
            let mend = "take the rename-command line for HELLO from the server's configuration, or what stands before it out of the way";
            ("does not take HELLO: only RESP2 can be spoken to it".to_owned(), mend.to_owned())
        })
    })
}

pub fn few_clients_left(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let (now, most) = (info_number(facts, "connected_clients")?, setting_number(facts, "maxclients")?);
        (now * 10 >= most * 8).then(|| {
            let wanted = (most * 4).max(10_000).to_string();
            (format!("has {now} clients, {most} at most"), self::set(place, "maxclients", &wanted))
        })
    })
}

pub fn idle_timeout(set: &Set) -> Vec<Hit> {
    each(set, |place, facts| {
        let seconds =
            setting_number(facts, "timeout").filter(|seconds| (1..=LOOK_EVERY).contains(seconds))?;
        Some((format!("closes connections that are quiet for {seconds} s"), self::set(place, "timeout", "0")))
    })
}

pub fn too_young(set: &Set) -> Vec<Hit> {
    let seen = set.seen.iter().enumerate().filter_map(|(index, node)| match &node.vote {
        NodeVote::TooYoung { remaining } => {
            let left = remaining
                .map_or("until it was looked at and marked".to_owned(), |left| format!("for another {}", time(left)));
            Some(Hit {
                node: Some(index),
                what: format!("does not vote {left}: its memory is younger than the longest TTL"),
                mend: "wait, where it was just set up or restarted; with --no-restart-delay it votes at once, if it surely \
                       holds nothing. Where it was neither, find out why it lost its memory"
                    .to_owned(),
            })
        }
        _ => None,
    });
    // Of one that cannot be asked it is no news.
    seen.filter(|hit| {
        hit.node.and_then(|node| set.facts.get(node)).is_some_and(|facts| facts.trouble.is_none())
    })
    .collect()
}
