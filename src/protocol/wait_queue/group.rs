//! The waiters of one client: which of them looks for the others, and which of them a wake-up belongs to.
//!
//! The waiters of one client for one key at one node are a *group*. Its best-placed member *leads*: it looks once a second
//! for all of them, which is also the client's sign of life. The others sleep without a timer for it, however many they are.
//! A leader that does not look when it should loses the lead: its task may not be polled.
//!
//! Knows owners, places and groups; no mailbox, no task and no clock. All of it is advice: a waiter that misses a signal
//! looks within a second.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::protocol::in_doubt::{Debt, Doubt};
use crate::protocol::message::{ClientId, Key, Owner};
use crate::protocol::quorum::{NodeId, NodeSet};
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};
use crate::protocol::wait_queue::rank::QUEUE_LIFE;
use crate::protocol::wait_queue::signal::Signal;
use crate::protocol::wait_queue::waiter::{BEAT, Waiter};

/// The length of a hand-over by a client that only passes on what was not meant for it.
const PASSED_ON: Duration = Duration::from_millis(500);

/// A leader loses the lead this long after it should have looked or claimed: its task is not polled.
const OVERDUE: Duration = Duration::from_millis(400);

/// What the answer to a look told of a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stand {
    /// Its place for good at its node.
    pub score: u64,
    /// Whether the node had dropped its entry and took it back.
    pub dropped: bool,
    /// The nodes that take work now, as far as the client knows.
    pub usable: NodeSet,
}

/// The waiters of one client, in groups.
///
/// # Contract
///
/// A waiter is known by its owner, and by another one as soon as its owner changes: what is meant for the earlier one is
/// lost. Mutate once, then drain: after each call, deliver what [`Groups::poll_signal`] gives out until it is empty. Call
/// [`Groups::handle_timeout`] at [`Groups::poll_timeout`].
#[derive(Debug)]
pub struct Groups {
    client: ClientId,
    owners: HashMap<Owner, Place>,
    /// Those with a member. In order, so that the same events give the same signals.
    groups: BTreeMap<GroupName, Group>,
    signals: VecDeque<(Owner, Signal)>,
}

type GroupName = (NodeId, Key);

/// What is known of an owner.
#[derive(Debug, Default)]
struct Place {
    /// It is listened for: until its last release was handed to the nodes.
    listens: bool,
    /// The group that it is in, and its score there.
    group: Option<(GroupName, u64)>,
}

#[derive(Debug, Default)]
struct Group {
    /// By score.
    members: BTreeSet<(u64, Owner)>,
    /// When the member that leads looks next.
    look: Instant,
    /// Since when the member that leads has this node's vote and has not claimed.
    woken: Option<Instant>,
    /// The nodes that rank better for this key.
    better: NodeSet,
}

impl Group {
    fn leader(&self) -> Option<Owner> {
        self.members.first().map(|(_, owner)| *owner)
    }

    /// When the member that leads loses the lead. Another one can lead only if there is one.
    fn overdue(&self) -> Option<Instant> {
        let acts = self.woken.map_or(self.look, |woken| woken.min(self.look));
        (self.members.len() > 1).then(|| acts.after(OVERDUE))
    }
}

impl Groups {
    /// The waiters of `client`: none yet.
    pub fn new(client: ClientId) -> Self {
        Self { client, owners: HashMap::new(), groups: BTreeMap::new(), signals: VecDeque::new() }
    }

    /// Listens for wake-ups of `owner`, before its first command is sent.
    pub fn listen(&mut self, owner: Owner) {
        self.owners.entry(owner).or_default().listens = true;
    }

    /// Listens no more: the last release of `owner` was handed to the nodes.
    pub fn forget(&mut self, owner: Owner) {
        if let Some(place) = self.owners.get_mut(&owner) {
            place.listens = false;
            if place.group.is_none() {
                self.owners.remove(&owner);
            }
        }
    }

    /// A node has given its vote to `owner`. Returns what is owed if nobody listens for that owner any more: it was released,
    /// the vote came too late for it, and a release passes it on.
    #[must_use = "the vote is passed on by settling this"]
    pub fn handle_wake_up(&mut self, node: NodeId, owner: Owner, key: Key, now: Instant) -> Option<Debt> {
        if let Some(place) = self.owners.get(&owner).filter(|place| place.listens) {
            let group = place.group.as_ref().and_then(|(name, _)| self.groups.get_mut(name));
            if let Some(group) = group.filter(|group| group.leader() == Some(owner)) {
                group.woken.get_or_insert(now);
            }
            self.signals.push_back((owner, Signal::Woken));
            return None;
        }
        let life = Ttl::unchecked(QUEUE_LIFE);
        let debt = Debt::new(node, key, owner, Doubt::named(now, life), life, Drift::default());
        Some(debt.in_queue(self.client, Ttl::unchecked(PASSED_ON)))
    }

    /// The node's answer to a look told that `waiter` stands in the queue. It takes its place in the group, or keeps it, and
    /// learns whether it leads. A leader that has stood at a worse node for some time sends the group to better ones that
    /// take work; one whose entry was dropped lets the others look, since theirs were dropped as well.
    pub fn stand(&mut self, waiter: &mut Waiter, stand: Stand, now: Instant) {
        let (owner, better) = (waiter.owner(), waiter.better());
        let name = (waiter.node(), waiter.key().clone());
        let look = waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        let leads = self.take_place(&name, (stand.score, owner), look, better, now);
        waiter.set_leads(leads, look);
        if !leads {
            return;
        }
        if waiter.wants_back(now) {
            for node in better.filter(|node| stand.usable.contains(*node)) {
                self.tell(&name, None, Signal::Usable(node));
            }
        }
        if stand.dropped {
            self.tell(&name, Some(owner), Signal::Nudged);
        }
    }

    /// Whether this member leads its group now.
    fn take_place(
        &mut self,
        name: &GroupName,
        member: (u64, Owner),
        look: Instant,
        better: NodeSet,
        now: Instant,
    ) -> bool {
        let (score, owner) = member;
        let place = self.owners.entry(owner).or_default();
        let stays = place.group.as_ref().is_some_and(|(group, old)| group == name && *old == score);
        let earlier = if stays { None } else { place.group.replace((name.clone(), score)) };
        let group = self.groups.entry(name.clone()).or_default();
        let before = group.members.first().copied();
        group.members.insert(member);
        if !stays {
            group.better = better;
        }
        let leads = before.is_none_or(|first| first >= member);
        if leads {
            (group.look, group.woken) = (look, None);
        }
        if let Some((_, led)) = before.filter(|first| *first > member) {
            self.signals.push_back((led, Signal::Leads(None)));
        }
        if let Some((group, score)) = earlier {
            self.remove(&group, (score, owner), now);
        }
        leads
    }

    /// The waiter of `owner` goes on under another one at the node `to`. If it leaves this node's queue for another's, the
    /// others of its group find out why.
    pub fn move_on(&mut self, owner: Owner, to: NodeId, now: Instant) {
        let group = self.owners.get(&owner).and_then(|place| place.group.as_ref());
        if let Some((name, _)) = group.filter(|((node, _), _)| *node != to) {
            let name = name.clone();
            self.tell(&name, Some(owner), Signal::Nudged);
        }
        self.leave(owner, now);
    }

    /// The waiter of `owner` claims, or gives up: it is no member of its group any more. If it led, the next one does.
    pub fn leave(&mut self, owner: Owner, now: Instant) {
        let Some(place) = self.owners.get_mut(&owner) else { return };
        let Some((name, score)) = place.group.take() else { return };
        if !place.listens {
            self.owners.remove(&owner);
        }
        self.remove(&name, (score, owner), now);
    }

    fn remove(&mut self, name: &GroupName, member: (u64, Owner), now: Instant) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let led = group.members.first() == Some(&member);
        group.members.remove(&member);
        let look = group.look;
        if led {
            // As the next leader does: a look that is due has just been made.
            group.look = if look <= now { now.after(BEAT) } else { look };
            group.woken = None;
        }
        match group.members.first() {
            None => _ = self.groups.remove(name),
            Some((_, next)) if led => self.signals.push_back((*next, Signal::Leads(Some(look)))),
            Some(_) => {}
        }
    }

    /// Leaders that are overdue lose the lead, and leave their group until they look again. The next member looks at once.
    pub fn handle_timeout(&mut self, now: Instant) {
        for group in self.groups.values_mut() {
            if group.overdue().is_none_or(|overdue| now < overdue) {
                continue;
            }
            let late = group.members.pop_first();
            if let Some(place) = late.and_then(|(_, owner)| self.owners.get_mut(&owner)) {
                place.group = None;
            }
            (group.look, group.woken) = (now, None);
            let next = group.leader().into_iter();
            let signals = [Signal::Leads(Some(now)), Signal::Nudged];
            self.signals.extend(next.flat_map(|owner| signals.map(|signal| (owner, signal))));
        }
    }

    /// When the next leader is overdue.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.groups.values().filter_map(Group::overdue).min()
    }

    /// A node takes work again, perhaps over a new connection, on which wake-ups may have been missed: the leaders there
    /// look, and those who wait at a node that ranks worse move.
    pub fn handle_usable(&mut self, node: NodeId) {
        for ((at, _), group) in &self.groups {
            let told = match *at == node {
                true => 1,
                false if group.better.contains(node) => usize::MAX,
                false => 0,
            };
            let told = group.members.iter().take(told);
            self.signals.extend(told.map(|(_, owner)| (*owner, Signal::Usable(node))));
        }
    }

    /// Tells all members of a group but this one.
    fn tell(&mut self, name: &GroupName, but: Option<Owner>, signal: Signal) {
        let members = self.groups.get(name).into_iter().flat_map(|group| &group.members);
        let others = members.filter(|(_, owner)| Some(*owner) != but);
        self.signals.extend(others.map(|(_, owner)| (*owner, signal)));
    }

    /// The next signal to deliver, and to whom.
    pub fn poll_signal(&mut self) -> Option<(Owner, Signal)> {
        self.signals.pop_front()
    }
}

#[cfg(test)]
mod tests;
