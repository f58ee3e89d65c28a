//! The document with the figures: everything between `<!-- begin NAME -->` and `<!-- end NAME -->` in it is made here, and
//! everything else is written by hand.

use std::fmt::Write;
use std::path::PathBuf;

use crate::bars::{self, ALL_HEALTHY, HEALTHY, N};
use crate::machine::Machine;
use crate::results::{Allocations, Row, Run};
use crate::table;

/// Where the document is, and beside it a folder of the same name with the plots.
pub fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md")
}

/// The document with the figures of these runs.
pub fn refreshed(text: &str, bench: &Run, peers: &Run, allocations: &Allocations) -> Result<String, String> {
    let mut all_bars = bars::floor(bench, Some(allocations));
    all_bars.extend(bars::peers(peers));
    let at_five = |row: &Row| bars::is_in_grid(row) && row.nodes == N;
    let peer_rows = |situation: &'static str| move |row: &Row| row.situation == situation;
    let parts = [
        ("machine", machine(bench, peers)),
        ("bars", table::bars(&all_bars).markdown()),
        ("cycles", table::cycles(bench, at_five).markdown()),
        ("ratios", table::ratios(bench).markdown()),
        ("situations", table::cycles(bench, |row| !bars::is_in_grid(row)).markdown()),
        ("contention", table::contention(&bench.contention).markdown()),
        ("allocations", table::allocations(allocations).markdown()),
        ("peers", table::cycles(peers, peer_rows(HEALTHY)).markdown()),
        (
            "peers-faults",
            table::cycles(peers, |row| ![HEALTHY, ALL_HEALTHY].contains(&row.situation.as_str())).markdown(),
        ),
        ("peers-contention", table::contention(&peers.contention).markdown()),
        ("leftovers", table::leftovers(&peers.leftovers).markdown()),
    ];
    let mut text = text.to_owned();
    for (name, part) in parts {
        text = replaced(&text, name, &part)?;
    }
    Ok(text)
}

fn replaced(text: &str, name: &str, part: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) =
        text.split_once(&begin).ok_or(format!("docs/benchmarks.md: no line {}", begin.trim()))?;
    let (_, after) = rest.split_once(&end).ok_or(format!("docs/benchmarks.md: no line {end}"))?;
    Ok(format!("{before}{begin}{part}{end}{after}"))
}

fn machine(bench: &Run, peers: &Run) -> String {
    let Machine { date, processor, cores, memory, system, rustc, server, versions, load } = &bench.machine;
    let versions: Vec<String> =
        versions.iter().map(|(name, version)| format!("`{name}` {version}")).collect();
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        writeln!(text, "| {name} | {value} |").expect("a string takes what is written");
    };
    line("", &"");
    line("---", &"---");
    line("date", date);
    line("machine", &format_args!("{processor}, {cores} cores, {memory}, {system}"));
    line("servers", &format_args!("{server}, without persistence, on the same machine, over loopback"));
    line("built with", rustc);
    line("packages", &versions.join(", "));
    line(
        "load before the run (1 min), `make bench` and `make bench-peers`",
        &format_args!("{load}, {}", peers.machine.load),
    );
    line(
        "rounds",
        &format_args!(
            "{} of {} s for each client, of {} s where processes contend{}",
            bench.rounds,
            bench.section,
            bench.contention_section,
            if bench.quick || peers.quick {
                "; a quick run, which only shows that everything works"
            } else {
                ""
            }
        ),
    );
    text
}
