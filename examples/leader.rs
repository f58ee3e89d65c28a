//! One leader among several candidates: it leads for as long as its lock is kept, and steps down when that is lost.
//!
//! ```text
//! cargo run --features testing --example leader
//! ```
//!
//! A leader that has lost its lock has to stop, with all that it has begun: tasks, threads, requests under way. `lost()` tells it
//! before anybody else can lead. But a process that stands still, which happens sooner or later to whoever leads for
//! days, hears of nothing, and goes on afterwards with what it was about to do. So whatever a leader changes has to refuse
//! those who led before, by their fencing tokens.

mod common;

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redquorum::{FencingToken, LockGuard, Lost, RedlockBuilder};
use tokio::time::sleep;

/// How long nobody leads, once a leader has died.
const TTL: Duration = Duration::from_secs(1);

/// How often a leader leaves an entry in the journal, and after how many it has led long enough.
const BEAT: Duration = Duration::from_millis(50);
const ENTRIES: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let builder = common::builder().ttl(TTL);
    let journal = Journal::default();

    // A thread and a runtime for each, since one is about to stand still as a whole, as a process does.
    let candidates = [("ann", true), ("ben", false), ("cleo", false)].map(|(name, stands_still)| {
        let (builder, journal) = (builder.clone(), journal.clone());
        let candidate = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(candidate(name, builder, journal, stands_still))
        };
        let running = thread::spawn(candidate);
        // So that the first one leads first.
        thread::sleep(2 * BEAT);
        running
    });
    for candidate in candidates {
        let ended = candidate.join().map_err(|_| "a candidate panicked")?;
        ended.map_err(|error| error.to_string())?;
    }
    println!("the journal: {}", journal.0.lock().expect("no candidate panics").entries.join(", "));
    Ok(())
}

/// Wants to lead until it has led for a whole term.
async fn candidate(
    name: &str,
    builder: RedlockBuilder,
    journal: Journal,
    mut stands_still: bool,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let redlock = builder.build().await?;
    loop {
        // In line with the other candidates. An outage of the nodes only makes this last longer: nobody leads meanwhile.
        let guard = redlock.lock("leader").keep_alive().fenced().wait_forever().await?;
        let ended = lead(name, &guard, &journal, stands_still).await;
        stands_still = false;
        match ended {
            // Hands over to the next candidate at once. Dropping the guard would do so too.
            Ok(()) => {
                println!("{name} has led long enough");
                if let Err(error) = guard.release().await {
                    println!("{name}: {error}");
                }
                break;
            }
            Err(lost) => println!("{name} steps down: {lost}"),
        }
    }
    redlock.close(Duration::from_secs(1)).await;
    Ok(())
}

/// The work of a leader, which ends with the lock. Nothing of it may go on after that.
async fn lead(name: &str, guard: &LockGuard, journal: &Journal, stands_still: bool) -> Result<(), Lost> {
    let token = guard.fencing_token().expect("a fenced lock has a token");
    println!("{name} leads");
    for entry in 0..ENTRIES {
        tokio::select! {
            biased;
            lost = guard.lost() => return Err(lost),
            () = sleep(BEAT) => {}
        }
        if stands_still && entry == 2 {
            println!("{name} stands still, right before writing");
            // Not `sleep(…).await`: the task that keeps the lock stands still as well.
            thread::sleep(2 * TTL);
        }
        if let Err(TooLate(greatest)) = journal.write(name, token) {
            println!("{name}'s write is refused: {token} < {greatest}");
        }
    }
    Ok(())
}

/// What the leader changes: a service of its own, which remembers the greatest token that it has seen.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Pages>>);

#[derive(Default)]
struct Pages {
    greatest: Option<FencingToken>,
    entries: Vec<String>,
}

/// The writer does not lead any more: another one has written already, with this token.
struct TooLate(FencingToken);

impl Journal {
    fn write(&self, entry: &str, token: FencingToken) -> Result<(), TooLate> {
        let mut pages = self.0.lock().expect("no candidate panics");
        match pages.greatest {
            Some(greatest) if token < greatest => Err(TooLate(greatest)),
            _ => {
                pages.greatest = Some(token);
                pages.entries.push(entry.to_owned());
                Ok(())
            }
        }
    }
}
