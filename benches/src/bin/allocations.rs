//! Counts what a cycle allocates on the heap, on five nodes, and writes it to `target/bench/allocations.json`.
//!
//! A program of its own, since counting costs time. On the current-thread runtime, where nothing else goes on: what is
//! counted is the client's alone, connections included.

use std::alloc::System;
use std::process::ExitCode;

use redquorum_bench::bars::N;
use redquorum_bench::floor::Floor;
use redquorum_bench::locker::Locker;
use redquorum_bench::nodes::Nodes;
use redquorum_bench::ours::{How, Ours};
use redquorum_bench::results::{self, Allocations};
use redquorum_bench::{measure, table};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CYCLES: usize = 2_000;

fn main() -> ExitCode {
    redquorum_bench::ended("allocations", run())
}

fn run() -> Result<(), String> {
    let nodes = Nodes::start()?;
    let urls = nodes.urls(N);
    let counted = measure::runtime("current-thread").block_on(async {
        let floor = Floor::connect(&urls, None).await.map_err(|error| error.to_string())?;
        let ours = Ours::connect(&urls, How::Plain).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(Allocations {
            redis: count(async |key| floor.in_turn(key).await.expect("five healthy nodes")).await,
            floor: count(async |key| cycle(&floor, key).await).await,
            ours: count(async |key| cycle(&ours, key).await).await,
            fenced: count(async |key| cycle(&ours.used(How::Fenced), key).await).await,
        })
    })?;
    println!("{}", table::allocations(&counted));
    results::write("allocations.json", &counted)
        .map_err(|error| format!("target/bench/allocations.json: {error}"))
}

async fn cycle(locker: &impl Locker, key: &str) {
    let held = locker.acquire(key).await.expect("five healthy nodes");
    locker.release(held).await;
}

/// Allocations and reallocations for a cycle, after as many that warm up: buffers have grown by then.
async fn count(cycle: impl AsyncFn(&str)) -> f64 {
    let mut before = 0;
    for half in 0..2 {
        before = so_far();
        for number in 0..CYCLES {
            // Written into a buffer, so that the key is none of what is counted.
            let mut key = [0; 24];
            let length = write_key(&mut key, half * CYCLES + number);
            cycle(std::str::from_utf8(&key[..length]).expect("digits")).await;
        }
        // Stragglers of the last cycle.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    (so_far() - before) as f64 / CYCLES as f64
}

fn so_far() -> usize {
    let stats = COUNTING.stats();
    stats.allocations + stats.reallocations
}

fn write_key(buffer: &mut [u8], number: usize) -> usize {
    use std::io::Write;
    let length = buffer.len();
    let mut rest = buffer;
    write!(rest, "bench:{number}").expect("a short number");
    length - rest.len()
}
