//! Why work under a lock did not end well.

use std::fmt;

use thiserror::Error;

use crate::client::error::AcquireError;
use crate::protocol::message::Key;
use crate::runtime::loss::Lost;

/// Why work under a lock was not done under it from the beginning to the end. `T` is what the work returns: work that came to
/// its end, but without its lock, has its output in here.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::WithLockError;
///
/// match redlock.with_lock("report", async |_guard| "four pages").await {
///     Ok(report) => println!("{report}"),
///     Err(WithLockError::Lost { reason, output: None, .. }) => println!("half done: {reason}"),
///     Err(WithLockError::Lost { output: Some(report), .. }) => println!("{report}, perhaps beside another holder"),
///     Err(error) => println!("not begun: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// It is shown without the output, so `T` need not be [`Debug`](std::fmt::Debug), and `?` works if `T` may be kept in the
/// error's box. A function that returns something else than the work does leaves the output behind:
///
/// ```no_run
/// # use redquorum::{Redlock, WithLockError};
/// async fn pages(redlock: &Redlock) -> Result<usize, WithLockError> {
///     let report = redlock.with_lock("report", async |_guard| "four pages").await;
///     Ok(report.map_err(WithLockError::without_output)?.len())
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum WithLockError<T = ()> {
    /// The lock was not acquired, and the work not begun.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost before the work had ended. Work in a future was dropped at its next await. Work that came to its end
    /// all the same, since it did not await, or is a function (feature `blocking`), did some of it without the lock.
    #[error("lock \"{key}\" was lost before its work had ended: {reason}")]
    Lost {
        /// The key on the servers.
        key: Key,
        /// Why.
        reason: Lost,
        /// What the work returned, if it came to its end.
        output: Option<T>,
    },
}

impl<T> WithLockError<T> {
    /// Whether the work was not begun because another has the lock; see [`AcquireError::is_contention`].
    pub fn is_contention(&self) -> bool {
        matches!(self, Self::Acquire(error) if error.is_contention())
    }

    /// What the work returned, if it came to its end; part of it was done without the lock.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) {
    /// let outcome = redlock.with_lock("report", async |_guard| "four pages").await;
    /// let report = outcome.map_or_else(|error| error.into_output(), Some);
    /// # }
    /// ```
    pub fn into_output(self) -> Option<T> {
        match self {
            Self::Acquire(_) => None,
            Self::Lost { output, .. } => output,
        }
    }

    /// The same error without the output: for functions that return something else, and for outputs that may not go where the
    /// error goes.
    ///
    /// ```no_run
    /// # use redquorum::{Redlock, WithLockError};
    /// # async fn example(redlock: Redlock) -> Result<(), WithLockError> {
    /// let pages = redlock.with_lock("report", async |_guard| 4).await.map_err(WithLockError::without_output)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_output(self) -> WithLockError {
        match self {
            Self::Acquire(error) => WithLockError::Acquire(error),
            Self::Lost { key, reason, .. } => WithLockError::Lost { key, reason, output: None },
        }
    }
}

impl<T> fmt::Debug for WithLockError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(error) => f.debug_tuple("Acquire").field(error).finish(),
            Self::Lost { key, reason, output } => {
                let output = output.as_ref().map(|_| format_args!("_"));
                f.debug_struct("Lost")
                    .field("key", key)
                    .field("reason", reason)
                    .field("output", &output)
                    .finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any output travels with the error, is taken out of it, and is not shown.
    #[test]
    fn any_output_travels_with_the_error() {
        struct Secret(u32);
        let lost = |output| WithLockError::Lost { key: Key::new(*b"k"), reason: Lost::Expired, output };
        let error = || lost(Some(Secret(7)));

        assert_eq!(format!("{:?}", error()), "Lost { key: \"k\", reason: Expired, output: Some(_) }");
        let text = "lock \"k\" was lost before its work had ended: the lock expired";
        assert_eq!(error().to_string(), text);
        assert_eq!(error().into_output().map(|secret| secret.0), Some(7));
        assert!(lost(None).into_output().is_none());
        let boxed: Box<dyn std::error::Error + Send + Sync> = error().into();
        assert_eq!(boxed.to_string(), text);
        assert!(!error().is_contention() && !WithLockError::<()>::from(AcquireError::Closed).is_contention());
        let bare: WithLockError = error().without_output();
        assert_eq!(bare.to_string(), text);
        assert_eq!(bare.into_output(), None);
    }

    /// What was not begun has no output, and says why.
    #[test]
    fn what_was_not_begun_has_no_output() {
        let error = WithLockError::<u32>::from(AcquireError::Closed);
        assert_eq!(format!("{error:?}"), "Acquire(Closed)");
        assert!(matches!(error.clone().without_output(), WithLockError::Acquire(AcquireError::Closed)));
        assert_eq!(error.into_output(), None);
    }
}
