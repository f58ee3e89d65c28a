//! `make bench`: what this library costs beside the floor, and how it behaves where processes contend.

use std::process::ExitCode;
use std::time::Duration;

use redquorum_bench::bars::{
    self, ALL_HEALTHY, BESIDE_KEPT, DEAD, FENCED, HEALTHY, HUNG, KEPT, N, NODES, TASKS,
};
use redquorum_bench::contention::{self, HOLD, LINE, PROCESSES, RETRY, WORKER};
use redquorum_bench::floor::{Floor, RESPONSE_TIMEOUT};
use redquorum_bench::machine::Machine;
use redquorum_bench::measure::{self, Entrant, interleave};
use redquorum_bench::nodes::{self, Nodes};
use redquorum_bench::ours::{How, Ours};
use redquorum_bench::results::{self, FLOOR, OURS, RUNTIMES, Row, Run};
use redquorum_bench::settings::{Settings, step};
use redquorum_bench::{plot, table};

fn main() -> ExitCode {
    redquorum_bench::ended("bench", run(&std::env::args().skip(1).collect::<Vec<_>>()))
}

fn run(arguments: &[String]) -> Result<(), String> {
    match arguments {
        [first, rest @ ..] if first == WORKER => return contention::worker(rest),
        _ => {}
    }
    let settings = Settings::read(arguments.iter().cloned())?;
    let machine = Machine::here(nodes::version()?);
    let nodes = Nodes::start()?;
    let mut rows = Vec::new();
    for runtime in RUNTIMES {
        let tokio = measure::runtime(runtime);
        rows.extend(tokio.block_on(grid(&nodes, runtime, &settings))?);
        rows.extend(tokio.block_on(situations(&nodes, runtime, &settings))?);
        nodes.heal();
    }
    step("contention over processes");
    let clients =
        [("redquorum", 1, 1), (LINE, PROCESSES, contention::TASKS), (RETRY, PROCESSES, contention::TASKS)];
    let contention = contention::measure(&nodes, &clients, HOLD, &settings)?;
    let run = Run {
        machine,
        rounds: settings.rounds,
        section: settings.section.as_secs_f64(),
        contention_section: settings.contention.as_secs_f64(),
        quick: settings.quick,
        rows,
        contention,
        leftovers: Vec::new(),
    };
    results::write("bench.json", &run).map_err(|error| format!("target/bench/bench.json: {error}"))?;
    let allocations = results::read("allocations.json", "make bench").ok();

    println!("\n{}", table::cycles(&run, |_| true));
    println!("\n{}", table::ratios(&run));
    println!("\n{}", table::contention(&run.contention));
    if let Some(counted) = &allocations {
        println!("\n{}", table::allocations(counted));
    }
    println!("\n{}", table::bars(&bars::floor(&run, allocations.as_ref())));
    plot::bench(&run, &results::folder())?;
    println!("\nfigures and plots are in target/bench/");
    Ok(())
}

/// Every number of nodes and tasks, ours beside the floor. The numbers of nodes are measured in turn as well, since they are
/// compared.
async fn grid(nodes: &Nodes, runtime: &str, settings: &Settings) -> Result<Vec<Row>, String> {
    let mut clients = Vec::new();
    for n in NODES {
        clients.push((n, floor(&nodes.urls(n), None).await?, ours(&nodes.urls(n), How::Plain).await?));
    }
    let mut rows = Vec::new();
    for tasks in TASKS {
        step(&format!("{runtime}, {tasks} at a time, N = {NODES:?}"));
        let entrants: Vec<Entrant> = clients
            .iter()
            .flat_map(|(n, floor, ours)| {
                let floor = Entrant::new(FLOOR, HEALTHY, *n, floor.clone());
                [floor, Entrant::new(OURS, HEALTHY, *n, ours.clone())]
            })
            .collect();
        rows.extend(interleave(runtime, &entrants, tasks, settings).await);
    }
    for (_, _, ours) in clients {
        ours.close().await;
    }
    Ok(rows)
}

/// What is asked for beyond a plain lock, and what may be wrong.
async fn situations(nodes: &Nodes, runtime: &str, settings: &Settings) -> Result<Vec<Row>, String> {
    let (healthy, hung, dead) = (nodes.urls(N), nodes.urls_with_hung(N), nodes.urls_with_dead(N));
    let floors = [
        (ALL_HEALTHY, floor(&healthy, None).await?),
        (HUNG, floor(&hung, Some(RESPONSE_TIMEOUT)).await?),
        (DEAD, floor(&dead, Some(RESPONSE_TIMEOUT)).await?),
    ];
    let plain = ours(&healthy, How::Plain).await?;
    let keeping =
        ours(&healthy, How::Plain).await?.keeping(1_000).await.map_err(|error| error.to_string())?;
    let clients = [
        (ALL_HEALTHY, plain.clone()),
        (HUNG, ours(&hung, How::Plain).await?),
        (DEAD, ours(&dead, How::Plain).await?),
        (FENCED, plain.used(How::Fenced)),
        (KEPT, plain.used(How::Kept)),
        (BESIDE_KEPT, keeping),
    ];
    // With everybody connected, and calls under way a moment ago.
    nodes.strike();
    let mut rows = Vec::new();
    for tasks in [1, 64] {
        step(&format!("{runtime}, {tasks} at a time, N = {N}: hung, dead, fenced, kept alive"));
        let mut entrants = Vec::new();
        for (situation, ours) in &clients {
            if let Some((_, floor)) = floors.iter().find(|(of, _)| of == situation) {
                entrants.push(Entrant::new(FLOOR, situation, N, floor.clone()));
            }
            entrants.push(Entrant::new(OURS, situation, N, ours.clone()));
        }
        rows.extend(interleave(runtime, &entrants, tasks, settings).await);
    }
    for (_, ours) in clients {
        ours.close().await;
    }
    Ok(rows)
}

async fn floor(urls: &[String], response_timeout: Option<Duration>) -> Result<Floor, String> {
    Floor::connect(urls, response_timeout).await.map_err(|error| format!("connecting the floor: {error}"))
}

async fn ours(urls: &[String], how: How) -> Result<Ours, String> {
    Ours::connect(urls, how).await.map_err(|error| format!("connecting redquorum: {error}"))
}
