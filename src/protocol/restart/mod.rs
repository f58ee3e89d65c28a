//! The restart delay: how old a node's memory is, and what its grants are worth while it may have forgotten a lock.
//!
//! A node that lost its memory may grant a lock that somebody else still holds. So its grants do not count in acquire
//! rounds until every lock that it may have forgotten has ended: until its *memory age*, the time since which it has
//! certainly forgotten nothing, exceeds the longest TTL in use. Which commands a reading takes is the node's business.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `memory` | the memory age, drawn from the readings of one node |
//! | `beat` | what shows that a node did not go back to an older state |
//! | `episode` | which causes of standing aside are changes of their own |
//! | `identity` | which nodes are one server, and which carries another's marker |
//! | `client_clock` | which jumps in time are the client's own |
//! | `standing` | what the grants of a node are worth, and how fresh a look must be |

mod beat;
mod client_clock;
mod episode;
mod identity;
mod memory;
mod standing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use self::client_clock::{ClientClock, Jump, StoodStill};
pub use self::episode::Episode;
pub use self::identity::{Double, Identity, double};
pub use self::memory::Memory;
pub use self::standing::{LOOK_EVERY, LOOKS_LAST, Standing};
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};

/// How old a node's memory must be for its grants to count: delay × (1 + drift) + 2 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestartDelay {
    least: Duration,
    drift: Drift,
}

impl RestartDelay {
    /// `delay` is the longest TTL that anybody uses on these nodes.
    pub fn new(delay: Ttl, drift: Drift) -> Self {
        Self { least: delay.duration().saturating_add(drift.allowance(delay)), drift }
    }

    /// The least memory age of a node that counts.
    pub fn least(self) -> Duration {
        self.least
    }
}

/// What an answer said that names something: equal ids are the same thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id(u64);

impl Id {
    /// The id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use std::hash::{DefaultHasher, Hasher};
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Self(hasher.finish())
    }
}

/// What a node is in a replication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It takes writes of its own.
    Primary,
    /// It follows another server, which may know more.
    Replica,
}

/// The key that names a node and dates its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// Its random id.
    pub id: Id,
    /// The node's time when it was set, in microseconds, or an earlier one since which the memory was whole.
    pub since: u64,
}

/// What a look for the marker found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkerSeen {
    /// It may not be read or not be set: the node's other evidence has to do.
    Unread,
    /// There is none, and there could be one: until it is there, nothing dates the memory.
    Absent,
    /// This one.
    Found(Marker),
}

/// What a node told of itself at one moment; `None` for what it did not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Before the node was asked.
    pub sent: Instant,
    /// After it answered.
    pub received: Instant,
    /// Its time, in microseconds.
    pub time: Option<u64>,
    /// Its replication history.
    pub replication: Option<Id>,
    /// Its role.
    pub role: Option<Role>,
    /// The marker.
    pub marker: MarkerSeen,
    /// What is asked on a new connection, which may lead to another run of the server; on an old connection, the run that
    /// took the place of the known one.
    pub run: Option<Run>,
    /// The replication history that its present one follows on, as told by a promoted replica.
    pub former: Option<Id>,
    /// What it kept of the count of the run that was known before: see [`Memory::handle_beat`].
    pub kept: Option<u64>,
}

/// One run of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// Which one.
    pub id: Option<Id>,
    /// For how long it has been running.
    pub uptime: Option<Duration>,
    /// Whether it certainly writes every change to disk before it answers.
    pub durable: bool,
}

impl Reading {
    /// A reading that tells nothing.
    pub fn nothing(sent: Instant, received: Instant) -> Self {
        Self {
            sent,
            received,
            time: None,
            replication: None,
            role: None,
            marker: MarkerSeen::Unread,
            run: None,
            former: None,
            kept: None,
        }
    }
}

/// Why a node's grants do not count for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// It has not been running for long.
    Young,
    /// Its marker is young.
    MarkedLately,
    /// It was restarted, and may have forgotten.
    Restarted,
    /// It has an older state than it had.
    WentBack,
    /// Another server is in its place.
    Replaced,
    /// It does not tell whether it was restarted.
    Undated,
    /// It became a primary or a replica, or follows another history.
    RoleChanged,
    /// The marker is gone.
    MarkerLost,
    /// The marker is another.
    MarkerChanged,
    /// Its clock was set, which ends keys early or late.
    ClockSet,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Young => "it has not been running for long",
            Self::MarkedLately => "its marker is young",
            Self::Restarted => "it was restarted",
            Self::WentBack => "it went back to an older state",
            Self::Replaced => "another server is in its place",
            Self::Undated => "it does not tell whether it was restarted",
            Self::RoleChanged => "its role or replication history changed",
            Self::MarkerLost => "its marker is gone",
            Self::MarkerChanged => "its marker is another",
            Self::ClockSet => "its clock was set",
        })
    }
}
