//! Wake-ups: how a node's publish travels, and how what the real `Groups` give out reaches the waiters of a client.

use redquorum::node::store::WakeUp;
use redquorum::protocol::message::{ClientId, Operation, Reply};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::signal::{Signal, Signals};

use super::broken::Switch;
use super::clock::{MILLI, TrueTime};
use super::counters::Seen;
use super::laws::Law;
use super::line_laws;
use super::trace::note;
use super::world::{Event, World};

/// A wake-up on its way.
#[derive(Clone, Debug)]
pub struct Publication {
    pub connection: usize,
    pub owner: usize,
    pub key: usize,
}

/// A client as the queues know it.
pub fn client_id(client: usize) -> ClientId {
    let mut bytes = [0xc1; 16];
    bytes[0] = client as u8;
    ClientId::from_bytes(bytes)
}

impl World {
    /// Sends what a node published to whoever listens there.
    pub fn publish(&mut self, node: usize, wake_ups: Vec<WakeUp>) {
        for wake_up in wake_ups {
            let client = self.clients.iter().position(|client| client.id == wake_up.client);
            let key = self.keys.iter().position(|key| *key == wake_up.key);
            let (Some(client), Some(key), Some(owner)) = (client, key, self.owner_number(wake_up.owner))
            else {
                continue;
            };
            if self.broken == Some(Switch::NeverWokenNorLooking) {
                continue;
            }
            self.strike_at_hand_over(owner);
            for connection in 0..self.connections.len() {
                let line = &self.connections[connection];
                if line.listens && (line.client, line.node) == (client, node) {
                    self.send_wake_up(Publication { connection, owner, key });
                }
            }
        }
    }

    fn send_wake_up(&mut self, publication: Publication) {
        let connection = publication.connection;
        let line = &self.connections[connection];
        let trouble = self.plan.wake_trouble > 0 && !self.healed && self.draw.chance(self.plan.wake_trouble);
        let lost = line.closed || line.broken || line.mute || (trouble && self.draw.chance(500));
        if lost {
            note!(self, "wake-up of o{} is lost on #{connection}", publication.owner);
            self.counters.add(Seen::WakeUpLost);
            self.owners[publication.owner].wake_lost = true;
            return;
        }
        let way = self.way(connection);
        let line = &mut self.connections[connection];
        line.last_reply = line.last_reply.max(self.now + way);
        let mut at = line.last_reply;
        if trouble {
            self.faults += 1;
            let late = self.draw.spread(self.plan.latency, 1_500 * MILLI);
            if self.draw.chance(500) {
                self.counters.add(Seen::WakeUpTwice);
                self.arrive_at_client(publication.clone(), at + late);
            } else {
                at += late;
            }
        }
        let at = at.max(self.aimed_at_the_end(publication.owner).unwrap_or(at));
        self.arrive_at_client(publication, at);
    }

    /// A wake-up may come just when the wait of its waiter ends.
    fn aimed_at_the_end(&mut self, owner: usize) -> Option<TrueTime> {
        let waiter = &self.waiters[self.owners[owner].waiter?];
        let deadline = self.tasks[waiter.task].deadline;
        if self.healed || self.plan.calm || waiter.over || deadline == Instant::FAR_FUTURE {
            return None;
        }
        let ends = self.client_when(waiter.client, deadline);
        let soon = ends > self.now && ends < self.now + 1_500 * MILLI;
        let latency = self.plan.latency;
        (soon && self.draw.chance(self.plan.bad_timing))
            .then(|| ends.saturating_sub(latency) + self.draw.below(2 * latency))
    }

    fn arrive_at_client(&mut self, publication: Publication, at: u64) {
        let number = self.publications.len();
        self.publications.push(publication);
        self.schedule(at, Event::WakeUp(number));
    }

    /// Somebody is told that it was woken, although it was not.
    pub fn wake_falsely(&mut self) {
        let standing = (0..self.waiters.len()).filter(|waiter| !self.waiters[*waiter].over);
        let standing: Vec<usize> = standing.collect();
        if standing.is_empty() {
            return;
        }
        let waiter = &self.waiters[self.draw.pick(&standing)];
        let (client, node) = (waiter.client, waiter.waiter.node().index());
        let (owner, key) = (waiter.owner, waiter.key);
        let link = self.link_of(client, node);
        if let (Some(owner), Some(connection)) = (owner, self.links[link].connection) {
            self.counters.add(Seen::WokenFalsely);
            self.arrive_at_client(Publication { connection, owner, key }, self.now + 1);
        }
    }

    /// A wake-up is read by its client.
    pub fn hear(&mut self, number: usize) {
        let Publication { connection, owner, key } = self.publications[number];
        let (client, node) = (self.connections[connection].client, self.connections[connection].node);
        if self.connections[connection].closed {
            note!(self, "wake-up of o{owner} is lost with #{connection}");
            self.counters.add(Seen::WakeUpLost);
            self.owners[owner].wake_lost = true;
            return;
        }
        note!(self, "c{client} ⇐ {}: wake-up of o{owner}", NodeId::new(node));
        if self.broken == Some(Switch::WakeUpsUnheard) {
            return;
        }
        let (now, subject) = (self.client_now(client), self.owners[owner].owner);
        let groups = &mut self.clients[client].groups;
        let owed = groups.handle_wake_up(NodeId::new(node), subject, self.keys[key].clone(), now);
        let owed = owed.filter(|_| self.broken != Some(Switch::StaleWakeUpIgnored));
        self.deliver_signals(client, false);
        let finding = line_laws::stale_wake_up_is_answered(owner, self.owners[owner].retired, owed.is_some());
        self.demand(Law::StaleWakeUpIsAnswered, finding);
        if let Some(debt) = owed {
            self.counters.add(Seen::StaleWakeUpAnswered);
            let record = &mut self.owners[owner];
            record.retired = true;
            record.nodes[node].named = now;
            self.take_on(client, owner, debt, true);
        }
    }

    /// What the answer to a release tells of those who wait.
    pub fn note_line(&mut self, client: usize, node: usize, call: usize, reply: &Reply) {
        if let Operation::HandOver { key, .. } = &self.calls[call].operation {
            self.clients[client].contended_keys.released(key, NodeId::new(node), reply);
        }
    }

    /// Puts signals into the waiters' mailboxes; those for an earlier owner of a waiter are lost. `urged` says whether the
    /// one whose lead passes on had a reason to look beside its turn, which passes on like the turn.
    pub fn deliver_signals(&mut self, client: usize, urged: bool) {
        while let Some((owner, signal)) = self.clients[client].groups.poll_signal() {
            let number = self.owner_number(owner).and_then(|owner| Some((owner, self.owners[owner].waiter?)));
            let Some((owner, number)) = number else { continue };
            if self.waiters[number].over
                || self.waiters[number].owner != Some(owner)
                || self.keeps_signal_back(number, signal)
            {
                continue;
            }
            let waiter = &mut self.waiters[number];
            let node = waiter.waiter.node();
            match signal {
                Signal::Leads(Some(_)) => {
                    self.counters.add(Seen::LeadPassedOn);
                    waiter.urged |= urged;
                }
                Signal::Nudged => waiter.urges = true,
                Signal::Usable(usable) => waiter.urges |= usable == node,
                Signal::Woken | Signal::Leads(None) => {}
            }
            let quiet = waiter.signals.is_empty();
            waiter.signals.add(signal);
            if quiet {
                self.schedule(self.now, Event::Signal(number));
            }
        }
    }

    /// A waiter is no member of its client's groups any more, or goes on at another node.
    pub fn leave_group(&mut self, number: usize, to: Option<NodeId>) {
        let waiter = &self.waiters[number];
        let Some(owner) = waiter.owner.map(|owner| self.owners[owner].owner) else { return };
        // The turn of a head comes with the end of the holder's key.
        let urged = waiter.urged || waiter.place.is_some_and(|(.., before)| before <= 1);
        let client = waiter.client;
        let now = self.client_now(client);
        let groups = &mut self.clients[client].groups;
        match to {
            Some(to) => groups.move_on(owner, to, now),
            None => groups.leave(owner, now),
        }
        self.deliver_signals(client, urged);
    }

    /// A node takes work again.
    pub fn tell_usable(&mut self, client: usize, node: usize) {
        self.clients[client].groups.handle_usable(NodeId::new(node));
        self.deliver_signals(client, false);
    }

    /// What was waiting for the waiter beside answers.
    pub fn take_signals(&mut self, number: usize) {
        let now = self.client_now(self.waiters[number].client);
        let waiter = &mut self.waiters[number];
        let signals = std::mem::take(&mut waiter.signals);
        waiter.urged |= std::mem::take(&mut waiter.urges);
        let stands = waiter.waiter.node();
        waiter.waiter.handle_signals(&signals, now);
        if waiter.waiter.wants_owner() && waiter.waiter.node() != stands {
            self.counters.add(Seen::MovedToBetterNode);
        }
    }

    /// The mailbox of an earlier owner is gone, with what was in it.
    pub fn renew_mailbox(&mut self, number: usize) {
        let waiter = &mut self.waiters[number];
        waiter.generation += 1;
        (waiter.signals, waiter.urges) = (Signals::default(), false);
    }
}
