//! One history: a queue of events in true time, drawn from one seed. Faults first, then healing and progress.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use redquorum::protocol::message::Key;
use redquorum::protocol::time::Instant;

use super::broken::Switch;
use super::client::{Client, Tenure};
use super::clock::{Clock, MILLI, TrueTime, draw_clock};
use super::counters::{Counters, Seen};
use super::draw::Draw;
use super::fencing::Fencing;
use super::laws::{self, Finding, Law, Violation};
use super::line_laws;
use super::line_witness::LineWitness;
use super::looks::{Looked, Looks};
use super::network::{Call, Connection, Link};
use super::node::Node;
use super::plan::Plan;
use super::task::Task;
use super::trace::{Trace, note};
use super::waiter::Queued;
use super::wakeups::Publication;
use super::witness::OwnerWitness;

/// Something that happens at a moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A request reaches its node.
    Arrive(usize),
    /// A stalled connection flows again.
    Flow(usize),
    /// A connection ends on the way.
    Break(usize),
    Thaw(usize),
    Restart(usize),
    /// A node's mood is well again.
    Well(usize),
    /// A node notices that nobody listens on a connection any more.
    Deafen(usize),
    Fault,
    /// All nodes forget.
    FlushAll,
    /// A look reaches its node.
    LookArrives(usize),
    /// The time for progress is over.
    Deadline,
    // What follows happens to a client, and waits while it stands still.
    /// A reply reaches its client.
    Answer(usize),
    /// A client learns that its connection is gone.
    Lost(usize),
    Watch(usize),
    Connect(usize),
    /// A client looks at a node again.
    Look(usize),
    LookAgain(usize),
    LookAnswered(usize),
    /// A client hears that a node may have forgotten.
    ToldOfLoss(usize),
    LeaseTimer(usize),
    LedgerTimer(usize),
    /// An interrupted fan-out goes on.
    Drain(usize),
    /// A wake-up reaches its client.
    WakeUp(usize),
    /// A waiter looks into its mailbox.
    Signal(usize),
    WaiterTimer(usize),
    Task {
        task: usize,
        alarm: u32,
    },
}

/// Faults end at the latest then.
const LONGEST_SAFETY_PHASE: TrueTime = 30_000 * MILLI;

/// A history with more events than this is stuck in a loop.
const MOST_EVENTS: u64 = 200_000;

/// How long a healed world may take to let all in, beyond twice the guard: one guard for nodes that come back late,
/// one TTL for keys that nobody can clear, and this for a crowd in random order.
const CROWD: TrueTime = 3_000 * MILLI;

/// The same for a crowd in the queue: somebody who hangs costs a hand-over and a look, and so does a wake-up that was lost
/// before; two heads that take different nodes for the best give way to each other after eight claims.
const LINE: TrueTime = 6_000 * MILLI;

/// The texts that replies carry, made once.
#[derive(Debug)]
pub struct Words {
    pub lost: Arc<str>,
    pub refused: Arc<str>,
    pub failed: Arc<str>,
}

/// Everything there is.
#[derive(Debug)]
pub struct World {
    pub now: TrueTime,
    queue: BinaryHeap<Reverse<(TrueTime, u64, Event)>>,
    scheduled: u64,
    pub draw: Draw,
    pub plan: Plan,
    pub fencing: Fencing,
    pub looks: Looks,
    pub keys: Vec<Key>,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub tasks: Vec<Task>,
    pub links: Vec<Link>,
    pub connections: Vec<Connection>,
    pub calls: Vec<Call>,
    pub tenures: Vec<Tenure>,
    pub waiters: Vec<Queued>,
    pub publications: Vec<Publication>,
    /// What the queues went through, by key and node.
    pub line_records: Vec<LineWitness>,
    /// The last idle look for each client, key and node.
    pub idle_looks: BTreeMap<(usize, usize, usize), Instant>,
    /// Tenures whose holder may act, or thinks so.
    pub holders: Vec<usize>,
    pub owners: Vec<OwnerWitness>,
    pub healed: bool,
    pub healed_at: TrueTime,
    /// When the last task got what it waited for.
    pub all_in_at: TrueTime,
    pub operations: u64,
    pub faults: u64,
    pub counters: Counters,
    pub trace: Trace,
    pub words: Words,
    pub broken: Option<Switch>,
    violation: Option<Violation>,
}

impl World {
    /// The world that `seed` draws, with a switch or none.
    pub fn new(seed: u64, broken: Option<Switch>, trace: Trace) -> Self {
        let mut draw = Draw::new(seed);
        let mut plan = Plan::draw(&mut draw);
        plan.evictions &= broken.is_none();
        if broken == Some(Switch::HeadsNeverGiveWay) {
            plan.other_markers = 500;
        }
        let node = |number| {
            Node::new(
                node_clock(&mut draw, broken),
                number,
                draw.chance(plan.forbidden),
                draw.chance(plan.durable),
            )
        };
        let mut nodes: Vec<Node> = (0..plan.quorum.nodes()).map(node).collect();
        let mut fencing = Fencing::draw(seed, &plan, broken);
        let looks = Looks::draw(seed, &plan, broken);
        if fencing.is_on() {
            nodes.iter_mut().for_each(|node| node.clock = node.clock.begun_at(fencing.node_origin()));
        }
        let client = |number| {
            let (in_queue, deaf) = (draw.chance(plan.in_queue), draw.chance(plan.deaf));
            Client::new(draw_clock(&mut draw), number, in_queue, deaf, plan.quorum)
        };
        let clients = (0..plan.clients).map(client).collect();
        let (tasks, longest) = (plan.tasks.iter().enumerate(), plan.longest_ttl());
        let tasks =
            tasks.flat_map(|(client, count)| (0..*count).map(move |_| Task::new(client, longest))).collect();
        let link = |draw: &mut Draw| Link {
            connection: None,
            suspect: false,
            usable_since: Instant::default(),
            name: None,
            other_marker: draw.chance(plan.other_markers),
            speed: draw.between(300, 1_200),
            memory: plan.new_memory(broken),
            looked: Looked::default(),
        };
        let links = (0..plan.clients * plan.quorum.nodes()).map(|_| link(&mut draw)).collect();
        let mut world = Self {
            now: 0,
            queue: BinaryHeap::with_capacity(256),
            scheduled: 0,
            keys: (0..plan.keys).map(|key| Key::new(format!("k{key}").into_bytes())).collect(),
            nodes,
            clients,
            tasks,
            links,
            connections: Vec::with_capacity(64),
            calls: Vec::with_capacity(1_024),
            tenures: Vec::with_capacity(128),
            waiters: Vec::with_capacity(64),
            publications: Vec::new(),
            line_records: vec![LineWitness::default(); plan.keys * plan.quorum.nodes()],
            idle_looks: BTreeMap::new(),
            holders: Vec::new(),
            owners: Vec::with_capacity(128),
            healed: false,
            healed_at: 0,
            all_in_at: 0,
            operations: 0,
            faults: 0,
            counters: Counters::default(),
            trace,
            words: Words { lost: "reset".into(), refused: "READONLY".into(), failed: "ERR in script".into() },
            broken,
            violation: None,
            draw,
            plan,
            fencing,
            looks,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        note!(self, "{:?}", self.plan);
        for link in 0..self.links.len() {
            self.schedule(0, Event::Connect(link));
        }
        for task in 0..self.tasks.len() {
            self.think(task);
        }
        self.begin_looks();
        let first = self.draw.below(2 * self.plan.fault_pause);
        self.schedule(first, Event::Fault);
    }

    pub fn schedule(&mut self, at: TrueTime, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled, event)));
    }

    /// Records what a checker found, if its law counts: while a switch is on, that is the one whose checker has to
    /// find it; where keys are deleted under us, all but those that no lock could hold then.
    pub fn demand(&mut self, law: Law, finding: Finding) {
        let Err(detail) = finding else { return };
        let excused = self.plan.evictions
            && matches!(law, Law::MutualExclusion | Law::ValidityIsCovered | Law::TokensRise);
        let counts = self.broken.map_or(!excused, |switch| switch.law() == law);
        if counts && self.violation.is_none() {
            note!(self, "VIOLATION of {law:?}: {detail}");
            self.violation = Some(Violation { law, at: self.now, detail });
        }
    }

    /// Plays the history to its end, or to the first violation.
    pub fn run(&mut self) -> Option<Violation> {
        let mut events = 0;
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            self.now = at;
            events += 1;
            if events > MOST_EVENTS {
                self.demand(Law::Progress, Err(format!("no end after {MOST_EVENTS} events")));
                break;
            }
            self.happen(event);
            if self.violation.is_some() {
                return self.violation.take();
            }
            let enough = self.operations >= self.plan.operations || self.now >= LONGEST_SAFETY_PHASE;
            if enough && !self.healed {
                self.heal();
                let crowd = if self.plan.in_queue > 0 { LINE } else { CROWD };
                let still = self.clients.iter().filter_map(|client| client.stood).map(|(until, _)| until);
                let all_there = still.fold(self.now, TrueTime::max);
                self.schedule(all_there + 2 * self.plan.guard() + crowd, Event::Deadline);
            }
        }
        self.end();
        self.violation.take()
    }

    fn happen(&mut self, event: Event) {
        if let Some(client) = self.client_of(event) {
            let resumes = self.clients[client].paused_until;
            if self.clients[client].dead {
                return;
            }
            if resumes > self.now {
                return self.schedule(resumes, event);
            }
        }
        match event {
            Event::Arrive(call) => self.arrive(call),
            Event::Flow(connection) => self.release_stuck(connection, false),
            Event::Break(connection) => self.break_connection(connection, true),
            Event::Thaw(node) => self.thaw(node),
            Event::Restart(node) => self.restart(node),
            Event::Well(node) => self.nodes[node].mood = super::node::Mood::Well,
            Event::Deafen(connection) => self.unsubscribe(connection),
            Event::Fault => self.strike(),
            Event::Deadline => {
                let finding = laws::progress(self);
                self.demand(Law::Progress, finding);
            }
            Event::Answer(call) => self.answer(call),
            Event::Lost(connection) => self.lose_connection(connection),
            Event::Watch(connection) => self.look_at(connection),
            Event::Connect(link) => self.connect(link),
            Event::LeaseTimer(tenure) => self.lease_timer(tenure),
            Event::LedgerTimer(client) => self.drive_ledger(client),
            Event::Drain(tenure) => self.drain(tenure),
            Event::WakeUp(publication) => self.hear(publication),
            Event::Signal(waiter) => self.drive(waiter),
            Event::WaiterTimer(waiter) => self.waiter_timer(waiter),
            Event::Task { task, alarm } => self.wake(task, alarm),
            Event::FlushAll => self.flush_all(),
            Event::LookArrives(look) => self.look_arrives(look),
            Event::Look(link) => self.look_regularly(link),
            Event::LookAgain(link) => self.look_again(link),
            Event::LookAnswered(look) => self.look_answered(look),
            Event::ToldOfLoss(connection) => self.hear_of_loss(connection),
        }
    }

    fn client_of(&self, event: Event) -> Option<usize> {
        match event {
            Event::Answer(call) => Some(self.connections[self.calls[call].connection].client),
            Event::Lost(connection) | Event::Watch(connection) | Event::ToldOfLoss(connection) => {
                Some(self.connections[connection].client)
            }
            Event::LookAnswered(look) => Some(self.connections[self.looks.connection(look)].client),
            Event::Connect(link) | Event::Look(link) | Event::LookAgain(link) => {
                Some(link / self.nodes.len())
            }
            Event::LeaseTimer(tenure) | Event::Drain(tenure) => Some(self.tenures[tenure].client),
            Event::LedgerTimer(client) => Some(client),
            Event::WakeUp(number) => Some(self.connections[self.publications[number].connection].client),
            Event::Signal(waiter) | Event::WaiterTimer(waiter) => Some(self.waiters[waiter].client),
            Event::Task { task, .. } => Some(self.tasks[task].client),
            _ => None,
        }
    }

    /// Nothing happens any more: every lease is over, every debt has ended.
    fn end(&mut self) {
        let finding = laws::progress(self);
        self.demand(Law::Progress, finding);
        let finding = laws::all_debts_end(self);
        self.demand(Law::DebtsAreBounded, finding);
        let finding = laws::no_leftovers(self, false);
        self.demand(Law::NoLeftovers, finding);
        let finding = line_laws::no_leftovers_in_line(self, false);
        self.demand(Law::NoLeftoversInLine, finding);
        self.now += 2 * self.plan.guard();
        let finding = laws::no_leftovers(self, true);
        self.demand(Law::NoLeftovers, finding);
        self.now += line_laws::LIFE;
        let finding = line_laws::no_leftovers_in_line(self, true);
        self.demand(Law::NoLeftoversInLine, finding);
        note!(self, "the end");
    }

    /// How much of its time the healed world took for a crowd in random order.
    pub fn recovery(&self) -> TrueTime {
        self.all_in_at.saturating_sub(self.healed_at + 2 * self.plan.guard())
    }

    /// Grants so far.
    pub fn grants(&self) -> u64 {
        self.counters.get(Seen::Granted)
    }
}

/// A node's clock within the bound, or beyond it while that is switched on.
fn node_clock(draw: &mut Draw, broken: Option<Switch>) -> Clock {
    let clock = draw_clock(draw);
    match broken {
        Some(Switch::DriftBeyondBound) => Clock::new(clock.origin(), draw.between(1_020_000, 1_100_000)),
        _ => clock,
    }
}
