//! Attempt after attempt, until the lock is held or the wait is over.

use std::sync::Arc;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

use smallvec::SmallVec;

use super::driver::Driver;
use super::guard::{self, Outlook};
use super::in_line::{self, Ended};
use crate::client::error::AcquireError;
use crate::client::report::Report;
use crate::config::{Keeping, Wait};
use crate::node::Node;
use crate::protocol::backoff::{Backoff, Cause};
use crate::protocol::fencing::Retention;
use crate::protocol::lease::{Asking, Event, Failure, Lease, Terms};
use crate::protocol::message::{Holder, Key, Owner, Reply, Unknown};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::Round;
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::{self, Lines, Ranks};
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
    pub(crate) keeping: Keeping,
    /// Whether a fencing token is asked for, and how long its counters are kept.
    pub(crate) fenced: Option<Retention>,
}

impl Request {
    /// A lease of this request, before its first command.
    pub(super) fn shaped(&self, lease: Lease, lines: Option<Lines>, shared: &Shared) -> Lease {
        let lease = shaped(lease, lines, self.keeping);
        match self.fenced {
            Some(retention) => lease.fenced(shared.candidate(), retention),
            None => lease,
        }
    }
}

/// A lease that knows its lines and the longest time that it may be held, before its first command.
pub(super) fn shaped(lease: Lease, lines: Option<Lines>, keeping: Keeping) -> Lease {
    let lease = match lines {
        Some(lines) => lease.with_lines(lines),
        None => lease,
    };
    match keeping.longest {
        Some(longest) => lease.held_at_most(longest),
        None => lease,
    }
}

/// Acquires. Each attempt has an owner of its own (rule 2); one that failed is undone before the next begins, on the
/// same ordered connections. Where somebody else has the lock, stands in line for it; where no line can be used, asks
/// again after a pause.
///
/// # Cancellation safety
///
/// Dropping the future undoes what was set and leaves the line: the driver and the waiter do, wherever they stand.
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
    // The nodes that may keep a line, for a client that waits in one.
    let ranks = shared.config.in_line.then(|| ranks(shared, &request.key));
    let lines = ranks.map(|ranks| lines(shared, &ranks));
    let (least, most) = shared.config.retry;
    let mut backoff = Backoff::new(least, most);
    let mut asking = Asking::Set;
    let (mut last, mut polls) = (None, ranks.is_none());
    let mut in_line = !polls && deadline > started && shared.hints.contains(&request.key);
    loop {
        if let (true, Some(ranks)) = (in_line, &ranks) {
            match Box::pin(in_line::wait(shared, request, ranks, deadline, &mut last)).await? {
                Ended::Acquired(held) => return Ok(*held),
                Ended::WaitOver(holder) => return Err(wait_over(shared, request, started, last, holder)),
                Ended::Unable(reply) => {
                    in_line = false;
                    // A line that was refused will be refused again; one that could not be reached is tried again.
                    polls |= reply.is_an_answer() || matches!(reply, Reply::Unknown(Unknown::Error(_)));
                }
            }
        } else {
            match attempt(shared, request, lines, asking).await? {
                Ok(held) => return Ok(held),
                Err((error, _)) if request.wait == Wait::No || is_final(&error) => return Err(error),
                Err(failed) => {
                    in_line = !polls && failed.0.is_contention();
                    last = Some(failed);
                }
            }
        }
        let now = shared.clock.now();
        if now >= deadline {
            return Err(wait_over(shared, request, started, last, None));
        }
        if in_line {
            continue;
        }
        if let Some((AcquireError::Guarded { .. }, _)) = &last {
            match guard::outlook(shared, now) {
                // Nothing but time can help, and there is not enough of it.
                Outlook::Surely(until) if until > deadline => {
                    return Err(last.map_or(AcquireError::Closed, |(error, _)| error));
                }
                Outlook::Surely(_) | Outlook::Perhaps => {
                    guard::wait(shared, deadline).await?;
                    continue;
                }
                Outlook::Open => {}
            }
        }
        let cause = last.as_ref().map_or(Cause::Held(None), |(_, cause)| *cause);
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

/// The nodes that may keep the line for a key.
pub(crate) fn ranks(shared: &Shared, key: &Key) -> Ranks {
    let names: SmallVec<[_; 8]> = shared.nodes.iter().map(Node::name).collect();
    rank::rank(key.as_bytes(), &names, shared.quorum)
}

/// What a lease of this client has to know of them.
pub(super) fn lines(shared: &Shared, ranks: &Ranks) -> Lines {
    ranks.lines(shared.wakeups.client(), shared.quorum)
}

fn wait_over(
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
        (AcquireError::Held { key: request.key.to_string(), report }, Cause::Held(None))
    });
    let last = match (error, holder) {
        // The line's node was asked last, and knows best.
        (AcquireError::Held { key, report }, Some((node, Some(holder)))) => {
            AcquireError::Held { key, report: report.with_holder(node, holder, waited) }
        }
        (error, _) => error,
    };
    AcquireError::WaitOver { waited, last: Box::new(last) }
}

/// Whether waiting does not help.
pub(super) fn is_final(error: &AcquireError) -> bool {
    matches!(error, AcquireError::TokensSpent { .. })
}

pub(super) type Failed = (AcquireError, Cause);

/// One round under an owner of its own.
async fn attempt(
    shared: &Arc<Shared>,
    request: &Request,
    lines: Option<Lines>,
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
    let lease = request.shaped(lease, lines, shared);
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
            let cause = if held { Cause::Held(round.shortest_remaining()) } else { Cause::Split };
            (AcquireError::Held { key, report }, cause)
        }
        Failure::Unavailable if round.is_spent() => {
            (AcquireError::TokensSpent { key, report }, Cause::Unavailable)
        }
        Failure::Unavailable => (AcquireError::NoQuorum { key, report }, Cause::Unavailable),
        Failure::Guarded { until } => {
            let remaining = (until != Instant::FAR_FUTURE).then(|| until.since(shared.clock.now()));
            (AcquireError::Guarded { key, remaining, report }, Cause::Unavailable)
        }
        Failure::Exhausted { remaining } => {
            let needed = request.terms.min_validity;
            (AcquireError::ValidityExhausted { key, remaining, needed, report }, Cause::Unavailable)
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
