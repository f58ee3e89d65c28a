//! An answer on its way from a node to whoever made the call.

use crate::protocol::message::{CallId, ConnectionId, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::Standing;
use crate::protocol::time::Instant;

/// The answer to one call, with all that has to be known to count it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Who answered.
    pub node: NodeId,
    /// Which call this is the answer to.
    pub call: CallId,
    /// The connection on which the call went.
    pub connection: ConnectionId,
    /// Whether the call was a set or claim.
    pub creates: bool,
    /// What became of it.
    pub reply: Reply,
    /// What the node's grants were worth when it answered.
    pub standing: Standing,
    /// When the answer was read from the node.
    pub read: Instant,
}
