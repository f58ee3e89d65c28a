//! The hints of one client, behind a lock that a client without contention never takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::message::{Key, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::wait_queue::hints;

/// The contended keys of one client.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// How many there are.
    count: AtomicUsize,
    keys: Mutex<hints::Hints>,
}

impl Hints {
    /// As [`hints::Hints::note`].
    pub(crate) fn note(&self, key: &Key, node: NodeId) {
        self.change(|keys| keys.note(key, node));
    }

    /// As [`hints::Hints::contains`].
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.lock().contains(key)
    }

    /// As [`hints::Hints::released`].
    pub(crate) fn released(&self, key: &Key, node: NodeId, reply: &Reply) {
        // Only a hand-over adds a key: any other answer leaves no keys as they are.
        if *reply == Reply::HandedOver || self.count.load(Ordering::Relaxed) > 0 {
            self.change(|keys| keys.released(key, node, reply));
        }
    }

    fn change(&self, change: impl FnOnce(&mut hints::Hints)) {
        let mut keys = self.lock();
        change(&mut keys);
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, hints::Hints> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
