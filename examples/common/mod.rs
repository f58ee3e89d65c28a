//! The nodes that the examples run on.

use redquorum::testing::MemoryCluster;
use redquorum::{Redlock, RedlockBuilder};

/// A builder of a client of the nodes in `NODES` (addresses separated by blanks, or `compose` for those of
/// docker-compose.yml); where it is not set, of five nodes in memory, so that the examples need no server.
pub fn builder() -> RedlockBuilder {
    let nodes = std::env::var("NODES").unwrap_or_default();
    match nodes.trim() {
        "" => MemoryCluster::new(5).builder(),
        "compose" => Redlock::builder()
            .without_restart_delay()
            .nodes((7101..=7105).map(|port| format!("redis://127.0.0.1:{port}"))),
        nodes => Redlock::builder().without_restart_delay().nodes(nodes.split_whitespace()),
    }
}
