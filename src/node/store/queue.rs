//! The queues of one server: who waits for which key, as the scripts keep it in a sorted set and a hash.

use std::collections::{BTreeMap, BTreeSet};

use super::{Store, StoredValue, millis};
use crate::protocol::message::{ClientId, Holder, Key, Owner, Place, Reply};
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::protocol::wait_queue::rank::{QUEUE_LIFE, SILENT_AFTER};

/// One owner in the queue, and its client.
type Member = (Owner, ClientId);

/// A wake-up that a hand-over published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WakeUp {
    /// Whom it is for.
    pub client: ClientId,
    /// The owner that has the node's vote now.
    pub owner: Owner,
    /// The key.
    pub key: Key,
}

/// What a server keeps of the queue for one key, to look at. Moments are whole milliseconds, and those of an end are the last in
/// which there is anything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueRecord {
    /// Who stands in it with which place, the first first.
    pub entries: Vec<(Owner, ClientId, u64)>,
    /// The end of the entries.
    pub entries_end: u64,
    /// When each client looked last, and whether it polls.
    pub looks: Vec<(ClientId, u64, bool)>,
    /// Who had the last hand-over, as long as it has not released it.
    pub last: Option<(Owner, ClientId)>,
    /// The end of the looks and of the last hand-over.
    pub looks_end: u64,
}

/// The queue for one key.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitQueue {
    scores: BTreeMap<Member, u64>,
    order: BTreeSet<(u64, Member)>,
    /// The last millisecond of the sorted set.
    expires: u64,
    lives: BTreeMap<ClientId, Look>,
    /// Who had the last hand-over, as long as it has not released it.
    last: Option<Member>,
    /// The last millisecond of the hash.
    lives_expire: u64,
}

/// The last look of a client.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: u64,
    polls: bool,
}

/// What a [`crate::protocol::message::Operation::Queue`] asks.
pub(super) struct Ask {
    pub(super) owner: Owner,
    pub(super) client: ClientId,
    pub(super) polls: bool,
    pub(super) earlier: Option<Owner>,
    pub(super) score: Option<u64>,
    pub(super) hand_over: Ttl,
}

impl WaitQueue {
    fn expire(&mut self, now: u64) {
        if now > self.expires {
            self.scores.clear();
            self.order.clear();
        }
        if now > self.lives_expire {
            self.lives.clear();
            self.last = None;
        }
    }

    fn insert(&mut self, member: Member, score: u64) {
        self.scores.insert(member, score);
        self.order.insert((score, member));
    }

    fn remove(&mut self, member: Member) -> Option<u64> {
        let score = self.scores.remove(&member)?;
        self.order.remove(&(score, member));
        Some(score)
    }

    /// The member has the vote. The earlier owner may have claimed this node while it waited in the queue here.
    fn vote(&mut self, member: Member, earlier: Option<Owner>) {
        self.remove(member);
        if let Some(earlier) = earlier {
            self.remove((earlier, member.1));
        }
        self.last = Some(member);
    }

    fn pop(&mut self) -> Option<(Member, u64)> {
        let (score, member) = self.order.pop_first()?;
        self.scores.remove(&member);
        Some((member, score))
    }

    /// The last look of a client that is not silent.
    fn live(&self, client: ClientId, now: u64) -> Option<Look> {
        let silent = SILENT_AFTER.as_millis() as u64;
        self.lives.get(&client).copied().filter(|look| now.saturating_sub(look.at) <= silent)
    }

    /// Takes the last hand-over off the books, and where somebody other than `released` had it, that client's life.
    fn forget_last(&mut self, released: Option<Owner>) {
        if let Some((owner, client)) = self.last.take()
            && Some(owner) != released
        {
            self.lives.remove(&client);
        }
    }

    fn is_over(&self) -> bool {
        self.scores.is_empty() && self.lives.is_empty() && self.last.is_none()
    }
}

impl Store {
    pub(super) fn queue(&mut self, key: &Key, ask: &Ask, now: Instant) -> Reply {
        let at = millis(now);
        let member = (ask.owner, ask.client);
        let held = self.live(key, now).map(|entry| entry.value.clone());
        let held_by = |owner: Owner| held == Some(StoredValue::Owner(owner));
        let mut queue = self.queues.remove(key).unwrap_or_default();
        queue.expire(at);
        if held.is_none() {
            queue.forget_last(None);
        }
        queue.lives.insert(ask.client, Look { at, polls: ask.polls });
        queue.lives_expire = millis(now.after(QUEUE_LIFE));
        let renamed = ask.earlier.is_some_and(held_by);
        if renamed || held_by(ask.owner) {
            queue.vote(member, ask.earlier);
            self.keep(key, queue);
            match self.live(key, now).filter(|_| !renamed) {
                Some(entry) => entry.lengthen(ask.hand_over, now),
                None => self.give(key, ask.owner, ask.hand_over, now),
            }
            return Reply::Voted;
        }

        let mut entered = false;
        if let (None, Some(earlier)) = (queue.scores.get(&member), ask.earlier)
            && let Some(score) = queue.remove((earlier, ask.client))
        {
            queue.insert(member, score);
        }
        if !queue.scores.contains_key(&member) {
            if queue.scores.len() as u64 >= self.most_queued {
                self.keep(key, queue);
                return Reply::QueueFull;
            }
            entered = true;
            let last = queue.order.last().map_or(0, |(score, _)| score + 1);
            let score = ask.score.unwrap_or((now.as_nanos() / 1_000).max(last));
            queue.insert(member, score);
        }
        queue.expires = millis(now.after(QUEUE_LIFE));
        if held.is_none() && self.give_to_first(key, &mut queue, ask.hand_over, Some(member), now) {
            queue.vote(member, ask.earlier);
            self.keep(key, queue);
            self.give(key, ask.owner, ask.hand_over, now);
            return Reply::Voted;
        }
        let score = queue.scores.get(&member).copied().unwrap_or_default();
        let before = queue.order.range(..(score, member)).count() as u32;
        self.keep(key, queue);
        Reply::Queued(Place { before, score, entered, holder: self.holder(key, now) })
    }

    /// The key, which is free, goes to the first in the queue who lives; where nobody may be woken, to nobody. Returns whether
    /// the turn is `asking`'s, who needs no wake-up and is given nothing here.
    fn give_to_first(
        &mut self,
        key: &Key,
        queue: &mut WaitQueue,
        hand_over: Ttl,
        asking: Option<Member>,
        now: Instant,
    ) -> bool {
        while let Some((next, score)) = queue.pop() {
            if Some(next) == asking {
                queue.insert(next, score);
                return true;
            }
            let Some(look) = queue.live(next.1, millis(now)) else { continue };
            if !look.polls && !self.may_publish {
                queue.insert(next, score);
                queue.expires = millis(now.after(QUEUE_LIFE));
                break;
            }
            if !look.polls && !self.subscribers.contains_key(&next.1) {
                queue.lives.remove(&next.1);
                continue;
            }
            queue.last = Some(next);
            if !look.polls {
                self.wake_ups.push(WakeUp { client: next.1, owner: next.0, key: key.clone() });
            }
            self.give(key, next.0, hand_over, now);
            break;
        }
        false
    }

    pub(super) fn hand_over(
        &mut self,
        key: &Key,
        (owner, client): Member,
        hand_over: Ttl,
        now: Instant,
    ) -> Reply {
        let at = millis(now);
        let held = self.holder(key, now);
        let ours = matches!(self.live(key, now), Some(entry) if entry.value == StoredValue::Owner(owner));
        let mut queue = self.queues.remove(key).unwrap_or_default();
        queue.expire(at);
        let waiting = !queue.scores.is_empty();
        queue.remove((owner, client));
        match held {
            Some(Holder { value, .. }) if !ours => {
                self.keep(key, queue);
                return Reply::Held(Holder { value, remaining: None });
            }
            None if !waiting => {
                self.keep(key, queue);
                return Reply::Absent;
            }
            _ => {}
        }
        let released = if ours { Reply::Granted } else { Reply::Absent };
        if !waiting {
            self.entries.remove(key);
            return released;
        }
        queue.forget_last(Some(owner));
        self.entries.remove(key);
        self.give_to_first(key, &mut queue, hand_over, None, now);
        self.keep(key, queue);
        let handed = self.live(key, now).is_some();
        if ours && handed { Reply::HandedOver } else { released }
    }

    /// A client listens on its channel, with one more connection.
    pub fn subscribe(&mut self, client: ClientId) {
        *self.subscribers.entry(client).or_default() += 1;
    }

    /// One connection of a client listens no more.
    pub fn unsubscribe(&mut self, client: ClientId) {
        if let Some(count) = self.subscribers.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.subscribers.remove(&client);
            }
        }
    }

    /// Whether scripts may publish: an ACL can forbid it.
    pub fn set_may_publish(&mut self, may: bool) {
        self.may_publish = may;
    }

    /// The wake-ups published since the last call.
    pub fn take_wake_ups(&mut self) -> Vec<WakeUp> {
        std::mem::take(&mut self.wake_ups)
    }

    /// How many stand in the queue for a key.
    pub fn waiting(&mut self, key: &Key, now: Instant) -> usize {
        self.queues.get_mut(key).map_or(0, |queue| {
            queue.expire(millis(now));
            queue.scores.len()
        })
    }

    /// Who stands in the queue for a key, the first first.
    pub fn in_queue(&mut self, key: &Key, now: Instant) -> Vec<Owner> {
        self.queues.get_mut(key).map_or_else(Vec::new, |queue| {
            queue.expire(millis(now));
            queue.order.iter().map(|(_, (owner, _))| *owner).collect()
        })
    }

    /// All that is kept of the queue for a key.
    pub fn queue_record(&mut self, key: &Key, now: Instant) -> QueueRecord {
        let Some(queue) = self.queues.get_mut(key) else { return QueueRecord::default() };
        queue.expire(millis(now));
        QueueRecord {
            entries: queue.order.iter().map(|(score, (owner, client))| (*owner, *client, *score)).collect(),
            entries_end: queue.expires,
            looks: queue.lives.iter().map(|(client, look)| (*client, look.at, look.polls)).collect(),
            last: queue.last,
            looks_end: queue.lives_expire,
        }
    }

    /// Sets how many may stand in the queue for one key: [`MOST_QUEUED`](crate::protocol::wait_queue::rank::MOST_QUEUED) unless told.
    pub fn set_most_queued(&mut self, most: u64) {
        self.most_queued = most;
    }

    fn give(&mut self, key: &Key, owner: Owner, life: Ttl, now: Instant) {
        self.insert(key, StoredValue::Owner(owner), Some(life.duration()), now);
    }

    fn keep(&mut self, key: &Key, queue: WaitQueue) {
        if !queue.is_over() {
            self.queues.insert(key.clone(), queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::message::{HolderValue, Operation};

    const HAND_OVER: u64 = 500;

    fn at(millis: u64) -> Instant {
        Instant::default().after(Duration::from_millis(100_000 + millis))
    }

    fn owner(byte: u8) -> Owner {
        Owner::from_bytes([byte; 16])
    }

    fn client(byte: u8) -> ClientId {
        ClientId::from_bytes([byte; 16])
    }

    /// A store where clients 1 to 9 listen, and the key is held by owner 99.
    fn held() -> Store {
        let mut store = Store::default();
        (1..10).for_each(|byte| store.subscribe(client(byte)));
        let ttl = Ttl::unchecked(Duration::from_secs(10));
        store.execute(&Operation::Set { key: Key::new(*b"k"), owner: owner(99), ttl }, at(0));
        store
    }

    fn queue(store: &mut Store, who: u8, whose: u8, now: Instant) -> Reply {
        let ask = Ask {
            owner: owner(who),
            client: client(whose),
            polls: false,
            earlier: None,
            score: None,
            hand_over: Ttl::unchecked(Duration::from_millis(HAND_OVER)),
        };
        store.queue(&Key::new(*b"k"), &ask, now)
    }

    fn release(store: &mut Store, who: u8, whose: u8, now: Instant) -> Reply {
        let hand_over = Ttl::unchecked(Duration::from_millis(HAND_OVER));
        let key = Key::new(*b"k");
        store.execute(&Operation::HandOver { key, owner: owner(who), client: client(whose), hand_over }, now)
    }

    fn holder(store: &mut Store, now: Instant) -> Option<HolderValue> {
        store.holder(&Key::new(*b"k"), now).map(|holder| holder.value)
    }

    /// First come, first served: each release gives the key to whoever has waited longest, and wakes it.
    #[test]
    fn release_gives_the_key_to_the_first_in_line() {
        let mut store = held();
        for who in [3, 1, 2] {
            assert!(matches!(queue(&mut store, who, who, at(1)), Reply::Queued(_)));
        }

        assert_eq!(release(&mut store, 99, 9, at(2)), Reply::HandedOver);
        for who in [3, 1] {
            assert_eq!(holder(&mut store, at(2)), Some(HolderValue::Owner(owner(who))));
            assert_eq!(store.take_wake_ups()[0].owner, owner(who));
            assert_eq!(release(&mut store, who, who, at(2)), Reply::HandedOver);
        }
        assert_eq!(release(&mut store, 2, 2, at(3)), Reply::Granted, "nobody left: deleted");
        assert_eq!(holder(&mut store, at(3)), None);
    }

    /// A dead client's channel has no listener: all its entries are skipped at once.
    #[test]
    fn dead_clients_are_skipped() {
        let mut store = held();
        (10..20).for_each(|who| drop(queue(&mut store, who, 5, at(1))));
        queue(&mut store, 1, 1, at(1));
        store.unsubscribe(client(5));

        assert_eq!(release(&mut store, 99, 9, at(2)), Reply::HandedOver);
        assert_eq!(holder(&mut store, at(2)), Some(HolderValue::Owner(owner(1))));
    }

    /// A hand-over that nobody claimed drops the client's other entries; one that looks again has its old place back.
    #[test]
    fn unclaimed_hand_over_drops_that_client() {
        let mut store = held();
        queue(&mut store, 10, 5, at(1));
        let Reply::Queued(place) = queue(&mut store, 11, 5, at(1)) else { panic!("not in the queue") };
        queue(&mut store, 1, 1, at(1));
        release(&mut store, 99, 9, at(2));
        assert_eq!(holder(&mut store, at(2)), Some(HolderValue::Owner(owner(10))));

        assert_eq!(queue(&mut store, 1, 1, at(2 + HAND_OVER + 1)), Reply::Voted, "client 5 hangs");
        let ask = Ask {
            owner: owner(11),
            client: client(5),
            polls: false,
            earlier: None,
            score: Some(place.score),
            hand_over: Ttl::unchecked(Duration::from_millis(HAND_OVER)),
        };
        let Reply::Queued(back) = store.queue(&Key::new(*b"k"), &ask, at(600)) else { panic!("not back") };
        assert!(back.entered && back.score == place.score);
    }

    /// A silent client is skipped, and a client that polls is given the key without being woken.
    #[test]
    fn silent_clients_are_skipped_and_pollers_are_not_woken() {
        let mut store = held();
        queue(&mut store, 1, 1, at(0));
        let ask = Ask {
            owner: owner(2),
            client: client(77),
            polls: true,
            earlier: None,
            score: None,
            hand_over: Ttl::unchecked(Duration::from_millis(HAND_OVER)),
        };
        store.queue(&Key::new(*b"k"), &ask, at(3_500));

        assert_eq!(release(&mut store, 99, 9, at(3_501)), Reply::HandedOver);
        assert_eq!(holder(&mut store, at(3_501)), Some(HolderValue::Owner(owner(2))));
        assert!(store.take_wake_ups().is_empty());
    }

    /// Where nobody may publish, the key is free after a release, and the first in the queue gets it at its next look.
    #[test]
    fn forbidden_publish_leaves_the_key_free() {
        let mut store = held();
        store.set_may_publish(false);
        queue(&mut store, 1, 1, at(0));
        queue(&mut store, 2, 2, at(0));

        assert_eq!(release(&mut store, 99, 9, at(1)), Reply::Granted);
        assert!(matches!(
            queue(&mut store, 2, 2, at(2)),
            Reply::Queued(Place { before: 1, holder: None, .. })
        ));
        assert_eq!(queue(&mut store, 1, 1, at(2)), Reply::Voted);
    }

    /// The head keeps its vote under a new owner; the old one has neither vote nor place any more.
    #[test]
    fn rename_moves_vote_and_place() {
        let mut store = held();
        queue(&mut store, 1, 1, at(0));
        release(&mut store, 99, 9, at(1));
        let ask = |who, earlier| Ask {
            owner: owner(who),
            client: client(1),
            polls: false,
            earlier: Some(owner(earlier)),
            score: None,
            hand_over: Ttl::unchecked(Duration::from_millis(HAND_OVER)),
        };

        assert_eq!(store.queue(&Key::new(*b"k"), &ask(2, 1), at(2)), Reply::Voted);
        assert_eq!(release(&mut store, 1, 1, at(3)), held_by(2), "the old owner is nobody's");
        assert_eq!(release(&mut store, 2, 1, at(4)), Reply::Granted);
    }

    /// A take-over leaves nothing of the earlier owner, even where it had claimed the key from within the queue: it is
    /// never handed the key again.
    #[test]
    fn take_over_leaves_no_entry_behind() {
        let mut store = held();
        queue(&mut store, 1, 1, at(0));
        queue(&mut store, 2, 2, at(0));
        let key = Key::new(*b"k");
        store.remove(&key);
        let ttl = Ttl::unchecked(Duration::from_secs(10));
        store.execute(&Operation::Claim { key: key.clone(), owner: owner(1), ttl, fence: None }, at(1));
        let ask = Ask {
            owner: owner(3),
            client: client(1),
            polls: false,
            earlier: Some(owner(1)),
            score: None,
            hand_over: Ttl::unchecked(Duration::from_millis(HAND_OVER)),
        };

        assert_eq!(store.queue(&key, &ask, at(2)), Reply::Voted);
        assert_eq!(store.in_queue(&key, at(2)), [owner(2)]);
        assert_eq!(release(&mut store, 3, 1, at(3)), Reply::HandedOver);
        assert_eq!(holder(&mut store, at(3)), Some(HolderValue::Owner(owner(2))));
    }

    fn held_by(who: u8) -> Reply {
        Reply::Held(Holder { value: HolderValue::Owner(owner(who)), remaining: None })
    }
}
