//! What the grants of a node are worth, and for how long one look at it says so.

use std::time::Duration;

use crate::protocol::message::{Reply, Uncounted};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;

/// A client looks at each of its nodes this often.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What a look shows holds for so long, on a clock that goes on in suspend. Two intervals, so that one late look costs
/// nothing.
pub const LOOKS_LAST: Duration = Duration::from_secs(10);

/// What a node's grants are worth in acquire rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// They count in rounds that began at this moment or later.
    CountsFrom(Instant),
    /// They do not count: the node is a replica.
    Replica,
    /// They do not count: the node is the same server as an earlier one of the list.
    SameAs(NodeId),
    /// They do not count: several servers answer in turn at this address.
    Several,
}

impl Standing {
    /// A node about which nothing is in doubt.
    pub const COUNTS: Standing = Standing::CountsFrom(Instant::from_nanos(0));

    /// A node that is to be looked at before its grants count.
    pub const UNSEEN: Standing = Standing::CountsFrom(Instant::FAR_FUTURE);

    /// How much longer the grants do not count, if time alone is to pass and it is known how much.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        match self {
            Self::CountsFrom(from) if from > now && from != Instant::FAR_FUTURE => Some(from.since(now)),
            _ => None,
        }
    }

    /// What the standing is worth at `now` if the last look began at `looked` and holds for so long: the node may have
    /// forgotten since, and a client that stood still would not know.
    pub fn as_seen(self, looked: Instant, lasts: Duration, now: Instant) -> Self {
        match self {
            Self::CountsFrom(_) if now.since(looked) > lasts => Self::UNSEEN,
            standing => standing,
        }
    }

    /// Why a grant in a round that began at `started` does not count, where it does not. The node executed it later than
    /// that, and its memory was older then.
    pub fn objection(self, started: Instant) -> Option<Uncounted> {
        match self {
            Self::CountsFrom(from) if from <= started => None,
            Self::CountsFrom(until) => Some(Uncounted::TooYoung { until }),
            Self::Replica => Some(Uncounted::Replica),
            Self::SameAs(node) => Some(Uncounted::SameServer(node)),
            Self::Several => Some(Uncounted::SeveralServers),
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
