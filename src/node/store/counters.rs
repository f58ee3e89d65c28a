//! The fencing counters of one server, as the scripts keep them beside the keys.

use super::{Store, StoredValue, millis};
use crate::protocol::fencing::{Carry, Counter, Fence, FencingToken};
use crate::protocol::message::{Holder, Key, Owner, Reply};
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;

impl Store {
    /// A claim that advances the counter, or carries a token along, in the same step.
    pub(super) fn claim_fenced(
        &mut self,
        key: &Key,
        owner: Owner,
        ttl: Ttl,
        fence: Fence,
        now: Instant,
    ) -> Reply {
        let stored = self.counter(key, now);
        let Some(claimed) = Counter::claimed(stored, owner, fence, micros(now)) else {
            return Reply::CounterExhausted;
        };
        match self.live(key, now) {
            Some(entry) if entry.value == StoredValue::Owner(owner) => entry.lengthen(ttl, now),
            Some(entry) => {
                return Reply::Held(Holder { value: entry.holder(), remaining: entry.remaining(now) });
            }
            None => self.insert(key, StoredValue::Owner(owner), Some(ttl.duration()), now),
        }
        self.counters.insert(key.clone(), claimed);
        Reply::Fenced(FencingToken::new(claimed.number))
    }

    /// Lifts the counter where the key carries this owner.
    pub(super) fn raise(&mut self, key: &Key, owner: Owner, carry: Carry, now: Instant) -> Reply {
        match self.live(key, now) {
            Some(entry) if entry.value == StoredValue::Owner(owner) => {
                self.carry(key, owner, carry, now);
                Reply::Granted
            }
            Some(entry) => Reply::Held(Holder { value: entry.holder(), remaining: None }),
            None => Reply::Absent,
        }
    }

    pub(super) fn carry(&mut self, key: &Key, owner: Owner, carry: Carry, now: Instant) {
        let stored = self.counter(key, now);
        if let Some(carried) = Counter::claimed(stored, owner, Fence::Carry(carry), micros(now)) {
            self.counters.insert(key.clone(), carried);
        }
    }

    /// The fencing counter of a key at `now`, if there is one.
    pub fn counter(&mut self, key: &Key, now: Instant) -> Option<Counter<Owner>> {
        let expired = self.counters.get(key)?.expires < millis(now);
        if expired {
            self.counters.remove(key);
        }
        self.counters.get(key).copied()
    }

    /// Sets a counter, as an administrator may.
    pub fn put_counter(&mut self, key: &Key, counter: Counter<Owner>) {
        self.counters.insert(key.clone(), counter);
    }

    /// Forgets a counter, as an eviction does. Returns whether it was there.
    pub fn remove_counter(&mut self, key: &Key) -> bool {
        self.counters.remove(key).is_some()
    }
}

/// What a server's `TIME` tells at `now`.
fn micros(now: Instant) -> u64 {
    now.as_nanos() / 1_000
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::fencing::Retention;
    use crate::protocol::message::Operation;

    const TTL: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000_000).after(Duration::from_millis(millis))
    }

    fn claim(store: &mut Store, who: u8, candidate: u64, now: Instant) -> Reply {
        let retention = Retention::new(Duration::from_secs(3_600));
        let fence = Some(Fence::Advance { candidate, retention });
        let (key, owner, ttl) = (Key::new(*b"k"), Owner::from_bytes([who; 16]), Ttl::unchecked(TTL));
        store.execute(&Operation::Claim { key, owner, ttl, fence }, now)
    }

    /// A counter outlives its lock, rises with each owner, and is told again to the one that advanced it.
    #[test]
    fn counters_rise_from_owner_to_owner() {
        let (mut store, key) = (Store::default(), Key::new(*b"k"));
        assert_eq!(claim(&mut store, 1, 100, at(0)), Reply::Fenced(FencingToken::new(100)));
        assert_eq!(claim(&mut store, 1, 900, at(1)), Reply::Fenced(FencingToken::new(100)));
        assert!(matches!(claim(&mut store, 2, 900, at(1)), Reply::Held(_)), "a refusal leaves it alone");
        store.execute(&Operation::Release { key: key.clone(), owner: Owner::from_bytes([1; 16]) }, at(2));

        assert_eq!(claim(&mut store, 2, 50, at(2)), Reply::Fenced(FencingToken::new(101)));
    }

    /// A counter is gone after its retention, and only then.
    #[test]
    fn counters_expire() {
        let (mut store, key) = (Store::default(), Key::new(*b"k"));
        claim(&mut store, 1, 100, at(0));
        assert!(store.counter(&key, at(3_600_000)).is_some());
        assert_eq!(store.counter(&key, at(3_600_001)), None);
    }

    /// Raising lifts the counter only where the lock is the owner's.
    #[test]
    fn raising_needs_the_lock() {
        let (mut store, key) = (Store::default(), Key::new(*b"k"));
        claim(&mut store, 1, 100, at(0));
        let raise = |who, token| Operation::Raise {
            key: key.clone(),
            owner: Owner::from_bytes([who; 16]),
            carry: Carry { token: FencingToken::new(token), retention: Retention::new(TTL) },
        };

        assert!(matches!(store.execute(&raise(2, 500), at(1)), Reply::Held(_)));
        assert_eq!(store.counter(&key, at(1)).map(|counter| counter.number), Some(100));
        assert_eq!(store.execute(&raise(1, 500), at(1)), Reply::Granted);
        assert_eq!(store.counter(&key, at(1)).map(|counter| counter.number), Some(500));
        assert_eq!(store.execute(&raise(1, 400), at(1)), Reply::Granted);
        assert_eq!(store.counter(&key, at(1)).map(|counter| counter.number), Some(500), "never lowered");
        store.remove(&key);
        assert_eq!(store.execute(&raise(1, 600), at(1)), Reply::Absent);
    }
}
