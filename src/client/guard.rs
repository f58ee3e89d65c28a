//! The user's handle on a held lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::client::error::{ExtendError, ReleaseError};
use crate::client::report::Report;
use crate::protocol::fencing::FencingToken;
use crate::protocol::lease::{Event, NotExtended, Released};
use crate::protocol::message::{Key, Owner};
use crate::protocol::round::Round;
use crate::protocol::validity::Ttl;
use crate::runtime::driver::Driver;
use crate::runtime::loss::{Lost, Watched};
use crate::runtime::renewal::{Renewal, RenewalHandle};
use crate::runtime::shared::{Counted, Shared};

/// A held lock. Holding it means: until [`LockGuard::remaining`] is zero, no other client of these nodes acquires the
/// same lock. It does *not* mean that time stops: a paused process wakes up after its validity, so look at
/// [`LockGuard::is_valid`] before each step that matters, or wait for [`LockGuard::lost`] beside the work.
///
/// Dropping the guard releases the lock in the background, from anywhere: inside a runtime, on a plain thread, while
/// unwinding. [`LockGuard::release`] does the same and tells how it ended.
///
/// A guard of a lock that is kept alive (`keep_alive` on the request) does the same; its lock is extended in the
/// background for as long as it exists. One that is forgotten, as by [`std::mem::forget`], is kept for ever.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// let mut guard = redlock.acquire("report").await?;
/// for page in 1..=10 {
///     if guard.remaining() < Duration::from_secs(2) {
///         guard.extend(Duration::from_secs(10)).await?;
///     }
///     println!("page {page}");
/// }
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock at once"]
pub struct LockGuard {
    hold: Hold,
    key: Key,
    token: Option<FencingToken>,
    shared: Arc<Shared>,
}

/// Who drives the lease.
enum Hold {
    /// The guard itself. The driver is dropped first: its releases are with the nodes before the client counts one lease
    /// less.
    Own { driver: Driver, lease: Counted },
    /// The client's renewal.
    Renewed(RenewalHandle),
}

impl LockGuard {
    /// The guard of a held lease, which a renewal extends to a TTL if it is kept alive.
    pub(super) fn new(
        shared: Arc<Shared>,
        driver: Driver,
        lease: Counted,
        kept: Option<(&Arc<Renewal>, Ttl)>,
    ) -> Self {
        let (key, token) = (driver.lease().key().clone(), driver.lease().fencing_token());
        let hold = match kept {
            Some((renewal, ttl)) => Hold::Renewed(renewal.keep(driver, lease, ttl)),
            None => Hold::Own { driver, lease },
        };
        Self { hold, key, token, shared }
    }

    /// The driver of the lease, which the guard's watchers take for over where it was kept. `None` never happens: a guard has
    /// its lease until it is dissolved. The parts are in this order so that the driver is dropped first, as ever.
    pub(crate) async fn dissolve(self) -> Option<(Option<Counted>, Arc<Shared>, Driver)> {
        let (driver, lease) = match self.hold {
            Hold::Own { driver, lease } => (driver, Some(lease)),
            Hold::Renewed(handle) => handle.take_back().await?,
        };
        Some((lease, self.shared, driver))
    }

    fn owner(&self) -> Option<Owner> {
        match &self.hold {
            Hold::Own { driver, .. } => Some(driver.lease().owner()),
            Hold::Renewed(handle) => handle.owner(),
        }
    }

    pub(crate) fn watched(&self) -> &Arc<Watched> {
        match &self.hold {
            Hold::Own { driver, .. } => driver.watched(),
            Hold::Renewed(handle) => handle.watched(),
        }
    }

    /// Why the holder may not act at present; `None` where it may.
    pub(crate) fn lost_now(&self) -> Option<Lost> {
        self.watched().lost_by(self.shared.clock.now())
    }

    /// The clock that the end of validity is on.
    #[cfg(feature = "blocking")]
    pub(crate) fn clock(&self) -> &crate::clock::Clock {
        &self.shared.clock
    }

    /// The key on the servers, prefix included.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// assert!(redlock.acquire("report").await?.key().ends_with(b"report"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The holder's fencing token: greater than that of every earlier holder of this key that asked for one. `None` where the
    /// request did not ask ([`LockRequest::fenced`](crate::LockRequest::fenced)). It stays the same for as long as the lock is
    /// held, however often it is extended.
    ///
    /// Send it along with every write, and let the resource refuse a write whose token is smaller than the greatest that it
    /// has seen.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").fenced().await?;
    /// if let Some(token) = guard.fencing_token() {
    ///     println!("UPDATE reports SET body = $1, token = {token} WHERE name = $2 AND token <= {token}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token
    }

    /// How long the holder may still act; zero once the lock is lost. Computed anew each time, from
    /// ttl − time since the request was sent − (ttl × drift + 2 ms).
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("report").await?;
    /// let request = tokio::time::timeout(guard.remaining(), async { "a request to somebody else" });
    /// let answer = request.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        let validity = self.watched().validity();
        validity.map_or(Duration::ZERO, |validity| validity.remaining(self.shared.clock.now()))
    }

    /// Whether the holder may act now. No network is involved.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("report").await?;
    /// // … the work …
    /// if guard.is_valid() {
    ///     println!("the last step");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// What each node has answered so far when the lock was acquired or last extended: right after the decision, some
    /// nodes may not have been waited for; asked again a little later, the report has their answers too.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("report").await?;
    /// println!("{}", guard.report());
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self) -> Report {
        let round = match &self.hold {
            Hold::Own { driver, .. } => Some(driver.round()),
            Hold::Renewed(handle) => handle.round(),
        };
        let round = round.unwrap_or_else(|| Round::new(self.shared.quorum, self.shared.clock.now()));
        Report::new(&round, &self.shared.nodes)
    }

    /// Resolves when the holder may no longer act: at the end of validity (four milliseconds early, since timers and
    /// schedulers are late), on a loss that an extension found, and before the first byte of a release is sent. Does not
    /// wait for any socket.
    ///
    /// The future holds nothing of the guard, and may be moved into another task. Dropping it is free.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.lock("report").keep_alive().await?;
    /// let lost = guard.lost();
    /// tokio::spawn(async move { eprintln!("no more of it: {}", lost.await) });
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + use<> {
        self.watched().lost(self.shared.alarm.clone())
    }

    /// Gives the key another `ttl` of life on the nodes, counted from now; the validity never becomes shorter by it.
    /// Counts only nodes that still carried this holder, and sets the key again on nodes that had lost it, once a quorum
    /// confirmed. A lock that is kept alive is kept as before afterwards, by its own TTL.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// use redquorum::ExtendError;
    ///
    /// let mut guard = redlock.acquire("report").await?;
    /// match guard.extend(Duration::from_secs(10)).await {
    ///     Ok(()) => println!("for another {:?}", guard.remaining()),
    ///     Err(ExtendError::Unconfirmed { remaining, .. }) => println!("still for {remaining:?}, try again"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ExtendError::Unconfirmed`]: the lock is still held for its old validity, and extending again is right.
    /// [`ExtendError::Lost`] and [`ExtendError::Expired`]: stop working; the lock cannot be revived.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves the lock held with its old validity; nodes may give the key the longer life all the
    /// same.
    pub async fn extend(&mut self, ttl: Duration) -> Result<(), ExtendError> {
        let ttl = self.shared.config.ttl(ttl)?;
        let event = match &mut self.hold {
            Hold::Own { driver, .. } => {
                driver.take_answers();
                driver.mutate(|lease, clock| lease.extend(ttl, clock.now()));
                Some(driver.event().await)
            }
            Hold::Renewed(handle) => handle.extend(ttl).await,
        };
        // A renewal is missing where the client was closed, which ended its locks; and where the client's runtime has ended:
        // then no node can be asked, and the validity is what it was.
        let event = event.unwrap_or_else(|| match self.lost_now() {
            Some(_) => Event::NotExtended(NotExtended::Expired),
            None => Event::NotExtended(NotExtended::Unconfirmed),
        });
        // Who was told of the loss, shortly before the end of validity, does not get the lock back.
        let event = match event {
            Event::Extended(_) | Event::NotExtended(NotExtended::Unconfirmed) if self.watched().ran_out() => {
                Event::NotExtended(NotExtended::Expired)
            }
            event => event,
        };
        let key = self.key.clone();
        match event {
            Event::NotExtended(NotExtended::Unconfirmed) => Err(ExtendError::Unconfirmed {
                key,
                remaining: self.remaining(),
                report: self.report().of_an_extension(),
            }),
            Event::NotExtended(NotExtended::Lost) => {
                tracing::warn!(%key, "lock lost: no quorum carries this holder any more");
                Err(ExtendError::Lost { key, report: self.report().of_an_extension() })
            }
            Event::NotExtended(NotExtended::Expired) => {
                tracing::warn!(%key, "lock lost: expired before it was extended");
                Err(ExtendError::Expired { key })
            }
            // A lease that is being extended has no other events.
            _ => Ok(()),
        }
    }

    /// Releases the lock: deletes this holder's key, and only this holder's, on every node that it may have reached.
    /// Returns as soon as a quorum has confirmed; the rest goes on in the background.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let guard = redlock.acquire("report").await?;
    /// if let Err(error) = guard.release().await {
    ///     eprintln!("nothing is left to do, but this may be worth knowing: {error}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Each tells how far the lock was still this holder's; none leaves anything for the caller to do.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future changes nothing: the release has been handed to the nodes.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let key = self.key.clone();
        let Some((_lease, shared, mut driver)) = self.dissolve().await else { return Ok(()) };
        driver.take_answers();
        driver.mutate(|lease, clock| lease.release(clock.now()));
        let Event::Released(released) = driver.event().await else { return Ok(()) };
        if released == Released::Confirmed {
            return Ok(());
        }
        let report = Report::new(&driver.round(), &shared.nodes).of_a_release();
        Err(match released {
            Released::TakenOver => ReleaseError::TakenOver { key, report },
            Released::Gone => ReleaseError::Expired { key, report },
            Released::Confirmed | Released::Unconfirmed => ReleaseError::Unconfirmed { key, report },
        })
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key)
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish()
    }
}
