//! The blocking face: the same locks on plain threads, with nothing of a runtime to be seen.
//!
//! The protocol below it is the other face's, and shown there. Here is what is new: the hidden thread, calls from any
//! place, waits of threads, and the end of a program.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::Cluster;
use redquorum::blocking::{LockGuard, Redlock};
use redquorum::testing::{ManualClock, MemoryCluster};
use redquorum::{AcquireError, BuildError, ExtendError, Lost, ReleaseError, WithLockError};

const KEY: &str = "k";

/// What scheduling may take on a busy machine, on top of a bound that is promised.
const SLACK: Duration = Duration::from_secs(1);

/// How long anything may take that only has to happen.
const SOON: Duration = Duration::from_secs(10);

/// Far longer than any wait here, so that nothing is freed by expiry.
const TTL: Duration = Duration::from_secs(60);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn memory() -> (MemoryCluster, Redlock) {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(TTL).build_blocking().expect("nodes in memory");
    (cluster, redlock)
}

fn on_servers(cluster: &Cluster) -> Redlock {
    let builder = Redlock::builder().nodes(cluster.urls()).ttl(TTL).without_restart_delay();
    builder.build_blocking().expect("a quorum of nodes")
}

fn holders(cluster: &MemoryCluster) -> usize {
    cluster.nodes().iter().filter(|node| node.holder(KEY).is_some()).count()
}

fn soon(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}");
        thread::sleep(ms(1));
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    (call(), started.elapsed())
}

/// Eight threads ask one after the other while the lock is held, and note when they have it.
fn are_served_in_turn(redlock: &Redlock) {
    let order = Mutex::new(Vec::new());
    let inside = AtomicUsize::new(0);
    let guard = redlock.acquire(KEY).expect("it is free");
    thread::scope(|scope| {
        for number in 0..8 {
            let (order, inside) = (&order, &inside);
            scope.spawn(move || {
                let guard = redlock.acquire(KEY).expect("in turn");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                order.lock().expect("no panic").push(number);
                thread::sleep(ms(2));
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().expect("held until now");
            });
            soon("it waits in the queue", || redlock.inspect(KEY).expect("a key").waiting() == number + 1);
        }
        guard.release().expect("held until now");
    });
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Law: threads that contend are served one at a time, first come, first served.
#[test]
fn threads_are_served_in_turn() {
    are_served_in_turn(&memory().1);
}

/// Law: the same on real servers.
#[test]
fn threads_are_served_in_turn_by_servers() {
    are_served_in_turn(&on_servers(&Cluster::start(3)));
}

/// Law: many threads and clients that just try again and again never hold a lock at once.
#[test]
fn never_two_at_a_time_on_servers() {
    let cluster = Cluster::start(3);
    let clients = [on_servers(&cluster), on_servers(&cluster)];
    let (inside, held) = (AtomicUsize::new(0), AtomicUsize::new(0));

    thread::scope(|scope| {
        for number in 0..8 {
            let (redlock, inside, held) = (&clients[number % 2], &inside, &held);
            scope.spawn(move || {
                for _ in 0..10 {
                    let done = redlock.with_lock(KEY, |guard| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        held.fetch_add(usize::from(guard.is_valid()), Ordering::SeqCst);
                        thread::sleep(ms(1));
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                    done.expect("in turn");
                }
            });
        }
    });

    assert_eq!(held.load(Ordering::SeqCst), 80);
}

/// Law: a wait ends when it was to end, with what stood in the way.
#[test]
fn waits_no_longer_than_it_was_told() {
    let (_cluster, redlock) = memory();
    let _held = redlock.acquire(KEY).expect("it is free");

    let (outcome, took) = timed(|| redlock.lock(KEY).wait(ms(200)).acquire());

    let Err(error @ AcquireError::TimedOut { .. }) = outcome else { panic!("{outcome:?}") };
    assert!(error.is_contention() && took >= ms(200) && took < ms(200) + SLACK, "{took:?}");
    let (outcome, took) = timed(|| redlock.try_acquire(KEY));
    assert!(matches!(outcome, Err(AcquireError::Held { .. })), "{outcome:?}");
    assert!(took < SLACK, "{took:?}");
}

/// Law: a guard that is dropped on another thread, while the client is busy elsewhere, releases its lock.
#[test]
fn a_guard_dropped_on_another_thread_releases() {
    for keep in [false, true] {
        let (cluster, redlock) = memory();
        let request = redlock.lock(KEY);
        let guard = if keep { request.keep_alive() } else { request }.acquire().expect("it is free");

        thread::spawn(move || drop(guard)).join().expect("no panic");

        soon("released", || holders(&cluster) == 0);
        redlock.try_acquire(KEY).expect("free again").release().expect("held until now");
    }
}

/// Law: calls work inside an async runtime of either kind, as often as one likes within one turn of a task, timers
/// included, and so does dropping the client there.
#[test]
fn works_inside_a_runtime() {
    let kinds = [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()];
    for mut kind in kinds {
        let runtime = kind.enable_all().build().expect("a runtime");
        let cluster = MemoryCluster::new(3);
        let task = {
            let cluster = cluster.clone();
            async move {
                let redlock = cluster.builder().build_blocking().expect("nodes in memory");
                // More than tokio lets a task do before it takes its turn away.
                for _ in 0..200 {
                    redlock.acquire(KEY).expect("it is free").release().expect("held until now");
                }
                let guard = redlock.acquire(KEY).expect("it is free");
                for _ in 0..200 {
                    assert_eq!(guard.lost(ms(1)), None);
                }
                let waited = redlock.lock(KEY).wait(ms(50)).acquire();
                assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
            }
        };

        let (ended, took) = timed(|| runtime.block_on(async { tokio::spawn(task).await }));

        ended.expect("no panic");
        assert!(took < SOON, "{took:?}");
        assert_eq!(holders(&cluster), 0);
    }
}

/// Law: a lock that is kept alive outlives its TTL, with no thread of the caller's at work.
#[test]
fn a_kept_lock_outlives_its_ttl() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(ms(300)).build_blocking().expect("nodes in memory");
    let guard = redlock.lock(KEY).keep_alive().acquire().expect("it is free");

    assert_eq!(guard.lost(ms(1_200)), None);

    assert!(guard.is_valid() && holders(&cluster) >= 2);
    assert!(matches!(redlock.try_acquire(KEY), Err(AcquireError::Held { .. })));
    guard.release().expect("held until now");
}

/// Law (rule 8): a holder that waits for the loss is told no later than the end of validity, with all nodes hung.
#[test]
fn told_by_the_end_of_validity() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(ms(300)).build_blocking().expect("nodes in memory");
    let guard = redlock.acquire(KEY).expect("it is free");
    cluster.nodes().iter().for_each(|node| node.hang());
    let validity = guard.remaining();

    let (lost, took) = timed(|| guard.lost(Duration::MAX));

    assert_eq!(lost, Some(Lost::Expired));
    assert!(took + ms(5) >= validity && took < validity + SLACK, "{took:?} of {validity:?}");
}

/// Law: work under a lock that is lost half-way is told by its guard, runs to its end, and its result is not taken for one.
#[test]
fn work_is_told_of_a_loss() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(ms(300)).build_blocking().expect("nodes in memory");
    let mut told = None;

    let outcome = redlock.with_lock(KEY, |guard| {
        cluster.nodes()[..2].iter().for_each(|node| assert!(node.forget(KEY)));
        // Another thread hears of it as well.
        told = thread::scope(|scope| scope.spawn(|| guard.lost(SOON)).join().expect("no panic"));
        assert!(!guard.is_valid());
        "a report"
    });

    assert_eq!(told, Some(Lost::Forgotten));
    let Err(WithLockError::Lost { reason: Lost::Forgotten, output, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(output, Some("a report"));
    soon("what was left is released", || holders(&cluster) == 0);
}

/// Law: the work's result comes back, and the lock is released when it is there.
#[test]
fn work_comes_back_and_the_lock_is_free() {
    let (cluster, redlock) = memory();

    let result: Result<u32, &str> = redlock.with_lock(KEY, |_| Err("disk full")).expect("it was held");

    assert_eq!(result, Err("disk full"));
    assert!(holders(&cluster) <= 1, "a quorum has confirmed");
}

/// Law: work that panics releases its lock, and the client goes on.
#[test]
fn work_that_panics_releases() {
    let (cluster, redlock) = memory();

    let work = |guard: &LockGuard| assert!(!guard.is_valid(), "the work panics");
    let panicked = catch_unwind(AssertUnwindSafe(|| redlock.with_lock(KEY, work)));

    assert!(panicked.is_err());
    soon("released", || holders(&cluster) == 0);
    redlock.acquire(KEY).expect("free again").release().expect("held until now");
}

/// Law: closing ends the waits of all threads at once, and says whether all is settled.
#[test]
fn close_ends_waits() {
    let (_cluster, redlock) = memory();
    let guard = redlock.acquire(KEY).expect("it is free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| redlock.lock(KEY).wait_forever().acquire());
        soon("it waits in the queue", || redlock.inspect(KEY).expect("a key").waiting() == 1);

        let (clean, took) = timed(|| redlock.clone().close(ms(50)));

        assert!(!clean, "a guard is still held");
        assert!(took < SLACK, "{took:?}");
        let outcome = waiting.join().expect("no panic");
        assert!(matches!(outcome, Err(AcquireError::Closed)), "{outcome:?}");
    });
    assert!(matches!(redlock.acquire(KEY), Err(AcquireError::Closed)));
    drop(guard);

    let (_cluster, redlock) = memory();
    redlock.acquire(KEY).expect("it is free").release().expect("held until now");
    assert!(redlock.close(SOON), "nothing is open");
}

/// Law: a guard keeps its client alive; whoever drops the last of them waits until the lock is free.
#[test]
fn the_last_guard_outlives_its_client_and_is_waited_for() {
    for keep in [false, true] {
        let (cluster, redlock) = memory();
        let request = redlock.lock(KEY).ttl(ms(500));
        let mut guard = if keep { request.keep_alive() } else { request }.acquire().expect("it is free");
        drop(redlock);
        guard.extend(ms(5_000)).expect("the client lives as long as its guard");
        assert_eq!(guard.lost(ms(600)), None);

        drop(guard);

        assert_eq!(holders(&cluster), 0, "kept: {keep}");
    }
}

/// Law: the end of a client waits for a node that does not answer, but not for long, and the others are free.
#[test]
fn the_end_waits_half_a_second_for_a_silent_node() {
    let cluster = Cluster::start(3);
    let redlock = on_servers(&cluster);
    let guard = redlock.acquire(KEY).expect("it is free");
    cluster[0].freeze();
    drop(guard);

    let ((), took) = timed(|| drop(redlock));

    assert!(took < ms(1_000) + SLACK, "{took:?}");
    assert_eq!([cluster[1].get(KEY), cluster[2].get(KEY)], [None, None]);
    cluster[0].thaw();
    soon("executed when the node goes on", || cluster[0].get(KEY).is_none());
}

/// Law: a program that simply ends leaves no lock behind, and had one thread for it all.
#[test]
fn a_script_leaves_nothing_behind() {
    let cluster = Cluster::start(3);

    let ended = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "blocking::script", "--ignored", "--nocapture"])
        .env("NODES", cluster.urls().join(" "))
        .output()
        .expect("it runs");

    let shown = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && shown.contains("held by the script"), "{shown}");
    assert_eq!(cluster.values(KEY), [None, None, None], "at once");
}

/// The script of the test above.
#[test]
#[ignore = "started by another test"]
fn script() {
    let Ok(nodes) = std::env::var("NODES") else { return };
    let redlock = Redlock::builder()
        .nodes(nodes.split(' '))
        .without_restart_delay()
        .build_blocking()
        .expect("three nodes");
    let guard = redlock.lock(KEY).keep_alive().acquire().expect("it is free");
    println!("held by the script: {}", guard.is_valid());
    if cfg!(target_os = "linux") {
        assert_eq!(threads(), 1);
        drop(redlock);
        assert_eq!(threads(), 1, "the guard needs it");
        drop(guard);
        assert_eq!(threads(), 0);
    }
}

/// How many threads of this process are a client's.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "redquorum").count()
}

/// Law: what is wrong with the settings, and nodes that are out of reach, are told as ever.
#[test]
fn building_tells_what_is_wrong() {
    assert!(matches!(Redlock::builder().build_blocking(), Err(BuildError::NoNodes)));

    let cluster = MemoryCluster::new(3);
    cluster.nodes()[1..].iter().for_each(|node| node.crash());
    let (outcome, took) = timed(|| cluster.builder().connect_timeout(ms(100)).build_blocking());
    assert!(matches!(outcome, Err(BuildError::NotConnected { connected: 1, .. })), "{outcome:?}");
    assert!(took < ms(100) + SLACK, "{took:?}");
    let redlock = cluster.builder().lazy().build_blocking().expect("nobody is waited for");
    let outcome = redlock.lock(KEY).wait(ms(50)).acquire();
    assert!(outcome.is_err_and(|error| !error.is_contention()));
    cluster.nodes().iter().for_each(|node| node.heal());
    redlock.acquire(KEY).expect("the nodes are back").release().expect("held until now");
}

/// Law: extending and releasing tell a lock that is gone from one that is held.
#[test]
fn guards_tell_what_became_of_the_lock() {
    let (cluster, redlock) = memory();
    let mut guard = redlock.lock(KEY).ttl(ms(5_000)).acquire().expect("it is free");
    guard.extend(ms(10_000)).expect("still held");
    assert!(guard.remaining() > ms(5_000) && guard.remaining() < ms(10_000));
    assert_eq!((guard.key().as_bytes(), guard.report().needed()), (KEY.as_bytes(), 2));
    cluster.nodes()[..2].iter().for_each(|node| node.wipe());

    let extended = guard.extend(ms(10_000));

    assert!(matches!(extended, Err(ExtendError::Lost { .. })), "{extended:?}");
    assert_eq!((guard.is_valid(), guard.lost(Duration::ZERO)), (false, Some(Lost::Forgotten)));
    let released = guard.release();
    assert!(matches!(released, Err(ReleaseError::Expired { .. })), "{released:?}");
}

/// Law: fencing tokens rise from thread to thread.
#[test]
fn tokens_rise() {
    let (_cluster, redlock) = memory();
    let token = || {
        let guard = redlock.lock(KEY).fenced().acquire().expect("in turn");
        guard.fencing_token().expect("a fenced lock has a token")
    };
    let first = thread::scope(|scope| scope.spawn(token).join().expect("no panic"));
    assert!(token() > first);
    assert_eq!(redlock.acquire(KEY).expect("free again").fencing_token(), None);
}

/// Law: a lock goes from one face to the other and back, held all the time.
#[test]
fn a_lock_goes_from_face_to_face() {
    let (cluster, redlock) = memory();
    let guard = redlock.acquire(KEY).expect("it is free");
    let owner = cluster.node(0).holder(KEY);
    let parts = guard.into_parts().expect("held until now");

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let parts = runtime.block_on(async {
        let other = cluster.builder().build().await.expect("nodes in memory");
        let guard = other.resume(parts).await.expect("still held");
        guard.into_parts().await.expect("held until now")
    });
    let guard = redlock.resume(parts).ttl(ms(400)).keep_alive().acquire().expect("still held");

    assert_eq!(guard.lost(ms(600)), None);
    assert_eq!(cluster.node(0).holder(KEY), owner);
    guard.release().expect("held until now");
}

/// Law: settings of the client hold for requests of either kind, and each can do without.
#[test]
fn requests_can_do_without_keeping() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().ttl(ms(300)).keep_alive().build_blocking().expect("nodes in memory");

    let guard = redlock.lock(KEY).without_keep_alive().acquire().expect("it is free");
    let parts = guard.into_parts().expect("held until now");
    let guard = redlock.resume(parts).without_keep_alive().acquire().expect("still held");

    assert_eq!(guard.lost(SOON), Some(Lost::Expired));
    drop(guard);
    let guard = redlock.lock(KEY).max_hold(ms(600)).acquire().expect("free again");
    assert_eq!(guard.lost(SOON), Some(Lost::MaxHoldReached));
}

/// Law: all waits are on the client's clock: what a test moves by hand, or what a suspended machine finds moved.
#[test]
fn waits_follow_the_clients_clock() {
    let clock = ManualClock::new();
    let cluster = MemoryCluster::with_clock(3, clock.clone());
    let redlock = cluster.builder().build_blocking().expect("nodes in memory");
    let guard = redlock.acquire(KEY).expect("it is free");
    let over = AtomicBool::new(false);

    thread::scope(|scope| {
        let timed_out = scope.spawn(|| guard.lost(Duration::from_secs(5)));
        let lost = scope.spawn(|| guard.lost(Duration::MAX));
        thread::sleep(ms(50));
        assert!(!timed_out.is_finished() && !lost.is_finished());
        // Little by little, since nobody can see that a thread has begun to wait.
        scope.spawn(|| {
            for _ in 0..2_000 {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                clock.advance(ms(100));
                thread::sleep(ms(1));
            }
        });
        assert_eq!(timed_out.join().expect("no panic"), None);
        assert_eq!(lost.join().expect("no panic"), Some(Lost::Expired));
        over.store(true, Ordering::Relaxed);
    });
}

/// Law: what is shared between threads can be.
#[test]
fn all_of_it_goes_from_thread_to_thread() {
    fn check<T: Send + Sync + Unpin + 'static>() {}
    check::<Redlock>();
    check::<LockGuard>();
    check::<redquorum::blocking::LockRequest>();
    check::<redquorum::blocking::ResumeRequest>();
}
