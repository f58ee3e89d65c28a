//! Why a lock was not extended.

use std::time::Duration;

use thiserror::Error;

use crate::client::report::Report;
use crate::config::InvalidRequest;
use crate::protocol::message::Key;

/// Why a lock was not extended.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::ExtendError;
///
/// let mut guard = redlock.acquire("report").await?;
/// if let Err(ExtendError::Lost { .. } | ExtendError::Expired { .. }) = guard.extend(Duration::from_secs(10)).await {
///     return Err("the lock is gone: stop".into());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// Too few nodes confirmed. The lock is still held for as long as its old validity lasts; extending again within it
    /// is right.
    #[error("extension of lock \"{key}\" not confirmed, still held for {remaining:?}: {report}")]
    Unconfirmed {
        /// The key on the servers.
        key: Key,
        /// What is left of the old validity.
        remaining: Duration,
        /// What each node answered.
        report: Report,
    },
    /// So many nodes do not carry this holder any more that it has lost the lock. Stop working.
    #[error("lock \"{key}\" is lost, no quorum carries this holder any more: {report}")]
    Lost {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// The validity ended before the extension was confirmed. Stop working.
    #[error("lock \"{key}\" expired before it was extended")]
    Expired {
        /// The key on the servers.
        key: Key,
    },
    /// The request cannot work. Nothing was sent, and the lock is held as before.
    #[error("invalid request: {0}")]
    Invalid(#[from] InvalidRequest),
}
