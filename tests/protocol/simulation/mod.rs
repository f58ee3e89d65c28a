//! Simulation of the protocol: the real leases and debts over the real stores, in a world that one seed draws.
//!
//! No clock, no socket, no task: an event queue in true time, which none of those inside can read. Each history has a
//! phase of faults, in which the laws of `laws.rs` are checked at every step, then heals and must make progress.
//! `docs/testing.md` says how to replay a seed and how to add a law.
//!
//! - `REDQUORUM_SEEDS`: how many seeds the ordinary run takes, `REDQUORUM_FROM`: the first of them.
//! - `REDQUORUM_SEED`: replays this one seed with its trace, with `REDQUORUM_BROKEN` under that switch.

mod broken;
mod client;
mod clock;
mod counters;
mod debts;
mod draw;
mod falsify;
mod falsify_line;
mod faults;
mod fencing;
mod laws;
mod line_laws;
mod line_witness;
mod looks;
mod network;
mod node;
mod plan;
mod runner;
mod task;
mod trace;
mod waiter;
mod wakeups;
mod witness;
mod world;

use runner::{env_number, replay, run_seeds};
use trace::Trace;
use world::World;

/// Seeds of the ordinary run.
const SEEDS: u64 = 20_000;

/// Every law, in every history, under all faults that the protocol is made for; and the interesting things happen.
#[test]
fn every_law_holds_under_every_seed() {
    if let Some(seed) = env_number("REDQUORUM_SEED") {
        return replay(seed);
    }
    let first = env_number("REDQUORUM_FROM").unwrap_or(0);
    let count = env_number("REDQUORUM_SEEDS").unwrap_or(SEEDS);
    let run = run_seeds(first..first + count, None);

    println!("{}", run.summary());
    if let Some(failure) = run.failure {
        panic!("{}", failure.explain());
    }
    let missing = run.counters.missing();
    assert!(count < 1_000 || missing.is_empty(), "never seen in {count} histories: {missing:#?}");
}

/// Each assumption and rule, broken on purpose, is noticed by the checker of its law.
#[test]
fn every_broken_rule_is_found() {
    const MOST_SEEDS: u64 = 2_000;
    let mut unnoticed = Vec::new();
    for (switch, name, what) in broken::ALL {
        let run = run_seeds(0..MOST_SEEDS, Some(*switch));
        match run.failure {
            Some(failure) => println!("{:>6} seeds  {name}: {what}, by {:?}", failure.seed + 1, switch.law()),
            None => unnoticed.push(*name),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed within {MOST_SEEDS} seeds: {unnoticed:?}");
}

/// One seed is one history: the same twice, with the trace on or off.
#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..50 {
        let mut worlds = [true, true, false].map(|on| World::new(seed, None, Trace::new(on)));
        for world in &mut worlds {
            world.run();
        }

        let [first, second, untraced] = &worlds;
        assert!(first.trace.lines().len() > 100, "seed {seed} has next to no history");
        assert_eq!(first.trace.lines(), second.trace.lines(), "seed {seed}");
        assert_eq!((first.now, first.counters), (untraced.now, untraced.counters), "seed {seed}");
    }
}
