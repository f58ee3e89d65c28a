//! What a client keeps while one node is frozen: nothing that grows.
//!
//! Each runs in a process of its own, so that no other test's memory is counted.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clients::{SOON, client, keys_left, resident};
use harness::{Cluster, alone, eventually};

const MIB: u64 = 1 << 20;

/// Acquires and releases with one of three nodes frozen all the time.
async fn cycle_with_a_frozen_node(cycles: u64) {
    const TASKS: u64 = 16;
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    cluster[2].freeze();
    let run = async |cycles: u64| {
        let next = Arc::new(AtomicU64::new(0));
        let tasks = (0..TASKS).map(|_| {
            let (redlock, next) = (redlock.clone(), next.clone());
            tokio::spawn(async move {
                while next.fetch_add(1, Ordering::Relaxed) < cycles {
                    let key = format!("k{}", next.load(Ordering::Relaxed));
                    if let Ok(guard) = redlock.try_acquire(key).await {
                        drop(guard.release().await);
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
    };
    // Buffers and the allocator's arenas take their size at first.
    run(cycles / 10).await;
    let (before, started) = (resident(), Instant::now());

    run(cycles).await;

    let (after, took) = (resident(), started.elapsed());
    println!(
        "{cycles} cycles with a frozen node in {took:.1?}: {:.1} MiB resident before, {:.1} MiB after",
        before as f64 / MIB as f64,
        after as f64 / MIB as f64
    );
    assert!(after < before + 20 * MIB, "{before} bytes grew to {after}");
    cluster[2].thaw();
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
}

/// Memory does not grow with the number of cycles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_takes_no_memory() {
    if !alone("memory::a_frozen_node_takes_no_memory") {
        return;
    }
    cycle_with_a_frozen_node(if cfg!(debug_assertions) { 4_000 } else { 20_000 }).await;
}

/// The same, 200 000 times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn a_frozen_node_takes_no_memory_over_200_000_cycles() {
    if !alone("memory::a_frozen_node_takes_no_memory_over_200_000_cycles") {
        return;
    }
    cycle_with_a_frozen_node(200_000).await;
}
