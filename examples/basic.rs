//! The least there is: acquire, work, release.
//!
//! ```text
//! cargo run --features testing --example basic
//! ```

mod common;

use std::time::Duration;

use redquorum::AcquireError;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One client for the whole program. It is cheap to clone, and has one connection to each node.
    let redlock = common::builder().build().await?;

    // Waits for the lock if somebody has it, for 30 s unless told otherwise.
    let guard = redlock.acquire("invoice:4711").await?;
    println!("held for another {:?}", guard.remaining());

    // Another task, or another machine, is refused meanwhile.
    match redlock.try_acquire("invoice:4711").await {
        Err(error @ AcquireError::Held { .. }) => println!("as it should be: {error}"),
        other => println!("strange: {other:?}"),
    }

    // Dropping the guard would do the same, without telling how it ended.
    guard.release().await?;

    // A request of one's own making: a shorter life of the key, and a shorter wait.
    let guard =
        redlock.lock("invoice:4711").ttl(Duration::from_secs(3)).wait(Duration::from_millis(500)).await?;
    println!("held again, by the votes of: {}", guard.report());
    guard.release().await?;

    redlock.close(Duration::from_secs(1)).await;
    Ok(())
}
