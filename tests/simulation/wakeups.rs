//! Wake-ups: how a node's publish travels, and what a client makes of it.
//!
//! The client's side is what `node/wakeups.rs` does in the library: a wake-up goes to whoever listens for its owner, one
//! for an owner that nobody listens for is answered by a release, and of all waiters of a client for one key at one node
//! the best-placed looks for all.

use std::collections::BTreeMap;
use std::time::Duration;

use redquorum::node::store::WakeUp;
use redquorum::protocol::in_doubt::{Debt, Doubt};
use redquorum::protocol::message::{ClientId, Operation, Owner, Reply};
use redquorum::protocol::quorum::{NodeId, NodeSet};
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::{Drift, Ttl};
use redquorum::protocol::wait_queue::rank::QUEUE_LIFE;

use super::broken::Switch;
use super::clock::MILLI;
use super::counters::Seen;
use super::laws::Law;
use super::line_laws;
use super::trace::note;
use super::world::{Event, World};

/// The length of a hand-over by a client that only passes on what was not meant for it.
const PASSED_ON: Duration = Duration::from_millis(500);

/// What a waiter hears by: one for each of its owners, so that what was meant for an earlier one is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mailbox {
    pub waiter: usize,
    pub generation: u32,
}

/// What a waiter is told besides answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signals {
    pub woken: bool,
    pub nudged: bool,
    pub leads: Option<Option<Instant>>,
    pub usable: NodeSet,
}

/// The key, by its number, and the node of a queue.
pub type GroupName = (usize, usize);

/// A waiter's place among its client's: score and owner.
pub type Member = (u64, Owner);

/// Who of one client waits, and for what.
#[derive(Debug, Default)]
pub struct Switchboard {
    pub client: ClientId,
    listening: BTreeMap<usize, Mailbox>,
    groups: BTreeMap<GroupName, Group>,
    /// Contended keys, each with the node at which somebody waits.
    pub contended_keys: BTreeMap<usize, usize>,
    /// The worst round trip of late.
    pub pace: Duration,
}

#[derive(Debug, Default)]
struct Group {
    members: BTreeMap<Member, Mailbox>,
    look: Instant,
    better: NodeSet,
}

/// A wake-up on its way.
#[derive(Clone, Debug)]
pub struct Publication {
    pub connection: usize,
    pub owner: usize,
    pub key: usize,
}

impl Switchboard {
    pub fn new(client: usize) -> Self {
        let mut bytes = [0xc1; 16];
        bytes[0] = client as u8;
        Self { client: ClientId::from_bytes(bytes), ..Self::default() }
    }

    pub fn listen(&mut self, owner: usize, mailbox: Mailbox) {
        self.listening.insert(owner, mailbox);
    }

    pub fn listen_no_more(&mut self, owner: usize) {
        self.listening.remove(&owner);
    }

    /// How long a round trip took. A bad one is forgotten over some twenty good ones.
    pub fn note_pace(&mut self, round_trip: Duration) {
        self.pace = round_trip.max(self.pace - self.pace / 8);
    }
}

impl World {
    /// Sends what a node published to whoever listens there.
    pub fn publish(&mut self, node: usize, wake_ups: Vec<WakeUp>) {
        for wake_up in wake_ups {
            let client = self.clients.iter().position(|client| client.board.client == wake_up.client);
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
        self.arrive_at_client(publication, at);
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
        let mailbox = self.clients[client].board.listening.get(&owner).copied();
        let retired = self.owners[owner].retired;
        let mut answered = false;
        if let Some(mailbox) = mailbox {
            self.signal(mailbox, |signals| signals.woken = true);
        } else if self.broken != Some(Switch::StaleWakeUpIgnored) {
            answered = true;
            self.counters.add(Seen::StaleWakeUpAnswered);
            let now = self.client_now(client);
            let record = &mut self.owners[owner];
            record.retired = true;
            record.nodes[node].named = now;
            let life = Ttl::unchecked(QUEUE_LIFE);
            let (key, subject) = (self.keys[key].clone(), record.owner);
            let doubt = Doubt::named(now, life);
            let debt = Debt::new(NodeId::new(node), key, subject, doubt, life, Drift::default());
            let debt = debt.in_queue(self.clients[client].board.client, Ttl::unchecked(PASSED_ON));
            self.take_on(client, owner, debt, true);
        }
        let finding = line_laws::stale_wake_up_is_answered(owner, retired, answered);
        self.demand(Law::StaleWakeUpIsAnswered, finding);
    }

    /// What the answer to a release tells of those who wait.
    pub fn note_line(&mut self, client: usize, node: usize, call: usize, reply: &Reply) {
        if !matches!(self.calls[call].operation, Operation::HandOver { .. }) {
            return;
        }
        let key = self.owners[self.calls[call].owner].key;
        let contended_keys = &mut self.clients[client].board.contended_keys;
        match reply {
            Reply::HandedOver => {
                contended_keys.insert(key, node);
            }
            Reply::Granted if contended_keys.get(&key) == Some(&node) => {
                contended_keys.remove(&key);
            }
            _ => {}
        }
    }

    /// Tells a waiter something, unless it has gone on to another owner.
    pub fn signal(&mut self, mailbox: Mailbox, tell: impl FnOnce(&mut Signals)) {
        let waiter = &mut self.waiters[mailbox.waiter];
        if waiter.over || waiter.generation != mailbox.generation {
            return;
        }
        let quiet = waiter.signals == Signals::default();
        tell(&mut waiter.signals);
        if quiet {
            self.schedule(self.now, Event::Signal(mailbox.waiter));
        }
    }

    /// Sits down among the waiters for a key at a node, to look again at `look`. Returns whether this one leads.
    pub fn sit(
        &mut self,
        client: usize,
        group: GroupName,
        member: Member,
        mailbox: Mailbox,
        look: Instant,
        better: NodeSet,
    ) -> bool {
        let place = self.clients[client].board.groups.entry(group).or_default();
        let before = place.members.first_key_value().map(|(first, mailbox)| (*first, *mailbox));
        place.members.insert(member, mailbox);
        place.better = better;
        let leads = before.is_none_or(|(first, _)| first >= member);
        if leads {
            place.look = look;
        }
        if let Some((_, mailbox)) = before.filter(|(first, _)| leads && *first != member) {
            self.signal(mailbox, |signals| signals.leads = Some(None));
        }
        leads
    }

    /// The one who sits looks again at `look`. Returns whether it leads.
    pub fn sit_on(&mut self, client: usize, group: GroupName, member: Member, look: Instant) -> bool {
        let Some(place) = self.clients[client].board.groups.get_mut(&group) else { return true };
        let leads = place.members.first_key_value().is_none_or(|(first, _)| *first >= member);
        if leads {
            place.look = look;
        }
        leads
    }

    /// Leaves its place among the client's waiters to the next.
    pub fn rise(&mut self, client: usize, group: GroupName, member: Member) {
        let groups = &mut self.clients[client].board.groups;
        let Some(place) = groups.get_mut(&group) else { return };
        let led = place.members.first_key_value().is_some_and(|(first, _)| *first == member);
        place.members.remove(&member);
        let look = place.look;
        let next = place.members.first_key_value().map(|(_, mailbox)| *mailbox);
        if next.is_none() {
            groups.remove(&group);
        }
        if let Some(next) = next.filter(|_| led) {
            self.counters.add(Seen::LeadPassedOn);
            // The turn of a head comes with the end of the holder's key, and passes on like any other.
            let head = self.owner_number(member.1).and_then(|owner| self.owners[owner].waiter);
            let head = head.map(|head| &self.waiters[head]);
            let urged =
                head.is_some_and(|head| head.urged || head.place.is_some_and(|(.., before)| before <= 1));
            self.waiters[next.waiter].urged |= urged;
            self.signal(next, |signals| signals.leads = Some(Some(look)));
        }
    }

    /// The others of a group have reason to look.
    pub fn nudge(&mut self, client: usize, group: GroupName, but: Owner) {
        let Some(place) = self.clients[client].board.groups.get(&group) else { return };
        let others = place.members.iter().filter(|((_, owner), _)| *owner != but);
        let others: Vec<Mailbox> = others.map(|(_, mailbox)| *mailbox).collect();
        for mailbox in others {
            self.signal(mailbox, |signals| signals.nudged = true);
        }
    }

    /// A better node is worth another try: the whole group moves there.
    pub fn send_to(&mut self, client: usize, group: GroupName, node: NodeId) {
        let Some(place) = self.clients[client].board.groups.get(&group) else { return };
        let members: Vec<Mailbox> = place.members.values().copied().collect();
        for mailbox in members {
            self.signal(mailbox, |signals| signals.usable.insert(node));
        }
    }

    /// A node takes work again: those who lead there look, and whoever waits at a worse one moves.
    pub fn tell_usable(&mut self, client: usize, node: usize) {
        let id = NodeId::new(node);
        let mut told = Vec::new();
        for ((_, at), group) in &self.clients[client].board.groups {
            let count = match *at == node {
                true => 1,
                false if group.better.contains(id) => usize::MAX,
                false => 0,
            };
            told.extend(group.members.values().take(count).copied());
        }
        for mailbox in told {
            self.signal(mailbox, |signals| signals.usable.insert(id));
        }
    }
}
