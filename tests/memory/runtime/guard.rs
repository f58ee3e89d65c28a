//! The restart delay on nodes in memory, with exact times.

use std::time::Duration;

use redquorum::testing::MemoryCluster;
use redquorum::{AcquireError, NodeVote, Outcome, Redlock, RedlockBuilder};
use tokio::time::Instant;

use harness::Ear;

const TTL: Duration = Duration::from_secs(10);

/// TTL × (1 + drift) + 2 ms.
const GUARD: Duration = Duration::from_millis(10_102);

fn delayed(cluster: &MemoryCluster) -> RedlockBuilder {
    cluster.builder().restart_delay(TTL)
}

async fn client(cluster: &MemoryCluster) -> Redlock {
    delayed(cluster).build().await.unwrap()
}

/// Law: an acquire sleeps exactly until the guard of the Q-th node ends, and asks each node once before and once after.
#[tokio::test(start_paused = true)]
async fn acquire_sleeps_until_the_qth_node_counts() {
    let cluster = MemoryCluster::new(5);
    for (index, node) in cluster.nodes().iter().enumerate() {
        node.set_age(Duration::from_secs(index as u64));
    }
    let started = Instant::now();
    let redlock = client(&cluster).await;

    let guard = redlock.acquire("k").await.unwrap();

    // The third oldest has been up for two seconds.
    let waited = started.elapsed();
    let expected = GUARD - Duration::from_secs(2);
    assert!(waited >= expected && waited <= expected + Duration::from_millis(100), "{waited:?}");
    // A set and its undo, and a set.
    assert!(cluster.nodes().iter().all(|node| node.executed() <= 3));
    let delayed = guard.report();
    assert!(
        delayed.nodes().iter().filter(|node| matches!(node.outcome, Outcome::TooYoung { .. })).count() <= 2
    );
    guard.release().await.unwrap();
}

/// Law: who does not wait long enough is told at once, with what is missing; who asks once as well.
#[tokio::test(start_paused = true)]
async fn too_short_a_wait_is_told_at_once() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let started = Instant::now();

    let once = redlock.try_acquire("k").await;
    let short = redlock.lock("k").wait(GUARD - Duration::from_millis(100)).await;

    assert_eq!(started.elapsed(), Duration::ZERO);
    for error in [once.unwrap_err(), short.unwrap_err()] {
        let AcquireError::NodesTooYoung { remaining, .. } = &error else { panic!("{error}") };
        assert_eq!(*remaining, Some(GUARD), "{error}");
        assert!(!error.is_contention() && error.holder().is_none());
    }
}

/// Law: a node that comes back with its memory ends the wait for those without.
#[tokio::test(start_paused = true)]
async fn a_node_that_remembers_ends_the_wait() {
    let cluster = MemoryCluster::new(3);
    for node in &cluster.nodes()[1..] {
        node.set_age(GUARD);
    }
    cluster.node(2).crash();
    let redlock = client(&cluster).await;
    let started = Instant::now();
    let acquiring = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("k").await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!acquiring.is_finished());

    cluster.node(2).heal();
    let guard = acquiring.await.unwrap().unwrap();

    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    drop(guard);
}

/// Law: a node that is wiped gives no lock to a second holder; without the guard it does.
#[tokio::test(start_paused = true)]
async fn a_wiped_node_makes_no_second_holder() {
    for guards in [true, false] {
        let cluster = MemoryCluster::new(3);
        cluster.nodes().iter().for_each(|node| node.set_age(GUARD));
        cluster.node(2).crash();
        let redlock = client(&cluster).await;
        let held = redlock.try_acquire("k").await.unwrap();
        cluster.node(2).heal();
        cluster.node(1).wipe();
        let rival = if guards { delayed(&cluster) } else { cluster.builder() }.build().await.unwrap();

        let result = rival.try_acquire("k").await;

        assert!(held.is_valid());
        assert_eq!(result.is_err(), guards, "{result:?}");
        if guards {
            assert!(matches!(rival.nodes()[1].vote, NodeVote::TooYoung { remaining: Some(GUARD) }));
            // It has the whole of the first one's life to wait for, and gets the lock then.
            drop(result);
            let next = rival.lock("k").wait(GUARD + TTL).await.unwrap();
            assert!(!held.is_valid() && next.is_valid());
        }
    }
}

/// Law: closing ends a wait for young nodes at once.
#[tokio::test(start_paused = true)]
async fn closing_ends_the_wait_for_the_guard() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let acquiring = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("k").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert!(redlock.close(Duration::from_secs(1)).await);

    assert!(matches!(acquiring.await.unwrap(), Err(AcquireError::Closed)));
    assert!(cluster.nodes().iter().all(|node| node.keys().is_empty()));
}

/// Law: a client that meets a lock which its guard does not cover says so, once, whether it waits for the lock or looks at it;
/// one whose guard covers it says nothing.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_too_short_is_told() {
    let cluster = MemoryCluster::new(3);
    cluster.nodes().iter().for_each(|node| node.set_age(4 * GUARD));
    cluster.nodes().iter().for_each(|node| node.put("k", b"somebody's", Some(2 * TTL)));
    for (guard, waits, times) in [(TTL, true, 1), (TTL, false, 1), (2 * TTL, true, 0)] {
        let ear = Ear::default();
        let _listening = tracing::subscriber::set_default(ear.clone());
        let redlock = cluster.builder().restart_delay(guard).build().await.unwrap();
        for _ in 0..2 {
            if waits {
                redlock.lock("k").wait(Duration::from_millis(300)).await.unwrap_err();
            } else {
                redlock.inspect("k").await.unwrap();
            }
        }
        let told = ear.heard().matches("longer than the restart delay").count();
        assert_eq!(told, times, "guard {guard:?}, waits: {waits}: {}", ear.heard());
    }
}

/// Law: a client has a quorum while a majority of its nodes is connected and may vote, and not otherwise.
#[tokio::test(start_paused = true)]
async fn a_quorum_is_there_while_a_majority_may_vote() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    assert!(redlock.has_quorum());

    cluster.node(0).crash();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(redlock.has_quorum(), "two of three");

    cluster.node(1).crash();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!redlock.has_quorum(), "one of three");

    cluster.heal();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(redlock.has_quorum(), "three again");

    let too_young = cluster.builder().restart_delay(Duration::from_secs(3600)).build().await.unwrap();
    assert!(!too_young.has_quorum(), "connected, and none of them may vote");
}
