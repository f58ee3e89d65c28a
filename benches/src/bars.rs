//! What is to be reached, and whether it was.
//!
//! The bars are stated here once, and printed with what was measured. Nothing fails where one is missed: speed depends on
//! the machine, and what depends on the machine belongs in a table.

use crate::contention;
use crate::results::{Allocations, FLOOR, OURS, RUNTIMES, Round, Row, Run, Turns, median, ratio};
use crate::table::time;

/// What situations are called.
#[allow(missing_docs)]
pub const HEALTHY: &str = "healthy";
/// As [`HEALTHY`], measured in turn with what is not.
pub const ALL_HEALTHY: &str = "all healthy";
/// One node stopped where it stands.
pub const HUNG: &str = "one node hung";
/// One node's process killed.
pub const DEAD: &str = "one node dead";
/// With fencing tokens.
pub const FENCED: &str = "fenced";
/// Kept alive.
pub const KEPT: &str = "kept alive";
/// While as many locks are kept alive.
pub const BESIDE_KEPT: &str = "beside 1000 kept alive";

/// How many nodes are measured.
pub const NODES: [usize; 4] = [1, 3, 5, 7];
/// How many nodes most figures are for.
pub const N: usize = 5;
/// How many tasks are measured.
pub const TASKS: [usize; 4] = [1, 8, 64, 512];

/// A figure, and what it is to be.
pub struct Bar {
    /// Of what.
    pub figure: String,
    /// What is to be.
    pub bar: String,
    /// What is.
    pub measured: String,
    /// `None` where it was not measured.
    pub reached: Option<bool>,
}

impl Bar {
    fn at_most(figure: String, measured: f64, bar: f64) -> Self {
        Self::new(figure, measured, format!("≤ {bar}"), measured <= bar)
    }

    fn at_least(figure: String, measured: f64, bar: f64) -> Self {
        Self::new(figure, measured, format!("≥ {bar}"), measured >= bar)
    }

    fn new(figure: String, measured: f64, bar: String, reached: bool) -> Self {
        let known = measured.is_finite();
        let measured = if known { format!("{measured:.3}") } else { "none".to_owned() };
        Self { figure, bar, measured, reached: known.then_some(reached) }
    }
}

/// The bars beside the floor.
pub fn floor(run: &Run, allocations: Option<&Allocations>) -> Vec<Bar> {
    let mut bars = Vec::new();
    let to_floor = |runtime: &str, tasks: usize, of: fn(&Round) -> f64| {
        let row = |who| run.row(who, HEALTHY, runtime, N, tasks);
        row(OURS).zip(row(FLOOR)).map_or(f64::NAN, |(ours, floor)| ratio(ours, floor, of))
    };
    for (runtime, bar) in RUNTIMES.into_iter().zip([0.95, 1.0]) {
        let figure = format!("cycle p50, 1 task, to the floor: {runtime}");
        bars.push(Bar::at_most(figure, to_floor(runtime, 1, |round| round.cycle.p50), bar));
    }
    for (runtime, bar) in RUNTIMES.into_iter().zip([1.2, 1.0]) {
        let figure = format!("cycles/s, 64 tasks, to the floor: {runtime}");
        bars.push(Bar::at_least(figure, to_floor(runtime, 64, |round| round.rate), bar));
    }
    for runtime in RUNTIMES {
        let row = |situation| run.row(OURS, situation, runtime, N, 1);
        let (hung, healthy) = (row(HUNG), row(ALL_HEALTHY));
        let p99 = hung.zip(healthy).map(|(hung, healthy)| ratio(hung, healthy, |round| round.acquire.p99));
        let figure = format!("acquire p99, one node hung, to healthy: {runtime}");
        bars.push(Bar::at_most(figure, p99.unwrap_or(f64::NAN), 1.3));
        let longest = hung.map_or(f64::NAN, |hung| hung.acquire.max);
        bars.push(Bar {
            measured: time(longest),
            bar: "≤ 5 ms".to_owned(),
            ..Bar::at_most(format!("longest acquire, one node hung: {runtime}"), longest, 5_000.0)
        });
    }
    let beyond =
        |of: fn(&Allocations) -> f64| allocations.map_or(f64::NAN, |counted| counted.ours - of(counted));
    for (what, of) in [
        ("beyond those of the `redis` crate alone", (|counted| counted.redis) as fn(&Allocations) -> f64),
        ("beyond the floor's", |counted| counted.floor),
    ] {
        bars.push(Bar::at_most(format!("heap allocations of a cycle, {what}"), beyond(of), 4.0));
    }
    for runtime in RUNTIMES {
        let figure = format!("client CPU of a cycle, 64 tasks, to the floor: {runtime}");
        bars.push(Bar::at_most(figure, to_floor(runtime, 64, |round| round.cpu), 1.0));
    }
    for runtime in RUNTIMES {
        let growth = |who| {
            let row = |nodes| run.row(who, HEALTHY, runtime, nodes, 1);
            row(7).zip(row(3)).map_or(f64::NAN, |(seven, three)| ratio(seven, three, |round| round.cycle.p50))
        };
        let (ours, floor) = (growth(OURS), growth(FLOOR));
        bars.push(Bar {
            measured: format!("{ours:.2} times, floor {floor:.2}"),
            bar: "≤ the floor's".to_owned(),
            ..Bar::at_most(format!("growth of cycle p50, N = 3 to 7: {runtime}"), ours / floor, 1.0)
        });
    }
    bars
}

/// The bars beside other clients.
pub fn peers(run: &Run) -> Vec<Bar> {
    let mut bars = Vec::new();
    for runtime in RUNTIMES {
        for tasks in [1, 64] {
            let row = |who| run.row(who, HEALTHY, runtime, N, tasks);
            let rates = row(OURS).zip(row("rslock"));
            let rate = rates.map_or(f64::NAN, |(ours, theirs)| ratio(ours, theirs, |round| round.rate));
            let figure =
                format!("cycles/s to rslock's, {tasks} task{}: {runtime}", if tasks == 1 { "" } else { "s" });
            bars.push(Bar::at_least(figure, rate, 1.5));
        }
    }
    // The best of each round, who may be another for each figure.
    let contenders = |ours: bool| {
        let contended = run.contention.iter().filter(|contention| contention.processes > 1);
        contended.filter(move |contention| contention.who.starts_with(OURS) == ours)
    };
    let ours = contenders(true).find(|contention| contention.who == contention::LINE);
    let best = |of: fn(&Turns) -> f64, better: fn(f64, f64) -> f64, worst: f64| {
        let ours = ours.map(|ours| ours.rounds.as_slice()).unwrap_or_default();
        let ratio = |(round, own): (usize, &Turns)| {
            let theirs = contenders(false).filter_map(|peer| peer.rounds.get(round)).map(of);
            (of(own), theirs.fold(worst, better))
        };
        ours.iter().enumerate().map(ratio).collect::<Vec<_>>()
    };
    let longest = best(|turns| turns.longest, f64::min, f64::INFINITY);
    let rate = best(|turns| turns.rate, f64::max, 0.0);
    bars.push(Bar::at_least(
        "contended: longest wait of the best peer to ours".to_owned(),
        median(longest.into_iter().map(|(own, best)| best / own).collect()),
        30.0,
    ));
    bars.push(Bar::at_least(
        "contended: acquisitions/s to the best peer's".to_owned(),
        median(rate.into_iter().map(|(own, best)| own / best).collect()),
        0.93,
    ));
    let jain = ours.map_or(f64::NAN, |ours| ours.median(|turns| turns.jain));
    bars.push(Bar::at_least("contended: Jain's index of the tasks' shares".to_owned(), jain, 0.99));
    bars
}

/// Whether a row is part of the grid over nodes and tasks.
pub fn is_in_grid(row: &Row) -> bool {
    row.situation == HEALTHY
}
