//! The waiters of one client behind a lock: delivers to their mailboxes what [`Groups`] gives out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::{Debts, Mailbox, Notice};
use crate::clock::Clock;
use crate::protocol::message::{ClientId, Key, Owner};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::group::{Groups, Stand};
use crate::protocol::wait_queue::signal::Signal;
use crate::protocol::wait_queue::waiter::Waiter;

/// The waiters of one client.
#[derive(Debug)]
pub(crate) struct Wakeups {
    client: ClientId,
    clock: Clock,
    debts: Arc<Debts>,
    waiters: Mutex<Waiters>,
    /// A waiter has come that another one looks for.
    led: Notify,
}

#[derive(Debug)]
struct Waiters {
    groups: Groups,
    mailboxes: HashMap<Owner, Arc<Mailbox>>,
}

/// An owner that is listened for. Kept until its last release was handed to the nodes: a wake-up for an owner that is
/// not listened for is taken for one of an owner that was released.
#[derive(Debug)]
pub(crate) struct Listening {
    wakeups: Arc<Wakeups>,
    owner: Owner,
}

/// A waiter's membership of its group, for as long as it stands in the queue.
#[derive(Debug)]
pub(crate) struct Seat {
    wakeups: Arc<Wakeups>,
    owner: Owner,
}

impl Wakeups {
    pub(crate) fn new(client: ClientId, clock: Clock, debts: Arc<Debts>) -> Arc<Self> {
        let waiters = Waiters { groups: Groups::new(client), mailboxes: HashMap::new() };
        Arc::new(Self { client, clock, debts, waiters: Mutex::new(waiters), led: Notify::new() })
    }

    /// The client as the queues know it.
    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Listens for wake-ups of `owner`.
    pub(crate) fn listen(self: &Arc<Self>, owner: Owner, mailbox: Arc<Mailbox>) -> Listening {
        let mut waiters = self.lock();
        waiters.mailboxes.insert(owner, mailbox);
        waiters.groups.listen(owner);
        Listening { wakeups: self.clone(), owner }
    }

    /// As [`Groups::handle_wake_up`]. Works from any thread, and never waits.
    pub(crate) fn heard(&self, node: NodeId, owner: Owner, key: Key) {
        let now = self.clock.now();
        let owed = self.change(|groups| groups.handle_wake_up(node, owner, key, now));
        if let Some(debt) = owed {
            tracing::debug!(%node, key = %debt.key, %owner, "woken for an owner that is gone, passed on");
            self.debts.send(Notice::Owed(debt));
        }
    }

    /// The membership of the waiter of `owner`, which begins when it [stands](Wakeups::stand).
    pub(crate) fn seat(self: &Arc<Self>, owner: Owner) -> Seat {
        Seat { wakeups: self.clone(), owner }
    }

    /// As [`Groups::stand`].
    pub(crate) fn stand(&self, waiter: &mut Waiter, stand: Stand) {
        let now = self.clock.now();
        self.change(|groups| groups.stand(waiter, stand, now));
        if !waiter.leads() {
            self.led.notify_one();
        }
    }

    /// Waits until there is a leader that others depend on. Returns when it is overdue.
    pub(crate) async fn led(&self) -> Instant {
        loop {
            let due = self.lock().groups.poll_timeout();
            match due {
                Some(due) => return due,
                None => self.led.notified().await,
            }
        }
    }

    /// As [`Groups::handle_timeout`].
    pub(crate) fn replace_overdue(&self) {
        let now = self.clock.now();
        self.change(|groups| groups.handle_timeout(now));
    }

    /// As [`Groups::handle_usable`].
    pub(crate) fn usable(&self, node: NodeId) {
        self.change(|groups| groups.handle_usable(node));
    }

    /// Changes the groups, and delivers the signals that follow. They are delivered without the lock: a waiter that is woken
    /// may come back at once.
    fn change<T>(&self, change: impl FnOnce(&mut Groups) -> T) -> T {
        let mut waiters = self.lock();
        let changed = change(&mut waiters.groups);
        let mut told = SmallVec::<[(Arc<Mailbox>, Signal); 4]>::new();
        while let Some((owner, signal)) = waiters.groups.poll_signal() {
            told.extend(waiters.mailboxes.get(&owner).map(|mailbox| (mailbox.clone(), signal)));
        }
        drop(waiters);
        told.into_iter().for_each(|(mailbox, signal)| mailbox.signal(signal));
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut waiters = self.wakeups.lock();
        waiters.mailboxes.remove(&self.owner);
        waiters.groups.forget(self.owner);
    }
}

impl Seat {
    /// The waiter goes on under another owner, at the node `to`.
    pub(crate) fn move_on(self, to: NodeId) {
        let now = self.wakeups.clock.now();
        self.wakeups.change(|groups| groups.move_on(self.owner, to, now));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let now = self.wakeups.clock.now();
        self.wakeups.change(|groups| groups.leave(self.owner, now));
    }
}
