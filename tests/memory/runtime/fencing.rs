//! Fenced locks: the second round that a token may take, and the token through all that befalls a lock.

use std::future::IntoFuture;
use std::time::Duration;

use redquorum::testing::MemoryCluster;
use redquorum::{FencingToken, Lost, Redlock};
use tokio::time::sleep;

use super::support::{KEY, WEATHERS, Weather, cancelled_after, heal, nothing_is_left};

const MOST_POLLS: usize = 40;

/// So far behind that only counters make tokens rise.
const BEHIND: i64 = -i64::MAX;

async fn client(cluster: &MemoryCluster) -> Redlock {
    cluster.builder().wall_clock_off(BEHIND).build().await.unwrap()
}

/// A client whose next fenced acquire needs a raise: two of five nodes stand at a greater number than the others.
async fn at_odds(cluster: &MemoryCluster) -> (Redlock, FencingToken) {
    let redlock = client(cluster).await;
    let mut last = None;
    for away in [0..0, 2..4] {
        cluster.nodes()[away].iter().for_each(|node| node.crash());
        sleep(Duration::from_millis(10)).await;
        let guard = redlock.lock(KEY).fenced().await.unwrap();
        last = guard.fencing_token();
        guard.release().await.unwrap();
        heal(cluster);
        sleep(Duration::from_secs(2)).await;
    }
    (redlock, last.unwrap())
}

fn counters(cluster: &MemoryCluster) -> Vec<u64> {
    cluster.nodes().iter().map(|node| node.fencing_counter(KEY).unwrap_or(0)).collect()
}

/// Law: a fenced acquire that is dropped at any await, those of its second round included, leaves nothing behind but counters,
/// and whoever comes next has a greater token than the last holder.
#[tokio::test(start_paused = true)]
async fn cancelled_at_every_await_leaves_nothing() {
    for weather in WEATHERS {
        let (mut finished, mut raised) = (false, false);
        for polls in 0..MOST_POLLS {
            let cluster = MemoryCluster::new(5);
            let (redlock, last) = at_odds(&cluster).await;
            assert!(
                counters(&cluster).iter().any(|counter| *counter < last.as_u64()),
                "nothing to be raised"
            );
            weather.set(&cluster);
            let before = cluster.node(4).executed();

            let guard = cancelled_after(polls, redlock.lock(KEY).fenced().into_future()).await;
            if let Some(guard) = guard {
                finished = true;
                raised |= cluster.node(4).executed() > before + 1;
                let token = guard.unwrap().fencing_token().unwrap();
                assert!(token > last, "{weather:?}: {token} after {last}");
                let standing = counters(&cluster).into_iter().filter(|counter| *counter >= token.as_u64());
                assert!(standing.count() >= 3, "{weather:?}");
            }

            nothing_is_left(&cluster, &redlock, &format!("{weather:?} after {polls} polls")).await;
            let next = redlock.lock(KEY).fenced().await.unwrap().fencing_token();
            assert!(next > Some(last), "{weather:?} after {polls} polls: {next:?} after {last}");
        }
        let waits_for_ever = matches!(weather, Weather::Contended | Weather::ThreeLoseReplies);
        assert!(finished || waits_for_ever, "{weather:?}: the scenario never came to its end");
        assert!(raised || waits_for_ever || weather == Weather::Slow, "{weather:?}: never raised");
    }
}

/// Law: tokens rise through the line, and the one that is woken gets its own.
#[tokio::test(start_paused = true)]
async fn those_in_line_get_rising_tokens() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let mut holder = redlock.lock(KEY).fenced().await.unwrap();
    for _ in 0..10 {
        let before = holder.fencing_token().unwrap();
        let waits = tokio::spawn(redlock.lock(KEY).fenced().into_future());
        sleep(Duration::from_millis(50)).await;
        assert_eq!(cluster.nodes().iter().map(|node| node.waiting(KEY)).sum::<usize>(), 1);
        holder.release().await.unwrap();
        holder = waits.await.unwrap().unwrap();
        assert!(holder.fencing_token() > Some(before));
    }
}

/// Law: a kept lock has one token however long it is held, and its counters are kept on a quorum; a node that lost its memory
/// gets the counter with the key.
#[tokio::test(start_paused = true)]
async fn kept_locks_carry_their_token() {
    let cluster = MemoryCluster::new(3);
    let ttl = Duration::from_secs(1);
    let redlock = cluster.builder().ttl(ttl).fencing_retention(2 * ttl).build().await.unwrap();
    let guard = redlock.lock(KEY).fenced().keep_alive().await.unwrap();
    let token = guard.fencing_token().unwrap();
    for node in cluster.nodes() {
        node.wipe();
        sleep(5 * ttl).await;
        assert!(guard.is_valid() && guard.fencing_token() == Some(token));
        assert_eq!(counters(&cluster), [token.as_u64(); 3]);
    }
    let lost = guard.lost();
    guard.release().await.unwrap();
    assert_eq!(lost.await, Lost::Released);
}

/// Law: work under a lock is told its token.
#[tokio::test(start_paused = true)]
async fn work_is_told_its_token() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let first = redlock.lock(KEY).fenced().with(async |guard| guard.fencing_token()).await.unwrap();
    let second = redlock.lock(KEY).fenced().with(async |guard| guard.fencing_token()).await.unwrap();
    assert!(first.is_some() && second > first);
    assert_eq!(redlock.with_lock(KEY, async |guard| guard.fencing_token()).await.unwrap(), None);
}
