//! Faults of the nodes together.

use std::time::Duration;

use redquorum::NodeVote;

use super::faults::{Hit, Set};
use super::probe::{Clock, Facts, Trouble};
use crate::words::time;

/// Clocks that agree with NTP are off by milliseconds.
const OFFSET: f64 = 1e6;

/// Half of the allowance that the library makes for clocks of different rates.
const RATE: f64 = 0.005;

/// By so much a client's clock may move fencing tokens ahead of the foremost node's.
const TOKENS: f64 = 10e6;

fn of_set(what: String, mend: impl Into<String>) -> Vec<Hit> {
    vec![Hit { node: None, what, mend: mend.into() }]
}

/// Pairs of nodes, the later with the first that is like it.
fn pairs(set: &Set, alike: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let asked: Vec<_> = set.asked().map(|(index, ..)| index).collect();
    let with_first = asked.iter().filter_map(|later| {
        let first =
            asked.iter().take_while(|earlier| *earlier < later).find(|earlier| alike(**earlier, *later))?;
        Some((*first, *later))
    });
    with_first.collect()
}

fn is_one_server(set: &Set, one: usize, other: usize) -> bool {
    let run = |index: usize| set.facts[index].info.get("run_id");
    // Where a user must not ask, the same address is all there is.
    set.places[one].name == set.places[other].name || (run(one).is_some() && run(one) == run(other))
}

pub fn same_server(set: &Set) -> Vec<Hit> {
    let found = pairs(set, |one, other| is_one_server(set, one, other));
    let hit = |(one, other): (usize, usize)| Hit {
        node: Some(other),
        what: format!("is the same server as n{}", one + 1),
        mend: format!("take {} from the list of nodes, or name another server", set.places[other].name),
    };
    found.into_iter().map(hit).collect()
}

pub fn copied_data(set: &Set) -> Vec<Hit> {
    let marker = |index: usize| set.facts[index].marker.as_ref();
    let alike =
        |one, other| marker(one).is_some() && marker(one) == marker(other) && !is_one_server(set, one, other);
    let hit = |(one, other): (usize, usize)| Hit {
        node: Some(other),
        what: format!("carries the marker of n{}: it was started from a copy of its data", one + 1),
        mend: format!(
            "{} DEL redquorum:node   # after the prefix, if there is one; no client may be connected",
            set.places[other].cli()
        ),
    };
    pairs(set, alike).into_iter().map(hit).collect()
}

/// The clocks that could be read, and the one in the middle.
fn clocks(set: &Set, of: impl Fn(&Clock) -> f64) -> (Vec<(usize, Clock)>, f64) {
    let read: Vec<_> = set.asked().filter_map(|(index, _, facts)| Some((index, facts.clock?))).collect();
    let mut values: Vec<_> = read.iter().map(|(_, clock)| of(clock)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied().unwrap_or_default();
    (read, middle)
}

/// Servers take their time from their machine.
fn synchronise(set: &Set, index: usize) -> String {
    match &set.places[index].host {
        Some(host) => format!(
            "ssh {host} 'chronyc tracking; sudo systemctl restart chronyd'   # its clock must be kept by NTP"
        ),
        None => "sudo systemctl restart chronyd   # its clock must be kept by NTP".to_owned(),
    }
}

pub fn clock_offset(set: &Set) -> Vec<Hit> {
    let (read, middle) = clocks(set, |clock| clock.ahead);
    let off = read.into_iter().filter_map(|(index, clock)| {
        let off = clock.ahead - middle;
        (off.abs() > OFFSET + clock.doubt).then(|| Hit {
            node: Some(index),
            what: format!(
                "its clock is {} {} the others",
                micros(off),
                if off > 0.0 { "ahead of" } else { "behind" }
            ),
            mend: synchronise(set, index),
        })
    });
    off.collect()
}

pub fn clock_rate(set: &Set) -> Vec<Hit> {
    let (read, middle) = clocks(set, |clock| clock.gains);
    // The one in the middle was read no better than the others.
    let of_the_middle = read.iter().map(|(_, clock)| clock.rate_doubt).fold(0.0, f64::max);
    let off = read.into_iter().filter_map(|(index, clock)| {
        let off = clock.gains - middle;
        (off.abs() > RATE + clock.rate_doubt + of_the_middle).then(|| Hit {
            node: Some(index),
            what: format!(
                "its clock runs {:.1} % {} than the others",
                off.abs() * 100.0,
                if off > 0.0 { "faster" } else { "slower" }
            ),
            mend: synchronise(set, index),
        })
    });
    off.collect()
}

/// A quorum of nodes that hold back each client which has met no others. If all nodes are behind, it is rather this machine that is
/// ahead, of which another fault tells.
pub fn fencing_clocks(set: &Set) -> Vec<Hit> {
    let (read, _) = clocks(set, |clock| clock.ahead);
    let behind: Vec<_> = read.iter().filter(|(_, clock)| clock.ahead < -TOKENS - clock.doubt).collect();
    if behind.len() <= set.places.len() / 2 || behind.len() == read.len() {
        return Vec::new();
    }
    let hit = |(index, clock): &(usize, Clock)| Hit {
        node: Some(*index),
        what: format!(
            "its clock is {} behind this machine's, and so are those of a quorum",
            micros(clock.ahead)
        ),
        mend: synchronise(set, *index),
    };
    behind.into_iter().map(hit).collect()
}

pub fn client_clock(set: &Set) -> Vec<Hit> {
    let (read, middle) = clocks(set, |clock| clock.ahead);
    if read.is_empty() || middle.abs() <= TOKENS {
        return Vec::new();
    }
    let way = if middle < 0.0 { "ahead of" } else { "behind" };
    of_set(
        format!("the clock of this machine is {} {way} the nodes'", micros(middle)),
        "sudo systemctl restart chronyd   # the clock of this machine must be kept by NTP",
    )
}

fn micros(micros: f64) -> String {
    time(Duration::from_micros(micros.abs() as u64))
}

pub fn slow(set: &Set) -> Vec<Hit> {
    let mut took: Vec<_> = set.asked().filter_map(|(.., facts)| facts.round_trip).collect();
    took.sort();
    // The one that completes a quorum decides.
    let Some(deciding) = took.get(set.places.len() / 2).copied() else { return Vec::new() };
    if deciding * 50 <= set.ttl {
        return Vec::new();
    }
    of_set(
        format!("a quorum answers after {}, which is much for a TTL of {:?}", time(deciding), set.ttl),
        format!(
            "use a TTL of {:?} or more (--ttl, or `ttl` of the builder), or nearer nodes",
            deciding.max(Duration::from_millis(1)) * 50
        ),
    )
}

pub fn no_majority(set: &Set) -> Vec<Hit> {
    let (nodes, needed) = (set.places.len(), set.places.len() / 2 + 1);
    let twice: Vec<_> =
        pairs(set, |one, other| is_one_server(set, one, other)).into_iter().map(|(_, later)| later).collect();
    let is_replica = |facts: &Facts| facts.info.get("role").is_some_and(|role| role == "slave");
    let fit = set.asked().filter(|(index, _, facts)| !is_replica(facts) && !twice.contains(index));
    // How long each does not vote yet; where that is not known, it comes last.
    let mut waits: Vec<_> = fit
        .filter_map(|(index, ..)| match set.seen.get(index).map(|node| node.vote) {
            None | Some(NodeVote::Counts) => Some(Duration::ZERO),
            Some(NodeVote::TooYoung { remaining }) => Some(remaining.unwrap_or(Duration::MAX)),
            Some(_) => None,
        })
        .collect();
    waits.sort();
    let voting = waits.iter().filter(|wait| wait.is_zero()).count();
    if voting >= needed {
        return Vec::new();
    }
    match waits.get(needed - 1) {
        Some(wait) => {
            let when = match *wait {
                Duration::MAX => "when their markers can be written".to_owned(),
                wait => format!("in {}", time(wait)),
            };
            of_set(
                format!("{voting} of {nodes} nodes vote now, {needed} are needed: enough do {when}"),
                "wait for the restart delay; where nodes were just set up and hold nothing, --no-restart-delay",
            )
        }
        None => {
            let denied = set.facts.iter().any(|facts| matches!(facts.trouble, Some(Trouble::Denied(_))));
            let mend = if denied || !twice.is_empty() {
                "mend the addresses and the nodes named above"
            } else {
                "bring the nodes named above back"
            };
            of_set(format!("{} of {nodes} nodes are fit to vote, {needed} are needed", waits.len()), mend)
        }
    }
}

pub fn even(set: &Set) -> Vec<Hit> {
    let nodes = set.places.len();
    if nodes % 2 == 1 || nodes == 0 {
        return Vec::new();
    }
    of_set(
        format!("{nodes} nodes survive the loss of {}, as {} do", nodes - nodes / 2 - 1, nodes - 1),
        format!("add one node, or take one away, on all clients at once: {} or {}", nodes - 1, nodes + 1),
    )
}

pub fn one_node(set: &Set) -> Vec<Hit> {
    if set.places.len() != 1 {
        return Vec::new();
    }
    of_set("there is one node only".to_owned(), "name three or five independent servers on all clients")
}

pub fn versions_differ(set: &Set) -> Vec<Hit> {
    let version = |facts: &Facts| {
        let of = |name: &str| {
            facts.info.get(name).map(|version| version.split('.').take(2).collect::<Vec<_>>().join("."))
        };
        of("valkey_version")
            .map(|version| format!("Valkey {version}"))
            .or_else(|| Some(format!("Redis {}", of("redis_version")?)))
    };
    let mut versions: Vec<_> = set.asked().filter_map(|(.., facts)| version(facts)).collect();
    versions.sort();
    versions.dedup();
    if versions.len() < 2 {
        return Vec::new();
    }
    of_set(format!("the nodes run {}", versions.join(" and ")), "upgrade the older ones, one at a time")
}
