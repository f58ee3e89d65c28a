//! What really happened, seen from outside: the record that the laws are checked against.
//!
//! Written by the world as commands pass its boundary, never by the protocol, and never read by it.

use redquorum::protocol::lease::CallId;
use redquorum::protocol::message::{ConnectionId, Owner};
use redquorum::protocol::quorum::NodeSet;
use redquorum::protocol::time::Instant;

use super::clock::TrueTime;

/// Most nodes of a history.
pub const MOST_NODES: usize = 7;

/// One owner, from its first command on.
#[derive(Clone, Debug)]
pub struct OwnerWitness {
    pub owner: Owner,
    pub key: usize,
    /// An undo or release of it was sent somewhere, or tried.
    pub retired: bool,
    /// The longest TTL asked for, in milliseconds.
    pub longest_ttl: u64,
    pub nodes: [NodeWitness; MOST_NODES],
}

/// One owner on one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeWitness {
    /// A set or claim was handed to a connection.
    pub written: bool,
    /// The connection of the latest of them.
    pub connection: ConnectionId,
    /// A release was handed to a connection, or is owed, or was not needed.
    pub released: bool,
    /// The protocol takes the node for clear of this owner, for ever.
    pub settled: bool,
    /// A debt was left to the TTL here.
    pub left_to_ttl: bool,
    /// When the last set, claim or extension was sent: on the client's clock, and truly.
    pub last_sent: Instant,
    pub last_sent_truly: TrueTime,
    /// When the last set, claim or extension was executed.
    pub last_executed: TrueTime,
    /// A set was executed.
    pub executed: bool,
    /// A grant was read by the client.
    pub heard_grant: bool,
}

/// The round that a lease is in, as its replies really were.
#[derive(Clone, Copy, Debug)]
pub struct RoundWitness {
    pub call: CallId,
    pub kind: RoundKind,
    pub started: TrueTime,
    /// The client's clock at the first send.
    pub started_locally: Instant,
    /// Nodes whose outcome the client has learned.
    pub answered: NodeSet,
    /// Nodes that truly granted, and said so: set by this round, or still held by this owner.
    pub granted: NodeSet,
    /// The lease has told its verdict.
    pub decided: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundKind {
    Acquire,
    Extend,
    Release,
}

/// One debt in a ledger.
#[derive(Clone, Copy, Debug)]
pub struct DebtWitness {
    pub owner: usize,
    pub node: usize,
    pub ends: Instant,
    pub open: bool,
}
