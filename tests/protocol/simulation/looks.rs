//! What clients learn of their nodes' memories after they connected: looks, a node's word that it may have forgotten, and clocks
//! that stood still; and the faults that only these notice.
//!
//! It has a stream of random numbers of its own, so that histories without these faults are what they were.

use std::time::Duration;

use redquorum::protocol::quorum::{NodeId, NodeSet};
use redquorum::protocol::restart::{MarkerSeen, Reading, Standing};
use redquorum::protocol::time::Instant;

use super::broken::Switch;
use super::clock::{MILLI, TrueTime};
use super::counters::Seen;
use super::draw::Draw;
use super::laws::{self, Law};
use super::node::Presence;
use super::plan::Plan;
use super::trace::note;
use super::world::{Event, World};

/// How clients watch their nodes in one history.
#[derive(Debug)]
pub struct Looks {
    draw: Draw,
    /// A node tells those who are connected when it forgets. Else only regular looks show it.
    pub told: bool,
    /// The time between two looks, on the client's clock.
    every: u64,
    /// Per mille of faults that come with one of these.
    share: u64,
    looks: Vec<Look>,
}

/// One look at a node, on its way there and back.
#[derive(Debug)]
struct Look {
    connection: usize,
    doubts: u64,
    began: Instant,
    sent: TrueTime,
    /// What the node told, and the count that it raised.
    told: Option<([Reading; 2], u64)>,
}

/// What a client knows of a node by its looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Looked {
    /// When the last look began that was answered, and the last of all.
    pub at: Instant,
    began: Instant,
    /// How often the node said that it may have forgotten, and how many of these a look has settled.
    doubts: u64,
    settled: u64,
    /// It is looked at again for as long as one of them is not settled.
    again: bool,
    /// Since when the client has remembered what the node told.
    pub known_since: TrueTime,
    /// The run of the node that is known, and the count raised in it.
    pub beat: Option<(u64, u64)>,
}

impl Looked {
    /// All was asked on a new connection.
    pub fn settle(&mut self, read: Instant) {
        (self.at, self.began, self.settled) = (read, read, self.doubts);
    }
}

/// A fault that only looks notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// All nodes forget at the same moment.
    FlushAll,
    /// A node comes back with an older state of itself.
    Restore,
    /// Another server takes a node's place: its replica, in step but for its keys.
    Replace,
    /// All clients are stopped for longer than a look holds, and the nodes forget just before they go on.
    StopAndFlush,
    /// A client stands still, and its clock with it.
    StandStill,
}

impl Looks {
    pub fn draw(seed: u64, plan: &Plan, broken: Option<Switch>) -> Self {
        let mut draw = Draw::new(seed ^ 0x6c6f_6f6b_7321);
        let told = match broken {
            Some(Switch::FlushUnheard) => true,
            Some(Switch::StandingGoesOn | Switch::StandstillUnnoticed) => false,
            _ => draw.chance(700),
        };
        let share = if plan.calm { 0 } else { draw.pick(&[0, 50, 200]) };
        let share = if broken.is_some_and(Switch::is_about_looks) { 500 } else { share };
        let every = plan.guard() / 16;
        Self { draw, told, every, share, looks: Vec::new() }
    }

    /// The connection of a look.
    pub fn connection(&self, look: usize) -> usize {
        self.looks[look].connection
    }

    fn lasts(&self) -> Duration {
        Duration::from_nanos(2 * self.every)
    }
}

impl World {
    /// With the beginning: the first regular look of each client at each node.
    pub fn begin_looks(&mut self) {
        if !self.looks.told && self.looks.share > 0 {
            for link in 0..self.links.len() {
                let first = self.looks.draw.below(self.looks.every);
                self.schedule(first, Event::Look(link));
            }
        }
    }

    /// A regular look, and the moment of the next, for as long as anybody may want a lock.
    pub fn look_regularly(&mut self, link: usize) {
        self.look(link);
        if !self.tasks.iter().all(super::task::Task::is_done) {
            self.schedule(self.now + self.looks.every, Event::Look(link));
        }
    }

    /// A client looks at a node, on its connection and in order.
    fn look(&mut self, link: usize) {
        let client = link / self.nodes.len();
        let Some(connection) = self.links[link].connection else { return };
        let began = self.client_now(client);
        let looked = &mut self.links[link].looked;
        looked.began = began;
        if looked.doubts != looked.settled && !std::mem::replace(&mut looked.again, true) {
            self.schedule(self.now + self.looks.every, Event::LookAgain(link));
        }
        if self.connections[connection].stalled || self.connections[connection].broken {
            return;
        }
        let doubts = self.links[link].looked.doubts;
        let look = self.looks.looks.len();
        self.looks.looks.push(Look { connection, doubts, began, sent: self.now, told: None });
        let way = self.looks_way(link);
        let line = &mut self.connections[connection];
        line.last_arrival = line.last_arrival.max(self.now + way);
        let at = line.last_arrival;
        self.schedule(at, Event::LookArrives(look));
    }

    /// A look may have got lost.
    pub fn look_again(&mut self, link: usize) {
        let looked = &mut self.links[link].looked;
        looked.again = false;
        if looked.doubts != looked.settled {
            self.look(link);
        }
    }

    fn looks_way(&mut self, link: usize) -> u64 {
        self.plan.latency * self.links[link].speed / 1_000 * self.looks.draw.between(500, 1_500) / 1_000
    }

    /// A look reaches its node, which answers.
    pub fn look_arrives(&mut self, look: usize) {
        let connection = self.looks.looks[look].connection;
        let line = &self.connections[connection];
        let (client, node) = (line.client, line.node);
        if line.closed || line.broken || line.mute || !self.nodes[node].answers() {
            return;
        }
        let link = self.link_of(client, node);
        let known = self.links[link].looked.beat.map(|(run, _)| run);
        let [mut first, second] = self.nodes[node].reading(self.now, self.looks.looks[look].began, known);
        // On an old connection the run is the same.
        first.run = None;
        let raised = self.nodes[node].raise_beat();
        self.looks.looks[look].told = Some(([first, second], raised));
        let way = self.looks_way(link);
        let line = &mut self.connections[connection];
        line.last_reply = line.last_reply.max(self.now + way);
        let at = line.last_reply;
        self.schedule(at, Event::LookAnswered(look));
    }

    /// What a look found reaches its client.
    pub fn look_answered(&mut self, look: usize) {
        let Look { connection, doubts, began, sent, ref mut told } = self.looks.looks[look];
        let Some((readings, raised)) = told.take() else { return };
        let (client, node) = (self.connections[connection].client, self.connections[connection].node);
        if self.connections[connection].closed {
            return;
        }
        let link = self.link_of(client, node);
        let received = self.client_now(client);
        let readings = readings.map(|reading| Reading { sent: began, received, ..reading });
        self.take_readings(link, readings, sent);
        self.take_beat(link, raised, received);
        let looked = &mut self.links[link].looked;
        (looked.at, looked.settled) = (began, looked.settled.max(doubts));
        let again = looked.settled != looked.doubts;
        self.links[link].name = Some(self.nodes[node].name(self.links[link].other_marker));
        if again {
            self.look(link);
        }
    }

    /// What a node told of itself reaches the client: at first, and with a marker if it had none.
    pub fn take_readings(&mut self, link: usize, [first, second]: [Reading; 2], sent: TrueTime) {
        self.take_reading(link, &first);
        self.see_clock(link / self.nodes.len(), link % self.nodes.len(), sent);
        if first.marker == MarkerSeen::Absent {
            self.take_reading(link, &second);
        }
    }

    fn take_reading(&mut self, link: usize, reading: &Reading) {
        let reading = self.falsify_reading(*reading);
        let memory = &mut self.links[link].memory;
        if let Some(cause) = memory.handle_reading(&reading) {
            self.counters.add(Seen::TooYoung);
            note!(
                self,
                "c{}: {} is too young: {cause}",
                link / self.nodes.len(),
                NodeId::new(link % self.nodes.len())
            );
        }
    }

    /// A client raised a node's count of looks.
    pub fn take_beat(&mut self, link: usize, raised: u64, now: Instant) {
        let run = self.nodes[link % self.nodes.len()].run();
        if self.links[link].memory.handle_beat(raised, now).is_some() {
            self.counters.add(Seen::TooYoung);
        }
        self.links[link].looked.beat = Some((run, raised));
    }

    /// A node tells everybody who is connected that it may have forgotten.
    fn tell_of_loss(&mut self, node: usize) {
        for connection in 0..self.connections.len() {
            let line = &self.connections[connection];
            if line.node != node || line.closed || line.broken || line.mute {
                continue;
            }
            let way = self.looks_way(self.link_of(line.client, node));
            let line = &mut self.connections[connection];
            line.last_reply = line.last_reply.max(self.now + way);
            let at = line.last_reply;
            self.schedule(at, Event::ToldOfLoss(connection));
        }
    }

    /// The word of a node that it may have forgotten reaches a client.
    pub fn hear_of_loss(&mut self, connection: usize) {
        let line = &self.connections[connection];
        if line.closed || self.broken == Some(Switch::FlushUnheard) {
            return;
        }
        let link = self.link_of(line.client, line.node);
        self.links[link].looked.doubts += 1;
        self.counters.add(Seen::ToldOfLoss);
        self.look(link);
    }

    /// What a look is worth now: the node said nothing since, and it was not too long ago.
    pub fn seen(&self, client: usize, node: usize, standing: Standing) -> Standing {
        let looked = &self.links[self.link_of(client, node)].looked;
        if looked.doubts != looked.settled {
            return Standing::UNSEEN;
        }
        let regular = !self.looks.told && self.looks.share > 0;
        if !regular || self.broken == Some(Switch::StandingGoesOn) {
            return standing;
        }
        standing.as_seen(looked.at, self.looks.lasts(), self.client_now(client))
    }

    /// Before something that creates a key is sent: a look goes first, if what is known is out of date.
    pub fn look_first(&mut self, client: usize, node: usize) {
        let link = self.link_of(client, node);
        let now = self.client_now(client);
        let late = |moment: Instant| now.since(moment) > self.looks.lasts();
        if self.standing(client, node) == Standing::UNSEEN && late(self.links[link].looked.began) {
            self.counters.add(Seen::LookedFirst);
            self.look(link);
        }
    }

    /// Whether a client's clock stood still, and it had no chance to notice.
    pub fn is_excused(&self, client: usize) -> bool {
        self.clients[client].stood.is_some()
    }

    /// A look at a node that was sent at `sent` may show a client that its clock stood still.
    fn see_clock(&mut self, client: usize, node: usize, sent: TrueTime) {
        let id = NodeId::new(node);
        let jump = self.links[self.link_of(client, node)].memory.jump();
        let stood = jump.and_then(|jump| self.clients[client].client_clock.handle_jump(id, jump));
        let goes_on = self.broken != Some(Switch::StandstillUnnoticed);
        if let (Some(stood), true) = (stood, goes_on) {
            note!(self, "c{client}: the clock stood still for {:?}", stood.by());
            self.counters.add(Seen::ClockStoodStill);
            self.clients[client].clock.step(stood.by().as_nanos() as i64);
            self.wake_all(client);
        }
        if let (Some(stood), true) = (self.clients[client].client_clock.stood_still(), goes_on) {
            for node in 0..self.nodes.len() {
                let link = self.link_of(client, node);
                self.links[link].memory.handle_stood_still(stood);
            }
        }
        if jump.is_some() && goes_on {
            // All nodes are looked at: once for each that shows it.
            let links = (0..self.nodes.len()).map(|node| self.link_of(client, node)).collect::<Vec<_>>();
            links.into_iter().for_each(|link| self.look(link));
        }
        let needed = self.plan.quorum.needed();
        let Some((until, mut seen)) = self.clients[client].stood.filter(|(until, _)| *until <= sent) else {
            return;
        };
        // A node of which nothing is remembered shows nothing.
        if self.links[self.link_of(client, node)].looked.known_since < until {
            seen.insert(id);
        }
        self.clients[client].stood = (seen.len() < needed).then_some((until, seen));
        if seen.len() >= needed {
            for place in 0..self.holders.len() {
                let finding = laws::mutual_exclusion(self, self.holders[place]);
                self.demand(Law::MutualExclusion, finding);
            }
        }
    }

    /// Timers that were set on a clock that was put forward since are looked at now.
    fn wake_all(&mut self, client: usize) {
        for tenure in 0..self.tenures.len() {
            if self.tenures[tenure].client == client && !self.tenures[tenure].dropped {
                self.schedule(self.now, Event::LeaseTimer(tenure));
            }
        }
        for waiter in 0..self.waiters.len() {
            if self.waiters[waiter].client == client && !self.waiters[waiter].over {
                self.schedule(self.now, Event::WaiterTimer(waiter));
            }
        }
        self.schedule(self.now, Event::LedgerTimer(client));
    }

    /// Beside an ordinary fault: one of these.
    pub fn befall_memory(&mut self) {
        if !self.looks.draw.chance(self.looks.share) {
            return;
        }
        let fault = match self.broken {
            Some(Switch::FlushUnheard) => Fault::FlushAll,
            Some(Switch::OlderStateUnnoticed) => Fault::Restore,
            Some(Switch::ReplicaIsRestart) => Fault::Replace,
            Some(Switch::StandingGoesOn) => Fault::StopAndFlush,
            Some(Switch::StandstillUnnoticed) => Fault::StandStill,
            _ if self.looks.told => self.looks.draw.pick(&[Fault::FlushAll, Fault::Restore, Fault::Replace]),
            _ => self.looks.draw.pick(&[
                Fault::Restore,
                Fault::Replace,
                Fault::StopAndFlush,
                Fault::StandStill,
            ]),
        };
        let node = self.looks.draw.below(self.nodes.len() as u64) as usize;
        let client = self.looks.draw.below(self.clients.len() as u64) as usize;
        note!(self, "fault: {fault:?}, c{client}, {}", NodeId::new(node));
        match fault {
            Fault::FlushAll => self.flush_all(),
            Fault::Restore => self.restore(node),
            Fault::Replace => self.replace(node),
            Fault::StopAndFlush => self.stop_and_flush(),
            Fault::StandStill => self.stand_still(client),
        }
    }

    /// Every node that is up forgets, and says so.
    pub fn flush_all(&mut self) {
        self.counters.add(Seen::FlushedTogether);
        for node in 0..self.nodes.len() {
            if self.nodes[node].presence == Presence::Up {
                self.forget(node);
                if self.looks.told {
                    self.tell_of_loss(node);
                }
            }
        }
    }

    /// The node's keys are gone, but nothing that names it, or shows how new its state is.
    fn lose_keys(&mut self, node: usize) {
        self.nodes[node].store.wipe();
        self.fencing.counters_lost();
        self.forget_lines(node);
        self.nodes[node].lost_memory = Some(self.now);
    }

    /// The node is started with a state that is older than the last look of everybody.
    fn restore(&mut self, node: usize) {
        if self.nodes[node].presence == Presence::Down {
            return;
        }
        self.counters.add(Seen::Restored);
        let links = (0..self.clients.len()).map(|client| self.link_of(client, node));
        let looked: Vec<_> = links.filter_map(|link| self.links[link].looked.beat).collect();
        self.nodes[node].lower_beats(&looked);
        self.lose_keys(node);
        let down = self.looks.draw.below(10 * MILLI);
        self.crash(node, down, false);
    }

    /// Another server has the node's place at once: it ran before, and has the marker and the counts.
    fn replace(&mut self, node: usize) {
        if self.nodes[node].presence != Presence::Up {
            return;
        }
        self.counters.add(Seen::Replaced);
        self.lose_keys(node);
        self.nodes[node].is_another_run();
        self.nodes[node].is_replaced_until = self.now + 2 * self.plan.guard();
        for connection in 0..self.connections.len() {
            if self.connections[connection].node == node {
                self.break_connection(connection, false);
                self.unsubscribe(connection);
            }
        }
    }

    fn stop_and_flush(&mut self) {
        let lasts = self.looks.lasts().as_nanos() as u64;
        let stopped = lasts + lasts / 50 + 20 * self.plan.latency;
        for client in 0..self.clients.len() {
            self.pause(client, stopped);
        }
        self.schedule(self.now + stopped - 1, Event::FlushAll);
    }

    fn stand_still(&mut self, client: usize) {
        let actor = &mut self.clients[client];
        if actor.dead || actor.stood.is_some() || actor.paused_until > self.now {
            return;
        }
        // Less than a second is no jump.
        let still = self.looks.draw.between(1_200, 4_000) * MILLI;
        let resumes = self.now + still;
        self.pause(client, still);
        let actor = &mut self.clients[client];
        // What its own clock would have shown.
        let missed = actor.clock.at(resumes).since(actor.clock.at(self.now));
        actor.clock.step(-(missed.as_nanos() as i64));
        actor.stood = Some((resumes, NodeSet::EMPTY));
    }
}
