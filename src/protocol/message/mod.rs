//! What goes to a node and what comes back: operations, replies, and the names in them.
//!
//! One request and one reply type serve every kind of node. A reply is decoded by the operation that was *sent*,
//! which is the node's business; here it only has a meaning.

mod names;
mod operation;
mod reply;
#[cfg(test)]
mod tests;

pub use names::{ClientId, ConnectionId, Key, Owner, OwnerHex};
pub use operation::{Extension, Extensions, MOST_EXTENSIONS, Operation};
pub use reply::{Found, Holder, HolderValue, NotSent, Place, Reply, ServerMessage, Uncounted, Unknown};
