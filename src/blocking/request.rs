//! Requests whose last call blocks. Every setting is the other face's.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use super::guard::LockGuard;
use super::runtime::Runtime;
use crate::client::error::{AcquireError, ResumeError, WithLockError};

/// A request for a lock: adjust it, then end it with [`LockRequest::acquire`] or [`LockRequest::with`].
///
/// ```no_run
/// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::AcquireError> {
/// use std::time::Duration;
///
/// let guard =
///     redlock.lock("report").ttl(Duration::from_secs(2)).wait(Duration::from_millis(500)).acquire()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until `acquire` or `with` is called"]
pub struct LockRequest {
    inner: crate::LockRequest,
    runtime: Arc<Runtime>,
}

impl LockRequest {
    pub(super) fn new(inner: crate::LockRequest, runtime: Arc<Runtime>) -> Self {
        Self { inner, runtime }
    }

    /// The life given to the key on each node, in place of the client's TTL: whole milliseconds, more than the drift
    /// allowance, at most the client's maximum.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").ttl(Duration::from_secs(3)).acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.inner = self.inner.ttl(ttl);
        self
    }

    /// Waits for the lock at most this long. The last attempt begins no later than that, and takes a reply timeout more at
    /// most. Zero is one attempt.
    ///
    /// A thread that waits cannot be called back otherwise but by [`Redlock::close`](super::Redlock::close), which ends all
    /// waits of the client.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").wait(Duration::from_millis(500)).acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(mut self, limit: Duration) -> Self {
        self.inner = self.inner.wait(limit);
        self
    }

    /// Waits for the lock for ever: until it is held, or the client is closed.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").wait_forever().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_forever(mut self) -> Self {
        self.inner = self.inner.wait_forever();
        self
    }

    /// Asks once. The error then is the cause itself, without [`AcquireError::TimedOut`] around it.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let free = redlock.lock("report").ttl(Duration::from_secs(3)).without_waiting().acquire().is_ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_waiting(mut self) -> Self {
        self.inner = self.inner.without_waiting();
        self
    }

    /// Keeps the lock alive in the background until its guard is released or dropped, as
    /// [`keep_alive`](crate::LockRequest::keep_alive) of the other face does.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").keep_alive().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_alive(mut self) -> Self {
        self.inner = self.inner.keep_alive();
        self
    }

    /// Keeps the lock alive, but not beyond this time, counted from before it was acquired: then it is lost
    /// ([`Lost::MaxHoldReached`](crate::Lost::MaxHoldReached)) and released. Must be more than the least validity of an acquired lock.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").max_hold(Duration::from_secs(600)).acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.inner = self.inner.max_hold(longest);
        self
    }

    /// Does not keep the lock alive, where the client does so with all others.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").without_keep_alive().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_keep_alive(mut self) -> Self {
        self.inner = self.inner.without_keep_alive();
        self
    }

    /// Asks for a fencing token with the lock, as [`fenced`](crate::LockRequest::fenced) of the other face does.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let token = redlock.lock("report").fenced().acquire()?.fencing_token();
    /// # Ok(())
    /// # }
    /// ```
    pub fn fenced(mut self) -> Self {
        self.inner = self.inner.fenced();
        self
    }

    /// Acquires the lock, and blocks until it is held or the wait is over.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").wait(Duration::from_secs(2)).acquire()?;
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
    pub fn acquire(self) -> Result<LockGuard, AcquireError> {
        let Self { inner, runtime } = self;
        let acquired = runtime.wait(inner.into_future()).unwrap_or(Err(AcquireError::Closed));
        Ok(LockGuard::new(acquired?, runtime))
    }

    /// Runs `work` under the lock of this request, which is kept alive meanwhile. See
    /// [`Redlock::with_lock`](super::Redlock::with_lock), also for what becomes of work whose lock is lost.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), redquorum::WithLockError> {
    /// use std::time::Duration;
    ///
    /// let pages = redlock.lock("report").max_hold(Duration::from_secs(600)).with(|guard| {
    ///     println!("held for another {:?}", guard.remaining());
    ///     4
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As with [`Redlock::with_lock`](super::Redlock::with_lock).
    ///
    /// # Fairness
    ///
    /// As with [`Redlock::acquire`](super::Redlock::acquire).
    pub fn with<T>(self, work: impl FnOnce(&LockGuard) -> T) -> Result<T, WithLockError> {
        let guard = self.keep_alive().acquire()?;
        let result = work(&guard);
        if let Some(reason) = guard.lost(Duration::ZERO) {
            let key = guard.key().escape_ascii().to_string();
            return Err(WithLockError::Lost { key, reason });
        }
        if let Err(error) = guard.release() {
            tracing::warn!(%error, "work under a lock ended, and its release did not go well");
        }
        Ok(result)
    }
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

/// A request to go on with a lock from elsewhere: adjust it, then end it with [`ResumeRequest::acquire`].
///
/// ```no_run
/// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// let parts = redlock.acquire("report")?.into_parts()?;
/// // … to another process …
/// let guard = redlock.resume(parts).ttl(Duration::from_secs(5)).keep_alive().acquire()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until `acquire` is called"]
pub struct ResumeRequest {
    inner: crate::ResumeRequest,
    runtime: Arc<Runtime>,
}

impl ResumeRequest {
    pub(super) fn new(inner: crate::ResumeRequest, runtime: Arc<Runtime>) -> Self {
        Self { inner, runtime }
    }

    /// The life given to the key from now on, in place of the client's TTL: whole milliseconds, more than the drift allowance,
    /// at most the client's maximum.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report")?.into_parts()?;
    /// let guard = redlock.resume(parts).ttl(Duration::from_secs(5)).acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.inner = self.inner.ttl(ttl);
        self
    }

    /// Keeps the lock alive, as [`LockRequest::keep_alive`] does.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report")?.into_parts()?;
    /// let guard = redlock.resume(parts).keep_alive().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_alive(mut self) -> Self {
        self.inner = self.inner.keep_alive();
        self
    }

    /// Keeps the lock alive, but not beyond this time from now.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report")?.into_parts()?;
    /// let guard = redlock.resume(parts).max_hold(Duration::from_secs(600)).acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.inner = self.inner.max_hold(longest);
        self
    }

    /// Does not keep the lock alive, where the client does so with all others.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report")?.into_parts()?;
    /// let guard = redlock.resume(parts).without_keep_alive().acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_keep_alive(mut self) -> Self {
        self.inner = self.inner.without_keep_alive();
        self
    }

    /// Goes on with the lock, and blocks until a quorum of the nodes has confirmed it, for a reply timeout at most.
    ///
    /// ```no_run
    /// # fn example(redlock: redquorum::blocking::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report")?.into_parts()?;
    /// let guard = redlock.resume(parts).acquire()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResumeError::Unconfirmed`] gives the parts back, and trying again is right. All others are final.
    pub fn acquire(self) -> Result<LockGuard, ResumeError> {
        let Self { inner, runtime } = self;
        let resumed = runtime.wait(inner.into_future()).unwrap_or(Err(ResumeError::Closed));
        Ok(LockGuard::new(resumed?, runtime))
    }
}

impl fmt::Debug for ResumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}
