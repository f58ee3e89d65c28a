//! One client process: tasks that take locks of all kinds, and write down what they see.

use std::future::IntoFuture;
use std::path::Path;
use std::time::Duration;

use redquorum::{AcquireError, LockGuard, LockRequest, Redlock};
use tokio::time::{Instant, sleep, timeout};

use super::history::Pen;
use super::known::Notebook;
use super::time::{Nanos, Time};
use super::{TTL, ms};

/// Tasks of one client.
pub const TASKS: usize = 9;

/// Runs until the storm is over, which a file says.
pub async fn run(nodes: Vec<String>, folder: &Path) {
    let builder = Redlock::builder()
        .nodes(nodes)
        .ttl(TTL)
        .max_ttl(TTL)
        .reply_timeout(ms(300))
        .connect_timeout(ms(300))
        .lazy();
    // With the restart delay: that nodes forget is part of the storm. To see the checker find what comes of it without.
    let builder = match std::env::var_os("REDQUORUM_STORM_UNGUARDED") {
        None => builder,
        Some(_) => builder.without_restart_delay(),
    };
    let redlock = builder.build().await.expect("a client");
    let time = Time::of(folder);
    let pen = Pen::new(folder, time.clone());
    let mut notebook = Notebook::new(folder, time.clone());
    let over = folder.join("over");
    let tasks = (0..TASKS).map(|task| {
        let client = Client { redlock: redlock.clone(), pen: pen.clone(), time: time.clone(), task };
        let over = over.clone();
        tokio::spawn(async move {
            let mut round = 0;
            while !over.exists() {
                client.once(round).await;
                round += 1;
            }
        })
    });
    let tasks = tasks.collect::<Vec<_>>();
    while !over.exists() {
        notebook.write(&redlock);
        sleep(ms(50)).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    // Debts of the last moments are over after a TTL.
    assert!(redlock.close(3 * TTL).await, "debts are open after three TTLs");
}

struct Client {
    redlock: Redlock,
    pen: Pen,
    time: Time,
    task: usize,
}

impl Client {
    async fn once(&self, round: u64) {
        match self.task {
            // Plain, in line.
            0 | 1 => {
                if let Some(guard) = self.take("line", |lock| lock.wait(TTL)).await {
                    self.hold(guard, between(1, 4)).await;
                }
                sleep(between(0, 4)).await;
            }
            // Each with a token.
            2 => {
                if let Some(guard) = self.take("fenced", |lock| lock.fenced().wait(TTL)).await {
                    self.hold(guard, between(1, 4)).await;
                }
                sleep(between(0, 10)).await;
            }
            // Kept alive beyond its TTL.
            3 => {
                if let Some(guard) = self.take("kept", |lock| lock.keep_alive().wait(3 * TTL)).await {
                    self.hold(guard, between(10, 5_000)).await;
                }
            }
            // All kinds on one lock.
            4 => {
                let (fenced, kept) = (rand::random_bool(0.5), rand::random_bool(0.3));
                let shape = |lock: LockRequest| {
                    let lock = if fenced { lock.fenced() } else { lock };
                    if kept { lock.keep_alive() } else { lock }
                };
                if let Some(guard) = self.take("mixed", |lock| shape(lock).wait(TTL)).await {
                    self.hold(guard, between(1, 300)).await;
                }
                sleep(between(0, 30)).await;
            }
            // Changes its mind, at any moment.
            5 => {
                self.change_mind("mind").await;
                sleep(between(5, 30)).await;
            }
            // Held without being kept alive, and for longer than it lasts now and then.
            6 => {
                // Most do not wait in the queue: they try all nodes again and again, and so find any that forgot.
                let waits = rand::random_bool(0.1);
                let shape = |lock: LockRequest| if waits { lock.wait(3 * TTL) } else { lock };
                if let Some(guard) = self.take("long", shape).await {
                    self.hold(guard, between(10, 3_000)).await;
                }
                sleep(between(0, 30)).await;
            }
            // A free lock each time: whether there is one is a matter of the nodes alone.
            _ => {
                let key = format!("free-{}-{}-{round}", std::process::id(), self.task);
                if let Some(guard) = self.take(&key, |lock| lock.wait(TTL)).await {
                    self.hold(guard, between(0, 3)).await;
                }
                sleep(between(5, 40)).await;
            }
        }
    }

    async fn take(&self, key: &str, shape: impl FnOnce(LockRequest) -> LockRequest) -> Option<LockGuard> {
        let lock = shape(self.redlock.lock(key));
        let asked = self.pen.asked(self.task, key);
        match lock.await {
            Ok(guard) => self.granted(guard, asked),
            Err(error) => {
                self.pen.failed(self.task, word(&error));
                sleep(between(1, 20)).await;
                None
            }
        }
    }

    /// The lock is its own. But what was under way when the clock stood still may be over, and is not used.
    fn granted(&self, guard: LockGuard, asked: Nanos) -> Option<LockGuard> {
        // The clock first: what is written is never later than what was promised.
        let (at, left) = (self.time.now(), guard.remaining());
        if self.time.measured_wrongly(asked) {
            self.pen.failed(self.task, "clock-stood-still");
            return None;
        }
        self.pen.granted(self.task, at, left, guard.fencing_token().map_or(0, |token| token.as_u64()));
        Some(guard)
    }

    /// It still is, unless the clock stood still and the client need not know yet.
    fn holds(&self, guard: &LockGuard) {
        let (at, left) = (self.time.now(), guard.remaining());
        if !left.is_zero() && !self.time.is_in_doubt() {
            self.pen.holds(self.task, at, left);
        }
    }

    /// Works under the lock, and stops once it is lost.
    async fn hold(&self, mut guard: LockGuard, length: Duration) {
        let (end, mut lost) = (Instant::now() + length, Box::pin(guard.lost()));
        while Instant::now() < end {
            let step = end.duration_since(Instant::now()).min(ms(50));
            if timeout(step, &mut lost).await.is_ok() {
                break;
            }
            if !guard.is_valid() {
                break;
            }
            self.holds(&guard);
        }
        if rand::random_bool(0.05) && guard.extend(TTL).await.is_ok() {
            self.holds(&guard);
        }
        self.pen.releases(self.task);
        // Given back and waited for, given back unheard, or left lying.
        match rand::random_range(0..10) {
            0 => drop(guard),
            1 => drop(timeout(ms(1), guard.release()).await),
            _ => drop(guard.release().await),
        }
    }

    /// Asks, and walks away a moment later: whatever the nodes granted is to be taken back.
    async fn change_mind(&self, key: &str) {
        let lock = self.redlock.lock(key).wait(TTL).into_future();
        let asked = self.pen.asked(self.task, key);
        match timeout(Duration::from_micros(rand::random_range(0..3_000)), lock).await {
            Ok(Ok(guard)) => {
                if let Some(guard) = self.granted(guard, asked) {
                    self.hold(guard, between(0, 3)).await;
                }
            }
            Ok(Err(error)) => self.pen.failed(self.task, word(&error)),
            Err(_) => self.pen.failed(self.task, "dropped"),
        }
    }
}

fn between(least: u64, most: u64) -> Duration {
    Duration::from_micros(rand::random_range(least * 1_000..=most * 1_000))
}

fn word(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::Held { .. } => "held",
        AcquireError::NoQuorum { .. } => "no-quorum",
        AcquireError::NodesTooYoung { .. } => "young",
        AcquireError::TooSlow { .. } => "validity-exhausted",
        AcquireError::TimedOut { last, .. } => match **last {
            AcquireError::Held { .. } => "waited-for-holder",
            AcquireError::NoQuorum { .. } => "waited-for-quorum",
            AcquireError::NodesTooYoung { .. } => "waited-for-guard",
            _ => "waited",
        },
        _ => panic!("{error}"),
    }
}
