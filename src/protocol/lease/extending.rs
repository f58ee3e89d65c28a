//! Extending a held lease, taking one over from another process, healing, and loss: rule 7.

use super::{End, Event, Failure, Lease, NotExtended, Phase, Purpose, Terms};
use crate::protocol::in_doubt::Doubt;
use crate::protocol::message::{Key, Owner, Reply};
use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::round::Verdict;
use crate::protocol::time::Instant;
use crate::protocol::validity::{Ttl, Validity};

impl Lease {
    /// A lease that another process held and handed on, about to be confirmed by an extension of all nodes, with its clock
    /// started at `now`. It is held once Q nodes said, before the moment `before`, that they still carry the owner.
    /// [`Event::Held`] or [`Event::Failed`] follows; nothing is released unless it is abandoned.
    ///
    /// `before` is the end of the old validity. It may be [`Instant::FAR_FUTURE`] only where nothing that sets the owner is
    /// on its way to any node: then a node that carries it has done so ever since it was acquired, and no other holder can
    /// have come between.
    ///
    /// `longest` is the longest life that was ever given to the key.
    pub fn resume(terms: Terms, key: Key, owner: Owner, longest: Ttl, before: Instant, now: Instant) -> Self {
        let mut lease = Self::acquire(terms, key, owner, super::Asking::Claim, now);
        lease.request = Purpose::Resume { before };
        lease.longest = longest.max(terms.ttl);
        lease.doubts.fill(Doubt::named(now, lease.longest));
        lease
    }

    /// Makes this a lease of which a set may still be on its way to any node, from the process that handed it on: this one
    /// will never know of its answer. Before the first command is polled.
    pub fn owed(mut self) -> Self {
        self.doubts.fill(Doubt::owed(self.round.started(), self.longest));
        self
    }

    /// Ends the lease here without a word to any node: another process takes it over.
    pub fn hand_on(&mut self) {
        self.phase = Phase::Over(End::HandedOn);
        self.unsent = NodeSet::EMPTY;
        self.event = None;
    }

    /// The longest life that was ever given to the key.
    pub fn longest(&self) -> Ttl {
        self.longest
    }

    /// Whether every set and claim of this owner was answered, so that none is on its way any more.
    pub fn is_answered(&self) -> bool {
        self.doubts.iter().all(Doubt::is_answered)
    }

    /// Asks all nodes for a longer life of the key. [`Event::Extended`] or [`Event::NotExtended`] follows. An
    /// extension that was started before and has no verdict yet is replaced; its answers change nothing any more.
    ///
    /// A lease past its validity is never extended or revived (rule 7): it is over then, and released.
    pub fn extend(&mut self, ttl: Ttl, now: Instant) {
        match self.phase {
            Phase::Held(validity) if validity.holds_at(now) => {
                self.longest = self.longest.max(ttl);
                self.begin(Purpose::Extend(ttl), now);
            }
            Phase::Over(End::Lost | End::TakenOver) => self.lose(NotExtended::Lost),
            _ => self.lose(NotExtended::Expired),
        }
    }

    pub(super) fn extended(&mut self, ttl: Ttl, now: Instant) {
        let Phase::Held(old) = self.phase else { return };
        // The Q-th answer must be read before the old deadline: afterwards another client may hold the lock on nodes
        // that answered before it did.
        if !old.holds_at(now) {
            return self.lose(NotExtended::Expired);
        }
        let new = Validity::new(self.round.started(), ttl, self.terms.drift);
        let validity = old.max(new).until_at_most(self.limit);
        self.phase = Phase::Held(validity);
        self.event = Some(Event::Extended(validity));
        self.heal(ttl);
    }

    /// Q nodes still carry the owner of a lease that was handed on.
    pub(super) fn resumed(&mut self, before: Instant, now: Instant) {
        let ttl = self.terms.ttl;
        let validity = Validity::new(self.round.started(), ttl, self.terms.drift).until_at_most(self.limit);
        if now >= before || !validity.holds_at(now) {
            self.event = Some(Event::Failed(Failure::Exhausted { remaining: validity.remaining(now) }));
            return;
        }
        self.phase = Phase::Held(validity);
        self.event = Some(Event::Held(validity));
        self.heal(ttl);
    }

    /// Sets the key again where it is missing, now that a quorum was confirmed (rule 7).
    fn heal(&mut self, ttl: Ttl) {
        let votes = self.round.votes().enumerate();
        let mut missing = NodeSet::EMPTY;
        for (index, _) in votes.filter(|(_, vote)| vote.reply == Some(&Reply::Absent)) {
            missing.insert(NodeId::new(index));
        }
        self.request = Purpose::Heal(ttl);
        self.unsent = missing;
    }

    /// An answer after the verdict. Where the extension was confirmed, a key that is missing is set again. Where it was
    /// not, the answers may by now prove the loss.
    pub(super) fn straggler(&mut self, node: NodeId, absent: bool, now: Instant) {
        if !self.validity().is_some_and(|validity| validity.holds_at(now)) {
            return;
        }
        match self.request {
            Purpose::Heal(_) if absent => self.unsent.insert(node),
            Purpose::Extend(_) if self.round.verdict() == Verdict::OutOfReach && self.is_denied() => {
                self.lose(NotExtended::Lost);
            }
            _ => {}
        }
    }

    pub(super) fn not_extended(&mut self, now: Instant) {
        let Phase::Held(old) = self.phase else { return };
        if !old.holds_at(now) {
            self.lose(NotExtended::Expired);
        } else if self.is_denied() {
            self.lose(NotExtended::Lost);
        } else {
            self.event = Some(Event::NotExtended(NotExtended::Unconfirmed));
        }
    }

    fn lose(&mut self, reason: NotExtended) {
        let end = match (reason, self.phase) {
            (NotExtended::Lost, _) if self.looks_taken_over() => End::TakenOver,
            (NotExtended::Lost, _) => End::Lost,
            (_, Phase::Held(validity)) if validity.until() >= self.limit => End::MaxHoldReached,
            _ => End::Expired,
        };
        if self.end().is_none() {
            self.start_undo(end);
        }
        self.event = Some(Event::NotExtended(reason));
    }
}
