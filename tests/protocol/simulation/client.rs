//! One client: drives the real `Lease`s by their contract, on a clock of its own.
//!
//! Decides nothing that the runtime would not: it takes outputs, hands them to a node's door, and feeds back what
//! becomes of them. Its debts are in `debts.rs`.

use std::time::Duration;

use redquorum::protocol::answer::Answer;
use redquorum::protocol::in_doubt::{Debt, Ledger};
use redquorum::protocol::lease::{Event as LeaseEvent, Lease, ToSend};
use redquorum::protocol::message::{ClientId, Reply};
use redquorum::protocol::quorum::{NodeId, NodeSet, Quorum};
use redquorum::protocol::restart::ClientClock;
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::contended_keys::ContendedKeys;
use redquorum::protocol::wait_queue::group::Groups;

use super::broken::Switch;
use super::clock::{Clock, TrueTime};
use super::counters::Seen;
use super::laws::{self, Law};
use super::line_laws;
use super::network::{Purpose, connection_id};
use super::trace::note;
use super::wakeups::client_id;
use super::witness::{DebtWitness, RoundKind, RoundWitness};
use super::world::{Event, World};

/// One client.
#[derive(Debug)]
pub struct Client {
    /// The clock that goes on while the client stands still.
    pub clock: Clock,
    /// How far its wall clock is off that clock, which matters to nobody unless a switch makes it.
    pub wall_shift: i64,
    /// For how long it has stood still.
    pub slept: u64,
    pub paused_until: TrueTime,
    /// Its clock stood still until then; and the nodes that it has looked at since.
    pub stood: Option<(TrueTime, NodeSet)>,
    /// What tells it so.
    pub client_clock: ClientClock,
    /// Whether its waiters wait in the queue.
    pub in_queue: bool,
    /// Nothing wakes it: it polls.
    pub deaf: bool,
    /// Its process was killed.
    pub dead: bool,
    /// How the queues know it.
    pub id: ClientId,
    /// Who of it waits, and for what.
    pub groups: Groups,
    /// Its contended keys.
    pub contended_keys: ContendedKeys,
    /// The worst round trip of late.
    pub pace: Duration,
    pub ledger: Ledger,
    /// When the ledger's timer is set for.
    pub ledger_timer: TrueTime,
    /// Every debt ever owed, by its number in the ledger.
    pub debts: Vec<DebtWitness>,
    /// Those that neither an answer nor their end has closed.
    pub pending_cleanups: Vec<usize>,
}

impl Client {
    pub fn new(clock: Clock, number: usize, in_queue: bool, deaf: bool, quorum: Quorum) -> Self {
        let id = client_id(number);
        Self {
            clock,
            wall_shift: 0,
            slept: 0,
            paused_until: 0,
            stood: None,
            client_clock: ClientClock::new(quorum),
            in_queue,
            deaf,
            dead: false,
            id,
            groups: Groups::new(id),
            contended_keys: ContendedKeys::default(),
            pace: Duration::ZERO,
            ledger: Ledger::default(),
            ledger_timer: TrueTime::MAX,
            debts: Vec::new(),
            pending_cleanups: Vec::new(),
        }
    }
}

/// One lease, and what its holder makes of it.
#[derive(Debug)]
pub struct Tenure {
    pub lease: Lease,
    pub client: usize,
    /// Who listens; `None` once the lease was abandoned.
    pub task: Option<usize>,
    pub owner: usize,
    /// Whose claim it is, where it began in the queue.
    pub waiter: Option<usize>,
    /// Asks nodes that refuse again.
    pub patient: bool,
    pub ttl_millis: u64,
    /// When its acquire began.
    pub began: TrueTime,
    /// It needs a second round for its token.
    pub raises: bool,
    pub round: RoundWitness,
    /// Until when the holder acts; `None` when it does not.
    pub valid_until: Option<Instant>,
    /// Nobody feeds it any more: its driver was dropped.
    pub dropped: bool,
    /// Its client was stopped with sends not yet made.
    pub interrupted: bool,
    /// It goes on with sends that were decided before its client stood still.
    pub resuming: bool,
    timer: TrueTime,
    /// Answers kept from it, while a switch does so.
    pub withheld: Vec<Answer>,
}

impl Tenure {
    pub fn new(
        lease: Lease,
        client: usize,
        task: usize,
        owner: usize,
        ttl_millis: u64,
        began: TrueTime,
    ) -> Self {
        Self {
            lease,
            client,
            task: Some(task),
            owner,
            waiter: None,
            patient: false,
            ttl_millis,
            began,
            raises: false,
            round: RoundWitness::unstarted(),
            valid_until: None,
            dropped: false,
            interrupted: false,
            resuming: false,
            timer: TrueTime::MAX,
            withheld: Vec::new(),
        }
    }
}

impl World {
    /// Takes everything that a lease has to give: sends first, then the event, until there is nothing (the contract
    /// of `Lease`). A client may be stopped in the middle, or its caller may go away.
    pub fn drain(&mut self, tenure: usize) {
        self.tenures[tenure].resuming = std::mem::take(&mut self.tenures[tenure].interrupted);
        loop {
            self.see_validity(tenure);
            while let Some(send) = self.tenures[tenure].lease.poll_send() {
                if self.broken == Some(Switch::AsksTwice) {
                    self.hand_over(tenure, send.clone());
                }
                self.hand_over(tenure, send);
                if self.draw.chance(1) && self.interrupt(tenure) {
                    return;
                }
            }
            self.tenures[tenure].resuming = false;
            self.see_validity(tenure);
            match self.tenures[tenure].lease.poll_event() {
                Some(event) => self.happened(tenure, event),
                None => break,
            }
        }
        self.check_drained(tenure);
        self.stop_listening(tenure);
        self.set_lease_timer(tenure);
    }

    /// Something comes between two sends. Returns whether the client stands still now.
    fn interrupt(&mut self, tenure: usize) -> bool {
        let holder = &self.tenures[tenure];
        let client = holder.client;
        if self.owners[holder.owner].retired || self.healed || self.plan.calm {
            return false;
        }
        if self.draw.chance(500) {
            self.counters.add(Seen::AbandonedMidFanOut);
            self.abandon(tenure);
            return false;
        }
        self.counters.add(Seen::PausedMidFanOut);
        self.tenures[tenure].interrupted = true;
        let longest = self.plan.guard();
        let pause = self.draw.spread(self.plan.latency, longest);
        self.pause(client, pause);
        self.schedule(self.now, Event::Drain(tenure));
        true
    }

    /// The future or guard is dropped: what is open becomes debts, and nobody listens any more.
    pub fn abandon(&mut self, tenure: usize) {
        note!(self, "o{} is abandoned", self.tenures[tenure].owner);
        let now = self.lease_now(tenure);
        self.tenures[tenure].lease.abandon(now);
        self.see_validity(tenure);
        if let Some(waiter) = self.tenures[tenure].waiter
            && self.waiters[waiter].claim == Some(tenure)
        {
            self.leave_line(waiter);
        }
        if let Some(task) = self.tenures[tenure].task.take() {
            self.forget_lease(task);
        }
    }

    /// An owner that waited in the queue is listened for until its releases have been handed to the nodes.
    fn stop_listening(&mut self, tenure: usize) {
        let Tenure { waiter, client, owner, ref lease, .. } = self.tenures[tenure];
        if waiter.is_some() && lease.end().is_some() {
            self.listen_no_more(client, owner);
        }
    }

    fn check_drained(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        if self.owners[holder.owner].retired {
            let record = &self.owners[holder.owner];
            let gave_back = record.nodes.iter().any(|node| node.given_back);
            // Where a vote was given back, the leaving follows, and is asked for when the waiter is gone.
            if !gave_back {
                self.demand(Law::ReleaseReachesEveryWrite, laws::release_reaches_every_write(record));
            }
        } else if !holder.dropped && holder.round.kind != RoundKind::Release {
            self.demand(Law::DecidedAtOnce, laws::decided_at_once(&holder.round, self.plan.quorum));
        }
    }

    fn set_lease_timer(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        let Some(deadline) = holder.lease.poll_timeout() else { return };
        let at = self.client_when(holder.client, deadline).max(self.now);
        if at != holder.timer {
            self.tenures[tenure].timer = at;
            // Timers end late, never early.
            let late = self.draw.between(0, self.plan.latency);
            self.schedule(at + late, Event::LeaseTimer(tenure));
        }
    }

    pub fn lease_timer(&mut self, tenure: usize) {
        if self.tenures[tenure].dropped || self.tenures[tenure].interrupted {
            return;
        }
        let now = self.lease_now(tenure);
        let waiting = self.tenures[tenure].lease.poll_timeout();
        if waiting.is_some_and(|deadline| deadline <= now) {
            note!(self, "o{}: no more waiting", self.tenures[tenure].owner);
            let began = self.tenures[tenure].round.started_locally;
            if began.after(self.plan.reply_timeout) <= now {
                self.falsify_timeout(tenure);
                self.tenures[tenure].round.answered = self.plan.quorum.all();
            }
            self.tenures[tenure].lease.handle_timeout(now);
        }
        self.tenures[tenure].timer = TrueTime::MAX;
        self.drain(tenure);
    }

    /// Makes one call of a lease.
    fn hand_over(&mut self, tenure: usize, send: ToSend) {
        let ToSend { node, call, mut operation, debt } = send;
        let Tenure { client, owner, .. } = self.tenures[tenure];
        self.witness_call(tenure, node, call, &operation);
        if self.skips_raise(&operation) {
            return self.grant_falsely(tenure, node);
        }
        let releases = operation.releases();
        if releases {
            self.witness_release(tenure, node, debt.as_ref());
            self.falsify_undo(tenure, &mut operation);
            if self.swallows_release(owner, node) {
                return;
            }
        }
        let owed = debt.clone();
        let purpose = Purpose::Lease { tenure, call };
        let admitted = self.send(client, node.index(), owner, operation, purpose, debt);
        let (now, went) = (self.lease_now(tenure), admitted.is_ok());
        self.tenures[tenure].lease.handle_sent(node, call, admitted, now);
        if releases {
            self.release_went(client, owner, node, owed, went);
            self.falsify_release(tenure, node, call);
        } else if !went && call == self.tenures[tenure].round.call {
            self.tenures[tenure].round.answered.insert(node);
        }
    }

    /// A release that was handed over carries its debt along. One refused at the door leaves it to the ledger (rule
    /// 3: "a debt, never NotSent"). One without a debt had nothing to clear.
    pub fn release_went(
        &mut self,
        client: usize,
        owner: usize,
        node: NodeId,
        owed: Option<Debt>,
        went: bool,
    ) {
        let Some(debt) = owed else {
            self.owners[owner].nodes[node.index()].released = true;
            return self.settle(owner, node.index());
        };
        if went {
            self.owners[owner].nodes[node.index()].released = true;
            return;
        }
        self.counters.add(Seen::ReleaseNotSent);
        if self.broken != Some(Switch::DebtForgottenAtDoor) {
            self.owe(client, owner, debt);
        }
    }

    /// What became of a call, told to whom it belongs: first its debt, which outlives the lease, then the lease.
    pub fn deliver(&mut self, client: usize, node: usize, call: usize, reply: Reply) {
        let connection = connection_id(self.calls[call].connection);
        let owner = self.calls[call].owner;
        let operation = self.calls[call].operation.name();
        note!(self, "c{client} ← {}: {operation} o{owner}: {reply:?}", NodeId::new(node));
        if let Some(debt) = self.calls[call].debt.take() {
            self.release_answered(client, owner, debt, connection, &reply);
        }
        self.note_line(client, node, call, &reply);
        match self.calls[call].purpose {
            Purpose::Settlement { debt } => self.settlement_answered(client, debt, connection, reply),
            Purpose::Lease { tenure, .. } => self.feed(tenure, node, call, reply),
            Purpose::Line { waiter, .. } => self.feed_waiter(waiter, call, reply),
        }
    }

    /// Feeds a reply to its lease, if that still has somebody to feed it.
    fn feed(&mut self, tenure: usize, node: usize, call: usize, reply: Reply) {
        let Purpose::Lease { call: number, .. } = self.calls[call].purpose else { return };
        let client = self.tenures[tenure].client;
        let answer = Answer {
            node: NodeId::new(node),
            call: number,
            connection: connection_id(self.calls[call].connection),
            creates: self.calls[call].operation.creates(),
            reply,
            standing: self.standing(client, node),
            read: self.client_now(client),
        };
        let weighed = self.tenures[tenure].lease.weighed(&answer);
        let told = if let Reply::Fenced(number) = answer.reply { number.as_u64() } else { 0 };
        self.witness_reply(tenure, node, call, &weighed, told);
        let answer = self.falsify_answer(tenure, call, answer, &weighed);
        if self.tenures[tenure].dropped {
            return;
        }
        if let Some(answer) = answer {
            self.feed_lease(tenure, answer);
        }
        self.falsify_round(tenure);
        if !self.tenures[tenure].interrupted {
            self.drain(tenure);
        }
    }

    pub fn feed_lease(&mut self, tenure: usize, answer: Answer) {
        let now = self.lease_now(tenure);
        self.tenures[tenure].lease.handle_answer(answer, now);
    }

    /// Follows what the lease says about its validity, and checks it whenever it begins or grows.
    fn see_validity(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        let (told, before) = (holder.lease.validity(), holder.valid_until);
        let Some(until) = self.falsify_validity(tenure, told.map(|validity| validity.until())) else {
            self.tenures[tenure].valid_until = None;
            return self.holders.retain(|other| *other != tenure);
        };
        if before == Some(until) {
            return;
        }
        let now = self.client_now(self.tenures[tenure].client);
        self.tenures[tenure].valid_until = Some(until);
        match before {
            None => self.holders.push(tenure),
            Some(old) => {
                self.demand(Law::ExpiredIsNotExtended, laws::expired_is_not_extended(now, old));
                self.demand(Law::ExtensionNeverShortens, laws::extension_never_shortens(old, until));
            }
        }
        let finding = laws::validity_is_covered(self, tenure, until);
        self.demand(Law::ValidityIsCovered, finding);
        self.demand(Law::MutualExclusion, laws::mutual_exclusion(self, tenure));
    }

    /// The verdict of a round, checked against what the nodes really answered.
    fn happened(&mut self, tenure: usize, event: LeaseEvent) {
        self.tenures[tenure].round.decided = true;
        let holder = &self.tenures[tenure];
        let (round, quorum) = (holder.round, self.plan.quorum);
        note!(self, "c{} o{}: {event:?}", holder.client, holder.owner);
        match event {
            LeaseEvent::Held(validity) => {
                let now = self.client_now(holder.client);
                let finding = laws::minimum_validity(now, validity.until(), holder.ttl_millis);
                self.demand(Law::MinimumValidity, finding);
                self.demand(Law::OnlyGrantsCount, laws::only_grants_count(&round, quorum));
                let owner = self.tenures[tenure].owner;
                let finding = line_laws::not_held_when_released(&self.owners[owner], owner);
                self.demand(Law::OwnerIsRetired, finding);
                self.judge_token(tenure);
            }
            LeaseEvent::Failed(_) if holder.raises => self.counters.add(Seen::RaiseFailed),
            LeaseEvent::Extended(_) => {
                self.judge_carried_token(tenure);
                self.demand(Law::StillHeldByQuorum, laws::still_held_by_quorum(&round, quorum));
            }
            _ => {}
        }
        self.tell_task(tenure, event);
    }
}
