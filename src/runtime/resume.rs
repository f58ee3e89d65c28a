//! Going on with a lock that another process held.

use std::sync::Arc;

use super::attempt;
use super::driver::Driver;
use crate::config::KeepAlive;
use crate::protocol::fencing::{Carry, Fence};
use crate::protocol::lease::{Event, Failure, Lease, Options, Resumed, Terms};
use crate::protocol::message::{Key, Owner};
use crate::protocol::round::Round;
use crate::runtime::shared::{Counted, Shared};

/// One request, checked.
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) owner: Owner,
    pub(crate) terms: Terms,
    pub(crate) keeping: KeepAlive,
    /// The fencing token that it has.
    pub(crate) carry: Option<Carry>,
    /// What is known of it; `None` if nobody can tell whether it has been held all the time.
    pub(crate) resumed: Option<Resumed>,
}

/// Why a lock was not resumed.
pub(crate) enum NotResumed {
    /// The client closes.
    Closed,
    /// The client's runtime has ended.
    RuntimeEnded,
    /// Nobody can tell whether it has been held all the time.
    Unknowable,
    /// Its validity ended before.
    Expired,
    /// Too few nodes answered. Nothing was released, and nothing set: it is as it was before.
    Unconfirmed(Round),
    /// No quorum carries its owner any more. What was left of it is released.
    Lost(Round),
}

/// Asks all nodes whether they still carry the owner, and for a longer life of the key where they do.
///
/// # Cancellation safety
///
/// Dropping the future releases the lock: the driver does.
pub(crate) async fn resume(shared: &Arc<Shared>, request: Request) -> Result<(Driver, Counted), NotResumed> {
    let counted = Counted::new(shared.clone());
    if shared.closing.is_cancelled() {
        return Err(NotResumed::Closed);
    }
    if shared.has_ended() {
        return Err(NotResumed::RuntimeEnded);
    }
    let Request { key, owner, terms, keeping, carry, resumed } = request;
    let resumed = resumed.ok_or(NotResumed::Unknowable)?;
    let queues = attempt::ranks(shared, &key).map(|ranks| attempt::queues(shared, &ranks));
    let now = shared.clock.now();
    if now >= resumed.before {
        return Err(NotResumed::Expired);
    }
    let fence = carry.map(Fence::Carry);
    let options = Options { longest: keeping.longest, queues, fence, ..Options::default() };
    let lease = Lease::resume(terms, key, owner, resumed, options, now);
    let mut driver = Driver::start(lease, shared.clone());
    match driver.event().await {
        Event::Failed(Failure::Unavailable) => {
            let round = driver.round();
            driver.mutate(|lease, _| lease.hand_on());
            Err(NotResumed::Unconfirmed(round))
        }
        // What is left of it is released as the driver is dropped.
        Event::Failed(Failure::Contended) => Err(NotResumed::Lost(driver.round())),
        Event::Failed(Failure::Exhausted { .. }) => Err(NotResumed::Expired),
        // A lease that is being resumed has no other events.
        _ => Ok((driver, counted)),
    }
}
