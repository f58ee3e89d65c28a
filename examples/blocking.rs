//! Locks without async: threads that take turns, and work that looks at its lock.
//!
//! ```text
//! cargo run --features testing,blocking --example blocking
//! ```

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use redquorum::WithLockError;

/// Short, so that others need not wait for long should this process die.
const TTL: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One client for the whole program. It has one thread of its own, whatever goes on.
    let redlock = common::builder().ttl(TTL).build_blocking()?;

    let guard = redlock.acquire("invoice:4711")?;
    println!("held for another {:?}", guard.remaining());
    match redlock.lock("invoice:4711").wait(Duration::from_millis(100)).acquire() {
        Err(error) => println!("as it should be: {error}"),
        Ok(guard) => println!("strange: {guard:?}"),
    }
    guard.release()?;

    // Threads share the client, and are served in turn.
    let pages = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let page = redlock.with_lock("report", |_| pages.fetch_add(1, Ordering::Relaxed) + 1);
                match page {
                    Ok(page) => println!("page {page} is written, and no other meanwhile"),
                    Err(error) => println!("one page is missing: {error}"),
                }
            });
        }
    });

    // Nothing stops a function whose lock is lost: it has to look. Here the lock is lost because it may not be held for longer.
    let slow = redlock.lock("report").max_hold(TTL).with(|guard| {
        let mut steps = 0;
        while guard.lost(Duration::from_millis(300)).is_none() {
            steps += 1;
        }
        println!("stopped after {steps} steps");
    });
    match slow {
        Err(WithLockError::Lost { reason, .. }) => println!("not done: {reason}"),
        other => println!("strange: {other:?}"),
    }

    // No call to `close`: dropping the client at the end waits until its last releases are through.
    Ok(())
}
