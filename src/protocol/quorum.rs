//! Who counts: the nodes of a lock, and how many of them decide.
//!
//! The quorum is a majority of the *configured* nodes, never of those that happen to be reachable: two clients that
//! each count only the nodes they see could both win.

use std::fmt;

/// The largest number of nodes in one set. A [`NodeSet`] is one machine word; beyond a handful of nodes a quorum
/// lock only gets slower, so the bound is far above any sensible use.
pub const MAX_NODES: usize = 64;

/// One node, by its place in the configured list (from 0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    /// The node at `index` of the configured list. `index` must be below [`MAX_NODES`]; larger ones are clamped, so
    /// that a wrong index can never reach beyond a [`NodeSet`].
    pub const fn new(index: usize) -> Self {
        if index < MAX_NODES { Self(index as u8) } else { Self((MAX_NODES - 1) as u8) }
    }

    /// The place in the configured list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Nodes are numbered from 1 where a person reads them.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0 + 1)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct NodeSet(u64);

impl NodeSet {
    /// No node.
    pub const EMPTY: NodeSet = NodeSet(0);

    /// The first `count` nodes.
    pub const fn first(count: usize) -> Self {
        if count >= MAX_NODES { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// Adds a node.
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    /// Takes a node out.
    pub fn remove(&mut self, node: NodeId) {
        self.0 &= !(1 << node.0);
    }

    /// Whether the node is in the set.
    pub fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// How many nodes are in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no node is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Takes the node with the lowest number out of the set.
    pub fn pop(&mut self) -> Option<NodeId> {
        if self.0 == 0 {
            return None;
        }
        let lowest = self.0.trailing_zeros() as u8;
        self.0 &= self.0 - 1;
        Some(NodeId(lowest))
    }
}

impl Iterator for NodeSet {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        self.pop()
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(*self).finish()
    }
}

/// N configured nodes and the majority of them that decides: Q = N/2 + 1.
///
/// Any two majorities of one set share a node, and on that node the key has one value: this is all that mutual
/// exclusion rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorum {
    nodes: u8,
}

impl Quorum {
    /// The quorum of `nodes` configured nodes. `None` for no node, or for more than [`MAX_NODES`].
    pub fn of(nodes: usize) -> Option<Self> {
        (1..=MAX_NODES).contains(&nodes).then_some(Self { nodes: nodes as u8 })
    }

    /// N, the number of configured nodes.
    pub fn nodes(self) -> usize {
        self.nodes as usize
    }

    /// Q, the number of votes that decide.
    pub fn needed(self) -> usize {
        self.nodes as usize / 2 + 1
    }

    /// All configured nodes.
    pub fn all(self) -> NodeSet {
        NodeSet::first(self.nodes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any two quorums overlap, and no larger quorum than needed is asked for.
    #[test]
    fn quorum_is_the_least_majority() {
        for nodes in 1..=MAX_NODES {
            let needed = Quorum::of(nodes).unwrap().needed();

            assert!(2 * needed > nodes, "two quorums of {nodes} could be disjoint");
            assert!(2 * (needed - 1) <= nodes, "{needed} of {nodes} is more than a majority");
        }
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(|n| Quorum::of(n).unwrap().needed()), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn no_node_and_too_many_nodes_have_no_quorum() {
        assert_eq!(Quorum::of(0), None);
        assert_eq!(Quorum::of(MAX_NODES + 1), None);
    }

    #[test]
    fn sets_pop_in_order_and_hold_the_last_node() {
        let mut set = NodeSet::first(MAX_NODES);
        assert_eq!(set.len(), MAX_NODES);
        assert_eq!(set.pop(), Some(NodeId::new(0)));
        assert!(set.contains(NodeId::new(MAX_NODES - 1)));

        let mut one = NodeSet::EMPTY;
        one.insert(NodeId::new(MAX_NODES - 1));
        assert_eq!(one.collect::<Vec<_>>(), [NodeId::new(63)]);
        assert!(!one.is_empty() && NodeSet::EMPTY.is_empty());
    }
}
