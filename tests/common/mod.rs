//! Real servers, and real faults in front of them, for the integration tests.
//!
//! The harness knows server processes, sockets and bytes. It knows nothing of locks and uses no item
//! of the library, so that a flaw there cannot hide itself here.
//!
//! Everything here blocks for milliseconds at most and needs no runtime: a [`Proxy`] runs on a thread
//! of its own, so neither a busy test runtime nor paused tokio time bends the faults it makes.

// Each test file compiles its own copy of this module and uses a part of it.
#![allow(dead_code, unused_imports)]

mod cluster;
mod port;
mod proxy;
mod replies;
mod server;
mod tls;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use cluster::Cluster;
pub use proxy::{Flow, Mode, Proxy, Traffic};
pub use replies::ReplyFramer;
pub use server::{Server, ServerBuilder, Version, server_binary};
pub use tls::Certificate;

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

/// An example of the package, as a user starts it.
#[allow(unexpected_cfgs, reason = "the measurements include this module as well, and have no such features")]
pub fn example(name: &str) -> Command {
    // Cargo names the programs of examples to no test, so it is asked to run it. Examples need these features at most, and
    // with the same ones for each nothing is built twice.
    const FEATURES: &str =
        if cfg!(all(feature = "tls", feature = "metrics")) { "testing,tls,metrics,serde" } else { "testing" };
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo tells this test about its package would look to build scripts like a change, and have them run anew.
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.args(["run", "--quiet", "--features", FEATURES, "--example", name]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

/// The library that moves a process's clock, where it is installed.
pub fn faketime() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("REDQUORUM_FAKETIME") {
        return Some(path.into());
    }
    let libraries = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let inside = libraries.iter().filter_map(|library| library.read_dir().ok()).flatten().flatten();
    let folders = inside.map(|entry| entry.path()).chain(libraries.map(Path::to_owned));
    let candidates = folders.flat_map(|folder| {
        ["faketime/libfaketimeMT.so.1", "libfaketimeMT.so.1"].map(|name| folder.join(name))
    });
    candidates.into_iter().find(|candidate| candidate.is_file())
}
