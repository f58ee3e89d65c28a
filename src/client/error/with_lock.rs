//! Why work under a lock did not end well.

use thiserror::Error;

use crate::client::error::AcquireError;
use crate::runtime::loss::Lost;

/// Why work under a lock did not come to its end. The work's own result is never in here.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::WithLockError;
///
/// match redlock.with_lock("report", async |_guard| "four pages").await {
///     Ok(report) => println!("{report}"),
///     Err(WithLockError::Lost { reason, .. }) => println!("half done: {reason}"),
///     Err(error) => println!("not begun: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WithLockError {
    /// The lock was not acquired, and the work not begun.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost before the work had ended. Work in a future was dropped where it stood; work in a function (feature
    /// `blocking`) ran to its end, and what it returned was dropped.
    #[error("lock \"{key}\" was lost before its work had ended: {reason}")]
    Lost {
        /// The key on the servers.
        key: String,
        /// Why.
        reason: Lost,
    },
}
