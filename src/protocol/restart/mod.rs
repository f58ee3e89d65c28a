//! The restart delay: how old a node's memory is, and what its grants are worth while it may have forgotten a lock.
//!
//! A node that lost its memory may grant a lock that somebody else still holds. So its grants do not count in acquire
//! rounds until every lock that it may have forgotten has ended: until its *memory age*, the time since which it has
//! certainly forgotten nothing, exceeds the longest TTL in use. [`Memory`] draws that age from readings of the node;
//! [`Standing`] is what follows for its grants. Which commands a reading takes is the node's business.

use std::fmt;
use std::time::Duration;

use crate::protocol::message::{Reply, Uncounted};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};

/// Servers tell their uptime in whole seconds, cut from two clock readings.
const UPTIME_ROUNDING: Duration = Duration::from_secs(1);

/// A node's clock that gained or lost more than this between two readings, beyond drift, was set.
const CLOCK_JUMP: Duration = Duration::from_secs(1);

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
    /// What is asked on a new connection, which may lead to another run of the server.
    pub run: Option<Run>,
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
        let marker = MarkerSeen::Unread;
        Self { sent, received, time: None, replication: None, role: None, marker, run: None }
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
            Self::Undated => "it does not tell whether it was restarted",
            Self::RoleChanged => "its role or replication history changed",
            Self::MarkerLost => "its marker is gone",
            Self::MarkerChanged => "its marker is another",
            Self::ClockSet => "its clock was set",
        })
    }
}

/// What is known of the memory behind one address.
///
/// The memory age is the least of: the uptime less a second; the node's time less its marker's; own time since a
/// restart, a change of role, replication history or marker, or a set clock was noticed. A restart is no evidence where
/// the node writes every change to disk before it answers and still has its marker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    delay: Option<RestartDelay>,
    from: Instant,
    unmarked: bool,
    run: Option<Run>,
    replication: Option<Id>,
    role: Option<Role>,
    marker: Option<Marker>,
    /// The node's time and the own moments around it.
    time: Option<(u64, Instant, Instant)>,
}

impl Memory {
    /// Nothing known yet. Without a delay, every memory is old enough.
    pub fn new(delay: Option<RestartDelay>) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Takes in what the node told. Returns why its grants count later than before, where they do.
    pub fn handle_reading(&mut self, reading: &Reading) -> Option<Evidence> {
        let mut doubts = Doubts { least: None, cause: Evidence::Restarted };
        let same_marker = self.judge_marker(reading, &mut doubts);
        self.judge_run(reading, same_marker, &mut doubts);
        self.judge_clock(reading, &mut doubts);
        let (delay, age) = (self.delay?, doubts.least?);
        let from = reading.received.after(delay.least.saturating_sub(age));
        let later = from > self.from && from > reading.received;
        self.from = self.from.max(from);
        later.then_some(doubts.cause)
    }

    /// Returns whether the marker is the one that was there, or was there before we came.
    fn judge_marker(&mut self, reading: &Reading, doubts: &mut Doubts) -> bool {
        match (self.marker, reading.marker) {
            (_, MarkerSeen::Unread) => {
                self.unmarked = false;
                false
            }
            (known, MarkerSeen::Absent) => {
                if known.is_some() {
                    doubts.add(Duration::ZERO, Evidence::MarkerLost);
                }
                // What follows is judged by its date, and by the moment at which this one was found missing.
                self.marker = None;
                self.unmarked = true;
                false
            }
            (Some(known), MarkerSeen::Found(marker)) if known.id == marker.id => {
                self.unmarked = false;
                true
            }
            (Some(_), MarkerSeen::Found(marker)) => {
                doubts.add(Duration::ZERO, Evidence::MarkerChanged);
                self.marker = Some(marker);
                false
            }
            (None, MarkerSeen::Found(marker)) => {
                // A marker from the node's future, whose clock was put back, dates nothing: then own time counts.
                let age = reading.time.unwrap_or(0).saturating_sub(marker.since);
                doubts.add(Duration::from_micros(age), Evidence::MarkedLately);
                self.marker = Some(marker);
                !std::mem::replace(&mut self.unmarked, false)
            }
        }
    }

    fn judge_run(&mut self, reading: &Reading, same_marker: bool, doubts: &mut Doubts) {
        let changed =
            |known: Option<Id>, told: Option<Id>| known.is_some() && told.is_some() && known != told;
        let mut remembered = false;
        if let Some(run) = reading.run {
            let before = self.run.replace(run);
            // Where there is a history, the run before must have written everything to disk as well.
            let remembers = run.durable && same_marker && before.is_none_or(|before| before.durable);
            let restarted = before.is_some_and(|before| changed(before.id, run.id));
            remembered = restarted && remembers;
            let dated = run.id.is_some() && run.uptime.is_some();
            if restarted && !remembers {
                doubts.add(Duration::ZERO, Evidence::Restarted);
            }
            if !remembers && !dated {
                doubts.add(Duration::ZERO, Evidence::Undated);
            } else if let (Some(uptime), false) = (run.uptime, remembers) {
                doubts.add(uptime.saturating_sub(UPTIME_ROUNDING), Evidence::Young);
            }
        }
        // A restart alone begins another replication history.
        let other_history = changed(self.replication, reading.replication) && !remembered;
        let other_role = self.role.is_some() && reading.role.is_some() && self.role != reading.role;
        if other_history || other_role {
            doubts.add(Duration::ZERO, Evidence::RoleChanged);
        }
        self.replication = reading.replication.or(self.replication);
        self.role = reading.role.or(self.role);
    }

    fn judge_clock(&mut self, reading: &Reading, doubts: &mut Doubts) {
        let Some(time) = reading.time else { return };
        let before = self.time.replace((time, reading.sent, reading.received));
        let (Some((earlier, sent, received)), Some(delay)) = (before, self.delay) else { return };
        let (shortest, longest) = (reading.sent.since(received), reading.received.since(sent));
        let tolerance = CLOCK_JUMP.saturating_add(delay.drift.share(longest));
        let micros = |duration: Duration| i128::try_from(duration.as_micros()).unwrap_or(i128::MAX);
        let went = i128::from(time) - i128::from(earlier);
        let ahead = went > micros(longest.saturating_add(tolerance));
        let behind = went < micros(shortest) - micros(tolerance);
        if ahead || behind {
            doubts.add(Duration::ZERO, Evidence::ClockSet);
        }
    }

    /// What the node's grants are worth.
    pub fn standing(&self) -> Standing {
        if self.role == Some(Role::Replica) {
            return Standing::Replica;
        }
        let unmarked = self.unmarked && self.delay.is_some();
        Standing::CountsFrom(if unmarked { Instant::FAR_FUTURE } else { self.from })
    }
}

/// The least age that the evidence of one reading allows for, and which evidence that is.
struct Doubts {
    least: Option<Duration>,
    cause: Evidence,
}

impl Doubts {
    fn add(&mut self, age: Duration, cause: Evidence) {
        if self.least.is_none_or(|least| age < least) {
            (self.least, self.cause) = (Some(age), cause);
        }
    }
}

/// What a node's grants are worth in acquire rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// They count in rounds that began at this moment or later.
    CountsFrom(Instant),
    /// They do not count: the node is a replica.
    Replica,
    /// They do not count: the node is the same server as an earlier one of the list.
    SameAs(NodeId),
}

impl Standing {
    /// A node about which nothing is in doubt.
    pub const COUNTS: Standing = Standing::CountsFrom(Instant::from_nanos(0));

    /// Why a grant in a round that began at `started` does not count, where it does not. The node executed it later than
    /// that, and its memory was older then.
    pub fn objection(self, started: Instant) -> Option<Uncounted> {
        match self {
            Self::CountsFrom(from) if from <= started => None,
            Self::CountsFrom(until) => Some(Uncounted::TooYoung { until }),
            Self::Replica => Some(Uncounted::Replica),
            Self::SameAs(node) => Some(Uncounted::SameServer(node)),
        }
    }

    /// The vote that an answer is, in an acquire round that began at `started`.
    pub fn weigh(self, reply: Reply, started: Instant) -> Reply {
        match (reply, self.objection(started)) {
            (Reply::Granted | Reply::Fenced(_), Some(why)) => Reply::Uncounted(why),
            (reply, _) => reply,
        }
    }
}

#[cfg(test)]
mod tests;
