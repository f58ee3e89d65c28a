//! What is not known about one owner on one node, and which answers clear it.

use std::time::Duration;

use crate::protocol::message::{ConnectionId, Reply};
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;

/// What is not known about one owner on one node: which sets were sent there, on which connection, and which of them
/// were never answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Doubt {
    /// The connection of the latest set.
    connection: ConnectionId,
    /// Unanswered sets on that connection.
    here: u8,
    /// Unanswered sets on earlier connections.
    elsewhere: u8,
    /// Whether a set was answered "granted".
    granted: bool,
    /// Whether a set was ever written.
    written: bool,
    /// When a key from what was sent so far is gone at the latest, if the last of it is executed without delay.
    pub(super) lives_until: Instant,
    /// The longest life that was given to a key, or asked for.
    pub(super) longest: Duration,
    /// Until when the owner may stand in the node's queue, and be handed the key, as long as no answer says that it left.
    pub(super) stands_until: Instant,
}

impl Doubt {
    /// What is known of an owner that a node names to us: it may be there, and nothing is on its way.
    pub fn named(now: Instant, ttl: Ttl) -> Self {
        let lives_until = now.after(ttl.duration());
        Self { granted: true, written: true, lives_until, longest: ttl.duration(), ..Self::default() }
    }

    /// What is known of an owner of which a set may still be on its way, from a process that handed it on.
    pub fn owed(now: Instant, ttl: Ttl) -> Self {
        Self { granted: false, elsewhere: 1, ..Self::named(now, ttl) }
    }

    /// A set or claim was handed to a connection.
    pub fn wrote(&mut self, connection: ConnectionId, now: Instant, ttl: Ttl) {
        if self.connection != connection {
            self.elsewhere = self.elsewhere.saturating_add(self.here);
            self.here = 0;
            self.connection = connection;
        }
        self.here = self.here.saturating_add(1);
        self.written = true;
        self.lengthened(now, ttl);
    }

    /// A look was handed to a connection, by which the owner enters the queue or stays in it: it may be given the key at once,
    /// for the length of a hand-over, or be handed it as long as its entry lives.
    pub fn looked(&mut self, connection: ConnectionId, now: Instant, hand_over: Ttl, life: Duration) {
        self.wrote(connection, now, hand_over);
        self.stands_until = self.stands_until.max(now.after(life));
    }

    /// An extension was handed to a connection: a key that is there may live longer.
    pub fn lengthened(&mut self, now: Instant, ttl: Ttl) {
        self.lives_until = self.lives_until.max(now.after(ttl.duration()));
        self.longest = self.longest.max(ttl.duration());
    }

    /// The answer to a set or claim. [`Reply::Unknown`] is none: the doubt stays.
    pub fn answered(&mut self, connection: ConnectionId, reply: &Reply) {
        if matches!(reply, Reply::Unknown(_)) {
            return;
        }
        let unanswered = if connection == self.connection { &mut self.here } else { &mut self.elsewhere };
        *unanswered = unanswered.saturating_sub(1);
        // Who waits in the queue may be given the key at any moment until it leaves.
        if matches!(
            reply,
            Reply::Granted | Reply::Fenced(_) | Reply::Uncounted(_) | Reply::Voted | Reply::Queued(_)
        ) {
            self.granted = true;
        }
    }

    /// Whether everything sent went over this connection, so that the node has executed all of it before whatever was
    /// sent there later.
    pub fn is_all_on(&self, connection: ConnectionId) -> bool {
        self.connection == connection && self.elsewhere == 0
    }

    /// Whether every set and claim was answered.
    pub fn is_answered(&self) -> bool {
        self.here == 0 && self.elsewhere == 0
    }

    /// Whether anything was ever written, so that the node must be told on release.
    pub fn is_written(&self) -> bool {
        self.written
    }

    /// Whether the node certainly carries nothing of this owner, now and later.
    pub fn is_clear(&self) -> bool {
        !self.granted && self.is_answered()
    }

    /// Whether the answer to a compare-and-delete, received on `connection`, leaves nothing open (rule 4).
    ///
    /// On the connection of the sets, every answer but an error does: the node executed them before. On another
    /// one, an old set may still be on its way. There "deleted" settles it, if a single set is all that can have made
    /// the key; "not yours" settles nothing that was not answered.
    pub fn is_settled_by(&self, connection: ConnectionId, reply: &Reply) -> bool {
        let unanswered = self.elsewhere.saturating_add(self.here);
        let open = if connection == self.connection { self.elsewhere } else { unanswered };
        match reply {
            // An unanswered set on this connection may have made the deleted key as well as the old one elsewhere.
            Reply::Granted | Reply::HandedOver => open == 0 || (unanswered == 1 && !self.granted),
            reply if reply.denies_ownership() => open == 0,
            _ => false,
        }
    }
}
