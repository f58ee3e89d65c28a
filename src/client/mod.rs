//! The client: a set of nodes, and the locks on them.

pub(crate) mod builder;
pub(crate) mod error;
pub(crate) mod guard;
mod options;
pub(crate) mod parts;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod resume;
pub(crate) mod status;
pub(crate) mod with_lock;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::Node;
use crate::node::redis::LINGER;
use crate::runtime::inspect;
use crate::runtime::renewal::Renewal;
use crate::runtime::shared::Shared;

pub use builder::{IntoNode, NodeAddress, RedlockBuilder};
pub use error::{
    AcquireError, BuildError, ExtendError, InvalidRequest, ReleaseError, ResumeError, WithLockError,
};
pub use guard::LockGuard;
pub use parts::LockParts;
pub use report::{Inspection, NodeInspection, NodeReport, NodeState, Outcome, Report};
pub use request::LockRequest;
pub use resume::ResumeRequest;
pub use status::{Health, NodeStatus, NodeVote, Persistence, Role, Scripts};

/// How soon, at first, and how often, in the long run, a closing client looks whether all is settled. Looking costs nobody
/// else anything, which being told would.
const LOOK_WHETHER_IDLE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A client of a set of independent nodes, on which it takes quorum locks.
///
/// Cheap to clone; all clones share one connection per node. The client lives as long as a clone or a guard of it does;
/// after that it finishes writing the releases it admitted, for half a second at most, and closes its connections.
/// [`Redlock::close`] does so in an orderly way.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use redquorum::Redlock;
///
/// let redlock = Redlock::builder()
///     .nodes(["redis://127.0.0.1:7101", "redis://127.0.0.1:7102", "redis://127.0.0.1:7103"])
///     .build()
///     .await?;
///
/// let guard = redlock.lock("invoice:4711").ttl(Duration::from_secs(5)).await?;
/// // … the work …
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redlock {
    pub(crate) shared: Arc<Shared>,
    /// What extends the locks that are kept alive. Beside what is shared, since drivers of kept leases share that.
    renewal: Arc<Renewal>,
}

impl Redlock {
    /// Acquires the lock named `key`, waiting for it as long as configured (30 s by default), with the client's TTL.
    ///
    /// Prefer this if the client's settings fit. [`Redlock::lock`] is the same request with settings of its own:
    /// `redlock.lock(key).ttl(…).await`.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("invoice:4711").await?;
    /// // … the work …
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AcquireError::TimedOut`] with the last cause; [`AcquireError::NodesTooYoung`] where the restart delay certainly outlasts
    /// the wait; [`AcquireError::TokensExhausted`] for a fenced request; [`AcquireError::Closed`]; [`AcquireError::Invalid`];
    /// [`AcquireError::NoRandomness`].
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future gives the lock up: whatever was set is deleted on every node that it may have reached,
    /// in the background.
    ///
    /// # Fairness
    ///
    /// First come, first served among those who wait in the queue at one node, in whatever process they are. A newcomer may get
    /// in between a release and the next waiter's claim, and the queue is made anew where its node is lost. With
    /// [`RedlockBuilder::without_wait_queue`], none.
    ///
    /// [`RedlockBuilder::without_wait_queue`]: crate::RedlockBuilder::without_wait_queue
    pub async fn acquire(&self, key: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(key).await
    }

    /// Asks for the lock named `key` once, without waiting for it: one round to all nodes.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// match redlock.try_acquire("nightly-report").await {
    ///     Ok(guard) => println!("my turn, for {:?}", guard.remaining()),
    ///     Err(error) if error.is_contention() => println!("another is at it"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AcquireError::Held`], [`AcquireError::NoQuorum`], [`AcquireError::NodesTooYoung`] or [`AcquireError::TooSlow`],
    /// each with what every node answered; [`AcquireError::Closed`]; [`AcquireError::Invalid`];
    /// [`AcquireError::NoRandomness`].
    ///
    /// # Cancellation safety
    ///
    /// As with [`Redlock::acquire`].
    ///
    /// # Fairness
    ///
    /// None is needed: it does not wait. It does not get in before those who wait in the queue, except between a release and the
    /// next waiter's claim.
    pub async fn try_acquire(&self, key: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(key).without_waiting().await
    }

    /// A request for the lock named `key`, to be adjusted and awaited.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").ttl(Duration::from_secs(3)).fenced().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockRequest {
        LockRequest::new(self.clone(), key.as_ref().into())
    }

    /// Looks at the lock named `key` on every node, without touching it: who holds it, for how long, and how many wait.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let seen = redlock.inspect("nightly-report").await?;
    /// println!("held by {}, {} waiting", seen.holder().unwrap_or("nobody"), seen.waiting());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] where the name cannot be a lock's. What a node failed to answer is in the result.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, InvalidRequest> {
        let key = self.shared.config.key(key.as_ref())?;
        let told = inspect::inspect(&self.shared, &key).await;
        Ok(Inspection::new(&key, told, &self.shared.nodes))
    }

    /// Whether a majority of the nodes is connected and may vote now: what a readiness probe asks. Sends nothing.
    ///
    /// `true` does not say that a lock is free, and `false` ends by itself when nodes come back or are old enough.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) {
    /// let status = if redlock.has_quorum() { 200 } else { 503 };
    /// # }
    /// ```
    pub fn has_quorum(&self) -> bool {
        let votes = |node: &NodeStatus| node.health == Health::Up && node.vote == NodeVote::Counts;
        self.nodes().iter().filter(|node| votes(node)).count() >= self.shared.quorum.needed()
    }

    /// How each node is, in the configured order: connected or not, what its vote is worth, and what the server tells of
    /// itself. Asks nobody: it is what the nodes told when they were connected, or up to five seconds ago.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// use redquorum::{Health, NodeVote};
    ///
    /// let well = |node: &redquorum::NodeStatus| node.health == Health::Up && node.vote == NodeVote::Counts;
    /// let nodes = redlock.nodes();
    /// if 2 * nodes.iter().filter(|node| well(node)).count() <= nodes.len() {
    ///     eprintln!("no quorum of nodes is well");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn nodes(&self) -> Vec<NodeStatus> {
        status::of(&self.shared)
    }

    /// Closes the client, and every clone of it: waiting acquires end with [`AcquireError::Closed`], and no new ones
    /// begin. Then waits, until `deadline` from now at most, for guards to be released and for open outcomes to be
    /// settled, and lets the connections close, which takes half a second more at most.
    ///
    /// Locks that are kept alive are kept until then; those that are still held afterwards are lost, which their guards are
    /// told, and released. Other guards that are still held stay valid until their validity ends, but cannot be extended or
    /// released any more: the TTL frees them.
    ///
    /// Returns whether nothing was left open.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// if !redlock.close(Duration::from_secs(5)).await {
    ///     eprintln!("some locks are left to their TTL");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves the client closed for new locks, and its connections open until the last guard and
    /// clone are gone.
    pub async fn close(&self, deadline: Duration) -> bool {
        let shared = &self.shared;
        shared.closing.cancel();
        let until = shared.clock.now().after(deadline);
        let mut idle = shared.is_idle();
        let (mut pause, longest) = LOOK_WHETHER_IDLE;
        while !idle && shared.clock.now() < until {
            shared.clock.pause(pause).await;
            pause = (2 * pause).min(longest);
            idle = shared.is_idle();
        }
        // Their releases get through the doors before these close. On a runtime that stands still nobody waits for that.
        tokio::select! {
            biased;
            () = self.renewal.close() => {}
            () = shared.clock.pause(LINGER) => {}
        }
        shared.shutdown.cancel();
        idle
    }

    /// How many outcomes of this client are known to be open at present: releases and undos whose answer was lost, which
    /// are repeated in the background until an answer or the key's expiry settles them.
    ///
    /// A release to a silent node counts once its connection is given up (after a second, with the default timeouts); until
    /// then it may still be answered.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// println!("{} outcomes are open", redlock.pending_cleanups());
    /// # Ok(())
    /// # }
    /// ```
    pub fn pending_cleanups(&self) -> usize {
        self.shared.balance.borrow().open
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.shared.nodes.iter().map(Node::address).collect();
        f.debug_struct("Redlock")
            .field("nodes", &nodes)
            .field("closed", &self.shared.closing.is_cancelled())
            .finish()
    }
}
