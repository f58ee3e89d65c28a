//! Carries out what an [`Acquisition`] says: attempts, stays in the queue, sleeps.

use std::sync::Arc;

use rand::random;

use super::attempt::{self, NotAcquired, Request, attempt};
use super::driver::Driver;
use super::waiting;
use crate::node::State;
use crate::protocol::acquire::{Acquisition, Outlook, Rules, Step};
use crate::protocol::backoff::Backoff;
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;
use crate::runtime::shared::{Counted, Shared};

/// Acquires. Each attempt has an owner of its own (rule 2); one that failed is undone before the next begins, on the
/// same ordered connections.
///
/// # Cancellation safety
///
/// Dropping the future undoes what was set and leaves the queue: the driver and the waiter do, wherever they stand.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    request: &Request,
) -> Result<(Driver, Counted), NotAcquired> {
    let started = shared.clock.now();
    let ranks = attempt::ranks(shared, &request.key);
    let queues = ranks.map(|ranks| attempt::queues(shared, &ranks));
    let (least, most) = shared.config.retry;
    let rules = Rules {
        quorum: shared.quorum,
        wait: request.wait,
        backoff: Backoff::new(least, most),
        queues: ranks.is_some(),
        contended: shared.contended_keys.contains(&request.key),
    };
    let mut acquisition = Acquisition::new(rules, started);
    loop {
        match (acquisition.step(), &ranks) {
            (Step::Attempt(asking), _) => match attempt(shared, request, queues, asking).await? {
                Ok(held) => return Ok(held),
                Err(failed) => acquisition.handle_failure(failed, random(), shared.clock.now()),
            },
            (Step::Queue { .. }, Some(ranks)) => {
                // Boxed: thousands may wait, and most acquires never do.
                let stay = Box::pin(waiting::wait(shared, request, ranks, &mut acquisition));
                if let Some(held) = stay.await? {
                    return Ok(*held);
                }
            }
            (Step::Sleep(until), _) => {
                tokio::select! {
                    biased;
                    () = shared.closing.cancelled() => return Err(NotAcquired::Closed),
                    () = shared.clock.sleep_until(until) => acquisition.handle_timeout(shared.clock.now()),
                }
            }
            (Step::Look, _) => {
                let now = shared.clock.now();
                acquisition.handle_outlook(outlook(shared, now), random(), now);
            }
            // Without ranks there is no queue, which the rules say.
            (Step::Fail | Step::Queue { .. }, _) => return Err(NotAcquired::Failed(acquisition.into_end())),
        }
    }
}

/// When a quorum of nodes counts, by what is known of them at `now`.
fn outlook(shared: &Shared, now: Instant) -> Outlook {
    let connected = shared.nodes.iter().enumerate().filter(|(_, node)| {
        let state = node.state();
        matches!(*state.borrow(), State::Up | State::Suspect)
    });
    let standings = connected.map(|(index, _)| shared.node_table.standing(NodeId::new(index)));
    Outlook::of(shared.quorum, standings, now)
}
