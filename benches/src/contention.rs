//! Processes that contend for one lock on five real servers.
//!
//! Every task notes when it asked, was granted and called release, on the machine's own clock. From that the parent finds
//! the figures, and whether two holds overlap: no library's word for it is asked. A task that still waits at the end
//! counts with the time that it had waited by then.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::bars::N;
use crate::locker::Locker;
use crate::nodes::Nodes;
use crate::ours::{How, Ours};
use crate::results::{Contention, OURS, Turns, median};
use crate::settings::Settings;

/// How many processes contend.
pub const PROCESSES: usize = 4;
/// How many tasks in each.
pub const TASKS: usize = 2;
/// How long each holds the lock.
pub const HOLD: Duration = Duration::from_millis(1);

/// This library, with waiting in the queue.
pub const LINE: &str = OURS;
/// This library's rounds, and what a client without a line does between them.
pub const RETRY: &str = "redquorum, retrying";
/// `rslock`, with the pauses that this library takes where it has no line.
pub const RSLOCK: &str = "rslock, 20 ms";
/// `rslock`, with the pauses that it takes by itself.
pub const RSLOCK_DEFAULT: &str = "rslock, 200 ms";
/// `redlock`, with pauses up to 20 ms.
pub const REDLOCK: &str = "redlock, 20 ms";
/// `distributed-lock`, which does not wait by itself, asked again after up to 20 ms.
pub const DISTRIBUTED_LOCK: &str = "distributed-lock, 20 ms";

/// The argument that makes this program a contender. See [`worker`].
pub const WORKER: &str = "contender";

/// Connecting and the first handshakes, on a machine that does other things as well.
const SETTING_OUT: Duration = Duration::from_millis(1_200);
/// Shares are compared while all contend; who started first and stopped last is left out.
const RUN_IN: f64 = 0.1;

/// Measures clients in turn, round after round: so many processes and tasks of each.
pub fn measure(
    nodes: &Nodes,
    clients: &[(&str, usize, usize)],
    hold: Duration,
    settings: &Settings,
) -> Result<Vec<Contention>, String> {
    let mut contentions: Vec<Contention> = clients
        .iter()
        .map(|(who, processes, tasks)| Contention {
            who: (*who).to_owned(),
            processes: *processes,
            tasks: *tasks,
            hold: u64::try_from(hold.as_micros()).unwrap_or(u64::MAX),
            rounds: Vec::new(),
            timeline: Vec::new(),
        })
        .collect();
    for round in 0..settings.rounds {
        for contention in &mut contentions {
            run(nodes, contention, round, settings.contention)?;
        }
    }
    Ok(contentions)
}

/// One acquisition, in nanoseconds on the machine's steady clock.
#[derive(Clone, Copy)]
struct Hold {
    task: usize,
    asked: u64,
    granted: u64,
    released: u64,
}

fn run(nodes: &Nodes, contention: &mut Contention, round: usize, time: Duration) -> Result<(), String> {
    let before = commands(nodes);
    let start = now() + nanos(SETTING_OUT);
    let end = start + nanos(time);
    // What a client leaves behind for the length of a TTL must not stand in the way of the next.
    let key = format!("bench:{}:{}:{round}", contention.who, contention.processes);
    let program = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    let children: Vec<Child> = (0..contention.processes)
        .map(|process| {
            Command::new(&program)
                .args([WORKER, &contention.who, &nodes.urls(N).join(","), &key])
                .args([contention.tasks.to_string(), (process * contention.tasks).to_string()])
                .args([contention.hold.to_string(), start.to_string(), end.to_string()])
                .stdout(Stdio::piped())
                .spawn()
        })
        .collect::<Result<_, _>>()
        .map_err(|error| format!("starting a contender: {error}"))?;
    let (mut holds, mut waiting) = (Vec::new(), Vec::new());
    for child in children {
        let output = child.wait_with_output().map_err(|error| format!("waiting for a contender: {error}"))?;
        if !output.status.success() {
            return Err(format!("a contender of {} failed", contention.who));
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
            match numbers[..] {
                [task, asked, granted, released] => {
                    holds.push(Hold { task: task as usize, asked, granted, released })
                }
                [_, asked] => waiting.push(asked),
                _ => return Err(format!("a contender of {} said {line:?}", contention.who)),
            }
        }
    }
    let commands = commands(nodes).saturating_sub(before);
    holds.sort_by_key(|hold| hold.granted);
    let run_in = (nanos(time) as f64 * RUN_IN) as u64;
    let all = Holds { from: start + run_in, to: end - run_in / 2, end, commands, holds, waiting };
    contention.timeline = all.timeline(start);
    contention.rounds.push(all.turns(contention.tasks, contention.processes));
    Ok(())
}

/// What all contenders noted in one round.
struct Holds {
    from: u64,
    to: u64,
    end: u64,
    commands: u64,
    holds: Vec<Hold>,
    /// When those asked who were not granted.
    waiting: Vec<u64>,
}

impl Holds {
    fn turns(&self, tasks: usize, processes: usize) -> Turns {
        let steady: Vec<Hold> = self
            .holds
            .iter()
            .copied()
            .filter(|hold| hold.granted >= self.from && hold.granted < self.to)
            .collect();
        let gaps = sorted(steady.windows(2).map(|pair| pair[1].granted.saturating_sub(pair[0].released)));
        let waits = sorted(steady.iter().map(|hold| hold.granted - hold.asked));
        // Starved is also who was granted too late to count, or not at all.
        let late =
            self.holds.iter().filter(|hold| hold.asked < self.to).map(|hold| hold.granted - hold.asked);
        let never = self.waiting.iter().map(|asked| self.end.saturating_sub(*asked));
        Turns {
            rate: steady.len() as f64 / (self.to - self.from) as f64 * 1e9,
            wait_p50: at(&waits, 0.5) / 1e6,
            wait_p99: at(&waits, 0.99) / 1e6,
            longest: late.chain(never).max().unwrap_or_default() as f64 / 1e6,
            jain: jain(steady.iter().map(|hold| hold.task), tasks * processes),
            jain_processes: jain(steady.iter().map(|hold| hold.task / tasks), processes),
            gap_p50: at(&gaps, 0.5) / 1e3,
            gap_p99: at(&gaps, 0.99) / 1e3,
            commands: self.commands as f64 / self.holds.len().max(1) as f64,
            overlaps: self.holds.windows(2).filter(|pair| pair[0].released > pair[1].granted).count() as u64,
            waiting: self.waiting.len() as u64,
        }
    }

    /// Every wait, or a share of them where there are too many to draw; the longest stay.
    fn timeline(&self, start: u64) -> Vec<(f64, f64)> {
        const MOST: usize = 1_500;
        let waits = sorted(self.holds.iter().map(|hold| hold.granted - hold.asked));
        let long = at(&waits, 0.99) as u64;
        let every = self.holds.len().div_ceil(MOST).max(1);
        let drawn = self
            .holds
            .iter()
            .enumerate()
            .filter(|(number, hold)| number % every == 0 || hold.granted - hold.asked > long);
        let point = |granted: u64, asked: u64| {
            (granted.saturating_sub(start) as f64 / 1e9, granted.saturating_sub(asked) as f64 / 1e6)
        };
        drawn
            .map(|(_, hold)| point(hold.granted, hold.asked))
            .chain(self.waiting.iter().map(|asked| point(self.end, *asked)))
            .collect()
    }
}

/// Jain's index of fairness over the shares of `many`: (Σx)² / (n Σx²).
fn jain(who: impl Iterator<Item = usize>, many: usize) -> f64 {
    let mut counts = vec![0.0_f64; many];
    who.for_each(|who| counts[who] += 1.0);
    let (sum, squares) = (counts.iter().sum::<f64>(), counts.iter().map(|count| count * count).sum::<f64>());
    if sum > 0.0 { sum * sum / (many as f64 * squares) } else { 0.0 }
}

fn sorted(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

fn at(sorted: &[u64], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, |number| *number as f64)
}

/// What was sent to the nodes: scripts, native compare-and-deletes and plain sets, without the set that a script makes
/// when it hands a key over, of which each publishes once.
fn commands(nodes: &Nodes) -> u64 {
    let count = |names: &[&str]| -> u64 {
        let of = |name: &str| nodes.healthy().iter().map(|server| server.commandstats(name)).sum::<u64>();
        names.iter().map(|name| of(name)).sum()
    };
    count(&["evalsha", "eval", "delifeq", "delex", "set"]).saturating_sub(count(&["publish"]))
}

impl Contention {
    /// The median over the rounds.
    pub fn median(&self, of: impl Fn(&Turns) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }
}

/// A contender: what this program does where its first argument is [`WORKER`].
pub fn worker(arguments: &[String]) -> Result<(), String> {
    let [who, urls, key, numbers @ ..] = arguments else { return Err("too few arguments".to_owned()) };
    let numbers: Vec<u64> = numbers.iter().map_while(|number| number.parse().ok()).collect();
    let [tasks, first, hold, start, end] = numbers[..] else {
        return Err("five numbers expected".to_owned());
    };
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let shift = Shift { key: key.clone(), tasks, first, hold: Duration::from_micros(hold), start, end };
    let runtime = crate::measure::runtime("current-thread");
    let notes = runtime.block_on(async {
        match who.as_str() {
            LINE => {
                let ours = Ours::connect(&urls, How::Plain).await.map_err(|error| error.to_string())?;
                let notes = shift.work(ours.clone()).await;
                ours.close().await;
                Ok(notes)
            }
            RETRY => {
                let ours = Ours::connect(&urls, How::Once).await.map_err(|error| error.to_string())?;
                let retrying = Retrying { once: ours.clone(), least_ms: 20, most_ms: 250 };
                let notes = shift.work(retrying).await;
                ours.close().await;
                Ok(notes)
            }
            #[cfg(feature = "peers")]
            RSLOCK => Ok(shift.work(crate::peers::Rslock::connect(&urls, Some(20))).await),
            #[cfg(feature = "peers")]
            RSLOCK_DEFAULT => Ok(shift.work(crate::peers::Rslock::connect(&urls, Some(200))).await),
            #[cfg(feature = "peers")]
            REDLOCK => Ok(shift.work(crate::peers::OldRedlock::connect(&urls, Some(20))).await),
            #[cfg(feature = "peers")]
            DISTRIBUTED_LOCK => {
                let once = crate::peers::DistributedLock::connect(&urls).await?;
                Ok(shift.work(Retrying { once, least_ms: 20, most_ms: 20 }).await)
            }
            other => Err(format!("{other}: no such contender, or built without it")),
        }
    })?;
    let mut out = std::io::stdout().lock();
    for note in notes {
        writeln!(out, "{note}").map_err(|error| format!("the parent does not read: {error}"))?;
    }
    // A peer's thread may still wait for the lock, and would keep the process.
    std::process::exit(0)
}

/// What one contender is told.
struct Shift {
    key: String,
    tasks: u64,
    first: u64,
    hold: Duration,
    start: u64,
    end: u64,
}

impl Shift {
    /// All tasks' notes, a line each: task, asked, granted, released; or task and asked of who still waits.
    async fn work<L: Locker>(&self, locker: L) -> Vec<String> {
        let (start, end, hold) = (self.start, self.end, self.hold);
        let tasks = (self.first..self.first + self.tasks).map(|task| {
            let (locker, key) = (locker.clone(), self.key.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
                let mut notes = Vec::new();
                while now() < end {
                    let asked = now();
                    let left = Duration::from_nanos(end.saturating_sub(asked));
                    match tokio::time::timeout(left, locker.acquire(&key)).await {
                        Ok(Some(held)) => {
                            let granted = now();
                            // A sleep of tokio's would last one to two milliseconds longer.
                            let until = Instant::now() + hold;
                            while Instant::now() < until {
                                std::hint::spin_loop();
                            }
                            let released = now();
                            locker.release(held).await;
                            notes.push(format!("{task} {asked} {granted} {released}"));
                        }
                        Ok(None) => tokio::task::yield_now().await,
                        Err(_) => notes.push(format!("{task} {asked}")),
                    }
                }
                notes
            })
        });
        let mut all = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            all.extend(task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
        }
        all
    }
}

/// What a client without a line does: asks again after a random pause, doubling from the least to the most.
#[derive(Clone)]
struct Retrying<L> {
    once: L,
    least_ms: u64,
    most_ms: u64,
}

impl<L: Locker> Locker for Retrying<L> {
    type Held = L::Held;

    async fn acquire(&self, key: &str) -> Option<L::Held> {
        let mut pause = Duration::from_millis(self.least_ms);
        loop {
            if let Some(held) = self.once.acquire(key).await {
                return Some(held);
            }
            tokio::time::sleep(pause.mul_f64(rand::random::<f64>())).await;
            pause = (pause * 2).min(Duration::from_millis(self.most_ms));
        }
    }

    async fn release(&self, held: L::Held) {
        self.once.release(held).await;
    }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
