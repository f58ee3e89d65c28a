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

/// How long a debt for an unanswered set waits for a node that says nothing. A frozen node executes the set whenever it
/// goes on, so the key's TTL bounds nothing while the node is silent; this bounds what a client keeps for a node that
/// never comes back.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(600);

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
    /// When a key of this owner must be gone, if the node has executed what was sent.
    ends: Instant,
    /// Life of a key that the node makes of an unanswered set, with a margin for the clocks' rates and for the way.
    life: Duration,
    /// The node has answered a release of this debt.
    heard: bool,
}

impl Debt {
    /// The debt that an undo or release leaves until it is settled. It ends by itself when the key must be gone:
    /// last send + TTL + a margin for the clocks' rates and for the way. See [`Debt::taken_on`] for unanswered sets.
    pub fn new(node: NodeId, key: Key, owner: Owner, doubt: Doubt, ttl: Ttl, drift: Drift) -> Self {
        let allowance = drift.allowance(ttl);
        let ends = doubt.lives_until.after(allowance).after(MARGIN);
        // A waiter that leaves may owe its claim as well, which asked for more than a vote lasts.
        let longest = Ttl::unchecked(ttl.duration().max(doubt.longest));
        let life = longest.duration().saturating_add(drift.allowance(longest)).saturating_add(MARGIN);
        Self { node, key, owner, queue: None, doubt, ends, life, heard: false }
    }

    /// The same on a node that may keep a queue for the key: what settles it also hands over, and leaves the queue.
    pub fn in_queue(mut self, client: ClientId, hand_over: Ttl) -> Self {
        self.queue = Some((client, hand_over));
        self
    }

    /// The debt as the client keeps it from `now` on. A set that was never answered may still be in the socket buffer of a
    /// frozen node, however long ago it was sent: such a debt does not end before the node has answered a release, or
    /// before it was silent for [`LONGEST_SILENCE`].
    pub fn taken_on(mut self, now: Instant) -> Self {
        if !self.heard && !self.doubt.is_answered() {
            self.ends = self.ends.max(now.after(self.life.max(LONGEST_SILENCE)));
        }
        self
    }

    /// Whether every set was answered.
    pub fn is_answered(&self) -> bool {
        self.doubt.is_answered()
    }

    /// Whether the node has answered a release.
    pub fn is_heard(&self) -> bool {
        self.heard
    }

    /// When it ends at the latest.
    pub fn ends(&self) -> Instant {
        self.ends.max(self.doubt.stands_until.after(MARGIN))
    }

    /// What an answer to its compare-and-delete, read at `now`, leaves of it: nothing if the answer settles it. Any answer
    /// says that the owner waits in the queue no more, and what is still open is a key. The first answer also says that the
    /// node executes commands: the key of an unanswered set is gone one life later.
    ///
    /// A look that is executed late nevertheless, on a dead connection, may give it the key for the length of a hand-over,
    /// like any vote, or let it enter once more: then it is handed the key in vain, at most once, and its client passes it
    /// on.
    pub fn after(mut self, connection: ConnectionId, reply: &Reply, now: Instant) -> Option<Self> {
        if self.doubt.is_settled_by(connection, reply) {
            return None;
        }
        if reply.answers_release() {
            self.doubt.stands_until = Instant::default();
            if !std::mem::replace(&mut self.heard, true) && !self.doubt.is_answered() {
                self.ends = now.after(self.life);
            }
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
