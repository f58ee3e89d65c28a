//! Fenced leases: from the numbers that nodes gave to the token. See [`fencing`](crate::protocol::fencing).

use super::{CallId, Lease, Purpose};
use crate::protocol::fencing::{Carry, Fencing, FencingToken, Retention};
use crate::protocol::message::{NotSent, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::Verdict;
use crate::protocol::time::Instant;

impl Lease {
    /// Makes this a fenced lease, whose holder gets a token that rises from holder to holder. `candidate` is the client's
    /// wall clock in microseconds. Before the first command is polled.
    ///
    /// Where the nodes that grant do not agree on a number, the acquire takes a second round. Validity counts from before
    /// the first one all the same.
    pub fn fenced(mut self, candidate: u64, retention: Retention) -> Self {
        self.fencing = Some(Box::new(Fencing::new(candidate, retention, self.round.started())));
        self
    }

    /// Makes this a fenced lease that has its token already: of a lock that another process held. Before the first command
    /// is polled.
    pub fn carrying(mut self, carry: Carry) -> Self {
        self.fencing = Some(Box::new(Fencing::carrying(carry, self.round.started())));
        self
    }

    /// The token of a fenced lease, once it is held.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing.as_ref().and_then(|fencing| fencing.token())
    }

    /// What goes with everything that keeps or heals the key.
    pub(super) fn carry(&self) -> Option<Carry> {
        self.fencing.as_ref().map(|fencing| fencing.carry())
    }

    /// Takes in the number in an answer before it is weighed: a node whose grant does not count may remember more than those
    /// whose grants do. One that comes after the verdict changes nothing: what Q nodes stand at is enough.
    pub fn see_number(&mut self, call: CallId, reply: &Reply) {
        if let (true, Reply::Fenced(number)) = (self.is_numbering(call), reply)
            && let Some(fencing) = &mut self.fencing
        {
            fencing.seen(*number);
        }
    }

    /// Takes in the number of a grant that counts.
    pub(super) fn note_number(&mut self, node: NodeId, call: CallId, reply: &Reply) {
        let numbering = self.is_numbering(call);
        if let (Reply::Fenced(number), Some(fencing)) = (reply, &mut self.fencing) {
            if numbering { fencing.granted(node, *number) } else { fencing.granted_late(node) }
        }
    }

    /// What the answer to a raise is worth: the lock may be this owner's on a node that granted no claim, by a vote in the queue
    /// that ends long before the validity does.
    pub(super) fn weigh_raise(&self, node: NodeId, reply: Reply) -> Reply {
        let raising = matches!(self.request, Purpose::Raise(_)) && reply.is_granted();
        match &self.fencing {
            Some(fencing) if raising && !fencing.has_claimed(node) => Reply::NotSent(NotSent::NeverWritten),
            _ => reply,
        }
    }

    fn is_numbering(&self, call: CallId) -> bool {
        let acquiring = matches!(self.request, Purpose::Acquire(_));
        acquiring && call == self.call && self.round.verdict() == Verdict::Pending
    }

    /// Whether the granting nodes leave nothing to be raised.
    pub(super) fn is_agreed(&self) -> bool {
        self.fencing.as_ref().is_none_or(|fencing| fencing.is_agreed(self.terms.quorum))
    }

    /// Q nodes stand at the highest number.
    pub(super) fn settle_token(&mut self) {
        if let Some(fencing) = &mut self.fencing {
            fencing.settle();
        }
    }

    /// Asks all nodes to stand at the highest number, where the lock is this owner's.
    pub(super) fn raise(&mut self, now: Instant) {
        match self.fresh_validity(now) {
            Ok(_) => {
                if let Some(carry) = self.carry() {
                    self.begin(Purpose::Raise(carry), now);
                }
            }
            Err(exhausted) => self.fail(exhausted),
        }
    }
}
