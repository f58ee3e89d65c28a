//! A worker whose lock lasts as long as its work: kept alive in the background, and dropped with the lock if that is lost.
//!
//! ```text
//! cargo run --features testing --example worker
//! ```

mod common;

use std::time::Duration;

use redquorum::{LockGuard, Lost, WithLockError};
use tokio::time::sleep;

/// Short, so that others need not wait for long should this process die.
const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = common::builder().ttl(TTL).build().await?;

    // Twice as long as the TTL. The lock is acquired before the work and released after it, whatever becomes of it.
    let report = redlock
        .with_lock("nightly-report", async |guard| {
            for step in 1..=4 {
                println!("step {step}, held for another {:?}", guard.remaining());
                sleep(TTL / 2).await;
            }
            "four pages"
        })
        .await?;
    println!("done: {report}");

    // Work that hangs does not hold the lock for ever, where a limit is set.
    let hanging =
        redlock.lock("nightly-report").max_hold(2 * TTL).with(async |_| sleep(60 * TTL).await).await;
    match hanging {
        Err(WithLockError::Lost { reason: Lost::MaxHoldReached, .. }) => {
            println!("dropped the work that hung")
        }
        other => println!("{other:?}"),
    }

    // The same by hand, with a guard that goes where it is needed.
    let guard = redlock.lock("nightly-report").keep_alive().await?;
    match watched(&guard).await {
        Ok(()) => println!("done in time"),
        Err(lost) => println!("stopped half-way: {lost}"),
    }
    // What is no lock any more is released all the same: only what is still this holder's is deleted.
    if let Err(error) = guard.release().await {
        println!("{error}");
    }

    redlock.close(Duration::from_secs(1)).await;
    Ok(())
}

/// Work in one piece, which is dropped at its next await once the lock is lost. Work that a drop does not end, such as
/// a thread or a request on its way to another server, goes on: that server has to refuse it.
async fn watched(guard: &LockGuard) -> Result<(), Lost> {
    tokio::select! {
        biased;
        lost = guard.lost() => Err(lost),
        () = sleep(2 * TTL) => Ok(()),
    }
}
