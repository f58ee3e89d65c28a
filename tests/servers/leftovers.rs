//! What a node that stood still for long is left with once it goes on.

use std::time::{Duration, Instant};

use clients::{SOON, acquired, client, lock_keys, ms};
use harness::{Cluster, eventually};
use redquorum::{LockGuard, Redlock};

/// Longer than what cleaning up may take, so that a ghost is not gone by itself.
const TTL: Duration = Duration::from_secs(3);

/// Longer than a debt lasts that counts from the set, and from the last extension that the node was sent.
const HELD: Duration = Duration::from_millis(6_500);

/// How many locks of each kind.
const EACH: usize = 10;

async fn extended_by_hand(guard: &mut LockGuard) {
    let started = Instant::now();
    while started.elapsed() < HELD {
        guard.extend(TTL).await.expect("two of three nodes are well");
        tokio::time::sleep(ms(500)).await;
    }
}

/// Takes a lock, holds it for long, and ends it in one of the ways in which a lock ends.
async fn life(kind: &str, redlock: Redlock, other: Redlock, key: String) {
    let request = redlock.lock(&key).ttl(TTL);
    match kind {
        "released" => {
            let guard = request.keep_alive().await.expect("free");
            tokio::time::sleep(HELD).await;
            guard.release().await.expect("released");
        }
        "dropped" => {
            let guard = request.keep_alive().await.expect("free");
            tokio::time::sleep(HELD).await;
            drop(guard);
        }
        "by hand" => {
            let mut guard = request.await.expect("free");
            extended_by_hand(&mut guard).await;
            guard.release().await.expect("released");
        }
        "limited" => {
            let guard = request.max_hold(HELD).await.expect("free");
            guard.lost().await;
        }
        "resumed" => {
            let parts = request.await.expect("free").into_parts().await.expect("held");
            assert!(!parts.is_portable(), "a node owes an answer");
            let mut guard = other.resume(parts).ttl(TTL).await.expect("resumed");
            extended_by_hand(&mut guard).await;
            guard.release().await.expect("released");
        }
        _ => unreachable!("no such kind"),
    }
}

/// Law: a set that a frozen node executes when it goes on is deleted again within a second, however long its lock was held
/// since, and however the lock ended. The free lock can then be had with another node down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ghost_after_a_long_freeze_is_cleared() {
    const KINDS: [&str; 5] = ["released", "dropped", "by hand", "limited", "resumed"];
    let cluster = Cluster::start(3);
    let (redlock, other) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let keys: Vec<_> = KINDS
        .iter()
        .flat_map(|kind| (0..EACH).map(move |number| (*kind, format!("{kind} {number}"))))
        .collect();
    cluster[0].freeze();
    let lives: Vec<_> = keys
        .iter()
        .map(|(kind, key)| tokio::spawn(life(kind, redlock.clone(), other.clone(), key.clone())))
        .collect();
    for life in lives {
        life.await.expect("no panic");
    }
    // By now a debt would have ended, too, that counts from the release.
    tokio::time::sleep(TTL + ms(1_500)).await;

    cluster[0].thaw();

    let (thawed, mut dirty, mut seen) = (Instant::now(), Duration::ZERO, 0);
    while thawed.elapsed() < ms(2_500) {
        let ghosts = lock_keys(&cluster[0]).len();
        if ghosts > 0 {
            (dirty, seen) = (thawed.elapsed(), seen.max(ghosts));
        }
        tokio::time::sleep(ms(5)).await;
    }
    eprintln!("{seen} of {} ghosts were seen, the last one {dirty:?} after the thaw", keys.len());
    assert!(dirty < Duration::from_secs(1), "a ghost {dirty:?} after the thaw");
    // Nothing is owed for longer than a life after the node went on.
    eventually(TTL + SOON, "nothing is owed", || redlock.pending_cleanups() + other.pending_cleanups() == 0)
        .await;
    cluster[1].kill9();
    for (_, key) in &keys {
        acquired(&redlock, key, SOON).await.0.release().await.expect("released");
    }
}
