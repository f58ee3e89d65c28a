//! What one server keeps, as a plain value: keys with an owner and an expiry, and the operations on them.
//!
//! Exactly the behaviour that the commands and scripts have on a real server (checked by the equivalence tests), with
//! the server's time as an argument. Knows nothing of connections, faults or tasks: the in-memory node and the
//! simulation add those.

mod counters;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::queue::{Ask, WaitQueue};
use crate::protocol::fencing::{Carry, Counter};
use crate::protocol::message::{
    ClientId, Extension, Found, Holder, HolderValue, Key, Operation, Owner, Reply,
};
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::protocol::wait_queue::rank::MOST_QUEUED;

pub use self::queue::{QueueRecord, WakeUp};

/// The keys of one server, the queues for them, and their fencing counters.
#[derive(Clone, Debug)]
pub struct Store {
    entries: BTreeMap<Key, Stored>,
    queues: BTreeMap<Key, WaitQueue>,
    counters: BTreeMap<Key, Counter<Owner>>,
    /// Who listens on its channel, with how many connections.
    subscribers: BTreeMap<ClientId, usize>,
    may_publish: bool,
    most_queued: u64,
    wake_ups: Vec<WakeUp>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            queues: BTreeMap::new(),
            counters: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            may_publish: true,
            most_queued: MOST_QUEUED,
            wake_ups: Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
struct Stored {
    value: StoredValue,
    /// The last millisecond in which the key is there; `None` for ever.
    expires: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StoredValue {
    Owner(Owner),
    Foreign(Arc<[u8]>),
    OtherType,
}

impl Store {
    /// Executes one operation at `now`, the server's time.
    pub fn execute(&mut self, operation: &Operation, now: Instant) -> Reply {
        match operation {
            Operation::Set { key, owner, ttl } => self.set(key, *owner, *ttl, now),
            Operation::Claim { key, owner, ttl, fence: None } => self.claim(key, *owner, *ttl, now),
            Operation::Claim { key, owner, ttl, fence: Some(fence) } => {
                self.claim_fenced(key, *owner, *ttl, *fence, now)
            }
            Operation::Extend { key, owner, ttl, carry } => self.extend(key, *owner, *ttl, *carry, now),
            Operation::Raise { key, owner, carry } => self.raise(key, *owner, *carry, now),
            Operation::ExtendAll { extensions } => {
                let each = extensions.as_slice().iter();
                let mut extend =
                    |each: &Extension| self.extend(&each.key, each.owner, each.ttl, each.carry, now);
                Reply::Each(each.map(&mut extend).collect())
            }
            Operation::Release { key, owner } => self.release(key, *owner, now),
            Operation::HandOver { key, owner, client, hand_over } => {
                self.hand_over(key, (*owner, *client), *hand_over, now)
            }
            Operation::Queue { key, owner, client, polls, rename_from, score, hand_over } => {
                let (owner, client, hand_over) = (*owner, *client, *hand_over);
                let ask =
                    Ask { owner, client, polls: *polls, earlier: *rename_from, score: *score, hand_over };
                self.queue(key, &ask, now)
            }
            Operation::Inspect { key } => {
                let waiting = self.waiting(key, now) as u32;
                Reply::Found(Found { holder: self.holder(key, now), waiting })
            }
        }
    }

    fn set(&mut self, key: &Key, owner: Owner, ttl: Ttl, now: Instant) -> Reply {
        match self.live(key, now) {
            // SET … GET names the value, but not its remaining life.
            Some(entry) if entry.value == StoredValue::Owner(owner) => Reply::Granted,
            Some(entry) => Reply::Held(Holder { value: entry.holder(), remaining: None }),
            None => {
                self.insert(key, StoredValue::Owner(owner), Some(ttl.duration()), now);
                Reply::Granted
            }
        }
    }

    fn claim(&mut self, key: &Key, owner: Owner, ttl: Ttl, now: Instant) -> Reply {
        match self.live(key, now) {
            Some(entry) if entry.value == StoredValue::Owner(owner) => {
                entry.lengthen(ttl, now);
                Reply::Granted
            }
            Some(entry) => Reply::Held(Holder { value: entry.holder(), remaining: entry.remaining(now) }),
            None => {
                self.insert(key, StoredValue::Owner(owner), Some(ttl.duration()), now);
                Reply::Granted
            }
        }
    }

    fn extend(&mut self, key: &Key, owner: Owner, ttl: Ttl, carry: Option<Carry>, now: Instant) -> Reply {
        match self.live(key, now) {
            Some(entry) if entry.value == StoredValue::Owner(owner) => {
                entry.lengthen(ttl, now);
                if let Some(carry) = carry {
                    self.carry(key, owner, carry, now);
                }
                Reply::Granted
            }
            Some(entry) => Reply::Held(Holder { value: entry.holder(), remaining: None }),
            None => Reply::Absent,
        }
    }

    fn release(&mut self, key: &Key, owner: Owner, now: Instant) -> Reply {
        match self.live(key, now) {
            Some(entry) if entry.value == StoredValue::Owner(owner) => {
                self.entries.remove(key);
                Reply::Granted
            }
            Some(entry) => Reply::Held(Holder { value: entry.holder(), remaining: None }),
            None => Reply::Absent,
        }
    }

    /// Sets a key to another client's value, with or without an expiry.
    pub fn put_foreign(&mut self, key: &Key, value: &[u8], ttl: Option<Duration>, now: Instant) {
        // Another client's value may look like an owner of ours, and is one then.
        let stored =
            Owner::from_hex(value).map_or_else(|| StoredValue::Foreign(value.into()), StoredValue::Owner);
        self.insert(key, stored, ttl, now);
    }

    /// Sets a key to data of another type.
    pub fn put_other_type(&mut self, key: &Key, now: Instant) {
        self.insert(key, StoredValue::OtherType, None, now);
    }

    /// Who holds a key at `now`, and how much longer; `None` where there is no such key.
    pub fn holder(&mut self, key: &Key, now: Instant) -> Option<Holder> {
        let entry = self.live(key, now)?;
        Some(Holder { value: entry.holder(), remaining: entry.remaining(now) })
    }

    /// The keys there are at `now`.
    pub fn keys(&mut self, now: Instant) -> Vec<Key> {
        let millis = millis(now);
        self.entries.retain(|_, entry| entry.expires.is_none_or(|expires| millis <= expires));
        self.entries.keys().cloned().collect()
    }

    /// Forgets one key, as an eviction or an administrator does. Returns whether it was there.
    pub fn remove(&mut self, key: &Key) -> bool {
        self.entries.remove(key).is_some()
    }

    /// Forgets everything, as a restart without persistence does.
    pub fn wipe(&mut self) {
        self.entries.clear();
        self.queues.clear();
        self.counters.clear();
    }

    fn insert(&mut self, key: &Key, value: StoredValue, ttl: Option<Duration>, now: Instant) {
        let expires = ttl.map(|ttl| millis(now.after(ttl)));
        self.entries.insert(key.clone(), Stored { value, expires });
    }

    /// The entry of a key that has not expired. Servers count in whole milliseconds and keep a key through the one
    /// in which it ends.
    fn live(&mut self, key: &Key, now: Instant) -> Option<&mut Stored> {
        let expired = self.entries.get(key)?.expires.is_some_and(|expires| millis(now) > expires);
        if expired {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }
}

impl Stored {
    fn holder(&self) -> HolderValue {
        match &self.value {
            StoredValue::Owner(owner) => HolderValue::Owner(*owner),
            StoredValue::Foreign(value) => HolderValue::read(value),
            StoredValue::OtherType => HolderValue::NotALock,
        }
    }

    fn remaining(&self, now: Instant) -> Option<Duration> {
        self.expires.map(|expires| Duration::from_millis(expires.saturating_sub(millis(now))))
    }

    /// Lengthens, never shortens; a key of ours that somebody made to live for ever gets its end back.
    fn lengthen(&mut self, ttl: Ttl, now: Instant) {
        let until = millis(now.after(ttl.duration()));
        self.expires = Some(self.expires.map_or(until, |expires| expires.max(until)));
    }
}

fn millis(now: Instant) -> u64 {
    now.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::validity::Drift;

    fn at(millis: u64) -> Instant {
        Instant::default().after(Duration::from_millis(millis))
    }

    fn ttl(millis: u64) -> Ttl {
        let duration = Duration::from_millis(millis);
        Ttl::new(duration, Drift::default(), duration).unwrap()
    }

    /// A key is there through the millisecond in which its life ends, and gone in the next.
    #[test]
    fn keys_expire_in_whole_milliseconds() {
        let (key, mine, other) = (Key::new(*b"k"), Owner::from_bytes([1; 16]), Owner::from_bytes([2; 16]));
        let mut store = Store::default();
        let set = |owner| Operation::Set { key: key.clone(), owner, ttl: ttl(10) };

        assert_eq!(store.execute(&set(mine), at(100)), Reply::Granted);
        assert!(matches!(store.execute(&set(other), at(110)), Reply::Held(_)));
        assert_eq!(store.execute(&set(other), at(111)), Reply::Granted);
        assert_eq!(store.execute(&Operation::Release { key: key.clone(), owner: mine }, at(112)), held_by(2));
        assert_eq!(store.keys(at(112)).as_slice(), std::slice::from_ref(&key));
        assert!(store.keys(at(122)).is_empty());
    }

    fn held_by(byte: u8) -> Reply {
        Reply::Held(Holder { value: HolderValue::Owner(Owner::from_bytes([byte; 16])), remaining: None })
    }

    /// Rule 7: an extension lengthens and never shortens; a claim by the same owner does too.
    #[test]
    fn lengthening_never_shortens() {
        let (key, owner) = (Key::new(*b"k"), Owner::from_bytes([1; 16]));
        let mut store = Store::default();
        store.execute(&Operation::Set { key: key.clone(), owner, ttl: ttl(1_000) }, at(0));

        store.execute(&Operation::Extend { key: key.clone(), owner, ttl: ttl(100), carry: None }, at(10));
        assert_eq!(store.holder(&key, at(10)).unwrap().remaining, Some(Duration::from_millis(990)));
        store.execute(&Operation::Claim { key: key.clone(), owner, ttl: ttl(2_000), fence: None }, at(10));
        assert_eq!(store.holder(&key, at(10)).unwrap().remaining, Some(Duration::from_millis(2_000)));
    }

    /// Other people's data is never touched, whatever it is.
    #[test]
    fn foreign_data_is_held_and_kept() {
        let (key, owner) = (Key::new(*b"k"), Owner::from_bytes([1; 16]));
        let mut store = Store::default();
        store.put_foreign(&key, b"cache", None, at(0));
        let operations = [
            Operation::Set { key: key.clone(), owner, ttl: ttl(10) },
            Operation::Claim { key: key.clone(), owner, ttl: ttl(10), fence: None },
            Operation::Extend { key: key.clone(), owner, ttl: ttl(10), carry: None },
            Operation::Release { key: key.clone(), owner },
        ];
        for operation in &operations {
            assert!(matches!(store.execute(operation, at(5)), Reply::Held(_)), "{operation:?}");
        }
        store.put_other_type(&key, at(5));
        for operation in &operations {
            let Reply::Held(holder) = store.execute(operation, at(5)) else { panic!("{operation:?}") };
            assert_eq!(holder.value, HolderValue::NotALock);
        }
        assert_eq!(store.holder(&key, at(99)).unwrap().remaining, None);
        assert!(store.remove(&key) && !store.remove(&key));
    }
}
