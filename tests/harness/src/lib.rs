//! Real servers, and real faults in front of them, for the integration tests.
//!
//! The harness knows server processes, sockets and bytes. It knows nothing of locks and uses no item
//! of the library, so that a flaw there cannot hide itself here.
//!
//! Everything here blocks for milliseconds at most and needs no runtime: a [`Proxy`] runs on a thread
//! of its own, so neither a busy test runtime nor paused tokio time bends the faults it makes.

mod alone;
mod cluster;
mod ear;
mod faketime;
mod port;
mod proxy;
mod replies;
mod server;
mod tls;

use std::path::Path;
use std::time::{Duration, Instant};

pub use alone::alone;
pub use cluster::Cluster;
pub use ear::Ear;
pub use faketime::{faketime, set_clock, with_clock_in};
pub use proxy::{Flow, Mode, Proxy, Traffic};
pub use replies::ReplyFramer;
pub use server::{Server, ServerBuilder, Version, server_binary};
pub use tls::Certificate;

/// The top folder of the project, in which cargo, make and the scripts run.
pub fn top() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("it is two folders down")
}

/// Waits until `condition` holds, and panics with `what` where it does not within `within`.
///
/// Between two looks it sleeps 5 ms on tokio's clock: short against every timeout of the library,
/// long enough to leave the cores to the servers. It looks once more at the very end, so a test
/// machine that stood still does not fail a condition that has come true meanwhile.
pub async fn eventually(within: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    loop {
        let last_look = Instant::now() >= deadline;
        if condition() {
            return;
        }
        assert!(!last_look, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
