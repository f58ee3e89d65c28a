//! What waiting costs: processes that contend for one lock on five real servers, side by side with randomised retry and
//! with another client.
//!
//! `make bench-contention` prints the table; `make bench-contention SECONDS=20` runs each row for that long.
//!
//! Every task notes when it asked, was granted and called release, on the machine's own clock. From that the parent
//! finds the figures, and that no two holds overlap: no library's word for it is asked.

#[path = "../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports)]
mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Cluster;
use redquorum::{LockGuard, Redlock};

const NODES: usize = 5;
const PROCESSES: usize = 4;
const TASKS: usize = 2;
const KEY: &str = "bench";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|role| role == "worker") {
        return worker(&arguments[2..]);
    }
    let seconds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(5);
    let cluster = Cluster::start(NODES);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (pause, when) in [(0, "at once after each other"), (1_000, "after 1 ms of holding")] {
        let round_trip = runtime.block_on(fan_out(&cluster, Duration::from_micros(pause)));
        println!("round trip of a bare fan-out to {NODES} nodes, third answer, {when}: p50 {round_trip:.0?}");
    }
    println!(
        "\n| how | processes × tasks | hold | per second | gap p50 | gap p99 | wait p50 | wait p99 | longest | p99/p50 \
         | Jain tasks | Jain processes | commands each |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for hold in [1_000, 0] {
        for (how, processes, tasks) in [
            ("plain", 1, 1),
            ("line", 1, 1),
            ("line", PROCESSES, TASKS),
            ("retry", PROCESSES, TASKS),
            ("rslock", 1, 1),
            ("rslock", PROCESSES, TASKS),
        ] {
            row(&cluster, how, processes, tasks, hold, seconds);
        }
    }
}

/// One acquisition, in nanoseconds on the machine's steady clock.
#[derive(Clone, Copy)]
struct Hold {
    task: usize,
    asked: u64,
    granted: u64,
    released: u64,
}

fn row(cluster: &Cluster, how: &str, processes: usize, tasks: usize, hold_micros: u64, seconds: u64) {
    let before = commands(cluster);
    let start = now() + 1_500_000_000;
    let children: Vec<_> = (0..processes)
        .map(|process| {
            Command::new(std::env::current_exe().expect("this program"))
                .arg("worker")
                .arg(cluster.urls().join(","))
                .args([how, &tasks.to_string(), &hold_micros.to_string(), &start.to_string()])
                .args([&(start + seconds * 1_000_000_000).to_string(), &(process * tasks).to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a worker")
        })
        .collect();
    let mut holds = Vec::new();
    for child in children {
        let output = child.wait_with_output().expect("the worker's output");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut numbers = line.split(' ').map(|number| number.parse::<u64>().expect("a number"));
            let mut next = || numbers.next().expect("four numbers");
            let (task, asked, granted, released) = (next() as usize, next(), next(), next());
            holds.push(Hold { task, asked, granted, released });
        }
    }
    let sent = commands(cluster) - before;
    let each = sent as f64 / holds.len() as f64;
    holds.sort_by_key(|hold| hold.granted);
    for pair in holds.windows(2) {
        assert!(pair[0].released <= pair[1].granted, "two holders at a time");
    }
    // Shares are compared while all contend; who started first and stopped last is left out.
    let (from, to) = (start + 300_000_000, start + seconds * 1_000_000_000 - 100_000_000);
    let steady: Vec<Hold> =
        holds.iter().copied().filter(|hold| hold.granted > from && hold.granted < to).collect();
    let mut gaps: Vec<u64> = steady.windows(2).map(|pair| pair[1].granted - pair[0].released).collect();
    let mut waits: Vec<u64> = steady.iter().map(|hold| hold.granted - hold.asked).collect();
    gaps.sort_unstable();
    waits.sort_unstable();
    let share = |of: &dyn Fn(&Hold) -> usize, many: usize| {
        let mut counts = vec![0.0_f64; many];
        steady.iter().for_each(|hold| counts[of(hold)] += 1.0);
        let (sum, squares) =
            (counts.iter().sum::<f64>(), counts.iter().map(|count| count * count).sum::<f64>());
        sum * sum / (many as f64 * squares)
    };
    let at = |sorted: &[u64], share: f64| {
        let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
        Duration::from_nanos(sorted.get(index).copied().unwrap_or_default())
    };
    println!(
        "| {how} | {processes} × {tasks} | {} ms | {:.0} | {:.0?} | {:.0?} | {:.2?} | {:.2?} | {:.2?} | {:.2} | {:.4} | {:.4} \
         | {each:.1} |",
        hold_micros / 1_000,
        steady.len() as f64 / (to - from) as f64 * 1e9,
        at(&gaps, 0.5),
        at(&gaps, 0.99),
        at(&waits, 0.5),
        at(&waits, 0.99),
        at(&waits, 1.0),
        at(&waits, 0.99).as_secs_f64() / at(&waits, 0.5).as_secs_f64(),
        share(&|hold| hold.task, processes * tasks),
        share(&|hold| hold.task / tasks, processes),
    );
}

fn worker(arguments: &[String]) {
    let [urls, how, tasks, hold, start, end, first] = arguments else { panic!("{arguments:?}") };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (hold, start, end) = (Duration::from_micros(number(hold)), number(start), number(end));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let holds = runtime.block_on(async {
        let locker = Locker::connect(how, urls).await;
        let tasks = (0..number(tasks)).map(|task| {
            let locker = locker.clone();
            let task = (number(first) + task) as usize;
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
                let mut holds = Vec::new();
                while now() < end {
                    let asked = now();
                    let Some(held) = locker.acquire().await else { continue };
                    let granted = now();
                    let until = Instant::now() + hold;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    let released = now();
                    held.release().await;
                    holds.push(Hold { task, asked, granted, released });
                }
                holds
            })
        });
        let mut all = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            all.extend(task.await.expect("the task"));
        }
        if let Locker::Line(redlock) | Locker::Retry(redlock) = locker {
            redlock.close(Duration::from_secs(2)).await;
        }
        all
    });
    let mut out = std::io::stdout().lock();
    for Hold { task, asked, granted, released } in holds {
        writeln!(out, "{task} {asked} {granted} {released}").expect("the parent reads");
    }
}

/// Those that are compared.
#[derive(Clone)]
enum Locker {
    /// This library, with waiting in line.
    Line(Redlock),
    /// This library's rounds, and what a client without a line does between them.
    Retry(Redlock),
    /// The `rslock` crate, with as many retries as it takes and the same pauses.
    Rslock(rslock::LockManager),
}

enum Held {
    Guard(LockGuard),
    Rslock(rslock::LockManager, rslock::Lock),
}

impl Locker {
    async fn connect(how: &str, urls: &str) -> Self {
        if how == "rslock" {
            let mut manager = rslock::LockManager::new(urls.split(',').collect());
            manager.set_retry(u32::MAX, Duration::from_millis(20));
            return Self::Rslock(manager);
        }
        let builder = Redlock::builder().nodes(urls.split(',')).no_restart_guard();
        let builder = if how == "line" { builder } else { builder.wait_by_retrying() };
        let redlock = builder.build().await.expect("a client");
        if how == "retry" { Self::Retry(redlock) } else { Self::Line(redlock) }
    }

    async fn acquire(&self) -> Option<Held> {
        match self {
            Self::Line(redlock) => redlock.acquire(KEY).await.ok().map(Held::Guard),
            Self::Retry(redlock) => retry(redlock).await.map(Held::Guard),
            Self::Rslock(manager) => {
                let lock = manager.lock(KEY, Duration::from_secs(10)).await.ok()?;
                Some(Held::Rslock(manager.clone(), lock))
            }
        }
    }
}

impl Held {
    async fn release(self) {
        match self {
            Self::Guard(guard) => drop(guard.release().await),
            Self::Rslock(manager, lock) => manager.unlock(&lock).await,
        }
    }
}

/// What a client without a line does: asks again after a random pause, up to 20 ms at first, doubling up to 250 ms.
async fn retry(redlock: &Redlock) -> Option<LockGuard> {
    let mut pause = Duration::from_millis(20);
    loop {
        match redlock.try_acquire(KEY).await {
            Ok(guard) => return Some(guard),
            Err(_) => tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await,
        }
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

/// The third answer of five to a set, from sending on, with nothing of this project in between.
async fn fan_out(cluster: &Cluster, pause: Duration) -> Duration {
    let mut connections = Vec::new();
    for url in cluster.urls() {
        let client = redis::Client::open(url).expect("a url");
        connections.push(client.get_multiplexed_async_connection().await.expect("a connection"));
    }
    let mut times = Vec::new();
    for _ in 0..3_000 {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let started = Instant::now();
        let asked = connections.iter().map(|connection| {
            let mut connection = connection.clone();
            async move {
                let mut set = redis::cmd("SET");
                set.arg("fan-out").arg(7).arg("NX").arg("PX").arg(10_000);
                set.exec_async(&mut connection).await.expect("an answer")
            }
        });
        let mut asked: futures::stream::FuturesUnordered<_> = asked.collect();
        for _ in 0..3 {
            futures::StreamExt::next(&mut asked).await;
        }
        times.push(started.elapsed());
        while futures::StreamExt::next(&mut asked).await.is_some() {}
    }
    times.sort_unstable();
    times[times.len() / 2]
}

/// What was sent to all nodes: scripts, native compare-and-deletes and plain sets, without the set that a script makes
/// when it hands a key over, of which each publishes once.
fn commands(cluster: &Cluster) -> u64 {
    let count = |names: &[&str]| -> u64 {
        cluster.iter().map(|server| names.iter().map(|name| server.commandstats(name)).sum::<u64>()).sum()
    };
    count(&["evalsha", "eval", "delifeq", "delex", "set"]) - count(&["publish"])
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
