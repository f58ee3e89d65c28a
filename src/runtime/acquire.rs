//! Attempt after attempt, until the lock is held or the wait is over.

use std::sync::Arc;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

use super::driver::Driver;
use crate::config::Wait;
use crate::error::AcquireError;
use crate::protocol::backoff::{Backoff, Cause};
use crate::protocol::lease::{Asking, Event, Failure, Lease, Terms};
use crate::protocol::message::{Key, Owner};
use crate::protocol::time::Instant;
use crate::report::Report;
use crate::shared::{Counted, Shared};

/// A pause is never so short that other tasks of the same thread get no turn.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// One request, checked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) terms: Terms,
    pub(crate) wait: Wait,
}

/// Acquires. Each attempt has an owner of its own (rule 2); one that failed is undone before the next begins, on the
/// same ordered connections.
///
/// # Cancellation safety
///
/// Dropping the future undoes what was set: the driver does, wherever it stands.
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
    let (least, most) = shared.config.retry;
    let mut backoff = Backoff::new(least, most);
    let mut asking = Asking::Set;
    loop {
        let (error, cause) = match attempt(shared, request, asking).await? {
            Ok(held) => return Ok(held),
            Err(failed) => failed,
        };
        if request.wait == Wait::No {
            return Err(error);
        }
        let now = shared.clock.now();
        if now >= deadline {
            return Err(AcquireError::WaitOver { waited: now.since(started), last: Box::new(error) });
        }
        // The last pause ends with the wait, and the last attempt follows it at once.
        let pause = backoff.next(cause, rand::random()).max(LEAST_PAUSE);
        let wake = now.after(pause).min(deadline);
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(AcquireError::Closed),
            () = shared.clock.sleep_until(wake) => {}
        }
        // Only a script tells how long the holder's key will live, which is worth knowing once there is a holder.
        asking = Asking::Claim;
    }
}

type Failed = (AcquireError, Cause);

/// One round under an owner of its own.
async fn attempt(
    shared: &Arc<Shared>,
    request: &Request,
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
    let mut driver = Driver::start(lease, shared.nodes.clone(), shared.clock.clone());
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

fn explain(shared: &Shared, request: &Request, driver: &Driver, failure: Failure) -> Failed {
    let round = driver.lease().round();
    let key = request.key.to_string();
    let report = Report::new(round, &shared.nodes);
    match failure {
        Failure::Contended => {
            let held = round.majority_holder().is_some();
            let cause = if held { Cause::Held(round.shortest_remaining()) } else { Cause::Split };
            (AcquireError::Held { key, report }, cause)
        }
        Failure::Unavailable => (AcquireError::NoQuorum { key, report }, Cause::Unavailable),
        Failure::Exhausted { remaining } => {
            let needed = request.terms.min_validity;
            (AcquireError::ValidityExhausted { key, remaining, needed, report }, Cause::Unavailable)
        }
    }
}

/// 128 bits from the operating system's generator. A generator in this process would be copied by a fork, and two
/// processes would then share owners.
fn new_owner() -> Result<Owner, AcquireError> {
    let mut bytes = [0; 16];
    match SysRng.try_fill_bytes(&mut bytes) {
        Ok(()) => Ok(Owner::from_bytes(bytes)),
        Err(error) => Err(AcquireError::NoRandomness(error.to_string())),
    }
}
