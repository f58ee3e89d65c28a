//! Brings docs/benchmarks.md and its plots up to date with the last runs, as `make bench` and `make bench-peers` left them
//! in `target/bench/`.

use std::fs;
use std::process::ExitCode;

use redquorum_bench::results::{Allocations, Run, read};
use redquorum_bench::{document, plot};

fn main() -> ExitCode {
    redquorum_bench::ended("report", run())
}

fn run() -> Result<(), String> {
    let allocations: Allocations = read("allocations.json", "make bench")?;
    let bench: Run = read("bench.json", "make bench")?;
    let peers: Run = read("peers.json", "make bench-peers")?;
    let file = document::file();
    let plots = file.with_extension("");
    plot::bench(&bench, &plots)?;
    plot::peers(&peers, &plots)?;
    let trouble = |error: std::io::Error| format!("docs/benchmarks.md: {error}");
    let text = fs::read_to_string(&file).map_err(trouble)?;
    let text = document::refreshed(&text, &bench, &peers, &allocations)?;
    fs::write(&file, text).map_err(trouble)?;
    println!("docs/benchmarks.md and docs/benchmarks/*.svg are as in the last runs");
    Ok(())
}
