//! Work under a lock: every way out of it, and every place that it can be started from.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redquorum::testing::{ManualClock, MemoryCluster};
use redquorum::{AcquireError, LockGuard, Lost, Redlock, WithLockError};

use super::support::{KEY, TTL, WEATHERS, Weather, cancelled_after, client, heal, holders, nothing_is_left};

/// Law: the lock is held for as long as the work takes, however many TTLs that is, and released when the result is there.
#[tokio::test(start_paused = true)]
async fn held_during_the_work_and_released_after_it() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;

    let result = redlock
        .with_lock(KEY, async |guard| {
            for _ in 0..100 {
                tokio::time::sleep(TTL / 10).await;
                assert!(guard.is_valid() && holders(&cluster) >= 2);
            }
            4711
        })
        .await;

    assert_eq!(result.unwrap(), 4711);
    assert!(holders(&cluster) <= 1, "a quorum confirmed the release");
    nothing_is_left(&cluster, &redlock, "afterwards").await;
}

/// Law: the work's own error comes back untouched and in time, with all nodes hung when the lock is released.
#[tokio::test(start_paused = true)]
async fn own_error_comes_back_though_the_release_goes_wrong() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let started = tokio::time::Instant::now();

    let result: Result<Result<(), &str>, _> = redlock
        .with_lock(KEY, async |_| {
            cluster.nodes().iter().for_each(|node| node.hang());
            Err("disk full")
        })
        .await;

    assert_eq!(result.unwrap(), Err("disk full"));
    assert!(started.elapsed() <= Duration::from_millis(120), "{:?}", started.elapsed());
    nothing_is_left(&cluster, &redlock, "afterwards").await;
}

/// Law: a lock that was not acquired is the acquire's own error, and the work is not begun.
#[tokio::test(start_paused = true)]
async fn work_is_not_begun_without_the_lock() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let _held = redlock.acquire(KEY).await.unwrap();

    let result = redlock.lock(KEY).without_waiting().with(async |_| panic!("begun")).await;

    let Err(WithLockError::Acquire(AcquireError::Held { .. })) = result else { panic!("{result:?}") };
}

/// Law (rule 8): the work is dropped no later than the end of validity with all nodes hung, and the reason is told.
#[tokio::test(start_paused = true)]
async fn loss_drops_the_work_in_time() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let mut hung = None;

    let result = redlock
        .with_lock(KEY, async |guard| {
            let _dropped = Dropped(dropped.clone());
            tokio::time::sleep(3 * TTL).await;
            cluster.nodes().iter().for_each(|node| node.hang());
            hung = Some((tokio::time::Instant::now(), guard.remaining()));
            std::future::pending::<()>().await;
        })
        .await;

    let Err(WithLockError::Lost { reason: Lost::Expired, key, output: None }) = result else {
        panic!("{result:?}")
    };
    let (hung, remaining) = hung.unwrap();
    let told = hung.elapsed();
    assert!(told <= remaining && told + Duration::from_millis(5) >= remaining, "{told:?} of {remaining:?}");
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(key.as_bytes(), KEY.as_bytes());
    nothing_is_left(&cluster, &redlock, "afterwards").await;
}

/// Law: work that holds the lock for longer than the maximum is dropped then.
#[tokio::test(start_paused = true)]
async fn maximum_hold_drops_the_work() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let started = tokio::time::Instant::now();

    let result = redlock.lock(KEY).max_hold(3 * TTL).with(async |_| std::future::pending::<()>().await).await;

    let Err(WithLockError::Lost { reason: Lost::MaxHoldReached, .. }) = result else { panic!("{result:?}") };
    assert!(started.elapsed() <= 3 * TTL, "{:?}", started.elapsed());
    nothing_is_left(&cluster, &redlock, "afterwards").await;
}

/// Law: work that takes its thread beyond the end of its lock, so that nothing can stop it, is told that the lock was lost, and
/// gets its output back in the error; also where the output is an error of its own. The end itself is too late, and one nanosecond
/// before it is not.
#[tokio::test(flavor = "current_thread")]
async fn work_that_outlasts_its_lock_is_no_success() {
    for (beyond, in_time) in [(-1_i64, true), (0, false), (1, false), (3_600_000_000_000, false)] {
        let clock = ManualClock::new();
        let cluster = MemoryCluster::with_clock(3, clock.clone());
        let redlock = client(&cluster).await;
        let until = move |guard: &LockGuard| {
            Duration::from_nanos((guard.remaining().as_nanos() as i64 + beyond) as u64)
        };

        let plain = redlock.with_lock(KEY, async |guard| clock.advance(until(guard))).await;
        let failed: Result<Result<u32, &str>, _> = redlock
            .lock("another")
            .with(async |guard| {
                clock.advance(until(guard));
                Err("disk full")
            })
            .await;
        let boxed = redlock.lock("a third").with_boxed(|guard| {
            let clock = clock.clone();
            Box::pin(async move {
                clock.advance(until(guard));
                42
            })
        });
        let boxed = boxed.await;

        if in_time {
            assert!(plain.is_ok(), "{plain:?}");
            assert_eq!(failed.expect("held"), Err("disk full"));
            assert_eq!(boxed.expect("held"), 42);
            continue;
        }
        let Err(WithLockError::Lost { reason: Lost::Expired, key, output: Some(()) }) = plain else {
            panic!("{beyond} ns beyond the end: {plain:?}")
        };
        assert_eq!(key.as_bytes(), KEY.as_bytes());
        assert_eq!(failed.map_err(WithLockError::into_output), Err(Some(Err("disk full"))));
        assert_eq!(boxed.map_err(WithLockError::into_output), Err(Some(42)));
    }
}

/// Law: a panic of the work passes through, and the lock is released.
#[tokio::test(start_paused = true)]
async fn panic_releases() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;

    let work = tokio::spawn(redlock.lock(KEY).with(async |_| {
        tokio::time::sleep(TTL).await;
        panic!("on purpose");
    }));

    assert!(work.await.unwrap_err().is_panic());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(holders(&cluster), 0);
}

/// Law: dropped at any await, in any weather, the work is gone and nothing is left.
#[tokio::test(start_paused = true)]
async fn cancelled_at_every_await_leaves_nothing() {
    for weather in WEATHERS {
        for polls in 0..30 {
            let cluster = MemoryCluster::new(5);
            let redlock = cluster.builder().build().await.unwrap();
            weather.set(&cluster);

            let work = redlock.with_lock(KEY, async |_| {
                for _ in 0..3 {
                    tokio::time::sleep(TTL).await;
                }
            });
            let ended = cancelled_after(polls, work).await;

            nothing_is_left(&cluster, &redlock, &format!("{weather:?} after {polls} polls")).await;
            if ended.is_some() && weather != Weather::Contended {
                break;
            }
            heal(&cluster);
        }
    }
}

/// Law: a closed client drops the work, tells why, and releases the lock within the deadline.
#[tokio::test(start_paused = true)]
async fn closing_drops_the_work() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let work = tokio::spawn(redlock.lock(KEY).with(async |_| std::future::pending::<()>().await));
    tokio::time::sleep(2 * TTL).await;
    let closing = tokio::time::Instant::now();

    assert!(!redlock.close(3 * TTL).await, "something was held to the end");

    let took = closing.elapsed();
    assert!(took >= 3 * TTL && took < 4 * TTL, "{took:?}");
    let result = work.await.unwrap();
    assert!(matches!(result, Err(WithLockError::Lost { reason: Lost::Closed, .. })), "{result:?}");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(holders(&cluster), 0);
}

// What follows has to compile, more than to run: the places from which work is started in real programs.

struct Service {
    redlock: Redlock,
    name: String,
}

impl Service {
    /// From a method, with `self` borrowed by the work.
    async fn method(&self) -> Result<usize, WithLockError<usize>> {
        self.redlock.with_lock(&self.name, async |guard| guard.key().len() + self.name.len()).await
    }

    /// From a method whose caller spawns what it returns.
    fn spawned(self: Arc<Self>) -> tokio::task::JoinHandle<Result<usize, WithLockError<usize>>> {
        tokio::spawn(async move { self.method().await })
    }

    /// From a method that says itself that its future can be spawned.
    fn sendable(&self) -> impl Future<Output = Result<usize, WithLockError<usize>>> + Send {
        self.redlock.lock(&self.name).with(async |guard| {
            tokio::task::yield_now().await;
            guard.key().len()
        })
    }
}

/// From a trait, with a future that can be spawned.
trait Job {
    fn run(&self, redlock: &Redlock) -> impl Future<Output = Result<u32, WithLockError>> + Send;
}

struct Count(u32);

impl Job for Count {
    async fn run(&self, redlock: &Redlock) -> Result<u32, WithLockError> {
        let mut sum = 0;
        redlock
            .with_lock(KEY, async |guard| {
                for step in 0..self.0 {
                    tokio::task::yield_now().await;
                    sum += step * u32::from(guard.is_valid());
                }
            })
            .await?;
        Ok(sum)
    }
}

/// From a trait that is used as an object.
trait BoxedJob: Send + Sync {
    fn run<'a>(
        &'a self,
        redlock: &'a Redlock,
    ) -> Pin<Box<dyn Future<Output = Result<u32, WithLockError>> + Send + 'a>>;
}

impl BoxedJob for Count {
    fn run<'a>(
        &'a self,
        redlock: &'a Redlock,
    ) -> Pin<Box<dyn Future<Output = Result<u32, WithLockError>> + Send + 'a>> {
        Box::pin(async move { Job::run(self, redlock).await })
    }
}

/// In a function that is generic over the work and awaits it.
async fn generic<T>(
    redlock: &Redlock,
    work: impl AsyncFnOnce(&LockGuard) -> T,
) -> Result<T, WithLockError<T>> {
    redlock.lock(KEY).ttl(TTL).with(async |guard| work(guard).await).await
}

type Work<'g, T> = Pin<Box<dyn Future<Output = T> + Send + 'g>>;

/// In a function that is generic over the work and spawns it.
fn generic_spawned<T, F>(redlock: &Redlock, work: F) -> tokio::task::JoinHandle<Result<T, WithLockError<T>>>
where
    F: for<'g> FnOnce(&'g LockGuard) -> Work<'g, T> + Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(redlock.lock(KEY).with_boxed(work))
}

/// In a function that is generic over a future.
fn generic_future<F>(
    redlock: &Redlock,
    work: F,
) -> tokio::task::JoinHandle<Result<F::Output, WithLockError<F::Output>>>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(redlock.lock(KEY).with(async move |_| work.await))
}

/// Law: work under a lock can be started, and spawned, from methods, traits, trait objects and generic functions.
#[tokio::test(start_paused = true)]
async fn work_is_started_from_everywhere() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let service = Arc::new(Service { redlock: redlock.clone(), name: KEY.to_owned() });

    assert_eq!(service.method().await.unwrap(), 2 * KEY.len());
    assert_eq!(service.clone().spawned().await.unwrap().unwrap(), 2 * KEY.len());
    assert_eq!(service.sendable().await.unwrap(), KEY.len());
    let job = tokio::spawn({
        let redlock = redlock.clone();
        async move { Job::run(&Count(4), &redlock).await }
    });
    assert_eq!(job.await.unwrap().unwrap(), 6);
    let jobs: Vec<Box<dyn BoxedJob>> = vec![Box::new(Count(3)), Box::new(Count(2))];
    for (job, sum) in jobs.iter().zip([3, 1]) {
        assert_eq!(job.run(&redlock).await.unwrap(), sum);
    }
    assert!(generic(&redlock, async |guard| guard.is_valid()).await.unwrap());
    let owned = String::from("moved in");
    let lent = generic_spawned(&redlock, |guard| Box::pin(async move { (guard.is_valid(), owned) }));
    assert_eq!(lent.await.unwrap().unwrap(), (true, "moved in".to_owned()));
    assert_eq!(generic_future(&redlock, async { 3 }).await.unwrap().unwrap(), 3);
}
