//! The measuring loop: tasks that acquire and release, each a key of its own, as fast as they can.
//!
//! Samples go into vectors while a round runs, and into histograms after it, so that no histogram is part of what is
//! measured. The loop is closed: a task asks again when it is answered, so a slow answer also keeps back the questions
//! that would have met the same slowness. It says what a cycle costs, and not how long a service with a fixed rate of
//! requests would wait.

use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::locker::Locker;
use crate::results::{Latency, Round, Row, median};
use crate::settings::Settings;

/// How much longer than its time a client may take before it is given up: far more than any timeout of a peer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Three digits of nanoseconds, up to a minute.
const LONGEST_NANOS: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

/// Makes the keys of each section its own, so that nothing that stayed behind stands in anybody's way.
static SECTIONS: AtomicU64 = AtomicU64::new(0);

/// A runtime as an application would have it.
pub fn runtime(kind: &str) -> Runtime {
    let mut builder =
        if kind == "current-thread" { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build().expect("a runtime: threads and descriptors are left")
}

/// A section under way.
type Running = Pin<Box<dyn Future<Output = Section>>>;

/// A client in a situation, ready to be measured.
pub struct Entrant {
    who: String,
    situation: String,
    nodes: usize,
    run: Box<dyn Fn(usize, Duration) -> Running>,
    /// It never answered, so asking again in the next round would only cost time.
    stuck: AtomicBool,
}

impl Entrant {
    /// Names a client.
    pub fn new<L: Locker>(who: &str, situation: &str, nodes: usize, locker: L) -> Self {
        let run = move |tasks, time| -> Running { Box::pin(section(locker.clone(), tasks, time)) };
        let stuck = AtomicBool::new(false);
        Self { who: who.to_owned(), situation: situation.to_owned(), nodes, run: Box::new(run), stuck }
    }
}

/// Measures all entrants in turn, round after round.
pub async fn interleave(runtime: &str, entrants: &[Entrant], tasks: usize, settings: &Settings) -> Vec<Row> {
    let mut sections: Vec<Vec<Section>> = entrants.iter().map(|_| Vec::new()).collect();
    for round in 0..=settings.rounds {
        for (entrant, sections) in entrants.iter().zip(&mut sections) {
            if entrant.stuck.load(Ordering::Relaxed) {
                continue;
            }
            // The first round warms up: connections, buffers, scripts, estimates.
            let time = if round == 0 { settings.section / 5 } else { settings.section };
            let section = (entrant.run)(tasks, time).await;
            entrant.stuck.store(section.stuck, Ordering::Relaxed);
            if round > 0 || section.stuck {
                sections.push(section);
            }
            // Whatever a section left under way ends before the next begins.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    entrants.iter().zip(sections).map(|(entrant, sections)| row(runtime, entrant, tasks, sections)).collect()
}

/// What one client did in one round.
struct Section {
    acquire: Histogram<u64>,
    release: Histogram<u64>,
    cycle: Histogram<u64>,
    failures: u64,
    elapsed: Duration,
    processor: Duration,
    stuck: bool,
}

/// When one cycle asked, held and had released.
struct Sample {
    acquire: Duration,
    release: Duration,
}

async fn section<L: Locker>(locker: L, tasks: usize, time: Duration) -> Section {
    let number = SECTIONS.fetch_add(1, Ordering::Relaxed);
    let failures = Arc::new(AtomicU64::new(0));
    let processor = processor_time();
    let started = Instant::now();
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let prefix = format!("bench:{number}:{task}:");
        set.spawn(cycles(locker.clone(), prefix, started + time, failures.clone()));
    }
    let mut samples = Vec::with_capacity(tasks);
    let all = async {
        while let Some(done) = set.join_next().await {
            samples.push(done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
        }
    };
    let stuck = tokio::time::timeout(time + PATIENCE, all).await.is_err();
    let (elapsed, processor) = (started.elapsed(), processor_time().saturating_sub(processor));
    set.abort_all();
    let mut section = Section {
        acquire: histogram(),
        release: histogram(),
        cycle: histogram(),
        failures: failures.load(Ordering::Relaxed),
        elapsed,
        processor,
        stuck,
    };
    for Sample { acquire, release } in samples.into_iter().flatten() {
        section.acquire.saturating_record(nanos(acquire));
        section.release.saturating_record(nanos(release));
        section.cycle.saturating_record(nanos(acquire + release));
    }
    section
}

async fn cycles<L: Locker>(locker: L, prefix: String, end: Instant, failures: Arc<AtomicU64>) -> Vec<Sample> {
    let mut samples = Vec::with_capacity(4_096);
    let mut key = String::with_capacity(prefix.len() + 20);
    loop {
        key.clear();
        write!(key, "{prefix}{}", samples.len()).expect("a string takes what is written");
        let asked = Instant::now();
        match locker.acquire(&key).await {
            Some(held) => {
                let granted = Instant::now();
                locker.release(held).await;
                let released = Instant::now();
                samples.push(Sample { acquire: granted - asked, release: released - granted });
            }
            None => {
                failures.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
        if Instant::now() >= end {
            return samples;
        }
    }
}

impl Section {
    fn round(&self) -> Round {
        let cycles = self.cycle.len() as f64;
        Round {
            acquire: latency(&self.acquire),
            release: latency(&self.release),
            cycle: latency(&self.cycle),
            rate: cycles / self.elapsed.as_secs_f64(),
            cpu: if cycles > 0.0 { self.processor.as_secs_f64() * 1e6 / cycles } else { 0.0 },
        }
    }
}

fn row(runtime: &str, entrant: &Entrant, tasks: usize, sections: Vec<Section>) -> Row {
    let rounds: Vec<Round> = sections.iter().map(Section::round).collect();
    let mut all = histogram();
    for section in &sections {
        all.add(&section.cycle).expect("histograms of one kind");
    }
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let latencies = |of: fn(&Round) -> Latency| over_rounds(rounds.iter().map(of).collect());
    Row {
        who: entrant.who.clone(),
        situation: entrant.situation.clone(),
        runtime: runtime.to_owned(),
        nodes: entrant.nodes,
        tasks,
        acquire: latencies(|round| round.acquire),
        release: latencies(|round| round.release),
        cycle: latencies(|round| round.cycle),
        rate: of(|round| round.rate),
        cpu: of(|round| round.cpu),
        cycles: all.len(),
        failures: sections.iter().map(|section| section.failures).sum(),
        stuck: sections.iter().any(|section| section.stuck),
        distribution: distribution(&all),
        rounds,
    }
}

fn over_rounds(rounds: Vec<Latency>) -> Latency {
    let of = |figure: fn(&Latency) -> f64| median(rounds.iter().map(figure).collect());
    Latency {
        p50: of(|latency| latency.p50),
        p99: of(|latency| latency.p99),
        p999: of(|latency| latency.p999),
        max: rounds.iter().map(|latency| latency.max).fold(0.0, f64::max),
    }
}

/// The shares that a plot of the distribution needs: ever denser towards the end, as far as there are samples.
fn distribution(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let nines = (0..=200).map(|step| f64::from(step) / 40.0);
    nines
        .map(|nines| 1.0 - 10_f64.powf(-nines))
        .filter(|share| (1.0 - share) * histogram.len() as f64 >= 1.0)
        .map(|share| (share, micros(histogram.value_at_quantile(share))))
        .collect()
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |share| micros(histogram.value_at_quantile(share));
    Latency { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: micros(histogram.max()) }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NANOS, DIGITS).expect("bounds and digits in range")
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// What this process used of all processors. Servers are other processes.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
