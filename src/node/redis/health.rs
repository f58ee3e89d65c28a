//! What a client makes of what one server tells of itself, over all connections to one address.
//!
//! Readings go to the protocol's [`Memory`], and what follows to the client's [`NodeTable`], where votes are weighed. What
//! changes is said once.

use std::sync::Arc;

use tokio::sync::watch;

use super::command::Abilities;
use super::facts::{self, Asked, Beat, Look, Mark};
use super::rights::{Rights, lost, script_use};
use crate::clock::Clock;
use crate::meter;
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::{
    Episode, Evidence, Id, Marker, MarkerSeen, Memory, Reading, RestartDelay, Role, Run, Standing,
};
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::NodeName;
use crate::registry::{Adoption, Facts, NodeTable, ScriptUse};

/// One address, as its readings show it.
pub(super) struct Health {
    node: NodeId,
    address: Arc<str>,
    node_table: Arc<NodeTable>,
    clock: Clock,
    delays: bool,
    memory: Memory,
    /// How often the client's clock was known to have stood still.
    standstills: u64,
    facts: Facts,
    scripts: Option<ScriptUse>,
    /// What stands under the marker's name, as far as is known.
    marker: Mark,
    /// What was said of this node already.
    told: Told,
}

#[derive(Default)]
struct Told {
    aside: Episode,
    /// A clock that was set ahead, unless it turns out to be the client's.
    clock: Option<Evidence>,
    forbidden: Vec<&'static str>,
    evicts: Option<Arc<str>>,
    replica: bool,
    several: bool,
}

impl Health {
    pub(super) fn new(
        node: NodeId,
        address: Arc<str>,
        node_table: Arc<NodeTable>,
        delay: Option<RestartDelay>,
        clock: Clock,
    ) -> Self {
        let (memory, facts, told) = (Memory::new(delay), Facts::default(), Told::default());
        let (delays, marker, standstills) = (delay.is_some(), Mark::Unread, 0);
        let scripts = None;
        Self { node, address, node_table, clock, delays, memory, standstills, facts, scripts, marker, told }
    }

    /// What a look is to find out that begins now.
    pub(super) fn asked(&self, prefix: Option<&Arc<[u8]>>, whole: bool, tracked: bool) -> Asked {
        let run = self.facts.run_id.clone().filter(|_| self.delays);
        let tracked = tracked && self.delays;
        Asked { prefix: prefix.cloned(), whole, tracked, run, doubts: self.node_table.doubts(self.node) }
    }

    /// The run whose count is to be raised after a look, for a client that goes by it.
    pub(super) fn run_to_raise(&self) -> Option<Arc<str>> {
        self.facts.run_id.clone().filter(|_| self.delays && self.facts.role != Some(Role::Replica))
    }

    /// The client's nodes, this one among them.
    pub(super) fn node_table(&self) -> &NodeTable {
        &self.node_table
    }

    /// Whether nothing that the node grants counts before the next look.
    pub(super) fn is_out_of_date(&self) -> bool {
        self.delays && self.node_table.standing(self.node, self.clock.now()) == Standing::UNSEEN
    }

    /// How the node is to be marked, with what else is known of the client's nodes.
    pub(super) fn adoption(&self, patience: bool, now: Instant) -> Adoption {
        self.node_table.adopt(self.node, patience, now)
    }

    /// Looks again whenever more is known of the other nodes.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.node_table.changes()
    }

    /// Takes in what the server told.
    pub(super) fn take(&mut self, look: &Look) {
        if look.marker != Mark::Unread {
            self.node_table.saw_marker(self.node, look.marker != Mark::Absent);
        }
        if let Some(time) = look.time {
            self.node_table.note_time(self.node, time, look.received);
        }
        self.marker = look.marker.clone();
        // What was read before the clock was put forward is taken in before that is heard of.
        if look.put_forward == self.clock.times_put_forward() {
            self.hear_of_clock();
        }
        let cause = self.memory.handle_reading(&self.reading(look));
        if let Some(jump) = self.memory.jump() {
            self.node_table.jumped(self.node, jump, |by| {
                self.clock.put_forward(by);
                tracing::warn!(
                    ?by,
                    "the clock of this client stood still: what it holds ends that much earlier"
                );
            });
        }
        let standing = self.memory.standing();
        self.node_table.set_standing(self.node, standing);
        self.hear_of_clock();
        self.keep_facts(look);
        self.node_table.note(self.node, self.facts.clone());
        let began = if self.delays { look.sent } else { Instant::FAR_FUTURE };
        self.node_table.looked(self.node, look.doubts, began);
        // A clock that was set is told at the look after, unless it was the client's.
        let earlier = std::mem::take(&mut self.told.clock);
        if cause == Some(Evidence::ClockSet) && self.memory.jump().is_some() {
            self.told.clock = cause;
        }
        let cause = cause.filter(|cause| Some(*cause) != self.told.clock).or(earlier);
        self.say(look, self.memory.standing(), cause);
    }

    /// Takes in what this user may do on the server.
    pub(super) fn take_rights(&mut self, rights: Rights, abilities: Abilities) {
        let scripts = script_use(abilities);
        self.scripts = Some(scripts);
        let mut missing: Vec<_> = rights.missing.iter().map(|(name, _)| *name).collect();
        missing.extend(match scripts {
            ScriptUse::Allowed => None,
            ScriptUse::Replaced => Some("scripts"),
            ScriptUse::Missing => Some("scripts, and SET IFEQ in their place"),
        });
        self.say_forbidden(&missing);
    }

    /// Takes in what raising the count came to.
    pub(super) fn take_beat(&mut self, beat: &Beat) {
        self.say_forbidden(&beat.forbidden);
        let Some(count) = beat.count else { return };
        let cause = self.memory.handle_beat(count, beat.received);
        let standing = self.memory.standing();
        self.node_table.set_standing(self.node, standing);
        self.say_too_young(standing, cause, beat.received);
    }

    /// Takes in that the client's clock stood still, if it did.
    pub(super) fn hear_of_clock(&mut self) {
        let standstills = self.node_table.standstills();
        if self.standstills == standstills && !self.memory.is_blamed() {
            return;
        }
        self.standstills = standstills;
        let Some(stood) = self.node_table.stood_still() else { return };
        if self.memory.handle_stood_still(stood) {
            self.told.clock = self.told.clock.filter(|_| !stood.clears());
        }
        self.node_table.set_standing(self.node, self.memory.standing());
    }

    /// Whether the node has no marker, and may be given one.
    pub(super) fn is_unmarked(&self) -> bool {
        self.marker == Mark::Absent
    }

    /// What stands under the marker's name, if it is a copy of another node's marker that is to be renewed.
    pub(super) fn copied_marker(&self) -> Option<Arc<[u8]>> {
        match &self.marker {
            Mark::Found(marker) if self.node_table.has_copied_marker(self.node) => Some(marker.clone()),
            _ => None,
        }
    }

    /// What names the node for all clients alike, as far as it is known.
    pub(super) fn name(&self) -> Option<NodeName> {
        match (&self.marker, &self.facts.run_id) {
            (Mark::Found(marker), _) => Some(NodeName::of(marker)),
            (_, Some(run_id)) => Some(NodeName::of(run_id.as_bytes())),
            _ => None,
        }
    }

    /// How long the server had been running when it was last asked.
    pub(super) fn uptime(&self) -> std::time::Duration {
        self.facts.uptime.map(|(uptime, _)| uptime).unwrap_or_default()
    }

    fn keep_facts(&mut self, look: &Look) {
        let info = &look.info;
        if !look.whole && self.is_another_run(info) {
            self.facts.run_id = info.run_id.clone();
        }
        if !look.whole {
            self.facts.uptime = info.uptime.map(|uptime| (uptime, look.received)).or(self.facts.uptime);
        } else {
            self.facts = Facts {
                version: info.version(),
                run_id: info.run_id.clone(),
                uptime: info.uptime.map(|uptime| (uptime, look.received)),
                append_only: info.append_only,
                fsync: info.fsync.clone(),
                eviction: info.eviction.clone(),
                ..Facts::default()
            };
        }
        self.facts.role = info.role.or(self.facts.role);
        self.facts.replication = info.replication.clone().or(self.facts.replication.take());
        self.facts.former = info.former.clone();
        self.facts.scripts = self.scripts;
        self.facts.marker = match &look.marker {
            Mark::Found(marker) => Some(marker.clone()),
            Mark::Unread | Mark::Absent => None,
        };
    }

    fn say(&mut self, look: &Look, standing: Standing, cause: Option<Evidence>) {
        self.say_forbidden(&look.forbidden);
        let (node, address) = (self.node, &self.address);
        let evicts = self.facts.eviction.clone().filter(|policy| &**policy != "noeviction");
        if let (Some(policy), true) = (&evicts, look.whole && evicts != self.told.evicts) {
            tracing::warn!(%node, %address, %policy, "this node may evict locks that are held");
        }
        if look.whole {
            self.told.evicts = evicts;
        }
        let replica = self.facts.role == Some(Role::Replica);
        if replica && !self.told.replica {
            tracing::warn!(%node, %address, "this node is a replica, it does not vote");
        }
        self.told.replica = replica;
        let several = standing == Standing::Several;
        if several && !self.told.several {
            tracing::warn!(%node, %address, "several servers answer in turn at this address, it does not vote");
        }
        self.told.several = several;
        self.say_too_young(standing, cause, look.received);
    }

    fn say_forbidden(&mut self, forbidden: &[&'static str]) {
        let (node, address) = (self.node, &self.address);
        let told = &mut self.told.forbidden;
        let mut news: Vec<_> = forbidden.iter().copied().filter(|what| !told.contains(what)).collect();
        if !news.is_empty() {
            let with_loss = |what: &&str| format!("{what} ({})", lost(what));
            let forbidden = news.iter().map(with_loss).collect::<Vec<_>>().join(", ");
            tracing::warn!(%node, %address, forbidden, "forbidden by this node, done without");
            told.append(&mut news);
        }
    }

    fn say_too_young(&mut self, standing: Standing, cause: Option<Evidence>, now: Instant) {
        let is_change = self.told.aside.handle(cause, standing, now);
        let (node, address) = (self.node, &self.address);
        let (Some(cause), Standing::CountsFrom(_)) = (cause, standing) else { return };
        let remaining =
            standing.remaining(now).map_or_else(|| "not known yet".to_owned(), |left| format!("{left:.1?}"));
        if is_change {
            meter::too_young(address);
            tracing::warn!(
                %node, %address, %cause, %remaining,
                "this node may have forgotten a lock, its grants do not count for a while"
            );
        } else {
            tracing::info!(%node, %address, %cause, %remaining, "its grants still do not count");
        }
    }

    /// Whether an old connection leads to another run than the one that is known.
    fn is_another_run(&self, info: &facts::Info) -> bool {
        self.facts.run_id.is_some() && info.run_id.is_some() && self.facts.run_id != info.run_id
    }

    fn reading(&self, look: &Look) -> Reading {
        let id = |text: &Arc<str>| Id::of(text.as_bytes());
        let info = &look.info;
        // What is not asked of an old connection is not known of another run there.
        let run = Run { id: info.run_id.as_ref().map(id), uptime: info.uptime, durable: info.is_durable() };
        Reading {
            time: look.time,
            replication: info.replication.as_ref().map(id),
            role: info.role,
            marker: match &look.marker {
                Mark::Unread => MarkerSeen::Unread,
                Mark::Absent => MarkerSeen::Absent,
                Mark::Found(marker) => {
                    MarkerSeen::Found(Marker { id: Id::of(marker), since: facts::since(marker) })
                }
            },
            run: (look.whole || self.is_another_run(info)).then_some(run),
            former: info.former.as_ref().map(id),
            kept: look.kept,
            ..Reading::nothing(look.sent, look.received)
        }
    }
}
