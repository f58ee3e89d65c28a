//! All open debts of a client: which is due, and what its answer leaves of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::protocol::message::{ConnectionId, NotSent, Operation, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;

use super::Debt;

/// Most debts kept for one node. At 100 bytes each, a node that is away can cost a client some 10 MB.
pub const MAX_DEBTS_PER_NODE: usize = 65_536;

/// Most settlements in flight to one node: enough to clear 65 536 debts in seconds, few enough that a node that just
/// came back is not flooded.
pub const MAX_IN_FLIGHT: usize = 256;

/// Pause before the first repetition on one node; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between two repetitions, and between two looks at a node that takes nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Names one debt in a [`Ledger`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DebtId(pub u64);

/// A settlement to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// The debt, for the answer.
    pub debt: DebtId,
    /// Where to.
    pub node: NodeId,
    /// What to send.
    pub operation: Operation,
}

/// How the debts so far ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// Cleared by an answer.
    pub answered: u64,
    /// Left to the TTL: nothing settled them before the key must have expired.
    pub expired: u64,
    /// Given up for want of room.
    pub dropped: u64,
}

/// The debts as others see them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Balance {
    /// How many are open.
    pub open: usize,
    /// How the others ended.
    pub settled: Settled,
}

/// All open debts of a client, and when each is to be tried again.
///
/// Drive it like everything here: `owe`, `handle_reply` and `handle_usable` in, then [`Ledger::poll_send`] until it has
/// nothing, then wait until [`Ledger::poll_timeout`] or the next reply.
#[derive(Debug, Default)]
pub struct Ledger {
    debts: BTreeMap<DebtId, OpenDebt>,
    nodes: BTreeMap<NodeId, NodeDebts>,
    next: u64,
    settled: Settled,
}

#[derive(Debug)]
struct OpenDebt {
    debt: Debt,
    /// When it is due; `None` while its settlement is in flight.
    due: Option<Instant>,
    repetitions: u32,
}

#[derive(Debug, Default)]
struct NodeDebts {
    due: BTreeSet<(Instant, DebtId)>,
    ends: BTreeSet<(Instant, DebtId)>,
    in_flight: usize,
    /// The node takes nothing: look again then, with one debt.
    blocked_until: Option<Instant>,
}

impl Ledger {
    /// Takes on a debt, to be tried at once. With no room left, the debt of that node which ends first is given up:
    /// its key expires soonest.
    pub fn owe(&mut self, debt: Debt, now: Instant) {
        let debt = debt.taken_on(now);
        let id = DebtId(self.next);
        self.next += 1;
        let node = self.nodes.entry(debt.node).or_default();
        node.due.insert((now, id));
        node.ends.insert((debt.ends(), id));
        let full = node.ends.len() > MAX_DEBTS_PER_NODE;
        let first_to_end = node.ends.first().map(|(_, id)| *id);
        self.debts.insert(id, OpenDebt { debt, due: Some(now), repetitions: 0 });
        if let (true, Some(first)) = (full, first_to_end) {
            self.remove(first);
            self.settled.dropped += 1;
        }
    }

    /// The answer to a settlement.
    pub fn handle_reply(&mut self, id: DebtId, connection: ConnectionId, reply: &Reply, now: Instant) {
        let Some(entry) = self.debts.get_mut(&id) else { return };
        let Some(node) = self.nodes.get_mut(&entry.debt.node) else { return };
        if entry.due.is_none() {
            node.in_flight = node.in_flight.saturating_sub(1);
        }
        let blocked = match reply {
            // Nobody tells when a full node has room again, which is a matter of round trips.
            Reply::NotSent(NotSent::Backlog) => Some(FIRST_PAUSE),
            Reply::NotSent(_) => Some(LONGEST_PAUSE),
            _ => None,
        };
        node.blocked_until = blocked.map(|pause| now.after(pause));
        let Some(left) = entry.debt.clone().after(connection, reply, now) else {
            self.remove(id);
            self.settled.answered += 1;
            return;
        };
        if left.ends() != entry.debt.ends() {
            node.ends.remove(&(entry.debt.ends(), id));
            node.ends.insert((left.ends(), id));
        }
        entry.debt = left;
        let due = if blocked.is_none() {
            let pause = FIRST_PAUSE.saturating_mul(1 << entry.repetitions.min(10)).min(LONGEST_PAUSE);
            entry.repetitions += 1;
            now.after(pause)
        } else {
            now
        };
        if let Some(before) = entry.due.replace(due) {
            node.due.remove(&(before, id));
        }
        node.due.insert((due, id));
    }

    /// A node takes work again: everything owed to it is due at once.
    pub fn handle_usable(&mut self, node: NodeId, now: Instant) {
        let Some(debts) = self.nodes.get_mut(&node) else { return };
        debts.blocked_until = None;
        let waiting = std::mem::take(&mut debts.due);
        for (_, id) in waiting {
            debts.due.insert((now, id));
            if let Some(entry) = self.debts.get_mut(&id) {
                entry.due = Some(now);
                entry.repetitions = 0;
            }
        }
    }

    /// The next settlement to send, if one is due.
    pub fn poll_send(&mut self, now: Instant) -> Option<Settlement> {
        self.expire(now);
        let (id, node) = self.nodes.iter_mut().find_map(|(id, node)| {
            if node.blocked_until.is_some_and(|until| now < until) || node.in_flight >= MAX_IN_FLIGHT {
                return None;
            }
            let (due, debt) = *node.due.first()?;
            (due <= now).then(|| {
                node.due.pop_first();
                node.in_flight += 1;
                // One debt at a time looks whether a blocked node takes work again.
                node.blocked_until = node.blocked_until.map(|_| now.after(LONGEST_PAUSE));
                (debt, *id)
            })
        })?;
        let entry = self.debts.get_mut(&id)?;
        entry.due = None;
        Some(Settlement { debt: id, node, operation: entry.debt.operation() })
    }

    /// When to poll again, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let moments = self.nodes.values().filter_map(|node| {
            let due = node.due.first().filter(|_| node.in_flight < MAX_IN_FLIGHT);
            let due = due.map(|(due, _)| node.blocked_until.unwrap_or_default().max(*due));
            let ends = node.ends.first().map(|(ends, _)| *ends);
            due.into_iter().chain(ends).min()
        });
        moments.min()
    }

    /// How many debts are open.
    pub fn open(&self) -> usize {
        self.debts.len()
    }

    /// When an open debt ends at the latest.
    pub fn ends(&self, id: DebtId) -> Option<Instant> {
        self.debts.get(&id).map(|entry| entry.debt.ends())
    }

    /// How many debts are open on one node.
    pub fn open_on(&self, node: NodeId) -> usize {
        self.nodes.get(&node).map_or(0, |node| node.ends.len())
    }

    /// How the debts so far ended.
    pub fn settled(&self) -> Settled {
        self.settled
    }

    /// What is open, and how the rest ended.
    pub fn balance(&self) -> Balance {
        Balance { open: self.open(), settled: self.settled }
    }

    fn expire(&mut self, now: Instant) {
        let over: Vec<DebtId> = self
            .nodes
            .values()
            .flat_map(|node| node.ends.iter().take_while(|(ends, _)| *ends <= now).map(|(_, id)| *id))
            .collect();
        for id in over {
            self.remove(id);
            self.settled.expired += 1;
        }
    }

    fn remove(&mut self, id: DebtId) {
        let Some(entry) = self.debts.remove(&id) else { return };
        let Some(node) = self.nodes.get_mut(&entry.debt.node) else { return };
        node.ends.remove(&(entry.debt.ends(), id));
        match entry.due {
            Some(due) => {
                node.due.remove(&(due, id));
            }
            None => node.in_flight = node.in_flight.saturating_sub(1),
        }
    }
}
