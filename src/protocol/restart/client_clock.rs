//! Which jumps in time are the client's own.
//!
//! A client compares the time of each node with its own. A node that jumps alone was set. Nodes that jump ahead together, by
//! the same amount, did not: the client's clock stood still, as in a virtual machine that was paused or restored. Then
//! what the client holds ends sooner than its clock says, and no node is to blame.

use std::time::Duration;

use crate::protocol::per_node::PerNode;
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::time::Instant;

/// Jumps that differ by more are not the same.
const SAME: Duration = Duration::from_secs(1);

/// A node's clock gained so much on the client's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Jump {
    /// How much, at most.
    pub by: Duration,
    /// It may be less by this, since messages take time.
    pub within: Duration,
    /// After this moment of the client's clock.
    pub after: Instant,
    /// Before this one.
    pub before: Instant,
}

impl Jump {
    /// Whether the two may be one event: about as far, and at the same time of the client's clock. Rates that differ add to
    /// what two jumps may differ by.
    fn is_same(self, other: Self) -> bool {
        let tolerance = SAME.saturating_add(self.by.max(other.by) / 50);
        self.by.abs_diff(other.by) <= tolerance && self.after < other.before && other.after < self.before
    }
}

/// The client's clock stood still for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoodStill {
    jump: Jump,
    /// Whether the nodes are not to blame: with one node, nobody can tell.
    clears: bool,
}

impl StoodStill {
    /// For how long.
    pub fn by(self) -> Duration {
        self.jump.by
    }

    /// It may have been less by this.
    pub fn within(self) -> Duration {
        self.jump.within
    }

    /// What a moment that was read before the clock was put forward is on the corrected clock. `None` if it may have been
    /// before or after the clock stood still.
    pub fn on_corrected(self, moment: Instant) -> Option<Instant> {
        if moment <= self.jump.after {
            Some(moment)
        } else if moment >= self.jump.before {
            Some(moment.after(self.jump.by))
        } else {
            None
        }
    }

    /// Whether this is what the jump of a node shows.
    pub fn is_that(self, jump: Jump) -> bool {
        self.jump.is_same(jump)
    }

    /// Whether the nodes that jumped are not to blame.
    pub fn clears(self) -> bool {
        self.clears
    }
}

/// The jumps of all nodes of one client.
#[derive(Clone, Debug)]
pub struct ClientClock {
    quorum: Quorum,
    jumps: PerNode<Option<Jump>>,
    stood: Option<StoodStill>,
}

impl ClientClock {
    /// Nothing has jumped.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, jumps: PerNode::new(quorum.nodes()), stood: None }
    }

    /// A node's clock jumped ahead. Returns whether that makes a majority, once for each time that the client's clock stood
    /// still: it is to be put forward by so much.
    pub fn handle_jump(&mut self, node: NodeId, jump: Jump) -> Option<StoodStill> {
        *self.jumps.get_mut(node.index())? = Some(jump);
        if self.stood.is_some_and(|stood| stood.jump.is_same(jump)) {
            return None;
        }
        let same = || self.jumps.iter().flatten().filter(|other| other.is_same(jump));
        if same().count() < self.quorum.needed() {
            return None;
        }
        // What ends a little too early does no harm.
        let by = same().map(|jump| jump.by).max().unwrap_or(jump.by);
        let after = same().map(|jump| jump.after).max().unwrap_or(jump.after);
        let before = same().map(|jump| jump.before).min().unwrap_or(jump.before);
        let within = same().map(|jump| jump.within).max().unwrap_or(jump.within);
        // Jumps that are the same may differ.
        let least = same().map(|jump| jump.by.saturating_sub(jump.within)).min().unwrap_or(by);
        let within = within.max(by.saturating_sub(least));
        let jump = Jump { by, within, after, before };
        self.stood = Some(StoodStill { jump, clears: self.quorum.nodes() > 1 });
        self.stood
    }

    /// When the client's clock stood still last.
    pub fn stood_still(&self) -> Option<StoodStill> {
        self.stood
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default().after(Duration::from_secs(seconds))
    }

    fn jump(millis: u64, after: u64, before: u64) -> Jump {
        Jump {
            by: Duration::from_millis(millis),
            within: Duration::ZERO,
            after: at(after),
            before: at(before),
        }
    }

    fn clock(nodes: usize) -> ClientClock {
        ClientClock::new(Quorum::of(nodes).unwrap())
    }

    fn handle(clock: &mut ClientClock, node: usize, jump: Jump) -> Option<Duration> {
        clock.handle_jump(NodeId::new(node), jump).map(StoodStill::by)
    }

    /// A majority that jumps by the same amount at the same time is the client's clock: told once, by the largest of the
    /// jumps, and later nodes are explained by it.
    #[test]
    fn a_majority_that_jumps_is_the_clients_clock() {
        let mut clock = clock(5);
        assert_eq!(handle(&mut clock, 0, jump(60_000, 10, 15)), None);
        assert_eq!(handle(&mut clock, 3, jump(60_300, 11, 14)), None);
        assert_eq!(handle(&mut clock, 1, jump(59_900, 12, 16)), Some(Duration::from_millis(60_300)));
        assert_eq!(handle(&mut clock, 2, jump(60_100, 9, 13)), None, "told once");
        let stood = clock.stood_still().unwrap();
        assert_eq!(stood.within(), Duration::from_millis(400), "the least of them may be the right one");
        assert!(stood.is_that(jump(60_100, 9, 13)) && stood.is_that(jump(60_000, 10, 15)) && stood.clears());
        assert_eq!(stood.on_corrected(at(12)), Some(at(12)), "before");
        assert_eq!(stood.on_corrected(at(13)), None);
        assert_eq!(stood.on_corrected(at(14)), Some(at(14).after(stood.by())), "after");
        assert!(!stood.is_that(jump(90_000, 10, 15)) && !stood.is_that(jump(60_000, 20, 25)));
    }

    /// Nodes that jump by different amounts, or at different times, or too few of them, were set.
    #[test]
    fn others_were_set() {
        let mut apart = clock(3);
        assert_eq!(handle(&mut apart, 0, jump(60_000, 10, 15)), None);
        assert_eq!(handle(&mut apart, 1, jump(30_000, 10, 15)), None, "another amount");
        assert_eq!(handle(&mut apart, 2, jump(60_000, 15, 20)), None, "another time");
        assert_eq!(handle(&mut apart, 2, jump(60_000, 14, 20)), Some(Duration::from_secs(60)));
        let mut alone = clock(2);
        assert_eq!(handle(&mut alone, 0, jump(60_000, 10, 15)), None);
        assert_eq!(handle(&mut alone, 0, jump(60_000, 10, 15)), None, "one node counts once");
    }

    /// With one node nobody can tell: what is held ends, and the node is blamed.
    #[test]
    fn a_single_node_is_blamed_as_well() {
        let mut clock = clock(1);
        assert_eq!(handle(&mut clock, 0, jump(60_000, 10, 15)), Some(Duration::from_secs(60)));
        assert!(!clock.stood_still().unwrap().clears());
    }

    /// Twice is twice.
    #[test]
    fn a_clock_may_stand_still_again() {
        let mut clock = clock(2);
        for (after, before) in [(10, 15), (20, 25)] {
            assert_eq!(handle(&mut clock, 0, jump(60_000, after, before)), None);
            assert_eq!(handle(&mut clock, 1, jump(60_000, after, before)), Some(Duration::from_secs(60)));
        }
    }
}
