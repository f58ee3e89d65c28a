//! What can go wrong, told so that the caller knows what to do next.
//!
//! Each error of a round carries the [`Report`]: what each node answered, and when. No error shows a password.

use std::time::Duration;

use thiserror::Error;

use crate::node::redis::address::AddressError;
use crate::parts::LockParts;
use crate::protocol::validity::TtlError;
use crate::report::Report;
use crate::runtime::term::Lost;

/// Why a client could not be built. Nothing was sent, except with [`BuildError::NotConnected`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use redquorum::{BuildError, Redlock};
///
/// let twice = Redlock::builder().nodes(["redis://10.0.0.1", "redis://10.0.0.1:6379"]).build().await;
/// assert!(matches!(twice, Err(BuildError::DuplicateNode { first: 1, second: 2, .. })));
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No node was given.
    #[error("no node given: a lock needs at least one, and three or five to survive the loss of nodes")]
    NoNodes,
    /// More nodes than a lock can have.
    #[error("{given} nodes given, at most {maximum} are possible")]
    TooManyNodes {
        /// How many were given.
        given: usize,
        /// How many are possible.
        maximum: usize,
    },
    /// Two addresses lead to the same server, which would vote twice.
    #[error(
        "nodes {first} and {second} are the same server ({address}): it would vote twice. Name each independent server \
         once; databases of one server are not independent"
    )]
    DuplicateNode {
        /// The earlier one, counted from 1.
        first: usize,
        /// The later one, counted from 1.
        second: usize,
        /// Where both lead.
        address: String,
    },
    /// An address that is no URL of a server.
    #[error("malformed address \"{url}\": {reason}. Expected redis://[user:password@]host[:port][/database]")]
    MalformedUrl {
        /// The address, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A `rediss://` address, with the crate compiled without TLS.
    #[error("\"{url}\" needs TLS: compile redquorum with its `tls` feature")]
    TlsNotCompiled {
        /// The address, without its password.
        url: String,
    },
    /// A setting that cannot work.
    #[error("{0}")]
    Invalid(#[from] InvalidRequest),
    /// Fewer than a quorum of nodes could be connected within the connect timeout.
    #[error(
        "connected to {connected} of {nodes} nodes within {within:?}, {needed} are needed: {trouble}. \
         (`lazy()` builds without waiting for them)"
    )]
    NotConnected {
        /// How many nodes are connected.
        connected: usize,
        /// How many nodes were given.
        nodes: usize,
        /// How many are needed.
        needed: usize,
        /// How long was waited.
        within: Duration,
        /// The nodes that are not connected, each with its trouble.
        trouble: String,
    },
    /// Built outside a tokio runtime.
    #[error("no tokio runtime here: build the client inside one, with its time and I/O drivers enabled")]
    NoRuntime,
    /// A client for code without async (feature `blocking`) could not start its thread: why.
    #[error("the operating system gave the client no thread: {0}")]
    NoThread(String),
}

/// Input that cannot work, found before anything was sent.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use redquorum::{BuildError, InvalidRequest, Redlock};
///
/// let built = Redlock::builder().node("redis://10.0.0.1").ttl(Duration::ZERO).build().await;
/// assert!(matches!(built, Err(BuildError::Invalid(InvalidRequest::ZeroTtl))));
/// # }
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The key is empty.
    #[error("the key is empty: a lock needs a name of at least one byte")]
    EmptyKey,
    /// The key, prefix included, is too long.
    #[error("the key has {length} bytes with its prefix, at most {maximum} are allowed")]
    KeyTooLong {
        /// Its length with the prefix, in bytes.
        length: usize,
        /// What is allowed.
        maximum: usize,
    },
    /// The key ends in a suffix that this client keeps for itself.
    #[error("the key ends in \"{suffix}\", which is reserved for the client's own keys")]
    ReservedKey {
        /// The suffix.
        suffix: &'static str,
    },
    /// The TTL is zero.
    #[error("the TTL is zero: the lock would never be held")]
    ZeroTtl,
    /// The TTL is not a whole number of milliseconds.
    #[error("the TTL {ttl:?} is no whole number of milliseconds, which servers count in")]
    FractionalTtl {
        /// The TTL given.
        ttl: Duration,
    },
    /// The drift allowance would use up the whole TTL.
    #[error(
        "the TTL {ttl:?} is no longer than its drift allowance {allowance:?}: nothing would be left of it"
    )]
    TtlWithinDrift {
        /// The TTL given.
        ttl: Duration,
        /// What drift takes from it.
        allowance: Duration,
    },
    /// The TTL is longer than the client allows.
    #[error(
        "the TTL {ttl:?} is above the allowed maximum {maximum:?} (raise it with `max_ttl` on the builder)"
    )]
    TtlTooLong {
        /// The TTL given.
        ttl: Duration,
        /// What is allowed.
        maximum: Duration,
    },
    /// The restart guard is shorter than a TTL that may be used: a node could forget such a lock and vote while it is held.
    #[error(
        "the restart guard {guard:?} is shorter than the longest TTL {max_ttl:?}: a node that forgot such a lock would \
         vote while it is still held"
    )]
    GuardTooShort {
        /// The guard given.
        guard: Duration,
        /// The longest TTL.
        max_ttl: Duration,
    },
    /// Waiting for replies may use up the TTL.
    #[error(
        "the reply timeout {reply_timeout:?} contradicts the TTL {ttl:?}: after drift ({allowance:?}) and minimum \
         validity ({min_validity:?}) only {left:?} are left for replies"
    )]
    ReplyTimeoutTooLong {
        /// The reply timeout given.
        reply_timeout: Duration,
        /// The TTL given.
        ttl: Duration,
        /// What drift takes from the TTL.
        allowance: Duration,
        /// What must be left after an acquire.
        min_validity: Duration,
        /// What is left for replies.
        left: Duration,
    },
    /// A timeout is zero.
    #[error("the {name} is zero: nothing could ever answer in time")]
    ZeroTimeout {
        /// Which one.
        name: &'static str,
    },
    /// A lock that is kept alive could not be extended twice in the time that its TTL leaves, were the first try in vain.
    #[error(
        "a reply timeout of {reply_timeout:?} leaves no time for a second try to extend a kept lock with a TTL of {ttl:?}: \
         {most:?} at most"
    )]
    NoRoomToExtend {
        /// The reply timeout.
        reply_timeout: Duration,
        /// The TTL given.
        ttl: Duration,
        /// The longest reply timeout that this TTL allows.
        most: Duration,
    },
    /// A lock that may not be held for as long as it must be valid at least.
    #[error("a maximum hold of {max_hold:?} is no longer than the minimum validity {min_validity:?}")]
    MaxHoldTooShort {
        /// The maximum hold given.
        max_hold: Duration,
        /// What must be left after an acquire.
        min_validity: Duration,
    },
    /// Counters of fenced locks would be forgotten while a lock is held, or the arithmetic of servers would not bear it.
    #[error("a fencing retention of {retention:?} is not between the longest TTL {least:?} and {most:?}")]
    FencingRetention {
        /// The retention given.
        retention: Duration,
        /// The least: the longest TTL of a request.
        least: Duration,
        /// The most.
        most: Duration,
    },
    /// The parts of a lock are none that this library made.
    #[error("these are no parts of a lock")]
    MalformedParts,
    /// The parts of a lock are another client's, whose helper keys have other names.
    #[error("these parts are of a lock with the prefix \"{theirs}\", and this client has \"{ours}\"")]
    OtherPrefix {
        /// The prefix of the client that took the lock apart.
        theirs: String,
        /// The prefix of this one.
        ours: String,
    },
    /// The minimum validity can never be reached.
    #[error(
        "the minimum validity {min_validity:?} is more than a TTL of {ttl:?} leaves after drift ({most:?})"
    )]
    MinValidityTooLong {
        /// The minimum validity given.
        min_validity: Duration,
        /// The TTL given.
        ttl: Duration,
        /// The most validity that it can leave.
        most: Duration,
    },
}

impl From<AddressError> for BuildError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::Malformed { url, reason } => Self::MalformedUrl { url, reason },
            AddressError::TlsNotCompiled { url } => Self::TlsNotCompiled { url },
        }
    }
}

impl InvalidRequest {
    pub(crate) fn from_ttl(ttl: Duration, error: TtlError) -> Self {
        match error {
            TtlError::Zero => Self::ZeroTtl,
            TtlError::NotWholeMillis => Self::FractionalTtl { ttl },
            TtlError::WithinDrift { allowance } => Self::TtlWithinDrift { ttl, allowance },
            TtlError::AboveMaximum { maximum } => Self::TtlTooLong { ttl, maximum },
        }
    }
}

/// Why a lock was not acquired. Whatever had been set is being undone.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::AcquireError;
///
/// match redlock.try_acquire("report").await {
///     Ok(guard) => guard.release().await?,
///     Err(AcquireError::Held { report, .. }) => println!("held by {:?}", report.holder()),
///     Err(AcquireError::NoQuorum { report, .. }) => println!("an outage: {report}"),
///     Err(AcquireError::Guarded { remaining, .. }) => println!("nodes were restarted, wait {remaining:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else holds the lock, or contenders split the votes. Try again later.
    #[error("lock \"{key}\" {}: {report}", contended(report))]
    Held {
        /// The key on the servers.
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// Too few nodes answered: an outage, not contention. Look after the nodes.
    #[error("no quorum for lock \"{key}\": {report}")]
    NoQuorum {
        /// The key on the servers.
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// Enough nodes granted, or still may, but some of them may have forgotten a lock that is still held, after a restart
    /// for instance, and do not count yet. Wait for them, or look why they lost their memory.
    #[error("lock \"{key}\" not acquired, {}: {report}", guarded_for(.remaining))]
    Guarded {
        /// The key on the servers.
        key: String,
        /// How much longer so many of them do not count that there is no quorum without; `None` where that is not known.
        remaining: Option<Duration>,
        /// What each node answered.
        report: Report,
    },
    /// Enough nodes granted, but too late: the TTL is too short for these nodes.
    #[error(
        "lock \"{key}\" came too late: {remaining:?} of validity left, {needed:?} needed. Use a longer TTL or nearer \
         nodes: {report}"
    )]
    ValidityExhausted {
        /// The key on the servers.
        key: String,
        /// What was left of the validity.
        remaining: Duration,
        /// What is needed at least.
        needed: Duration,
        /// What each node answered.
        report: Report,
    },
    /// No fencing token can follow on so many nodes that no quorum is left: the key's counter is close to 2^53, or what
    /// stands in its place is none. Nobody waits for that to change; without `fenced`, the lock can be had.
    #[error("no fencing token is left for lock \"{key}\": {report}")]
    TokensSpent {
        /// The key on the servers.
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// The wait is over; what stood in the way at the last attempt.
    #[error("waited {waited:.1?} in vain: {last}")]
    WaitOver {
        /// How long was waited.
        waited: Duration,
        /// Why the last attempt failed.
        last: Box<AcquireError>,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The request cannot work. Nothing was sent.
    #[error("invalid request: {0}")]
    Invalid(#[from] InvalidRequest),
    /// The operating system gave no random bytes, without which no owner can be made. Nothing was sent.
    #[error("the operating system gave no random bytes: {0}")]
    NoRandomness(String),
}

fn guarded_for(remaining: &Option<Duration>) -> String {
    match remaining {
        Some(remaining) => format!("guarded until {remaining:.1?} from now"),
        None => "guarded until a node can be marked".to_owned(),
    }
}

impl AcquireError {
    /// Whether somebody else having the lock is what stood in the way, at the last attempt where there were several.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// match redlock.lock("report").wait(Duration::from_secs(2)).await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(error) if error.is_contention() => println!("try again later"),
    ///     Err(error) => println!("look after the nodes: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_contention(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::WaitOver { last, .. } => last.is_contention(),
            _ => false,
        }
    }

    /// Who holds the lock, as far as the nodes told at the last attempt.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// if let Err(error) = redlock.try_acquire("report").await {
    ///     println!("{} has it", error.holder().unwrap_or("nobody that the nodes could name"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder(&self) -> Option<&str> {
        self.report()?.holder()
    }

    /// What each node answered, at the last attempt where there were several.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// if let Err(error) = redlock.try_acquire("report").await {
    ///     for node in error.report().iter().flat_map(|report| report.nodes()) {
    ///         println!("{node}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::Held { report, .. }
            | Self::NoQuorum { report, .. }
            | Self::Guarded { report, .. }
            | Self::TokensSpent { report, .. }
            | Self::ValidityExhausted { report, .. } => Some(report),
            Self::WaitOver { last, .. } => last.report(),
            Self::Closed | Self::Invalid(_) | Self::NoRandomness(_) => None,
        }
    }
}

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
        key: String,
        /// What is left of the old validity.
        remaining: Duration,
        /// What each node answered.
        report: Report,
    },
    /// So many nodes do not carry this holder any more that it has lost the lock. Stop working.
    #[error("lock \"{key}\" is lost, no quorum carries this holder any more: {report}")]
    Lost {
        /// The key on the servers.
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// The validity ended before the extension was confirmed. Stop working.
    #[error("lock \"{key}\" expired before it was extended")]
    Expired {
        /// The key on the servers.
        key: String,
    },
    /// The request cannot work. Nothing was sent, and the lock is held as before.
    #[error("invalid request: {0}")]
    Invalid(#[from] InvalidRequest),
}

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
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// The validity ended before a quorum had confirmed.
    #[error("lock \"{key}\" expired before it was resumed")]
    Expired {
        /// The key on the servers.
        key: String,
    },
    /// The lock was taken apart while a node still owed an answer, and on another machine than this one: nobody can tell
    /// here whether it has been held all the time.
    #[error(
        "lock \"{key}\" can be resumed only on the machine where it was taken apart, before it is restarted"
    )]
    NotPortable {
        /// The key on the servers.
        key: String,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The request cannot work. Nothing was sent, and the lock is held as before, until its validity ends.
    #[error("invalid request: {0}")]
    Invalid(#[from] InvalidRequest),
}

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
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// Another holder has the lock, and keeps it: its keys were not touched.
    #[error("lock \"{key}\" had expired and is another's now: {report}")]
    TakenOver {
        /// The key on the servers.
        key: String,
        /// What each node answered.
        report: Report,
    },
    /// Too few nodes answered. The release goes on in the background; at the latest, the TTL frees the lock.
    #[error("release of lock \"{key}\" not confirmed, it goes on in the background: {report}")]
    Unconfirmed {
        /// The key on the servers.
        key: String,
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

/// Who stands in the way.
fn contended(report: &Report) -> &'static str {
    if report.is_split() {
        "is wanted by several at a time, and none of them has a majority"
    } else {
        "is held by another"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors go through channels, boxes and threads.
    #[test]
    fn errors_are_send_sync_and_small() {
        fn check<T: std::error::Error + Send + Sync + Clone + 'static>() {}
        check::<BuildError>();
        check::<AcquireError>();
        check::<ExtendError>();
        check::<ReleaseError>();
        check::<ResumeError>();
        check::<WithLockError>();
        check::<InvalidRequest>();
        assert!(size_of::<AcquireError>() <= 128, "{}", size_of::<AcquireError>());
    }
}
