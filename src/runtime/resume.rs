//! Going on with a lock that another process held.

use std::sync::Arc;

use super::acquire;
use super::driver::Driver;
use crate::client::error::ResumeError;
use crate::client::parts::LockParts;
use crate::client::report::Report;
use crate::config::KeepAlive;
use crate::protocol::fencing::Carry;
use crate::protocol::lease::{Event, Failure, Lease, Terms};
use crate::protocol::message::{Key, Owner};
use crate::runtime::shared::{Counted, Shared};

/// One request, checked.
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) owner: Owner,
    pub(crate) terms: Terms,
    pub(crate) keeping: KeepAlive,
    /// The fencing token that it has.
    pub(crate) carry: Option<Carry>,
}

/// Asks all nodes whether they still carry the owner, and for a longer life of the key where they do.
///
/// # Cancellation safety
///
/// Dropping the future releases the lock: the driver does.
pub(crate) async fn resume(
    shared: &Arc<Shared>,
    request: Request,
    parts: LockParts,
) -> Result<(Driver, Counted), ResumeError> {
    let counted = Counted::new(shared.clone());
    if shared.closing.is_cancelled() {
        return Err(ResumeError::Closed);
    }
    let Request { key, owner, terms, keeping, carry } = request;
    let name = key.to_string();
    let Some(before) = parts.deadline(shared) else { return Err(ResumeError::NotPortable { key: name }) };
    let queues = shared.config.in_queue.then(|| acquire::queues(shared, &acquire::ranks(shared, &key)));
    let now = shared.clock.now();
    if now >= before {
        return Err(ResumeError::Expired { key: name });
    }
    let lease = Lease::resume(terms, key, owner, parts.longest(), before, now);
    let lease = if parts.is_portable() { lease } else { lease.owed() };
    let lease = acquire::shaped(lease, queues, keeping);
    let lease = match carry {
        Some(carry) => lease.carrying(carry),
        None => lease,
    };
    let mut driver = Driver::start(lease, shared.clone());
    match driver.event().await {
        Event::Failed(Failure::Unavailable) => {
            let report = Report::new(&driver.round(), &shared.nodes);
            // Nothing was released, and nothing set: it is as it was before.
            driver.mutate(|lease, _| lease.hand_on());
            Err(ResumeError::Unconfirmed { parts: Box::new(parts), report })
        }
        // What is left of it is released as the driver is dropped.
        Event::Failed(Failure::Contended) => {
            let report = Report::new(&driver.round(), &shared.nodes);
            Err(ResumeError::Lost { key: name, report })
        }
        Event::Failed(Failure::Exhausted { .. }) => Err(ResumeError::Expired { key: name }),
        // A lease that is being resumed has no other events.
        _ => Ok((driver, counted)),
    }
}
