//! A job that is due on many machines at once, and runs on one of them at each tick.
//!
//! ```text
//! cargo run --features testing --example cron
//! ```
//!
//! The tick is part of the lock's name, and **the lock is not released** when the job is done. It has to stand until every
//! machine has come to the tick and found it taken: a machine whose clock is behind would find it free, and run the job
//! again. So its TTL is longer than clocks may differ, together with the time that a machine waits for it.
//!
//! A tick whose machine dies is not made up for. Where it has to be, keep what is done in a database, as the example
//! `invoices` does.

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redquorum::{AcquireError, Redlock};
use tokio::time::{Instant, sleep, sleep_until};

const TICK: Duration = Duration::from_millis(300);
const TICKS: u32 = 4;

/// Four machines, and how much their clocks are behind: 200 ms at most. With NTP it is some milliseconds; take a minute where
/// nobody looks after clocks, and let the client's `max_ttl` and `restart_delay` allow for it.
const MACHINES: [(&str, u64); 4] = [("one", 0), ("two", 0), ("three", 100), ("four", 200)];

/// Longer than the difference of clocks, the wait, and the time by which a busy machine may be late, together.
const TTL: Duration = Duration::from_secs(2);

/// Shorter than a tick, and not zero: where several machines come at the same moment, the votes of the nodes may be split
/// among them, and after a single try nobody would have the lock.
const WAIT: Duration = Duration::from_millis(100);

/// Which machines ran the job, by tick.
type Runs = Arc<Mutex<BTreeMap<u32, Vec<&'static str>>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let builder = common::builder().ttl(TTL);
    let runs = Runs::default();

    let mut machines = Vec::new();
    let first = Instant::now() + TICK;
    for (name, behind) in MACHINES {
        let redlock = builder.clone().build().await?;
        let start = first + Duration::from_millis(behind);
        machines.push(tokio::spawn(machine(name, redlock, start, runs.clone())));
    }
    for machine in machines {
        machine.await?;
    }

    let runs = runs.lock().expect("no machine panics");
    for (tick, by) in runs.iter() {
        println!("tick {tick} ran on {}", by.join(" and "));
    }
    let once = runs.values().filter(|by| by.len() == 1).count();
    println!("{once} of {TICKS} ticks ran once");
    if once == TICKS as usize { Ok(()) } else { Err("a tick was left out or ran twice".into()) }
}

/// One machine, by whose clock the ticks begin at `start`. A real one takes the time of day, cut to whole ticks.
async fn machine(name: &'static str, redlock: Redlock, start: Instant, runs: Runs) {
    for tick in 0..TICKS {
        sleep_until(start + tick * TICK).await;
        if tick == 2 && ["one", "two"].contains(&name) {
            println!("machine {name} is down at tick {tick}");
            continue;
        }
        let job = async {
            sleep(Duration::from_millis(20)).await;
            runs.lock().expect("no machine panics").entry(tick).or_default().push(name);
        };
        // Too few nodes, mostly: worth an alert, and no reason to run the job all the same, or to miss the next tick.
        if let Err(error) = once(&redlock, &format!("report:{tick}"), job).await {
            println!("machine {name} passes tick {tick} over: {error}");
        }
    }
    redlock.close(Duration::from_secs(1)).await;
}

/// Runs `job`, unless another machine has done so or is about to. Returns whether it did.
///
/// A job that may last as long as the TTL asks for `keep_alive()`, and stops when `guard.lost()` says so.
async fn once(redlock: &Redlock, name: &str, job: impl Future<Output = ()>) -> Result<bool, AcquireError> {
    let guard = match redlock.lock(name).wait(WAIT).await {
        Ok(guard) => guard,
        Err(error) if error.is_contention() => return Ok(false),
        Err(error) => return Err(error),
    };
    job.await;
    // Takes the lock out of its guard, which would release it when dropped: now nothing but the TTL ends it.
    if let Err(lost) = guard.into_parts().await {
        println!("{name} took too long, another machine may have run it too: {lost}");
    }
    Ok(true)
}
