//! Work under a lock: acquired before it, kept alive during it, released after it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::client::error::WithLockError;
use crate::client::guard::LockGuard;
use crate::client::{LockRequest, Redlock};
use crate::runtime::loss::Lost;

impl Redlock {
    /// Runs `work` under the lock named `key`: acquires it as [`Redlock::acquire`] does, keeps it alive for as long as the
    /// work takes, and releases it. The guard that the work gets tells [`remaining`](LockGuard::remaining) and the like.
    ///
    /// The work runs in the caller's task. What it returns comes back as it is, a `Result` included. When the lock is
    /// lost, the work is dropped where it stands: at its next await, so a step that never awaits is not interrupted. Its lock
    /// is looked at before each step, and once more after the last: work that came to its end without it is an error, too,
    /// which has what the work returned.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io;
    ///
    /// let written: Result<u64, io::Error> = redlock
    ///     .with_lock("nightly-report", async |guard| {
    ///         println!("held for another {:?}", guard.remaining());
    ///         Ok(4711)
    ///     })
    ///     .await?;
    /// println!("{} bytes", written?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With other settings than the client's, [`LockRequest::with`].
    ///
    /// # Errors
    ///
    /// [`WithLockError::Acquire`]: the work was not begun. [`WithLockError::Lost`]: it was dropped half-way, or ended after its
    /// lock. Trouble with the release after the work is not the work's: it is told by `tracing`, and settled in the
    /// background.
    ///
    /// # Panics
    ///
    /// Where the work does; the lock is released then.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future drops the work and releases the lock in the background.
    ///
    /// # Fairness
    ///
    /// As with [`Redlock::acquire`].
    ///
    /// # Spawning
    ///
    /// The future may be spawned where the work's is [`Send`]. It borrows the client; [`LockRequest::with`] does not. In a function
    /// that is generic over the work, the compiler cannot be told today that the future of an `async` closure is `Send`:
    /// there, [`LockRequest::with_boxed`].
    pub async fn with_lock<T>(
        &self,
        key: impl AsRef<[u8]>,
        work: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<T, WithLockError<T>> {
        self.lock(key).with(work).await
    }
}

impl LockRequest {
    /// Runs `work` under the lock of this request, which is kept alive meanwhile. See [`Redlock::with_lock`].
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let hour = Duration::from_secs(3600);
    /// let pages = redlock.lock("report").max_hold(hour).with(async |_guard| 4).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As with [`Redlock::with_lock`].
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future drops the work and releases the lock in the background.
    ///
    /// # Fairness
    ///
    /// As with [`Redlock::acquire`].
    pub async fn with<T>(self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, WithLockError<T>> {
        let guard = self.keep_alive().await?;
        let ended = watched(&guard, work(&guard)).await;
        finish(guard, ended).await
    }
}

impl LockRequest {
    /// As [`LockRequest::with`], for work whose future is boxed: for generic functions and trait objects, where it has to be
    /// known that the future is [`Send`].
    ///
    /// ```no_run
    /// # use redquorum::{LockGuard, Redlock, WithLockError};
    /// use std::pin::Pin;
    ///
    /// type Work<'g> = Pin<Box<dyn Future<Output = u32> + Send + 'g>>;
    ///
    /// fn start<F>(redlock: Redlock, work: F) -> tokio::task::JoinHandle<Result<u32, WithLockError<u32>>>
    /// where
    ///     F: for<'g> FnOnce(&'g LockGuard) -> Work<'g> + Send + 'static,
    /// {
    ///     tokio::spawn(redlock.lock("report").with_boxed(work))
    /// }
    /// # fn example(redlock: Redlock) {
    /// start(redlock, |guard| Box::pin(async move { guard.key().len() as u32 }));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As with [`Redlock::with_lock`].
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future drops the work and releases the lock in the background.
    ///
    /// # Fairness
    ///
    /// As with [`Redlock::acquire`].
    pub async fn with_boxed<T>(
        self,
        work: impl for<'g> FnOnce(&'g LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'g>>,
    ) -> Result<T, WithLockError<T>> {
        let guard = self.keep_alive().await?;
        let ended = watched(&guard, work(&guard)).await;
        finish(guard, ended).await
    }
}

/// Polls the work for as long as the lock is held.
async fn watched<T>(guard: &LockGuard, work: impl Future<Output = T>) -> Result<T, WithLockError<T>> {
    let mut work = pin!(work);
    let mut lost = pin!(guard.lost());
    poll_fn(|cx| {
        // The clock is asked as well: after a suspend, this task may be polled before any timer has fired.
        let reason = match lost.as_mut().poll(cx) {
            Poll::Ready(reason) => Some(reason),
            Poll::Pending => guard.lost_now(),
        };
        if let Some(reason) = reason {
            return Poll::Ready(Err(lost_to(guard, reason, None)));
        }
        work.as_mut().poll(cx).map(|output| judge(guard, output))
    })
    .await
}

/// What the output of work is worth that came to its end: the clock is looked at once more, since a step may have taken longer
/// than its lock lasted, and starved the renewal and every timer meanwhile.
pub(crate) fn judge<T>(guard: &LockGuard, output: T) -> Result<T, WithLockError<T>> {
    match guard.lost_now() {
        Some(reason) => Err(lost_to(guard, reason, Some(output))),
        None => Ok(output),
    }
}

fn lost_to<T>(guard: &LockGuard, reason: Lost, output: Option<T>) -> WithLockError<T> {
    WithLockError::Lost { key: guard.key().clone(), reason, output }
}

/// Releases. What the work returned is not held back by trouble with that.
async fn finish<T>(guard: LockGuard, ended: Result<T, WithLockError<T>>) -> Result<T, WithLockError<T>> {
    if ended.is_ok()
        && let Err(error) = guard.release().await
    {
        tracing::warn!(%error, "work under a lock ended, and its release did not go well");
    }
    ended
}
