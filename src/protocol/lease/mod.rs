//! One lease: our side of one lock's life, from the first round to its end.
//!
//! Knows every decision between "acquire" and "released": which node is sent what, when a round is decided, how long
//! the holder may act, what an undo has to reach. It knows no clock, no connection and no task.
//!
//! # Contract
//!
//! Mutate once, then drain: after each `handle_*`, [`Lease::extend`], [`Lease::release`] or [`Lease::abandon`], take
//! [`Lease::poll_send`] until it is empty (reporting each with [`Lease::handle_sent`]), then [`Lease::poll_event`], and
//! wait until [`Lease::poll_timeout`] or the next reply.
//!
//! Upholds rules 1 to 7 of the design.

mod extending;
mod fenced;
mod patience;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::protocol::answer::Answer;
use crate::protocol::fencing::{Carry, Fence, Fencing};
use crate::protocol::in_doubt::{Debt, Doubt};
use crate::protocol::lease::patience::Patience;
use crate::protocol::message::{CallId, ConnectionId, Key, NotSent, Operation, Owner, Reply};
use crate::protocol::per_node::PerNode;
use crate::protocol::quorum::{NodeId, NodeSet, Quorum};
use crate::protocol::round::{Round, Verdict, Vote};
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl, Validity};
use crate::protocol::wait_queue::rank::{self, QueueNodes};
use crate::protocol::wait_queue::waiter::QueueVote;

/// What a lease is held to: the numbers of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The nodes and their majority.
    pub quorum: Quorum,
    /// The life given to the key.
    pub ttl: Ttl,
    /// The allowance for clocks.
    pub drift: Drift,
    /// Less validity than this after an acquire is no lock.
    pub min_validity: Duration,
    /// How long one round waits for answers.
    pub reply_timeout: Duration,
}

/// How the votes of an acquire are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// One plain command per node: the fast path, where nobody is expected to hold the key.
    Set,
    /// A script that also tells the holder's remaining life: the contended path.
    Claim,
}

/// One operation to be handed to one node, now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToSend {
    /// Where to.
    pub node: NodeId,
    /// Names the round that the call belongs to, within its lease: given back with its answer.
    pub call: CallId,
    /// What to send.
    pub operation: Operation,
    /// For a release: what is owed if its answer does not settle it. It travels with the command, so that the duty
    /// outlives the lease.
    pub debt: Option<Debt>,
}

/// What a lease may be given beside its terms, before its first command. Each of them is optional.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The lease ends after this time, counted from the start of its first round, however often it is extended.
    pub longest: Option<Duration>,
    /// Where the wait queue for the key may be kept: there, releases hand over.
    pub queues: Option<QueueNodes>,
    /// Makes this the claim of a waiter, behind which a node's vote stands. If the claim fails, the undo spares that node:
    /// the vote there is the waiter's, see [`Lease::surrender`].
    pub vote: Option<QueueVote>,
    /// Makes this a fenced lease, whose holder has a token that rises from holder to holder: one that is to be made
    /// ([`Fence::Advance`]), or one that it has already ([`Fence::Carry`]). If the nodes that grant do not agree on a
    /// number, the acquire takes a second round. Validity counts from before the first one all the same.
    pub fence: Option<Fence>,
    /// The highest number that clocks explain, see [`most_expected`](crate::protocol::fencing::most_expected).
    pub expected: Option<u64>,
}

/// What is known of a lease that another process held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The longest life that was ever given to the key.
    pub longest: Ttl,
    /// The end of the old validity. It may be [`Instant::FAR_FUTURE`] only if nothing that sets the owner is on its way to
    /// any node: then a node that carries the owner has done so ever since it was acquired, and no other holder can have
    /// come between.
    pub before: Instant,
    /// Whether a set may still be on its way to any node, from the process that handed the lease on. This one will never
    /// know of its answer.
    pub owed: bool,
}

/// The calls of an undo: they belong to no round, since the votes of the round that failed are its report. Their debts
/// see to their outcome.
const UNDO: CallId = CallId(u64::MAX);

/// What happened to a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Acquired: the holder may act until then.
    Held(Validity),
    /// Not acquired. What was set is being undone; this lease is over.
    Failed(Failure),
    /// Extended: the holder may act until then.
    Extended(Validity),
    /// Not extended.
    NotExtended(NotExtended),
    /// Released, or found gone.
    Released(Released),
}

/// Why an acquire failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Somebody else holds the lock, or contenders split the votes.
    Contended,
    /// Too few nodes answered.
    Unavailable,
    /// Enough nodes granted, or still may, but too few of them count: the others may have forgotten a lock.
    TooYoung {
        /// When enough of them count, as far as they answered; the end of time where that is not known.
        until: Instant,
    },
    /// Enough nodes granted, but so late that less than the minimum validity was left.
    Exhausted {
        /// What was left.
        remaining: Duration,
    },
}

/// Why an extension failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotExtended {
    /// Too few nodes confirmed. The old validity stands; trying again within it is right.
    Unconfirmed,
    /// So many nodes do not carry our owner any more that no quorum does. The lease is over.
    Lost,
    /// The validity ended before a quorum had confirmed. The lease is over.
    Expired,
}

/// How a release ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// Q nodes deleted our key.
    Confirmed,
    /// The key was gone already.
    Gone,
    /// Another owner holds the key on most of the nodes that no longer carry ours.
    TakenOver,
    /// Too few nodes answered. The rest goes on as debts.
    Unconfirmed,
}

/// Why a lease is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was never held.
    NotAcquired,
    /// Released or abandoned.
    Released,
    /// Its validity ended before an extension was confirmed.
    Expired,
    /// No quorum carries its owner any more.
    Lost,
    /// No quorum carries its owner any more, and most of those that do not, carry another's.
    TakenOver,
    /// It was held for as long as it was to be held at most.
    MaxHoldReached,
    /// Another process takes it over.
    HandedOn,
}

/// Which operation the current round carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Acquire(Asking),
    /// All nodes that granted are lifted to the highest number among them.
    Raise(Carry),
    /// To be confirmed before this moment.
    Resume {
        before: Instant,
    },
    Extend {
        asked: Ttl,
        /// What the nodes are asked for.
        sent: Ttl,
    },
    Heal(Ttl),
    Release,
    Undo,
}

/// Where the lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Acquiring,
    Held(Validity),
    /// A release or undo has been started; the owner is never set again (rule 2).
    Over(End),
}

/// Our side of one lock's life. See the module's contract.
#[derive(Debug)]
pub struct Lease {
    terms: Terms,
    key: Key,
    owner: Owner,
    phase: Phase,
    request: Purpose,
    call: CallId,
    round: Round,
    /// Whom the current request still has to be sent to.
    unsent: NodeSet,
    /// The longest TTL that was ever sent: how long a debt may have to live.
    longest: Ttl,
    doubts: PerNode<Doubt>,
    event: Option<Event>,
    /// When it ends even if it is extended.
    limit: Instant,
    /// Where a release hands over.
    queues: Option<QueueNodes>,
    /// The worst round trip of a granting node: what a hand-over has to allow for.
    round_trip: Duration,
    /// The node whose vote stands behind a claim.
    voted_by: Option<NodeId>,
    /// The claim failed, and what is open on that node is the waiter's, as soon as it takes it.
    surrenders: bool,
    patience: Option<Box<Patience>>,
    fencing: Option<Box<Fencing>>,
}

impl Lease {
    /// A lease that is about to be acquired, with its clock started at `now` (rule 1) and an `owner` that was never
    /// sent before (rule 2).
    pub fn acquire(
        terms: Terms,
        key: Key,
        owner: Owner,
        asking: Asking,
        options: Options,
        now: Instant,
    ) -> Self {
        let mut doubts = PerNode::<Doubt>::new(terms.quorum.nodes());
        let voted = options.vote.and_then(|vote| Some((vote, doubts.get_mut(vote.node.index())?)));
        let voted_by = voted.map(|(vote, own)| {
            *own = vote.doubt;
            vote.node
        });
        let deadline = now.after(terms.reply_timeout);
        let patient = options.vote.filter(|vote| vote.patient);
        Self {
            terms,
            key,
            owner,
            phase: Phase::Acquiring,
            request: Purpose::Acquire(asking),
            call: CallId(0),
            round: Round::new(terms.quorum, now),
            unsent: terms.quorum.all(),
            longest: terms.ttl,
            doubts,
            event: None,
            limit: options.longest.map_or(Instant::FAR_FUTURE, |longest| now.after(longest)),
            queues: options.queues,
            round_trip: Duration::ZERO,
            voted_by,
            surrenders: false,
            patience: patient.map(|_| Box::new(Patience::new(terms.quorum, now, deadline))),
            fencing: options.fence.map(|fence| Box::new(Fencing::new(fence, options.expected, now))),
        }
    }

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

    /// The next call to make. Report each with [`Lease::handle_sent`] before the next.
    pub fn poll_send(&mut self) -> Option<ToSend> {
        let node = self.next_unsent()?;
        let (key, owner) = (self.key.clone(), self.owner);
        let (ttl, carry) = (self.terms.ttl, self.carry());
        let operation = match self.request {
            Purpose::Acquire(asking) => match self.fencing.as_ref().map(|fencing| fencing.advance()) {
                None if asking == Asking::Set || self.is_expected_free(node) => {
                    Operation::Set { key, owner, ttl }
                }
                fence => Operation::Claim { key, owner, ttl, fence },
            },
            Purpose::Raise(carry) => Operation::Raise { key, owner, carry },
            Purpose::Resume { .. } => Operation::Extend { key, owner, ttl, carry },
            Purpose::Extend { sent: ttl, .. } => Operation::Extend { key, owner, ttl, carry },
            Purpose::Heal(ttl) => Operation::Claim { key, owner, ttl, fence: carry.map(Fence::Carry) },
            Purpose::Release | Purpose::Undo => {
                match self.queues.filter(|queues| queues.nodes.contains(node)) {
                    Some(QueueNodes { client, .. }) => {
                        Operation::HandOver { key, owner, client, hand_over: self.hand_over() }
                    }
                    None => Operation::Release { key, owner },
                }
            }
        };
        let (call, debt) = match self.request {
            Purpose::Release => (self.call, self.debt(node)),
            Purpose::Undo => (UNDO, self.debt(node)),
            _ => (self.call, None),
        };
        Some(ToSend { node, call, operation, debt })
    }

    /// Whether a patient claim is about to ask this node for the first time, which has just been released: a plain set is
    /// quicker there than a script. Where it is refused after all, the claim that follows tells of the holder.
    fn is_expected_free(&self, node: NodeId) -> bool {
        self.patience.is_some() && !self.doubts.get(node.index()).is_some_and(Doubt::is_written)
    }

    fn next_unsent(&mut self) -> Option<NodeId> {
        // The order matters where somebody waits: to hand over, and to take over.
        let ordered = self.voted_by.is_some() || matches!(self.request, Purpose::Release | Purpose::Undo);
        let Some(queues) = self.queues.filter(|_| ordered) else { return self.unsent.pop() };
        let node = queues.next(self.unsent)?;
        self.unsent.remove(node);
        Some(node)
    }

    /// What became of a call at the node's door: on which connection it went, or why it did not.
    pub fn handle_sent(
        &mut self,
        node: NodeId,
        call: CallId,
        admitted: Result<ConnectionId, NotSent>,
        now: Instant,
    ) {
        let connection = match admitted {
            Ok(connection) => connection,
            Err(reason) => return self.record(node, call, Reply::NotSent(reason), now),
        };
        let Some(doubt) = self.doubts.get_mut(node.index()) else { return };
        match self.request {
            Purpose::Acquire(_) => doubt.wrote(connection, now, self.terms.ttl),
            Purpose::Heal(ttl) => doubt.wrote(connection, now, ttl),
            Purpose::Resume { .. } => doubt.lengthened(now, self.terms.ttl),
            Purpose::Extend { sent, .. } => doubt.lengthened(now, sent),
            Purpose::Raise(_) | Purpose::Release | Purpose::Undo => {}
        }
    }

    /// The vote that an answer is in the current round: a grant to a set or claim that does not count is no grant for an
    /// acquire. For an extension it is as good as any, which only asks whether the key is still there.
    pub fn weighed(&self, answer: &Answer) -> Reply {
        // A token, like a lock, must not stand on a node that is another node's double, or that may not count.
        let weighs = answer.creates || matches!(self.request, Purpose::Raise(_));
        let reply = answer.reply.clone();
        if weighs { answer.standing.weigh(reply, self.round.started()) } else { reply }
    }

    /// The answer to a call, of this round or an earlier one, as it is read at `now`.
    pub fn handle_answer(&mut self, answer: Answer, now: Instant) {
        let reply = self.weighed(&answer);
        let Answer { node, call, connection, creates, .. } = answer;
        if let (true, Some(doubt)) = (creates, self.doubts.get_mut(node.index())) {
            doubt.answered(connection, &reply);
        }
        if self.believes(&answer, &reply, now) {
            // Before it is weighed: a node whose grant does not count may remember more than those whose grants do.
            self.see_number(call, &answer.reply);
            self.note_number(node, call, &reply);
        } else if reply.is_granted() {
            return self.give_up_doubted(now);
        }
        self.record(node, call, reply, now);
    }

    /// The moment of [`Lease::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.round.verdict() == Verdict::Pending {
            while let Some(node) = self.patience.as_mut().and_then(|patience| patience.poll_again(now)) {
                self.unsent.insert(node);
            }
            while let Some((node, refusal)) =
                self.patience.as_mut().and_then(|patience| patience.poll_final(now))
            {
                self.count(node, refusal, now);
            }
        }
        if self.reply_deadline().is_some_and(|deadline| deadline <= now) {
            self.refuse_doubted(now);
            if self.round.expire(now) {
                self.decided(now);
            }
        }
    }

    /// When the current round stops waiting for answers, or asks a node again; `None` once it is decided.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.reply_deadline()?;
        let again = self.patience.as_ref().and_then(|patience| patience.poll_timeout());
        Some(again.map_or(deadline, |again| again.min(deadline)))
    }

    fn reply_deadline(&self) -> Option<Instant> {
        let waiting = self.round.verdict() == Verdict::Pending;
        waiting.then(|| self.round.started().after(self.terms.reply_timeout))
    }

    /// What happened, once.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Until when the holder may act; `None` before the lock is held and after it is over.
    pub fn validity(&self) -> Option<Validity> {
        match self.phase {
            Phase::Held(validity) => Some(validity),
            _ => None,
        }
    }

    /// When the lease ends even if it is extended; [`Instant::FAR_FUTURE`] where it does not.
    pub fn limit(&self) -> Instant {
        self.limit
    }

    /// Why the lease is over; `None` while it is being acquired or held.
    pub fn end(&self) -> Option<End> {
        match self.phase {
            Phase::Over(end) => Some(end),
            _ => None,
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The owner of this lease.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The votes of the current round, in the order of the nodes.
    pub fn votes(&self) -> impl Iterator<Item = Vote<'_>> {
        self.round.votes()
    }

    /// The name of the current round's calls.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// The current round.
    pub fn round(&self) -> &Round {
        &self.round
    }

    fn begin(&mut self, request: Purpose, now: Instant) {
        self.request = request;
        self.call = CallId(self.call.0 + 1);
        self.unsent = self.terms.quorum.all();
        self.event = None;
        self.patience = None;
        self.round.restart(now);
    }

    fn record(&mut self, node: NodeId, call: CallId, reply: Reply, now: Instant) {
        if call != self.call {
            return;
        }
        // The key was taken from us, which is what was asked; to whom it went is not this lease's business.
        let reply = if reply == Reply::HandedOver { Reply::Granted } else { reply };
        let reply = self.weigh_raise(node, reply);
        let reply = match &mut self.patience {
            Some(patience) if self.round.verdict() == Verdict::Pending => patience.take(node, reply, now),
            _ => Some(reply),
        };
        if let Some(reply) = reply {
            self.count(node, reply, now);
        }
        self.give_up_doubted(now);
    }

    fn count(&mut self, node: NodeId, reply: Reply, now: Instant) {
        let absent = reply == Reply::Absent;
        if self.round.record(node, reply, now) {
            self.decided(now);
        } else {
            self.straggler(node, absent, now);
        }
    }

    fn decided(&mut self, now: Instant) {
        match (self.request, self.round.verdict()) {
            (_, Verdict::Pending) | (Purpose::Heal(_) | Purpose::Undo, _) => {}
            (Purpose::Acquire(_), Verdict::Reached) if !self.is_agreed() => self.raise(now),
            (Purpose::Acquire(_) | Purpose::Raise(_), Verdict::Reached) => self.acquired(now),
            (Purpose::Acquire(_) | Purpose::Raise(_), Verdict::OutOfReach) => self.fail(self.refusal()),
            (Purpose::Resume { before }, Verdict::Reached) => self.resumed(before, now),
            (Purpose::Resume { .. }, Verdict::OutOfReach) => {
                let lost = self.is_denied();
                self.event =
                    Some(Event::Failed(if lost { Failure::Contended } else { Failure::Unavailable }));
            }
            (Purpose::Extend { asked, sent }, Verdict::Reached) => self.extended(asked, sent, now),
            (Purpose::Extend { .. }, Verdict::OutOfReach) => self.not_extended(now),
            (Purpose::Release, verdict) => self.event = Some(Event::Released(self.released(verdict))),
        }
    }

    /// What stands in the way of an acquire.
    fn refusal(&self) -> Failure {
        let round = &self.round;
        match round.guarded_until() {
            Some(until) if round.is_young_only() => Failure::TooYoung { until },
            _ if round.is_contention() => Failure::Contended,
            Some(until) if round.pending() > 0 => Failure::TooYoung { until },
            _ => Failure::Unavailable,
        }
    }

    /// Q nodes granted, and the last needed reply has been read: validity is counted and checked only now (rule 1).
    fn acquired(&mut self, now: Instant) {
        let validity = match self.fresh_validity(now) {
            Ok(validity) => validity,
            Err(exhausted) => return self.fail(exhausted),
        };
        self.settle_token();
        let granted = self.round.votes().filter(|vote| vote.reply == Some(&Reply::Granted));
        self.round_trip = granted.map(|vote| vote.elapsed).max().unwrap_or_default();
        self.phase = Phase::Held(validity);
        self.event = Some(Event::Held(validity));
    }

    /// What an acquire is worth, counted from before its first command.
    fn fresh_validity(&self, now: Instant) -> Result<Validity, Failure> {
        let started = self.fencing.as_ref().map_or(self.round.started(), |fencing| fencing.started());
        let validity = Validity::new(started, self.terms.ttl, self.terms.drift).until_at_most(self.limit);
        let remaining = validity.remaining(now);
        if remaining < self.terms.min_validity || remaining.is_zero() {
            return Err(Failure::Exhausted { remaining });
        }
        Ok(validity)
    }

    /// The undo goes out with the failure, on the same ordered connections as the sets before it.
    fn fail(&mut self, failure: Failure) {
        self.start_undo(End::NotAcquired);
        if let Some(node) = self.voted_by {
            self.unsent.remove(node);
            self.surrenders = true;
        }
        self.event = Some(Event::Failed(failure));
    }

    /// Releases everywhere and keeps the votes of the round that failed, which explain why.
    fn start_undo(&mut self, end: End) {
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

    fn debt(&self, node: NodeId) -> Option<Debt> {
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

    fn hand_over(&self) -> Ttl {
        rank::hand_over(self.round_trip, self.terms.ttl)
    }

    fn released(&self, verdict: Verdict) -> Released {
        if verdict == Verdict::Reached {
            Released::Confirmed
        } else if self.is_denied() {
            if self.looks_taken_over() { Released::TakenOver } else { Released::Gone }
        } else {
            Released::Unconfirmed
        }
    }

    /// Whether so many nodes do not carry our owner that no quorum does.
    fn is_denied(&self) -> bool {
        self.terms.quorum.nodes() - self.round.denied() < self.terms.quorum.needed()
    }

    /// A round ends with the vote that decides it, so a new holder may be seen on a few nodes only: it is one if it is on
    /// most of those that answered "not yours".
    fn looks_taken_over(&self) -> bool {
        2 * self.round.held() > self.round.denied()
    }
}
