//! The other clients for the same pattern, as published, each with the settings that its own documents recommend.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use std::sync::Arc;

use crate::locker::Locker;

const TTL: Duration = Duration::from_secs(10);

/// `rslock`: one multiplexed connection per node, an attempt ends when every node has answered or failed.
#[derive(Clone)]
pub struct Rslock(rslock::LockManager);

impl Rslock {
    /// Its pauses between attempts, and with them as many attempts as it takes; or what it does by itself: three attempts,
    /// with pauses up to 200 ms.
    pub fn connect(urls: &[String], pauses_ms: Option<u64>) -> Self {
        let mut manager = rslock::LockManager::new(urls.iter().map(String::as_str).collect());
        if let Some(pause) = pauses_ms {
            manager.set_retry(u32::MAX, Duration::from_millis(pause));
        }
        Self(manager)
    }
}

impl Locker for Rslock {
    type Held = rslock::Lock;

    async fn acquire(&self, key: &str) -> Option<rslock::Lock> {
        self.0.lock(key, TTL).await.ok()
    }

    async fn release(&self, held: rslock::Lock) {
        self.0.unlock(&held).await;
    }
}

/// `redlock`: blocking, with a new connection for each command, one node after the other.
///
/// From tokio it has to be called on a thread for blocking work. Its `acquire_async` makes the same blocking calls on the
/// runtime's own threads.
#[derive(Clone, Copy)]
pub struct OldRedlock(&'static redlock::RedLock);

/// A held lock of `redlock`.
pub struct OldHeld(redlock::Lock<'static>);

impl OldRedlock {
    /// Its pauses between attempts, and with them as many attempts as it takes; or what it does by itself: three attempts,
    /// with pauses up to 200 ms.
    pub fn connect(urls: &[String], pauses_ms: Option<u32>) -> Self {
        let mut redlock = redlock::RedLock::new(urls.iter().map(String::as_str).collect());
        if let Some(pause) = pauses_ms {
            redlock.set_retry(u32::MAX, pause);
        }
        // Its locks borrow it, and have to be moved to other threads.
        Self(Box::leak(Box::new(redlock)))
    }
}

impl Locker for OldRedlock {
    type Held = OldHeld;

    const DROPPABLE: bool = false;

    async fn acquire(&self, key: &str) -> Option<OldHeld> {
        let (redlock, key) = (self.0, key.as_bytes().to_vec());
        let attempt = move || redlock.lock(&key, TTL.as_millis() as usize);
        tokio::task::spawn_blocking(attempt).await.ok()?.ok()?.map(OldHeld)
    }

    async fn release(&self, held: OldHeld) {
        let redlock = self.0;
        let _ = tokio::task::spawn_blocking(move || redlock.unlock(&held.0)).await;
    }
}

/// `distributed-lock`, its Redis part: one connection per node by the `fred` crate, each command in a task of its own. A
/// held lock is extended by a task, whether asked for or not; an attempt does not wait for a lock that is held.
#[derive(Clone)]
pub struct DistributedLock(Arc<RedisLockProvider>);

impl DistributedLock {
    /// With its defaults: a TTL of 30 s, of which 27 s must be left.
    pub async fn connect(urls: &[String]) -> Result<Self, String> {
        let provider = RedisLockProvider::builder().urls(urls).build().await;
        provider
            .map(|provider| Self(Arc::new(provider)))
            .map_err(|error| format!("distributed-lock: {error}"))
    }
}

impl Locker for DistributedLock {
    type Held = RedisLockHandle;

    async fn acquire(&self, key: &str) -> Option<RedisLockHandle> {
        self.0.create_lock(key).try_acquire().await.ok().flatten()
    }

    async fn release(&self, held: RedisLockHandle) {
        let _ = held.release().await;
    }
}
