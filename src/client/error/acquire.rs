//! Why a lock was not acquired.

use std::time::Duration;

use thiserror::Error;

use crate::client::report::Report;
use crate::config::InvalidRequest;
use crate::node::Node;
use crate::protocol::acquire::{End, Failed};
use crate::protocol::lease::Failure;
use crate::protocol::message::Key;
use crate::protocol::time::Instant;
use crate::runtime::attempt::{NotAcquired, Request};

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
///     Err(AcquireError::NodesTooYoung { remaining, .. }) => println!("nodes were restarted, wait {remaining:?}"),
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
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// Too few nodes answered: an outage, not contention. Look after the nodes.
    #[error("no quorum for lock \"{key}\": {report}")]
    NoQuorum {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// Enough nodes granted, or still may, but some of them may have forgotten a lock that is still held, after a restart
    /// for instance, and do not count yet. Wait for them, or look why they lost their memory.
    #[error("lock \"{key}\" not acquired, {}: {report}", too_young_for(.remaining))]
    NodesTooYoung {
        /// The key on the servers.
        key: Key,
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
    TooSlow {
        /// The key on the servers.
        key: Key,
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
    TokensExhausted {
        /// The key on the servers.
        key: Key,
        /// What each node answered.
        report: Report,
    },
    /// The wait is over; what stood in the way at the last attempt.
    #[error("waited {waited:.1?} in vain: {last}")]
    TimedOut {
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

fn too_young_for(remaining: &Option<Duration>) -> String {
    match remaining {
        Some(remaining) => format!("too young until {remaining:.1?} from now"),
        None => "too young until a node was looked at and marked".to_owned(),
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
            Self::TimedOut { last, .. } => last.is_contention(),
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
            | Self::NodesTooYoung { report, .. }
            | Self::TokensExhausted { report, .. }
            | Self::TooSlow { report, .. } => Some(report),
            Self::TimedOut { last, .. } => last.report(),
            Self::Closed | Self::Invalid(_) | Self::NoRandomness(_) => None,
        }
    }
}

impl AcquireError {
    /// What a request's end is for its caller.
    pub(crate) fn of(why: NotAcquired, request: &Request, nodes: &[Node]) -> Self {
        let End { last, waited, holder } = match why {
            NotAcquired::Closed => return Self::Closed,
            NotAcquired::NoRandomness(why) => return Self::NoRandomness(why),
            NotAcquired::Failed(end) => end,
        };
        let last = match (Self::of_failure(&last, request, nodes), holder, waited) {
            (Self::Held { key, report }, Some((node, holder)), Some(waited)) => {
                Self::Held { key, report: report.with_holder(node, holder, waited) }
            }
            (error, ..) => error,
        };
        match waited {
            Some(waited) => Self::TimedOut { waited, last: Box::new(last) },
            None => last,
        }
    }

    fn of_failure(failed: &Failed, request: &Request, nodes: &[Node]) -> Self {
        let (key, report) = (request.key.clone(), Report::new(&failed.round, nodes));
        match failed.failure {
            Failure::Contended => Self::Held { key, report },
            Failure::Unavailable if failed.is_final() => Self::TokensExhausted { key, report },
            Failure::Unavailable => Self::NoQuorum { key, report },
            Failure::TooYoung { until } => {
                let remaining = (until != Instant::FAR_FUTURE).then(|| until.since(failed.at));
                Self::NodesTooYoung { key, remaining, report }
            }
            Failure::Exhausted { remaining } => {
                Self::TooSlow { key, remaining, needed: request.terms.min_validity, report }
            }
        }
    }

    /// What stood in the way, at the last attempt: the name of it in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Held { .. } => "contended",
            Self::NoQuorum { .. } => "no_quorum",
            Self::NodesTooYoung { .. } => "too_young",
            Self::TooSlow { .. } => "too_late",
            Self::TokensExhausted { .. } => "tokens_exhausted",
            Self::TimedOut { last, .. } => last.label(),
            Self::Closed => "closed",
            Self::NoRandomness(_) => "no_randomness",
            // Refused before it is counted.
            Self::Invalid(_) => "invalid",
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
