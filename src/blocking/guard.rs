//! The handle on a held lock, for code that blocks.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::runtime::Runtime;
use crate::client::error::{ExtendError, ReleaseError};
use crate::client::parts::LockParts;
use crate::client::report::Report;
use crate::protocol::fencing::FencingToken;
use crate::protocol::message::Key;
use crate::runtime::loss::Lost;

/// A held lock. As [`redquorum::LockGuard`](crate::LockGuard): until [`LockGuard::remaining`] is zero, no other client of these
/// nodes acquires the same lock; and nothing stops a holder that does not look.
///
/// Dropping the guard releases the lock in the background, on any thread, also while unwinding; the last guard of a client
/// that is dropped already waits for that, see [the module](super#ending). [`LockGuard::release`] does the same and tells how it
/// ended.
///
/// ```no_run
/// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = redlock.lock("report").keep_alive().acquire()?;
/// for page in 1..=100 {
///     if !guard.is_valid() {
///         return Err("lost half-way".into());
///     }
///     println!("page {page}");
/// }
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock at once"]
pub struct LockGuard {
    inner: crate::LockGuard,
    // Last: the release is with the nodes before the thread is asked to end.
    runtime: Arc<Runtime>,
}

impl LockGuard {
    pub(super) fn new(inner: crate::LockGuard, runtime: Arc<Runtime>) -> Self {
        Self { inner, runtime }
    }

    /// The guard of the other face, which this one holds.
    pub(super) fn inner(&self) -> &crate::LockGuard {
        &self.inner
    }

    #[cfg(all(test, feature = "testing"))]
    pub(super) fn into_inner(self) -> crate::LockGuard {
        self.inner
    }

    /// The key on the servers, prefix included.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// assert!(redlock.acquire("report")?.key().ends_with(b"report"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &Key {
        self.inner.key()
    }

    /// The holder's fencing token, where the request asked for one: see the other face's
    /// [`fencing_token`](crate::LockGuard::fencing_token).
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::AcquireError> {
    /// let guard = redlock.lock("report").fenced().acquire()?;
    /// if let Some(token) = guard.fencing_token() {
    ///     println!("write with {token}, and let the storage refuse what is smaller than it has seen");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.inner.fencing_token()
    }

    /// How long the holder may still act; zero once the lock is lost. Computed anew each time; does not block.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("report")?;
    /// println!("a request to somebody else may take {:?}", guard.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Whether the holder may act now. No network is involved, and nothing blocks.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("report")?;
    /// // … the work …
    /// if guard.is_valid() {
    ///     println!("the last step");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// What each node has answered so far when the lock was acquired or last extended. Does not block.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// println!("{}", redlock.acquire("report")?.report());
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self) -> Report {
        self.inner.report()
    }

    /// Waits until the holder may no longer act, for `timeout` at most, and tells why; `None` where it still may. With
    /// [`Duration::ZERO`] it only looks; with [`Duration::MAX`] it waits for as long as it takes.
    ///
    /// Ends no later than the validity does (four milliseconds early, since timers and schedulers are late), and waits for no
    /// socket. A thread beside the work may wait here, since the guard can be shared:
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::AcquireError> {
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::time::Duration;
    ///
    /// let (guard, done, stop) =
    ///     (redlock.lock("report").keep_alive().acquire()?, AtomicBool::new(false), AtomicBool::new(false));
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         while !done.load(Ordering::Relaxed) {
    ///             if let Some(lost) = guard.lost(Duration::from_millis(100)) {
    ///                 eprintln!("stop: {lost}");
    ///                 return stop.store(true, Ordering::Relaxed);
    ///             }
    ///         }
    ///     });
    ///     // … work that looks at `stop` …
    ///     done.store(true, Ordering::Relaxed);
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self, timeout: Duration) -> Option<Lost> {
        // What the clock says needs no runtime: that is all of it where nobody waits, and in a forked process.
        if let Some(lost) = self.inner.lost_now() {
            return Some(lost);
        }
        if timeout.is_zero() {
            return None;
        }
        let clock = self.inner.clock();
        let until = clock.now().after(timeout);
        let told = async {
            let (mut lost, mut over) = (pin!(self.inner.lost()), pin!(clock.sleep_until(until)));
            tokio::select! {
                biased;
                lost = &mut lost => Some(lost),
                () = &mut over => None,
            }
        };
        self.runtime.wait(told).flatten()
    }

    /// Gives the key another `ttl` of life on the nodes, counted from now; the validity never becomes shorter by it. Blocks
    /// for a reply timeout at most. See the other face's [`extend`](crate::LockGuard::extend).
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let mut guard = redlock.acquire("report")?;
    /// guard.extend(Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ExtendError::Unconfirmed`]: the lock is still held for its old validity, and extending again is right.
    /// [`ExtendError::Lost`] and [`ExtendError::Expired`]: stop working; the lock cannot be revived.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), ExtendError> {
        let extended = self.runtime.wait(self.inner.extend(ttl));
        extended.unwrap_or_else(|| {
            let key = self.key().clone();
            Err(ExtendError::Unconfirmed { key, remaining: self.remaining(), report: self.report() })
        })
    }

    /// Releases the lock: deletes this holder's key, and only this holder's, on every node that it may have reached. Returns
    /// as soon as a quorum has confirmed, after a reply timeout at most; the rest goes on in the background.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// if let Err(error) = redlock.acquire("report")?.release() {
    ///     eprintln!("nothing is left to do, but this may be worth knowing: {error}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Each tells how far the lock was still this holder's; none leaves anything for the caller to do.
    pub fn release(self) -> Result<(), ReleaseError> {
        let Self { inner, runtime } = self;
        let (key, report) = (inner.key().clone(), inner.report());
        let released = runtime.wait(inner.release());
        released.unwrap_or(Err(ReleaseError::Unconfirmed { key, report }))
    }

    /// Takes the lock out of its guard without releasing it, for another process to go on with, of whichever face. Blocks for a
    /// reply timeout at most. See the other face's [`into_parts`](crate::LockGuard::into_parts).
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let parts = redlock.acquire("report")?.into_parts()?;
    /// assert!(parts.is_portable(), "only on this machine");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Why the lock is not held any more. It is released then.
    pub fn into_parts(self) -> Result<LockParts, Lost> {
        let Self { inner, runtime } = self;
        runtime.wait(inner.into_parts()).unwrap_or(Err(Lost::Closed))
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}
