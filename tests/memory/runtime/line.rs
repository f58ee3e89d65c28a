//! Waiting in the queue on nodes in memory: every way in and every way out, on paused time.

use std::time::Duration;

use redquorum::testing::MemoryCluster;
use redquorum::{AcquireError, LockGuard, Redlock};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::support::{KEY, nothing_is_left};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn cluster_of(nodes: usize) -> MemoryCluster {
    let cluster = MemoryCluster::new(nodes);
    cluster.nodes().iter().for_each(|node| node.delay(ms(1)));
    cluster
}

fn waiting(cluster: &MemoryCluster) -> usize {
    cluster.nodes().iter().map(|node| node.waiting(KEY)).sum()
}

/// Waits in a task; the guard comes with the moment at which it was acquired.
fn waiter(redlock: &Redlock, limit: Duration) -> JoinHandle<Result<(LockGuard, Instant), AcquireError>> {
    let request = redlock.lock(KEY).wait(limit);
    tokio::spawn(async move { request.await.map(|guard| (guard, Instant::now())) })
}

/// Law: first come, first served, over clients; each hand-over takes a few round trips, not a retry pause; nobody is left
/// in line.
#[tokio::test(start_paused = true)]
async fn grants_follow_the_order_of_arrival() {
    let cluster = cluster_of(5).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.builder().build().await.unwrap());
    }
    let holder = clients[0].acquire(KEY).await.unwrap();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for place in 0..20 {
        let (request, order) = (clients[place % 4].lock(KEY), order.clone());
        waiters.push(tokio::spawn(async move {
            let guard = request.await.unwrap();
            order.lock().unwrap().push(place);
            tokio::time::sleep(ms(3)).await;
            guard.release().await.unwrap();
        }));
        tokio::time::sleep(ms(10)).await;
    }
    assert_eq!(waiting(&cluster), 20);

    let started = Instant::now();
    holder.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }

    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert!(started.elapsed() < 20 * ms(10), "{:?}", started.elapsed());
    nothing_is_left(&cluster, &clients[0], "twenty hand-overs").await;
    assert_eq!(waiting(&cluster), 0);
}

/// Law: a wait that ends leaves the line, says who held the lock, and the next in the queue is not kept waiting by it.
#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_leaves_the_line() {
    let cluster = cluster_of(3).await;
    let redlock = cluster.builder().build().await.unwrap();
    let holder = redlock.acquire(KEY).await.unwrap();
    let patient = waiter(&redlock, ms(9_000));
    let other = cluster.builder().build().await.unwrap();
    let short = waiter(&other, ms(700));

    let started = Instant::now();
    let error = short.await.unwrap().unwrap_err();

    assert!(started.elapsed() < ms(800), "{:?}", started.elapsed());
    assert!(matches!(error, AcquireError::TimedOut { .. }) && error.is_contention(), "{error}");
    assert_eq!(error.holder().map(|holder| holder.chars().count()), Some(17), "{error}");
    tokio::time::sleep(ms(5)).await;
    assert_eq!(waiting(&cluster), 1);
    holder.release().await.unwrap();
    let (guard, _) = patient.await.unwrap().unwrap();
    guard.release().await.unwrap();
    nothing_is_left(&cluster, &redlock, "a wait that ended").await;
}

/// Law: dropped at any moment around a hand-over, a waiter passes the lock on: the next one has it within round trips.
#[tokio::test(start_paused = true)]
async fn dropped_around_the_hand_over_passes_it_on() {
    for micros in (0..8_000).step_by(250) {
        let cluster = cluster_of(5).await;
        let redlock = cluster.builder().build().await.unwrap();
        let other = cluster.builder().build().await.unwrap();
        let holder = redlock.acquire(KEY).await.unwrap();
        let dropped = waiter(&other, ms(9_000));
        tokio::time::sleep(ms(20)).await;
        let next = waiter(&redlock, ms(9_000));
        tokio::time::sleep(ms(20)).await;

        let released = Instant::now();
        drop(holder);
        tokio::time::sleep(Duration::from_micros(micros)).await;
        dropped.abort();
        drop(dropped.await);

        let (guard, granted) = next.await.unwrap().unwrap();
        let took = granted - released;
        assert!(took < ms(60), "dropped after {micros} µs: {took:?}");
        drop(guard);
        nothing_is_left(&cluster, &redlock, &format!("dropped after {micros} µs")).await;
        assert_eq!(waiting(&cluster), 0, "dropped after {micros} µs");
    }
}

/// Law: closing a client ends its waits and takes them out of the line.
#[tokio::test(start_paused = true)]
async fn closing_leaves_the_line() {
    let cluster = cluster_of(3).await;
    let redlock = cluster.builder().build().await.unwrap();
    let other = cluster.builder().build().await.unwrap();
    let holder = redlock.acquire(KEY).await.unwrap();
    let waiters: Vec<_> = (0..5).map(|_| waiter(&other, ms(9_000))).collect();
    tokio::time::sleep(ms(50)).await;
    assert_eq!(waiting(&cluster), 5);

    other.close(ms(1_000)).await;

    for waiter in waiters {
        assert!(matches!(waiter.await.unwrap(), Err(AcquireError::Closed)));
    }
    assert_eq!(waiting(&cluster), 0);
    holder.release().await.unwrap();
}

/// Law: with the line's node dead, and with it back, whoever waits gets the lock within about a second of its release.
#[tokio::test(start_paused = true)]
async fn a_dead_line_node_costs_a_second_at_most() {
    for dead in 0..5 {
        let cluster = cluster_of(5).await;
        let redlock = cluster.builder().build().await.unwrap();
        let other = cluster.builder().build().await.unwrap();
        let holder = redlock.acquire(KEY).await.unwrap();
        let waiters = [&other, &redlock].map(|client| {
            let waiting = waiter(client, ms(30_000));
            tokio::spawn(async move { waiting.await.unwrap().unwrap().1 })
        });
        tokio::time::sleep(ms(100)).await;
        cluster.node(dead).crash();
        cluster.node(dead).wipe();
        tokio::time::sleep(ms(50)).await;

        let released = Instant::now();
        drop(holder);
        for waiter in waiters {
            let granted = waiter.await.unwrap();
            assert!(granted - released < ms(1_500), "node {dead}: {:?}", granted - released);
        }
        nothing_is_left(&cluster, &redlock, &format!("node {dead} dead")).await;
    }
}

/// Law: where wake-ups are forbidden, waiters look by themselves, and still get the lock in turn.
#[tokio::test(start_paused = true)]
async fn forbidden_wake_ups_are_made_up_for_by_looking() {
    let cluster = cluster_of(3).await;
    cluster.nodes().iter().for_each(|node| node.forbid_wake_ups());
    let redlock = cluster.builder().build().await.unwrap();
    let holder = redlock.acquire(KEY).await.unwrap();
    let first = waiter(&redlock, ms(9_000));
    tokio::time::sleep(ms(20)).await;
    let second = waiter(&redlock, ms(9_000));
    tokio::time::sleep(ms(300)).await;

    let released = Instant::now();
    drop(holder);
    let (guard, granted) = first.await.unwrap().unwrap();
    assert!(granted - released < ms(100), "{:?}", granted - released);
    let released = Instant::now();
    drop(guard);
    let (_, granted) = second.await.unwrap().unwrap();
    assert!(granted - released < ms(200), "{:?}", granted - released);
}

/// Law: a lost wake-up costs a look, not the lock: the waiter has it within a second.
#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_a_second_at_most() {
    let cluster = cluster_of(3).await;
    let redlock = cluster.builder().build().await.unwrap();
    let other = cluster.builder().build().await.unwrap();
    let holder = redlock.acquire(KEY).await.unwrap();
    let waiting = waiter(&other, ms(9_000));
    tokio::time::sleep(ms(50)).await;

    let released = Instant::now();
    // The release is executed everywhere, its answers and its wake-up are lost.
    cluster.nodes().iter().for_each(|node| node.lose_replies());
    drop(holder);
    tokio::time::sleep(ms(5)).await;
    cluster.nodes().iter().for_each(|node| node.heal());

    let (_, granted) = waiting.await.unwrap().unwrap();
    assert!(granted - released < ms(1_100), "{:?}", granted - released);
}

/// Law: a waiter that is not polled keeps its place and its vote for some hundred milliseconds, not the lock from the
/// others of its client. The same if it is never polled again.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_does_not_stall_its_client() {
    for (stalled, limit) in [(1, ms(2_000)), (2, ms(3_000))] {
        for released_after in (0..3_000).step_by(60) {
            let cluster = cluster_of(3).await;
            let redlock = cluster.builder().build().await.unwrap();
            let other = cluster.builder().build().await.unwrap();
            let holder = other.acquire(KEY).await.unwrap();
            let mut unpolled = Vec::new();
            for _ in 0..stalled {
                let request = redlock.lock(KEY).wait(ms(60_000));
                let mut waits = Box::pin(async move { request.await });
                assert!(tokio::time::timeout(ms(50), &mut waits).await.is_err());
                unpolled.push(waits);
            }
            let waiting = waiter(&redlock, ms(60_000));
            tokio::time::sleep(ms(50 + released_after)).await;

            let released = Instant::now();
            holder.release().await.unwrap();

            let (guard, granted) = waiting.await.unwrap().unwrap();
            let took = granted - released;
            assert!(took < limit, "{stalled} not polled, released after {released_after} ms: {took:?}");
            guard.release().await.unwrap();
            drop(unpolled);
            nothing_is_left(&cluster, &redlock, "waiters that were not polled").await;
            assert_eq!(self::waiting(&cluster), 0);
        }
    }
}

/// Law: a future that is kept and polled again keeps its place. One that is dropped and made again goes to the end.
#[tokio::test(start_paused = true)]
async fn a_future_that_is_kept_keeps_its_place() {
    for kept in [true, false] {
        let cluster = cluster_of(3).await;
        let redlock = cluster.builder().build().await.unwrap();
        let other = cluster.builder().build().await.unwrap();
        let holder = other.acquire(KEY).await.unwrap();
        let acquire = || Box::pin(redlock.acquire(KEY));
        let mut first = acquire();
        assert!(tokio::time::timeout(ms(20), &mut first).await.is_err());
        let mut second = waiter(&other, ms(9_000));
        tokio::time::sleep(ms(20)).await;
        for _ in 0..3 {
            if !kept {
                first = acquire();
            }
            assert!(tokio::time::timeout(ms(20), &mut first).await.is_err());
        }

        holder.release().await.unwrap();

        let guard = tokio::select! {
            guard = &mut first => (true, guard.unwrap()),
            guard = &mut second => (false, guard.unwrap().unwrap().0),
        };
        assert_eq!(guard.0, kept);
    }
}

/// Law: a client of another kind is waited for by looking at a sane pace, and by its TTL.
#[tokio::test(start_paused = true)]
async fn a_foreign_holder_is_waited_for() {
    let cluster = cluster_of(3).await;
    let redlock = cluster.builder().build().await.unwrap();
    cluster.nodes().iter().for_each(|node| node.put(KEY, b"foreign", Some(ms(3_000))));
    let waiting = waiter(&redlock, ms(9_000));
    let started = Instant::now();
    tokio::time::sleep(ms(1_000)).await;
    let before: u64 = cluster.nodes().iter().map(|node| node.executed()).sum();
    tokio::time::sleep(ms(1_000)).await;
    let looks = cluster.nodes().iter().map(|node| node.executed()).sum::<u64>() - before;
    assert!((5..=15).contains(&looks), "{looks} looks in a second");

    let (guard, granted) = waiting.await.unwrap().unwrap();
    assert!(granted - started < ms(3_200), "{:?}", granted - started);
    drop(guard);

    tokio::time::sleep(ms(20)).await;
    cluster.nodes().iter().for_each(|node| node.put(KEY, b"foreign", None));
    let waiting = waiter(&redlock, ms(9_000));
    tokio::time::sleep(ms(500)).await;
    let deleted = Instant::now();
    cluster.nodes().iter().for_each(|node| assert!(node.forget(KEY)));
    let (_, granted) = waiting.await.unwrap().unwrap();
    assert!(granted - deleted < ms(150), "{:?}", granted - deleted);
}

/// Law: idle waiters of one client look once a second together, however many they are.
#[tokio::test(start_paused = true)]
async fn idle_waiters_share_one_look_a_second() {
    let cluster = cluster_of(3).await;
    let redlock = cluster.builder().build().await.unwrap();
    let other = cluster.builder().build().await.unwrap();
    let _holder = redlock.acquire(KEY).await.unwrap();
    let waiters: Vec<_> = (0..500).map(|_| waiter(&other, ms(60_000))).collect();
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(waiting(&cluster), 500);

    let before: u64 = cluster.nodes().iter().map(|node| node.executed()).sum();
    tokio::time::sleep(ms(5_000)).await;
    let looks = cluster.nodes().iter().map(|node| node.executed()).sum::<u64>() - before;

    assert!((4..=7).contains(&looks), "{looks} looks in five seconds");
    assert!(other.inspect(KEY).await.unwrap().waiting() == 500);
    drop(waiters);
}
