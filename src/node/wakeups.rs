//! Who of this client waits, and for what: routes wake-ups to waiters, and lets one look for all.
//!
//! A node names an owner; here is whose mailbox that is. Nothing is queued: a wake-up sets a mark in the mailbox. All of
//! it is contended_keys; whoever misses one looks within a second.
//!
//! The waiters of one client for one key at one node form a group. Its best-placed member looks once a second, which is
//! also the client's sign of life; the others sleep without a timer for it, however many they are.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Debts, Mailbox, Notice};
use crate::clock::Clock;
use crate::protocol::in_doubt::{Debt, Doubt};
use crate::protocol::message::{ClientId, Key, Owner};
use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};
use crate::protocol::wait_queue::rank::QUEUE_LIFE;

/// The length of a hand-over by a client that only passes on what was not meant for it.
const PASSED_ON: Duration = Duration::from_millis(500);

/// The waiters of one client.
#[derive(Debug)]
pub(crate) struct Wakeups {
    client: ClientId,
    clock: Clock,
    debts: Arc<Debts>,
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    owners: HashMap<Owner, Arc<Mailbox>>,
    groups: HashMap<(Key, NodeId), Group>,
}

#[derive(Debug, Default)]
struct Group {
    members: BTreeMap<(u64, Owner), Arc<Mailbox>>,
    /// When the member that leads looks next.
    look: Instant,
    /// The nodes that rank better for this key.
    better: NodeSet,
}

/// An owner that is listened for. Kept until its last release was handed to the nodes: a wake-up for an owner that is
/// not registered is taken for one that was released.
#[derive(Debug)]
pub(crate) struct Registered {
    wakeups: Arc<Wakeups>,
    owner: Owner,
}

/// A place in a group.
#[derive(Debug)]
pub(crate) struct Seat {
    wakeups: Arc<Wakeups>,
    group: (Key, NodeId),
    member: (u64, Owner),
}

impl Wakeups {
    pub(crate) fn new(client: ClientId, clock: Clock, debts: Arc<Debts>) -> Arc<Self> {
        Arc::new(Self { client, clock, debts, waiters: Mutex::default() })
    }

    /// The client as the queues know it.
    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Listens for wake-ups of `owner`.
    pub(crate) fn register(self: &Arc<Self>, owner: Owner, mailbox: Arc<Mailbox>) -> Registered {
        self.lock().owners.insert(owner, mailbox);
        Registered { wakeups: self.clone(), owner }
    }

    /// A node has given its vote to `owner`. Works from any thread, and never waits.
    ///
    /// An owner that nobody listens for any more was released: the vote came too late for it, and is passed on.
    pub(crate) fn heard(&self, node: NodeId, owner: Owner, key: Key) {
        let mailbox = self.lock().owners.get(&owner).cloned();
        if let Some(mailbox) = mailbox {
            return mailbox.signal(|signals| signals.woken = true);
        }
        tracing::debug!(%node, %key, %owner, "woken for an owner that is gone, passed on");
        let doubt = Doubt::named(self.clock.now(), Ttl::unchecked(QUEUE_LIFE));
        let debt = Debt::new(node, key, owner, doubt, Ttl::unchecked(QUEUE_LIFE), Drift::default());
        self.debts.send(Notice::Owed(debt.in_queue(self.client, Ttl::unchecked(PASSED_ON))));
    }

    /// Sits down among the waiters for a key at a node, to look again at `look`. Returns whether this one leads.
    pub(crate) fn sit(
        self: &Arc<Self>,
        group: (Key, NodeId),
        member: (u64, Owner),
        mailbox: &Arc<Mailbox>,
        look: Instant,
        better: NodeSet,
    ) -> (Seat, bool) {
        let mut waiters = self.lock();
        let place = waiters.groups.entry(group.clone()).or_default();
        let before = place.members.first_key_value().map(|(first, mailbox)| (*first, mailbox.clone()));
        place.members.insert(member, mailbox.clone());
        place.better = better;
        let leads = before.as_ref().is_none_or(|(first, _)| *first >= member);
        if leads {
            place.look = look;
        }
        drop(waiters);
        if let Some((first, mailbox)) = before.filter(|(first, _)| leads && *first != member) {
            debug_assert!(first > member);
            mailbox.signal(|signals| signals.leads = Some(None));
        }
        (Seat { wakeups: self.clone(), group, member }, leads)
    }

    /// The node had dropped the entry of the one who leads, and with it those of the others: all look.
    pub(crate) fn nudge(&self, group: &(Key, NodeId), but: Owner) {
        let waiters = self.lock();
        let Some(place) = waiters.groups.get(group) else { return };
        let others = place.members.iter().filter(|((_, owner), _)| *owner != but);
        others.for_each(|(_, mailbox)| mailbox.signal(|signals| signals.nudged = true));
    }

    /// A node that ranks better is worth another try: the whole group moves there.
    pub(crate) fn send_to(&self, group: &(Key, NodeId), node: NodeId) {
        let waiters = self.lock();
        let Some(place) = waiters.groups.get(group) else { return };
        place.members.values().for_each(|mailbox| mailbox.signal(|signals| signals.usable.insert(node)));
    }

    /// A node takes work again, perhaps over a new connection, on which wake-ups may have been missed: those who lead
    /// there look, and whoever waits at a node that ranks worse moves.
    pub(crate) fn usable(&self, node: NodeId) {
        let waiters = self.lock();
        for ((_, at), group) in &waiters.groups {
            let count = match *at == node {
                true => 1,
                false if group.better.contains(node) => usize::MAX,
                false => 0,
            };
            for mailbox in group.members.values().take(count) {
                mailbox.signal(|signals| signals.usable.insert(node));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.wakeups.lock().owners.remove(&self.owner);
    }
}

impl Seat {
    /// Whether this is the same member of the same group.
    pub(crate) fn is(&self, group: &(Key, NodeId), member: (u64, Owner)) -> bool {
        self.group == *group && self.member == member
    }

    /// The one who sits here looks again at `look`. Returns whether it leads.
    pub(crate) fn renew(&self, look: Instant) -> bool {
        let mut waiters = self.wakeups.lock();
        let Some(group) = waiters.groups.get_mut(&self.group) else { return true };
        let leads = group.members.first_key_value().is_none_or(|(first, _)| *first >= self.member);
        if leads {
            group.look = look;
        }
        leads
    }

    /// The group it is in.
    pub(crate) fn group(&self) -> &(Key, NodeId) {
        &self.group
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut waiters = self.wakeups.lock();
        let Some(group) = waiters.groups.get_mut(&self.group) else { return };
        let led = group.members.first_key_value().is_some_and(|(first, _)| *first == self.member);
        group.members.remove(&self.member);
        let look = group.look;
        let next = group.members.first_key_value().map(|(_, mailbox)| mailbox.clone());
        if next.is_none() {
            waiters.groups.remove(&self.group);
        }
        drop(waiters);
        if let Some(next) = next.filter(|_| led) {
            next.signal(|signals| signals.leads = Some(Some(look)));
        }
    }
}
