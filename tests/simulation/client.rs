//! One client: drives the real `Lease`s and the real `Ledger` of debts by their contract, on a clock of its own.
//!
//! Decides nothing that the runtime would not: it takes outputs, hands them to a node's door, and feeds back what
//! becomes of them.

use redquorum::protocol::debt::{Debt, DebtId, Ledger};
use redquorum::protocol::lease::{CallId, Event as LeaseEvent, Lease, Send};
use redquorum::protocol::message::{ConnectionId, NotSent, Operation, Reply};
use redquorum::protocol::quorum::{NodeId, NodeSet};
use redquorum::protocol::time::Instant;

use super::broken::Switch;
use super::clock::{Clock, TrueTime};
use super::counters::Seen;
use super::laws::{self, Law};
use super::network::{Purpose, connection_id};
use super::trace::note;
use super::witness::{DebtWitness, RoundKind, RoundWitness};
use super::world::{Event, World};

/// The round of a lease's acquire; later ones are extensions and the release.
const FIRST_CALL: CallId = CallId(0);

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
    pub ledger: Ledger,
    /// Every debt ever owed, by its number in the ledger.
    pub debts: Vec<DebtWitness>,
    /// Those that neither an answer nor their end has closed.
    pub open_debts: Vec<usize>,
    ledger_timer: TrueTime,
}

impl Client {
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            wall_shift: 0,
            slept: 0,
            paused_until: 0,
            ledger: Ledger::default(),
            debts: Vec::new(),
            open_debts: Vec::new(),
            ledger_timer: TrueTime::MAX,
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
    pub ttl_millis: u64,
    pub round: RoundWitness,
    /// Until when the holder acts; `None` when it does not.
    pub valid_until: Option<Instant>,
    /// Nobody feeds it any more: its driver was dropped.
    pub dropped: bool,
    /// Paused with sends not yet made.
    pub interrupted: bool,
    pub timer: TrueTime,
    /// Answers kept from it, while a switch does so.
    pub withheld: Vec<(usize, Reply)>,
}

impl World {
    /// What the client takes for now.
    pub fn client_now(&self, client: usize) -> Instant {
        let client = &self.clients[client];
        let now = client.clock.at(self.now);
        match self.broken {
            Some(Switch::WallClock) => shifted(now, client.wall_shift),
            Some(Switch::ClockSleeps) => shifted(now, -(client.slept as i64)),
            _ => now,
        }
    }

    /// The true moment at which the client's clock will show `reading`, if it is not stepped before.
    pub fn client_when(&self, client: usize, reading: Instant) -> TrueTime {
        let client = &self.clients[client];
        match self.broken {
            Some(Switch::WallClock) => client.clock.when(shifted(reading, -client.wall_shift)),
            Some(Switch::ClockSleeps) => client.clock.when(shifted(reading, client.slept as i64)),
            _ => client.clock.when(reading),
        }
    }

    /// The moment that a lease is told.
    pub fn lease_now(&self, tenure: usize) -> Instant {
        let holder = &self.tenures[tenure];
        let now = self.client_now(holder.client);
        match (self.broken, holder.valid_until) {
            (Some(Switch::ExpiredRevived), Some(until)) if until <= now => {
                Instant::from_nanos(until.as_nanos() - 1)
            }
            (Some(Switch::ValidityUnchecked), None) => holder.round.started_locally,
            _ => now,
        }
    }

    /// Takes everything that a lease has to give: sends first, then the event, until there is nothing (the contract
    /// of `Lease`). A client may be stopped in the middle, or its caller may go away.
    pub fn drain(&mut self, tenure: usize) {
        self.tenures[tenure].interrupted = false;
        loop {
            self.see_validity(tenure);
            while let Some(send) = self.tenures[tenure].lease.poll_send() {
                self.hand_over(tenure, send);
                if self.draw.chance(1) && self.interrupt(tenure) {
                    return;
                }
            }
            self.see_validity(tenure);
            match self.tenures[tenure].lease.poll_event() {
                Some(event) => self.happened(tenure, event),
                None => break,
            }
        }
        self.check_drained(tenure);
        self.set_lease_timer(tenure);
    }

    /// Something comes between two sends. Returns whether the client stands still now.
    fn interrupt(&mut self, tenure: usize) -> bool {
        let acquiring = self.tenures[tenure].valid_until.is_none();
        if self.owners[self.tenures[tenure].owner].retired || self.healed {
            return false;
        }
        if acquiring && self.draw.chance(500) {
            self.counters.add(Seen::AbandonedMidFanOut);
            note!(self, "o{} is abandoned between two sends", self.tenures[tenure].owner);
            let now = self.lease_now(tenure);
            self.tenures[tenure].lease.abandon(now);
            self.task_lost_its_lease(tenure);
            return false;
        }
        self.counters.add(Seen::PausedMidFanOut);
        self.tenures[tenure].interrupted = true;
        let client = self.tenures[tenure].client;
        let longest = self.plan.guard();
        let pause = self.draw.spread(self.plan.latency, longest);
        self.pause(client, pause);
        self.schedule(self.now, Event::Drain(tenure));
        true
    }

    fn check_drained(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        if self.owners[holder.owner].retired {
            let record = &self.owners[holder.owner];
            self.demand(Law::ReleaseReachesEveryWrite, laws::release_reaches_every_write(record));
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
            if self.broken == Some(Switch::UnknownCounts) {
                self.grant_the_silent(tenure, now);
            }
            self.tenures[tenure].round.answered = self.plan.quorum.all();
            self.tenures[tenure].lease.handle_timeout(now);
        }
        self.tenures[tenure].timer = TrueTime::MAX;
        self.drain(tenure);
    }

    fn grant_the_silent(&mut self, tenure: usize, now: Instant) {
        let round = self.tenures[tenure].round;
        let silent = self.plan.quorum.all().filter(|node| !round.answered.contains(*node));
        for node in silent {
            let lease = &mut self.tenures[tenure].lease;
            lease.handle_reply(node, round.call, false, ConnectionId(0), Reply::Granted, now);
        }
    }

    /// Makes one call of a lease.
    fn hand_over(&mut self, tenure: usize, send: Send) {
        let Send { node, call, operation, debt } = send;
        let (client, owner) = (self.tenures[tenure].client, self.tenures[tenure].owner);
        self.witness_round(tenure, call, &operation);
        let releases = matches!(operation, Operation::Release { .. });
        if releases {
            self.witness_release(tenure, node, debt.as_ref());
            if self.broken == Some(Switch::UndoOnlyGrants)
                && !self.owners[owner].nodes[node.index()].heard_grant
            {
                return;
            }
        }
        let purpose = Purpose::Lease { tenure, call };
        let refused = debt.clone();
        let admitted = self.send(client, node.index(), owner, operation, purpose, debt);
        let now = self.lease_now(tenure);
        if admitted.is_err() && !releases && call == self.tenures[tenure].round.call {
            self.tenures[tenure].round.answered.insert(node);
        }
        let went = admitted.is_ok();
        self.tenures[tenure].lease.handle_sent(node, call, admitted, now);
        if !releases {
            return;
        }
        match refused {
            Some(debt) if !went => {
                self.counters.add(Seen::ReleaseNotSent);
                if self.broken != Some(Switch::DebtForgottenAtDoor) {
                    self.owe(client, owner, debt);
                }
            }
            Some(_) => self.owners[owner].nodes[node.index()].released = true,
            None => {
                self.owners[owner].nodes[node.index()].released = true;
                self.settle(owner, node.index());
            }
        }
    }

    /// A send with a new call number begins a round; the numbers of an extension's healing are the extension's.
    fn witness_round(&mut self, tenure: usize, call: CallId, operation: &Operation) {
        let started_locally = self.client_now(self.tenures[tenure].client);
        let started = self.now;
        let holder = &mut self.tenures[tenure];
        let kind = match operation {
            Operation::Release { .. } => RoundKind::Release,
            Operation::Extend { .. } => RoundKind::Extend,
            _ if call == holder.round.call => return,
            _ => RoundKind::Acquire,
        };
        if holder.round.call != call {
            let (answered, granted) = (NodeSet::EMPTY, NodeSet::EMPTY);
            holder.round =
                RoundWitness { call, kind, started, started_locally, answered, granted, decided: false };
        }
    }

    fn witness_release(&mut self, tenure: usize, node: NodeId, debt: Option<&Debt>) {
        let holder = &self.tenures[tenure];
        let (now, owner) = (self.client_now(holder.client), holder.owner);
        self.demand(Law::SilentBeforeRelease, laws::silent_before_release(now, holder.valid_until));
        let record = &mut self.owners[owner];
        record.retired = true;
        let on_node = &record.nodes[node.index()];
        if on_node.executed && !on_node.heard_grant && debt.is_some() {
            self.counters.add(Seen::LostReplyUndone);
        }
    }

    /// The protocol takes a node for clear of an owner.
    fn settle(&mut self, owner: usize, node: usize) {
        let record = &mut self.owners[owner];
        record.nodes[node].settled = true;
        if self.nodes[node].carries(&self.keys[record.key], record.owner, self.now) {
            self.demand(Law::SettledStaysClear, laws::settled_stays_clear(&self.owners[owner], node));
        }
    }

    /// What became of a call, told to whom it belongs: first its debt, which outlives the lease, then the lease.
    pub fn deliver(&mut self, client: usize, node: usize, call: usize, reply: Reply) {
        let connection = connection_id(self.calls[call].connection);
        let owner = self.calls[call].owner;
        note!(
            self,
            "c{client} ← {}: {} o{owner}: {reply:?}",
            NodeId::new(node),
            self.calls[call].operation.name()
        );
        match self.calls[call].purpose {
            Purpose::Settlement { debt } => self.settlement_answered(client, debt, connection, reply),
            Purpose::Lease { tenure, .. } => {
                if let Some(debt) = self.calls[call].debt.take() {
                    self.release_answered(client, owner, debt, connection, &reply);
                }
                self.feed(tenure, node, call, reply);
            }
        }
    }

    fn release_answered(
        &mut self,
        client: usize,
        owner: usize,
        debt: Debt,
        connection: ConnectionId,
        reply: &Reply,
    ) {
        let node = debt.node.index();
        let falsely = self.broken == Some(Switch::DenialSettles) && reply.denies_ownership();
        if falsely || debt.is_settled_by(connection, reply) {
            self.counters.add(Seen::DebtSettledByRelease);
            if connection != self.owners[owner].nodes[node].connection {
                self.counters.add(Seen::DebtSettledElsewhere);
            }
            self.settle(owner, node);
        } else {
            if reply.denies_ownership() {
                self.counters.add(Seen::DebtKeptOpen);
            }
            self.owe(client, owner, debt);
        }
    }

    /// Feeds a reply to its lease, if that still has somebody to feed it.
    fn feed(&mut self, tenure: usize, node: usize, call: usize, mut reply: Reply) {
        self.witness_reply(tenure, node, call, &reply);
        if self.broken == Some(Switch::HealsAfterRelease) && reply == Reply::Absent {
            self.heal_regardless(tenure, node, call);
        }
        if self.tenures[tenure].dropped {
            return;
        }
        let broken = self.broken;
        match broken {
            Some(Switch::UnknownCounts) if matches!(reply, Reply::Unknown(_)) => reply = Reply::Granted,
            Some(Switch::AbsentCounts) if matches!(self.calls[call].operation, Operation::Extend { .. }) => {
                reply = if reply == Reply::Absent { Reply::Granted } else { reply };
            }
            Some(Switch::WaitsForAll) if self.withhold(tenure, call, &reply) => return,
            _ => {}
        }
        self.feed_lease(tenure, node, call, reply);
        if self.broken == Some(Switch::QuorumLessOne) {
            self.grant_one_more(tenure);
        }
        if !self.tenures[tenure].interrupted {
            self.drain(tenure);
        }
    }

    fn feed_lease(&mut self, tenure: usize, node: usize, call: usize, reply: Reply) {
        let Purpose::Lease { call: number, .. } = self.calls[call].purpose else { return };
        let (creates, connection) = (self.calls[call].operation.creates(), self.calls[call].connection);
        let now = self.lease_now(tenure);
        let lease = &mut self.tenures[tenure].lease;
        lease.handle_reply(NodeId::new(node), number, creates, connection_id(connection), reply, now);
    }

    fn witness_reply(&mut self, tenure: usize, node: usize, call: usize, reply: &Reply) {
        let answered = &self.calls[call];
        let Purpose::Lease { call: number, .. } = answered.purpose else { return };
        let holder = &mut self.tenures[tenure];
        let round = &mut holder.round;
        let of_round = round.call == number
            && match round.kind {
                RoundKind::Acquire => answered.operation.creates(),
                RoundKind::Extend => matches!(answered.operation, Operation::Extend { .. }),
                RoundKind::Release => false,
            };
        let granted = *reply == Reply::Granted && answered.truly_granted;
        if granted && answered.operation.creates() {
            self.owners[holder.owner].nodes[node].heard_grant = true;
            if number != FIRST_CALL {
                self.counters.add(Seen::HealedByExtension);
            } else if round.decided || !of_round {
                self.counters.add(Seen::StragglingGrant);
            }
        }
        if of_round && !round.answered.contains(NodeId::new(node)) {
            round.answered.insert(NodeId::new(node));
            if granted {
                round.granted.insert(NodeId::new(node));
            }
        }
    }

    /// A debt goes to the ledger.
    fn owe(&mut self, client: usize, owner: usize, debt: Debt) {
        let node = debt.node.index();
        self.demand(Law::DebtsAreBounded, laws::debt_is_bounded(&self.owners[owner], &debt));
        self.owners[owner].nodes[node].released = true;
        let now = self.ledger_now(client);
        let actor = &mut self.clients[client];
        note!(self, "c{client} owes {} o{owner} until {:?}", debt.node, debt.ends());
        actor.open_debts.push(actor.debts.len());
        actor.debts.push(DebtWitness { owner, node, ends: debt.ends(), open: true });
        actor.ledger.owe(debt, now);
        self.drive_ledger(client);
    }

    fn ledger_now(&self, client: usize) -> Instant {
        let now = self.client_now(client);
        match self.broken {
            Some(Switch::DebtsNeverEnd) => Instant::from_nanos(now.as_nanos() / 1_000),
            Some(Switch::DebtsEndEarly) => now.after(self.plan.longest_ttl().duration() * 2),
            _ => now,
        }
    }

    /// Takes everything that a ledger has to give, and waits for its next moment.
    pub fn drive_ledger(&mut self, client: usize) {
        let now = self.ledger_now(client);
        while let Some(settlement) = self.clients[client].ledger.poll_send(now) {
            let DebtId(number) = settlement.debt;
            let owner = self.clients[client].debts[number as usize].owner;
            let purpose = Purpose::Settlement { debt: settlement.debt };
            let sent = self.send(client, settlement.node.index(), owner, settlement.operation, purpose, None);
            if let Err(refusal) = sent {
                self.settlement_answered_at_door(client, settlement.debt, refusal, now);
            }
        }
        self.see_debts_end(client, now);
        let Some(wake) = self.clients[client].ledger.poll_timeout() else { return };
        let at = self.client_when(client, wake).max(self.now + 1);
        let actor = &mut self.clients[client];
        if at < actor.ledger_timer || actor.ledger_timer <= self.now {
            actor.ledger_timer = at;
            self.schedule(at, Event::LedgerTimer(client));
        }
    }

    fn settlement_answered_at_door(&mut self, client: usize, debt: DebtId, refusal: NotSent, now: Instant) {
        self.clients[client].ledger.handle_reply(debt, ConnectionId(0), &Reply::NotSent(refusal), now);
    }

    fn settlement_answered(
        &mut self,
        client: usize,
        debt: DebtId,
        connection: ConnectionId,
        mut reply: Reply,
    ) {
        let number = debt.0 as usize;
        let DebtWitness { owner, node, open, .. } = self.clients[client].debts[number];
        if self.broken == Some(Switch::DenialSettles) && reply.denies_ownership() {
            reply = Reply::Granted;
        }
        let now = self.ledger_now(client);
        let ledger = &mut self.clients[client].ledger;
        let before = ledger.settled().answered;
        ledger.handle_reply(debt, connection, &reply, now);
        if ledger.settled().answered > before {
            self.counters.add(Seen::DebtSettledByRepetition);
            if connection != self.owners[owner].nodes[node].connection {
                self.counters.add(Seen::DebtSettledElsewhere);
            }
            self.clients[client].debts[number].open = false;
            self.clients[client].open_debts.retain(|open| *open != number);
            self.settle(owner, node);
        } else if open && reply.denies_ownership() {
            self.counters.add(Seen::DebtKeptOpen);
        }
        self.drive_ledger(client);
    }

    /// Debts whose end has come are left to the TTL.
    fn see_debts_end(&mut self, client: usize, told: Instant) {
        let now = told.max(self.client_now(client));
        let mut open = std::mem::take(&mut self.clients[client].open_debts);
        open.retain(|number| {
            let debt = self.clients[client].debts[*number];
            if debt.ends <= now {
                self.counters.add(Seen::DebtEndedByTtl);
                note!(self, "c{client}: o{} on {} is left to the TTL", debt.owner, NodeId::new(debt.node));
                self.owners[debt.owner].nodes[debt.node].left_to_ttl = true;
                let finding = laws::debt_outlasts_its_key(self, &debt);
                self.demand(Law::DebtsOutlastTheirKey, finding);
            }
            debt.ends > now
        });
        self.clients[client].open_debts = open;
        self.demand(Law::DebtsAreBounded, laws::debts_are_bounded(&self.clients[client]));
    }

    pub fn node_is_usable(&mut self, client: usize, node: usize) {
        let now = self.ledger_now(client);
        self.clients[client].ledger.handle_usable(NodeId::new(node), now);
        self.drive_ledger(client);
    }

    /// Follows what the lease says about its validity, and checks it whenever it begins or grows.
    fn see_validity(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        let told = holder.lease.validity().map(|validity| validity.until());
        let before = holder.valid_until;
        let Some(until) = told else {
            if self.broken != Some(Switch::ValidAfterRelease) {
                self.tenures[tenure].valid_until = None;
                self.holders.retain(|other| *other != tenure);
            }
            return;
        };
        let now = self.client_now(holder.client);
        let until = match self.broken {
            Some(Switch::ValidityFromReplies) => {
                before.unwrap_or(until.after(now.since(holder.round.started_locally)))
            }
            _ => until,
        };
        if before == Some(until) {
            return;
        }
        self.tenures[tenure].valid_until = Some(until);
        match before {
            None => self.holders.push(tenure),
            Some(old) => self.demand(Law::ExpiredIsNotExtended, laws::expired_is_not_extended(now, old)),
        }
        let finding = laws::validity_is_covered(self, tenure, until);
        self.demand(Law::ValidityIsCovered, finding);
        self.demand(Law::MutualExclusion, laws::mutual_exclusion(self, tenure));
    }

    /// The verdict of a round, checked against what the nodes really answered.
    fn happened(&mut self, tenure: usize, event: LeaseEvent) {
        self.tenures[tenure].round.decided = true;
        let holder = &self.tenures[tenure];
        note!(self, "c{} o{}: {event:?}", holder.client, holder.owner);
        match event {
            LeaseEvent::Held(validity) => {
                let now = self.client_now(holder.client);
                let finding = laws::minimum_validity(now, validity.until(), holder.ttl_millis);
                self.demand(Law::MinimumValidity, finding);
                let round = self.tenures[tenure].round;
                self.demand(Law::OnlyGrantsCount, laws::only_grants_count(&round, self.plan.quorum));
            }
            LeaseEvent::Extended(_) => {
                let round = self.tenures[tenure].round;
                self.demand(Law::StillHeldByQuorum, laws::still_held_by_quorum(&round, self.plan.quorum));
            }
            _ => {}
        }
        self.tell_task(tenure, event);
    }

    fn grant_one_more(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        let (granted, needed) = (holder.round.granted.len(), self.plan.quorum.needed());
        let acquiring = holder.round.kind == RoundKind::Acquire && !holder.round.decided;
        if !acquiring || granted == 0 || granted + 1 != needed {
            return;
        }
        let round = holder.round;
        let now = self.lease_now(tenure);
        if let Some(node) = self.plan.quorum.all().find(|node| !round.answered.contains(*node)) {
            let lease = &mut self.tenures[tenure].lease;
            lease.handle_reply(node, round.call, false, ConnectionId(0), Reply::Granted, now);
        }
    }

    fn heal_regardless(&mut self, tenure: usize, node: usize, call: usize) {
        let extends = matches!(self.calls[call].operation, Operation::Extend { .. });
        let holder = &self.tenures[tenure];
        if extends && self.owners[holder.owner].retired {
            let key = self.calls[call].operation.key().clone();
            let ttl = self.plan.longest_ttl();
            let (owner, client) = (self.calls[call].operation.owner(), holder.client);
            let purpose = self.calls[call].purpose;
            let _ =
                self.send(client, node, holder.owner, Operation::Claim { key, owner, ttl }, purpose, None);
        }
    }

    /// Keeps the answers of an acquire back until all nodes have answered. Returns whether this one was.
    fn withhold(&mut self, tenure: usize, call: usize, reply: &Reply) -> bool {
        let holder = &mut self.tenures[tenure];
        if holder.round.kind != RoundKind::Acquire {
            return false;
        }
        holder.withheld.push((call, reply.clone()));
        if holder.round.answered.len() == self.plan.quorum.nodes() {
            for (call, reply) in std::mem::take(&mut holder.withheld) {
                let node = self.connections[self.calls[call].connection].node;
                self.feed_lease(tenure, node, call, reply);
            }
        }
        self.drain(tenure);
        true
    }
}

fn shifted(reading: Instant, nanos: i64) -> Instant {
    Instant::from_nanos(reading.as_nanos().saturating_add_signed(nanos))
}
