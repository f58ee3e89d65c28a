//! How long a holder may act: never longer than a quorum of the nodes keeps the key for it.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use clients::{REPLY, SLACK, SOON, TTL, acquired, builder, client, ms, quorum_value, scripts, sets, timed};
use harness::{Cluster, eventually};
use redquorum::{AcquireError, ExtendError, InvalidRequest, Lost, ReleaseError};

/// The Q-th largest remaining life of a key: how long a quorum keeps it.
fn quorum_life(cluster: &Cluster, key: &str) -> Duration {
    let mut lives: Vec<_> = cluster.iter().map(|server| server.pttl(key).unwrap_or_default()).collect();
    lives.sort_unstable_by(|one, other| other.cmp(one));
    lives[cluster.len() / 2]
}

/// Validity is the TTL less the time since the request was sent, less 1 % and 2 ms, and never beyond the keys' own life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validity_ends_before_the_keys_do() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    for (ttl, most, least) in [(10_000, 9_898, 9_300), (1_000, 988, 400)] {
        let started = Instant::now();
        let guard = redlock.lock("k").ttl(ms(ttl)).await.expect("acquired");
        let remaining = guard.remaining();
        let elapsed = started.elapsed();

        assert!(remaining <= ms(most) && remaining >= ms(least), "{remaining:?} of {ttl} ms");
        assert!(
            remaining + elapsed >= ms(most),
            "more than the allowance was taken: {remaining:?}, {elapsed:?}"
        );
        for _ in 0..20 {
            let kept = quorum_life(&cluster, "k");
            let remaining = guard.remaining();
            assert!(remaining <= kept, "valid for {remaining:?}, kept for {kept:?}");
            tokio::time::sleep(ms(5)).await;
        }
        guard.release().await.expect("released");
    }
}

/// The drift allowance is the one that was set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_is_taken_from_the_ttl() {
    let cluster = Cluster::start(1);
    let redlock = builder(cluster.urls()).drift_ppm(100_000).build().await.expect("nodes");

    let guard = redlock.lock("k").ttl(ms(10_000)).await.expect("acquired");

    let remaining = guard.remaining();
    assert!(remaining <= ms(8_998) && remaining > ms(8_000), "{remaining:?}");
}

/// What a caller gives in seconds or milliseconds is what the nodes get, in acquire and in extend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_get_the_ttl_in_milliseconds() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let lives = |least: u64, most: u64| {
        let lives: Vec<_> = cluster.iter().map(|server| server.pttl("k").unwrap_or_default()).collect();
        lives.iter().all(|life| *life > ms(least) && *life <= ms(most))
    };

    let mut guard = redlock.lock("k").ttl(ms(5_500)).await.expect("acquired");
    eventually(ms(2_000), "5.5 s on every node", || lives(3_000, 5_500)).await;

    guard.extend(Duration::from_secs(9)).await.expect("extended");
    eventually(ms(2_000), "9 s on every node", || lives(6_500, 9_000)).await;
    let remaining = guard.remaining();
    assert!(remaining <= ms(8_908) && remaining > ms(6_500), "{remaining:?}");
}

/// An extension never makes a lock shorter, neither here nor on the nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extend_never_shortens() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let mut guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;

    guard.extend(ms(1_000)).await.expect("extended");

    assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining());
    for server in cluster.iter() {
        assert!(server.pttl("k") > Some(TTL / 2), "{:?}", server.pttl("k"));
    }
}

/// A TTL that drift would eat up is refused at once, without an attempt, however long the caller would wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_within_drift_is_refused_unsent() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let before = sets(&cluster[0]);

    let (result, took) = timed(redlock.lock("k").ttl(ms(2)).wait(ms(5_000))).await;

    let Err(AcquireError::Invalid(InvalidRequest::TtlWithinDrift { ttl, allowance })) = result else {
        panic!("{result:?}");
    };
    assert_eq!((ttl, allowance), (ms(2), Duration::from_micros(2_020)));
    assert!(took < SLACK, "{took:?}");
    assert_eq!(sets(&cluster[0]), before);
}

/// Validity is checked after the last needed reply was read: a caller that stood still meanwhile has no lock, though
/// every node granted, and the grants are undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_are_read_too_late_are_no_lock() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).min_validity(ms(4_000)).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    // On a busy machine the nodes may have answered before the first look is over: then once more.
    let mut request = loop {
        let mut request = redlock.lock("k").ttl(ms(5_000)).without_waiting().into_future();
        tokio::select! {
            biased;
            result = &mut request => result.expect("held").release().await.expect("released"),
            () = std::future::ready(()) => break request,
        }
    };
    // The nodes answer to other threads; this one reads nothing until it wakes up.
    std::thread::sleep(ms(1_200));
    assert!(quorum_value(&cluster, "k").is_some(), "the nodes granted");

    let result = (&mut request).await;

    let Err(AcquireError::TooSlow { remaining, needed, report, .. }) = result else { panic!("{result:?}") };
    assert!(remaining < needed && needed == ms(4_000), "{remaining:?} of {needed:?}");
    assert!(report.granted() >= 2, "{report}");
    cluster.no_key("k", ms(2_000)).await;
}

/// One node that forgets the key early is healed by the next extension, and no rival gets a quorum meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_quorum_is_healed_by_extending() {
    let cluster = Cluster::start(5);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    for server in &cluster[3..] {
        server.command(&["SET", "k", "rival", "PX", "60000"]);
    }
    let mut guard = redlock.try_acquire("k").await.expect("three nodes grant");
    for server in &cluster[3..] {
        server.command(&["DEL", "k"]);
    }

    // A node whose answer came after the quorum's is healed by the extension after.
    let deadline = Instant::now() + SOON;
    while cluster.values("k").iter().any(Option::is_none) {
        assert!(Instant::now() < deadline, "not healed: {:?}", cluster.values("k"));
        guard.extend(TTL).await.expect("three nodes still carry it");
        tokio::time::sleep(ms(20)).await;
    }
    let mine = quorum_value(&cluster, "k");
    assert!(cluster.values("k").iter().all(|value| *value == mine), "{:?}", cluster.values("k"));

    cluster[2].command(&["DEL", "k"]);
    let refused = rival.try_acquire("k").await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    eventually(SOON, "the rival's vote is undone", || !cluster[2].exists("k")).await;
    assert_eq!(quorum_value(&cluster, "k"), mine);
    guard.release().await.expect("released");
    cluster.no_key("k", SOON).await;
}

/// An extension past the end of validity revives nothing, whether or not somebody held the lock meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lock_is_never_revived() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    for rival_in_the_gap in [false, true] {
        let mut guard = redlock.lock("k").ttl(ms(500)).await.expect("acquired");
        tokio::time::sleep(ms(600)).await;
        assert!(!guard.is_valid());
        if rival_in_the_gap {
            let (theirs, _) = acquired(&rival, "k", SOON).await;
            theirs.release().await.expect("released");
        }

        let extended = guard.extend(ms(1_000)).await;

        assert!(matches!(extended, Err(ExtendError::Expired { .. })), "{extended:?}");
        cluster.no_key("k", SOON).await;
        let again = guard.extend(ms(1_000)).await;
        assert!(matches!(again, Err(ExtendError::Expired { .. })), "{again:?}");
        assert!(!guard.is_valid() && guard.remaining().is_zero());
        drop(guard);
        tokio::time::sleep(ms(50)).await;
        cluster.no_key("k", ms(0)).await;
    }
}

/// An extension past the end of validity leaves the next holder alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_extension_leaves_the_next_holder_alone() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let mut guard = redlock.lock("k").ttl(ms(300)).await.expect("acquired");
    let (theirs, _) = acquired(&rival, "k", SOON).await;
    let value = quorum_value(&cluster, "k");

    let extended = guard.extend(ms(1_000)).await;

    assert!(matches!(extended, Err(ExtendError::Expired { .. })), "{extended:?}");
    drop(guard);
    tokio::time::sleep(ms(100)).await;
    assert_eq!(quorum_value(&cluster, "k"), value);
    assert!(theirs.is_valid());
}

/// Each lock has the TTL of its own request, whatever the client locked before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ttl_of_an_earlier_lock_is_forgotten() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    redlock.lock("k").ttl(2 * TTL).await.expect("acquired").release().await.expect("released");
    cluster.no_key("k", SOON).await;

    let guard = redlock.lock("k").ttl(ms(1_000)).await.expect("acquired");

    let lives: Vec<_> = cluster.iter().filter_map(|server| server.pttl("k")).collect();
    assert!(lives.iter().all(|life| *life <= ms(1_000)), "{lives:?}");
    // As a holder that died: nothing of it runs any more.
    std::mem::forget(guard);
    let (next, after) = acquired(&redlock, "k", SOON).await;
    assert!(after < ms(1_000) + SLACK, "{after:?}");
    next.release().await.expect("released");
}

/// The release of a lock that is known to be lost does not retry, and still sends one release to every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_a_lost_lock_takes_one_round() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.lock("k").ttl(ms(300)).await.expect("acquired");
    assert_eq!(guard.lost().await, Lost::Expired);
    cluster.no_key("k", SOON).await;
    let before: Vec<_> = cluster.iter().map(scripts).collect();

    let (released, took) = timed(guard.release()).await;

    assert!(matches!(released, Err(ReleaseError::Expired { .. })), "{released:?}");
    assert!(took < REPLY + SLACK, "{took:?}");
    tokio::time::sleep(ms(300)).await;
    for (server, before) in cluster.iter().zip(before) {
        assert_eq!(scripts(server) - before, 1);
    }
}

/// The same with every node silent: one reply timeout, and what is open goes on in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_a_lost_lock_waits_for_silent_nodes_once() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.lock("k").ttl(ms(300)).await.expect("acquired");
    cluster.iter().for_each(harness::Server::freeze);
    assert_eq!(guard.lost().await, Lost::Expired);

    let (released, took) = timed(guard.release()).await;

    assert!(matches!(released, Err(ReleaseError::Unconfirmed { .. })), "{released:?}");
    assert!(took < REPLY + SLACK, "{took:?}");
    cluster.iter().for_each(harness::Server::thaw);
    cluster.no_key("k", SOON).await;
}

/// The holder is told of the end before the keys expire, also while no node answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_is_told_before_the_keys_expire() {
    let cluster = Cluster::start(3);
    // A large allowance leaves room for a busy machine between the end of validity and that of the keys.
    let redlock = builder(cluster.urls()).drift_ppm(200_000).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    for frozen in [false, true] {
        let started = Instant::now();
        let guard = redlock.lock("k").ttl(ms(1_500)).await.expect("acquired");
        let (lost, ends) = (guard.lost(), started + ms(1_500));
        if frozen {
            cluster.iter().for_each(harness::Server::freeze);
        }

        assert_eq!(lost.await, Lost::Expired);

        let told = Instant::now();
        assert!(told < ends, "told {:?} after the keys may be gone", told - ends);
        assert!(told > started + ms(1_100), "told far too early: {:?}", told - started);
        drop(guard);
        if frozen {
            cluster.iter().for_each(harness::Server::thaw);
        }
        cluster.no_key("k", SOON).await;
    }
}

/// A release ends the lock for whoever watches it before the nodes hear of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_resolves_on_release_and_on_drop() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.try_acquire("k").await.expect("acquired");
    let lost = guard.lost();
    guard.release().await.expect("released");
    assert_eq!(tokio::time::timeout(SOON, lost).await, Ok(Lost::Released));

    let guard = redlock.try_acquire("k").await.expect("acquired");
    let lost = guard.lost();
    drop(guard);
    assert_eq!(tokio::time::timeout(SOON, lost).await, Ok(Lost::Released));
}
