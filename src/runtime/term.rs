//! How long a holder may act, as those who watch it see it.
//!
//! Kept beside the driver, which tells every change before it hands anything to a node: so nobody who watches learns of
//! a loss later than the first byte of the release leaves (rule 8).

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::alarm::Alarm;
use crate::protocol::lease::{End, Lease};
use crate::protocol::time::Instant;

/// Why a holder may no longer act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lost {
    /// The validity ended without an extension.
    Expired,
    /// So many nodes do not carry this holder any more that no quorum does.
    Forgotten,
    /// The guard was released or dropped.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lock expired",
            Self::Forgotten => "no quorum of the nodes carries this holder any more",
            Self::Released => "the lock was released",
        })
    }
}

/// What a watcher knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Term {
    Until(Instant),
    Over(Lost),
}

impl Term {
    /// The term of a lease; `None` before it is held.
    fn of(lease: &Lease) -> Option<Self> {
        let over = |end| match end {
            End::Released | End::NotAcquired => Lost::Released,
            End::Expired => Lost::Expired,
            End::Lost => Lost::Forgotten,
        };
        let held = lease.validity().map(|validity| Self::Until(validity.until()));
        held.or_else(|| lease.end().map(|end| Self::Over(over(end))))
    }
}

/// Tells those who watch a lease. Made by the first of them: most leases are never watched.
#[derive(Debug, Default)]
pub(crate) struct Watched(OnceLock<watch::Sender<Term>>);

impl Watched {
    /// Tells what changed.
    pub(crate) fn tell(&self, lease: &Lease) {
        let (Some(sender), Some(term)) = (self.0.get(), Term::of(lease)) else { return };
        sender.send_if_modified(|before| {
            let changed = *before != term;
            *before = term;
            changed
        });
    }

    /// Resolves when the holder may no longer act.
    pub(crate) fn lost(
        &self,
        lease: &Lease,
        alarm: Arc<Alarm>,
    ) -> impl Future<Output = Lost> + Send + Sync + 'static {
        let now = || Term::of(lease).unwrap_or(Term::Over(Lost::Released));
        let mut term = self.0.get_or_init(|| watch::Sender::new(now())).subscribe();
        async move {
            loop {
                let deadline = match *term.borrow_and_update() {
                    Term::Over(lost) => return lost,
                    Term::Until(deadline) => deadline,
                };
                tokio::select! {
                    biased;
                    changed = term.changed() => if changed.is_err() {
                        return Lost::Released;
                    },
                    () = alarm.wait(deadline) => return Lost::Expired,
                }
            }
        }
    }
}
