//! The way of open outcomes from the nodes to the task that settles them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::mpsc;

use crate::protocol::in_doubt::Debt;
use crate::protocol::quorum::NodeId;

/// What a node tells the one who settles debts.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A release was not settled by its answer, or could not be sent.
    Owed(Debt),
    /// A node takes work again.
    Usable(NodeId),
}

/// The way of debts and other notices to the one who settles them.
///
/// Counts what is on its way, so that nobody takes a client for idle while a debt is between two hands.
#[derive(Debug)]
pub(crate) struct Debts {
    notices: mpsc::UnboundedSender<Notice>,
    under_way: AtomicUsize,
    left: AtomicBool,
}

impl Debts {
    /// The way, and its end.
    pub(crate) fn channel() -> (Arc<Self>, mpsc::UnboundedReceiver<Notice>) {
        let (notices, receiver) = mpsc::unbounded_channel();
        (Arc::new(Self { notices, under_way: AtomicUsize::new(0), left: AtomicBool::new(false) }), receiver)
    }

    /// How many notices are on their way.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// Whether a debt was left to its TTL, because nobody settles debts any more.
    pub(crate) fn were_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// Notices were taken up, and show where they now stand.
    pub(crate) fn arrived(&self, count: usize) {
        self.under_way.fetch_sub(count, Ordering::SeqCst);
    }

    /// Tells it.
    pub(crate) fn send(&self, notice: Notice) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        if let Err(refused) = self.notices.send(notice) {
            // The client is gone; the TTL clears what it leaves.
            if matches!(refused.0, Notice::Owed(_)) {
                self.left.store(true, Ordering::SeqCst);
            }
            self.arrived(1);
        }
    }
}
