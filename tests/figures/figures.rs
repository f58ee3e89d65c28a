//! Figures that the documents promise: what is left on the nodes, and what a lock costs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clients::{SLACK, SOON, builder, client, keys_left, lock_keys, ms, scripts, sets};
use harness::{Cluster, Server, eventually};
use redis::FromRedisValue;

/// Within this after the last call, nothing is left.
const CLEAN: Duration = Duration::from_secs(1);

/// Waits until no key is left, and says how long that took.
async fn clean(cluster: &Cluster) -> Duration {
    let started = Instant::now();
    eventually(CLEAN + SLACK, "no key is left on any node", || keys_left(cluster) == 0).await;
    started.elapsed()
}

/// Many cycles of many tasks, some of them after the same key, leave no key on any node.
async fn cycles_leave_no_key(cycles: u64) {
    const TASKS: u64 = 64;
    const KEYS: u64 = 48;
    let cluster = Cluster::start(5);
    let redlock = client(cluster.urls()).await;
    let next = Arc::new(AtomicU64::new(0));
    let held = Arc::new(AtomicU64::new(0));
    let started = Instant::now();

    let tasks = (0..TASKS).map(|_| {
        let (redlock, next, held) = (redlock.clone(), next.clone(), held.clone());
        tokio::spawn(async move {
            loop {
                let cycle = next.fetch_add(1, Ordering::Relaxed);
                if cycle >= cycles {
                    return;
                }
                let Ok(guard) = redlock.try_acquire(format!("k{}", cycle % KEYS)).await else { continue };
                held.fetch_add(1, Ordering::Relaxed);
                // Both ways to end a lock.
                if cycle % 2 == 0 {
                    drop(guard.release().await);
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }

    let took = started.elapsed();
    let held = held.load(Ordering::Relaxed);
    let cleaned = clean(&cluster).await;
    println!("{cycles} cycles, {held} of them held, in {took:.1?}; clean after {cleaned:.1?}");
    assert!(held >= cycles / 4, "{held}");
    assert_eq!(redlock.pending_cleanups(), 0);
}

/// After thousands of cycles, no key is left within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_left_after_many_cycles() {
    cycles_leave_no_key(if cfg!(debug_assertions) { 4_000 } else { 20_000 }).await;
}

/// The same, 100 000 times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn no_key_is_left_after_100_000_cycles() {
    cycles_leave_no_key(100_000).await;
}

/// Acquires that are dropped at any moment, each at another, leave no key on any node.
async fn dropped_acquires_leave_no_key(acquires: u64) {
    let cluster = Cluster::start(5);
    let redlock = client(cluster.urls()).await;
    // How long a batch takes here: the moments are spread over twice that.
    let started = Instant::now();
    let warm = (0..50).map(|i| {
        let redlock = redlock.clone();
        tokio::spawn(async move { drop(redlock.try_acquire(format!("warm-{i}")).await) })
    });
    for attempt in warm.collect::<Vec<_>>() {
        attempt.await.expect("no panic");
    }
    let span = started.elapsed().as_micros() as u64 * 2;
    let (mut held, mut dropped) = (0, 0);

    for batch in 0..acquires / 50 {
        let attempts = (0..50).map(|i| {
            let redlock = redlock.clone();
            let moment = Duration::from_micros(rand::random_range(0..span));
            tokio::spawn(async move {
                let attempt = redlock.try_acquire(format!("k{batch}-{i}"));
                // A timer of tokio's is too coarse for this: the attempt is polled until its moment has come.
                let until = Instant::now() + moment;
                let moment = async {
                    while Instant::now() < until {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::select! {
                    biased;
                    () = moment => false,
                    result = attempt => result.is_ok(),
                }
            })
        });
        for attempt in attempts.collect::<Vec<_>>() {
            let was_held = attempt.await.expect("no panic");
            held += u64::from(was_held);
            dropped += u64::from(!was_held);
        }
    }

    let cleaned = clean(&cluster).await;
    println!("{acquires} acquires, {dropped} dropped before they were held; clean after {cleaned:.1?}");
    assert!(dropped > acquires / 50 && held > acquires / 50, "{dropped} dropped, {held} held");
    assert_eq!(redlock.pending_cleanups(), 0);
}

/// After hundreds of acquires dropped at random moments, no key is left within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_left_by_dropped_acquires() {
    dropped_acquires_leave_no_key(if cfg!(debug_assertions) { 1_000 } else { 3_000 }).await;
}

/// The same, 10 000 times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn no_key_is_left_by_10_000_dropped_acquires() {
    dropped_acquires_leave_no_key(10_000).await;
}

/// How often a server has executed each command that came over a connection: not what scripts call, nor the harness.
fn commands(server: &Server) -> Vec<(String, u64)> {
    let text = String::from_redis_value(server.command(&["INFO", "commandstats"])).expect("a text");
    let calls = text.lines().filter_map(|line| {
        let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
        (!["info", "get", "del", "exists", "pttl", "keys"].contains(&command))
            .then(|| (command.to_owned(), calls))
    });
    calls.collect()
}

/// An uncontended lock costs each node two commands, the second one at its release, and no connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_costs_two_commands_per_node() {
    const CYCLES: u64 = 500;
    let cluster = Cluster::start(5);
    let redlock = builder(cluster.urls()).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    let connections: Vec<_> = cluster.iter().map(Server::total_connections_received).collect();
    tokio::time::sleep(ms(100)).await;
    let sum = |server: &Server| commands(server).iter().map(|(_, calls)| calls).sum::<u64>();
    let before: Vec<_> = cluster.iter().map(|server| (sum(server), sets(server), scripts(server))).collect();

    let guard = redlock.try_acquire("first").await.expect("acquired");
    for (server, (_, sets_before, scripts_before)) in cluster.iter().zip(&before) {
        eventually(SOON, "the set", || sets(server) == sets_before + 1).await;
        assert_eq!(scripts(server), *scripts_before, "no script before the release");
    }
    guard.release().await.expect("released");
    for i in 1..CYCLES {
        let guard = redlock.try_acquire(format!("k{i}")).await.expect("acquired");
        guard.release().await.expect("released");
    }

    for (index, server) in cluster.iter().enumerate() {
        let (all, sets_before, scripts_before) = before[index];
        eventually(SOON, "all of it has arrived", || sum(server) >= all + 2 * CYCLES).await;
        assert_eq!(sum(server) - all, 2 * CYCLES, "{:?}", commands(server));
        assert_eq!((sets(server) - sets_before, scripts(server) - scripts_before), (CYCLES, CYCLES));
        assert_eq!(server.total_connections_received(), connections[index]);
        assert_eq!(server.connected_clients(), 1);
        assert_eq!(lock_keys(server), Vec::<String>::new());
    }
}
