//! `redquorum nodes`: how each node is, as a client of them sees it.

use std::time::{Duration, Instant};

use redquorum::{Health, NodeStatus, NodeVote, Redlock, Scripts};
use serde_json::{Value, json};

use crate::args::Common;
use crate::exit::{self, Failure};
use crate::output::{Output, Tone, count, millis, time};
use crate::places::Places;
use crate::table::{Table, cell, plain};

/// The library's default.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often to ask, so that a round trip is known.
const ASKED: usize = 3;

pub async fn nodes(common: &Common, output: &Output) -> Result<u8, Failure> {
    let places = Places::find(common)?;
    let redlock = all_tried(&places).await?;
    for _ in 0..ASKED {
        let _ = redlock.inspect("redquorum-nodes").await;
    }
    let nodes = redlock.nodes();
    redlock.close(Duration::ZERO).await;
    let needed = nodes.len() / 2 + 1;
    let voting = nodes.iter().filter(|node| votes(node)).count();
    if output.json {
        let nodes: Vec<_> = nodes.iter().map(value).collect();
        output.value(&json!({ "needed": needed, "voting": voting, "nodes": nodes }))?;
    } else {
        show(output, &nodes)?;
    }
    for (index, node) in nodes.iter().enumerate() {
        if let NodeVote::SameServer { earlier } = node.vote {
            let text = format!(
                "n{} is the same server as n{earlier} and has no vote of its own; take one of the two addresses from the list",
                index + 1
            );
            output.remark("same_server", &text, json!({ "node": index + 1, "earlier": earlier }));
        }
    }
    if voting < needed {
        let what = format!("{} of {} may vote, {needed} are needed", count(voting, "node"), nodes.len());
        return Err(Failure::new(exit::NO_QUORUM, "no_quorum", what)
            .next("`redquorum doctor` says what is wrong with each, and how to mend it"));
    }
    Ok(exit::OK)
}

/// A client of which every node has been tried once, whether it answered or not.
pub async fn all_tried(places: &Places) -> Result<Redlock, Failure> {
    let redlock = places.builder().lazy().build().await?;
    let limit = places.connect_timeout.unwrap_or(CONNECT_TIMEOUT) + Duration::from_millis(100);
    let began = Instant::now();
    let connecting = |node: &NodeStatus| node.health == Health::Connecting;
    while began.elapsed() < limit && redlock.nodes().iter().any(connecting) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(redlock)
}

/// Whether a node's grants count now.
pub fn votes(node: &NodeStatus) -> bool {
    node.health == Health::Up && node.vote == NodeVote::Counts
}

fn show(output: &Output, nodes: &[NodeStatus]) -> Result<(), Failure> {
    let mut table = Table::new(&["", "node", "state", "vote", "server", "up for", "round trip"]);
    let none = || "-".to_owned();
    for (index, node) in nodes.iter().enumerate() {
        let (state, tone) = state(node);
        let (vote, vote_tone) = vote(node);
        table.row([
            plain(format!("n{}", index + 1)),
            plain(&*node.address),
            cell(tone, state),
            cell(vote_tone, vote),
            plain(node.version.as_deref().map_or_else(none, str::to_owned)),
            plain(node.uptime.map_or_else(none, seconds)),
            plain(node.round_trip.map_or_else(none, time)),
        ]);
    }
    output.show(&table)
}

/// How long a server has been up. It tells whole seconds, so that no parts of one are known.
fn seconds(uptime: Duration) -> String {
    match uptime.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        _ => time(uptime),
    }
}

/// A node's state in a word, and how good that is.
pub fn state(node: &NodeStatus) -> (String, Tone) {
    match &node.health {
        Health::Up => ("up".to_owned(), Tone::Good),
        Health::Connecting => ("connecting".to_owned(), Tone::Doubtful),
        Health::Suspect => ("silent".to_owned(), Tone::Bad),
        Health::Down(trouble) => (format!("down: {trouble}"), Tone::Bad),
        other => (other.to_string(), Tone::Doubtful),
    }
}

/// What a node's vote is worth, in a word.
pub fn vote(node: &NodeStatus) -> (String, Tone) {
    match &node.vote {
        _ if matches!(node.health, Health::Down(_) | Health::Connecting) => ("-".to_owned(), Tone::Faint),
        NodeVote::Counts => ("counts".to_owned(), Tone::Good),
        NodeVote::TooYoung { remaining: Some(left) } => {
            (format!("too young, {}", time(*left)), Tone::Doubtful)
        }
        NodeVote::TooYoung { remaining: None } => ("too-young".to_owned(), Tone::Doubtful),
        NodeVote::Replica => ("none: a replica".to_owned(), Tone::Bad),
        NodeVote::SameServer { earlier } => (format!("none: same server as n{earlier}"), Tone::Bad),
        NodeVote::SeveralServers => ("none: several servers".to_owned(), Tone::Bad),
        other => (other.to_string(), Tone::Doubtful),
    }
}

/// A node for machines.
pub fn value(node: &NodeStatus) -> Value {
    let (health, trouble) = match &node.health {
        Health::Down(trouble) => ("down".to_owned(), Some(trouble)),
        other => (other.to_string(), None),
    };
    let (vote, remaining) = match &node.vote {
        NodeVote::Counts => ("counts", None),
        NodeVote::TooYoung { remaining } => ("too-young", remaining.map(millis)),
        NodeVote::Replica => ("replica", None),
        NodeVote::SameServer { .. } => ("same_server", None),
        NodeVote::SeveralServers => ("several_servers", None),
        _ => ("other", None),
    };
    json!({
        "address": &*node.address,
        "state": health,
        "trouble": trouble,
        "vote": vote,
        "guarded_ms": remaining,
        "version": node.version.as_deref(),
        "role": node.role.map(|role| role.to_string()),
        "run_id": node.run_id.as_deref(),
        "uptime_s": node.uptime.map(|uptime| uptime.as_secs()),
        "persistence": node.persistence.as_ref().map(|persistence| persistence.to_string()),
        "eviction_policy": node.eviction_policy.as_deref(),
        "scripts": node.scripts.map(|scripts| match scripts {
            Scripts::Allowed => "allowed",
            Scripts::Replaced => "replaced",
            _ => "missing",
        }),
        "round_trip_ms": node.round_trip.map(millis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No parts of a second are shown of how long a server has been up.
    #[test]
    fn uptimes_are_whole_seconds() {
        let shown = |millis| seconds(Duration::from_millis(millis));
        assert_eq!((shown(2), shown(29_999)), ("0 s".to_owned(), "29 s".to_owned()));
        assert_eq!((shown(119_999), shown(120_000)), ("119 s".to_owned(), "2 min".to_owned()));
    }
}
