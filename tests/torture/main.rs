//! Torture: several client processes on five real servers, behind faults of all kinds, while an independent checker reads what
//! they wrote down.
//!
//! `make soak` lets it blow for an hour, or for `REDQUORUM_STORM_SECONDS`; each storm leaves a page with pictures in
//! `target/torture`. `REDQUORUM_STORM_SEED` repeats the faults of another storm, though not their exact moments;
//! `REDQUORUM_STORM_KINDS` names the kinds of faults that are to come, as in `FlushedAll,Promoted`. With
//! `REDQUORUM_STORM_UNGUARDED` set, clients have no restart delay, and the checker is to find what comes of it.

#![cfg(target_os = "linux")]

mod checker;
mod history;
mod known;
mod looks;
mod nodes;
mod page;
mod servers;
mod storm;
mod time;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use checker::{Findings, check};
use history::{Kind, Request};
use nodes::Nodes;
use page::Figure;
use storm::Aftermath;

/// The longest TTL of all clients, and with it how long a node stands aside that was wiped.
const TTL: Duration = Duration::from_secs(2);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// In all weathers: never two holders, tokens that rise, order in line while all is well, nothing left, no panic.
#[test]
fn laws_hold_in_a_short_storm() {
    storm(Nodes::servers(), Duration::from_secs(22), "short");
}

/// The same for an hour, with what only a long time can show.
#[test]
#[ignore = "an hour"]
fn laws_hold_in_a_long_storm() {
    storm(Nodes::servers(), seconds(3_600), "long");
}

/// The same on the five nodes of docker-compose.yml, paused, killed and cut off their network: `make torture-containers` brings
/// them up first.
#[test]
#[ignore = "needs the nodes of docker-compose.yml"]
fn laws_hold_on_containers() {
    let project = std::env::var("REDQUORUM_PROJECT").expect("REDQUORUM_PROJECT names the project that is up");
    storm(Nodes::containers(&project), seconds(60), "containers");
}

fn seconds(usual: u64) -> Duration {
    let seconds = std::env::var("REDQUORUM_STORM_SECONDS").ok();
    Duration::from_secs(seconds.map_or(usual, |seconds| seconds.parse().expect("a number of seconds")))
}

/// Not a test: what a storm runs in processes of their own.
#[test]
#[ignore = "the child process of another test"]
fn client() {
    let Ok(nodes) = std::env::var("REDQUORUM_CHILD_NODES") else { return };
    let folder = PathBuf::from(std::env::var_os("REDQUORUM_CHILD_FOLDER").expect("a folder"));
    let nodes = nodes.split(',').map(str::to_owned).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(worker::run(nodes, &folder));
}

/// `name` is that of the page. Only a long storm on an otherwise idle machine says something about rates.
fn storm(nodes: Nodes, length: Duration, name: &str) {
    let long = name == "long";
    let seed = std::env::var("REDQUORUM_STORM_SEED").ok();
    let seed = seed.map_or_else(rand::random, |seed| seed.parse().expect("a number"));
    println!("seed {seed}");
    let folder = tempfile::tempdir().expect("a folder");
    // A short storm begins with what takes longest to come by itself; a long one has everything sooner or later.
    let mut planned = storm::plan(&nodes);
    if !long {
        planned.retain(|kind| Kind::NOTICED.contains(kind));
        planned.sort_by_key(|kind| Kind::NOTICED.iter().position(|other| other == kind));
    }
    let first = if long { &[] } else { &planned[..] };
    let aftermath = storm::blow(nodes, length, seed, first, folder.path());
    let requests = history::read(folder.path());
    let findings = check(&requests, &aftermath.faults, &aftermath.lives, nodes::NODES);

    let figures = figures(&aftermath, &requests, &findings, &planned, length, long);
    for figure in &figures {
        let mark = if figure.met { "" } else { "   <- missed" };
        println!("{:<60} {:>24}   {}{mark}", figure.what, figure.value, figure.bar);
    }
    for kind in Kind::ALL {
        let (times, held) = aftermath.count(kind, &requests);
        println!("    {:<50} {times:>6} times, {held:>6} locks held when they came", kind.name());
    }
    let target = harness::top().join("target/torture");
    std::fs::create_dir_all(&target).expect("a folder for the page");
    let file = target.join(format!("{name}.html"));
    std::fs::write(&file, page::page(&aftermath, &requests, &findings, &figures, seed))
        .expect("the page is written");
    println!("seed {seed}; the page: {}", file.display());

    let mut broken = findings.broken();
    broken.extend(aftermath.failed.iter().cloned());
    broken.extend(
        figures
            .iter()
            .filter(|figure| !figure.met)
            .map(|figure| format!("{}: {}", figure.what, figure.value)),
    );
    if !broken.is_empty() {
        // What would be needed to look into it.
        let kept = folder.keep();
        panic!(
            "seed {seed}, histories in {}:\n{}\n{:?}",
            kept.display(),
            broken.join("\n"),
            findings.available.1.first()
        );
    }
}

/// What is required, and what was measured.
fn figures(
    aftermath: &Aftermath,
    requests: &[Request],
    findings: &Findings,
    planned: &[Kind],
    length: Duration,
    long: bool,
) -> Vec<Figure> {
    let hours = length.as_secs_f64() / 3_600.0;
    let mut figures = Vec::new();
    let mut figure = |what, value: String, bar, met| figures.push(Figure { what, value, bar, met });
    let none = |found: usize| (found.to_string(), "0", found == 0);
    for (what, found) in [
        ("two valid holds of one lock at a time", findings.overlaps.len()),
        ("tokens that do not rise", findings.inversions.len()),
        ("overtaken in line while all was well", findings.overtakings.len()),
        ("keys left on the servers", aftermath.leftovers.len()),
        ("clients that failed or panicked", aftermath.failed.len()),
    ] {
        let (value, bar, met) = none(found);
        figure(what, value, bar, met);
    }
    let faults = aftermath.faults.len();
    figure("faults", faults.to_string(), "400 in an hour", faults as f64 >= 400.0 * hours);
    // What was planned and did not come shows nothing; nor does what came often, and never while a lock was held.
    let missing = planned.iter().filter(|kind| {
        let (times, held) = aftermath.count(**kind, requests);
        times == 0 || (long && held == 0)
    });
    let (value, bar, met) = none(missing.count());
    figure("planned kinds of fault that came never, or to no lock", value, bar, met);
    let grants = findings.acquisitions;
    // Beside other work on the machine, a short storm proves nothing about rates.
    let enough = if long { grants as f64 >= 200_000.0 * hours } else { grants > 200 };
    figure("acquisitions", grants.to_string(), "200 000 in an hour", enough);
    let (asked, late) = (findings.available.0, findings.available.1.len());
    let available = findings.availability();
    let value = format!("{:.4} % of {asked}, {late} late", available * 100.0);
    figure(
        "granted within 1 s while a quorum is well",
        value,
        "99.99 %",
        if long { available >= 0.9999 } else { available >= 0.98 },
    );
    let healed = findings.healed(0.99) as f64 / 1e9;
    let value = format!("{healed:.3} s, {} times", findings.healing.len());
    figure(
        "from the return of a majority to the first grant, p99",
        value,
        "1 s",
        if long { healed <= 1.0 } else { healed <= 3.0 },
    );
    let pairs = findings.in_order.to_string();
    figure("grants in line looked at for their order", pairs, "some", !long || findings.in_order > 0);
    if long {
        let growth = growth(&aftermath.memory);
        figure(
            "growth of a client's memory, second quarter to last",
            format!("{:.1} MiB", growth / 1_048_576.0),
            "4 MiB",
            growth <= 4.0 * 1_048_576.0,
        );
    }
    figures
}

/// By how many bytes the middle of the last quarter is above that of the second.
fn growth(memory: &[u64]) -> f64 {
    let middle = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part.get(part.len() / 2).copied().unwrap_or_default() as f64
    };
    let quarter = memory.len() / 4;
    middle(&memory[3 * quarter..]) - middle(&memory[quarter..2 * quarter])
}
