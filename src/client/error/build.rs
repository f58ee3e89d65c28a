//! Why a client was not built.

use std::time::Duration;

use thiserror::Error;

use crate::config::InvalidRequest;
use crate::node::redis::address::AddressError;

/// Why a client could not be built. Nothing was sent, except with [`BuildError::NotConnected`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use redquorum::{BuildError, Redlock};
///
/// let twice = Redlock::builder().nodes(["redis://10.0.0.1", "redis://10.0.0.1:6379"]).build().await;
/// assert!(matches!(twice, Err(BuildError::DuplicateNode { first: 1, second: 2, .. })));
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No node was given.
    #[error("no node given: a lock needs at least one, and three or five to survive the loss of nodes")]
    NoNodes,
    /// More nodes than a lock can have.
    #[error("{given} nodes given, at most {maximum} are possible")]
    TooManyNodes {
        /// How many were given.
        given: usize,
        /// How many are possible.
        maximum: usize,
    },
    /// The same address twice; or every node is connected, and too few servers are behind them, as two addresses lead to the
    /// same one. It would vote twice. If the other nodes suffice for a quorum, the client is built, and the later of the two
    /// addresses has no vote ([`NodeVote::SameServer`](crate::NodeVote::SameServer)).
    #[error(
        "nodes {first} and {second} are the same server ({address}): it would vote twice. Name each independent server \
         once; databases of one server are not independent"
    )]
    DuplicateNode {
        /// The earlier one, counted from 1.
        first: usize,
        /// The later one, counted from 1.
        second: usize,
        /// Where both lead.
        address: String,
    },
    /// An address that is no URL of a server.
    #[error("malformed address \"{url}\": {reason}. Expected redis://[user:password@]host[:port][/database]")]
    MalformedUrl {
        /// The address, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A `rediss://` address, with the crate compiled without TLS.
    #[error("\"{url}\" needs TLS: compile redquorum with its `tls` feature")]
    TlsNotCompiled {
        /// The address, without its password.
        url: String,
    },
    /// A setting that cannot work.
    #[error("{0}")]
    Invalid(#[from] InvalidRequest),
    /// Fewer than a quorum of nodes could be connected within the connect timeout.
    #[error(
        "connected to {connected} of {nodes} nodes within {within:?}, {needed} are needed: {trouble}. \
         (`lazy()` builds without waiting for them)"
    )]
    NotConnected {
        /// How many nodes are connected.
        connected: usize,
        /// How many nodes were given.
        nodes: usize,
        /// How many are needed.
        needed: usize,
        /// How long was waited.
        within: Duration,
        /// The nodes that are not connected, each with its trouble.
        trouble: String,
    },
    /// Built outside a tokio runtime.
    #[error("no tokio runtime here: build the client inside one, with its time and I/O drivers enabled")]
    NoRuntime,
    /// A client for code without async (feature `blocking`) could not start its thread: why.
    #[error("the operating system gave the client no thread: {0}")]
    NoThread(String),
}

impl From<AddressError> for BuildError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::Malformed { url, reason } => Self::MalformedUrl { url, reason },
            AddressError::TlsNotCompiled { url } => Self::TlsNotCompiled { url },
        }
    }
}
