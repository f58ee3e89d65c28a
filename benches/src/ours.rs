//! This library, in each way that is measured.

use std::sync::Arc;
use std::time::Duration;

use redquorum::{LockGuard, Redlock};

use crate::locker::Locker;

/// What is asked of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// `acquire`, with every default.
    Plain,
    /// One round and no wait.
    Once,
    /// With a fencing token.
    Fenced,
    /// Kept alive until it is released.
    Kept,
}

/// A client of this library.
#[derive(Clone)]
pub struct Ours {
    redlock: Redlock,
    how: How,
    /// Held meanwhile, and kept alive.
    kept: Arc<Vec<LockGuard>>,
}

impl Ours {
    /// Connects to all nodes. They were just started and hold nothing, so they may vote at once.
    pub async fn connect(urls: &[String], how: How) -> Result<Self, redquorum::BuildError> {
        let redlock = Redlock::builder().nodes(urls).without_restart_delay().build().await?;
        Ok(Self { redlock, how, kept: Arc::default() })
    }

    /// The same client, used in another way.
    pub fn used(&self, how: How) -> Self {
        Self { how, ..self.clone() }
    }

    /// Keeps so many locks alive while this client is measured.
    pub async fn keeping(mut self, locks: usize) -> Result<Self, redquorum::AcquireError> {
        let mut kept = Vec::with_capacity(locks);
        for lock in 0..locks {
            kept.push(self.redlock.lock(format!("bench:kept:{lock}")).keep_alive().await?);
        }
        self.kept = Arc::new(kept);
        Ok(self)
    }

    /// Ends the client in an orderly way.
    pub async fn close(&self) {
        self.redlock.close(Duration::from_secs(2)).await;
    }
}

impl Locker for Ours {
    type Held = LockGuard;

    async fn acquire(&self, key: &str) -> Option<LockGuard> {
        let acquired = match self.how {
            How::Plain => self.redlock.acquire(key).await,
            How::Once => self.redlock.try_acquire(key).await,
            How::Fenced => self.redlock.lock(key).fenced().await,
            How::Kept => self.redlock.lock(key).keep_alive().await,
        };
        acquired.ok()
    }

    async fn release(&self, held: LockGuard) {
        // Counted as a cycle however it ended: the bars ask for its time.
        let _ = held.release().await;
    }
}
