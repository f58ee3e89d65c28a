//! The client's futures on every kind of executor, and after the client's runtime has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::thread;
use std::time::{Duration, Instant};

use redquorum::{AcquireError, ExtendError, Lost, Redlock, ReleaseError, ResumeError};
use tokio::runtime::{Builder, Runtime};

use super::support::KEY;

/// Far above what any call takes here, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor's name, and how it runs a future to its end.
type Executor = (&'static str, fn(Work));

fn executors() -> [Executor; 7] {
    [
        ("tokio, current thread, all", |work| {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
        }),
        ("tokio, current thread, bare", |work| Builder::new_current_thread().build().unwrap().block_on(work)),
        ("tokio, threads, all", |work| {
            in_a_task(&Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(), work)
        }),
        ("tokio, threads, bare", |work| {
            in_a_task(&Builder::new_multi_thread().worker_threads(1).build().unwrap(), work)
        }),
        ("futures", |work| futures::executor::block_on(work)),
        ("smol", |work| smol::block_on(work)),
        ("pollster", |work| pollster::block_on(work)),
    ]
}

fn in_a_task(runtime: &Runtime, work: Work) {
    runtime.block_on(runtime.spawn(work)).unwrap();
}

/// Runs the work on an executor in a thread of its own. Fails if it panics or does not end.
fn ends(what: &str, run: impl FnOnce() + Send + 'static) {
    let (told, ended) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(run));
        let _ = told.send(outcome.is_ok());
    });
    match ended.recv_timeout(SOON) {
        Ok(well) => assert!(well, "{what}: panicked"),
        Err(error) => panic!("{what}: did not end: {error}"),
    }
    thread.join().unwrap();
}

fn home() -> Runtime {
    Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap()
}

async fn client(server: &harness::Server) -> Redlock {
    Redlock::builder().node(server.url()).without_restart_delay().build().await.unwrap()
}

/// Every public async function, in a good run and with the lock held by another.
async fn every_call(redlock: Redlock) {
    let wait = Duration::from_millis(100);
    let mut guard = redlock.acquire(KEY).await.unwrap();
    assert!(matches!(redlock.lock(KEY).wait(wait).await, Err(AcquireError::TimedOut { .. })));
    assert!(redlock.try_acquire(KEY).await.is_err());
    assert!(redlock.inspect(KEY).await.unwrap().holder().is_some());
    guard.extend(Duration::from_secs(10)).await.unwrap();
    let parts = guard.into_parts().await.unwrap();
    redlock.resume(parts).await.unwrap().release().await.unwrap();
    let short = redlock.lock(KEY).max_hold(Duration::from_millis(1_200)).await.unwrap();
    assert_eq!(short.lost().await, Lost::MaxHoldReached);
    drop(short);
    assert_eq!(redlock.with_lock(KEY, async |_| 7).await.unwrap(), 7);
    assert_eq!(redlock.lock(KEY).with_boxed(|_| Box::pin(async { 8 })).await.unwrap(), 8);
    let mut kept = redlock.lock(KEY).keep_alive().await.unwrap();
    kept.extend(Duration::from_secs(10)).await.unwrap();
    kept.release().await.unwrap();
}

/// Law: a client's futures bring their timers along, so every executor may poll them, one without timers too; and each call
/// ends.
#[test]
fn every_executor_may_poll_every_call() {
    let (home, server) = (home(), harness::Server::start());
    for (name, run) in executors() {
        let redlock = home.block_on(client(&server));
        ends(name, move || {
            run(Box::pin(async move {
                every_call(redlock.clone()).await;
                assert!(redlock.close(Duration::from_secs(5)).await);
            }));
        });
    }
}

/// Law: after the client's runtime has ended, each call ends on every executor, with an error that says so.
#[test]
fn a_client_outlives_its_runtime_on_every_executor() {
    let server = harness::Server::start();
    for (name, run) in executors() {
        for in_background in [false, true] {
            let home = home();
            let (redlock, mut guard, other, parts) = home.block_on(async {
                let redlock = client(&server).await;
                let guard = redlock.acquire(format!("{name} {in_background} 1")).await.unwrap();
                let other = redlock.lock(format!("{name} {in_background} 2")).keep_alive().await.unwrap();
                let parts = redlock.acquire(format!("{name} {in_background} 3")).await.unwrap();
                (redlock, guard, other, parts.into_parts().await.unwrap())
            });
            if in_background {
                home.shutdown_background()
            } else {
                drop(home)
            }
            // The tasks of a runtime that ends in the background end soon.
            let started = Instant::now();
            while redlock.has_quorum() && started.elapsed() < SOON {
                thread::sleep(Duration::from_millis(1));
            }
            ends(name, move || {
                run(Box::pin(async move {
                    let forever = redlock.lock(KEY).wait_forever().await;
                    assert!(matches!(forever, Err(AcquireError::RuntimeEnded)), "{forever:?}");
                    let once = redlock.try_acquire(KEY).await;
                    assert!(matches!(once, Err(AcquireError::RuntimeEnded)), "{once:?}");
                    assert!(redlock.with_lock(KEY, async |_| ()).await.is_err());
                    assert_eq!(redlock.inspect(KEY).await.unwrap().holder(), None);
                    let resumed = redlock.resume(parts).await;
                    assert!(matches!(resumed, Err(ResumeError::RuntimeEnded)), "{resumed:?}");
                    let extended = guard.extend(Duration::from_secs(10)).await;
                    assert!(matches!(extended, Err(ExtendError::Closed { .. })), "{extended:?}");
                    let released = guard.release().await;
                    assert!(matches!(released, Err(ReleaseError::Closed { .. })), "{released:?}");
                    drop(other.lost());
                    drop(other);
                    let began = Instant::now();
                    assert!(!redlock.close(Duration::from_secs(60)).await, "locks were left to their TTL");
                    assert!(began.elapsed() < Duration::from_secs(5), "waits in vain");
                }));
            });
        }
    }
}

/// Law: a client that was built in another test's runtime says which of the two has ended, and a wait that its runtime's end
/// interrupts ends with it.
#[test]
fn a_static_client_over_two_runtimes_says_why() {
    let server = harness::Server::start();
    let first = home();
    let redlock = first.block_on(client(&server));
    let guard = first.block_on(redlock.acquire(KEY)).unwrap();
    let waiting = redlock.clone();
    let waiter = thread::spawn(move || pollster::block_on(async { waiting.lock(KEY).wait_forever().await }));
    thread::sleep(Duration::from_millis(200));
    drop(first);

    let said = home().block_on(redlock.acquire("other")).unwrap_err();

    assert!(said.to_string().contains("runtime that the client was built in has ended"), "{said}");
    ends("a waiter", move || {
        let ended = waiter.join().unwrap();
        assert!(matches!(ended, Err(AcquireError::RuntimeEnded)), "{ended:?}");
    });
    drop(guard);
}

/// Law: after close, nothing is extended and no release goes on, and the errors say so, before any task has noticed.
#[tokio::test]
async fn a_closed_client_extends_nothing() {
    let server = harness::Server::start();
    let redlock = client(&server).await;
    let (mut guard, mut kept) =
        (redlock.acquire("a").await.unwrap(), redlock.lock("b").keep_alive().await.unwrap());

    assert!(!redlock.close(Duration::from_millis(10)).await);

    let extended = guard.extend(Duration::from_secs(10)).await;
    assert!(matches!(extended, Err(ExtendError::Closed { .. })), "{extended:?}");
    assert!(matches!(kept.extend(Duration::from_secs(10)).await, Err(ExtendError::Expired { .. })));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Closed { .. })), "{released:?}");
}

/// Law: extending in a loop while the nodes are down is no hot loop.
#[tokio::test]
async fn extending_in_a_loop_is_paced() {
    let server = harness::Server::start();
    let redlock = client(&server).await;
    let (mut guard, mut kept) =
        (redlock.acquire("a").await.unwrap(), redlock.lock("b").keep_alive().await.unwrap());
    server.kill9();
    while redlock.has_quorum() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let (began, mut calls) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        assert!(matches!(guard.extend(Duration::from_secs(10)).await, Err(ExtendError::Unconfirmed { .. })));
        assert!(matches!(kept.extend(Duration::from_secs(10)).await, Err(ExtendError::Unconfirmed { .. })));
        calls += 2;
    }

    assert!(calls <= 22, "{calls} calls in a second");
}
