//! Closing in an orderly way: nothing new begins, what is held gets time to end, and nothing stays on the nodes.
//!
//! ```text
//! cargo run --features testing --example shutdown
//! ```

mod common;

use std::time::{Duration, Instant};

use redquorum::{AcquireError, Redlock};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = common::builder().build().await?;

    let working = tokio::spawn(work(redlock.clone()));
    sleep(Duration::from_millis(100)).await;
    let waiting = tokio::spawn(work(redlock.clone()));
    sleep(Duration::from_millis(100)).await;

    // In a service, this is where the signal to end arrives.
    let asked = Instant::now();
    let clean = redlock.close(Duration::from_secs(5)).await;
    println!(
        "closed after {:?}, {}",
        asked.elapsed(),
        if clean { "nothing left open" } else { "not all settled" }
    );

    println!("the one who worked: {}", told(working.await?));
    println!("the one who waited: {}", told(waiting.await?));
    println!("one who comes late: {}", told(work(redlock).await));
    Ok(())
}

/// Half a second of work under the lock.
async fn work(redlock: Redlock) -> Result<(), AcquireError> {
    let guard = redlock.acquire("one-at-a-time").await?;
    sleep(Duration::from_millis(500)).await;
    // Dropping the guard releases the lock in the background; `close` waits for that, too.
    drop(guard);
    Ok(())
}

fn told(outcome: Result<(), AcquireError>) -> String {
    outcome.map_or_else(|error| error.to_string(), |()| "done".to_owned())
}
