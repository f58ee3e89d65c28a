//! One node: the real `Store`, a clock of its own, and what can befall it.

use std::collections::BTreeMap;
use std::time::Duration;

use redquorum::node::store::Store;
use redquorum::protocol::message::{HolderValue, Key, Operation, Owner, Reply, Unknown};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::restart::{Id, Marker, MarkerSeen, Reading, Run};
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::rank::NodeName;

use super::broken::Switch;
use super::clock::{Clock, MILLI, TrueTime};
use super::counters::Seen;
use super::falsify::{execute_falsely, give_life_falsely};
use super::falsify_line::keep_line_falsely;
use super::fencing::count_falsely;
use super::laws::{self, Law};
use super::line_witness::Change;
use super::trace::note;
use super::world::World;

/// Whether a node is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    Up,
    /// It executes nothing, and keeps what reaches it.
    Frozen,
    Down,
}

/// How a node that is there takes commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    Well,
    /// Refuses to write, before executing anything.
    Refusing,
    /// Fails in the middle: an error that leaves open whether the command was executed.
    Failing,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    pub store: Store,
    pub clock: Clock,
    pub presence: Presence,
    pub mood: Mood,
    /// Requests that reached a frozen node.
    pub unread: Vec<usize>,
    /// How often its marker was made anew, and since when it says that its memory is whole, on its own clock; `None` until
    /// a client sets one.
    marker: u64,
    marked: Option<u64>,
    /// When it was started last, on its own clock; `None` where that is long ago.
    started: Option<Instant>,
    /// How often it was started.
    run: u64,
    /// How often looks were counted, by run.
    beats: BTreeMap<u64, u64>,
    /// It writes every change to disk before it answers, and says so.
    durable: bool,
    number: usize,
    /// Nobody may publish on it.
    pub forbids_wake_ups: bool,
    /// When it last lost its memory.
    pub lost_memory: Option<TrueTime>,
    /// When it comes back.
    pub down_until: TrueTime,
    /// Another server took its place; what it may lack has ended by then.
    pub is_replaced_until: TrueTime,
}

impl Node {
    pub fn new(clock: Clock, number: usize, forbids_wake_ups: bool, durable: bool) -> Self {
        let mut store = Store::default();
        store.set_may_publish(!forbids_wake_ups);
        Self {
            store,
            number,
            marker: 0,
            marked: Some(0),
            started: None,
            run: 0,
            beats: BTreeMap::new(),
            durable,
            forbids_wake_ups,
            clock,
            presence: Presence::Up,
            mood: Mood::Well,
            unread: Vec::new(),
            lost_memory: None,
            down_until: 0,
            is_replaced_until: 0,
        }
    }

    pub fn answers(&self) -> bool {
        self.presence == Presence::Up
    }

    /// What names the node for all clients: it changes with its memory. Some may know it by an older one.
    pub fn name(&self, older: bool) -> NodeName {
        let older = if older { "old " } else { "" };
        NodeName::of(format!("{older}marker {} of {}", self.marker, self.number).as_bytes())
    }

    /// Everything that it kept is gone, its marker too.
    pub fn forget(&mut self) {
        self.store.wipe();
        self.beats.clear();
        self.marker += 1;
        self.marked = None;
    }

    /// It runs anew, with what it kept.
    pub fn start(&mut self, now: TrueTime) {
        self.started = Some(self.clock.at(now));
        // Restarted before anybody looked at it, another server would be taken for the one before: that is an assumption.
        self.durable &= self.is_replaced_until <= now;
        self.run += 1;
    }

    /// What it tells on a new connection. The client reads it at once, and sets a marker where there is none: whoever
    /// connects to these nodes knows that they were met before.
    ///
    /// `known` is the run that the client knew before, whose count it asks for.
    pub fn reading(&mut self, now: TrueTime, read: Instant, known: Option<u64>) -> [Reading; 2] {
        let time = self.clock.at(now).as_nanos() / 1_000;
        // Whole seconds, as the difference of two readings that were cut.
        let seconds = |moment: Instant| moment.as_nanos() / 1_000_000_000;
        let uptime = self.started.map_or(100_000, |started| time / 1_000_000 - seconds(started));
        let id = |number: u64| Id::of(&number.to_le_bytes());
        let run =
            Run { id: Some(id(self.run)), uptime: Some(Duration::from_secs(uptime)), durable: self.durable };
        let found = |since| MarkerSeen::Found(Marker { id: id(self.marker), since });
        let marker = self.marked.map_or(MarkerSeen::Absent, found);
        let kept = known.map(|run| self.beats.get(&run).copied().unwrap_or_default());
        let first =
            Reading { time: Some(time), marker, run: Some(run), kept, ..Reading::nothing(read, read) };
        let since = *self.marked.get_or_insert(time);
        let marker = MarkerSeen::Found(Marker { id: id(self.marker), since });
        [first, Reading { run: None, marker, kept: None, ..first }]
    }

    /// Which run of the server this is.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// A client raises the count of looks in this run.
    pub fn raise_beat(&mut self) -> u64 {
        let count = self.beats.entry(self.run).or_default();
        *count += 1;
        *count
    }

    /// It has an older state than all who looked remember, by run and count.
    pub fn lower_beats(&mut self, looked: &[(u64, u64)]) {
        for (run, remembered) in looked {
            let count = self.beats.entry(*run).or_default();
            *count = (*count).min(remembered - 1);
        }
    }

    /// Another server, which has been running for long, is in its place.
    pub fn is_another_run(&mut self) {
        self.run += 1;
        self.started = None;
    }

    /// What the node shows under a key at `now`.
    pub fn value(&mut self, key: &Key, now: TrueTime) -> Option<HolderValue> {
        self.store.holder(key, self.clock.at(now)).map(|holder| holder.value)
    }

    /// Until when the node truly keeps a key for `owner`; `None` where it carries something else, or nothing.
    pub fn keeps_until(&mut self, key: &Key, owner: Owner, now: TrueTime) -> Option<TrueTime> {
        let local = self.clock.at(now);
        let holder = self.store.holder(key, local)?;
        if holder.value != HolderValue::Owner(owner) {
            return None;
        }
        let remaining = holder.remaining?.as_nanos() as u64;
        // A key is kept through the millisecond in which its life ends.
        let last = local.as_nanos() / MILLI * MILLI + remaining + MILLI;
        Some(self.clock.when(Instant::from_nanos(last)))
    }

    /// Whether the node carries an owner at this moment of its own clock.
    pub fn carries_at(&mut self, key: &Key, owner: Owner, local: Instant) -> bool {
        self.store.holder(key, local).is_some_and(|holder| holder.value == HolderValue::Owner(owner))
    }

    pub fn carries(&mut self, key: &Key, owner: Owner, now: TrueTime) -> bool {
        self.value(key, now) == Some(HolderValue::Owner(owner))
    }
}

impl World {
    /// A request is in the node's hands.
    pub fn read_request(&mut self, call: usize) {
        let node = self.connections[self.calls[call].connection].node;
        match self.nodes[node].presence {
            Presence::Up => self.perform(node, call),
            Presence::Frozen => self.nodes[node].unread.push(call),
            Presence::Down => {}
        }
    }

    fn perform(&mut self, node: usize, call: usize) {
        let reply = match self.nodes[node].mood {
            Mood::Well => self.execute(node, call),
            Mood::Refusing => {
                self.counters.add(Seen::ServerRefused);
                Reply::Refused(self.words.refused.clone())
            }
            Mood::Failing => {
                self.counters.add(Seen::ServerInDoubt);
                if self.draw.chance(500) {
                    self.execute(node, call);
                    self.calls[call].truly_granted = false;
                }
                Reply::Unknown(Unknown::Error(self.words.failed.clone()))
            }
        };
        let done = &self.calls[call];
        note!(self, "{} executes {} o{}: {reply:?}", NodeId::new(node), done.operation.name(), done.owner);
        self.calls[call].reply = Some(reply);
        self.respond(call);
    }

    /// Executes one operation on the store, watching what it does to the key.
    fn execute(&mut self, node: usize, call: usize) -> Reply {
        let owner = self.calls[call].owner;
        let subject = self.owners[owner].owner;
        let place = &mut self.nodes[node];
        let local = place.clock.at(self.now);
        let key = self.calls[call].operation.key();
        let (before, life) =
            place.store.holder(key, local).map(|holder| (holder.value, holder.remaining)).unzip();
        let counted = place.store.counter(key, local).map(|counter| counter.owner);
        let operation = &self.calls[call].operation;
        let released = match self.broken {
            Some(Switch::HandsOverToReleased) => self.retired_before(owner),
            _ => None,
        };
        let place = &mut self.nodes[node];
        let falsely = execute_falsely(self.broken, place, operation, local)
            .or_else(|| keep_line_falsely(self.broken, place, operation, released, local))
            .or_else(|| count_falsely(self.broken, place, operation, local))
            .or_else(|| give_life_falsely(self.broken, &self.plan.ttls, place, operation, local));
        let reply = falsely.unwrap_or_else(|| place.store.execute(operation, local));
        let (after, left) =
            place.store.holder(key, local).map(|holder| (holder.value, holder.remaining)).unzip();
        let wake_ups = place.store.take_wake_ups();

        let carried = before == Some(HolderValue::Owner(subject));
        let carries = after == Some(HolderValue::Owner(subject));
        let operation = operation.clone();
        let creates = operation.creates();
        let change = Change { before, after };
        self.calls[call].truly_granted = reply.is_granted() && (creates || carried);
        self.demand(Law::OthersAreUntouched, laws::others_are_untouched(subject, &operation, &change));
        if carries && carried {
            self.demand(
                Law::LivesOnlyGrow,
                laws::lives_only_grow(&operation, life.flatten(), left.flatten()),
            );
        }
        if matches!(&operation, Operation::Extend { ttl, .. } if !self.plan.ttls.contains(ttl)) {
            self.counters.add(Seen::AskedForWhatIsLeft);
        }
        if carries {
            self.demand(Law::SettledStaysClear, laws::settled_stays_clear(&self.owners[owner], node));
        }
        self.witness_execution(node, call, creates && carries && !carried, carries && carried);
        self.witness_line(node, owner, &operation, &reply, &change);
        self.witness_counter(node, call, &reply, counted);
        self.publish(node, wake_ups);
        reply
    }
}
