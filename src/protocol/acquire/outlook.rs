//! When a quorum of nodes counts again, as far as is known of their memories.

use crate::protocol::quorum::Quorum;
use crate::protocol::restart::Standing;
use crate::protocol::time::Instant;

/// When a quorum of nodes counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// Now, as far as the restart delay is concerned; or too few nodes are connected to tell, which asking shows best.
    Open,
    /// At this moment: all nodes are connected, and time is all that is missing.
    Surely(Instant),
    /// Later, and at what moment depends on nodes that are away.
    Perhaps,
}

impl Outlook {
    /// The outlook at `now`, from what the grants of each connected node are worth.
    pub fn of(quorum: Quorum, connected: impl Iterator<Item = Standing>, now: Instant) -> Self {
        let from = connected.filter_map(|standing| match standing {
            Standing::CountsFrom(from) => Some(from),
            Standing::Replica | Standing::SameAs(_) => None,
        });
        let mut from: Vec<_> = from.collect();
        from.sort_unstable();
        let all = from.len() == quorum.nodes();
        match from.get(quorum.needed() - 1) {
            None => Self::Open,
            Some(from) if *from <= now => Self::Open,
            Some(from) if all && *from != Instant::FAR_FUTURE => Self::Surely(*from),
            Some(_) => Self::Perhaps,
        }
    }
}
