//! A held lock on its way to another process.
//!
//! Knows what of a lock has to travel, and which of it means something at the other end: a deadline only to a process on
//! the same clock, a duration to nobody.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Redlock;
use crate::client::error::{InvalidRequest, ResumeError};
use crate::client::guard::LockGuard;
use crate::config::{Config, KeepAlive};
use crate::protocol::fencing::{Carry, END, FencingToken};
use crate::protocol::lease::Lease;
use crate::protocol::message::{Key, Owner};
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::runtime::resume;
use crate::runtime::shared::Shared;

/// A held lock taken out of its guard ([`LockGuard::into_parts`]), for another process to go on with
/// ([`Redlock::resume`]).
///
/// Plain data: dropping it releases nothing, the keys' TTL does. Whoever has the parts has the lock, so hand them to one
/// process only, and resume them once; that is the one thing that cannot be checked here.
///
/// Nothing extends the lock while it is on its way: [`LockParts::remaining`] tells how long it was still good for when it
/// was taken apart. That is for people. A duration says nothing to a process that does not know when it began, and the clocks
/// of two machines have no common origin. So it is not trusted:
///
/// - **On the same machine**, since the same start of it, the end of validity is known exactly, suspend included. Parts that
///   come later are refused.
/// - **Elsewhere** the nodes themselves have to tell: Q of them must still carry the owner. That is proof enough where
///   nothing that sets it was on its way to any node when the parts were made, because then a node that carries it has
///   done so ever since. Parts made while a node owed an answer are therefore refused elsewhere.
///
/// With the feature `serde` it can be serialised. It holds no secret, but whoever has it can release the lock.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// let parts = redlock.acquire("invoice:4711").await?.into_parts().await?;
/// println!("{} was held for another {:?}", parts.key().escape_ascii(), parts.remaining());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the parts leaves the lock to its TTL"]
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockParts {
    key: Vec<u8>,
    /// With which the key begins: it names the queue and the counter as well.
    prefix: Vec<u8>,
    /// 32 upper-case hex digits.
    owner: String,
    remaining: Duration,
    /// The longest life that was ever given to the key.
    longest: Duration,
    /// Every set was answered.
    settled: bool,
    /// The fencing token, where the lock has one.
    #[cfg_attr(feature = "serde", serde(default))]
    token: Option<u64>,
    until: Option<Until>,
}

/// The end of validity on one machine's clock.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Until {
    /// Which machine, and which start of it.
    clock: String,
    nanos: u64,
}

impl LockParts {
    /// The parts of a held lease; `None` where it is not valid any more.
    pub(crate) fn of(lease: &Lease, shared: &Shared) -> Option<Self> {
        let now = shared.clock.now();
        let validity = lease.validity().filter(|validity| validity.holds_at(now))?;
        let until = |clock| Until { clock, nanos: validity.until().as_nanos() };
        Some(Self {
            key: lease.key().as_bytes().to_vec(),
            prefix: shared.config.prefix.clone(),
            owner: String::from_utf8_lossy(&lease.owner().to_hex()).into_owned(),
            remaining: validity.remaining(now),
            longest: lease.longest().duration(),
            settled: lease.is_answered(),
            token: lease.fencing_token().map(FencingToken::as_u64),
            until: shared.clock.identity().map(until),
        })
    }

    /// The key on the servers, prefix included.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// println!("{}", parts.key().escape_ascii());
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// How long the lock was still valid for when it was taken apart.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// println!("pack them off: {:?} left", parts.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// The fencing token of a fenced lock, which goes along.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// let guard = redlock.resume(parts.clone()).await?;
    /// assert_eq!(guard.fencing_token(), parts.fencing_token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token.map(FencingToken::new)
    }

    /// Whether a process on another machine can resume it.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// if !parts.is_portable() {
    ///     println!("a node still owes an answer: resume them on this machine");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_portable(&self) -> bool {
        self.settled
    }

    /// Before which moment, on this clock, the lock has to be confirmed: without limit where the nodes themselves can tell.
    /// `None` where there is no knowing.
    pub(crate) fn deadline(&self, shared: &Shared) -> Option<Instant> {
        let here = shared.clock.identity();
        match &self.until {
            Some(until) if here.as_ref() == Some(&until.clock) => Some(Instant::from_nanos(until.nanos)),
            _ => self.settled.then_some(Instant::FAR_FUTURE),
        }
    }

    pub(crate) fn longest(&self) -> Ttl {
        Ttl::unchecked(self.longest)
    }

    /// What `config` makes of them.
    pub(crate) fn read(&self, config: &Config) -> Result<(Key, Owner), InvalidRequest> {
        let name = self.key.strip_prefix(self.prefix.as_slice()).ok_or(InvalidRequest::MalformedParts)?;
        if self.prefix != config.prefix {
            let [theirs, ours] =
                [&self.prefix, &config.prefix].map(|prefix| prefix.escape_ascii().to_string());
            return Err(InvalidRequest::OtherPrefix { theirs, ours });
        }
        let key = config.key(name)?;
        let owner = Owner::from_hex(self.owner.as_bytes()).ok_or(InvalidRequest::MalformedParts)?;
        if self.token.is_some_and(|token| token >= END) {
            return Err(InvalidRequest::MalformedParts);
        }
        Ok((key, owner))
    }
}

impl fmt::Debug for LockParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockParts")
            .field("key", &Key::new(self.key.as_slice()))
            .field("remaining", &self.remaining)
            .field("portable", &self.settled)
            .finish_non_exhaustive()
    }
}

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
    pub async fn into_parts(self) -> Result<LockParts, crate::Lost> {
        if let Some(lost) = self.lost_now() {
            return Err(lost);
        }
        let (_lease, shared, mut driver) = self.dissolve().await.ok_or(crate::Lost::Released)?;
        let timeout = shared.config.reply_timeout(shared.config.ttl);
        driver.answered_by(shared.clock.now().after(timeout)).await;
        let parts = LockParts::of(driver.lease(), &shared).ok_or(crate::Lost::Expired)?;
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
        ResumeRequest { redlock: self.clone(), parts, ttl: None, keeping: self.shared.config.keeping }
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
    ttl: Option<Duration>,
    keeping: KeepAlive,
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
        self.ttl = Some(ttl);
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
        self.keeping.alive = true;
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
        self.keeping = KeepAlive { alive: true, longest: Some(longest) };
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
        self.keeping.alive = false;
        self
    }

    async fn resume(self) -> Result<LockGuard, ResumeError> {
        let Self { redlock, parts, ttl, keeping } = self;
        let shared: Arc<Shared> = redlock.shared;
        let keeping = keeping.in_force();
        let terms = shared.config.terms(shared.quorum, ttl.unwrap_or(shared.config.ttl), keeping)?;
        let (key, owner) = parts.read(&shared.config)?;
        let retention = shared.config.retention();
        let carry = parts.fencing_token().map(|token| Carry { token, retention });
        let request = resume::Request { key, owner, terms, keeping, carry };
        let (driver, lease) = resume::resume(&shared, request, parts).await?;
        Ok(LockGuard::new(shared, driver, lease, keeping.alive.then_some(terms.ttl)))
    }
}

impl IntoFuture for ResumeRequest {
    type Output = Result<LockGuard, ResumeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.resume())
    }
}
