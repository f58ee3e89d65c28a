//! A client's debts: drives the real `Ledger` by its contract, and watches that each debt ends when it may and must.

use redquorum::protocol::in_doubt::{Debt, DebtId};
use redquorum::protocol::message::{ConnectionId, Reply};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::time::Instant;

use super::counters::Seen;
use super::laws::{self, Law};
use super::network::Purpose;
use super::trace::note;
use super::witness::DebtWitness;
use super::world::{Event, World};

impl World {
    /// The answer to a release, which either settles the debt that travelled along or leaves it to the ledger.
    pub fn release_answered(
        &mut self,
        client: usize,
        owner: usize,
        debt: Debt,
        connection: ConnectionId,
        reply: &Reply,
    ) {
        let (node, left) = (debt.node.index(), debt.after(connection, reply, self.ledger_now(client)));
        let Some(debt) = left.filter(|_| !self.settles_falsely(reply)) else {
            self.counters.add(Seen::DebtSettledByRelease);
            return self.settled_by_answer(owner, node, connection);
        };
        if reply.denies_ownership() {
            self.counters.add(Seen::DebtKeptOpen);
        }
        self.owe(client, owner, debt);
    }

    /// The answer to a repetition.
    pub fn settlement_answered(
        &mut self,
        client: usize,
        debt: DebtId,
        connection: ConnectionId,
        reply: Reply,
    ) {
        let number = debt.0 as usize;
        let DebtWitness { owner, node, named, .. } = self.clients[client].debts[number];
        let reply = if self.settles_falsely(&reply) { Reply::Granted } else { reply };
        let now = self.ledger_now(client);
        let actor = &mut self.clients[client];
        let before = actor.ledger.settled().answered;
        actor.ledger.handle_reply(debt, connection, &reply, now);
        let (left, witness) = (actor.ledger.ends(debt), &mut actor.debts[number]);
        witness.ends = left.unwrap_or(witness.ends);
        let first = reply.answers_release() && !std::mem::replace(&mut witness.heard, true);
        if let (true, Some(ends)) = (first, left) {
            let finding = laws::answer_bounds_debt(&self.owners[owner], node, ends, now);
            self.demand(Law::DebtsAreBounded, finding);
        }
        let actor = &mut self.clients[client];
        let open = actor.pending_cleanups.contains(&number);
        if actor.ledger.settled().answered > before {
            actor.pending_cleanups.retain(|other| *other != number);
            self.counters.add(Seen::DebtSettledByRepetition);
            // What a wake-up named says nothing of what else may be open.
            if !named {
                self.settled_by_answer(owner, node, connection);
            }
        } else if open && reply.denies_ownership() {
            self.counters.add(Seen::DebtKeptOpen);
        }
        self.drive_ledger(client);
    }

    fn settled_by_answer(&mut self, owner: usize, node: usize, connection: ConnectionId) {
        if connection != self.owners[owner].nodes[node].connection {
            self.counters.add(Seen::DebtSettledElsewhere);
        }
        self.settle(owner, node);
    }

    /// The protocol takes a node for clear of an owner.
    pub fn settle(&mut self, owner: usize, node: usize) {
        let record = &mut self.owners[owner];
        record.nodes[node].settled = true;
        if self.nodes[node].carries(&self.keys[record.key], record.owner, self.now) {
            self.demand(Law::SettledStaysClear, laws::settled_stays_clear(&self.owners[owner], node));
        }
    }

    /// A debt goes to the ledger.
    pub fn owe(&mut self, client: usize, owner: usize, debt: Debt) {
        self.take_on(client, owner, debt, false);
    }

    /// The same; `named` where a wake-up told of it.
    pub fn take_on(&mut self, client: usize, owner: usize, debt: Debt, named: bool) {
        let node = debt.node.index();
        let (record, now) = (&self.owners[owner], self.ledger_now(client));
        let finding = if debt.is_heard() {
            laws::answer_bounds_debt(record, node, debt.ends(), now)
        } else {
            laws::debt_is_bounded(record, &debt)
        };
        self.demand(Law::DebtsAreBounded, finding);
        self.owners[owner].nodes[node].released = true;
        let (unanswered, heard) = (!debt.is_answered(), debt.is_heard());
        let debt = self.falsify_debt(debt, now);
        let ends = debt.clone().taken_on(now).ends();
        note!(self, "c{client} owes {} o{owner} until {ends:?}", debt.node);
        let actor = &mut self.clients[client];
        actor.pending_cleanups.push(actor.debts.len());
        actor.debts.push(DebtWitness { owner, node, ends, unanswered, heard, named });
        actor.ledger.owe(debt, now);
        self.drive_ledger(client);
    }

    /// A node takes work again.
    pub fn node_is_usable(&mut self, client: usize, node: usize) {
        let now = self.ledger_now(client);
        self.clients[client].ledger.handle_usable(NodeId::new(node), now);
        let link = self.link_of(client, node);
        self.links[link].usable_since = self.client_now(client);
        self.tell_usable(client, node);
        self.drive_ledger(client);
    }

    /// Takes everything that a ledger has to give, and waits for its next moment.
    pub fn drive_ledger(&mut self, client: usize) {
        let now = self.ledger_now(client);
        while let Some(settlement) = self.clients[client].ledger.poll_send(now) {
            let debt = settlement.debt;
            let owner = self.clients[client].debts[debt.0 as usize].owner;
            let purpose = Purpose::Settlement { debt };
            let sent = self.send(client, settlement.node.index(), owner, settlement.operation, purpose, None);
            if let Err(refusal) = sent {
                let refusal = self.falsify_refusal(refusal);
                let ledger = &mut self.clients[client].ledger;
                ledger.handle_reply(debt, ConnectionId(0), &Reply::NotSent(refusal), now);
            }
        }
        self.see_debts_end(client, now);
        let Some(wake) = self.clients[client].ledger.poll_timeout() else { return };
        let at = self.ledger_when(client, wake).max(self.now + 1);
        let actor = &mut self.clients[client];
        if at < actor.ledger_timer || actor.ledger_timer <= self.now {
            actor.ledger_timer = at;
            self.schedule(at, Event::LedgerTimer(client));
        }
    }

    /// Debts whose end has come are left to the TTL.
    fn see_debts_end(&mut self, client: usize, told: Instant) {
        let now = told.max(self.client_now(client));
        let mut open = std::mem::take(&mut self.clients[client].pending_cleanups);
        open.retain(|number| {
            let debt = self.clients[client].debts[*number];
            if debt.ends <= now {
                self.counters.add(Seen::DebtEndedByTtl);
                note!(self, "c{client}: o{} on {} is left to the TTL", debt.owner, NodeId::new(debt.node));
                self.owners[debt.owner].nodes[debt.node].left_to_ttl = true;
                // What began before a clock was put forward ends that much earlier, a debt like a lease.
                if self.clients[client].client_clock.stood_still().is_none() {
                    let finding = laws::debt_outlasts_its_key(self, &debt);
                    self.demand(Law::DebtsOutlastTheirKey, finding);
                    self.demand(Law::DebtsOutlastTheirKey, laws::silence_ends_no_debt(&debt));
                }
            }
            debt.ends > now
        });
        self.clients[client].pending_cleanups = open;
        self.demand(Law::DebtsAreBounded, laws::debts_are_bounded(&self.clients[client]));
    }
}
