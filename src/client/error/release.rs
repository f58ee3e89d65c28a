//! Why a release is not certain, or came too late.

use thiserror::Error;

use crate::client::report::Report;
use crate::protocol::message::Key;

/// Why a release did not confirm that this holder's keys were deleted. There is nothing left to do for the caller: what
/// is open goes on being settled in the background.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::ReleaseError;
///
/// match redlock.acquire("report").await?.release().await {
///     Err(ReleaseError::TakenOver { .. } | ReleaseError::Expired { .. }) => println!("the work took too long"),
///     Err(error) => println!("{error}"),
///     Ok(()) => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock had expired, or been forgotten by the nodes, before it was released. The work may have overlapped with
    /// another holder's from then on.
    #[error("lock \"{key}\" had expired before it was released: {report}")]
    Expired {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// Another holder has the lock, and keeps it: its keys were not touched.
    #[error("lock \"{key}\" had expired and is another's now: {report}")]
    TakenOver {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// Too few nodes answered. The release goes on in the background; at the latest, the TTL frees the lock.
    #[error("release of lock \"{key}\" not confirmed, it goes on in the background: {report}")]
    Unconfirmed {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
}

impl ReleaseError {
    /// What each node answered.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// if let Err(error) = redlock.acquire("report").await?.release().await {
    ///     println!("{} of {} confirmed", error.report().granted(), error.report().nodes().len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self) -> &Report {
        match self {
            Self::Expired { report, .. }
            | Self::TakenOver { report, .. }
            | Self::Unconfirmed { report, .. } => report,
        }
    }
}
