//! Where answers go: one mailbox for all calls of one driver.
//!
//! One allocation and one wake-up serve a whole lease, however many nodes answer. A channel per call would cost both
//! once per node and command.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use crate::protocol::answer::Answer;
use crate::protocol::wait_queue::signal::{Signal, Signals};

/// As many nodes as most clients have.
const USUAL_NODES: usize = 5;

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
    pub(crate) answers: Vec<Answer>,
    pub(crate) signals: Option<Box<Signals>>,
}

impl Mailbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Puts an answer in and wakes the driver.
    pub(crate) fn deliver(&self, answer: Answer) {
        let mut news = self.lock();
        if news.answers.capacity() == 0 {
            // For one of each node, as a rule, at once.
            news.answers.reserve_exact(USUAL_NODES);
        }
        news.answers.push(answer);
        drop(news);
        self.waker.wake();
    }

    /// Tells the waiter something and wakes it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.lock().signals.get_or_insert_default().add(signal);
        self.waker.wake();
    }

    /// Takes answers and signals out; pending while there is none. Only one task may poll at a time.
    pub(crate) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<News> {
        self.waker.register(cx.waker());
        let mut news = self.lock();
        if news.answers.is_empty() && news.signals.is_none() {
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut *news))
    }

    /// Takes all answers out, in exchange for an empty list; pending while there is none. Only one task may poll at a time.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut Vec<Answer>) -> Poll<()> {
        self.waker.register(cx.waker());
        let answers = &mut self.lock().answers;
        if answers.is_empty() {
            return Poll::Pending;
        }
        std::mem::swap(answers, into);
        Poll::Ready(())
    }

    /// Pending while there is no answer. Only one task may poll at a time.
    pub(crate) fn poll_any(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.lock().answers.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Takes all answers that are there.
    pub(crate) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut self.lock().answers)
    }

    /// Looks at the answers that are there, and leaves them.
    pub(crate) fn look(&self, mut look: impl FnMut(&Answer)) {
        self.lock().answers.iter().for_each(&mut look);
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
