//! Why resuming a lock from its parts failed.

use thiserror::Error;

use crate::client::parts::LockParts;
use crate::client::report::Report;
use crate::config::InvalidRequest;
use crate::protocol::message::Key;

/// Why a lock that was taken apart could not be gone on with.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # let parts = redlock.acquire("report").await?.into_parts().await?;
/// use redquorum::ResumeError;
///
/// let mut parts = parts;
/// let guard = loop {
///     match redlock.resume(parts).await {
///         Ok(guard) => break guard,
///         Err(ResumeError::Unconfirmed { parts: same, .. }) => parts = *same,
///         Err(error) => return Err(error.into()),
///     }
/// };
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Too few nodes answered. The lock may still be held; trying again with these parts is right.
    #[error("too few nodes confirmed the lock, it may still be held: {report}")]
    Unconfirmed {
        /// The parts, as they were given.
        parts: Box<LockParts>,
        /// What each node answered.
        report: Report,
    },
    /// So many nodes do not carry the holder any more that it has lost the lock. What was left of it is released.
    #[error("lock \"{key}\" is lost, no quorum carries its holder any more: {report}")]
    Lost {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// The validity ended before a quorum had confirmed.
    #[error("lock \"{key}\" expired before it was resumed")]
    Expired {
        /// The key on the servers.
        key: Key,
    },
    /// The lock was taken apart while a node still owed an answer, and on another machine than this one: nobody can tell
    /// here whether it has been held all the time.
    #[error(
        "lock \"{key}\" can be resumed only on the machine where it was taken apart, before it is restarted"
    )]
    NotPortable {
        /// The key on the servers.
        key: Key,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The request cannot work. Nothing was sent, and the lock is held as before, until its validity ends.
    #[error("invalid request: {0}")]
    Invalid(#[from] InvalidRequest),
}
