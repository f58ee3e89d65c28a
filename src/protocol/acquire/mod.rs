//! One acquisition: attempt after attempt, or a stay in the wait queue, until the lock is held or there is no use in going
//! on.
//!
//! Knows in which form to ask, when to stand in the queue, how long to pause, what the restart delay of the nodes means for
//! the wait, and which failure is told at the end. It knows no node, no owner, no connection and no clock: time and random
//! numbers are arguments. Each attempt is a [`Lease`](crate::protocol::lease) of its own, and each stay a
//! [`Waiter`](crate::protocol::wait_queue::waiter).

mod outlook;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::protocol::backoff::{Backoff, RetryReason};
use crate::protocol::lease::{Asking, Failure};
use crate::protocol::message::{Holder, Reply, Unknown};
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::round::Round;
use crate::protocol::time::Instant;

pub use outlook::Outlook;

/// A pause is never so short that other tasks of the same thread get no turn.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// While too many nodes are too young, they are looked at again after this: a node that comes back, or is promoted, may change
/// the outlook before the delay ends.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How long an acquisition may wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// One round, no waiting.
    No,
    /// At most this long.
    AtMost(Duration),
    /// Without limit.
    Unlimited,
}

/// What an acquisition is held to.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The nodes and their majority.
    pub quorum: Quorum,
    /// How long it may wait.
    pub wait: Wait,
    /// The pauses between attempts outside the wait queue.
    pub backoff: Backoff,
    /// Whether it may stand in the wait queue.
    pub queues: bool,
    /// Whether the key was contended of late: then it stands in the queue at once.
    pub contended: bool,
}

/// What an acquisition does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Asks all nodes once, in this form and under an owner that was never sent before. If the attempt fails,
    /// [`Acquisition::handle_failure`] follows.
    Attempt(Asking),
    /// Stands in the wait queue. [`Acquisition::handle_standing`], [`Acquisition::handle_claim_failed`] and
    /// [`Acquisition::handle_unable`] tell what happens there, and [`Acquisition::handle_timeout`] that its end has come.
    Queue {
        /// When the wait ends.
        until: Instant,
    },
    /// Sleeps until this moment; then [`Acquisition::handle_timeout`].
    Sleep(Instant),
    /// Looks at what the grants of the nodes are worth; then [`Acquisition::handle_outlook`].
    Look,
    /// Gives up; why is told by [`Acquisition::into_end`].
    Fail,
}

/// An attempt that failed, or a claim from the wait queue.
#[derive(Clone, Debug)]
pub struct Failed {
    /// What stood in the way.
    pub failure: Failure,
    /// What each node answered.
    pub round: Round,
    /// When that was known.
    pub at: Instant,
}

/// How an acquisition ended that did not acquire.
#[derive(Clone, Debug)]
pub struct End {
    /// The last failure. An acquisition that only ever stood in the queue has been contended, by a round without answers.
    pub last: Box<Failed>,
    /// How long was waited, if the wait is what ended it.
    pub waited: Option<Duration>,
    /// Who holds the lock, by the node that keeps the queue: it was asked after the last failure, and knows best.
    pub holder: Option<(NodeId, Holder)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Attempting,
    Queueing,
    Pausing {
        until: Instant,
    },
    /// The last attempt, or claim from the queue, failed by the restart delay. `again` after a first look.
    Looking {
        again: bool,
        queued: bool,
    },
    TooYoung {
        until: Instant,
        queued: bool,
    },
    Over {
        waited: Option<Duration>,
    },
}

/// One acquisition. See the module.
///
/// # Contract
///
/// Mutate once, then drain: after [`Acquisition::new`] and after each `handle_*`, do what [`Acquisition::step`] says, and
/// tell how that went. An event that does not belong to the step changes nothing. When an attempt or a claim succeeds, the
/// acquisition has served its purpose and is dropped.
#[derive(Debug)]
pub struct Acquisition {
    quorum: Quorum,
    wait: Wait,
    started: Instant,
    deadline: Instant,
    backoff: Backoff,
    asking: Asking,
    queues: bool,
    state: State,
    last: Option<Box<Failed>>,
    holder: Option<(NodeId, Option<Holder>)>,
}

impl Failed {
    /// Whether waiting does not help: so many nodes have no fencing token left that no quorum can give one.
    pub fn is_final(&self) -> bool {
        self.failure == Failure::Unavailable && self.round.is_spent()
    }

    /// What the next pause depends on.
    fn cause(&self) -> RetryReason {
        match self.failure {
            Failure::Contended if self.round.majority_holder().is_some() => {
                RetryReason::Held(self.round.shortest_remaining())
            }
            Failure::Contended => RetryReason::Split,
            Failure::Unavailable | Failure::TooYoung { .. } | Failure::Exhausted { .. } => {
                RetryReason::Unavailable
            }
        }
    }
}

impl Acquisition {
    /// An acquisition that begins at `now`.
    pub fn new(rules: Rules, now: Instant) -> Self {
        let Rules { quorum, wait, backoff, queues, contended } = rules;
        let deadline = match wait {
            Wait::No => now,
            Wait::AtMost(limit) => now.after(limit),
            Wait::Unlimited => Instant::FAR_FUTURE,
        };
        let at_once = queues && contended && deadline > now;
        Self {
            quorum,
            wait,
            started: now,
            deadline,
            backoff,
            asking: Asking::Set,
            queues,
            state: if at_once { State::Queueing } else { State::Attempting },
            last: None,
            holder: None,
        }
    }

    /// What comes next. Asking changes nothing.
    pub fn step(&self) -> Step {
        match self.state {
            State::Attempting => Step::Attempt(self.asking),
            State::Queueing => Step::Queue { until: self.deadline },
            State::Pausing { until } | State::TooYoung { until, .. } => Step::Sleep(until),
            State::Looking { .. } => Step::Look,
            State::Over { .. } => Step::Fail,
        }
    }

    /// An attempt failed. `random` is uniform over all its values.
    pub fn handle_failure(&mut self, failed: Failed, random: u64, now: Instant) {
        if self.state != State::Attempting {
            return;
        }
        let (is_final, contended) = (failed.is_final(), failed.failure == Failure::Contended);
        self.last = Some(Box::new(failed));
        if is_final || self.wait == Wait::No {
            self.state = State::Over { waited: None };
        } else if now >= self.deadline {
            self.wait_is_over(now);
        } else if self.queues && contended {
            self.state = State::Queueing;
        } else {
            self.step_back(random, now);
        }
    }

    /// The node that keeps the queue told who holds the lock, or that it is free.
    pub fn handle_standing(&mut self, node: NodeId, holder: Option<Holder>) {
        if self.state == State::Queueing {
            self.holder = Some((node, holder));
        }
    }

    /// A claim from the queue failed. The waiter stays there, with two exceptions. A wait that is over begins nothing more.
    /// If the claim failed by the restart delay, the waiter leaves the queue and enters it again after the delay: until then
    /// each head would claim in vain.
    pub fn handle_claim_failed(&mut self, failed: Failed, now: Instant) {
        if self.state != State::Queueing {
            return;
        }
        let (is_final, failure) = (failed.is_final(), failed.failure);
        self.last = Some(Box::new(failed));
        if is_final {
            self.state = State::Over { waited: None };
        } else if now >= self.deadline {
            self.wait_is_over(now);
        } else if matches!(failure, Failure::TooYoung { .. }) {
            self.state = State::Looking { again: false, queued: true };
        }
    }

    /// No queue can be used, and this is the last that was heard of one. A queue that was refused will be refused again; one
    /// that could not be reached is tried again.
    pub fn handle_unable(&mut self, reply: &Reply, random: u64, now: Instant) {
        if self.state != State::Queueing {
            return;
        }
        self.holder = None;
        self.queues = !(reply.is_an_answer() || matches!(reply, Reply::Unknown(Unknown::Error(_))));
        if now >= self.deadline {
            self.wait_is_over(now);
        } else {
            self.step_back(random, now);
        }
    }

    /// What the grants of the nodes are worth at `now`.
    ///
    /// As long as a quorum of them does not count, no attempt is made, and they are looked at again. If time is all that is
    /// missing and there is not enough of it, this is known at the first look.
    pub fn handle_outlook(&mut self, outlook: Outlook, random: u64, now: Instant) {
        let State::Looking { again, queued } = self.state else { return };
        let until = match outlook {
            Outlook::Open if again && queued => return self.state = State::Queueing,
            Outlook::Open if again => return self.state = State::Attempting,
            Outlook::Open => return self.pause(random, now),
            _ if now >= self.deadline => return self.state = State::Attempting,
            Outlook::Surely(until) if until > self.deadline && !again => {
                return self.state = State::Over { waited: None };
            }
            Outlook::Surely(until) => until,
            Outlook::Perhaps => Instant::FAR_FUTURE,
        };
        let until = until.min(self.deadline).min(now.after(LOOK_AGAIN));
        self.state = State::TooYoung { until, queued };
    }

    /// The moment of [`Step::Sleep`] has come, or that of [`Step::Queue`].
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.state {
            State::Pausing { until } if now >= until => self.state = State::Attempting,
            State::TooYoung { until, queued } if now >= until => {
                self.state = State::Looking { again: true, queued };
            }
            State::Queueing if now >= self.deadline => self.wait_is_over(now),
            _ => {}
        }
    }

    /// Why it did not acquire, after [`Step::Fail`].
    pub fn into_end(self) -> End {
        let waited = match self.state {
            State::Over { waited } => waited,
            _ => None,
        };
        let (quorum, started) = (self.quorum, self.started);
        let last = self.last.unwrap_or_else(|| {
            let round = Round::new(quorum, started);
            Box::new(Failed { failure: Failure::Contended, round, at: started })
        });
        let holder = self.holder.and_then(|(node, holder)| Some((node, holder?)));
        let holder = holder.filter(|_| waited.is_some() && last.failure == Failure::Contended);
        End { last, waited, holder }
    }

    /// After a failure that a stay in the queue does not help, or without a queue.
    fn step_back(&mut self, random: u64, now: Instant) {
        match self.last.as_ref().map(|last| last.failure) {
            Some(Failure::TooYoung { .. }) => self.state = State::Looking { again: false, queued: false },
            _ => self.pause(random, now),
        }
    }

    /// Pauses. The last pause ends with the wait, and the last attempt follows it at once.
    fn pause(&mut self, random: u64, now: Instant) {
        let cause = self.last.as_ref().map_or(RetryReason::Held(None), |last| last.cause());
        let pause = self.backoff.next(cause, random).max(LEAST_PAUSE);
        self.state = State::Pausing { until: now.after(pause).min(self.deadline) };
        // Only a script tells how long the holder's key will live, which is what the pauses of those who do not queue go by.
        if !self.queues {
            self.asking = Asking::Claim;
        }
    }

    fn wait_is_over(&mut self, now: Instant) {
        self.state = State::Over { waited: Some(now.since(self.started)) };
    }
}
