//! What befalls nodes, connections and clients; and the healing after which there is no excuse.

use std::time::Duration;

use redquorum::protocol::in_doubt::Ledger;
use redquorum::protocol::quorum::NodeId;

use super::broken::Switch;
use super::clock::MILLI;
use super::counters::Seen;
use super::draw::Draw;
use super::laws::{self, Law};
use super::node::{Mood, Presence};
use super::task::State;
use super::trace::note;
use super::world::{Event, World};

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A connection ends.
    Reset,
    /// Requests on a connection are stuck, and are lost or executed late.
    Stall,
    /// Requests on a connection are stuck when it ends, so that others overtake them on the next one.
    Detour,
    /// Replies on a connection are lost.
    Mute,
    /// A node stops, and later goes on with all that has reached it.
    Freeze,
    /// A node ends, and comes back as it was.
    Crash,
    /// A node ends, and comes back empty.
    Amnesia,
    /// A node refuses to write.
    Refuse,
    /// A node fails in the middle of commands.
    Fail,
    /// A client stands still.
    Pause,
    /// A client's process is killed: its connections end, and nobody clears what it leaves.
    Kill,
    /// A waiter is told that it was woken, although it was not.
    FalseWake,
    /// A foreign client's value takes a free key, on one node or wherever it can.
    Foreign,
    /// Somebody deletes a key of ours. No lock stands that, so it comes only in histories that say so.
    Evict,
    /// A node's memory is emptied while it runs. No lock stands that either.
    Flush,
    /// A client's wall clock steps. Harmless, since the protocol never reads it.
    WallStep,
    /// A node's clock jumps ahead. Beyond what the protocol stands; only while its switch is on.
    ServerStep,
}

const ALL: [Fault; 14] = [
    Fault::Reset,
    Fault::Stall,
    Fault::Detour,
    Fault::Mute,
    Fault::Freeze,
    Fault::Crash,
    Fault::Amnesia,
    Fault::Refuse,
    Fault::Fail,
    Fault::Pause,
    Fault::Kill,
    Fault::FalseWake,
    Fault::Foreign,
    Fault::WallStep,
];

impl Fault {
    /// The kinds of one history: all, or a few that then come often.
    pub fn draw_choice(draw: &mut Draw) -> Vec<Fault> {
        if draw.chance(300) {
            return ALL.to_vec();
        }
        (0..draw.between(1, 5)).map(|_| draw.pick(&ALL)).collect()
    }
}

impl World {
    /// One fault, and the moment of the next.
    pub fn strike(&mut self) {
        if self.healed || self.faults >= self.plan.most_faults {
            return;
        }
        let fault = match self.broken {
            Some(Switch::ServerClockSteps) if self.draw.chance(200) => Fault::ServerStep,
            Some(Switch::WallClock) if self.draw.chance(200) => Fault::WallStep,
            Some(switch) if switch.is_about_moving() && self.draw.chance(800) => {
                self.draw.pick(&[Fault::Stall, Fault::Mute, Fault::Foreign])
            }
            Some(Switch::ClockSleeps) if self.draw.chance(200) => Fault::Pause,
            _ if self.plan.evictions && self.draw.chance(300) => {
                self.draw.pick(&[Fault::Evict, Fault::Evict, Fault::Evict, Fault::Flush])
            }
            _ => self.draw.pick(&self.plan.faults),
        };
        self.befall(fault);
        self.befall_memory();
        let pause = self.draw.between(self.plan.fault_pause / 4, 2 * self.plan.fault_pause);
        self.schedule(self.now + pause, Event::Fault);
    }

    fn befall(&mut self, fault: Fault) {
        let node = self.draw.below(self.nodes.len() as u64) as usize;
        let client = self.draw.below(self.clients.len() as u64) as usize;
        let connection = self.links[self.link_of(client, node)].connection;
        let duration = self.draw.spread(2 * self.plan.latency, 2 * self.plan.guard());
        self.faults += 1;
        self.lose_counters(node);
        self.forge_counter();
        self.spend_counters();
        note!(self, "fault: {fault:?}, c{client}, {}, {} ms", NodeId::new(node), duration / MILLI);
        match fault {
            Fault::Reset | Fault::Stall | Fault::Detour | Fault::Mute => {
                if let Some(connection) = connection {
                    self.befall_connection(fault, connection, duration);
                }
            }
            Fault::Freeze => self.freeze(node, duration),
            Fault::Crash | Fault::Amnesia => self.crash(node, duration, fault == Fault::Amnesia),
            Fault::Refuse | Fault::Fail => {
                self.nodes[node].mood = if fault == Fault::Fail { Mood::Failing } else { Mood::Refusing };
                self.schedule(self.now + duration.min(100 * MILLI), Event::Well(node));
            }
            Fault::Pause => self.pause(client, duration),
            Fault::Kill => self.kill(client),
            Fault::FalseWake => self.wake_falsely(),
            Fault::Flush => {
                self.nodes[node].forget();
                self.fencing.counters_lost();
                self.forget_lines(node);
                self.counters.add(Seen::Flushed);
            }
            Fault::Foreign if self.draw.chance(500) => {
                let key = self.draw.below(self.keys.len() as u64) as usize;
                let longer = if self.broken.is_some_and(Switch::is_about_moving) { 4 } else { 1 };
                (0..self.nodes.len()).for_each(|node| self.put_foreign(node, key, longer * duration));
            }
            Fault::Foreign => {
                let key = self.draw.below(self.keys.len() as u64) as usize;
                self.put_foreign(node, key, duration);
            }
            Fault::Evict => {
                let key = self.draw.pick(&[0, self.keys.len() - 1]);
                self.nodes[node].store.remove(&self.keys[key]);
            }
            Fault::WallStep => self.step_wall_clock(client, duration),
            Fault::ServerStep => self.nodes[node].clock.step(duration as i64),
        }
    }

    fn befall_connection(&mut self, fault: Fault, connection: usize, duration: u64) {
        let line = &mut self.connections[connection];
        match fault {
            Fault::Stall => {
                line.stalled = true;
                self.schedule(self.now + duration, Event::Flow(connection));
            }
            Fault::Detour => {
                line.stalled = true;
                let ends = self.now + self.draw.spread(self.plan.latency, 20 * self.plan.latency);
                self.schedule(ends, Event::Break(connection));
            }
            Fault::Mute => line.mute = true,
            _ => self.break_connection(connection, true),
        }
    }

    /// A connection's fault may come just when a set is handed to it, which is when it hurts most.
    pub fn ambush(&mut self, connection: usize) {
        if self.healed || !self.draw.chance(self.plan.ambush) {
            return;
        }
        self.faults += 1;
        let fault = self.draw.pick(&[Fault::Detour, Fault::Detour, Fault::Stall, Fault::Mute]);
        let duration = self.draw.spread(2 * self.plan.latency, 2 * self.plan.guard());
        note!(self, "fault: {fault:?} on #{connection}");
        self.befall_connection(fault, connection, duration);
    }

    fn freeze(&mut self, node: usize, duration: u64) {
        if self.nodes[node].presence == Presence::Up {
            self.nodes[node].presence = Presence::Frozen;
            self.schedule(self.now + duration, Event::Thaw(node));
        }
    }

    /// What waited in the sockets of a frozen node is read now: in order on each connection, in any order across.
    pub fn thaw(&mut self, node: usize) {
        if self.nodes[node].presence != Presence::Frozen {
            return;
        }
        self.nodes[node].presence = Presence::Up;
        let mut unread = std::mem::take(&mut self.nodes[node].unread);
        note!(self, "{} thaws with {} unread", NodeId::new(node), unread.len());
        if !unread.is_empty() {
            self.counters.add(Seen::ThawedWithBacklog);
        }
        while !unread.is_empty() {
            let some = self.calls[unread[self.draw.below(unread.len() as u64) as usize]].connection;
            let first = unread.iter().position(|call| self.calls[*call].connection == some).unwrap_or(0);
            let call = unread.remove(first);
            self.read_request(call);
        }
    }

    pub fn crash(&mut self, node: usize, duration: u64, forgets: bool) {
        if self.nodes[node].presence == Presence::Down {
            return;
        }
        // A node without memory comes back soon, which is when it does harm.
        let down = if forgets && self.draw.chance(700) { duration.min(10 * MILLI) } else { duration };
        if forgets {
            self.forget(node);
        }
        let place = &mut self.nodes[node];
        place.presence = Presence::Down;
        place.down_until = self.now + down;
        place.unread.clear();
        place.mood = Mood::Well;
        self.schedule(self.now + down, Event::Restart(node));
        for connection in 0..self.connections.len() {
            if self.connections[connection].node == node {
                self.break_connection(connection, false);
                self.unsubscribe(connection);
            }
        }
    }

    pub fn forget(&mut self, node: usize) {
        self.counters.add(Seen::MemoryLost);
        self.nodes[node].forget();
        self.fencing.counters_lost();
        self.forget_lines(node);
        self.nodes[node].lost_memory = Some(self.now);
    }

    pub fn restart(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        if place.presence == Presence::Down && place.down_until <= self.now {
            place.presence = Presence::Up;
            place.start(self.now);
            self.counters.add(Seen::Restarted);
            note!(self, "{} is back", NodeId::new(node));
        }
    }

    /// A client stands still: nothing reaches it, and its timers wait.
    pub fn pause(&mut self, client: usize, duration: u64) {
        let actor = &mut self.clients[client];
        if actor.paused_until < self.now + duration {
            actor.slept += self.now + duration - actor.paused_until.max(self.now);
            actor.paused_until = self.now + duration;
        }
        note!(self, "c{client} stands still for {} µs", duration / 1_000);
    }

    /// A client's process ends: nothing of it is ever sent again, and the TTLs clear what it leaves.
    fn kill(&mut self, client: usize) {
        let living = self.clients.iter().filter(|client| !client.dead).count();
        if living < 2 || self.clients[client].dead || !self.draw.chance(300) {
            return;
        }
        note!(self, "c{client} is killed");
        self.counters.add(Seen::Killed);
        self.clients[client].dead = true;
        for connection in 0..self.connections.len() {
            if self.connections[connection].client == client {
                self.break_connection(connection, true);
                self.connections[connection].closed = true;
                self.release_stuck(connection, true);
            }
        }
        for task in self.tasks.iter_mut().filter(|task| task.client == client) {
            task.state = State::Done;
        }
        for tenure in self.tenures.iter_mut().filter(|tenure| tenure.client == client) {
            (tenure.valid_until, tenure.dropped, tenure.task) = (None, true, None);
        }
        let tenures = &self.tenures;
        self.holders.retain(|tenure| tenures[*tenure].client != client);
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.client == client) {
            waiter.over = true;
        }
        for record in self.owners.iter_mut().filter(|record| record.client == client) {
            record.nodes.iter_mut().for_each(|node| node.left_to_ttl = true);
        }
        self.clients[client].ledger = Ledger::default();
        self.clients[client].pending_cleanups.clear();
    }

    fn put_foreign(&mut self, node: usize, key: usize, duration: u64) {
        let place = &mut self.nodes[node];
        let local = place.clock.at(self.now);
        if place.presence == Presence::Up && place.store.holder(&self.keys[key], local).is_none() {
            let ttl = Duration::from_millis(1 + duration / MILLI);
            place.store.put_foreign(&self.keys[key], b"another client's", Some(ttl), local);
        }
    }

    fn step_wall_clock(&mut self, client: usize, size: u64) {
        self.counters.add(Seen::WallClockStepped);
        let size = size as i64;
        self.clients[client].wall_shift += if self.draw.chance(500) { size } else { -size };
        self.fencing.step(client);
        for place in 0..self.holders.len() {
            let finding = laws::mutual_exclusion(self, self.holders[place]);
            self.demand(Law::MutualExclusion, finding);
        }
    }

    /// Everything heals: nodes come back at once, the network is fast and loses nothing.
    pub fn heal(&mut self) {
        note!(self, "everything heals");
        self.healed = true;
        self.healed_at = self.now;
        self.plan.latency = (self.plan.latency / 4).max(1);
        self.plan.slow = 0;
        for node in 0..self.nodes.len() {
            self.nodes[node].mood = Mood::Well;
            self.thaw(node);
            self.nodes[node].down_until = self.now;
            self.schedule(self.now, Event::Restart(node));
        }
        for connection in 0..self.connections.len() {
            if self.connections[connection].mute {
                self.break_connection(connection, true);
            }
            self.release_stuck(connection, false);
        }
    }
}
