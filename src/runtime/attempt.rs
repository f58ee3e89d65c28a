//! One attempt to acquire, and what every way to a held lock shares: the request, its owners, and why it ended without one.

use std::sync::Arc;

use rand::TryRng;
use rand::rngs::SysRng;
use smallvec::SmallVec;

use super::driver::Driver;
use crate::config::KeepAlive;
use crate::node::Node;
use crate::protocol::acquire::{End, Failed, Wait};
use crate::protocol::fencing::{Fence, Retention};
use crate::protocol::lease::{Asking, Event, Failure, Lease, Options, Terms};
use crate::protocol::message::{Key, Owner};
use crate::protocol::wait_queue::rank::{self, QueueNodes, Ranks};
use crate::protocol::wait_queue::waiter::QueueVote;
use crate::runtime::shared::{Counted, Shared};

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

/// Why a request ended without the lock.
#[derive(Debug)]
pub(crate) enum NotAcquired {
    /// The client closes, or its tasks have ended.
    Closed,
    /// The operating system gave no random bytes: why.
    NoRandomness(String),
    /// The lock was not to be had.
    Failed(End),
}

impl Request {
    /// What a lease of this request is given, with its clock about to start.
    pub(super) fn options(
        &self,
        shared: &Shared,
        queues: Option<QueueNodes>,
        vote: Option<QueueVote>,
    ) -> Options {
        let fence = |retention| Fence::Advance { candidate: shared.candidate(), retention };
        let expected = self.fenced.and_then(|_| shared.most_expected());
        Options { longest: self.keeping.longest, queues, vote, fence: self.fenced.map(fence), expected }
    }
}

/// One round under an owner of its own (rule 2).
///
/// # Cancellation safety
///
/// Dropping the future undoes what was set: the driver does.
pub(super) async fn attempt(
    shared: &Arc<Shared>,
    request: &Request,
    queues: Option<QueueNodes>,
    asking: Asking,
) -> Result<Result<(Driver, Counted), Failed>, NotAcquired> {
    // Counted before it is asked whether the client closes: so a client that closes sees it, or it sees the closing.
    let counted = Counted::new(shared.clone());
    if shared.closing.is_cancelled() {
        return Err(NotAcquired::Closed);
    }
    // Made before the clock starts: asking the kernel is no part of the round.
    let owner = new_owner()?;
    let options = request.options(shared, queues, None);
    let lease =
        Lease::acquire(request.terms, request.key.clone(), owner, asking, options, shared.clock.now());
    let mut driver = Driver::start(lease, shared.clone());
    let event = driver.event().await;
    // No lock is born on a client that closes. And without the client's tasks, which end with its runtime, waiting would
    // never help.
    if shared.closing.is_cancelled() || (shared.has_ended() && matches!(event, Event::Failed(_))) {
        return Err(NotAcquired::Closed);
    }
    match event {
        Event::Failed(failure) => {
            tracing::debug!(key = %request.key, ?failure, "not acquired");
            Ok(Err(failed(shared, &driver, failure)))
        }
        // A lease that is being acquired has no other events.
        event => {
            tracing::debug!(key = %request.key, ?event, "acquired");
            Ok(Ok((driver, counted)))
        }
    }
}

/// The failure of this driver's lease, with what each node answered so far.
pub(super) fn failed(shared: &Shared, driver: &Driver, failure: Failure) -> Failed {
    Failed { failure, round: driver.lease().round().clone(), at: shared.clock.now() }
}

/// The nodes that may keep the queue for a key, for a client that stands in one.
pub(super) fn ranks(shared: &Shared, key: &Key) -> Option<Ranks> {
    shared.config.in_queue.then(|| {
        let names: SmallVec<[_; 8]> = shared.nodes.iter().map(Node::name).collect();
        rank::rank(key.as_bytes(), &names, shared.quorum)
    })
}

/// What a lease of this client has to know of them.
pub(super) fn queues(shared: &Shared, ranks: &Ranks) -> QueueNodes {
    ranks.queues(shared.wakeups.client(), shared.quorum)
}

/// 128 bits from the operating system's generator. A generator in this process would be copied by a fork, and two
/// processes would then share owners.
pub(super) fn new_owner() -> Result<Owner, NotAcquired> {
    let mut bytes = [0; 16];
    match SysRng.try_fill_bytes(&mut bytes) {
        Ok(()) => Ok(Owner::from_bytes(bytes)),
        Err(error) => Err(NotAcquired::NoRandomness(error.to_string())),
    }
}
