//! What goes to a node: one operation about one key, or one extension of many.

use std::sync::Arc;

use crate::protocol::fencing::{Carry, Fence};
use crate::protocol::validity::Ttl;

use super::{ClientId, Key, Owner};

/// One lease's part in an extension of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extension {
    /// The key.
    pub key: Key,
    /// The value it must carry.
    pub owner: Owner,
    /// Its life from execution on.
    pub ttl: Ttl,
    /// The fencing token that goes with it, where the lease has one.
    pub carry: Option<Carry>,
}

impl From<Extension> for Operation {
    fn from(Extension { key, owner, ttl, carry }: Extension) -> Self {
        Self::Extend { key, owner, ttl, carry }
    }
}

/// Most leases in one extension of many. A server does nothing else while it executes one: some 0.2 ms for a hundred.
pub const MOST_EXTENSIONS: usize = 100;

/// The leases of one extension of many: from two to [`MOST_EXTENSIONS`]. One alone is an [`Operation::Extend`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extensions(Arc<[Extension]>);

impl Extensions {
    /// These leases; `None` where there are too few, or too many.
    pub fn new(extensions: Vec<Extension>) -> Option<Self> {
        (2..=MOST_EXTENSIONS).contains(&extensions.len()).then(|| Self(extensions.into()))
    }

    /// The leases.
    pub fn as_slice(&self) -> &[Extension] {
        &self.0
    }

    fn first(&self) -> &Extension {
        &self.0[0]
    }
}

/// One operation on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Set the key to this owner if it is absent.
    Set {
        /// The key.
        key: Key,
        /// The value.
        owner: Owner,
        /// Its life from execution on.
        ttl: Ttl,
    },
    /// Set the key if it is absent; if it already carries this owner, lengthen its life to the full TTL.
    Claim {
        /// The key.
        key: Key,
        /// The value.
        owner: Owner,
        /// Its life from execution on.
        ttl: Ttl,
        /// What happens to the key's fencing counter, in the same step. A grant is then a
        /// [`Reply::Fenced`](super::Reply::Fenced).
        fence: Option<Fence>,
    },
    /// If the key still carries this owner, lengthen its life, never shorten it.
    Extend {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
        /// Its life from execution on.
        ttl: Ttl,
        /// A token that the key's fencing counter is lifted to, in the same step.
        carry: Option<Carry>,
    },
    /// If the key still carries this owner, lift its fencing counter to at least a token.
    Raise {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
        /// The token.
        carry: Carry,
    },
    /// As [`Operation::Extend`], for many leases at once: each is answered for itself, in
    /// [`Reply::Each`](super::Reply::Each).
    ExtendAll {
        /// The leases.
        extensions: Extensions,
    },
    /// Delete the key if it carries this owner: on a node that keeps no queue for the key.
    Release {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
    },
    /// The release on a node that may keep a queue for the key: takes the owner's entry out of the queue, and if the key
    /// carries this owner or is absent, gives it to the first live waiter; without one, deletes it.
    HandOver {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
        /// Whose owner it is.
        client: ClientId,
        /// The life of the vote that the next waiter gets, in which it has to claim.
        hand_over: Ttl,
    },
    /// Stand in the queue for the key, or look again. With the key free and nobody live before it, the owner gets the
    /// node's vote for the length of a hand-over.
    Queue {
        /// The key.
        key: Key,
        /// The owner that waits in the queue.
        owner: Owner,
        /// Whose owner it is.
        client: ClientId,
        /// Whether this client cannot be woken and looks by itself.
        polls: bool,
        /// Take over the entry and the vote of this owner, which is never sent again.
        rename_from: Option<Owner>,
        /// The place held before on this same node, should the node have dropped it.
        score: Option<u64>,
        /// The life of the vote.
        hand_over: Ttl,
    },
    /// Who holds the key, and how many wait for it.
    Inspect {
        /// The key.
        key: Key,
    },
}

impl Operation {
    /// Whether this operation can bring a key into being, so that a lost reply leaves a doubt.
    pub fn creates(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Claim { .. } | Self::Queue { .. })
    }

    /// The key it is about: the first of several.
    pub fn key(&self) -> &Key {
        match self {
            Self::Set { key, .. }
            | Self::Claim { key, .. }
            | Self::Extend { key, .. }
            | Self::Raise { key, .. }
            | Self::Release { key, .. }
            | Self::HandOver { key, .. }
            | Self::Queue { key, .. }
            | Self::Inspect { key } => key,
            Self::ExtendAll { extensions } => &extensions.first().key,
        }
    }

    /// The one owner it carries: none for a mere look, and for many leases.
    pub fn owner(&self) -> Option<Owner> {
        match self {
            Self::Set { owner, .. }
            | Self::Claim { owner, .. }
            | Self::Extend { owner, .. }
            | Self::Raise { owner, .. }
            | Self::Release { owner, .. }
            | Self::HandOver { owner, .. }
            | Self::Queue { owner, .. } => Some(*owner),
            Self::Inspect { .. } | Self::ExtendAll { .. } => None,
        }
    }

    /// How many keys it is about, by which a node measures its work.
    pub fn keys(&self) -> usize {
        match self {
            Self::ExtendAll { extensions } => extensions.as_slice().len(),
            _ => 1,
        }
    }

    /// Whether it takes its owner off the node: after it, nothing that creates a key may be sent for that owner.
    pub fn releases(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::HandOver { .. })
    }

    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Set { .. } => "set",
            Self::Claim { .. } => "claim",
            Self::Extend { .. } => "extend",
            Self::ExtendAll { .. } => "extend all",
            Self::Raise { .. } => "raise",
            Self::Release { .. } => "release",
            Self::HandOver { .. } => "hand over",
            Self::Queue { .. } => "queue",
            Self::Inspect { .. } => "inspect",
        }
    }
}
