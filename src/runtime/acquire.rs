//! Attempt after attempt, until the lock is held or the wait is over.

use std::sync::Arc;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

use smallvec::SmallVec;

use super::driver::Driver;
use super::waiting::{self, Ended};
use super::young_nodes::{self, Outlook};
use crate::client::error::AcquireError;
use crate::client::report::Report;
use crate::config::{KeepAlive, Wait};
use crate::node::Node;
use crate::protocol::backoff::{Backoff, RetryReason};
use crate::protocol::fencing::Retention;
use crate::protocol::lease::{Asking, Event, Failure, Lease, Terms};
use crate::protocol::message::{Holder, Key, Owner, Reply, Unknown};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::Round;
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::{self, QueueNodes, Ranks};
use crate::runtime::shared::{Counted, Shared};

/// A pause is never so short that other tasks of the same thread get no turn.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// One request, checked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) terms: Terms,
    pub(crate) wait: Wait,
    /// Whether it is kept alive, and for how long at most.
    pub(crate) keeping: KeepAlive,
    /// Whether a fencing token is asked for, and how long its counters are kept.
    pub(crate) fenced: Option<Retention>,
}

impl Request {
    /// A lease of this request, before its first command.
    pub(super) fn shaped(&self, lease: Lease, queues: Option<QueueNodes>, shared: &Shared) -> Lease {
        let lease = shaped(lease, queues, self.keeping);
        match self.fenced {
            Some(retention) => lease.fenced(shared.candidate(), retention),
            None => lease,
        }
    }
}

/// A lease that knows its queues and the longest time that it may be held, before its first command.
pub(super) fn shaped(lease: Lease, queues: Option<QueueNodes>, keeping: KeepAlive) -> Lease {
    let lease = match queues {
        Some(queues) => lease.with_lines(queues),
        None => lease,
    };
    match keeping.longest {
        Some(longest) => lease.held_at_most(longest),
        None => lease,
    }
}

/// Acquires. Each attempt has an owner of its own (rule 2); one that failed is undone before the next begins, on the
/// same ordered connections. Where somebody else has the lock, waits in the queue for it; where no queue can be used, asks
/// again after a pause.
///
/// # Cancellation safety
///
/// Dropping the future undoes what was set and leaves the queue: the driver and the waiter do, wherever they stand.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    request: &Request,
) -> Result<(Driver, Counted), AcquireError> {
    let started = shared.clock.now();
    let deadline = match request.wait {
        Wait::No => started,
        Wait::AtMost(limit) => started.after(limit),
        Wait::Unlimited => Instant::FAR_FUTURE,
    };
    // The nodes that may keep a queue, for a client that waits in one.
    let ranks = shared.config.in_queue.then(|| ranks(shared, &request.key));
    let queues = ranks.map(|ranks| queues(shared, &ranks));
    let (least, most) = shared.config.retry;
    let mut backoff = Backoff::new(least, most);
    let mut asking = Asking::Set;
    let (mut last, mut polls) = (None, ranks.is_none());
    let mut in_queue = !polls && deadline > started && shared.contended_keys.contains(&request.key);
    loop {
        if let (true, Some(ranks)) = (in_queue, &ranks) {
            match Box::pin(waiting::wait(shared, request, ranks, deadline, &mut last)).await? {
                Ended::Acquired(held) => return Ok(*held),
                Ended::TimedOut(holder) => return Err(timed_out(shared, request, started, last, holder)),
                Ended::Unable(reply) => {
                    in_queue = false;
                    // A queue that was refused will be refused again; one that could not be reached is tried again.
                    polls |= reply.is_an_answer() || matches!(reply, Reply::Unknown(Unknown::Error(_)));
                }
            }
        } else {
            match attempt(shared, request, queues, asking).await? {
                Ok(held) => return Ok(held),
                Err((error, _)) if request.wait == Wait::No || is_final(&error) => return Err(error),
                Err(failed) => {
                    in_queue = !polls && failed.0.is_contention();
                    last = Some(failed);
                }
            }
        }
        let now = shared.clock.now();
        if now >= deadline {
            return Err(timed_out(shared, request, started, last, None));
        }
        if in_queue {
            continue;
        }
        if let Some((AcquireError::NodesTooYoung { .. }, _)) = &last {
            match young_nodes::outlook(shared, now) {
                // Nothing but time can help, and there is not enough of it.
                Outlook::Surely(until) if until > deadline => {
                    return Err(last.map_or(AcquireError::Closed, |(error, _)| error));
                }
                Outlook::Surely(_) | Outlook::Perhaps => {
                    young_nodes::wait(shared, deadline).await?;
                    continue;
                }
                Outlook::Open => {}
            }
        }
        let cause = last.as_ref().map_or(RetryReason::Held(None), |(_, cause)| *cause);
        // The last pause ends with the wait, and the last attempt follows it at once.
        let pause = backoff.next(cause, rand::random()).max(LEAST_PAUSE);
        let wake = now.after(pause).min(deadline);
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(AcquireError::Closed),
            () = shared.clock.sleep_until(wake) => {}
        }
        // Only a script tells how long the holder's key will live, which is worth knowing once there is a holder.
        if polls {
            asking = Asking::Claim;
        }
    }
}

/// The nodes that may keep the queue for a key.
pub(crate) fn ranks(shared: &Shared, key: &Key) -> Ranks {
    let names: SmallVec<[_; 8]> = shared.nodes.iter().map(Node::name).collect();
    rank::rank(key.as_bytes(), &names, shared.quorum)
}

/// What a lease of this client has to know of them.
pub(super) fn queues(shared: &Shared, ranks: &Ranks) -> QueueNodes {
    ranks.queues(shared.wakeups.client(), shared.quorum)
}

fn timed_out(
    shared: &Shared,
    request: &Request,
    started: Instant,
    last: Option<Failed>,
    holder: Option<(NodeId, Option<Holder>)>,
) -> AcquireError {
    let waited = shared.clock.now().since(started);
    let (error, _) = last.unwrap_or_else(|| {
        let round = Round::new(shared.quorum, started);
        let report = Report::new(&round, &shared.nodes);
        (AcquireError::Held { key: request.key.to_string(), report }, RetryReason::Held(None))
    });
    let last = match (error, holder) {
        // The queue's node was asked last, and knows best.
        (AcquireError::Held { key, report }, Some((node, Some(holder)))) => {
            AcquireError::Held { key, report: report.with_holder(node, holder, waited) }
        }
        (error, _) => error,
    };
    AcquireError::TimedOut { waited, last: Box::new(last) }
}

/// Whether waiting does not help.
pub(super) fn is_final(error: &AcquireError) -> bool {
    matches!(error, AcquireError::TokensExhausted { .. })
}

pub(super) type Failed = (AcquireError, RetryReason);

/// One round under an owner of its own.
async fn attempt(
    shared: &Arc<Shared>,
    request: &Request,
    queues: Option<QueueNodes>,
    asking: Asking,
) -> Result<Result<(Driver, Counted), Failed>, AcquireError> {
    // Counted before it is asked whether the client closes: so a client that closes sees it, or it sees the closing.
    let counted = Counted::new(shared.clone());
    if shared.closing.is_cancelled() {
        return Err(AcquireError::Closed);
    }
    // Made before the clock starts: asking the kernel is no part of the round.
    let owner = new_owner()?;
    let key = request.key.clone();
    let lease = Lease::acquire(request.terms, key, owner, asking, shared.clock.now());
    let lease = request.shaped(lease, queues, shared);
    let mut driver = Driver::start(lease, shared.clone());
    let event = driver.event().await;
    // No lock is born on a client that closes. And without the client's tasks, which end with its runtime, waiting would
    // never help.
    if shared.closing.is_cancelled() || (shared.has_ended() && matches!(event, Event::Failed(_))) {
        return Err(AcquireError::Closed);
    }
    match event {
        Event::Failed(failure) => {
            tracing::debug!(key = %request.key, ?failure, "not acquired");
            Ok(Err(explain(shared, request, &driver, failure)))
        }
        // A lease that is being acquired has no other events.
        event => {
            tracing::debug!(key = %request.key, ?event, "acquired");
            Ok(Ok((driver, counted)))
        }
    }
}

pub(super) fn explain(shared: &Shared, request: &Request, driver: &Driver, failure: Failure) -> Failed {
    let round = driver.lease().round();
    let key = request.key.to_string();
    let report = Report::new(round, &shared.nodes);
    match failure {
        Failure::Contended => {
            let held = round.majority_holder().is_some();
            let cause = if held { RetryReason::Held(round.shortest_remaining()) } else { RetryReason::Split };
            (AcquireError::Held { key, report }, cause)
        }
        Failure::Unavailable if round.is_spent() => {
            (AcquireError::TokensExhausted { key, report }, RetryReason::Unavailable)
        }
        Failure::Unavailable => (AcquireError::NoQuorum { key, report }, RetryReason::Unavailable),
        Failure::TooYoung { until } => {
            let remaining = (until != Instant::FAR_FUTURE).then(|| until.since(shared.clock.now()));
            (AcquireError::NodesTooYoung { key, remaining, report }, RetryReason::Unavailable)
        }
        Failure::Exhausted { remaining } => {
            let needed = request.terms.min_validity;
            (AcquireError::TooSlow { key, remaining, needed, report }, RetryReason::Unavailable)
        }
    }
}

/// 128 bits from the operating system's generator. A generator in this process would be copied by a fork, and two
/// processes would then share owners.
pub(super) fn new_owner() -> Result<Owner, AcquireError> {
    let mut bytes = [0; 16];
    match SysRng.try_fill_bytes(&mut bytes) {
        Ok(()) => Ok(Owner::from_bytes(bytes)),
        Err(error) => Err(AcquireError::NoRandomness(error.to_string())),
    }
}
