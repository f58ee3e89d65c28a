//! A request for a lock, and what becomes of it.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use tracing::Instrument;

use crate::client::Redlock;
use crate::client::error::AcquireError;
use crate::client::guard::LockGuard;
use crate::config::{InvalidRequest, KeepAlive, Wait};
use crate::meter;
use crate::runtime::acquire::{self, Request};

/// A request for a lock: adjust it, then `.await` it.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), redquorum::AcquireError> {
/// use std::time::Duration;
///
/// let guard = redlock.lock("report").ttl(Duration::from_secs(2)).wait(Duration::from_millis(500)).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As with [`Redlock::acquire`].
///
/// # Cancellation safety
///
/// As with [`Redlock::acquire`]: dropping the future gives up whatever was set.
///
/// # Fairness
///
/// As with [`Redlock::acquire`].
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct LockRequest {
    redlock: Redlock,
    name: Box<[u8]>,
    ttl: Option<Duration>,
    wait: Option<Wait>,
    keeping: KeepAlive,
    fenced: bool,
}

impl LockRequest {
    /// A request with the client's settings.
    pub(super) fn new(redlock: Redlock, name: Box<[u8]>) -> Self {
        let keeping = redlock.shared.config.keeping;
        Self { redlock, name, ttl: None, wait: None, keeping, fenced: false }
    }

    /// The life given to the key on each node, in place of the client's TTL: whole milliseconds, more than the drift
    /// allowance, at most the client's maximum.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").ttl(Duration::from_secs(3)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Waits for the lock at most this long. The last attempt begins no later than that. Zero is one attempt.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").wait(Duration::from_millis(500)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(Wait::AtMost(limit));
        self
    }

    /// Waits for the lock for ever.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").wait_forever().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Unlimited);
        self
    }

    /// Asks once. The error then is the cause itself, without [`AcquireError::TimedOut`] around it.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let free = redlock.lock("report").ttl(Duration::from_secs(3)).without_waiting().await.is_ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_waiting(mut self) -> Self {
        self.wait = Some(Wait::No);
        self
    }

    /// Keeps the lock alive: it is extended in the background, by its TTL whenever a third of that has gone by, until the
    /// guard is released or dropped, the lock is lost, or the client is closed. What fails is tried again for as long as the
    /// validity lasts. Without a limit, unless the client has one ([`RedlockBuilder::max_hold`]): a holder that hangs
    /// holds it for ever.
    ///
    /// However many locks of a client are kept, one task serves them, and one request to a node extends up to a hundred.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").keep_alive().await?;
    /// tokio::select! {
    ///     lost = guard.lost() => eprintln!("stopped: {lost}"),
    ///     () = tokio::time::sleep(Duration::from_secs(3600)) => println!("done"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`RedlockBuilder::max_hold`]: crate::RedlockBuilder::max_hold
    pub fn keep_alive(mut self) -> Self {
        self.keeping.alive = true;
        self
    }

    /// Keeps the lock alive, but not beyond this time, counted from before it was acquired: then it is lost
    /// ([`Lost::MaxHoldReached`](crate::Lost::MaxHoldReached)) and released. Must be more than the least validity of an acquired lock.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").max_hold(Duration::from_secs(600)).await?;
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
    /// let guard = redlock.lock("report").without_keep_alive().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_keep_alive(mut self) -> Self {
        // A maximum hold stays, for whoever keeps it alive after all, as work under a lock does.
        self.keeping.alive = false;
        self
    }

    /// Asks for a fencing token with the lock ([`LockGuard::fencing_token`](crate::LockGuard::fencing_token)): a number that is
    /// greater than that of every earlier fenced holder of this key. A resource that remembers the greatest token it has seen,
    /// and refuses smaller ones, is safe from the late writes of a holder that lost its lock without noticing. See
    /// [`docs::fencing`](crate::docs::fencing).
    ///
    /// Usually it costs nothing but a script in place of a plain command. Where the nodes do not agree on a number, mostly
    /// because one of them was away, acquiring takes a second round trip. Each node keeps a counter for the key, for
    /// [`RedlockBuilder::fencing_retention`](crate::RedlockBuilder::fencing_retention).
    ///
    /// Tokens rise from one *fenced* holder to the next; holders that did not ask for one do not count.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").fenced().await?;
    /// let token = guard.fencing_token(); // goes with every write
    /// # Ok(())
    /// # }
    /// ```
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    fn check(&self) -> Result<Request, InvalidRequest> {
        let shared = &self.redlock.shared;
        let key = shared.config.key(&self.name)?;
        let keeping = self.keeping.in_force();
        let ttl = self.ttl.unwrap_or(shared.config.ttl);
        let terms = shared.config.terms(shared.quorum, ttl, keeping)?;
        let wait = self.wait.unwrap_or(shared.config.wait);
        let fenced = self.fenced.then(|| shared.config.retention());
        Ok(Request { key, terms, wait, keeping, fenced })
    }

    async fn acquire(self) -> Result<LockGuard, AcquireError> {
        let request = self.check()?;
        let shared = self.redlock.shared;
        let span = tracing::debug_span!("acquire", key = %request.key);
        let metered = meter::Acquire::begin(|| shared.clock.now());
        let acquired = acquire::acquire(&shared, &request).instrument(span).await;
        let lease = acquired.as_ref().map(|(driver, _)| driver.lease());
        metered.end(lease, || shared.clock.now());
        let (driver, lease) = acquired?;
        Ok(LockGuard::new(shared, driver, lease, request.keeping.alive.then_some(request.terms.ttl)))
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<LockGuard, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
