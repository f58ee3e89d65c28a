//! Waiting for young nodes: until so many of the connected ones count that asking makes sense again.

use std::time::Duration;

use crate::client::error::AcquireError;
use crate::node::{Node, State};
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::Standing;
use crate::protocol::time::Instant;
use crate::runtime::shared::Shared;

/// A node that comes back, or is promoted, may change the outlook before the guard ends.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// When a quorum of nodes counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outlook {
    /// Now, as far as the restart delay is concerned; or too few nodes are connected to tell, which asking shows best.
    Open,
    /// At this moment: all nodes are connected, and time is all that is missing.
    Surely(Instant),
    /// Later, and at what moment depends on nodes that are away.
    Perhaps,
}

/// When a quorum of nodes counts, by what is known of them at `now`.
pub(super) fn outlook(shared: &Shared, now: Instant) -> Outlook {
    let from = |(index, node): (usize, &Node)| {
        let up = matches!(*node.state().borrow(), State::Up | State::Suspect);
        match shared.node_table.standing(NodeId::new(index)) {
            Standing::CountsFrom(from) if up => Some(from),
            _ => None,
        }
    };
    let mut from: Vec<_> = shared.nodes.iter().enumerate().filter_map(from).collect();
    from.sort_unstable();
    let all = from.len() == shared.nodes.len();
    match from.get(shared.quorum.needed() - 1) {
        None => Outlook::Open,
        Some(from) if *from <= now => Outlook::Open,
        Some(from) if all && *from != Instant::FAR_FUTURE => Outlook::Surely(*from),
        Some(_) => Outlook::Perhaps,
    }
}

/// Waits until a quorum of nodes may count, or the wait is over.
///
/// # Cancellation safety
///
/// Dropping the future changes nothing.
pub(super) async fn wait(shared: &Shared, deadline: Instant) -> Result<(), AcquireError> {
    loop {
        let now = shared.clock.now();
        let until = match outlook(shared, now) {
            Outlook::Open => return Ok(()),
            Outlook::Surely(until) => until,
            Outlook::Perhaps => Instant::FAR_FUTURE,
        };
        if now >= deadline {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(AcquireError::Closed),
            () = shared.clock.doze_until(until.min(deadline).min(now.after(LOOK_AGAIN))) => {}
        }
    }
}
