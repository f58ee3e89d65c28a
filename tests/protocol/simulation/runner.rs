//! Many seeds on all cores, and one seed with its trace.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::broken::Switch;
use super::clock::TrueTime;
use super::counters::Counters;
use super::laws::Violation;
use super::trace::Trace;
use super::world::World;

/// A seed whose history broke a law.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
    pub broken: Option<Switch>,
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Run {
    pub histories: u64,
    pub operations: u64,
    pub grants: u64,
    pub faults: u64,
    /// The longest that a healed world took to let all in, beyond twice the guard, and its seed.
    pub longest_recovery: (TrueTime, u64),
    pub counters: Counters,
    pub failure: Option<Failure>,
    pub took: Duration,
}

/// Runs these seeds on all cores, up to the first that fails.
pub fn run_seeds(seeds: Range<u64>, broken: Option<Switch>) -> Run {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut total = Run::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(|| work(&next, &end, broken))).collect();
        for worker in workers {
            total.merge(worker.join().expect("a history panicked"));
        }
    });
    total.took = began.elapsed();
    total
}

/// Takes seeds in turn. A failure ends the run for all higher seeds, so that the lowest failing one is found,
/// however the work is shared.
fn work(next: &AtomicU64, end: &AtomicU64, broken: Option<Switch>) -> Run {
    let mut run = Run::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end.load(Ordering::Relaxed) {
            return run;
        }
        let mut world = World::new(seed, broken, Trace::default());
        if let Some(violation) = world.run() {
            end.fetch_min(seed, Ordering::Relaxed);
            run.failure = Some(Failure { seed, violation, broken });
            return run;
        }
        run.histories += 1;
        run.operations += world.operations;
        run.grants += world.grants();
        run.faults += world.faults;
        run.longest_recovery = run.longest_recovery.max((world.recovery(), seed));
        run.counters.merge(&world.counters);
    }
}

impl Run {
    fn merge(&mut self, other: Run) {
        self.histories += other.histories;
        self.operations += other.operations;
        self.grants += other.grants;
        self.faults += other.faults;
        self.longest_recovery = self.longest_recovery.max(other.longest_recovery);
        self.counters.merge(&other.counters);
        let failures = self.failure.take().into_iter().chain(other.failure);
        self.failure = failures.min_by_key(|failure| failure.seed);
    }

    /// The figures of the run.
    pub fn summary(&self) -> String {
        let histories = self.histories.max(1);
        let seconds = self.took.as_secs_f64().max(0.001);
        format!(
            "{} histories in {seconds:.1} s ({:.0} a minute), on average {} node operations, {} grants, {} faults; \
             recovery at most {:.1} s over (seed {})\n{}",
            self.histories,
            self.histories as f64 / seconds * 60.0,
            self.operations / histories,
            self.grants / histories,
            self.faults / histories,
            self.longest_recovery.0 as f64 / 1e9,
            self.longest_recovery.1,
            self.counters.table()
        )
    }
}

impl Failure {
    /// The trace, what broke, and the command that shows it again.
    pub fn explain(&self) -> String {
        const LINES: usize = 150;
        let mut world = World::new(self.seed, self.broken, Trace::new(true));
        world.run();
        let switch =
            self.broken.map(|switch| format!("REDQUORUM_BROKEN={} ", switch.name())).unwrap_or_default();
        let Violation { law, at, detail } = &self.violation;
        format!(
            "{}\nseed {}: {law:?} is broken at {at} ns of true time: {detail}\nreplay: REDQUORUM_SEED={} {switch}\
             cargo test --release -p redquorum-protocol-tests every_law -- --nocapture",
            world.trace.tail(LINES),
            self.seed,
            self.seed,
        )
    }
}

/// One seed with its whole trace, under a switch if one is named.
pub fn replay(seed: u64) {
    let broken = std::env::var("REDQUORUM_BROKEN").ok();
    let broken =
        broken.map(|name| Switch::named(&name).unwrap_or_else(|| panic!("no switch is called {name}")));
    let mut world = World::new(seed, broken, Trace::new(true));
    let violation = world.run();
    for line in world.trace.lines() {
        println!("{line}");
    }
    assert_eq!(violation, None, "seed {seed}");
}

/// A number from the environment.
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}
