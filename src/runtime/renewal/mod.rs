//! The task that extends kept leases: one per client, for any number of them.
//!
//! It carries, and decides nothing: [Schedule] says when a lease is extended, the lease itself whether that succeeded and until
//! when the holder may act. Leases that are due together go to each node in one call. Here is what guards see of it; the task
//! itself is in [`work`].
//!
//! Everything that is sent for a kept lease is sent by this one task, in order. So once a guard has asked for its lease back,
//! or has let go of it, nothing that extends it can follow its release (rule 2); and a guard's word that the lease is
//! over stands before the renewal has heard it.

pub(crate) mod work;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::random;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::work::run;
use super::driver::Driver;
use super::loss::{Lost, Watched};
use crate::protocol::lease::Event;
use crate::protocol::message::Owner;
use crate::protocol::renewal::Schedule;
use crate::protocol::round::Round;
use crate::protocol::validity::Ttl;
use crate::runtime::shared::Counted;

/// Names a kept lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct LeaseId(u64);

/// The way to a client's renewal.
#[derive(Debug)]
pub(crate) struct Renewal {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicU64,
}

/// What guards ask of the renewal. Bounded by the guards there are.
enum Order {
    Keep { id: LeaseId, kept: Arc<RenewedLease>, counted: Counted, keep: Schedule },
    Extend { id: LeaseId, ttl: Ttl, told: oneshot::Sender<Event> },
    GiveBack { id: LeaseId, to: oneshot::Sender<Counted> },
    LetGo { id: LeaseId },
    Close { done: oneshot::Sender<()> },
}

/// A kept lease, as renewal and guard share it. Only the renewal changes it, until it has given it back; the guard looks at
/// it. Whoever lets go of it last drops the driver, and with it what is still held.
#[derive(Debug)]
struct RenewedLease(Mutex<Option<Driver>>);

impl RenewedLease {
    fn lock(&self) -> MutexGuard<'_, Option<Driver>> {
        // A panic inside the protocol would leave the lease as it was before the change or after it, both of them sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard's hold on a kept lease. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct RenewalHandle {
    id: LeaseId,
    kept: Arc<RenewedLease>,
    watched: Arc<Watched>,
    renewal: Arc<Renewal>,
}

impl Renewal {
    /// The way to a renewal, and its end: for [`run`].
    pub(crate) fn channel() -> (Arc<Self>, Orders) {
        let (orders, receiver) = mpsc::unbounded_channel();
        (Arc::new(Self { orders, next: AtomicU64::new(0) }), Orders(receiver))
    }

    /// Hands a held lease to the renewal, which extends it to `ttl` again and again.
    pub(crate) fn keep(self: &Arc<Self>, driver: Driver, counted: Counted, ttl: Ttl) -> RenewalHandle {
        let id = LeaseId(self.next.fetch_add(1, Ordering::Relaxed));
        let keep = Schedule::new(ttl, driver.lease().round().started(), random());
        let watched = driver.watched().clone();
        let kept = Arc::new(RenewedLease(Mutex::new(Some(driver))));
        let order = Order::Keep { id, kept: kept.clone(), counted, keep };
        // Without a renewal, because the client's runtime is gone, the lease lives until its validity ends.
        let _ = self.orders.send(order);
        RenewalHandle { id, kept, watched, renewal: self.clone() }
    }

    /// Ends every kept lease, and keeps none any more. Returns when the releases have been handed to the nodes.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        let _ = self.orders.send(Order::Close { done });
        let _ = closed.await;
    }
}

impl RenewalHandle {
    /// The term of the lease.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// The current round, with what has been answered so far.
    pub(crate) fn round(&self) -> Option<Round> {
        self.kept.lock().as_ref().map(Driver::round)
    }

    /// The owner under the keys.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.kept.lock().as_ref().map(|driver| driver.lease().owner())
    }

    /// Extends now, by this much. `None` where there is no renewal any more.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future changes nothing: the extension goes on, and the lease is kept.
    pub(crate) async fn extend(&self, ttl: Ttl) -> Option<Event> {
        let (told, event) = oneshot::channel();
        self.renewal.orders.send(Order::Extend { id: self.id, ttl, told }).ok()?;
        event.await.ok()
    }

    /// Takes the lease back from the renewal, which sends nothing for it any more. `None` if that was done before.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future releases the lock, as dropping the hold does.
    pub(crate) async fn take_back(self) -> Option<(Driver, Option<Counted>)> {
        // Nobody may act from here on, whatever the renewal is about to hear.
        self.watched.over(Lost::Released);
        let (to, back) = oneshot::channel();
        let order = Order::GiveBack { id: self.id, to };
        // Where there is no renewal any more, nobody else has a hand on the lease.
        let counted = match self.renewal.orders.send(order) {
            Ok(()) => back.await.ok(),
            Err(_) => None,
        };
        let driver = self.kept.lock().take();
        Some((driver?, counted))
    }
}

impl Drop for RenewalHandle {
    fn drop(&mut self) {
        // Said here and now: the release comes later, and nobody may act until then.
        self.watched.over(Lost::Released);
        let _ = self.renewal.orders.send(Order::LetGo { id: self.id });
    }
}

/// The orders of a client's guards.
pub(crate) struct Orders(mpsc::UnboundedReceiver<Order>);
