//! Clients of real servers, as the tests use them, and what a witness sees of their locks.
//!
//! What holds a lock is read from the servers themselves, over the harness's own connections: the library's word alone
//! proves nothing.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use redquorum::{IntoNode, LockGuard, Outcome, Redlock, RedlockBuilder, Report};

use harness::{Cluster, Server, eventually};

/// Long enough for a healthy server on a busy machine, short against every TTL here.
pub const REPLY: Duration = Duration::from_millis(200);

/// What scheduling may take on a busy machine, on top of a bound that the library promises. Always short against what
/// would be waited for if the promise were broken.
pub const SLACK: Duration = Duration::from_millis(500);

/// How long anything may take that only has to happen.
pub const SOON: Duration = Duration::from_secs(10);

/// The life of most locks here: far longer than any test, so that nothing is cleaned up by expiry.
pub const TTL: Duration = Duration::from_secs(30);

/// So many milliseconds.
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until a random moment, no later than `longest` from now, if REDQUORUM_RANDOM_MOMENTS is set: a fault then comes at
/// another moment of the clients' looks each time. Else the test goes on at once.
pub async fn a_moment(longest: Duration) {
    if std::env::var_os("REDQUORUM_RANDOM_MOMENTS").is_some() {
        let pause = longest.mul_f64(rand::random());
        println!("a pause of {pause:?}");
        tokio::time::sleep(pause).await;
    }
}

/// A client's builder with the numbers above. The servers of most tests were just started and hold nothing, so the restart
/// guard, with which they could not vote for a TTL, is off; it has tests of its own.
pub fn builder<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
    Redlock::builder().nodes(nodes).ttl(TTL).max_ttl(2 * TTL).reply_timeout(REPLY).without_restart_delay()
}

/// A client of these nodes, with all of them connected.
pub async fn client<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> Redlock {
    let redlock = builder(nodes).build().await.expect("a quorum of nodes");
    // The others are given a moment by `build`, which on a busy machine may not be enough.
    all_vote(&redlock).await;
    redlock
}

/// A lock that every node carries. One that is held may still be on its way to some of them; whoever asks such a node first is
/// given its vote, and stands in no line.
pub async fn held_on_all(redlock: &Redlock, key: &str) -> LockGuard {
    let guard = redlock.acquire(key).await.expect("free");
    let carried = || guard.report().granted() == guard.report().nodes().len();
    eventually(SOON, "every node carries the lock", carried).await;
    guard
}

/// Waits until so many wait in the queue for a key, over all nodes.
pub async fn until_waiting(redlock: &Redlock, key: &str, count: u32) {
    let started = Instant::now();
    loop {
        let found = redlock.inspect(key).await.expect("a key");
        if found.waiting() == count {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "not {count} wait: {found}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Waits until every node grants.
pub async fn all_vote(redlock: &Redlock) {
    until_votes(redlock, |outcomes| outcomes.iter().all(|outcome| *outcome == Outcome::Granted)).await;
}

/// Waits until the outcomes of a whole round are as wanted, and says how long that took.
pub async fn until_votes(redlock: &Redlock, mut wanted: impl FnMut(&[Outcome]) -> bool) -> Duration {
    let started = Instant::now();
    loop {
        let seen = votes(redlock).await;
        if wanted(&seen) {
            return started.elapsed();
        }
        assert!(started.elapsed() < SOON, "not within {SOON:?}, the nodes answer {seen:?}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// What every node answers to an acquire of a key of its own, stragglers included; the key is gone afterwards.
pub async fn votes(redlock: &Redlock) -> Vec<Outcome> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let key = format!("votes-{}-{next}", std::process::id());
    let report = match redlock.try_acquire(&key).await {
        Ok(mut guard) => {
            // The round is over at the quorum; an extension after it reads what came since, and has its own round.
            let mut report = guard.report();
            for _ in 0..40 {
                if !report.nodes().iter().any(|node| node.outcome == Outcome::Pending) {
                    break;
                }
                tokio::time::sleep(ms(2)).await;
                let _ = guard.extend(TTL).await;
                report = guard.report();
            }
            let _ = guard.release().await;
            report
        }
        Err(error) => error.report().cloned().unwrap_or_else(|| panic!("no report: {error}")),
    };
    report.nodes().iter().map(|node| node.outcome.clone()).collect()
}

/// How many nodes' outcomes are of a kind.
pub fn count(report: &Report, kind: impl Fn(&Outcome) -> bool) -> usize {
    report.nodes().iter().filter(|node| kind(&node.outcome)).count()
}

/// Whether something was sent and no usable answer came.
pub fn is_unknown(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unknown(_))
}

/// The result of a future, and how long it took.
pub async fn timed<T>(future: impl IntoFuture<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    let result = future.await;
    (result, started.elapsed())
}

/// Tries until it is acquired, and says how long that took.
pub async fn acquired(redlock: &Redlock, key: &str, within: Duration) -> (LockGuard, Duration) {
    let started = Instant::now();
    loop {
        match redlock.try_acquire(key).await {
            Ok(guard) => return (guard, started.elapsed()),
            Err(error) => assert!(started.elapsed() < within, "not within {within:?}: {error}"),
        }
        tokio::time::sleep(ms(5)).await;
    }
}

/// Every key of a lock on a server: not the client's own helper keys.
pub fn lock_keys(server: &Server) -> Vec<String> {
    server.keys().into_iter().filter(|key| !key.contains("redquorum:")).collect()
}

/// How many locks the servers hold together.
pub fn keys_left(cluster: &Cluster) -> usize {
    cluster.iter().map(|server| lock_keys(server).len()).sum()
}

/// How many set and script commands a server has executed: everything that a lock is made of.
pub fn lock_commands(server: &Server) -> u64 {
    sets(server) + scripts(server)
}

/// How many SETs a server has executed.
pub fn sets(server: &Server) -> u64 {
    server.commandstats("set")
}

/// How many scripts, or native commands in their place, a server has executed.
pub fn scripts(server: &Server) -> u64 {
    ["evalsha", "eval", "delifeq", "delex"].iter().map(|command| server.commandstats(command)).sum()
}

/// Whether a quorum of the servers carries the same value under a key, and which.
pub fn quorum_value(cluster: &Cluster, key: &str) -> Option<String> {
    let values = cluster.values(key);
    let needed = values.len() / 2 + 1;
    let same = |value: &String| values.iter().flatten().filter(|other| *other == value).count();
    values.iter().flatten().find(|value| same(value) >= needed).cloned()
}

/// The bytes of this process that are in memory; zero on systems that do not tell in Linux's way.
pub fn resident() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") * 1024
}
