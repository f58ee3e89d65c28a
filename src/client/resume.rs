//! Taking a held lock apart for another process, and going on with one from elsewhere.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use crate::client::Redlock;
use crate::client::error::ResumeError;
use crate::client::guard::LockGuard;
use crate::client::options::Options;
use crate::client::parts::LockParts;
use crate::client::report::Report;
use crate::config::InvalidRequest;
use crate::protocol::fencing::{Carry, FencingToken};
use crate::runtime::loss::Lost;
use crate::runtime::resume::{self, NotResumed};

impl LockGuard {
    /// Takes the lock out of its guard without releasing it, for another process to go on with. It is not extended any more
    /// until [`Redlock::resume`].
    ///
    /// Waits for nodes that still owe an answer to the acquire, one reply timeout at most: without their answers, the parts
    /// are good on this machine only ([`LockParts::is_portable`]).
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let parts = redlock.acquire("invoice:4711").await?.into_parts().await?;
    /// assert!(parts.is_portable(), "only on this machine");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Why the lock is not held any more. It is released then.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future releases the lock.
    pub async fn into_parts(self) -> Result<LockParts, Lost> {
        if let Some(lost) = self.lost_now() {
            return Err(lost);
        }
        let (_lease, shared, mut driver) = self.dissolve().await.ok_or(Lost::Released)?;
        let timeout = shared.config.reply_timeout(shared.config.ttl);
        driver.answered_by(shared.clock.now().after(timeout)).await;
        let parts = LockParts::of(driver.lease(), &shared).ok_or(Lost::Expired)?;
        driver.mutate(|lease, _| lease.hand_on());
        Ok(parts)
    }
}

impl Redlock {
    /// A request to go on with a lock that was taken apart: adjust it, then `.await` it. It is held once a quorum of the
    /// nodes has confirmed, by an extension, that it still carries it.
    ///
    /// The client must have the same nodes and the same prefix as the one that took the lock apart; another prefix is refused.
    ///
    /// ```no_run
    /// # async fn example(here: redquorum::Redlock, there: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = here.acquire("invoice:4711").await?;
    /// let parts = guard.into_parts().await?;
    /// // … to another process …
    /// let guard = there.resume(parts).keep_alive().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&self, parts: LockParts) -> ResumeRequest {
        ResumeRequest { redlock: self.clone(), parts, options: Options::of(&self.shared.config) }
    }
}

/// A request to go on with a lock from elsewhere: adjust it, then `.await` it.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # let parts = redlock.acquire("invoice:4711").await?.into_parts().await?;
/// use redquorum::ResumeError;
///
/// match redlock.resume(parts).ttl(Duration::from_secs(5)).await {
///     Ok(guard) => println!("held again for {:?}", guard.remaining()),
///     Err(ResumeError::Unconfirmed { parts, .. }) => println!("again, with {parts:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`ResumeError::Unconfirmed`] gives the parts back, and trying again is right. All others are final.
///
/// # Cancellation safety
///
/// Dropping the future releases the lock, once it has begun.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct ResumeRequest {
    redlock: Redlock,
    parts: LockParts,
    options: Options,
}

impl ResumeRequest {
    /// The life given to the key from now on, in place of the client's TTL: whole milliseconds, more than the drift allowance,
    /// at most the client's maximum.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// let guard = redlock.resume(parts).ttl(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Keeps the lock alive, as [`LockRequest::keep_alive`](crate::LockRequest::keep_alive) does.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// let guard = redlock.resume(parts).keep_alive().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_alive(mut self) -> Self {
        self.options.keep_alive();
        self
    }

    /// Keeps the lock alive, but not beyond this time from now.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// let guard = redlock.resume(parts).max_hold(Duration::from_secs(600)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.options.keep_at_most(longest);
        self
    }

    /// Does not keep the lock alive, where the client does so with all others.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// let guard = redlock.resume(parts).without_keep_alive().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_keep_alive(mut self) -> Self {
        self.options.do_not_keep();
        self
    }

    async fn resume(self) -> Result<LockGuard, ResumeError> {
        let Self { redlock: Redlock { shared, renewal }, parts, options } = self;
        let (terms, keeping) = options.terms(&shared.config, shared.quorum)?;
        let (key, owner) = parts.read(&shared.config)?;
        let retention = shared.config.retention();
        let token = parts.fencing_token().map(FencingToken::as_u64);
        // No lock has such a token: it would spend the tokens of the key on all nodes.
        if shared.most_expected().is_some_and(|most| token.is_some_and(|token| token > most)) {
            return Err(InvalidRequest::MalformedParts.into());
        }
        let carry = parts.fencing_token().map(|token| Carry { token, retention });
        let (name, resumed) = (key.clone(), parts.resumed(&shared));
        let request = resume::Request { key, owner, terms, keeping, carry, resumed };
        let (driver, lease) = resume::resume(&shared, request).await.map_err(|why| match why {
            NotResumed::Closed => ResumeError::Closed,
            NotResumed::Unknowable => ResumeError::NotPortable { key: name },
            NotResumed::Expired => ResumeError::Expired { key: name },
            NotResumed::Unconfirmed(round) => {
                let report = Report::new(&round, &shared.nodes);
                ResumeError::Unconfirmed { parts: Box::new(parts), report }
            }
            NotResumed::Lost(round) => {
                ResumeError::Lost { key: name, report: Report::new(&round, &shared.nodes) }
            }
        })?;
        Ok(LockGuard::new(shared, driver, lease, keeping.alive.then_some((&renewal, terms.ttl))))
    }
}

impl IntoFuture for ResumeRequest {
    type Output = Result<LockGuard, ResumeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.resume())
    }
}
