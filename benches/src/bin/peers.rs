//! `make bench-peers`: the same as `make bench`, beside other clients for the same pattern; and what they leave behind.
//!
//! `make bench-contention` runs the part in which processes contend, and nothing else.

use std::process::ExitCode;
use std::time::Duration;

use redquorum_bench::bars::{self, DEAD, HEALTHY, HUNG, N};
use redquorum_bench::contention::{
    self, DISTRIBUTED_LOCK, HOLD, LINE, PROCESSES, REDLOCK, RETRY, RSLOCK, RSLOCK_DEFAULT, TASKS, WORKER,
};
use redquorum_bench::floor::{Floor, RESPONSE_TIMEOUT};
use redquorum_bench::leftovers;
use redquorum_bench::machine::Machine;
use redquorum_bench::measure::{self, Entrant, interleave};
use redquorum_bench::nodes::{self, Nodes};
use redquorum_bench::ours::{How, Ours};
use redquorum_bench::peers::{DistributedLock, OldRedlock, Rslock};
use redquorum_bench::results::{self, FLOOR, Leftover, OURS, RUNTIMES, Row, Run};
use redquorum_bench::settings::{Settings, step};
use redquorum_bench::{plot, table};

/// The argument that leaves everything but contention out.
const CONTENTION: &str = "contention";

fn main() -> ExitCode {
    redquorum_bench::ended("peers", run(&std::env::args().skip(1).collect::<Vec<_>>()))
}

fn run(arguments: &[String]) -> Result<(), String> {
    match arguments {
        [first, rest @ ..] if first == WORKER => contention::worker(rest),
        [first, rest @ ..] if first == CONTENTION => contend(&Settings::read(rest.iter().cloned())?),
        all => compare(&Settings::read(all.iter().cloned())?),
    }
}

/// Contention alone: this library, alone and not, and the two kinds of clients that ask again and again.
fn contend(settings: &Settings) -> Result<(), String> {
    let nodes = Nodes::start()?;
    let clients =
        [(LINE, 1, 1), (LINE, PROCESSES, TASKS), (RETRY, PROCESSES, TASKS), (RSLOCK, PROCESSES, TASKS)];
    for hold in [HOLD, Duration::ZERO] {
        println!("{}", table::contention(&contention::measure(&nodes, &clients, hold, settings)?));
    }
    Ok(())
}

fn compare(settings: &Settings) -> Result<(), String> {
    let machine = Machine::here(nodes::version()?);
    let nodes = Nodes::start()?;
    let mut rows = Vec::new();
    for runtime in RUNTIMES {
        let tokio = measure::runtime(runtime);
        rows.extend(tokio.block_on(cycles(&nodes, runtime, settings))?);
        // Before the runtime ends: it would wait for threads that wait for the node that hangs.
        nodes.heal();
    }
    step("what stays behind");
    let tokio = measure::runtime("multi-thread");
    let leftovers = tokio.block_on(left_behind(&nodes, settings))?;
    drop(tokio);
    step("contention over processes");
    let clients =
        [LINE, RETRY, RSLOCK, RSLOCK_DEFAULT, REDLOCK, DISTRIBUTED_LOCK].map(|who| (who, PROCESSES, TASKS));
    let contention = contention::measure(&nodes, &clients, HOLD, settings)?;
    let run = Run {
        machine,
        rounds: settings.rounds,
        section: settings.section.as_secs_f64(),
        contention_section: settings.contention.as_secs_f64(),
        quick: settings.quick,
        rows,
        contention,
        leftovers,
    };
    results::write("peers.json", &run).map_err(|error| format!("target/bench/peers.json: {error}"))?;

    println!("\n{}", table::cycles(&run, |_| true));
    println!("\n{}", table::contention(&run.contention));
    println!("\n{}", table::leftovers(&run.leftovers));
    println!("\n{}", table::bars(&bars::peers(&run)));
    plot::peers(&run, &results::folder())?;
    println!("\nfigures and plots are in target/bench/");
    Ok(())
}

/// Everybody's cycle: with one task and 64 on healthy nodes, and with one task where a node hangs or is dead.
async fn cycles(nodes: &Nodes, runtime: &str, settings: &Settings) -> Result<Vec<Row>, String> {
    let healthy = Everybody::connect(&nodes.urls(N), None).await?;
    let hung = Everybody::connect(&nodes.urls_with_hung(N), Some(RESPONSE_TIMEOUT)).await?;
    let dead = Everybody::connect(&nodes.urls_with_dead(N), Some(RESPONSE_TIMEOUT)).await?;
    let mut rows = Vec::new();
    for tasks in [1, 64] {
        step(&format!("{runtime}, {tasks} at a time"));
        rows.extend(interleave(runtime, &healthy.entrants(HEALTHY), tasks, settings).await);
    }
    // Connected is who has acquired once.
    interleave(runtime, &hung.entrants(HUNG), 1, &settings.brief()).await;
    interleave(runtime, &dead.entrants(DEAD), 1, &settings.brief()).await;
    nodes.strike();
    step(&format!("{runtime}, one node hung or dead"));
    let entrants: Vec<Entrant> = hung.entrants(HUNG).into_iter().chain(dead.entrants(DEAD)).collect();
    rows.extend(interleave(runtime, &entrants, 1, settings).await);
    Ok(rows)
}

/// All clients, connected to the same nodes.
struct Everybody {
    floor: Floor,
    ours: Ours,
    rslock: Rslock,
    redlock: OldRedlock,
    distributed_lock: DistributedLock,
}

impl Everybody {
    async fn connect(urls: &[String], response_timeout: Option<Duration>) -> Result<Self, String> {
        Ok(Self {
            floor: Floor::connect(urls, response_timeout).await.map_err(|error| error.to_string())?,
            ours: Ours::connect(urls, How::Plain).await.map_err(|error| error.to_string())?,
            rslock: Rslock::connect(urls, None),
            redlock: OldRedlock::connect(urls, None),
            distributed_lock: DistributedLock::connect(urls).await?,
        })
    }

    fn entrants(&self, situation: &str) -> Vec<Entrant> {
        vec![
            Entrant::new(FLOOR, situation, N, self.floor.clone()),
            Entrant::new(OURS, situation, N, self.ours.clone()),
            Entrant::new("rslock", situation, N, self.rslock.clone()),
            Entrant::new("redlock", situation, N, self.redlock),
            Entrant::new("distributed-lock", situation, N, self.distributed_lock.clone()),
        ]
    }
}

async fn left_behind(nodes: &Nodes, settings: &Settings) -> Result<Vec<Leftover>, String> {
    let everybody = Everybody::connect(&nodes.urls_with_hung(N), Some(RESPONSE_TIMEOUT)).await?;
    let Everybody { ours, rslock, redlock, distributed_lock, .. } = &everybody;
    let once = ours.used(How::Once);
    let mut all = leftovers::measure(nodes, OURS, ours, &once, settings).await;
    all.extend(leftovers::measure(nodes, "rslock", rslock, rslock, settings).await);
    all.extend(leftovers::measure(nodes, "redlock", redlock, redlock, settings).await);
    let once = distributed_lock;
    all.extend(leftovers::measure(nodes, "distributed-lock", distributed_lock, once, settings).await);
    Ok(all)
}
