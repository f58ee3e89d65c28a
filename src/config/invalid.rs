//! Input that cannot work, with both numbers of each contradiction.

use std::time::Duration;

use thiserror::Error;

use crate::protocol::validity::TtlError;

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
    /// The restart delay is shorter than a TTL that may be used: a node could forget such a lock and vote while it is held.
    #[error(
        "the restart delay {delay:?} is shorter than the longest TTL {max_ttl:?}: a node that forgot such a lock would \
         vote while it is still held"
    )]
    RestartDelayTooShort {
        /// The delay given.
        delay: Duration,
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
