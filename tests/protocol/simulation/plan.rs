//! What one seed draws before its history begins: who takes part, the numbers they work with, and which faults come.

use std::time::Duration;

use redquorum::protocol::lease::Terms;
use redquorum::protocol::quorum::Quorum;
use redquorum::protocol::restart::{Memory, RestartDelay};
use redquorum::protocol::validity::{Drift, Ttl};

use super::broken::Switch;
use super::clock::MILLI;
use super::draw::Draw;
use super::faults::Fault;

/// The shape of one history.
#[derive(Clone, Debug)]
pub struct Plan {
    pub quorum: Quorum,
    pub clients: usize,
    /// Tasks of each client.
    pub tasks: Vec<usize>,
    pub keys: usize,
    /// The TTLs that tasks ask for, the longest last.
    pub ttls: [Ttl; 3],
    pub reply_timeout: Duration,
    /// Mean way of a message, in nanoseconds.
    pub latency: u64,
    /// Per mille of messages that take much longer.
    pub slow: u64,
    /// Most unanswered calls of one client on one node.
    pub backlog: usize,
    /// Longest time between two locks of one task, in nanoseconds.
    pub think: u64,
    /// Per mille of acquires that are abandoned at a random moment.
    pub impatience: u64,
    /// Longest pause between two attempts.
    pub backoff: Duration,
    /// The faults that come in this history. Each history has its own choice, since faults hide each other.
    pub faults: Vec<Fault>,
    /// Nothing goes wrong, and all who wait do so in the queue: its order is then demanded.
    pub calm: bool,
    /// Per mille of clients that wait in the queue, and of their acquires that wait at all.
    pub in_queue: u64,
    pub waits: u64,
    /// Longest wait of an acquire, in nanoseconds.
    pub wait: u64,
    /// Per mille of clients that nothing wakes, and of nodes that wake nobody.
    pub deaf: u64,
    pub forbidden: u64,
    /// Per mille of wake-ups that are lost, late or doubled.
    pub wake_trouble: u64,
    /// Per mille of nodes that a client knows under a marker of its own, as after a marker was lost while some of the
    /// clients were connected.
    pub other_markers: u64,
    /// Per mille of hand-overs at which the waiter is dropped, or its wait ends.
    pub bad_timing: u64,
    /// Per mille of nodes that write every change to disk before they answer: they count at once after a crash.
    pub durable: u64,
    /// Somebody deletes keys under us: what then cannot hold is not asked for.
    pub evictions: bool,
    /// Per mille of sets whose connection meets a fault just then.
    pub ambush: u64,
    /// Mean time between two faults, in nanoseconds.
    pub fault_pause: u64,
    /// No fault comes after so many.
    pub most_faults: u64,
    /// Node operations after which everything heals.
    pub operations: u64,
}

fn ttl(millis: u64) -> Ttl {
    let duration = Duration::from_millis(millis);
    Ttl::new(duration, Drift::default(), duration).expect("the drawn TTLs exceed the drift allowance")
}

impl Plan {
    pub fn draw(draw: &mut Draw) -> Self {
        let nodes = draw.pick(&[1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7]);
        let clients = draw.between(1, 5) as usize;
        let latency = draw.spread(50_000, 8 * MILLI);
        let longest = draw.spread(12 * latency / MILLI + 20, 2_000);
        let shorter = draw.between(longest / 2, longest);
        let shortest = draw.between(longest / 4 + 5, longest / 2 + 5);
        let plan = Self {
            quorum: Quorum::of(nodes).expect("at least one node"),
            clients,
            tasks: (0..clients).map(|_| draw.pick(&[1, 1, 1, 1, 2, 3])).collect(),
            keys: draw.pick(&[1, 1, 2, 3]),
            ttls: [ttl(shortest), ttl(shorter), ttl(longest)],
            reply_timeout: Duration::from_nanos(draw.between(4 * latency, 40 * latency).max(2 * MILLI)),
            latency,
            slow: draw.pick(&[0, 20, 100]),
            backlog: draw.pick(&[1, 2, 6, 100]),
            think: draw.spread(MILLI, 100 * MILLI),
            impatience: draw.pick(&[0, 50, 250]),
            backoff: Duration::from_millis(draw.pick(&[60, 250, 500])),
            faults: Fault::draw_choice(draw),
            evictions: draw.chance(50),
            durable: draw.pick(&[0, 500, 1_000, 1_000]),
            ambush: draw.pick(&[0, 10, 50, 200]),
            fault_pause: draw.spread(5 * MILLI, 300 * MILLI),
            most_faults: draw.between(3, 40),
            operations: draw.between(150, 350),
            calm: false,
            in_queue: draw.pick(&[0, 0, 500, 900, 1_000]),
            waits: draw.pick(&[1_000, 900, 600]),
            wait: draw.spread(20 * MILLI, 8_000 * MILLI),
            deaf: draw.pick(&[0, 0, 200]),
            forbidden: draw.pick(&[0, 0, 0, 200]),
            wake_trouble: draw.pick(&[0, 100, 400]),
            bad_timing: draw.pick(&[0, 50, 200]),
            other_markers: draw.pick(&[0, 0, 0, 300]),
        };
        if draw.chance(120) { plan.calmed(draw) } else { plan }
    }

    /// The same without faults, and with TTLs that leave a hand-over time enough.
    fn calmed(mut self, draw: &mut Draw) -> Self {
        self.calm = true;
        (self.slow, self.ambush, self.most_faults, self.backlog) = (0, 0, 0, 100);
        (self.in_queue, self.deaf, self.forbidden, self.wake_trouble) = (1_000, 0, 0, 0);
        (self.evictions, self.other_markers) = (false, 0);
        let longest = draw.spread(16 * self.latency / MILLI + 200, 2_000);
        self.ttls = [longest / 2, longest * 3 / 4, longest].map(ttl);
        self
    }

    /// The terms of one attempt.
    pub fn terms(&self, ttl: Ttl) -> Terms {
        Terms {
            quorum: self.quorum,
            ttl,
            drift: Drift::default(),
            min_validity: ttl.duration() / 10,
            reply_timeout: self.reply_timeout,
        }
    }

    /// The longest TTL that anybody uses.
    pub fn longest_ttl(&self) -> Ttl {
        self.ttls[2]
    }

    /// What a client that was just started knows of a node's memory. A switch lets it take the shortest TTL for the
    /// longest.
    pub fn new_memory(&self, broken: Option<Switch>) -> Memory {
        let longest =
            if broken == Some(Switch::RestartDelayTooShort) { self.ttls[0] } else { self.longest_ttl() };
        Memory::new(Some(RestartDelay::new(longest, Drift::default())))
    }

    /// For how long a node without memory does not count: the longest TTL × (1 + drift) + 2 ms.
    pub fn guard(&self) -> u64 {
        let longest = self.longest_ttl();
        (longest.duration() + Drift::default().allowance(longest)).as_nanos() as u64
    }

    /// A node silent for so long gets no new work.
    pub fn suspect_after(&self) -> u64 {
        3 * self.reply_timeout.as_nanos() as u64
    }

    /// A connection that owes an answer for so long is closed.
    pub fn close_after(&self) -> u64 {
        (4 * self.reply_timeout.as_nanos() as u64).max(1_000 * MILLI)
    }
}
