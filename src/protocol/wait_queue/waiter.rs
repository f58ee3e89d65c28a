//! One waiter in the queue for a key: entering, looking, being woken, claiming, moving on, leaving.
//!
//! Knows at which node it stands, under which owner, and what is open there. It claims nothing itself: it says *claim
//! now*, and is told how that went. It knows no clock, no connection and no randomness: owners are supplied.
//!
//! # Contract
//!
//! Mutate once, then drain: after each `handle_*`, [`Waiter::supply`], [`Waiter::claim_failed`] or [`Waiter::give_up`],
//! supply owners while [`Waiter::wants_owner`], take [`Waiter::poll_send`] until it is empty (reporting each with
//! [`Waiter::handle_sent`]), then [`Waiter::poll_event`], and wait until [`Waiter::poll_timeout`] or the next reply.
//!
//! Upholds rules 2 to 4 for what it sends: an owner that was released anywhere is never queued again; a failed claim is
//! followed by a new owner, which takes over entry and vote atomically.

use std::collections::VecDeque;
use std::time::Duration;

use crate::protocol::in_doubt::{Debt, Doubt};
use crate::protocol::message::{
    CallId, ClientId, ConnectionId, HolderValue, Key, NotSent, Operation, Owner, Place, Reply, Unknown,
};
use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::round::Round;
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};
use crate::protocol::wait_queue::rank::{QUEUE_LIFE, Ranks};
use crate::protocol::wait_queue::signal::Signals;

/// The client's sign of life: its best-placed waiter looks this often, less up to 40 ms, which are drawn: no more than
/// once a second.
pub const BEAT: Duration = Duration::from_millis(1_050);

/// A waiter that cannot be woken looks this often, times its place in the queue counted from one.
const POLL: Duration = Duration::from_millis(50);

/// How often the head looks while a client of another kind holds the key: nobody will wake it.
const FOREIGN: Duration = Duration::from_millis(100);

/// A node that cannot be reached gets this long to come back before its queue is left: a connection is made anew within
/// some 300 ms, and a place is worth that.
const GRACE: Duration = Duration::from_millis(400);

/// Whoever stands at a worse node tries a better one again after so long, if that takes work: it may have been left for a
/// few lost answers, and nothing tells that it gives them again.
const RETURN_AFTER: Duration = Duration::from_secs(2);

/// A head that keeps its vote through so many failed claims in a row, while nobody is seen to hold the lock, may be what
/// stands in the way itself: of another head that keeps another node's vote, or of those who can reach more nodes.
const FUTILE: u32 = 8;

/// First and longest pause of a head whose claim failed.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(250);

/// The numbers of one waiter.
#[derive(Clone, Copy, Debug)]
pub struct WaiterSettings {
    /// Whose waiter it is.
    pub client: ClientId,
    /// The life of a vote.
    pub hand_over: Ttl,
    /// How long an answer is waited for.
    pub reply_timeout: Duration,
    /// The allowance for clocks, for debts.
    pub drift: Drift,
}

/// One call to be handed to one node, now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToSend {
    /// Where to.
    pub node: NodeId,
    /// Which call this is: given back with its reply.
    pub call: CallId,
    /// What to send.
    pub operation: Operation,
    /// What is owed if the answer to a release does not settle it.
    pub debt: Option<Debt>,
    /// Whether the present owner leaves with it: as soon as it was handed to the node, a wake-up for that owner comes too
    /// late and is to be passed on, so nobody may listen for it any more.
    pub leaves: bool,
}

/// The vote of a queue's node behind a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueVote {
    /// The node that gave its vote.
    pub node: NodeId,
    /// What was sent there under the owner that claims.
    pub doubt: Doubt,
    /// Whether nodes that refuse are asked again within the round.
    pub patient: bool,
}

/// How a claim failed, as far as the waiter depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimFailure {
    /// This is the queue that counts: no better-ranked node answered.
    pub best: bool,
    /// Somebody stood in the way.
    pub refused: bool,
    /// One holder was seen on what can be a quorum.
    pub holder: bool,
    /// The least life that a refusing node showed.
    pub remaining: Option<Duration>,
}

/// What a waiter wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Claim all nodes under [`Waiter::owner`], with this vote behind the claim.
    Claim(QueueVote),
    /// In queue, or looked again: as told. `dropped` where the node had dropped the entry and took it back.
    Standing {
        /// The place.
        place: Place,
        /// Whether it had been lost in between.
        dropped: bool,
    },
    /// No queue can be used: poll instead. The waiter has left.
    Unable(Reply),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// A look is to be answered.
    Asking {
        since: Instant,
        renaming: Option<Entry>,
    },
    /// In queue, to look again then.
    Standing {
        look: Instant,
    },
    /// A claim is under way; what is open at the node is the lease's.
    Claiming,
    /// The claim failed. The vote is kept, to be claimed again then.
    KeepAlive {
        until: Instant,
    },
    /// The vote was given back, or the node cannot be reached; enters again then.
    Aside {
        until: Instant,
    },
    /// A new owner is needed.
    Wanting(Want),
    Out,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Want {
    /// To wait in the queue at the node of this rank.
    Enter(usize),
    /// To take over entry and vote of the present owner.
    Rename,
}

/// One owner at one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    owner: Owner,
    /// What is open there.
    doubt: Doubt,
}

impl Entry {
    fn of(owner: Owner) -> Self {
        Self { owner, doubt: Doubt::default() }
    }
}

/// One waiter. See the module's contract.
#[derive(Debug)]
pub struct Waiter {
    key: Key,
    habits: WaiterSettings,
    ranks: Ranks,
    /// Which of the ranked nodes it stands at.
    rank: usize,
    /// Since when.
    since: Instant,
    own: Entry,
    /// The place at this node.
    score: Option<u64>,
    /// Whether wake-ups of this node do not reach the client.
    polls: bool,
    /// The best-placed of its client's waiters at this node, which looks for all.
    leads: bool,
    state: State,
    call: CallId,
    /// The first call under the present owner.
    first_call: CallId,
    misses: u32,
    failed_claims: u32,
    /// Of them the last ones in which no holder was seen.
    futile: u32,
    jitter: u64,
    /// It gave its vote back and may still wait in the queue, if it was woken too late: it leaves when it goes on.
    leaves: bool,
    sends: VecDeque<ToSend>,
    event: Option<Event>,
}

impl Waiter {
    /// A waiter for `key`, about to enter the queue at the best of `ranks`, which must not be empty. `jitter` is drawn.
    pub fn new(key: Key, ranks: Ranks, habits: WaiterSettings, jitter: u64) -> Self {
        Self {
            key,
            habits,
            ranks,
            rank: 0,
            since: Instant::default(),
            own: Entry::of(Owner::from_bytes([0; 16])),
            score: None,
            polls: false,
            leads: true,
            state: State::Wanting(Want::Enter(0)),
            call: CallId::default(),
            first_call: CallId::default(),
            misses: 0,
            failed_claims: 0,
            futile: 0,
            jitter,
            leaves: false,
            sends: VecDeque::new(),
            event: None,
        }
    }

    /// Whether it needs an owner that was never sent before.
    pub fn wants_owner(&self) -> bool {
        matches!(self.state, State::Wanting(_))
    }

    /// The node at which it will stand or stands.
    pub fn node(&self) -> NodeId {
        let rank = match self.state {
            State::Wanting(Want::Enter(rank)) => rank,
            _ => self.rank,
        };
        self.ranks.as_slice().get(rank).copied().unwrap_or(NodeId::new(0))
    }

    /// The nodes that rank better than the one at which it stands.
    pub fn better(&self) -> NodeSet {
        let mut better = NodeSet::EMPTY;
        self.ranks.as_slice().iter().take(self.rank).for_each(|node| better.insert(*node));
        better
    }

    /// Whether it has stood at a worse node for so long that a better one that takes work is worth another try.
    pub fn wants_back(&self, now: Instant) -> bool {
        self.rank > 0 && now.since(self.since) >= RETURN_AFTER
    }

    /// What it waits for.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The owner that waits in the queue.
    pub fn owner(&self) -> Owner {
        self.own.owner
    }

    /// What is open at the node under that owner.
    pub fn doubt(&self) -> Doubt {
        self.own.doubt
    }

    /// The owner it wanted. `polls` says whether wake-ups of [`Waiter::node`] do not reach this client. Register the
    /// owner for wake-ups before its first command is sent.
    pub fn supply(&mut self, owner: Owner, polls: bool, now: Instant) {
        let State::Wanting(want) = self.state else { return };
        self.polls = polls;
        let renaming = match want {
            Want::Enter(rank) => {
                if rank != self.rank {
                    (self.score, self.since) = (None, now);
                }
                self.rank = rank;
                None
            }
            Want::Rename => Some(self.own),
        };
        self.own = Entry::of(owner);
        self.first_call = CallId(self.call.0 + 1);
        self.ask(renaming, now);
    }

    /// Whether this is now the waiter that looks for all of its client's at this node; then no later than `look`.
    pub fn set_leads(&mut self, leads: bool, look: Instant) {
        self.leads = leads;
        if let State::Standing { look: own } = &mut self.state {
            *own = if leads { look.min(*own) } else { Instant::FAR_FUTURE };
        }
    }

    /// Whether it looks for all of its client's at this node.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// It leads from now on, in the place of one that was to look at `look`. A look that is due has just been made by
    /// that one, or is not missed for a beat; only who polls does not wait.
    fn take_lead(&mut self, look: Instant, now: Instant) {
        let next = if look <= now && !self.polls { now.after(BEAT) } else { look.max(now) };
        self.set_leads(true, next);
    }

    /// The next call to make. Report each with [`Waiter::handle_sent`] before the next.
    pub fn poll_send(&mut self) -> Option<ToSend> {
        self.sends.pop_front()
    }

    /// What became of a call at the node's door.
    pub fn handle_sent(&mut self, call: CallId, admitted: Result<ConnectionId, NotSent>, now: Instant) {
        match admitted {
            Ok(connection) if call >= self.first_call => {
                self.own.doubt.looked(connection, now, self.habits.hand_over, QUEUE_LIFE);
            }
            Ok(_) => {}
            Err(reason) => {
                self.handle_reply(call, ConnectionId::default(), Reply::NotSent(reason), now);
            }
        }
    }

    /// The answer to a look. Returns how long the node took, if it gave the waiter a place or its vote.
    pub fn handle_reply(
        &mut self,
        call: CallId,
        connection: ConnectionId,
        reply: Reply,
        now: Instant,
    ) -> Option<Duration> {
        if call < self.first_call {
            return None;
        }
        if !matches!(reply, Reply::NotSent(_)) {
            self.own.doubt.answered(connection, &reply);
        }
        if call != self.call {
            return None;
        }
        let State::Asking { renaming, since } = self.state.clone() else { return None };
        let took = matches!(reply, Reply::Voted | Reply::Queued(_)).then(|| now.since(since));
        match reply {
            Reply::Voted | Reply::Queued(_) => {
                if let Some(earlier) = &renaming
                    && !earlier.doubt.is_all_on(connection)
                {
                    // Something of the earlier owner may still be on its way on another connection.
                    self.release(*earlier);
                }
                self.misses = 0;
                match reply {
                    Reply::Queued(place) => self.stand(place, now),
                    _ if renaming.is_some() => {
                        self.state = State::KeepAlive { until: now.after(self.retry_pause()) };
                    }
                    _ => self.claim(true),
                }
            }
            Reply::NotSent(NotSent::Backlog) => {
                // A matter of round trips; only a client with thousands of waiters sees it.
                self.forget(renaming);
                self.state = State::Standing { look: now.after(self.beat() / 8) };
            }
            Reply::NotSent(_)
            | Reply::Unknown(Unknown::Timeout(_) | Unknown::ConnectionLost(_) | Unknown::Closed) => {
                self.missed(renaming, reply, now);
            }
            reply => {
                self.forget(renaming);
                self.unable(reply);
            }
        }
        took
    }

    /// The moment of [`Waiter::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        match self.state.clone() {
            State::Asking { renaming, .. } => {
                self.missed(renaming, Reply::Unknown(Unknown::Timeout(self.habits.reply_timeout)), now);
            }
            State::Standing { .. } => self.ask(None, now),
            State::KeepAlive { .. } => self.claim(false),
            State::Aside { .. } => {
                // A vote is given back where a better node answers: there it goes.
                let rank = if self.leaves { 0 } else { self.rank };
                self.leave_at_last();
                self.state = State::Wanting(Want::Enter(rank));
            }
            State::Claiming | State::Wanting(_) | State::Out => {}
        }
    }

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Asking { since, .. } => Some(since.after(self.habits.reply_timeout)),
            State::Standing { look } if look == Instant::FAR_FUTURE => None,
            State::Standing { look } => Some(look),
            State::KeepAlive { until } | State::Aside { until } => Some(until),
            State::Claiming | State::Wanting(_) | State::Out => None,
        }
    }

    /// What came for the present owner beside answers.
    pub fn handle_signals(&mut self, signals: &Signals, now: Instant) {
        if signals.woken {
            self.handle_wake();
        }
        match signals.leads {
            Some(Some(look)) => self.take_lead(look, now),
            Some(None) => self.set_leads(false, now),
            None => {}
        }
        if signals.nudged {
            self.handle_nudge(now);
        }
        for node in signals.usable {
            self.handle_usable(node, now);
        }
    }

    /// The present owner was woken: it has the node's vote, as far as anybody knows.
    fn handle_wake(&mut self) {
        if matches!(self.state, State::Standing { .. } | State::Asking { renaming: None, .. }) {
            self.claim(true);
        }
    }

    /// Something makes a look worthwhile: the connection came back, or the node had dropped this client's entries.
    fn handle_nudge(&mut self, now: Instant) {
        if let State::Standing { .. } = self.state {
            self.ask(None, now);
        }
    }

    /// A node takes work again: one that ranks better is moved to.
    fn handle_usable(&mut self, node: NodeId, now: Instant) {
        let rank = self.ranks.as_slice().iter().position(|ranked| *ranked == node);
        match (rank, &self.state) {
            (Some(rank), State::Standing { .. } | State::Aside { .. }) if rank < self.rank => {
                self.go_to(rank)
            }
            (Some(rank), State::Standing { .. }) if rank == self.rank && self.leads => self.ask(None, now),
            _ => {}
        }
    }

    /// How the claim of this round failed.
    pub fn claim_failure(&self, round: &Round) -> ClaimFailure {
        let answered =
            |node: NodeId| round.vote(node).and_then(|vote| vote.reply).is_some_and(Reply::is_an_answer);
        ClaimFailure {
            best: !self.better().any(answered),
            refused: round.held() > 0,
            holder: round.shows_a_holder(self.node_now()),
            remaining: round.shortest_remaining(),
        }
    }

    /// The claim failed; `doubt` is what is open at the node.
    ///
    /// The head of the queue that counts keeps its vote, others give theirs back without handing it over. So does, now and
    /// then, a head that has kept it in vain for long: two of them, each with the vote of a node that it takes for the
    /// best, would otherwise wait for each other for ever. One that nobody stands in the way of cannot reach enough nodes,
    /// and lets the next try.
    pub fn claim_failed(&mut self, doubt: Doubt, claim_failure: ClaimFailure, now: Instant) {
        self.own.doubt = doubt;
        self.failed_claims = self.failed_claims.saturating_add(1);
        self.futile = if claim_failure.holder { 0 } else { self.futile.saturating_add(1) };
        let gives_way = self.futile >= FUTILE && self.draw(2) == 0;
        if claim_failure.best && !gives_way {
            self.state = State::Wanting(Want::Rename);
            self.event = None;
            self.limit_retry(claim_failure.remaining);
            return;
        }
        if claim_failure.best && !claim_failure.refused {
            self.leave();
        } else {
            let (key, owner) = (self.key.clone(), self.own.owner);
            // The debt goes with the leaving, which follows: this takes nobody out of the queue.
            self.push(Operation::Release { key, owner }, None);
            self.leaves = true;
        }
        let pause = self.retry_pause() + Duration::from_millis(self.draw(40));
        self.state = State::Aside { until: now.after(pause) };
    }

    /// Leaves the queue wherever it stands. A claim under way is the lease's to undo.
    pub fn give_up(&mut self) {
        match std::mem::replace(&mut self.state, State::Out) {
            State::Asking { renaming, .. } => {
                self.forget(renaming);
                self.leave();
            }
            State::Standing { .. } | State::KeepAlive { .. } | State::Wanting(Want::Rename) => self.leave(),
            State::Aside { .. } => self.leave_at_last(),
            State::Claiming | State::Wanting(Want::Enter(_)) | State::Out => {}
        }
    }

    /// What is to be done, once.
    pub fn poll_event(&mut self) -> Option<Event> {
        match self.event.take() {
            // An answer to an earlier look may have come in between.
            Some(Event::Claim(vote)) => Some(Event::Claim(QueueVote { doubt: self.own.doubt, ..vote })),
            event => event,
        }
    }

    fn ask(&mut self, renaming: Option<Entry>, now: Instant) {
        let WaiterSettings { client, hand_over, .. } = self.habits;
        let operation = Operation::Queue {
            key: self.key.clone(),
            owner: self.own.owner,
            client,
            polls: self.polls,
            rename_from: renaming.map(|earlier| earlier.owner),
            score: self.score,
            hand_over,
        };
        self.call = CallId(self.call.0 + 1);
        self.state = State::Asking { since: now, renaming };
        self.push(operation, None);
    }

    fn claim(&mut self, patient: bool) {
        self.state = State::Claiming;
        self.event = Some(Event::Claim(QueueVote { node: self.node_now(), doubt: self.own.doubt, patient }));
    }

    fn stand(&mut self, place: Place, now: Instant) {
        let dropped = place.entered && self.score.is_some();
        self.score = Some(place.score);
        let mut pause = if self.polls { POLL * place.before.saturating_add(1).min(20) } else { BEAT };
        pause = pause.min(self.beat());
        let remaining = place.holder.as_ref().and_then(|holder| holder.remaining);
        if place.before <= 1 {
            // One millisecond more: a server still shows the key in the millisecond in which it ends.
            pause = remaining.map_or(pause, |left| pause.min(left.saturating_add(Duration::from_millis(1))));
        }
        let foreign =
            place.holder.as_ref().is_some_and(|holder| !matches!(holder.value, HolderValue::Owner(_)));
        if place.before == 0 && foreign {
            pause = pause.min(FOREIGN);
        }
        // Whether this waiter leads is found out by whoever hears of the place.
        self.state = State::Standing { look: now.after(pause) };
        self.event = Some(Event::Standing { place, dropped });
    }

    /// The node did not answer, or could not be asked.
    fn missed(&mut self, renaming: Option<Entry>, reply: Reply, now: Instant) {
        self.misses += 1;
        let lost_vote = renaming.is_some();
        self.forget(renaming);
        if self.misses == 1 && self.score.is_some() {
            if lost_vote {
                // Both owners are released, so the vote is gone; the score brings the place back.
                self.leave();
                self.state = State::Aside { until: now.after(GRACE) };
            } else {
                self.state = State::Standing { look: now.after(GRACE) };
            }
            return;
        }
        self.misses = 0;
        if self.rank + 1 < self.ranks.as_slice().len() {
            self.go_to(self.rank + 1);
        } else {
            self.unable(reply);
        }
    }

    fn go_to(&mut self, rank: usize) {
        if matches!(self.state, State::Aside { .. }) {
            self.leave_at_last();
        } else {
            self.leave();
        }
        self.misses = 0;
        self.state = State::Wanting(Want::Enter(rank));
    }

    fn unable(&mut self, reply: Reply) {
        self.leave();
        self.state = State::Out;
        self.event = Some(Event::Unable(reply));
    }

    fn leave(&mut self) {
        self.release(self.own);
    }

    /// Leaves where the vote was given back before.
    fn leave_at_last(&mut self) {
        if std::mem::take(&mut self.leaves) {
            self.leave();
        }
    }

    /// An earlier owner whose take-over has no known outcome is released like the present one.
    fn forget(&mut self, renaming: Option<Entry>) {
        if let Some(earlier) = renaming {
            self.release(earlier);
        }
    }

    fn release(&mut self, entry: Entry) {
        if !entry.doubt.is_written() {
            return;
        }
        let debt = self.debt(entry);
        let operation = debt.operation();
        self.push(operation, Some(debt));
    }

    fn debt(&self, Entry { owner, doubt }: Entry) -> Debt {
        let WaiterSettings { client, hand_over, drift, .. } = self.habits;
        let debt = Debt::new(self.node_now(), self.key.clone(), owner, doubt, hand_over, drift);
        debt.in_queue(client, hand_over)
    }

    fn node_now(&self) -> NodeId {
        self.ranks.as_slice().get(self.rank).copied().unwrap_or(NodeId::new(0))
    }

    fn push(&mut self, operation: Operation, debt: Option<Debt>) {
        // A release belongs to no look: its debt sees to its outcome.
        let call = if operation.releases() { CallId::default() } else { self.call };
        let leaves = operation.releases() && operation.owner() == Some(self.own.owner);
        self.sends.push_back(ToSend { node: self.node_now(), call, operation, debt, leaves });
    }

    fn limit_retry(&mut self, remaining: Option<Duration>) {
        // A key that ends soon is worth waiting for exactly.
        if let Some(left) = remaining {
            let mut tries = self.failed_claims;
            while tries > 1 && retry(tries) > left.max(FIRST_RETRY) {
                tries -= 1;
            }
            self.failed_claims = tries;
        }
    }

    /// Half the life of a vote at most, or the vote would run out meanwhile and its client be taken for hung.
    fn retry_pause(&self) -> Duration {
        retry(self.failed_claims).min(self.habits.hand_over.duration() / 2)
    }

    fn beat(&mut self) -> Duration {
        BEAT - Duration::from_millis(self.draw(40))
    }

    /// The next of a row of drawn numbers, below `limit`.
    fn draw(&mut self, limit: u64) -> u64 {
        self.jitter =
            self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.jitter >> 33) % limit
    }
}

fn retry(tries: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests;
