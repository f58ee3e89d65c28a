//! Faults that clients have to notice by looking at their nodes: memories that went, servers that took another's place, clocks that
//! are wrong.
//!
//! docs/safety.md says what is not noticed. This storm leaves it out, as the simulation does:
//!
//! | left out | how |
//! | --- | --- |
//! | a state that is not older than a client's last look | a copy is put back only if every client has looked since it was made |
//! | a promotion, a set clock or a flush, for clients that did not know the nodes before | every client has seen the nodes; none starts until the restart delay is over |
//! | a promoted server, restarted before a client looks at it; a clock set forward and back between two looks | every client has noticed before it goes on |
//! | a node's clock set forward, until the next look | its connections end with it |
//! | clocks of a majority of nodes set forward by the same amount | amounts differ |
//! | the client's clock stood still, until it looks | what a client believes meanwhile is not written down: for a second, or six if its wall clock stood still as well |

use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rustix::process::Signal;

use super::history::{Fault, Kind, Target};
use super::known::{self, Known};
use super::nodes::{NODES, Nodes};
use super::servers::{DURABLE, Servers};
use super::storm::{CLIENTS, Storm, signal};
use super::time::Nanos;
use super::{TTL, ms};
use harness::Proxy;

/// By how much a node's clock is wrong at most.
pub const FARTHEST: Duration = Duration::from_secs(32);

/// A client looks at each node this often.
const LOOK: Duration = Duration::from_secs(5);

/// The restart delay, and what it takes to hear of a fault.
const DELAY: Duration = Duration::from_millis(2_500);

/// Every client is connected to every node within that time of quiet, or something is wrong.
const SOON: Duration = Duration::from_secs(15);

fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

impl Storm {
    /// As [`Storm::hit`].
    pub fn hit_noticed(&mut self, kind: Kind) -> Option<usize> {
        match kind {
            Kind::FlushedAll => self.flush_all(),
            Kind::Restored => self.restore(),
            Kind::Promoted => self.promote(),
            Kind::SteppedNode => self.step_nodes(),
            _ => self.stand_still(),
        }
    }

    fn servers(&mut self) -> Option<&mut Servers> {
        match &mut self.nodes {
            Nodes::Servers(servers) => Some(servers),
            Nodes::Containers(_) => None,
        }
    }

    /// Every node forgets at the same moment. One client may stand still meanwhile.
    fn flush_all(&mut self) -> Option<usize> {
        self.until_all("that there are nodes", |known| known.iter().all(|node| !node.run.is_empty()));
        let delays: Vec<_> = (0..NODES).map(|_| ms(self.random.random_range(0..8))).collect();
        let command = *["FLUSHALL", "FLUSHDB"].choose(&mut self.random).expect("a command");
        let paused = self.random.random_bool(0.3).then(|| self.random.random_range(0..CLIENTS));
        let from = self.time.now();
        if let Some(place) = paused {
            signal(&self.clients[place].child, Signal::STOP);
            thread::sleep(ms(self.random.random_range(10..500)));
        }
        self.nodes.flush_all(&delays, command);
        if let Some(place) = paused {
            thread::sleep(ms(self.random.random_range(0..100)));
            signal(&self.clients[place].child, Signal::CONT);
            self.note(Kind::Paused, Target::Client(place), from);
        }
        for node in 0..NODES {
            self.note(Kind::FlushedAll, Target::Node(node), from);
        }
        self.no_newcomers();
        Some(NODES)
    }

    /// The first copies, as soon as all clients are there.
    pub fn begin_copies(&mut self) {
        self.until_all("its nodes", |known| known.iter().all(|node| node.since > 0));
        if let Nodes::Servers(servers) = &self.nodes {
            (0..DURABLE).for_each(|node| servers.back_up(node));
            self.copied = vec![Some(self.time.now()); DURABLE];
        }
    }

    /// A durable node goes back to an older state of itself. If there is none that is old enough, one is made for later.
    fn restore(&mut self) -> Option<usize> {
        let node = self.random.random_range(0..DURABLE);
        let Some(copied) = self.copied[node] else {
            self.servers()?.back_up(node);
            self.copied[node] = Some(self.time.now());
            return None;
        };
        thread::sleep(ms(300));
        // A regular look came after the copy, and so did the count that is raised with it.
        if self.time.now() < copied + nanos(LOOK + ms(1_000)) {
            return None;
        }
        self.until_all_at("a node that is well", |at, known| {
            known[node].since > 0 && at > known[node].since + nanos(ms(500))
        });
        let away = self.cut_off_two(node);
        let from = self.time.now();
        self.servers()?.restore(node);
        self.note(Kind::Restored, Target::Node(node), from);
        self.come_back(away);
        self.copied[node] = None;
        self.until_seen(node);
        Some(1)
    }

    /// A replica, which lacks what its primary did last, takes the primary's place behind the same address.
    fn promote(&mut self) -> Option<usize> {
        let node = self.random.random_range(0..DURABLE);
        self.until_seen(node);
        if !self.servers()?.replicate(node) {
            return None;
        }
        let away = self.cut_off_two(node);
        let from = self.time.now();
        self.servers()?.promote();
        thread::sleep(ms(self.random.random_range(1..800)));
        let Nodes::Servers(servers) = &mut self.nodes else { return None };
        let promoted = servers.change_places(node);
        self.proxies.iter().for_each(|row| row[node].leads_to(promoted));
        self.proxies.iter().for_each(|row| row[node].reset());
        self.note(Kind::Promoted, Target::Node(node), from);
        self.come_back(away);
        self.until_seen(node);
        self.servers()?.renew_spare();
        self.no_newcomers();
        Some(1)
    }

    /// Clocks of nodes are set wrong, and after a while set right.
    fn step_nodes(&mut self) -> Option<usize> {
        let nodes = self.some_nodes();
        self.until_counted(&nodes);
        for back in [false, true] {
            let away = if nodes.len() == 1 { self.cut_off_two(nodes[0]) } else { Vec::new() };
            let from = self.time.now();
            let links = |storm: &Self, act: fn(&Proxy)| {
                storm.proxies.iter().for_each(|row| nodes.iter().for_each(|node| act(&row[*node])));
            };
            links(self, Proxy::refuse);
            links(self, Proxy::reset);
            for node in &nodes {
                // No two of them by nearly the same, nor by what a client's clock misses.
                let step = 5.0 + 6.0 * *node as f64 + self.random.random_range(0.0..1.0);
                let wrong = if self.random.random_bool(0.5) { step } else { -step };
                self.servers()?.set_clock(*node, if back { 0.0 } else { wrong });
            }
            links(self, Proxy::accept);
            self.come_back(away);
            self.until_all("a set clock", |known| {
                nodes.iter().all(|node| known[*node].since > 0 && !known[*node].counts)
            });
            for node in &nodes {
                self.note(Kind::SteppedNode, Target::Node(*node), from);
            }
            if !back {
                // They vote again, by a clock that is wrong.
                self.until_counted(&nodes);
                thread::sleep(ms(self.random.random_range(50..1_500)));
            }
        }
        self.no_newcomers();
        Some(nodes.len())
    }

    /// All clients stand still, and the machine's clock with them, as in a virtual machine that is paused. Its wall clock is right
    /// again at once, or some seconds later.
    fn stand_still(&mut self) -> Option<usize> {
        self.until_all("its nodes", |known| known.iter().all(|node| node.since > 0));
        let by = ms(self.random.random_range(1_500..3_000));
        let wall_goes_on = self.random.random_bool(0.7);
        let notice = if wall_goes_on { ms(1_000) } else { LOOK + ms(1_000) };
        let from = self.time.now();
        self.clients.iter().for_each(|client| signal(&client.child, Signal::STOP));
        thread::sleep(ms(self.random.random_range(5..200)));
        self.servers()?.go_on(by);
        if wall_goes_on {
            self.wall += by.as_secs_f64();
            self.show_wall();
        }
        self.time.stood_still(by, notice);
        self.clients.iter().for_each(|client| signal(&client.child, Signal::CONT));
        thread::sleep(notice);
        for place in 0..CLIENTS {
            self.note(Kind::StoodStill, Target::Client(place), from);
        }
        if !wall_goes_on {
            self.wall += by.as_secs_f64();
            self.show_wall();
        }
        Some(CLIENTS)
    }

    /// Two other nodes are away for a moment, mostly: locks that are taken now are on this node and on two more, and on no others when
    /// those come back.
    fn cut_off_two(&mut self, node: usize) -> Vec<(usize, Nanos)> {
        if self.random.random_bool(0.2) {
            return Vec::new();
        }
        let mut others: Vec<_> = (0..NODES).filter(|other| *other != node).collect();
        others.shuffle(&mut self.random);
        others.truncate(NODES / 2);
        let from = self.time.now();
        for link in self.proxies.iter().flat_map(|row| others.iter().map(|other| &row[*other])) {
            link.refuse();
            link.reset();
        }
        thread::sleep(ms(self.random.random_range(300..900)));
        others.into_iter().map(|other| (other, from)).collect()
    }

    fn come_back(&mut self, away: Vec<(usize, Nanos)>) {
        for (node, from) in away {
            self.proxies.iter().for_each(|row| row[node].accept());
            self.note(Kind::Disconnected, Target::Node(node), from);
        }
    }

    fn note(&mut self, kind: Kind, target: Target, from: Nanos) {
        let to = self.time.now();
        self.faults.push(Fault { kind, target, from, to });
    }

    fn no_newcomers(&mut self) {
        self.newcomers_from = self.time.now() + nanos(DELAY);
    }

    // What the clients know.

    /// Waits until each client has told, from now on, that it knows this. One that does not has failed.
    fn until_all(&mut self, what: &str, wanted: impl Fn(&[Known]) -> bool) {
        self.until_all_at(what, |_, known| wanted(known));
    }

    /// The same, by the time at which a client told it.
    fn until_all_at(&mut self, what: &str, wanted: impl Fn(Nanos, &[Known]) -> bool) {
        let (asked, deadline) = (self.time.now(), Instant::now() + SOON);
        for (place, client) in self.clients.iter().enumerate() {
            loop {
                let told = known::read(&self.folder, client.child.id());
                let fresh = told.as_ref().filter(|(at, nodes)| *at > asked && nodes.len() == NODES);
                if fresh.is_some_and(|(at, nodes)| wanted(*at, nodes)) {
                    break;
                }
                if Instant::now() > deadline {
                    let failed = format!("client {place} did not notice {what} within {SOON:?}: {told:?}");
                    self.failed.push(failed);
                    break;
                }
                thread::sleep(ms(10));
            }
        }
    }

    /// Waits until the grants of these nodes count for every client.
    fn until_counted(&mut self, nodes: &[usize]) {
        self.until_all("nodes that vote", |known| {
            nodes.iter().all(|node| known[*node].since > 0 && known[*node].counts)
        });
    }

    /// Waits until every client is connected to the run of the server that is at this node.
    fn until_seen(&mut self, node: usize) {
        let Some(run) = self.servers().map(|servers| servers.run(node)) else { return };
        self.until_all("another run", |known| known[node].since > 0 && known[node].run == run);
    }
}

const _: () = assert!(TTL.as_millis() * 101 / 100 + 2 < DELAY.as_millis());
