//! Kept locks on real servers, and the figures that the documents promise for many of them.
//!
//! The full sizes are ignored by default, and run by `make soak`.

use std::time::{Duration, Instant};

use clients::{
    SLACK, SOON, acquired, all_vote, keys_left, lock_commands, lock_keys, ms, quorum_value, scripts,
};
use harness::{Cluster, Proxy, Server, ServerBuilder, eventually};
use redquorum::{LockGuard, Lost, Redlock, ReleaseError, WithLockError};

/// Long enough for a busy machine to extend in time, short enough to see many of them go by.
const TTL: Duration = Duration::from_secs(2);

async fn client(urls: Vec<String>) -> Redlock {
    let redlock =
        Redlock::builder().nodes(urls).without_restart_delay().ttl(TTL).build().await.expect("nodes");
    all_vote(&redlock).await;
    redlock
}

async fn kept(redlock: &Redlock, key: &str) -> LockGuard {
    redlock.lock(key).keep_alive().await.expect("acquired")
}

/// A quorum carries a kept lock's key at every look, over several TTLs; released, the key is gone and nothing is sent any
/// more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_lock_is_on_a_quorum_all_the_time() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = kept(&redlock, "k").await;
    let owner = quorum_value(&cluster, "k").expect("held");
    let until = Instant::now() + 3 * TTL;
    while Instant::now() < until {
        assert_eq!(quorum_value(&cluster, "k").as_ref(), Some(&owner));
        assert!(guard.is_valid());
        tokio::time::sleep(ms(50)).await;
    }

    guard.release().await.expect("released");

    cluster.no_key("k", SOON).await;
    let before: Vec<_> = cluster.iter().map(scripts).collect();
    tokio::time::sleep(TTL).await;
    assert_eq!(cluster.iter().map(scripts).collect::<Vec<_>>(), before);
}

/// After an outage that lost the lock, the same client takes and keeps the same lock again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_lost_is_kept_again() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = kept(&redlock, "k").await;
    cluster.iter().for_each(Server::stop);
    assert_eq!(guard.lost().await, Lost::Expired);
    drop(guard);
    cluster.iter().for_each(Server::restart);

    let (plain, _) = acquired(&redlock, "k", SOON).await;
    plain.release().await.expect("released");
    let guard = kept(&redlock, "k").await;
    for _ in 0..50 {
        assert!(quorum_value(&cluster, "k").is_some() && guard.is_valid());
        tokio::time::sleep(ms(100)).await;
    }
}

/// A node that lost the key is healed within an extension; of two that did, the holder is told at the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_is_healed_or_told() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = kept(&redlock, "k").await;
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;

    cluster[0].command(&["DEL", "k"]);
    eventually(TTL / 3 + SLACK, "healed", || cluster[0].exists("k")).await;
    assert!(guard.is_valid());

    let evicted = Instant::now();
    cluster[0].command(&["DEL", "k"]);
    cluster[1].command(&["SET", "k", "rival"]);
    let lost = guard.lost().await;
    assert!(matches!(lost, Lost::Forgotten), "{lost}");
    assert!(evicted.elapsed() < TTL / 3 + SLACK, "{:?}", evicted.elapsed());
    assert!(matches!(
        guard.release().await,
        Err(ReleaseError::Expired { .. } | ReleaseError::TakenOver { .. })
    ));
    assert_eq!(cluster[1].get("k").as_deref(), Some("rival"));
}

/// Acquires of kept locks that are dropped at random moments, their replies on the way, are kept by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_are_kept_by_nobody() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(proxies.iter().map(Proxy::url).collect()).await;
    for proxy in &proxies {
        proxy.replies(harness::Mode::Delay(ms(40)));
    }
    let attempts = (0..200).map(|i| {
        let attempt = redlock.lock(format!("k{i}")).keep_alive().into_future();
        let moment = ms(rand::random_range(0..100));
        tokio::spawn(async move { drop(tokio::time::timeout(moment, attempt).await) })
    });
    for attempt in attempts.collect::<Vec<_>>() {
        attempt.await.expect("no panic");
    }

    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
    tokio::time::sleep(ms(200)).await;
    let before: Vec<_> = cluster.iter().map(lock_commands).collect();
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(cluster.iter().map(lock_commands).collect::<Vec<_>>(), before, "nothing is extended");
}

/// Work's own error is the caller's, in time, though no node answers the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_error_comes_through_a_black_hole() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let reply = ms(50);
    let urls = proxies.iter().map(Proxy::url);
    let redlock = Redlock::builder()
        .nodes(urls)
        .without_restart_delay()
        .reply_timeout(reply)
        .build()
        .await
        .expect("nodes");
    all_vote(&redlock).await;
    let mut failed = None;

    let result: Result<Result<(), &str>, WithLockError<_>> = redlock
        .with_lock("k", async |_| {
            proxies.iter().for_each(Proxy::black_hole);
            failed = Some(Instant::now());
            Err("disk full")
        })
        .await;

    assert_eq!(result.expect("the work was done"), Err("disk full"));
    let took = failed.expect("begun").elapsed();
    assert!(took < reply + SLACK, "{took:?}");
}

/// A server in cluster mode, which takes one slot in a command, is sent a command for each key, by what INFO tells or by what
/// it refuses; the locks are kept all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_in_cluster_mode_are_asked_key_by_key() {
    let cluster = Cluster::start_with(1, |_| ServerBuilder::default().args(["--cluster-enabled", "yes"]));
    let server = &cluster[0];
    // One by one: 6.2 takes no range of slots.
    let slots = (0..16_384).map(|slot: u32| slot.to_string());
    server
        .command(&["CLUSTER".to_owned(), "ADDSLOTS".to_owned()].into_iter().chain(slots).collect::<Vec<_>>());
    eventually(SOON, "the slots are served", || server.try_command(&["GET", "k"]).is_ok()).await;
    for hidden in [false, true] {
        if hidden {
            server.command(&["ACL", "SETUSER", "default", "-info"]);
        }
        let redlock = client(cluster.urls()).await;
        let mut guards = Vec::new();
        for i in 0..40 {
            guards.push(kept(&redlock, &format!("k{i}")).await);
        }

        tokio::time::sleep(2 * TTL).await;

        assert!(guards.iter().all(LockGuard::is_valid), "hidden: {hidden}");
        assert_eq!(lock_keys(server).len(), guards.len());
        drop(guards);
        eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
    }
}

/// One key that the user may no longer touch does not take the others' extensions with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbidden_key_stands_alone() {
    let cluster = Cluster::start(1);
    let server = &cluster[0];
    server.command(&["ACL", "SETUSER", "me", "on", ">pw", "+@all", "~*", "&*"]);
    let redlock = client(vec![server.url_with(Some("me"), Some("pw"), 0)]).await;
    let mut guards = Vec::new();
    for i in 0..40 {
        guards.push(kept(&redlock, &format!("k{i}")).await);
    }
    let forbidden = kept(&redlock, "forbidden").await;
    server.command(&["ACL", "SETUSER", "me", "resetkeys", "~k*"]);

    assert_eq!(forbidden.lost().await, Lost::Expired);

    tokio::time::sleep(TTL).await;
    assert!(guards.iter().all(LockGuard::is_valid));
}

/// When a holder was told of its loss, against the end of its validity, and the next holder's grant, in milliseconds.
struct Told {
    early: Vec<f64>,
    after_rival: usize,
}

/// With all nodes out of reach for the holder of kept locks, while a rival reaches them.
async fn lose(locks: usize) -> Told {
    let cluster = Cluster::start(5);
    let proxies = cluster.proxies();
    let redlock = client(proxies.iter().map(Proxy::url).collect()).await;
    let rival = Redlock::builder()
        .nodes(cluster.urls())
        .without_restart_delay()
        .ttl(TTL)
        .retry_delay(ms(1), ms(20))
        .build()
        .await
        .expect("nodes");
    let mut guards = Vec::new();
    for i in 0..locks {
        guards.push(kept(&redlock, &format!("k{i}")).await);
    }
    tokio::time::sleep(TTL).await;
    let watching: Vec<_> = guards
        .iter()
        .map(|guard| {
            let lost = guard.lost();
            tokio::spawn(async move { (lost.await, Instant::now()) })
        })
        .collect();
    // Everybody watches before it happens.
    tokio::time::sleep(ms(20)).await;

    proxies.iter().for_each(Proxy::black_hole);
    // What was answered before is taken in; nothing is confirmed any more.
    tokio::time::sleep(ms(100)).await;
    let ends: Vec<_> = guards.iter().map(|guard| Instant::now() + guard.remaining()).collect();
    let contended: Vec<_> = (0..locks)
        .step_by(locks.div_ceil(50))
        .map(|i| {
            let rival = rival.clone();
            tokio::spawn(async move {
                let guard = rival.acquire(format!("k{i}")).await.expect("free once it expires");
                (i, Instant::now(), guard)
            })
        })
        .collect();
    let mut told = Vec::new();
    for watch in watching {
        let (reason, moment) = watch.await.expect("no panic");
        assert_eq!(reason, Lost::Expired);
        told.push(moment);
    }
    let mut after_rival = 0;
    for contender in contended {
        let (i, granted, _guard) = contender.await.expect("no panic");
        after_rival += usize::from(told[i] >= granted);
    }
    let early = ends.iter().zip(&told).map(|(end, told)| {
        let early = end.saturating_duration_since(*told).as_secs_f64();
        (early - told.saturating_duration_since(*end).as_secs_f64()) * 1e3
    });
    let mut early: Vec<_> = early.collect();
    early.sort_unstable_by(f64::total_cmp);
    Told { early, after_rival }
}

/// Whether the signals came in time, but for `share` of them that the machine may be late for. That none came after a rival's
/// grant is required in any case.
fn in_time(Told { early, after_rival }: Told, share: usize) -> bool {
    let locks = early.len();
    // The latest hundredth, and the earliest.
    let (late, soon) = (early[locks / 100], early[locks - 1 - locks / 100]);
    println!(
        "{locks} kept locks with all nodes out of reach: told {:.2} ms before the end of validity in the median, 99 in 100 not \
         later than {late:.2} ms and not earlier than {soon:.2} ms before it, at worst {:.2} ms; {after_rival} after a rival's \
         grant",
        early[locks / 2],
        early[0]
    );
    assert_eq!(after_rival, 0);
    early[share] >= 0.0 && soon <= 5.0
}

/// Holders are told of the loss before their validity ends, and before anybody else holds the lock, whatever the sockets do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_are_told_in_time() {
    // Where more run than there are processors, a process may get none for longer than the signal comes early: a few tries.
    for _ in 0..5 {
        if in_time(lose(200).await, 100) {
            return;
        }
    }
    panic!("late five times");
}

/// The same for 1 000 locks, with the 99th percentile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn a_thousand_holders_are_told_in_time() {
    assert!(in_time(lose(1_000).await, 10));
}

mod in_memory {
    use super::*;
    use redquorum::testing::{MemoryCluster, MemoryNode};

    /// Keeps locks on five nodes in memory for three TTLs, in real time.
    async fn keep(locks: usize, ttl: Duration) {
        let cluster = MemoryCluster::new(5);
        let redlock = cluster.builder().ttl(ttl).build().await.expect("nodes");
        let mut guards = Vec::with_capacity(locks);
        let started = Instant::now();
        for i in 0..locks {
            guards.push(redlock.lock(format!("k{i}")).keep_alive().await.expect("acquired"));
        }
        let taken = started.elapsed();
        tokio::time::sleep(ttl / 2).await;
        let before: Vec<_> = cluster.nodes().iter().map(MemoryNode::executed).collect();
        for _ in 0..3 {
            tokio::time::sleep(ttl).await;
            let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
            assert_eq!(lost, 0, "of {locks} locks");
        }
        // Each is extended three times in a TTL, at least.
        let extensions = (9 * locks) as f64;
        let requests = cluster.nodes().iter().zip(before).map(|(node, before)| node.executed() - before);
        let requests = requests.max().unwrap_or_default() as f64 / extensions;
        println!(
            "{locks} locks on nodes in memory taken in {taken:.1?}, kept for three TTLs of {ttl:?}: none lost, {requests:.3} \
             requests for an extension and node"
        );
        assert!(requests > 0.0 && requests <= 0.1, "{requests}");
    }

    /// Thousands of kept locks, and none is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn thousands_of_locks_are_kept() {
        keep(if cfg!(debug_assertions) { 5_000 } else { 20_000 }, Duration::from_secs(4)).await;
    }

    /// The same, 100 000 locks and TTLs of 10 s.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "full size"]
    async fn a_hundred_thousand_locks_are_kept() {
        keep(100_000, Duration::from_secs(10)).await;
    }
}
