//! What a waiter is told besides answers: by nodes that wake it, and by the others of its client.

use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::time::Instant;

/// What a waiter is told besides answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// A node has given its vote to the owner.
    Woken,
    /// A look is worthwhile.
    Nudged,
    /// It looks for its group from now on, at this moment next; or not any more.
    Leads(Option<Instant>),
    /// This node takes work again.
    Usable(NodeId),
}

/// The signals to one waiter that it has not taken yet. Nothing is queued: each kind is a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signals {
    pub(super) woken: bool,
    pub(super) nudged: bool,
    pub(super) leads: Option<Option<Instant>>,
    pub(super) usable: NodeSet,
}

impl Signals {
    /// Adds one.
    pub fn add(&mut self, signal: Signal) {
        match signal {
            Signal::Woken => self.woken = true,
            Signal::Nudged => self.nudged = true,
            Signal::Leads(leads) => self.leads = Some(leads),
            Signal::Usable(node) => self.usable.insert(node),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
