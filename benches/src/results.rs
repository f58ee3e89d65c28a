//! What a run leaves: figures, as they are written to `target/bench/` and read for tables and plots.
//!
//! Times are in microseconds, rates in events a second.

use std::path::PathBuf;
use std::{fs, io};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// Who is the measure of all others.
pub const FLOOR: &str = "floor";
/// This library.
pub const OURS: &str = "redquorum";

/// The runtimes that are measured.
pub const RUNTIMES: [&str; 2] = ["multi-thread", "current-thread"];

/// A whole run of one program.
#[derive(Serialize, Deserialize, Debug)]
pub struct Run {
    /// Where and when.
    pub machine: Machine,
    /// How many rounds the figures are medians of.
    pub rounds: usize,
    /// Seconds that each client was measured for in each round.
    pub section: f64,
    /// The same where processes contend.
    pub contention_section: f64,
    /// Whether it was only to show that everything works.
    pub quick: bool,
    /// Uncontended cycles.
    pub rows: Vec<Row>,
    /// Processes that contend for one lock.
    pub contention: Vec<Contention>,
    /// Keys that stayed behind.
    pub leftovers: Vec<Leftover>,
}

/// One client in one situation: what an acquire and a release cost.
#[derive(Serialize, Deserialize, Debug)]
pub struct Row {
    /// Which client.
    pub who: String,
    /// What is asked, or what is wrong.
    pub situation: String,
    /// Of tokio.
    pub runtime: String,
    /// How many there are.
    pub nodes: usize,
    /// How many of them at a time, each with keys of its own.
    pub tasks: usize,
    /// From the call to the held lock.
    pub acquire: Latency,
    /// From the call of release to its end.
    pub release: Latency,
    /// Both together.
    pub cycle: Latency,
    /// Cycles a second.
    pub rate: f64,
    /// The client's processor time for a cycle, in microseconds.
    pub cpu: f64,
    /// How many cycles were measured.
    pub cycles: u64,
    /// How many attempts acquired nothing.
    pub failures: u64,
    /// Whether it had to be given up, since it did not end.
    pub stuck: bool,
    /// What each round brought, for ratios within a round.
    pub rounds: Vec<Round>,
    /// Share of the cycles, and the time within which that share ended.
    pub distribution: Vec<(f64, f64)>,
}

/// Medians over the rounds; the maximum is that of all.
#[derive(Clone, Copy, Default, Serialize, Deserialize, Debug)]
#[allow(missing_docs)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// One round of one client.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
#[allow(missing_docs)]
pub struct Round {
    pub acquire: Latency,
    pub release: Latency,
    pub cycle: Latency,
    pub rate: f64,
    pub cpu: f64,
}

/// Processes that contend for one lock.
#[derive(Serialize, Deserialize, Debug)]
pub struct Contention {
    /// Which client, and how it waits.
    pub who: String,
    /// How many processes.
    pub processes: usize,
    /// How many tasks in each.
    pub tasks: usize,
    /// For how long each holds the lock, in microseconds.
    pub hold: u64,
    /// What each round brought.
    pub rounds: Vec<Turns>,
    /// When a lock was granted, in seconds, after which wait, in milliseconds: of the last round.
    pub timeline: Vec<(f64, f64)>,
}

/// One round of contention. Waits are in milliseconds.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
#[allow(missing_docs)]
pub struct Turns {
    pub rate: f64,
    pub wait_p50: f64,
    pub wait_p99: f64,
    pub longest: f64,
    /// Of the tasks' shares: 1 where all got the same.
    pub jain: f64,
    /// The same of the processes.
    pub jain_processes: f64,
    /// From a release to the next grant, in microseconds.
    pub gap_p50: f64,
    pub gap_p99: f64,
    /// Commands to all nodes for an acquisition.
    pub commands: f64,
    /// Holds that began before the one before had ended.
    pub overlaps: u64,
    /// Tasks that still waited when they were sent home.
    pub waiting: u64,
}

/// Keys that one client left behind.
#[derive(Serialize, Deserialize, Debug)]
pub struct Leftover {
    /// Which client.
    pub who: String,
    /// After what.
    pub after: String,
    /// How many attempts; none where the client cannot be put there.
    pub attempts: usize,
    /// How many keys of theirs were still on the nodes.
    pub keys: usize,
}

/// What a cycle allocates on the heap, on five nodes.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Allocations {
    /// The `redis` crate alone: the ten commands one after the other.
    pub redis: f64,
    /// The bare fan-out.
    pub floor: f64,
    /// This library.
    pub ours: f64,
    /// This library, with a fencing token.
    pub fenced: f64,
}

impl Run {
    /// The row of a client in a situation.
    pub fn row(&self, who: &str, situation: &str, runtime: &str, nodes: usize, tasks: usize) -> Option<&Row> {
        self.rows.iter().find(|row| {
            (row.who.as_str(), row.situation.as_str(), row.runtime.as_str()) == (who, situation, runtime)
                && (row.nodes, row.tasks) == (nodes, tasks)
        })
    }
}

/// The median over the rounds of some figure of them.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => figures[middle],
        _ => (figures[middle - 1] + figures[middle]) / 2.0,
    }
}

/// The median of the ratios of two clients, each within a round.
pub fn ratio(one: &Row, other: &Row, of: impl Fn(&Round) -> f64) -> f64 {
    median(one.rounds.iter().zip(&other.rounds).map(|(one, other)| of(one) / of(other)).collect())
}

/// Where runs are left.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench")
}

/// Writes one run.
pub fn write(name: &str, run: &impl Serialize) -> io::Result<()> {
    fs::create_dir_all(folder())?;
    let mut text = serde_json::to_string(run)?;
    text.push('\n');
    fs::write(folder().join(name), text)
}

/// Reads what a run left; says which command makes it where there is none.
pub fn read<T: DeserializeOwned>(name: &str, made_by: &str) -> Result<T, String> {
    let text = fs::read_to_string(folder().join(name))
        .map_err(|error| format!("target/bench/{name}: {error}; `{made_by}` makes it"))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("target/bench/{name}: {error}; `{made_by}` makes it anew"))
}
