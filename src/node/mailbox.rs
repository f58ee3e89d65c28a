//! Where answers go: one mailbox for all calls of one driver.
//!
//! One allocation and one wake-up serve a whole lease, however many nodes answer. A channel per call would cost both
//! once per node and command.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use crate::protocol::in_doubt::Debt;
use crate::protocol::message::{ConnectionId, Operation, Reply};
use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::restart::Standing;
use crate::protocol::time::Instant;

/// As many nodes as most clients have.
const USUAL_NODES: usize = 5;

/// One operation on its way to a node.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// What to do.
    pub(crate) operation: Operation,
    /// What is owed if the answer does not settle it.
    pub(crate) debt: Option<Debt>,
    /// Who wants the answer.
    pub(crate) mailbox: Arc<Mailbox>,
    /// The caller's own name for the call.
    pub(crate) call: u64,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) node: NodeId,
    pub(crate) call: u64,
    /// Whether the call was a set or claim.
    pub(crate) creates: bool,
    pub(crate) connection: ConnectionId,
    pub(crate) reply: Reply,
    /// What the node's grants were worth when it answered.
    pub(crate) standing: Standing,
    /// When the answer was read from the node.
    pub(crate) at: Instant,
}

/// Answers that wait for their driver. Bounded by the calls that the driver has made. Small while there are none: every held
/// lock has one.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    news: Mutex<News>,
    waker: AtomicWaker,
    over: AtomicBool,
}

/// What has come since the last look.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) signals: Option<Box<Signals>>,
}

/// What a waiter in the queue is told besides answers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// Its owner was woken.
    pub(crate) woken: bool,
    /// A look is worthwhile.
    pub(crate) nudged: bool,
    /// It is to look for all of its client from then on, or not any more.
    pub(crate) leads: Option<Option<Instant>>,
    /// These nodes take work again.
    pub(crate) usable: NodeSet,
}

impl Mailbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Puts an answer in and wakes the driver.
    pub(crate) fn deliver(&self, delivery: Delivery) {
        let mut news = self.lock();
        if news.deliveries.capacity() == 0 {
            // For one of each node, as a rule, at once.
            news.deliveries.reserve_exact(USUAL_NODES);
        }
        news.deliveries.push(delivery);
        drop(news);
        self.waker.wake();
    }

    /// Tells the waiter something and wakes it.
    pub(crate) fn signal(&self, tell: impl FnOnce(&mut Signals)) {
        tell(self.lock().signals.get_or_insert_default());
        self.waker.wake();
    }

    /// Takes answers and signals out; pending while there is none. Only one task may poll at a time.
    pub(crate) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<News> {
        self.waker.register(cx.waker());
        let mut news = self.lock();
        if news.deliveries.is_empty() && news.signals.is_none() {
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut *news))
    }

    /// Takes all answers out, in exchange for an empty list; pending while there is none. Only one task may poll at a time.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut Vec<Delivery>) -> Poll<()> {
        self.waker.register(cx.waker());
        let deliveries = &mut self.lock().deliveries;
        if deliveries.is_empty() {
            return Poll::Pending;
        }
        std::mem::swap(deliveries, into);
        Poll::Ready(())
    }

    /// Pending while there is no answer. Only one task may poll at a time.
    pub(crate) fn poll_any(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.lock().deliveries.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Takes all answers that are there.
    pub(crate) fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.lock().deliveries)
    }

    /// Looks at the answers that are there, and leaves them.
    pub(crate) fn look(&self, mut look: impl FnMut(&Delivery)) {
        self.lock().deliveries.iter().for_each(&mut look);
    }

    /// From now on nothing that creates a key may be sent again for this driver. Called before its first release is
    /// handed to a node, so that a node that has to send a command in a second form never sends a set behind its
    /// own release (rule 2).
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Whether [`Mailbox::end`] was called.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        // Pushing and taking cannot leave the list half changed, so a panic elsewhere does not spoil it.
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
