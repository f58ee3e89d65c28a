//! What all clones and guards of one client share. It lives as long as any of them; its end is the client's end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Config;
use crate::node::Node;
use crate::protocol::fencing;
use crate::protocol::in_doubt::Balance;
use crate::protocol::message::{Holder, Key};
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::restart::RestartDelay;
use crate::registry::{ContendedKeys, Debts, NodeTable, Wakeups};
use crate::runtime::alarm::Alarm;
use crate::runtime::worst_round_trip::WorstRoundTrip;

/// What all clones and guards of one client share.
pub(crate) struct Shared {
    pub(crate) nodes: Arc<[Node]>,
    pub(crate) quorum: Quorum,
    pub(crate) config: Config,
    pub(crate) delay: Option<RestartDelay>,
    /// A lock that lives longer than the delay covers was met, and told of.
    pub(crate) restart_delay_is_short: AtomicBool,
    pub(crate) clock: Clock,
    pub(crate) alarm: Arc<Alarm>,
    /// No new lock is taken any more.
    pub(crate) closing: CancellationToken,
    /// The tasks of this client end.
    pub(crate) shutdown: CancellationToken,
    /// Leases that are being acquired or held.
    pub(crate) leases: AtomicUsize,
    pub(crate) debts: Arc<Debts>,
    pub(crate) balance: watch::Receiver<Balance>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) contended_keys: Arc<ContendedKeys>,
    pub(crate) node_table: Arc<NodeTable>,
    pub(crate) worst_round_trip: WorstRoundTrip,
}

impl Shared {
    /// Whether the tasks of this client have ended: it was closed, or its runtime is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.nodes.iter().all(Node::has_ended)
    }

    /// Whether a node takes work now, as far as is known.
    pub(crate) fn is_usable(&self, node: NodeId) -> bool {
        self.nodes.get(node.index()).is_some_and(Node::is_usable)
    }

    /// The candidate for a fencing token: the wall clock in microseconds, as far as the nodes' clocks let it be ahead.
    pub(crate) fn candidate(&self) -> u64 {
        let wall = self.clock.wall_micros().saturating_add_signed(self.config.wall_clock_off);
        fencing::candidate(wall, self.node_table.times(self.clock.now()))
    }

    /// The highest number of a fencing counter that clocks explain.
    pub(crate) fn most_expected(&self) -> Option<u64> {
        fencing::most_expected(self.node_table.times(self.clock.now()))
    }

    /// Takes note of how much longer a lock of anybody is held. The delay has to cover the longest TTL in use, which no client
    /// knows of the others; here it may show that it does not.
    pub(crate) fn note_life(&self, key: &Key, holder: Option<&Holder>) {
        let (Some(delay), Some(remaining)) = (self.delay, holder.and_then(|holder| holder.remaining)) else {
            return;
        };
        if remaining > delay.least() && !self.restart_delay_is_short.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %key,
                ?remaining,
                delay = ?delay.least(),
                "a lock is held for longer than the restart delay of this client: a node that forgets it could give it to a \
                 second holder. Set restart_delay to the longest TTL that anybody uses on these nodes"
            );
        }
    }

    /// Whether nothing of this client is under way: no lease, no call, no debt. What one of them leaves behind is
    /// counted by the next before it is no longer counted here, and they are looked at in that order.
    pub(crate) fn is_idle(&self) -> bool {
        self.leases.load(Ordering::SeqCst) == 0
            && self.nodes.iter().all(Node::is_idle)
            && self.debts.under_way() == 0
            && self.balance.borrow().open == 0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// One lease that the client waits for when it closes, from before its first command to after its last.
pub(crate) struct Counted(Arc<Shared>);

impl Counted {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        shared.leases.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.leases.fetch_sub(1, Ordering::SeqCst);
    }
}
