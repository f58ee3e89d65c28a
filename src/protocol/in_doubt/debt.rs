//! The duty to clear one doubtful outcome on one node, and when it ends by itself.

use std::time::Duration;

use crate::protocol::message::{ClientId, ConnectionId, Key, Operation, Owner, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};

use super::Doubt;

/// How long a debt is kept beyond the last possible expiry of its key: room for a command that was on its way for
/// some time before the server counted its TTL.
pub const MARGIN: Duration = Duration::from_secs(1);

/// The duty to clear one doubtful outcome on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Debt {
    /// The node.
    pub node: NodeId,
    /// The key.
    pub key: Key,
    /// The owner to be cleared.
    pub owner: Owner,
    /// Where the node may keep a queue: who owes it, and the length of a hand-over.
    queue: Option<(ClientId, Ttl)>,
    doubt: Doubt,
    /// When a key of this owner must be gone.
    ends: Instant,
}

impl Debt {
    /// The debt that an undo or release leaves until it is settled. It ends by itself when the key must be gone:
    /// last send + TTL + a margin for the clocks' rates and for the way.
    pub fn new(node: NodeId, key: Key, owner: Owner, doubt: Doubt, ttl: Ttl, drift: Drift) -> Self {
        let ends = doubt.lives_until.after(drift.allowance(ttl)).after(MARGIN);
        Self { node, key, owner, queue: None, doubt, ends }
    }

    /// The same on a node that may keep a queue for the key: what settles it also hands over, and leaves the queue.
    pub fn in_queue(mut self, client: ClientId, hand_over: Ttl) -> Self {
        self.queue = Some((client, hand_over));
        self
    }

    /// When it ends at the latest.
    pub fn ends(&self) -> Instant {
        self.ends.max(self.doubt.stands_until.after(MARGIN))
    }

    /// What an answer to its compare-and-delete leaves of it: nothing where it settles it. Any answer says that the owner
    /// waits in the queue no more, and what is still open is a key.
    ///
    /// A look that is executed late nevertheless, on a dead connection, may give it the key for the length of a hand-over,
    /// like any vote, or let it enter once more: then it is handed the key in vain, at most once, and its client passes it
    /// on.
    pub fn after(mut self, connection: ConnectionId, reply: &Reply) -> Option<Self> {
        if self.doubt.is_settled_by(connection, reply) {
            return None;
        }
        if reply.answers_release() {
            self.doubt.stands_until = Instant::default();
        }
        Some(self)
    }

    /// The command that settles it.
    pub fn operation(&self) -> Operation {
        let (key, owner) = (self.key.clone(), self.owner);
        match self.queue {
            Some((client, hand_over)) => Operation::HandOver { key, owner, client, hand_over },
            None => Operation::Release { key, owner },
        }
    }
}
