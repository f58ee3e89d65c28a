//! Letting go of a lease: release, undo of what failed, and what is owed where no answer came. Rules 2 to 4.

use super::{End, Event, Failure, Lease, Phase, Purpose, Released};
use crate::protocol::in_doubt::{Debt, Doubt};
use crate::protocol::message::{NotSent, Reply};
use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::round::Verdict;
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::protocol::wait_queue::rank;

impl Lease {
    /// After a failed claim: what is open on the node that had voted, for the waiter who keeps that vote. Not taken, it
    /// is released when the lease is abandoned.
    pub fn surrender(&mut self) -> Option<Doubt> {
        let node = self.voted_by.filter(|_| std::mem::take(&mut self.surrenders))?;
        self.doubts.get(node.index()).copied()
    }

    /// Releases the lease on every node to which a set may have gone. [`Event::Released`] follows. From here on the
    /// lease is not valid (rule 8).
    pub fn release(&mut self, now: Instant) {
        self.event = None;
        self.start_release(now);
    }

    /// Like [`Lease::release`], with nobody left who wants to know: for a dropped future or delay. Nothing is sent
    /// twice, so it may be called in any state.
    pub fn abandon(&mut self, now: Instant) {
        if self.end().is_none() {
            self.start_release(now);
        } else if let (true, Some(node)) = (std::mem::take(&mut self.surrenders), self.voted_by) {
            self.unsent.insert(node);
        }
    }

    /// The undo goes out with the failure, on the same ordered connections as the sets before it.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.start_undo(End::NotAcquired);
        if let Some(node) = self.voted_by {
            self.unsent.remove(node);
            self.surrenders = true;
        }
        self.event = Some(Event::Failed(failure));
    }

    /// Releases everywhere and keeps the votes of the round that failed, which explain why.
    pub(super) fn start_undo(&mut self, end: End) {
        self.phase = Phase::Over(end);
        self.request = Purpose::Undo;
        self.unsent = self.written();
    }

    fn start_release(&mut self, now: Instant) {
        self.phase = Phase::Over(match self.phase {
            Phase::Acquiring => End::NotAcquired,
            Phase::Held(_) => End::Released,
            Phase::Over(end) => end,
        });
        self.begin(Purpose::Release, now);
        self.unsent = self.written();
        for node in self.terms.quorum.all().filter(|node| !self.unsent.contains(*node)) {
            self.round.record(node, Reply::NotSent(NotSent::NeverWritten), now);
        }
        if self.round.verdict() != Verdict::Pending {
            self.decided(now);
        }
    }

    /// Where a set may have gone (rule 3).
    fn written(&self) -> NodeSet {
        let mut written = NodeSet::EMPTY;
        for node in self.terms.quorum.all() {
            if self.doubts[node.index()].is_written() {
                written.insert(node);
            }
        }
        written
    }

    pub(super) fn debt(&self, node: NodeId) -> Option<Debt> {
        let doubt = *self.doubts.get(node.index())?;
        if doubt.is_clear() {
            return None;
        }
        let debt = Debt::new(node, self.key.clone(), self.owner, doubt, self.longest, self.terms.drift);
        let queues = self.queues.filter(|queues| queues.nodes.contains(node));
        Some(match queues {
            Some(queues) => debt.in_queue(queues.client, self.hand_over()),
            None => debt,
        })
    }

    pub(super) fn hand_over(&self) -> Ttl {
        rank::hand_over(self.round_trip, self.terms.ttl)
    }

    pub(super) fn released(&self, verdict: Verdict) -> Released {
        if verdict == Verdict::Reached {
            Released::Confirmed
        } else if self.is_denied() {
            if self.looks_taken_over() { Released::TakenOver } else { Released::Gone }
        } else {
            Released::Unconfirmed
        }
    }

    /// Whether so many nodes do not carry our owner that no quorum does.
    pub(super) fn is_denied(&self) -> bool {
        self.terms.quorum.nodes() - self.round.denied() < self.terms.quorum.needed()
    }

    /// A round ends with the vote that decides it, so a new holder may be seen on a few nodes only: it is one if it is on
    /// most of those that answered "not yours".
    pub(super) fn looks_taken_over(&self) -> bool {
        2 * self.round.held() > self.round.denied()
    }
}
