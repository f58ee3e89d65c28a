//! The measuring itself: one client alone, one client with a slow node, several clients that contend.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use redquorum::{Health, LockGuard, Outcome, Redlock, RedlockBuilder};

use super::series::Series;
use crate::exit::Failure;

/// How long answers that were not needed are waited for, to be measured, too; and as much longer as a node was slowed by.
const STRAGGLERS: Duration = Duration::from_millis(500);

/// So many locks at most are still held for the sake of such answers when the next one is acquired.
const OUTSTANDING: usize = 64;

/// How long a contender holds the lock.
pub const HOLD: Duration = Duration::from_millis(1);

/// One client that acquires and releases, again and again, without anybody in its way.
pub struct Alone {
    pub nodes: Vec<Series>,
    pub quorum: Series,
    pub release: Series,
    /// Acquires that failed.
    pub failed: u64,
    pub last_error: Option<String>,
    pub took: Duration,
}

/// Several clients that want the same lock.
pub struct Contended {
    /// From the call to the lock.
    pub wait: Series,
    /// From the call that releases to the next holder's lock.
    pub gaps: Series,
    /// How often each contender had the lock.
    pub shares: Vec<u64>,
    pub took: Duration,
    pub failed: u64,
}

impl Contended {
    /// Acquisitions in a second.
    pub fn rate(&self) -> f64 {
        self.wait.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Jain's index: 1 where all had the lock equally often, 1/n where one had it always.
    pub fn fairness(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|share| *share as f64).sum();
        let squares: f64 = self.shares.iter().map(|share| (*share as f64).powi(2)).sum();
        if squares == 0.0 { 1.0 } else { sum * sum / (self.shares.len() as f64 * squares) }
    }
}

/// How one client alone is measured.
#[derive(Clone, Copy)]
pub struct Pace {
    /// How many locks.
    pub count: u32,
    /// After so long there are no more of them.
    pub limit: Option<Duration>,
    /// By how much a node was slowed.
    pub slowed_by: Duration,
}

/// A lock that is held until all nodes have answered, or the time for that is over.
struct Open {
    guard: LockGuard,
    at: Duration,
    until: Instant,
}

/// Measures one client alone, which does one thing after the other. The answers that nobody needed are measured, too: a guard
/// tells of them for as long as it lives. To wait for them with each lock would take as long as the slowest node, all locks
/// together; so some locks stay open, each under a key of its own, while the next are acquired.
pub async fn alone(redlock: &Redlock, key: &str, pace: Pace, bar: &ProgressBar) -> Alone {
    let names = redlock.nodes().into_iter().enumerate();
    let nodes = names.map(|(index, node)| Series::new(format!("n{} {}", index + 1, node.address))).collect();
    let mut measured = Alone {
        nodes,
        quorum: Series::new("quorum"),
        release: Series::new("release"),
        failed: 0,
        last_error: None,
        took: Duration::ZERO,
    };
    connected(redlock).await;
    let began = Instant::now();
    let mut open = VecDeque::with_capacity(OUTSTANDING + 1);
    for number in 0..pace.count {
        if pace.limit.is_some_and(|limit| began.elapsed() >= limit) {
            break;
        }
        let key = format!("{key}:{number}");
        let at = began.elapsed();
        match redlock.try_acquire(&key).await {
            Ok(guard) => {
                measured.quorum.add(at, began.elapsed() - at);
                open.push_back(Open { guard, at, until: Instant::now() + STRAGGLERS + pace.slowed_by });
            }
            Err(error) => {
                measured.failed += 1;
                measured.last_error = Some(error.to_string());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        while open.len() > OUTSTANDING || open.front().is_some_and(Open::is_answered) {
            let Some(first) = open.pop_front() else { break };
            measured.end(first, began).await;
        }
        bar.inc(1);
    }
    for left in open {
        measured.end(left, began).await;
    }
    measured.took = began.elapsed();
    measured
}

impl Open {
    fn is_answered(&self) -> bool {
        self.guard.report().nodes().iter().all(|node| node.outcome != Outcome::Pending)
    }
}

impl Alone {
    /// How many locks were asked for.
    pub fn locks(&self) -> u64 {
        self.quorum.len() as u64 + self.failed
    }

    /// Takes down when each node answered, those included that nobody had to wait for, and releases the lock.
    async fn end(&mut self, open: Open, began: Instant) {
        while !open.is_answered() && Instant::now() < open.until {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        for (node, series) in open.guard.report().nodes().iter().zip(&mut self.nodes) {
            match node.outcome {
                Outcome::Granted => series.add(open.at, node.elapsed),
                _ => series.missing += 1,
            }
        }
        let asked = began.elapsed();
        if open.guard.release().await.is_ok() {
            self.release.add(asked, began.elapsed() - asked);
        }
    }
}

/// Waits until the first attempt to connect to each node has ended: a client is ready with a quorum, and the rounds of a short
/// measurement could be over before a slow node is there. The connect timeout bounds it.
async fn connected(redlock: &Redlock) {
    while redlock.nodes().iter().any(|node| node.health == Health::Connecting) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What one contender did: when it asked, had the lock, and began to release it.
#[derive(Clone, Copy)]
struct Hold {
    asked: Duration,
    held: Duration,
    released: Duration,
}

/// Measures clients that contend, each with connections of its own.
pub async fn contended(
    builder: &RedlockBuilder,
    key: &str,
    count: u32,
    contenders: u32,
    bar: &ProgressBar,
) -> Result<Contended, Failure> {
    let mut clients = Vec::new();
    for _ in 0..contenders {
        clients.push(builder.clone().build().await?);
    }
    let began = Instant::now();
    let rounds = (count / contenders).max(1);
    let contending = clients.iter().map(|client| {
        let (client, key, bar) = (client.clone(), key.to_owned(), bar.clone());
        tokio::spawn(async move {
            let mut holds = Vec::new();
            let mut failed = 0;
            for _ in 0..rounds {
                let asked = began.elapsed();
                match client.acquire(&key).await {
                    Ok(guard) => {
                        let held = began.elapsed();
                        tokio::time::sleep(HOLD).await;
                        let released = began.elapsed();
                        let _ = guard.release().await;
                        holds.push(Hold { asked, held, released });
                    }
                    Err(_) => failed += 1,
                }
                bar.inc(1);
            }
            (holds, failed)
        })
    });
    let ended = futures::future::join_all(contending.collect::<Vec<_>>()).await;
    let took = began.elapsed();
    for client in clients {
        client.close(Duration::from_secs(1)).await;
    }
    let ended: Vec<_> = ended.into_iter().flatten().collect();
    let mut all: Vec<_> = ended.iter().flat_map(|(holds, _)| holds.iter().copied()).collect();
    all.sort_by_key(|hold| hold.held);
    let (mut wait, mut gaps) = (Series::new("wait"), Series::new("hand-over"));
    for hold in &all {
        wait.add(hold.held, hold.held - hold.asked);
    }
    for (before, next) in all.iter().zip(all.iter().skip(1)) {
        gaps.add(next.held, next.held.saturating_sub(before.released));
    }
    Ok(Contended {
        wait,
        gaps,
        shares: ended.iter().map(|(holds, _)| holds.len() as u64).collect(),
        took,
        failed: ended.iter().map(|(_, failed)| failed).sum(),
    })
}
