//! What the doctor looks for: the list, with the reason why each matters. How each is found is in [`super::of_nodes`] and
//! [`super::of_sets`].

use std::time::Duration;

use redquorum::NodeStatus;

use super::probe::{Facts, Place};
use super::{of_nodes, of_sets};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing.
    Note,
    /// Worth mending.
    Warning,
    /// Locks fail, or may be held twice.
    Danger,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Danger => "danger",
        }
    }
}

/// A kind of fault.
pub struct Fault {
    /// One word, for machines.
    pub name: &'static str,
    pub level: Level,
    /// Why it matters.
    pub why: &'static str,
    pub find: fn(&Set) -> Vec<Hit>,
}

/// A fault that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Which node, counted from zero; `None` where it is the set of nodes.
    pub node: Option<usize>,
    pub what: String,
    /// The command that mends it, or what to do where there is none.
    pub mend: String,
}

/// All that was found out about the nodes.
pub struct Set {
    pub places: Vec<Place>,
    pub facts: Vec<Facts>,
    /// As the library sees them; nothing where it refuses to.
    pub seen: Vec<NodeStatus>,
    pub ttl: Duration,
    pub reply_timeout: Duration,
    pub delay_is_off: bool,
}

impl Set {
    /// The nodes that could be asked.
    pub fn asked(&self) -> impl Iterator<Item = (usize, &Place, &Facts)> {
        let all = self.places.iter().zip(&self.facts).enumerate();
        all.filter(|(_, (_, facts))| facts.trouble.is_none())
            .map(|(index, (place, facts))| (index, place, facts))
    }
}

macro_rules! fault {
    ($name:literal, $level:ident, $find:path, $why:literal) => {
        Fault { name: $name, level: Level::$level, why: $why, find: $find }
    };
}

/// Everything that is looked for, in the order in which it should be mended.
pub const FAULTS: [Fault; 36] = [
    fault!(
        "unreachable",
        Danger,
        of_nodes::unreachable,
        "a node that does not answer has no vote: one more, and there may be no quorum"
    ),
    fault!("denied", Danger, of_nodes::denied, "a node that lets nobody in has no vote"),
    fault!(
        "same-server",
        Danger,
        of_sets::same_server,
        "one server under two addresses would vote twice, so that a minority could grant a lock"
    ),
    fault!(
        "copied-data",
        Danger,
        of_sets::copied_data,
        "a node that was started from another's data carries its marker: the two are taken for one, and one of them does not vote"
    ),
    fault!(
        "replica",
        Danger,
        of_nodes::replica,
        "a replica may not have heard of a lock that its primary granted, and does not vote"
    ),
    fault!(
        "several-servers",
        Danger,
        of_nodes::several_servers,
        "an address that leads to one server and then to another has no vote: each of them knows only some of the locks"
    ),
    fault!(
        "old-version",
        Danger,
        of_nodes::old_version,
        "the library needs what Redis has from 6.2 on, and Valkey from 8.0 on"
    ),
    fault!(
        "eviction",
        Danger,
        of_nodes::eviction,
        "eviction may delete the key of a lock that somebody holds, and the next one gets it"
    ),
    fault!("memory-full", Danger, of_nodes::memory_full, "a full node refuses new locks: it stops voting"),
    fault!(
        "write-stopped",
        Danger,
        of_nodes::write_stopped,
        "a node that cannot write to its disk refuses every write"
    ),
    fault!(
        "needs-replicas",
        Danger,
        of_nodes::needs_replicas,
        "a node that wants replicas before it writes refuses every lock while it has too few"
    ),
    fault!(
        "lock-command-refused",
        Danger,
        of_nodes::lock_command_refused,
        "no lock can be taken or released without this command"
    ),
    fault!(
        "reply-timeout",
        Danger,
        of_nodes::reply_timeout,
        "a node that answers later than a round waits never grants in time"
    ),
    fault!(
        "clock-rate",
        Danger,
        of_sets::clock_rate,
        "clocks that run at different rates use up the allowance for drift (1 %): a key may end before its holder thinks so"
    ),
    fault!(
        "fencing-clocks",
        Danger,
        of_sets::fencing_clocks,
        "clients that have met only nodes whose clocks are behind hold their fencing tokens back: once nodes lose counters, a token \
         may be smaller than the last"
    ),
    fault!(
        "no-majority",
        Danger,
        of_sets::no_majority,
        "fewer nodes than a quorum are fit to vote: no lock can be taken now"
    ),
    fault!(
        "clock-offset",
        Warning,
        of_sets::clock_offset,
        "a clock that is off will be set some day: keys then end early or late, and the node stands aside"
    ),
    fault!(
        "client-clock",
        Warning,
        of_sets::client_clock,
        "fencing tokens follow the clock of whoever locks; one that is far ahead of all nodes is held back, one that is behind \
         costs a second round trip; if it is the nodes that are behind, tokens may not rise once they lose counters"
    ),
    fault!(
        "slow",
        Warning,
        of_sets::slow,
        "each round trip is taken from the validity of a lock; a TTL should be fifty of them"
    ),
    fault!(
        "no-append-only-file",
        Warning,
        of_nodes::no_append_only_file,
        "a node that forgets its keys stands aside after each restart, for the longest TTL; two that do so at a time may be an outage"
    ),
    fault!(
        "fsync",
        Warning,
        of_nodes::fsync,
        "what was not yet on disk is forgotten at a crash, so that the node stands aside after each restart"
    ),
    fault!(
        "fsync-on-rewrite",
        Warning,
        of_nodes::fsync_on_rewrite,
        "while the file is rewritten nothing is written to disk, and a crash then forgets locks"
    ),
    fault!(
        "promoted",
        Warning,
        of_nodes::promoted,
        "a replica that was promoted may not have heard of a lock that its primary granted: clients that did not see it happen cannot \
         know, and count its vote"
    ),
    fault!(
        "no-tracking",
        Warning,
        of_nodes::no_tracking,
        "a client hears of a flush at its next look only, up to five seconds later: until then the node may grant a lock again"
    ),
    fault!(
        "eviction-armed",
        Warning,
        of_nodes::eviction_armed,
        "should this node ever get a limit for its memory, it deletes locks that somebody holds"
    ),
    fault!(
        "has-replicas",
        Warning,
        of_nodes::has_replicas,
        "a replica that is promoted may not have heard of a lock; failover does not make a quorum safer"
    ),
    fault!(
        "cluster",
        Warning,
        of_nodes::cluster,
        "a node in cluster mode fails over to replicas, and serves only a part of the keys"
    ),
    fault!(
        "line-command-refused",
        Warning,
        of_nodes::line_command_refused,
        "without this command waiting, the restart delay or waking up is done without"
    ),
    fault!(
        "no-wake-up",
        Warning,
        of_nodes::no_wake_up,
        "without RESP3 nobody can be woken: who waits has to ask again and again"
    ),
    fault!(
        "few-clients-left",
        Warning,
        of_nodes::few_clients_left,
        "once the connections are used up, no further client can lock"
    ),
    fault!(
        "idle-timeout",
        Warning,
        of_nodes::idle_timeout,
        "a node that closes quiet connections makes clients connect again and again"
    ),
    fault!(
        "too-young",
        Warning,
        of_nodes::too_young,
        "the node may have forgotten a lock that is still held, and does not vote yet"
    ),
    fault!(
        "even",
        Warning,
        of_sets::even,
        "an even number of nodes survives no more losses than one node less, and has one more to lose"
    ),
    fault!("one-node", Warning, of_sets::one_node, "the loss of this one node is the loss of all locks"),
    fault!(
        "aof-load-truncated",
        Note,
        of_nodes::load_truncated,
        "a node whose file was cut starts without what is missing, and clients that remember it may take it for one that remembers all"
    ),
    fault!(
        "versions-differ",
        Note,
        of_sets::versions_differ,
        "nodes of different versions are correct, and behave a little differently; so after an upgrade that was forgotten"
    ),
];
