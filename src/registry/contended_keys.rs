//! The contended_keys of one client, behind a lock that a client without contention never takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::message::{Key, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::wait_queue::contended_keys;

/// The contended keys of one client.
#[derive(Debug, Default)]
pub(crate) struct ContendedKeys {
    /// How many there are.
    count: AtomicUsize,
    keys: Mutex<contended_keys::ContendedKeys>,
}

impl ContendedKeys {
    /// As [`contended_keys::ContendedKeys::note`].
    pub(crate) fn note(&self, key: &Key, node: NodeId) {
        self.change(|keys| keys.note(key, node));
    }

    /// As [`contended_keys::ContendedKeys::contains`].
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.lock().contains(key)
    }

    /// As [`contended_keys::ContendedKeys::released`].
    pub(crate) fn released(&self, key: &Key, node: NodeId, reply: &Reply) {
        // Only a hand-over adds a key: any other answer leaves no keys as they are.
        if *reply == Reply::HandedOver || self.count.load(Ordering::Relaxed) > 0 {
            self.change(|keys| keys.released(key, node, reply));
        }
    }

    fn change(&self, change: impl FnOnce(&mut contended_keys::ContendedKeys)) {
        let mut keys = self.lock();
        change(&mut keys);
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, contended_keys::ContendedKeys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
