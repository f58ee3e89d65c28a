//! How the nodes of a client are, as far as they tell: for people, and for health checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Node, State};
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::{self, Standing};
use crate::protocol::time::Instant;
use crate::registry::{Facts, ScriptUse};
use crate::runtime::shared::Shared;

/// How one node is. What it did not tell, because it was never connected or because the user must not ask, is `None`.
/// `Display` is one queue.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// for node in redlock.nodes() {
///     println!("{}: {}, answers in {:?}", node.address, node.health, node.round_trip);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Where the node is, without credentials.
    pub address: Arc<str>,
    /// Whether it is connected and used.
    pub health: Health,
    /// What its grants are worth in acquires.
    pub vote: NodeVote,
    /// The server and its version, as in `Redis 8.2` or `Valkey 9.0`.
    pub version: Option<Arc<str>>,
    /// What it is in a replication.
    pub role: Option<Role>,
    /// The random name of this run of the server.
    pub run_id: Option<Arc<str>>,
    /// For how long the server has been running.
    pub uptime: Option<Duration>,
    /// What a restart leaves of its keys.
    pub persistence: Option<Persistence>,
    /// What the server does when its memory is full: anything but `noeviction` may free a lock that is held.
    pub eviction_policy: Option<Arc<str>>,
    /// Whether this client may use scripts there.
    pub scripts: Option<Scripts>,
    /// How long it takes from handing the node a command to reading its answer, smoothed over some ten of them.
    pub round_trip: Option<Duration>,
}

/// Whether a node is connected and used.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::Health;
///
/// for node in redlock.nodes() {
///     if let Health::Down(trouble) = &node.health {
///         println!("{} is down: {trouble}", node.address);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The first attempt to connect is under way.
    Connecting,
    /// Connected and used.
    Up,
    /// Connected, but silent for some time: not asked until it answers.
    Suspect,
    /// Not connected: the last trouble.
    Down(String),
}

/// What a node's grants are worth in acquires.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::NodeVote;
///
/// for node in redlock.nodes() {
///     if let NodeVote::TooYoung { remaining: Some(left) } = node.vote {
///         println!("{} was restarted, and votes again in {left:?}", node.address);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeVote {
    /// They count.
    Counts,
    /// They do not count yet: the node may have forgotten a lock that is still held.
    TooYoung {
        /// How much longer; `None` where that is not known yet.
        remaining: Option<Duration>,
    },
    /// They do not count: the node is a replica.
    Replica,
    /// They do not count: the node is the same server as another one, or a promoted replica that still carries that one's
    /// marker, until it gets a marker of its own.
    SameServer {
        /// Which one, counted from 1. It is an earlier one of the list, except for a promoted replica.
        earlier: usize,
    },
    /// They do not count: several servers answer in turn at the node's address, as behind a proxy that chooses among them.
    SeveralServers,
}

/// What a server is in a replication.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::Role;
///
/// let replicas = redlock.nodes().into_iter().filter(|node| node.role == Some(Role::Replica));
/// replicas.for_each(|node| println!("{} is a replica: give the primary's address", node.address));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It takes writes of its own.
    Primary,
    /// It follows another server.
    Replica,
}

/// Whether a client may use scripts on a server, by its rights and by what the server and anything in between allow.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// use redquorum::Scripts;
///
/// let without = redlock.nodes().into_iter().filter(|node| node.scripts == Some(Scripts::Missing));
/// without.for_each(|node| println!("{} can keep no lock: allow EVALSHA and EVAL", node.address));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scripts {
    /// They may be used.
    Allowed,
    /// They are refused. Locks are extended by `SET … IFEQ` and released by `DELIFEQ` or `DELEX`. Waiters ask again, in no order,
    /// and the node takes no part in fenced locks.
    Replaced,
    /// They are refused, and the server has nothing in their place: it is sent no lock that could not be extended and released.
    Missing,
}

/// What a restart leaves of a server's keys.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::Persistence;
///
/// for node in redlock.nodes() {
///     match &node.persistence {
///         Some(Persistence::AppendOnly { fsync: Some(fsync) }) if &**fsync == "always" => {}
///         _ => println!("{} may forget locks in a restart", node.address),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persistence {
    /// It keeps an append-only file.
    AppendOnly {
        /// When it writes that to disk, where it told: only after `always` nothing is forgotten.
        fsync: Option<Arc<str>>,
    },
    /// It keeps none: snapshots at most, and the keys set after the last one are forgotten.
    Snapshots,
}

/// Every node of a client, in the configured order.
pub(crate) fn of(shared: &Shared) -> Vec<NodeStatus> {
    let now = shared.clock.now();
    let nodes = shared.nodes.iter().enumerate();
    nodes.map(|(index, node)| status(shared, NodeId::new(index), node, now)).collect()
}

fn status(shared: &Shared, id: NodeId, node: &Node, now: Instant) -> NodeStatus {
    let Facts { version, run_id, role, uptime, append_only, fsync, eviction, scripts, .. } =
        shared.node_table.facts(id);
    NodeStatus {
        address: node.address().clone(),
        health: match &*node.state().borrow() {
            State::Connecting => Health::Connecting,
            State::Up => Health::Up,
            State::Suspect => Health::Suspect,
            State::Down(trouble) => Health::Down(trouble.to_string()),
        },
        vote: match shared.node_table.standing(id, now) {
            Standing::CountsFrom(from) if from <= now => NodeVote::Counts,
            standing @ Standing::CountsFrom(_) => NodeVote::TooYoung { remaining: standing.remaining(now) },
            Standing::Replica => NodeVote::Replica,
            Standing::SameAs(earlier) => NodeVote::SameServer { earlier: earlier.index() + 1 },
            Standing::Several => NodeVote::SeveralServers,
        },
        version,
        role: role.map(|role| match role {
            restart::Role::Primary => Role::Primary,
            restart::Role::Replica => Role::Replica,
        }),
        run_id,
        uptime: uptime.map(|(uptime, read)| uptime.saturating_add(now.since(read))),
        persistence: append_only.map(|append_only| match append_only {
            true => Persistence::AppendOnly { fsync },
            false => Persistence::Snapshots,
        }),
        eviction_policy: eviction,
        scripts: scripts.map(|scripts| match scripts {
            ScriptUse::Allowed => Scripts::Allowed,
            ScriptUse::Replaced => Scripts::Replaced,
            ScriptUse::Missing => Scripts::Missing,
        }),
        round_trip: shared.node_table.round_trip(id),
    }
}

impl fmt::Display for NodeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, {}", self.address, self.health, self.vote)?;
        let texts = [
            self.version.as_ref().map(|version| version.to_string()),
            self.role.map(|role| role.to_string()),
            self.uptime.map(|uptime| format!("up for {} s", uptime.as_secs())),
            self.persistence.as_ref().map(|persistence| persistence.to_string()),
            self.eviction_policy.as_ref().map(|policy| policy.to_string()),
            self.scripts.filter(|scripts| *scripts != Scripts::Allowed).map(|scripts| scripts.to_string()),
            self.round_trip.map(|round_trip| format!("answers in {round_trip:.1?}")),
        ];
        texts.iter().flatten().try_for_each(|text| write!(f, ", {text}"))
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting => f.write_str("connecting"),
            Self::Up => f.write_str("up"),
            Self::Suspect => f.write_str("silent"),
            Self::Down(trouble) => write!(f, "down ({trouble})"),
        }
    }
}

impl fmt::Display for NodeVote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counts => f.write_str("votes"),
            Self::TooYoung { remaining: Some(left) } => write!(f, "too young for another {left:.1?}"),
            Self::TooYoung { remaining: None } => f.write_str("too young until it was looked at and marked"),
            Self::Replica => f.write_str("does not vote as a replica"),
            Self::SameServer { earlier } => write!(f, "does not vote as the same server as n{earlier}"),
            Self::SeveralServers => f.write_str("does not vote as several servers answer in turn"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        })
    }
}

impl fmt::Display for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "scripts allowed",
            Self::Replaced => "scripts refused, replaced by commands",
            Self::Missing => "scripts refused",
        })
    }
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AppendOnly { fsync: Some(fsync) } => write!(f, "append-only file, fsync {fsync}"),
            Self::AppendOnly { fsync: None } => f.write_str("append-only file"),
            Self::Snapshots => f.write_str("no append-only file"),
        }
    }
}
