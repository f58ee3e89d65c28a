//! The queue for a key: which node keeps it, and how one waiter behaves in it.
//!
//! All of this is advice. Safety rests on the lease alone: whatever a queue node says, a lock is held only by a quorum of
//! claims under an owner that was never released.
//!
//! | part | what it knows |
//! | --- | --- |
//! | [`rank`] | which nodes keep the queue for a key, the best first: the same for all clients |
//! | [`QueueNodes`] | what a lease has to know of the queue, to hand over when it ends |
//! | [`crate::protocol::wait_queue::waiter`] | one waiter: entering, being woken, claiming, leaving |

use std::time::Duration;

use crate::protocol::message::ClientId;
use crate::protocol::quorum::{NodeId, NodeSet, Quorum};
use crate::protocol::validity::Ttl;

/// How long an entry lives on its node after the last look of anybody: the queue's keys expire then.
pub const QUEUE_LIFE: Duration = Duration::from_secs(60);

/// A client that has not looked for so long is skipped at a hand-over.
pub const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Most who stand in the queue for one key. At 150 bytes each, a queue costs its node 15 MB at most.
pub const MOST_QUEUED: u64 = 100_000;

/// What names a node for all clients alike, however each spells its address: a hash of its marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct NodeName(u64);

impl NodeName {
    /// The name of a node with this marker.
    pub fn of(marker: &[u8]) -> Self {
        Self(mix(fnv(marker)))
    }

    /// As one number, never zero.
    pub fn to_bits(self) -> u64 {
        self.0.max(1)
    }

    /// From [`NodeName::to_bits`].
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// FNV-1a, 64 bits: stable for ever, needs no dependency, and is quick on the short names that keys are.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The finaliser of SplitMix64: FNV alone leaves similar names with similar high bits.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The nodes that may keep the queue for `key`, the best first: those with the highest hash of key and name (rendezvous
/// hashing, so that a node that goes or comes moves no other key's queue).
///
/// Only the N − Q + 1 best can be needed: with a quorum up, one of them is. A node whose name is not known yet may be
/// any of them, and is added at the end.
pub fn rank(key: &[u8], names: &[Option<NodeName>], quorum: Quorum) -> Ranks {
    let key = fnv(key);
    let most = quorum.nodes() - quorum.needed() + 1;
    let mut ranked = [(0, 0); crate::protocol::quorum::MAX_NODES];
    let (mut known, mut unknown) = (0, NodeSet::EMPTY);
    for (index, name) in names.iter().enumerate().take(quorum.nodes()) {
        match name {
            Some(name) => {
                ranked[known] = (mix(key ^ name.0), index);
                known += 1;
            }
            None => unknown.insert(NodeId::new(index)),
        }
    }
    // Equal hashes are decided by the configured order: both clients then most likely share that, too.
    ranked[..known].sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut ranks = Ranks::default();
    for (_, index) in &ranked[..known.min(most)] {
        ranks.push(NodeId::new(*index));
    }
    unknown.for_each(|node| ranks.push(node));
    ranks
}

/// Nodes in order of rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranks {
    nodes: [NodeId; crate::protocol::quorum::MAX_NODES],
    count: u8,
}

impl Default for Ranks {
    fn default() -> Self {
        Self { nodes: [NodeId::new(0); crate::protocol::quorum::MAX_NODES], count: 0 }
    }
}

impl Ranks {
    fn push(&mut self, node: NodeId) {
        if let Some(place) = self.nodes.get_mut(usize::from(self.count)) {
            *place = node;
            self.count += 1;
        }
    }

    /// The nodes, the best first.
    pub fn as_slice(&self) -> &[NodeId] {
        &self.nodes[..usize::from(self.count)]
    }

    /// What a lease of `client` has to know of them.
    pub fn queues(&self, client: ClientId, quorum: Quorum) -> QueueNodes {
        let best = self.as_slice().first().copied().unwrap_or(NodeId::new(0));
        let mut early = NodeSet::EMPTY;
        let others = self.as_slice().iter().copied().chain(quorum.all());
        for node in others.filter(|node| *node != best) {
            if early.len() + 1 < quorum.needed() {
                early.insert(node);
            }
        }
        QueueNodes { client, nodes: self.set(), best, early }
    }

    /// The nodes as a set.
    pub fn set(&self) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        self.as_slice().iter().for_each(|node| set.insert(*node));
        set
    }
}

/// What a lease has to know of the queue for its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueNodes {
    /// Whose lease it is.
    pub client: ClientId,
    /// The nodes that may keep a queue for the key: there, a release hands over.
    pub nodes: NodeSet,
    /// The best of them.
    pub best: NodeId,
    /// With the best a quorum: these are told of a release before it, so that whoever is woken by it finds them free
    /// already.
    pub early: NodeSet,
}

impl QueueNodes {
    /// The node of `unsent` that is told first: a quorum that ends with the best, and then the others. Were the best told
    /// last, the next holder would be woken by so much later; were it told first, its claims would often come before
    /// the releases. Claims go in the same order.
    pub(crate) fn next(&self, unsent: NodeSet) -> Option<NodeId> {
        let early = unsent.filter(|node| self.early.contains(*node)).min();
        early.or_else(|| unsent.contains(self.best).then_some(self.best)).or_else(|| { unsent }.pop())
    }
}

/// The life of a vote that was handed over: clamp(4 × worst round trip + 200 ms, 500 ms, ttl / 2). Long enough for a busy
/// waiter to claim, short enough that a hung one does not keep the others waiting.
pub fn hand_over(worst_round_trip: Duration, ttl: Ttl) -> Ttl {
    let wanted = worst_round_trip.saturating_mul(4).saturating_add(Duration::from_millis(200));
    Ttl::unchecked(wanted.max(Duration::from_millis(500)).min(ttl.duration() / 2))
}

/// The worst round trip of late, after one more: a bad one is forgotten over some twenty good ones.
pub fn worst_of_late(before: Duration, round_trip: Duration) -> Duration {
    round_trip.max(before - before / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<Option<NodeName>> {
        (0..count).map(|index| Some(NodeName::of(format!("marker-{index}").as_bytes()))).collect()
    }

    fn ranked(key: &[u8], names: &[Option<NodeName>]) -> Vec<usize> {
        let ranks = rank(key, names, Quorum::of(names.len()).unwrap());
        ranks.as_slice().iter().map(|node| node.index()).collect()
    }

    /// Clients of any version agree on the queue's node: the hash is what it has always been.
    #[test]
    fn ranking_is_stable_for_ever() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(mix(1), 0x5692_161d_100b_05e5);
        assert_eq!(ranked(b"invoice:4711", &names(5)), PINNED);
    }

    const PINNED: [usize; 3] = [2, 0, 3];

    /// The order in which a client lists the nodes does not matter.
    #[test]
    fn ranking_follows_the_marker_not_the_place() {
        let forwards = names(5);
        let backwards: Vec<_> = forwards.iter().rev().copied().collect();
        for key in 0..100u32 {
            let key = key.to_le_bytes();
            let mirrored: Vec<_> = ranked(&key, &backwards).iter().map(|index| 4 - index).collect();
            assert_eq!(ranked(&key, &forwards), mirrored);
        }
    }

    /// QueueNodes spread over the nodes, and with a quorum up one that may keep the queue is up.
    #[test]
    fn lines_spread_and_one_is_always_up() {
        let names = names(5);
        let mut kept = [0; 5];
        for key in 0..5_000u32 {
            let ranks = ranked(&key.to_le_bytes(), &names);
            assert_eq!(ranks.len(), 3, "two of five may be down");
            kept[ranks[0]] += 1;
        }
        assert!(kept.iter().all(|count| (800..1_200).contains(count)), "{kept:?}");
    }

    /// A node not named yet may be any of the best: a release hands over there, too.
    #[test]
    fn unnamed_nodes_come_last_and_count_as_lines() {
        let mut names = names(5);
        let best = ranked(b"k", &names)[0];
        names[best] = None;
        let ranks = ranked(b"k", &names);
        assert_eq!((ranks.len(), ranks[3]), (4, best));
    }

    /// A quorum that ends with the best node comes first, whatever N is.
    #[test]
    fn a_quorum_that_ends_with_the_best_is_told_first() {
        for nodes in 1..=7 {
            let quorum = Quorum::of(nodes).unwrap();
            let ranks = rank(b"k", &names(nodes), quorum);
            let queues = ranks.queues(ClientId::from_bytes([7; 16]), quorum);
            let mut unsent = quorum.all();
            let order: Vec<_> = std::iter::from_fn(|| {
                let node = queues.next(unsent)?;
                unsent.remove(node);
                Some(node)
            })
            .collect();
            assert_eq!(order.len(), nodes);
            assert_eq!(order[quorum.needed() - 1], queues.best);
            assert!(
                ranks
                    .as_slice()
                    .iter()
                    .take(quorum.needed())
                    .all(|node| order[..quorum.needed()].contains(node))
            );
        }
    }

    #[test]
    fn hand_over_fits_the_ttl_and_the_distance() {
        let ttl = |millis| Ttl::unchecked(Duration::from_millis(millis));
        let over = |trip, life| hand_over(Duration::from_millis(trip), ttl(life)).as_millis();
        assert_eq!((over(1, 10_000), over(200, 10_000), over(9_000, 10_000)), (500, 1_000, 5_000));
        assert_eq!((over(1, 300), over(1, 1)), (150, 1));
    }

    /// A node's name as a number is never zero, which stands for none; it is the same name again.
    #[test]
    fn names_of_nodes_are_numbers() {
        let name = NodeName::of(b"marker-1");
        assert_eq!(NodeName::from_bits(name.to_bits()), name);
        assert_eq!((name.to_bits(), NodeName::from_bits(0).to_bits()), (mix(fnv(b"marker-1")), 1));
    }

    /// QueueNodes may be kept at the best nodes, and nowhere else.
    #[test]
    fn lines_are_kept_at_the_best() {
        let quorum = Quorum::of(5).unwrap();
        let ranks = rank(b"invoice:4711", &names(5), quorum);
        let queues = ranks.queues(ClientId::default(), quorum);
        let kept: Vec<_> =
            quorum.all().filter(|node| queues.nodes.contains(*node)).map(NodeId::index).collect();
        let mut best = PINNED.to_vec();
        best.sort_unstable();
        assert_eq!((kept, queues.best.index(), ranks.set()), (best, PINNED[0], queues.nodes));
    }
}
