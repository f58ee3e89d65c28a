//! The same locks for code without async: threads, scripts, tests.
//!
//! Same names, same guarantees, same errors. Where the other face has a future, this one has a call that blocks its
//! thread; where that one has `.await` on a request, this one has `.acquire()`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redquorum::blocking::Redlock;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
//!     let redlock = Redlock::builder().nodes(nodes).build_blocking()?;
//!
//!     let guard = redlock.lock("invoice:4711").ttl(Duration::from_secs(5)).acquire()?;
//!     println!("mine for another {:?}", guard.remaining());
//!     guard.release()?;
//!     Ok(())
//! }
//! ```
//!
//! # Threads
//!
//! Each client has one thread of its own, named `redquorum`, that does all that goes on in the background: connections,
//! timers, kept locks, releases of dropped guards. Clients, guards and requests are [`Send`] and [`Sync`], so share one client between all threads, by
//! reference or as a clone. A guard may be dropped, released or extended on another thread than the one that acquired it.
//!
//! A call may be made anywhere, also inside an async runtime, where it blocks the thread as everywhere: on a runtime with one
//! thread, no other task of it runs meanwhile. One that waits there for a lock that another task of the same thread holds waits in
//! vain, for as long as its wait lasts. In async code, use the other face.
//!
//! # Losing a lock
//!
//! A function cannot be stopped from outside. So nothing here ends work whose lock is lost, as
//! [`with_lock`](crate::Redlock::with_lock) of the other face does at an await. Work has to look: at [`LockGuard::is_valid`] before each step
//! that matters, which costs no more than reading a clock, or at [`LockGuard::lost`], which also waits and tells why.
//! [`Redlock::with_lock`] looks once more when the work has ended.
//!
//! # Ending
//!
//! Whoever drops the last of a client, its clones and its guards waits until the releases of dropped guards have
//! been answered: a round trip as a rule, half a second where a node does not answer, a second at the very most. So a program that simply returns from `main`
//! leaves no lock behind. One that ends by [`std::process::exit`], or keeps its client in a `static`, drops nothing: it should release its
//! guards, or call [`Redlock::close`]; otherwise the TTL frees what was held. `close` also ends the waits of other threads.
//!
//! A process made by `fork` has a copy of the client and not of its thread. Calls there fail at once, as on a client that is
//! closed; let the copy be and build a new client.
//!
//! # Time in tests
//!
//! Nodes in memory (feature `testing`) serve this face as well: `MemoryCluster::builder` with
//! [`build_blocking`](crate::RedlockBuilder::build_blocking). Tokio's paused clock does not reach the client's thread; a
//! `ManualClock` does.

mod guard;
mod request;
mod runtime;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::guard::LockGuard;
pub use self::request::{LockRequest, ResumeRequest};
use self::runtime::Runtime;
use crate::client::builder::RedlockBuilder;
use crate::client::error::{AcquireError, BuildError, InvalidRequest, WithLockError};
use crate::client::parts::LockParts;
use crate::client::report::Inspection;
use crate::client::status::NodeStatus;

/// A client of a set of independent nodes, on which it takes quorum locks; its calls block.
///
/// As [`redquorum::Redlock`](crate::Redlock), with a thread of its own in place of a runtime. Cheap to clone; all clones share
/// the thread, and one connection per node. It lives as long as a clone or a guard of it does. Dropping the last of them
/// waits for the answers to its last releases, see [the module](self#ending).
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use redquorum::blocking::Redlock;
///
/// let redlock = Redlock::builder()
///     .nodes(["redis://127.0.0.1:7101", "redis://127.0.0.1:7102", "redis://127.0.0.1:7103"])
///     .build_blocking()?;
///
/// std::thread::scope(|scope| {
///     for page in 1..=4 {
///         let redlock = &redlock;
///         scope.spawn(move || redlock.with_lock("report", |_| println!("page {page}, one at a time")));
///     }
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redlock {
    inner: crate::Redlock,
    // Last: what the client leaves behind is handed over before the thread is asked to end.
    runtime: Arc<Runtime>,
}

impl RedlockBuilder {
    /// Builds a client for code without async: as [`RedlockBuilder::build`], and the calling thread waits until a quorum is
    /// connected.
    ///
    /// The settings are the same, and so is their builder: one with a name of its own would only repeat them.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), redquorum::BuildError> {
    /// let redlock = redquorum::Redlock::builder().node("redis://127.0.0.1").build_blocking()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As with [`RedlockBuilder::build`]; and [`BuildError::NoThread`].
    pub fn build_blocking(self) -> Result<Redlock, BuildError> {
        let runtime = Runtime::start().map_err(|error| BuildError::NoThread(error.to_string()))?;
        // The runtime is of this process, so there is always an answer.
        let inner = runtime.wait(self.build()).unwrap_or(Err(BuildError::NoRuntime))?;
        Ok(Redlock { inner, runtime: Arc::new(runtime) })
    }
}

impl Redlock {
    /// Starts building a client, to be ended with [`RedlockBuilder::build_blocking`]. The builder is the one of the other face.
    ///
    /// ```
    /// use redquorum::blocking::Redlock;
    ///
    /// let builder = Redlock::builder().nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]);
    /// ```
    pub fn builder() -> RedlockBuilder {
        crate::Redlock::builder()
    }

    /// Acquires the lock named `key`, waiting for it as long as configured (30 s by default), with the client's TTL.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::AcquireError> {
    /// let guard = redlock.acquire("invoice:4711")?;
    /// assert!(guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As with the other face's [`acquire`](crate::Redlock::acquire).
    ///
    /// # Fairness
    ///
    /// As there: first come, first served, over threads and processes.
    pub fn acquire(&self, key: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(key).acquire()
    }

    /// Asks for the lock named `key` once, without waiting for it: one round to all nodes, for a reply timeout at most.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::AcquireError> {
    /// match redlock.try_acquire("nightly-report") {
    ///     Ok(guard) => println!("my turn, for {:?}", guard.remaining()),
    ///     Err(error) if error.is_contention() => println!("another is at it"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As with the other face's [`try_acquire`](crate::Redlock::try_acquire).
    ///
    /// # Fairness
    ///
    /// None is needed, as there: it does not wait.
    pub fn try_acquire(&self, key: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(key).without_waiting().acquire()
    }

    /// A request for the lock named `key`, to be adjusted and ended with [`LockRequest::acquire`] or [`LockRequest::with`].
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").ttl(Duration::from_secs(3)).fenced().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockRequest {
        LockRequest::new(self.inner.lock(key), self.runtime.clone())
    }

    /// Runs `work` under the lock named `key`: acquires it as [`Redlock::acquire`] does, keeps it alive for as long as the
    /// work takes, and releases it, also when the work panics.
    ///
    /// The work runs on the caller's thread and **is not stopped when the lock is lost**. It is told by its guard
    /// ([`LockGuard::is_valid`], [`LockGuard::lost`]), and should look there before each step that matters. When it has ended, the lock is
    /// looked at once more: if it was lost by then, the result is [`WithLockError::Lost`] with what the work returned, since
    /// part of it was done without the lock.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// let sent = redlock.with_lock("newsletter", |guard| {
    ///     let mut sent = 0;
    ///     while sent < 1_000 && guard.is_valid() {
    ///         // … one letter …
    ///         sent += 1;
    ///     }
    ///     sent
    /// })?;
    /// println!("{sent} letters");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With other settings than the client's, [`LockRequest::with`].
    ///
    /// # Errors
    ///
    /// [`WithLockError::Acquire`]: the work was not begun. [`WithLockError::Lost`]: the lock was lost before the work had
    /// ended. Trouble with the release after the work is told by `tracing`, and settled in the background.
    ///
    /// # Fairness
    ///
    /// As with [`Redlock::acquire`].
    ///
    /// # Panics
    ///
    /// Where the work does; the lock is released then.
    pub fn with_lock<T>(
        &self,
        key: impl AsRef<[u8]>,
        work: impl FnOnce(&LockGuard) -> T,
    ) -> Result<T, WithLockError<T>> {
        self.lock(key).with(work)
    }

    /// A request to go on with a lock that was taken apart ([`LockGuard::into_parts`], of either face), to be adjusted and ended
    /// with [`ResumeRequest::acquire`]. The rules are those of the other face's [`resume`](crate::Redlock::resume).
    ///
    /// ```no_run
    /// # use redquorum::blocking::Redlock;
    /// # fn example(here: Redlock, there: Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// let parts = here.acquire("invoice:4711")?.into_parts()?;
    /// // … to another process …
    /// let guard = there.resume(parts).keep_alive().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&self, parts: LockParts) -> ResumeRequest {
        ResumeRequest::new(self.inner.resume(parts), self.runtime.clone())
    }

    /// Looks at the lock named `key` on every node, without touching it: who holds it, for how long, and how many wait. Takes a
    /// reply timeout at most.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::InvalidRequest> {
    /// let seen = redlock.inspect("nightly-report")?;
    /// println!("held by {}, {} waiting", seen.holder().unwrap_or("nobody"), seen.waiting());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] where the name cannot be a lock's. What a node failed to answer is in the result.
    pub fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, InvalidRequest> {
        let name = key.as_ref();
        let shared = &self.inner.shared;
        let unasked = || Ok(Inspection::of_a_closed_client(&shared.config.key(name)?, &shared.nodes));
        self.runtime.wait(self.inner.inspect(name)).unwrap_or_else(unasked)
    }

    /// How each node is, as the other face's [`nodes`](crate::Redlock::nodes) tells. Asks nobody, and does not block.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) {
    /// redlock.nodes().iter().for_each(|node| println!("{node}"));
    /// # }
    /// ```
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.inner.nodes()
    }

    /// Closes the client, and every clone of it: acquires that wait on other threads end with [`AcquireError::Closed`], and no new
    /// ones begin. Then waits, until `deadline` from now at most, for guards to be released and for open outcomes to be settled,
    /// as the other face's [`close`](crate::Redlock::close) does. Returns whether nothing was left open.
    ///
    /// A guard that the calling thread holds itself is waited for in vain: release it first.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) {
    /// use std::time::Duration;
    ///
    /// if !redlock.close(Duration::from_secs(5)) {
    ///     eprintln!("some locks are left to their TTL");
    /// }
    /// # }
    /// ```
    pub fn close(&self, deadline: Duration) -> bool {
        self.runtime.wait(self.inner.close(deadline)).unwrap_or(false)
    }

    /// How many outcomes of this client are known to be open at present, as the other face's
    /// [`pending_cleanups`](crate::Redlock::pending_cleanups) tells. Does not block.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// println!("{} outcomes are open", redlock.pending_cleanups());
    /// # Ok(())
    /// # }
    /// ```
    pub fn pending_cleanups(&self) -> usize {
        self.inner.pending_cleanups()
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::MemoryCluster;
    use crate::{ExtendError, Lost, ReleaseError, ResumeError};

    /// Law: in a process that was forked off no call waits for a thread that is not there.
    #[test]
    fn calls_in_a_forked_process_fail_at_once() {
        let cluster = MemoryCluster::new(3);
        let here = cluster.builder().build_blocking().unwrap();
        let there = Redlock { inner: here.inner.clone(), runtime: Arc::new(Runtime::forked()) };
        let copy = |guard: &LockGuard| {
            // A guard cannot be copied as a fork does; another one of the same client serves.
            let other = here.acquire([guard.key().as_bytes(), b"-copy"].concat()).unwrap();
            LockGuard::new(other.into_inner(), there.runtime.clone())
        };
        let guard = here.acquire("a").unwrap();

        assert!(matches!(there.acquire("b"), Err(AcquireError::Closed)));
        assert!(matches!(there.lock("b").wait_forever().acquire(), Err(AcquireError::Closed)));
        let mut held = copy(&guard);
        assert!(matches!(held.extend(Duration::from_secs(1)), Err(ExtendError::Unconfirmed { .. })));
        assert_eq!(held.lost(Duration::MAX), None);
        assert!(matches!(held.release(), Err(ReleaseError::Unconfirmed { .. })));
        let guard = LockGuard::new(guard.into_inner(), there.runtime.clone());
        assert_eq!(guard.into_parts(), Err(Lost::Closed));
        let parts = here.acquire("c").unwrap().into_parts().unwrap();
        assert!(matches!(there.resume(parts).acquire(), Err(ResumeError::Closed)));
        let seen = there.inspect("a").unwrap();
        assert!(seen.nodes().iter().all(|node| node.state.is_err()), "{seen}");
        assert!(!there.close(Duration::from_secs(3600)));
    }
}
