//! Work that starves the task which renews its lock: the lock ends in the middle, another process gets it, and the work is told.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use clients::{SOON, builder, ms};
use harness::{Cluster, Server};
use redquorum::{Lost, Redlock, WithLockError};

const KEY: &str = "k";
const TTL: Duration = Duration::from_secs(1);
/// Longer than the lock lasts by far, and for as long as it takes another process to notice.
const STARVED: Duration = Duration::from_millis(2_500);

/// This program again, as a process that waits for the lock.
fn rival(cluster: &Cluster, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "starved_work::waits_for_the_lock", "--ignored", "--nocapture"]);
    command.env("REDQUORUM_CHILD_NODES", cluster.urls().join(",")).env("REDQUORUM_CHILD_FOLDER", folder);
    command.spawn().expect("another process")
}

/// Not a test: the process that the others wait for, or that waits for them.
#[tokio::test]
#[ignore = "the child process of another test"]
async fn waits_for_the_lock() {
    let Ok(nodes) = std::env::var("REDQUORUM_CHILD_NODES") else { return };
    let folder = PathBuf::from(std::env::var_os("REDQUORUM_CHILD_FOLDER").expect("a folder"));
    let redlock = builder(nodes.split(',')).build().await.expect("nodes");
    let guard = redlock.lock(KEY).ttl(ms(5_000)).wait(6 * SOON).await.expect("it is free some day");
    assert!(guard.is_valid());
    std::fs::write(folder.join("held"), "").expect("a file");
    guard.release().await.expect("a quorum confirms");
}

/// Waits until somebody waits in the queue.
async fn until_waited_for(cluster: &Cluster) {
    let line = |server: &Server| server.exists("{k}:redquorum:line");
    harness::eventually(2 * SOON, "the rival waits in the queue", || cluster.iter().any(line)).await;
}

/// Work that awaits the rival, and then takes the thread away from everything else. Returns whether the rival has held by its end.
async fn starves(cluster: &Cluster, folder: &Path, mut others: impl FnMut()) -> bool {
    until_waited_for(cluster).await;
    others();
    thread::sleep(STARVED);
    let (held, until) = (folder.join("held"), Instant::now() + SOON);
    while !held.exists() && Instant::now() < until {
        thread::sleep(ms(5));
    }
    held.exists()
}

fn is_told(outcome: Result<bool, WithLockError<bool>>, mut rival: Child) {
    let Err(WithLockError::Lost { key, reason, output }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((key.as_bytes(), reason), (KEY.as_bytes(), Lost::Expired));
    assert_eq!(output, Some(true), "another process held the lock before the work had ended");
    assert!(rival.wait().expect("it ends").success());
}

async fn holder(cluster: &Cluster) -> Redlock {
    builder(cluster.urls()).ttl(TTL).build().await.expect("nodes")
}

/// Law: on a runtime with one thread, work that blocks it for longer than its lock lasts is told so, and has its output back.
#[tokio::test(flavor = "current_thread")]
async fn work_that_starves_its_only_thread_is_told() {
    let (cluster, folder) = (Cluster::start(3), tempfile::tempdir().expect("a folder"));
    let redlock = holder(&cluster).await;
    let rival = std::cell::OnceCell::new();

    let outcome = redlock
        .with_lock(KEY, async |_| {
            let _ = rival.set(self::rival(&cluster, folder.path()));
            starves(&cluster, folder.path(), || {}).await
        })
        .await;

    is_told(outcome, rival.into_inner().expect("begun"));
}

/// Law: the same on a runtime of many threads, if all of them are blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_starves_all_threads_is_told() {
    let (cluster, folder) = (Cluster::start(3), tempfile::tempdir().expect("a folder"));
    let redlock = holder(&cluster).await;
    let rival = std::cell::OnceCell::new();

    let outcome = redlock
        .with_lock(KEY, async |_| {
            let _ = rival.set(self::rival(&cluster, folder.path()));
            // More than there are threads, and for longer than the lock lasts, whichever thread takes which.
            let others = || (0..8).for_each(|_| drop(tokio::spawn(async { thread::sleep(STARVED) })));
            starves(&cluster, folder.path(), others).await
        })
        .await;

    is_told(outcome, rival.into_inner().expect("begun"));
}

/// Law: the face that blocks says the same of work whose lock ended: here since it was to be held for that long.
#[test]
fn both_faces_say_the_same() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).ttl(TTL).build_blocking().expect("nodes");

    let outcome = redlock.lock(KEY).max_hold(TTL).with(|_| {
        thread::sleep(STARVED);
        42
    });

    let Err(WithLockError::Lost { key, reason, output }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((key.as_bytes(), reason, output), (KEY.as_bytes(), Lost::MaxHoldReached, Some(42)));
}
