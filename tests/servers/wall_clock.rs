//! The wall clock is stepped and wrong, for whole processes: validity, waiting and tokens do not care.
//!
//! The clock of a child process is moved by libfaketime, which stands between the program and the C library. Where that
//! is not installed there is nothing to test; `scripts/faketime.sh` installs it.

#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clients::{SLACK, SOON, acquired, all_vote, builder, ms};
use harness::{Cluster, eventually, faketime, set_clock, with_clock_in};
use redquorum::{AcquireError, IntoNode, Lost, Redlock};
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};

const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;

/// Long enough that a busy machine keeps it alive, short enough to see it end.
const TTL: Duration = Duration::from_secs(2);

/// This program again, as the child that the test `role` needs, with its clock in a file where it has a library for it.
fn child(role: &str, nodes: &[String], folder: &Path, library: Option<&Path>, seconds: i64) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", &format!("wall_clock::{role}"), "--ignored", "--nocapture"])
        .stdout(Stdio::null());
    command.env("REDQUORUM_CHILD_NODES", nodes.join(",")).env("REDQUORUM_CHILD_FOLDER", folder);
    if let Some(library) = library {
        let clock = folder.join(format!("clock{seconds}"));
        set_clock(&clock, seconds as f64);
        with_clock_in(&mut command, library, &clock);
    }
    command.spawn().expect("another process")
}

fn ended_well(mut child: Child) {
    let status = child.wait().expect("the child ends");
    assert!(status.success(), "the child failed: {status}");
}

/// What a child was told: its nodes and its folder; `None` where this is the test run itself.
fn told() -> Option<(Vec<String>, PathBuf)> {
    let nodes = std::env::var("REDQUORUM_CHILD_NODES").ok()?;
    let folder = std::env::var_os("REDQUORUM_CHILD_FOLDER")?;
    Some((nodes.split(',').map(str::to_owned).collect(), folder.into()))
}

/// The time of day as this process sees it, in seconds.
fn seen() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_secs()).expect("a date")
}

/// The time of day as it is, in microseconds: asked of the kernel, which nothing stands before.
fn real_micros() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000).expect("after 1970")
}

/// Law: the wall clock stepped an hour ahead or back ends no lock early, keeps none too long, breaks no extension and no
/// wait, and lets nobody in beside a holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stepped_wall_clock_changes_nothing() {
    let Some(library) = faketime() else { return println!("skipped: libfaketime is not installed") };
    let cluster = Cluster::start(3);
    let folder = tempfile::tempdir().expect("a folder");
    let child = child("steps_its_clock", &cluster.urls(), folder.path(), Some(&library), 0);
    tokio::task::spawn_blocking(move || ended_well(child)).await.expect("a thread");
    eventually(SOON, "nothing left", || clients::keys_left(&cluster) == 0).await;
}

/// Not a test: what `a_stepped_wall_clock_changes_nothing` runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child process of another test"]
async fn steps_its_clock() {
    let Some((nodes, folder)) = told() else { return };
    let redlock = builder(nodes).ttl(TTL).max_ttl(TTL).build().await.expect("nodes");
    all_vote(&redlock).await;
    for step in [HOUR, -HOUR] {
        let started = Instant::now();
        let plain = redlock.acquire("plain").await.expect("free");
        let kept = redlock.lock("kept").keep_alive().fenced().await.expect("free");
        let (before, left) = (seen(), plain.remaining());

        set_clock(&folder.join("clock0"), step as f64);

        let stepped = seen() - before;
        assert!((stepped - step).abs() < 60, "stepped by {stepped} s instead of {step} s: nothing is tested");
        assert!(
            plain.is_valid() && plain.remaining() <= left && plain.remaining() + SLACK > left,
            "{left:?}"
        );
        let waited = Instant::now();
        let refused = redlock.lock("kept").wait(ms(700)).await.expect_err("it is held");
        assert!(matches!(refused, AcquireError::TimedOut { .. }), "{refused}");
        assert!((ms(699)..ms(700) + SLACK).contains(&waited.elapsed()), "{:?}", waited.elapsed());
        assert_eq!(plain.lost().await, Lost::Expired);
        let held = started.elapsed();
        assert!(!plain.is_valid() && held < TTL + SLACK && held + SLACK > TTL, "lost after {held:?}");
        let (rival, _) = acquired(&redlock, "plain", SOON).await;
        assert!(started.elapsed() + ms(50) > TTL, "two hold: {:?}", started.elapsed());
        rival.release().await.expect("held");
        while started.elapsed() < 3 * TTL {
            assert!(kept.is_valid(), "the kept lock ended after {:?}", started.elapsed());
            tokio::time::sleep(ms(20)).await;
        }
        let first = kept.fencing_token().expect("fenced");
        kept.release().await.expect("held");
        let next = redlock.lock("kept").fenced().await.expect("free");
        assert!(next.fencing_token().expect("fenced") > first, "{next:?} after {first}");
        next.release().await.expect("held");
        set_clock(&folder.join("clock0"), 0.0);
    }
    assert!(redlock.close(SOON).await, "all debts settled");
}

/// Law: over holders in four processes, while the nodes lose their memory one after the other, tokens rise strictly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_processes_while_nodes_are_wiped() {
    tokens_rise(300, 2, None).await;
}

/// Law: the same with one process's clock ten years ahead; tokens are never more than ten seconds ahead of the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_ten_years_ahead_moves_tokens_by_ten_seconds() {
    let Some(library) = faketime() else { return println!("skipped: libfaketime is not installed") };
    tokens_rise(300, 2, Some(&library)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute"]
async fn tokens_rise_over_processes_while_nodes_are_wiped_in_full_size() {
    tokens_rise(10_000, 10, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute"]
async fn a_clock_ten_years_ahead_moves_tokens_by_ten_seconds_in_full_size() {
    tokens_rise(10_000, 10, Some(&faketime().expect("libfaketime is installed"))).await;
}

/// Four processes take the same fenced lock until there were `count` holders and `wipes` nodes lost their memory.
///
/// Each writes its token down while it holds, at the end of one file: the order there is the order of holders.
async fn tokens_rise(count: usize, wipes: usize, library: Option<&Path>) {
    const PROCESSES: usize = 4;
    let cluster = Cluster::start(5);
    // With the restart delay, a server has to be older than the longest TTL before it votes.
    let old = || cluster.iter().all(|server| server.uptime() >= ms(3_000));
    eventually(SOON, "servers old enough to vote", old).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|number| match library {
            Some(library) if number == 0 => {
                child("takes_tokens", &cluster.urls(), folder.path(), Some(library), 10 * YEAR)
            }
            _ => child("takes_tokens", &cluster.urls(), folder.path(), None, 0),
        })
        .collect();
    let written =
        || std::fs::metadata(folder.path().join("tokens")).map_or(0, |file| file.len()) as usize / LINE;
    let watcher = delayed(cluster.urls()).await;

    let (mut wiped, mut progress) = (0, (Instant::now(), 0));
    while written() < count || wiped < wipes {
        let due = count * (wiped + 1) / (wipes + 1);
        if wiped < wipes && written() >= due {
            cluster[wiped % cluster.len()].wipe();
            wiped += 1;
            // The next one only after this one votes again: it is the loss of one node at a time that is promised.
            tokio::time::sleep(2 * YOUNG).await;
            all_vote(&watcher).await;
        }
        if written() > progress.1 {
            progress = (Instant::now(), written());
        }
        assert!(progress.0.elapsed() < SOON, "nobody gets in, after {} holders", progress.1);
        assert!(
            children.iter_mut().all(|child| child.try_wait().expect("a child").is_none()),
            "a child has ended"
        );
        tokio::time::sleep(ms(10)).await;
    }
    File::create(folder.path().join("enough")).expect("a file");
    tokio::task::spawn_blocking(move || children.into_iter().for_each(ended_well)).await.expect("a thread");

    let file = std::fs::read_to_string(folder.path().join("tokens")).expect("tokens");
    let mut last = 0;
    let (mut foremost, mut by) = (0_i64, [0; PROCESSES]);
    let mut processes = Vec::new();
    for line in file.lines() {
        let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [token, at, process] = numbers[..] else { panic!("{line}") };
        assert!(token > last, "{token} after {last}: {line}");
        last = token;
        foremost = foremost.max(token as i64 - at as i64);
        let known = processes.iter().position(|known| *known == process);
        by[known.unwrap_or_else(|| {
            processes.push(process);
            processes.len() - 1
        })] += 1;
    }
    println!(
        "{} holders, {by:?} by process, {wiped} nodes wiped, foremost token {foremost} µs ahead",
        by.iter().sum::<usize>()
    );
    assert!(by.iter().all(|held| *held > count / 20), "one process hardly took part: {by:?}");
    // One round may lie between a node's clock and the writing; both are this machine's.
    assert!(foremost <= 10_000_000, "{foremost} µs ahead");
    if library.is_some() {
        assert!(foremost > 5_000_000, "the clock that is ahead was never heard: {foremost} µs");
    }
}

/// The longest TTL where the restart delay is on, and with it how long a wiped node does not vote.
const YOUNG: Duration = Duration::from_secs(1);

/// A client with the restart delay on.
async fn delayed<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> Redlock {
    Redlock::builder().nodes(nodes).ttl(YOUNG).max_ttl(YOUNG).build().await.expect("a quorum of nodes")
}

/// Bytes of a line in the file of tokens.
const LINE: usize = 52;

/// Not a test: what `tokens_rise` runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child process of another test"]
async fn takes_tokens() {
    let Some((nodes, folder)) = told() else { return };
    let redlock = delayed(nodes).await;
    let mut tokens =
        OpenOptions::new().append(true).create(true).open(folder.join("tokens")).expect("a file");
    let witness = File::create(folder.join("witness")).expect("a file");
    while !folder.join("enough").exists() {
        let guard = match redlock.lock("tokens").fenced().wait(ms(2_000)).await {
            Ok(guard) => guard,
            Err(AcquireError::TimedOut { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        flock(&witness, FlockOperation::NonBlockingLockExclusive).expect("nobody else holds");
        let token = guard.fencing_token().expect("fenced").as_u64();
        let line = format!("{token:>20} {:>20} {:>9}\n", real_micros(), std::process::id());
        debug_assert_eq!(line.len(), LINE);
        tokens.write_all(line.as_bytes()).expect("written");
        tokio::time::sleep(ms(1)).await;
        // What was written after the lock ended says nothing about the order of holders.
        assert!(guard.is_valid(), "a second was not enough to write a line");
        flock(&witness, FlockOperation::Unlock).expect("held");
        let _ = guard.release().await;
        tokio::time::sleep(ms(5)).await;
    }
    assert!(redlock.close(SOON).await, "all debts settled");
}
