//! A lock over several independent Redis-compatible servers, held by whoever holds it on a majority of them.
//!
#![cfg_attr(feature = "runtime", doc = "```no_run")]
#![cfg_attr(not(feature = "runtime"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
//!     let redlock = redquorum::Redlock::builder().nodes(nodes).build().await?;
//!
//!     let guard = redlock.lock("invoice:4711").ttl(Duration::from_secs(5)).await?;
//!     println!("mine for another {:?}", guard.remaining());
//!     guard.release().await?;
//!     Ok(())
//! }
//! ```
//!
//! # What a held lock means
//!
//! Until `LockGuard::remaining` is zero, no other client of the same nodes acquires the lock. That holds as long as no node
//! forgets a key unnoticed before its time, and clocks run at rates that differ by less than the drift allowance.
//!
//! It does **not** mean
//!
//! - **that a late holder is stopped.** A process that was paused after its last look at the clock goes on where it was. Look at
//!   `LockGuard::is_valid` before each step that matters, race the work against `LockGuard::lost`, and where two holders at
//!   once would do harm, let the resource refuse the late one, by its fencing token (`LockRequest::fenced`).
//! - **that nodes remember.** A node that comes back empty does not vote for the longest TTL (see
//!   `RedlockBuilder::restart_delay`). A backup that brings an old state back on a server that was long up is not noticed.
//! - **that a newcomer never gets in first.** Those who wait are served in turn; who never met contention may win in the round
//!   trip of a hand-over.
//!
//! # How it works
//!
//! 1. An owner, 128 random bits, is made; the clock is read; `SET key owner NX PX ttl` goes to every node at once.
//! 2. The lock is held at the vote that completes a majority, for the TTL less the time since that reading of the clock, less an
//!    allowance for clocks. A majority out of reach ends the attempt as early.
//! 3. Extending gives the key another TTL where it still carries the owner, and counts as acquiring does.
//! 4. A lock that is kept alive is extended so by one task of the client, together with others.
//! 5. Releasing, and giving up, deletes the key where it still carries the owner, on every node that may have been written to.
//! 6. A deletion without a usable answer is a debt, which is repeated in the background until an answer or the key's expiry settles it.
//!
//! # Choosing a TTL
//!
//! A crashed holder blocks all others until its key expires, which speaks for a short TTL. A slow holder loses the lock at the end of
//! its validity, and each round trip is taken from it, which speaks for a long one.
//!
//! | TTL | for clocks | validity at most | waits for replies | least validity |
//! | --- | --- | --- | --- | --- |
//! | 100 ms | 3 ms | 97 ms | 10 ms | 10 ms |
//! | 1 s | 12 ms | 988 ms | 20 ms | 100 ms |
//! | 10 s (default) | 102 ms | 9.898 s | 200 ms | 1 s |
//! | 60 s | 602 ms | 59.398 s | 500 ms | 6 s |
//!
//! Take ten times the longest that the work normally lasts, and at least fifty times the round trip of the nodes that complete a majority. For
//! work of unknown length take some seconds and let the lock be kept alive (`LockRequest::keep_alive`, `Redlock::with_lock`): it is
//! extended at a third of the TTL, and where that fails tried again some twenty times before it is lost. A
//! request may ask for less than the client's TTL; for more, raise `RedlockBuilder::max_ttl`.
//!
//! # Cancellation and shutdown
//!
//! Every future may be dropped at any await: an acquire that is dropped takes back what it set, a release that is dropped
//! goes on. A guard may be dropped anywhere, also on a plain thread or while unwinding: it releases in the background.
//! Once the runtime is gone, the TTL frees what was held. Work in tasks that a drop does not end, such as a thread, has to look
//! at the lock itself.
//!
//! `Redlock::close` ends a service in an orderly way: nobody waits any more, held guards get time to be released, open
//! deletions to be settled, and then the connections are closed.
//!
//! # Features
//!
//! | feature | when |
//! | --- | --- |
//! | `runtime` (default) | always, but to build the protocol alone |
//! | `blocking` | in code without async: the same face, for threads and scripts |
//! | `tls` | for `rediss://` addresses: rustls, with the root certificates of the platform |
//! | `serde` | to send a held lock to another process, as `LockParts` |
//! | `metrics` | to count and measure through the facade of the `metrics` crate |
//! | `testing` | in the tests of your own code: nodes in memory, with faults and a clock to your liking |
//!
//! # Longer documents
//!
//! Shown in [`docs`], and in the source under `docs/`:
//!
//! - to use it: [from another client](docs::migrating), [what it does not do](docs::limits), [waiting in the queue](docs::waiting),
//!   [fencing tokens](docs::fencing), [the command line tool](docs::cli);
//! - to operate it: [nodes, restarts, access rules, metrics](docs::operations), [what it costs](docs::benchmarks);
//! - to review it: [what holds under which assumption](docs::safety), [how it is built, and why](docs::design),
//!   [how that is shown](docs::testing).
//!
//! The table of all defaults is in `README.md`.

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "runtime")]
mod client;
#[cfg(feature = "runtime")]
mod clock;
#[cfg(feature = "runtime")]
mod config;
// Only where documentation is built: the module is no part of the interface. Its code blocks are no tests of the library.
#[cfg(all(doc, not(doctest)))]
pub mod docs;
#[cfg(feature = "runtime")]
mod meter;
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod protocol;
#[cfg(feature = "runtime")]
mod registry;
#[cfg(feature = "runtime")]
mod runtime;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "runtime")]
pub use client::{
    AcquireError, BuildError, ExtendError, Health, Inspection, IntoNode, InvalidRequest, LockGuard,
    LockParts, LockRequest, NodeAddress, NodeInspection, NodeReport, NodeState, NodeStatus, NodeVote,
    Outcome, Persistence, Redlock, RedlockBuilder, ReleaseError, Report, ResumeError, ResumeRequest, Role,
    Scripts, WithLockError,
};
#[cfg(feature = "runtime")]
pub use protocol::fencing::FencingToken;
#[cfg(feature = "runtime")]
pub use protocol::message::Key;
#[cfg(feature = "runtime")]
pub use runtime::loss::Lost;

/// The examples of the README are tests.
#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Those for whoever comes from another client as well.
#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../docs/migrating.md")]
struct Migrating;

/// And those of the guide to testing.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../docs/testing-your-service.md")]
struct TestingYourService;
