//! Fenced leases: from the numbers that nodes gave to the token. See [`fencing`](crate::protocol::fencing).

use super::{Lease, Purpose};
use crate::protocol::answer::Answer;
use crate::protocol::fencing::{Carry, Doubted, FencingToken};
use crate::protocol::message::{CallId, NotSent, Reply, Uncounted};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::Verdict;
use crate::protocol::time::Instant;

impl Lease {
    /// The token of a fenced lease, once it is held.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing.as_ref().and_then(|fencing| fencing.token())
    }

    /// What goes with everything that keeps or heals the key.
    pub(super) fn carry(&self) -> Option<Carry> {
        self.fencing.as_ref().map(|fencing| fencing.carry())
    }

    /// Takes in the number in an answer, whether its grant counts or not. One that comes after the verdict changes nothing:
    /// what Q nodes stand at is enough.
    pub(super) fn see_number(&mut self, call: CallId, reply: &Reply) {
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

    /// Whether the number in an answer is believed, if it has one. If it confirms an earlier one, that node's grant is counted now.
    pub(super) fn believes(&mut self, answer: &Answer, reply: &Reply, now: Instant) -> bool {
        let (true, Reply::Fenced(number)) = (self.is_numbering(answer.call), &answer.reply) else {
            return true;
        };
        let Some(fencing) = &mut self.fencing else { return true };
        let grant = Doubted { node: answer.node, number: *number, counts: reply.is_granted() };
        let (believed, confirmed) = fencing.believes(grant, self.terms.quorum);
        if let Some(Doubted { node, number, counts }) = confirmed {
            fencing.seen(number);
            if counts {
                fencing.granted(node, number);
                self.record(node, answer.call, Reply::Granted, now);
            }
        }
        believed
    }

    /// If no node is left that could confirm it, the doubted grant is no vote.
    pub(super) fn give_up_doubted(&mut self, now: Instant) {
        let waits = self.fencing.as_ref().is_some_and(|fencing| fencing.has_doubted());
        if waits && self.round.verdict() == Verdict::Pending && self.round.pending() == 1 {
            self.refuse_doubted(now);
        }
    }

    /// The doubted grant is no vote.
    pub(super) fn refuse_doubted(&mut self, now: Instant) {
        if let Some(node) = self.fencing.as_mut().and_then(|fencing| fencing.take_doubted())
            && matches!(self.request, Purpose::Acquire(_))
        {
            self.count(node, Reply::Uncounted(Uncounted::Implausible), now);
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
