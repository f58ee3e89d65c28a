//! The task that takes the lead from waiters whose own tasks are not polled. One per client, asleep while no waiter depends
//! on another.
//!
//! The other members of a group do not do this themselves: each would need a timer.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::registry::Wakeups;

/// A wake-up makes a leader overdue earlier than was known, so the groups are looked at this often.
const TICK: Duration = Duration::from_millis(200);

/// Takes the lead from those that are overdue, until the client ends.
pub(crate) async fn run(wakeups: Arc<Wakeups>, clock: Clock, shutdown: CancellationToken) {
    let watch = async {
        loop {
            let overdue = wakeups.led().await;
            let now = clock.now();
            clock.doze_until(overdue.max(now).min(now.after(TICK))).await;
            wakeups.replace_overdue();
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = watch => {}
    }
}
