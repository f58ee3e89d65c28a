//! What comes back from a node: its answer, or why there is none.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::fencing::FencingToken;
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;

use super::Owner;

/// How one operation ended on one node: its vote, where votes are counted (rule 5).
///
/// In doubt it is [`Reply::Unknown`], which is never counted as a grant and never taken for "did not happen".
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The node did what was asked: set, extended, raised or deleted.
    Granted,
    /// The same for a fenced claim, after which the key's counter stands at this number.
    Fenced(FencingToken),
    /// The node did what was asked, but its grant does not count in this round.
    Uncounted(Uncounted),
    /// The key's fencing counter is at its end, or what stands in its place is none (fenced claim); nothing was changed.
    CounterExhausted,
    /// The key carries somebody else's value; nothing was changed.
    Held(Holder),
    /// There is no such key (extend, release).
    Absent,
    /// The key is absent or somebody else's; the server did not say which (native compare-and-delete).
    NotOurs,
    /// The key was given to the first in the queue in this owner's place (hand over): as good as deleted.
    HandedOver,
    /// The node's vote for the length of a hand-over (queue). Never counted as a grant: it must be claimed (rule 1).
    Voted,
    /// What became of each lease, in the order of the request (extend all).
    Each(Arc<[Reply]>),
    /// In queue (queue).
    Queued(Place),
    /// Too many wait in the queue already (queue).
    QueueFull,
    /// What there is (inspect).
    Found(Found),
    /// The server said no *before* executing.
    Refused(ServerMessage),
    /// Nothing was written to the node.
    NotSent(NotSent),
    /// It was sent, and no usable answer came back.
    Unknown(Unknown),
}

impl Reply {
    /// Whether the node itself said so.
    pub fn is_an_answer(&self) -> bool {
        !matches!(self, Self::NotSent(_) | Self::Unknown(_))
    }

    /// Whether, as the answer to a release, it says that the node has executed it.
    pub fn answers_release(&self) -> bool {
        matches!(self, Self::Granted | Self::HandedOver) || self.denies_ownership()
    }

    /// Whether the node did what was asked.
    pub fn is_granted(&self) -> bool {
        matches!(self, Self::Granted | Self::Fenced(_))
    }

    /// Whether the node certainly does not carry our owner now.
    pub fn denies_ownership(&self) -> bool {
        matches!(self, Self::Held(_) | Self::Absent | Self::NotOurs)
    }
}

/// Why a grant does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uncounted {
    /// The node may have forgotten a lock that is still held, until then at the latest.
    TooYoung {
        /// From then on it counts; the end of time where that is not known.
        until: Instant,
    },
    /// The node is a replica.
    Replica,
    /// The node is the same server as this earlier one.
    SameServer(NodeId),
    /// Several servers answer in turn at the node's address.
    SeveralServers,
    /// The key's fencing counter there is ahead of every clock, and of the other nodes' counters.
    Implausible,
}

/// A place in the queue for a key, as its node tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// How many stand before, the dead included that nobody has noticed yet.
    pub before: u32,
    /// The place for good: given back to the same node, it restores the place.
    pub score: u64,
    /// Whether the node had dropped the entry and took it back at its old place, or never had it.
    pub entered: bool,
    /// Who holds the key, and how much longer; nobody where the key is free but somebody live stands before.
    pub holder: Option<Holder>,
}

/// What one node knows of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Who holds it, and how much longer.
    pub holder: Option<Holder>,
    /// How many wait in the queue.
    pub waiting: u32,
}

/// What a server or the network said, fit to be shown: one queue of bounded length, without secrets. It may repeat the
/// key and the owner, which servers quote in some errors.
pub type ServerMessage = Arc<str>;

/// Who holds a key on one node, as far as the reply told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The value found.
    pub value: HolderValue,
    /// What is left of the key's life, where the operation told. `None` also for a key that never expires.
    pub remaining: Option<Duration>,
}

impl Holder {
    /// Somebody, with nothing else known.
    pub const UNNAMED: Holder = Holder { value: HolderValue::Unnamed, remaining: None };
}

/// The value found under a held key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HolderValue {
    /// An owner of this client's form.
    Owner(Owner),
    /// Another client's value, cut to 64 bytes.
    Foreign(Arc<[u8]>),
    /// The key is of another type: an application's data, not a lock.
    NotALock,
    /// The server did not say.
    Unnamed,
}

impl HolderValue {
    /// Reads the value found under a key.
    pub fn read(value: &[u8]) -> Self {
        const KEPT: usize = 64;
        match Owner::from_hex(value) {
            Some(owner) => Self::Owner(owner),
            None => Self::Foreign(value[..value.len().min(KEPT)].into()),
        }
    }
}

impl fmt::Display for HolderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(owner) => fmt::Display::fmt(owner, f),
            Self::Foreign(value) => write!(f, "\"{}\"", value.escape_ascii()),
            Self::NotALock => f.write_str("data that is no lock"),
            Self::Unnamed => f.write_str("another client"),
        }
    }
}

/// Why nothing was written to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotSent {
    /// There is no connection; the last trouble with it, if any.
    Down(ServerMessage),
    /// The node has been silent for some time; one probe watches it.
    Suspect,
    /// Too much work is waiting for the node already.
    Backlog,
    /// The client is closed.
    Closed,
    /// There was nothing to release: no set of this lease ever went there.
    NeverWritten,
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(why) => write!(f, "not connected ({why})"),
            Self::Suspect => f.write_str("silent for some time, not asked"),
            Self::Backlog => f.write_str("too many requests waiting, not asked"),
            Self::Closed => f.write_str("client closed, not asked"),
            Self::NeverWritten => f.write_str("never asked for this lock, nothing to release"),
        }
    }
}

/// Why the outcome of something sent is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unknown {
    /// No answer within the reply timeout.
    Timeout(Duration),
    /// The connection ended before the answer; the trouble with it.
    ConnectionLost(ServerMessage),
    /// The server answered with an error that does not prove that nothing was executed.
    Error(ServerMessage),
    /// The server answered with something that is no answer to this operation.
    Garbled(ServerMessage),
    /// The client was closed or dropped before the answer.
    Closed,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(after) => write!(f, "no answer within {after:.1?}"),
            Self::ConnectionLost(why) => write!(f, "connection lost before the answer ({why})"),
            Self::Error(message) => write!(f, "error, perhaps after executing: {message}"),
            Self::Garbled(what) => write!(f, "unusable answer: {what}"),
            Self::Closed => f.write_str("client closed before the answer"),
        }
    }
}
