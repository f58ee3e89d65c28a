//! What a client makes of what one server tells of itself, over all connections to one address.
//!
//! Readings go to the protocol's [`Memory`], and what follows to the client's [`NodeTable`], where votes are weighed. What
//! changes is said once.

use std::sync::Arc;

use tokio::sync::watch;

use super::facts::{self, Look, Mark};
use crate::meter;
use crate::node::{Adoption, Facts, NodeTable};
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::{
    Evidence, Id, Marker, MarkerSeen, Memory, Reading, RestartDelay, Role, Run, Standing,
};
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::NodeName;

/// One address, as its readings show it.
pub(super) struct Health {
    node: NodeId,
    address: Arc<str>,
    node_table: Arc<NodeTable>,
    memory: Memory,
    facts: Facts,
    /// What stands under the marker's name, as far as is known.
    marker: Mark,
    /// What was said of this node already.
    told: Told,
}

#[derive(Default)]
struct Told {
    forbidden: Vec<&'static str>,
    evicts: Option<Arc<str>>,
    replica: bool,
}

impl Health {
    pub(super) fn new(
        node: NodeId,
        address: Arc<str>,
        node_table: Arc<NodeTable>,
        delay: Option<RestartDelay>,
    ) -> Self {
        let (memory, facts, told) = (Memory::new(delay), Facts::default(), Told::default());
        Self { node, address, node_table, memory, facts, marker: Mark::Unread, told }
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
        self.marker = look.marker.clone();
        let cause = self.memory.handle_reading(&reading(look));
        let standing = self.memory.standing();
        self.node_table.set_standing(self.node, standing);
        self.keep_facts(look);
        self.node_table.note(self.node, self.facts.clone());
        self.say(look, standing, cause);
    }

    /// Whether the node has no marker, and may be given one.
    pub(super) fn is_unmarked(&self) -> bool {
        self.marker == Mark::Absent
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
        if look.whole {
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
        self.facts.marker = match &look.marker {
            Mark::Found(marker) => Some(marker.clone()),
            Mark::Unread | Mark::Absent => None,
        };
    }

    fn say(&mut self, look: &Look, standing: Standing, cause: Option<Evidence>) {
        let (node, address) = (self.node, &self.address);
        let mut news: Vec<_> = look.forbidden.clone();
        news.retain(|what| !self.told.forbidden.contains(what));
        if !news.is_empty() {
            tracing::warn!(%node, %address, forbidden = news.join(", "), "not told by this node, done without");
            self.told.forbidden.append(&mut news);
        }
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
        if let (Some(cause), Standing::CountsFrom(from)) = (cause, standing) {
            let remaining = from.since(look.received);
            meter::too_young(address);
            tracing::warn!(
                %node, %address, %cause, ?remaining,
                "this node may have forgotten a lock, its grants do not count for a while"
            );
        }
    }
}

fn reading(look: &Look) -> Reading {
    let id = |text: &Arc<str>| Id::of(text.as_bytes());
    let info = &look.info;
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
        run: look.whole.then_some(run),
        ..Reading::nothing(look.sent, look.received)
    }
}
