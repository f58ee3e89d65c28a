//! What kept locks cost: memory in the client, and requests on the nodes.
//!
//! Each runs in a process of its own, so that no other test's memory is counted.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clients::{SOON, all_vote, keys_left, resident, scripts};
use harness::{Cluster, Server, alone, eventually};
use redquorum::{LockGuard, Redlock};

/// Bytes that a kept lock may take in the client.
const MEMORY: u64 = 1_024;

/// Requests to a node that an extension may cost.
const REQUESTS: f64 = 0.1;

async fn take(redlock: &Redlock, prefix: &'static str, locks: u64) -> Vec<Vec<LockGuard>> {
    const TASKS: u64 = 64;
    let next = Arc::new(AtomicU64::new(0));
    let tasks = (0..TASKS).map(|_| {
        let (redlock, next) = (redlock.clone(), next.clone());
        tokio::spawn(async move {
            let mut guards = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= locks {
                    return guards;
                }
                guards.push(redlock.lock(format!("{prefix}{i}")).keep_alive().await.expect("acquired"));
            }
        })
    });
    let mut guards = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        guards.push(task.await.expect("no panic"));
    }
    guards
}

/// Takes locks on five servers and keeps them for three TTLs. `beside`: what buffers may take, besides the locks.
async fn keep(locks: u64, ttl: Duration, beside: u64) {
    let cluster = Cluster::start(5);
    let redlock = Redlock::builder()
        .nodes(cluster.urls())
        .without_restart_delay()
        .ttl(ttl)
        .build()
        .await
        .expect("nodes");
    all_vote(&redlock).await;
    // Buffers and the allocator's arenas take their size at first.
    for _ in 0..10 {
        drop(take(&redlock, "warm-", 200).await);
    }
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
    let before = resident();

    let started = Instant::now();
    let guards = take(&redlock, "k", locks).await;
    let taken = started.elapsed();
    let mut most = 0;
    // The first round of extensions is over by then, and nothing of the acquires is open any more.
    for _ in 0..10 {
        tokio::time::sleep(ttl / 10).await;
        most = most.max(resident());
    }
    let asked: Vec<_> = cluster.iter().map(scripts).collect();
    for _ in 0..3 {
        tokio::time::sleep(ttl).await;
        let lost = guards.iter().flatten().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {locks} locks");
        most = most.max(resident());
    }

    let each = most.saturating_sub(before) / locks;
    // Each is extended three times in a TTL at least.
    let extensions = (9 * locks) as f64;
    let requests =
        cluster.iter().zip(&asked).map(|(server, before)| (scripts(server) - before) as f64 / extensions);
    let requests = requests.fold(0.0, f64::max);
    println!(
        "{locks} locks taken in {taken:.1?} and kept for three TTLs of {ttl:?}: none lost, {each} bytes each, \
         {requests:.3} requests for an extension and node"
    );
    assert!(most <= before + locks * MEMORY + beside, "{each} bytes for each lock");
    assert!(requests > 0.0 && requests <= REQUESTS, "{requests} requests for each extension");

    drop(guards);
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
    let after: Vec<_> = cluster.iter().map(scripts).collect();
    tokio::time::sleep(ttl).await;
    assert_eq!(cluster.iter().map(scripts).collect::<Vec<_>>(), after, "nothing is sent any more");
    assert!(cluster.iter().all(Server::is_running));
}

/// Thousands of kept locks: none is lost in three TTLs, their memory does not grow, and extensions share their requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_locks_cost_little() {
    if !alone("keeping_costs::kept_locks_cost_little") {
        return;
    }
    keep(if cfg!(debug_assertions) { 2_000 } else { 10_000 }, Duration::from_secs(6), 8 << 20).await;
}

/// The same, 20 000 locks and TTLs of 10 s, and each takes a kilobyte at most, all buffers included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn twenty_thousand_kept_locks_cost_little() {
    if !alone("keeping_costs::twenty_thousand_kept_locks_cost_little") {
        return;
    }
    keep(20_000, Duration::from_secs(10), 0).await;
}
