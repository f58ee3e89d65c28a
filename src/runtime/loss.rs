//! How long a holder may act, as those who watch it see it.
//!
//! Kept beside the lease by whoever drives it, who tells every change before handing anything to a node: so nobody who
//! watches learns of a loss later than the first byte of the release leaves (rule 8). Shared with the guard of a kept lease,
//! whose word that the lease is over stands at once, whatever the renewal hears afterwards.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

use super::alarm::Alarm;
use crate::protocol::lease::{End, Lease};
use crate::protocol::time::Instant;
use crate::protocol::validity::Validity;

/// Why a holder may no longer act.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::Lost;
///
/// let guard = redlock.lock("report").max_hold(Duration::from_secs(600)).await?;
/// match guard.lost().await {
///     Lost::MaxHoldReached => println!("ten minutes were not enough"),
///     lost => println!("{lost}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lost {
    /// The validity ended without an extension.
    Expired,
    /// So many nodes do not carry this holder any more that no quorum does.
    Forgotten,
    /// As [`Lost::Forgotten`], and another holder is on most of the nodes that said so.
    TakenOver,
    /// The lock was held for as long as it was to be held at most.
    MaxHoldReached,
    /// The client was closed.
    Closed,
    /// The guard was released or dropped, or taken apart for another process.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lock expired",
            Self::Forgotten => "no quorum of the nodes carries this holder any more",
            Self::TakenOver => "another holder has the lock",
            Self::MaxHoldReached => "the lock was held for as long as it was to be held at most",
            Self::Closed => "the client was closed",
            Self::Released => "the lock was released",
        })
    }
}

impl std::error::Error for Lost {}

/// What a watcher knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeaseState {
    /// The holder may act until then; and what has happened when that time has come.
    Until(Validity, Lost),
    Over(Lost),
}

impl LeaseState {
    /// The term of a lease; `None` before it is held.
    fn of(lease: &Lease) -> Option<Self> {
        let over = |end| match end {
            End::Released | End::NotAcquired | End::HandedOn => Lost::Released,
            End::Expired => Lost::Expired,
            End::Lost => Lost::Forgotten,
            End::TakenOver => Lost::TakenOver,
            End::MaxHoldReached => Lost::MaxHoldReached,
        };
        let held = lease.validity().map(|validity| {
            let limited = validity.until() >= lease.limit();
            Self::Until(validity, if limited { Lost::MaxHoldReached } else { Lost::Expired })
        });
        held.or_else(|| lease.end().map(|end| Self::Over(over(end))))
    }
}

/// The term of one lease, and those who watch it. There is no channel before the first of them: most leases are never
/// watched.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    term: Mutex<Option<LeaseState>>,
    watchers: OnceLock<watch::Sender<Option<LeaseState>>>,
}

impl Watched {
    /// Tells how the lease stands now.
    pub(crate) fn tell(&self, lease: &Lease) {
        if let Some(term) = LeaseState::of(lease) {
            self.set(term);
        }
    }

    /// Tells that the holder may no longer act.
    pub(crate) fn over(&self, lost: Lost) {
        self.set(LeaseState::Over(lost));
    }

    /// Tells that the holder may no longer act, unless it may act beyond `deadline` by now. Returns why it may not.
    ///
    /// Who was told a little early that the lock is lost must not see it come back: no extension that is confirmed after
    /// this changes it.
    fn end_at(&self, deadline: Instant, lost: Lost) -> Option<Lost> {
        let term = self.change(|current| match current {
            Some(LeaseState::Until(validity, _)) if validity.until() > deadline => current,
            _ => Some(LeaseState::Over(lost)),
        });
        match term {
            Some(LeaseState::Over(lost)) => Some(lost),
            _ => None,
        }
    }

    /// Whether the holder was told that its time is over, which only it knows.
    pub(crate) fn ran_out(&self) -> bool {
        matches!(*self.lock(), Some(LeaseState::Over(Lost::Expired | Lost::MaxHoldReached)))
    }

    fn set(&self, term: LeaseState) {
        self.change(|_| Some(term));
    }

    /// Gives the term another value, and tells those who watch. What is over stays over, for the first reason. Returns the
    /// term as it is then.
    fn change(&self, next: impl FnOnce(Option<LeaseState>) -> Option<LeaseState>) -> Option<LeaseState> {
        let mut current = self.lock();
        if matches!(*current, Some(LeaseState::Over(_))) {
            return *current;
        }
        let next = next(*current);
        if next != *current {
            *current = next;
            if let Some(watchers) = self.watchers.get() {
                watchers.send_replace(next);
            }
        }
        next
    }

    /// Until when the holder may act, as far as is known now; `None` once it is over.
    pub(crate) fn validity(&self) -> Option<Validity> {
        match *self.lock() {
            Some(LeaseState::Until(validity, _)) => Some(validity),
            _ => None,
        }
    }

    /// Why the holder may not act at `now`; `None` where it may.
    pub(crate) fn lost_by(&self, now: Instant) -> Option<Lost> {
        match *self.lock() {
            Some(LeaseState::Until(validity, _)) if validity.holds_at(now) => None,
            Some(LeaseState::Until(_, lost) | LeaseState::Over(lost)) => Some(lost),
            None => Some(Lost::Released),
        }
    }

    /// Resolves when the holder may no longer act. From then on it may not, whatever the nodes say later.
    pub(crate) fn lost(
        self: &Arc<Self>,
        alarm: Arc<Alarm>,
    ) -> impl Future<Output = Lost> + Send + Sync + use<> + 'static {
        // Of the guard it keeps nothing alive.
        let watched = Arc::downgrade(self);
        let mut term = {
            let current = self.lock();
            self.watchers.get_or_init(|| watch::Sender::new(*current)).subscribe()
        };
        async move {
            loop {
                let (deadline, lost) = match *term.borrow_and_update() {
                    None => return Lost::Released,
                    Some(LeaseState::Over(lost)) => return lost,
                    Some(LeaseState::Until(validity, lost)) => (validity.until(), lost),
                };
                tokio::select! {
                    biased;
                    changed = term.changed() => if changed.is_err() {
                        return Lost::Released;
                    },
                    () = alarm.wait(deadline) => {
                        let Some(watched) = watched.upgrade() else { return Lost::Released };
                        if let Some(lost) = watched.end_at(deadline, lost) {
                            return lost;
                        }
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<LeaseState>> {
        // A term is replaced as a whole, so a panic elsewhere does not spoil it.
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
