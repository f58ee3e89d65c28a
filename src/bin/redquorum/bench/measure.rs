//! The measuring itself: one client alone, one client with a slow node, several clients that contend.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use redquorum::{Health, LockGuard, Outcome, Redlock, RedlockBuilder};

use super::series::Series;
use crate::exit::Failure;

/// How long answers that were not needed are waited for, to be measured, too.
const STRAGGLERS: Duration = Duration::from_millis(500);

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

/// Measures one client alone. `wait_for` says of which nodes the answer is waited for, where it is not needed.
pub async fn alone(redlock: &Redlock, key: &str, count: u32, bar: &ProgressBar) -> Alone {
    let names = redlock.nodes().into_iter().enumerate();
    let nodes = names.map(|(index, node)| Series::new(format!("n{} {}", index + 1, node.address))).collect();
    let mut measured = Alone {
        nodes,
        quorum: Series::new("quorum"),
        release: Series::new("release"),
        failed: 0,
        last_error: None,
    };
    connected(redlock).await;
    let began = Instant::now();
    for _ in 0..count {
        let at = began.elapsed();
        match redlock.try_acquire(key).await {
            Ok(guard) => {
                measured.quorum.add(at, began.elapsed() - at);
                answers(&guard, at, &mut measured.nodes).await;
                let asked = began.elapsed();
                if guard.release().await.is_ok() {
                    measured.release.add(asked, began.elapsed() - asked);
                }
            }
            Err(error) => {
                measured.failed += 1;
                measured.last_error = Some(error.to_string());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        bar.inc(1);
    }
    measured
}

/// Waits until the first attempt to connect to each node has ended: a client is ready with a quorum, and the rounds of a short
/// measurement could be over before a slow node is there. The connect timeout bounds it.
async fn connected(redlock: &Redlock) {
    while redlock.nodes().iter().any(|node| node.health == Health::Connecting) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// When each node answered, those included that nobody had to wait for.
async fn answers(guard: &LockGuard, at: Duration, nodes: &mut [Series]) {
    let until = Instant::now() + STRAGGLERS;
    let mut report = guard.report();
    while report.nodes().iter().any(|node| node.outcome == Outcome::Pending) && Instant::now() < until {
        tokio::time::sleep(Duration::from_micros(500)).await;
        report = guard.report();
    }
    for (node, series) in report.nodes().iter().zip(nodes) {
        match node.outcome {
            Outcome::Granted => series.add(at, node.elapsed),
            _ => series.missing += 1,
        }
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
