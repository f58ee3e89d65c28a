//! What all clones and guards of one client share. It lives as long as any of them; its end is the client's end.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Config;
use crate::node::Node;
use crate::protocol::quorum::Quorum;
use crate::runtime::alarm::Alarm;
use crate::runtime::janitor::Balance;

/// What all clones and guards of one client share.
pub(crate) struct Shared {
    pub(crate) nodes: Arc<[Node]>,
    pub(crate) quorum: Quorum,
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) alarm: Arc<Alarm>,
    /// No new lock is taken any more.
    pub(crate) closing: CancellationToken,
    /// The tasks of this client end.
    pub(crate) shutdown: CancellationToken,
    /// How many guards are held.
    pub(crate) guards: watch::Sender<usize>,
    pub(crate) balance: watch::Receiver<Balance>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
