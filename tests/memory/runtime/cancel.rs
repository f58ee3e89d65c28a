//! Every await of every verb, cancelled in turn, in every weather.

use std::time::Duration;

use redquorum::testing::MemoryCluster;

use super::support::{KEY, WEATHERS, Weather, cancelled_after, nothing_is_left};

/// More polls than any verb needs in these scenarios; a wait that goes on is cut there.
const MOST_POLLS: usize = 40;

/// Law: an acquire that is dropped at any await leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn acquire_cancelled_at_every_await_leaves_nothing() {
    for weather in WEATHERS {
        let mut finished = false;
        for polls in 0..MOST_POLLS {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            weather.set(&cluster);

            let guard = cancelled_after(polls, redlock.acquire(KEY)).await;
            finished |= guard.is_some();
            drop(guard);

            nothing_is_left(&cluster, &redlock, &format!("{weather:?} after {polls} polls")).await;
        }
        let waits_for_ever = matches!(weather, Weather::Contended | Weather::ThreeLoseReplies);
        assert!(finished || waits_for_ever, "{weather:?}: the scenario never came to its end");
    }
}

/// Law: a release that is dropped at any await has released all the same.
#[tokio::test(start_paused = true)]
async fn release_cancelled_at_every_await_releases() {
    for weather in WEATHERS.into_iter().filter(|weather| *weather != Weather::Contended) {
        for polls in 0..MOST_POLLS {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            let guard = redlock.acquire(KEY).await.unwrap();
            weather.set(&cluster);

            let released = cancelled_after(polls, guard.release()).await;

            nothing_is_left(&cluster, &redlock, &format!("{weather:?} after {polls} polls")).await;
            if released.is_some() {
                break;
            }
        }
    }
}

/// Law: an extension that is dropped at any await leaves the lock held, extendable and releasable.
#[tokio::test(start_paused = true)]
async fn extend_cancelled_at_every_await_keeps_the_lock() {
    for weather in WEATHERS.into_iter().filter(|weather| *weather != Weather::Contended) {
        for polls in 0..MOST_POLLS {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            let mut guard = redlock.acquire(KEY).await.unwrap();
            let before = guard.remaining();
            weather.set(&cluster);

            let extended = cancelled_after(polls, guard.extend(Duration::from_secs(10))).await;

            assert!(guard.is_valid() && guard.remaining() <= before, "{weather:?} after {polls} polls");
            super::support::heal(&cluster);
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            guard.extend(Duration::from_secs(10)).await.unwrap();
            assert!(guard.remaining() > Duration::from_secs(9));
            guard.release().await.unwrap();
            nothing_is_left(&cluster, &redlock, &format!("{weather:?} after {polls} polls")).await;
            if extended.is_some() {
                break;
            }
        }
    }
}

/// Law: a client closed at any moment of a wait ends the wait with `Closed`, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn close_at_any_time_ends_every_wait() {
    for millis in (0..600).step_by(29) {
        for weather in WEATHERS {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            weather.set(&cluster);
            let waiting = tokio::spawn({
                let redlock = redlock.clone();
                async move {
                    let guard = redlock.lock(KEY).wait_forever().await?;
                    guard.release().await.ok();
                    Ok::<_, redquorum::AcquireError>(())
                }
            });
            tokio::time::sleep(Duration::from_millis(millis)).await;

            let closed_at = tokio::time::Instant::now();
            redlock.close(Duration::from_secs(20)).await;

            let outcome = waiting.await.unwrap();
            let took = closed_at.elapsed();
            assert!(
                matches!(outcome, Ok(()) | Err(redquorum::AcquireError::Closed)),
                "{weather:?}: {outcome:?}"
            );
            // A node that hangs on an unanswered set is waited for until the deadline, and connections for half a second more.
            assert!(took <= Duration::from_millis(20_500), "{weather:?}: {took:?}");
            assert!(matches!(redlock.try_acquire(KEY).await, Err(redquorum::AcquireError::Closed)));
            super::support::heal(&cluster);
            let fresh = cluster.builder().build().await.unwrap();
            nothing_is_left(&cluster, &fresh, &format!("{weather:?} closed after {millis} ms")).await;
        }
    }
}
