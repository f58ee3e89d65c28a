//! A worker that watches its lock beside its work, prolongs it while it needs it, and stops when it is lost.
//!
//! ```text
//! cargo run --features testing --example worker
//! ```

mod common;

use std::time::Duration;

use redquorum::{ExtendError, LockGuard, Lost};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = common::builder().ttl(TTL).build().await?;

    let mut guard = redlock.acquire("nightly-report").await?;
    match prolonged(&mut guard).await {
        Ok(()) => println!("all steps done, {:?} left on the lock", guard.remaining()),
        Err(error) => println!("stopped: {error}"),
    }
    guard.release().await?;

    let guard = redlock.acquire("nightly-report").await?;
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

/// Work in steps, of which none takes longer than the TTL: each begins with a prolongation.
async fn prolonged(guard: &mut LockGuard) -> Result<(), ExtendError> {
    for step in 1..=4 {
        match guard.extend(TTL).await {
            Ok(()) => {}
            // Not confirmed, and not lost either: what is left is enough for a step, or it is not.
            Err(ExtendError::Unconfirmed { remaining, .. }) if remaining > TTL / 2 => {}
            Err(error) => return Err(error),
        }
        println!("step {step}, held for another {:?}", guard.remaining());
        sleep(TTL / 3).await;
    }
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
