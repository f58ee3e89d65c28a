//! Kept locks: held across TTLs, lost in time, and sent nothing for once they are over.

use std::time::Duration;

use redquorum::testing::{MemoryCluster, MemoryNode};
use redquorum::{AcquireError, ExtendError, InvalidRequest, LockGuard, Lost, Redlock, ReleaseError};
use tokio::time::{Instant, sleep};

use super::support::{KEY, TTL, WEATHERS, Weather, cancelled_after, client, heal, holders, nothing_is_left};

const TICK: Duration = Duration::from_millis(1);

/// By then every debt of a lock of the default TTL has ended, those included that arise when a connection is given up.
const SETTLED: Duration = Duration::from_secs(15);

async fn kept(redlock: &Redlock) -> LockGuard {
    redlock.lock(KEY).keep_alive().await.unwrap()
}

/// Law: an extension that is asked for by hand is told of its own outcome, not of the renewal task's which was under way: whenever it
/// is asked for, a guard that is told "extended" has the validity it asked for.
#[tokio::test(start_paused = true)]
async fn extended_by_hand_means_by_so_much() {
    for millis in 100..400 {
        let cluster = MemoryCluster::new(3);
        let redlock = cluster.builder().ttl(TTL).max_ttl(20 * TTL).build().await.unwrap();
        let mut guard = kept(&redlock).await;
        cluster.nodes().iter().for_each(|node| node.delay(Duration::from_millis(10)));
        sleep(Duration::from_millis(millis)).await;

        guard.extend(20 * TTL).await.unwrap();

        assert!(guard.remaining() > 10 * TTL, "asked after {millis} ms: {:?}", guard.remaining());
        guard.release().await.unwrap();
    }
}

fn executed(cluster: &MemoryCluster) -> Vec<u64> {
    cluster.nodes().iter().map(MemoryNode::executed).collect()
}

/// Law: for three TTLs, nothing is sent to any node.
async fn nothing_is_sent(cluster: &MemoryCluster, what: &str) {
    // What was handed to the nodes before is executed first.
    sleep(TICK).await;
    let before = executed(cluster);
    sleep(3 * TTL).await;
    assert_eq!(executed(cluster), before, "{what}");
}

/// Law: a kept lock is held across any number of TTLs, on a quorum at every moment; a plain one is not.
#[tokio::test(start_paused = true)]
async fn held_across_many_ttls() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let guard = kept(&redlock).await;
    let plain = redlock.lock("plain").await.unwrap();

    for _ in 0..300 {
        sleep(TTL / 10).await;
        assert!(guard.is_valid() && holders(&cluster) >= 2);
        assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining());
        assert!(guard.remaining() <= cluster.node(0).remaining(KEY).unwrap());
    }

    assert!(!plain.is_valid());
    assert!(guard.report().granted() >= 2, "{}", guard.report());
    guard.release().await.unwrap();
    nothing_is_left(&cluster, &redlock, "released").await;
    nothing_is_sent(&cluster, "released").await;
}

/// Law: what fails is tried again within the validity; an outage of half a TTL is survived.
#[tokio::test(start_paused = true)]
async fn an_outage_within_the_validity_is_survived() {
    for fault in [MemoryNode::hang, MemoryNode::lose_replies, MemoryNode::crash] {
        let cluster = MemoryCluster::new(5);
        let redlock = client(&cluster).await;
        let guard = kept(&redlock).await;
        for outage in 0..20 {
            sleep(TTL + outage * TTL / 37).await;
            cluster.nodes()[..4].iter().for_each(fault);
            sleep(TTL / 2).await;
            heal(&cluster);
        }
        sleep(TTL).await;
        assert!(guard.is_valid());
    }
}

/// Law (rule 8): with all nodes hung, the loss is told no later than the end of the validity that was confirmed last, and at
/// most 5 ms early.
#[tokio::test(start_paused = true)]
async fn told_at_the_end_of_the_last_confirmed_validity() {
    for moment in (0..1_000).step_by(37) {
        let cluster = MemoryCluster::new(3);
        let redlock = client(&cluster).await;
        let guard = kept(&redlock).await;
        let lost = tokio::spawn(guard.lost());
        sleep(TTL + Duration::from_millis(moment)).await;
        cluster.nodes().iter().for_each(MemoryNode::hang);
        let (hung, remaining) = (Instant::now(), guard.remaining());

        assert_eq!(lost.await.unwrap(), Lost::Expired);

        let told = hung.elapsed();
        assert!(
            told <= remaining && told + Duration::from_millis(5) >= remaining,
            "{told:?} of {remaining:?}, hung at {moment} ms"
        );
        sleep(5 * TICK).await;
        assert!(!guard.is_valid());
        drop(guard);
        nothing_is_left(&cluster, &redlock, "after the loss").await;
    }
}

/// Law: a majority that answers "not yours" is a loss at the next extension, with its reason; another's key is not touched,
/// and the rest of one's own is taken back.
#[tokio::test(start_paused = true)]
async fn a_majority_that_denies_is_a_loss_at_once() {
    for (rival, reason) in [(false, Lost::Forgotten), (true, Lost::TakenOver)] {
        let cluster = MemoryCluster::new(3);
        let redlock = client(&cluster).await;
        let guard = kept(&redlock).await;
        sleep(2 * TTL).await;
        let changed = Instant::now();
        for node in &cluster.nodes()[..2] {
            node.forget(KEY);
            if rival {
                node.put(KEY, b"rival", None);
            }
        }

        assert_eq!(guard.lost().await, reason);

        assert!(changed.elapsed() <= TTL / 3 + TICK, "{:?}", changed.elapsed());
        assert!(!guard.is_valid());
        sleep(TICK).await;
        assert_eq!(cluster.node(2).holder(KEY), None);
        assert_eq!(cluster.node(0).holder(KEY).is_some(), rival);
        nothing_is_sent(&cluster, "lost").await;
        // Which of the two is told depends on whose answers decide.
        let released = guard.release().await;
        assert!(matches!(released, Err(ReleaseError::TakenOver { .. } | ReleaseError::Expired { .. })));
    }
}

/// Law: denials that come after the verdict are a loss as well, without waiting for the next extension.
#[tokio::test(start_paused = true)]
async fn late_denials_are_a_loss_too() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let mut guard = redlock.acquire(KEY).await.unwrap();
    cluster.node(0).crash();
    cluster.node(2).delay(Duration::from_millis(5));
    sleep(TICK).await;
    cluster.node(1).forget(KEY);
    cluster.node(2).forget(KEY);

    let first = guard.extend(TTL).await.unwrap_err();
    assert!(matches!(first, ExtendError::Unconfirmed { .. }), "{first}");
    sleep(Duration::from_millis(6)).await;

    let second = guard.extend(TTL).await.unwrap_err();
    assert!(matches!(second, ExtendError::Lost { .. }), "{second}");
}

/// Law: a kept lock heals: nodes that lost it, or that another held at first, carry it after one extension.
#[tokio::test(start_paused = true)]
async fn missing_nodes_are_healed_by_keeping() {
    let cluster = MemoryCluster::new(5);
    let redlock = client(&cluster).await;
    cluster.nodes()[3..].iter().for_each(|node| node.put(KEY, b"rival", None));
    let guard = kept(&redlock).await;
    cluster.nodes()[3..].iter().for_each(|node| assert!(node.forget(KEY)));

    sleep(TTL / 3 + TICK).await;
    assert_eq!(holders(&cluster), 5);

    cluster.node(2).wipe();
    sleep(TTL / 3 + TICK).await;
    assert_eq!(holders(&cluster), 5);
    assert!(guard.is_valid());
}

/// Law: after a loss, the same client can have and keep the same lock again.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_kept_again() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let lost = kept(&redlock).await;
    cluster.nodes().iter().for_each(MemoryNode::crash);
    assert_eq!(lost.lost().await, Lost::Expired);
    heal(&cluster);

    let guard = redlock.lock(KEY).keep_alive().await.unwrap();
    for _ in 0..50 {
        sleep(TTL / 10).await;
        assert!(guard.is_valid() && holders(&cluster) >= 2);
    }
    assert!(!lost.is_valid(), "the old guard does not come back to life");
    drop(lost);
    sleep(TTL).await;
    assert!(guard.is_valid() && holders(&cluster) == 3, "nor does its end touch the new one");
}

/// Law: a holder who was told of the loss, a little early, does not get the lock back from an extension in the last moment, and
/// others get it.
#[tokio::test(start_paused = true)]
async fn what_was_told_lost_stays_lost() {
    // Each time the renewal task tries at other moments, and now and then within the last four milliseconds.
    for _ in 0..60 {
        let cluster = MemoryCluster::new(3);
        let redlock = client(&cluster).await;
        let (kept, mut own) = (kept(&redlock).await, redlock.lock("own").await.unwrap());
        cluster.nodes().iter().for_each(MemoryNode::crash);
        assert_eq!(tokio::join!(kept.lost(), own.lost()), (Lost::Expired, Lost::Expired));
        heal(&cluster);

        assert!(matches!(own.extend(TTL).await, Err(ExtendError::Expired { .. })));
        for _ in 0..20 {
            sleep(TTL / 10).await;
            assert!(!kept.is_valid() && !own.is_valid());
        }
        drop(redlock.try_acquire(KEY).await.expect("what nobody holds is free"));
        drop(redlock.try_acquire("own").await.expect("what nobody extended is free"));
    }
}

/// Law: a stuck holder loses its lock at the maximum hold: told by then, and free for others at once.
#[tokio::test(start_paused = true)]
async fn maximum_hold_ends_a_kept_lock() {
    for on_builder in [false, true] {
        let cluster = MemoryCluster::new(3);
        let builder = cluster.builder().ttl(TTL);
        let builder = if on_builder { builder.max_hold(3 * TTL).keep_alive() } else { builder };
        let redlock = builder.build().await.unwrap();
        let started = Instant::now();
        let request = redlock.lock(KEY);
        let guard = if on_builder { request.await } else { request.max_hold(3 * TTL).await }.unwrap();

        assert_eq!(guard.lost().await, Lost::MaxHoldReached);

        let told = started.elapsed();
        assert!(told <= 3 * TTL && told + Duration::from_millis(5) >= 3 * TTL, "{told:?}");
        sleep(Duration::from_millis(5)).await;
        assert!(!guard.is_valid());
        assert_eq!(holders(&cluster), 0, "not left to the TTL");
        nothing_is_sent(&cluster, "held out").await;
    }
}

/// Law: the client's maximum hold is for every lock that is kept in the end, whatever the request said before.
#[tokio::test(start_paused = true)]
async fn maximum_hold_of_the_client_outlasts_second_thoughts() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(TTL).keep_alive().max_hold(3 * TTL).build().await.unwrap();

    let guard = redlock.lock(KEY).without_keep_alive().await.unwrap();
    assert_eq!(guard.lost().await, Lost::Expired);
    drop(guard);
    let guard = redlock.lock(KEY).without_keep_alive().keep_alive().await.unwrap();
    let lost = tokio::time::timeout(4 * TTL, guard.lost()).await;
    assert_eq!(lost, Ok(Lost::MaxHoldReached));
}

/// Law: settings with which keeping cannot work are refused before anything is sent.
#[tokio::test(start_paused = true)]
async fn settings_that_cannot_keep_are_refused() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(TTL).reply_timeout(TTL / 2).build().await.unwrap();
    let before = executed(&cluster);

    let error = redlock.lock(KEY).keep_alive().await.unwrap_err();
    let AcquireError::Invalid(InvalidRequest::NoRoomToExtend { reply_timeout, ttl, most }) = error else {
        panic!("{error}");
    };
    assert!(reply_timeout == TTL / 2 && ttl == TTL && most < TTL / 2, "{most:?}");
    let error = redlock.lock(KEY).max_hold(TTL / 10).await.unwrap_err();
    assert!(matches!(error, AcquireError::Invalid(InvalidRequest::MaxHoldTooShort { .. })), "{error}");

    assert_eq!(executed(&cluster), before);
    redlock.lock(KEY).await.expect("not kept, it works").release().await.unwrap();
    let refused = cluster.builder().ttl(TTL).reply_timeout(TTL / 2).keep_alive().build().await;
    assert!(refused.is_err(), "a client that keeps all its locks is refused as a whole");
}

/// Law: nothing is sent for a lock whose guard was dropped, at any moment of its extension and whatever the nodes do.
#[tokio::test(start_paused = true)]
async fn dropped_at_any_moment_nothing_follows() {
    for millis in (0..700).step_by(7) {
        for fault in [None, Some(0), Some(2)] {
            let cluster = MemoryCluster::new(3);
            let redlock = client(&cluster).await;
            cluster.nodes().iter().for_each(|node| node.delay(Duration::from_millis(4)));
            let guard = kept(&redlock).await;
            sleep(Duration::from_millis(millis)).await;
            if let Some(node) = fault {
                cluster.node(node).hang();
            }

            drop(guard);

            let what = format!("{fault:?} after {millis} ms");
            sleep(Duration::from_millis(20)).await;
            let sound = |i: &usize| Some(*i) != fault;
            let left = (0..3).filter(sound).filter(|i| cluster.node(*i).holder(KEY).is_some()).count();
            assert_eq!(left, 0, "{what}");
            nothing_is_left(&cluster, &redlock, &what).await;
            nothing_is_sent(&cluster, &what).await;
        }
    }
}

/// Law: a thousand guards whose keys are gone leave neither work nor traffic behind when they are released or dropped.
#[tokio::test(start_paused = true)]
async fn a_thousand_lost_guards_leave_nothing() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let baseline = tasks();
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(redlock.lock(format!("k{i}")).keep_alive().await.unwrap());
    }
    assert_eq!(tasks(), baseline, "no task of its own for a kept lock");
    cluster.nodes().iter().for_each(MemoryNode::wipe);
    for (i, guard) in guards.into_iter().enumerate() {
        if i % 2 == 0 {
            assert!(guard.release().await.is_err());
        }
    }
    sleep(TTL).await;

    nothing_is_sent(&cluster, "all gone").await;
    assert_eq!(redlock.pending_cleanups(), 0);
    assert_eq!(tasks(), baseline);
    assert!(redlock.close(TTL).await, "nothing is waited for");
}

/// Law: an acquire of a kept lock that is dropped at any await is kept by nobody.
#[tokio::test(start_paused = true)]
async fn acquire_cancelled_at_every_await_is_not_kept() {
    for weather in WEATHERS {
        for polls in 0..20 {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            weather.set(&cluster);

            let guard = cancelled_after(polls, redlock.lock(KEY).keep_alive().into_future()).await;
            drop(guard);

            let what = format!("{weather:?} after {polls} polls");
            nothing_is_left(&cluster, &redlock, &what).await;
            sleep(SETTLED).await;
            nothing_is_sent(&cluster, &what).await;
        }
    }
}

/// Law: a release of a kept lock that is dropped at any await has released, and nothing extends it any more.
#[tokio::test(start_paused = true)]
async fn release_cancelled_at_every_await_releases() {
    for weather in WEATHERS.into_iter().filter(|weather| *weather != Weather::Contended) {
        for polls in 0..20 {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            let guard = redlock.lock(KEY).keep_alive().await.unwrap();
            sleep(4 * TTL).await;
            weather.set(&cluster);
            let lost = guard.lost();

            let released = cancelled_after(polls, guard.release()).await;

            assert_eq!(lost.await, Lost::Released);
            let what = format!("{weather:?} after {polls} polls");
            nothing_is_left(&cluster, &redlock, &what).await;
            sleep(SETTLED).await;
            nothing_is_sent(&cluster, &what).await;
            if released.is_some() {
                break;
            }
        }
    }
}

/// Law: an extension by hand that is dropped at any await leaves the lock held and kept.
#[tokio::test(start_paused = true)]
async fn extend_cancelled_at_every_await_keeps_keeping() {
    for polls in 0..6 {
        let cluster = MemoryCluster::new(5);
        let redlock = cluster.builder().ttl(TTL).max_ttl(10 * TTL).build().await.unwrap();
        let mut guard = kept(&redlock).await;

        let extended = cancelled_after(polls, guard.extend(10 * TTL)).await;

        if let Some(extended) = extended {
            extended.unwrap();
            assert!(guard.remaining() > 9 * TTL, "{:?}", guard.remaining());
        }
        sleep(20 * TTL).await;
        assert!(guard.is_valid() && holders(&cluster) >= 3, "after {polls} polls");
    }
}

/// Law: when the client closes, kept locks are kept until its deadline, then told, then released before the connections go.
#[tokio::test(start_paused = true)]
async fn closing_keeps_tells_and_releases() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let mut guard = kept(&redlock).await;
    let lost = tokio::spawn(guard.lost());
    let closing = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.close(5 * TTL).await }
    });

    sleep(5 * TTL - TICK).await;
    assert!(guard.is_valid() && !lost.is_finished());
    assert!(!closing.await.unwrap(), "it was held to the end");

    assert_eq!(lost.await.unwrap(), Lost::Closed);
    assert!(!guard.is_valid());
    sleep(TICK).await;
    assert_eq!(holders(&cluster), 0);
    // It is over, and says so: trying again would be in vain.
    let refused = guard.extend(TTL).await.unwrap_err();
    assert!(matches!(refused, ExtendError::Expired { .. }), "{refused}");
    assert!(guard.release().await.is_err());
    nothing_is_sent(&cluster, "closed").await;
}

/// Law: a kept lock that is released while the client closes lets it close at once, with nothing open.
#[tokio::test(start_paused = true)]
async fn closing_waits_for_kept_locks_no_longer_than_needed() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let guard = kept(&redlock).await;
    let closing = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.close(10 * TTL).await }
    });
    sleep(2 * TTL).await;
    let released = Instant::now();

    drop(guard);

    assert!(closing.await.unwrap());
    assert!(released.elapsed() < TTL, "{:?}", released.elapsed());
}

/// Law: a client whose last kept guard is dropped ends, and so do its tasks.
#[tokio::test(start_paused = true)]
async fn the_last_guard_ends_the_client() {
    let cluster = MemoryCluster::new(3);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let redlock = client(&cluster).await;
    let guard = kept(&redlock).await;
    drop(redlock);
    sleep(3 * TTL).await;
    assert!(guard.is_valid() && holders(&cluster) == 3);

    drop(guard);

    sleep(TTL).await;
    assert_eq!(holders(&cluster), 0);
    assert_eq!(tasks(), before);
}

/// Law: a kept lock is handed to the first in the queue when its guard lets go of it, kept or not by its next holder, and is
/// extended for as long as others wait.
#[tokio::test(start_paused = true)]
async fn a_kept_lock_is_handed_over() {
    for released in [false, true] {
        let cluster = MemoryCluster::new(5);
        let (here, there) = (client(&cluster).await, client(&cluster).await);
        let guard = kept(&here).await;
        let waiting = tokio::spawn(async move {
            let guard = there.lock(KEY).keep_alive().await.unwrap();
            (Instant::now(), guard)
        });
        sleep(5 * TTL).await;
        assert!(guard.is_valid() && !waiting.is_finished());
        assert_eq!(cluster.nodes().iter().map(|node| node.waiting(KEY)).sum::<usize>(), 1);

        let let_go = Instant::now();
        if released {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }

        let (had, next) = waiting.await.unwrap();
        assert!(had.duration_since(let_go) < Duration::from_millis(20), "{:?}", had.duration_since(let_go));
        sleep(5 * TTL).await;
        assert!(next.is_valid() && holders(&cluster) >= 3);
    }
}

/// Law: ten thousand kept locks cost a node a request for ten of them at most, also when all were taken at one moment, and
/// none is lost.
#[tokio::test(start_paused = true)]
async fn ten_thousand_kept_locks_share_their_requests() {
    const LOCKS: u64 = 10_000;
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let mut guards = Vec::new();
    for i in 0..LOCKS {
        guards.push(redlock.lock(format!("k{i}")).keep_alive().await.unwrap());
    }
    let ttl = Duration::from_secs(10);
    for _ in 0..3 {
        let before = executed(&cluster);
        sleep(ttl).await;
        for (before, after) in before.into_iter().zip(executed(&cluster)) {
            // Each is extended three times in a TTL, at least.
            let requests = (after - before) as f64 / (3 * LOCKS) as f64;
            assert!(requests > 0.0 && requests <= 0.1, "{requests} requests for each extension");
        }
        assert!(guards.iter().all(LockGuard::is_valid));
    }
}
