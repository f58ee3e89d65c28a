//! Which keys are contended, as far as this client's own releases and waits tell.
//!
//! Who handed a key over waits in the queue for it the next time instead of barging in. A hint may be wrong in both
//! directions, and costs one command then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::message::{Key, Reply};
use crate::protocol::quorum::NodeId;

/// Most keys remembered. At some 100 bytes each they cost half a megabyte; beyond it, any other is forgotten.
const MOST: usize = 4_096;

/// The contended keys of one client.
#[derive(Debug, Default)]
pub(crate) struct ContendedKeys {
    /// How many there are, so that a client without contention never takes the lock.
    count: AtomicUsize,
    /// Each with the node at which somebody waits.
    keys: Mutex<HashMap<Key, NodeId>>,
}

impl ContendedKeys {
    /// Somebody waits, or waited, for this key at this node.
    pub(crate) fn note(&self, key: &Key, node: NodeId) {
        let mut keys = self.lock();
        if let Some(noted) = keys.get_mut(key) {
            *noted = node;
            return;
        }
        if keys.len() >= MOST
            && let Some(any) = keys.keys().next().cloned()
        {
            keys.remove(&any);
        }
        keys.insert(key.clone(), node);
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// Whether the next acquire of this key should wait in the queue.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.lock().contains_key(key)
    }

    /// What a node that may keep a queue answered to a release: somebody waited there, or nobody did. That nobody waits
    /// says nothing at a node that keeps no queue at present.
    pub(crate) fn released(&self, key: &Key, node: NodeId, reply: &Reply) {
        match reply {
            Reply::HandedOver => self.note(key, node),
            Reply::Granted if self.count.load(Ordering::Relaxed) > 0 => {
                let mut keys = self.lock();
                if keys.get(key) == Some(&node) {
                    keys.remove(key);
                }
                self.count.store(keys.len(), Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, NodeId>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(number.to_le_bytes())
    }

    /// A key is contended from a hand-over on, until a release finds nobody in the queue.
    #[test]
    fn hints_come_with_a_hand_over_and_go_with_the_line() {
        let contended_keys = ContendedKeys::default();
        let (here, elsewhere) = (NodeId::new(0), NodeId::new(1));
        contended_keys.released(&key(1), here, &Reply::HandedOver);
        contended_keys.released(&key(2), here, &Reply::Granted);
        assert!(contended_keys.contains(&key(1)) && !contended_keys.contains(&key(2)));

        contended_keys.released(&key(1), here, &Reply::Absent);
        contended_keys.released(&key(1), elsewhere, &Reply::Granted);
        assert!(contended_keys.contains(&key(1)));
        contended_keys.released(&key(1), here, &Reply::Granted);
        assert!(!contended_keys.contains(&key(1)));
    }

    /// Rule 10: bounded.
    #[test]
    fn hints_are_bounded() {
        let contended_keys = ContendedKeys::default();
        (0..3 * MOST).for_each(|number| contended_keys.note(&key(number), NodeId::new(0)));
        assert_eq!(contended_keys.lock().len(), MOST);
        assert!(contended_keys.contains(&key(3 * MOST - 1)));
    }
}
