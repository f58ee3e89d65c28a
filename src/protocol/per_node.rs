//! One place for each node.
//!
//! Few nodes, as there nearly always are, have their places inside: a lease then takes no memory of its own for them.

use std::ops::{Deref, DerefMut};

/// The most nodes that a quorum lock is usually given.
const FEW: usize = 7;

/// As many values as there are nodes, in their order.
#[derive(Clone, Debug)]
pub(super) enum PerNode<T> {
    Few { values: [T; FEW], nodes: u8 },
    Many(Box<[T]>),
}

impl<T: Copy + Default> PerNode<T> {
    /// The same value for each node.
    pub(super) fn new(nodes: usize) -> Self {
        match u8::try_from(nodes) {
            Ok(few) if nodes <= FEW => Self::Few { values: [T::default(); FEW], nodes: few },
            _ => Self::Many(vec![T::default(); nodes].into_boxed_slice()),
        }
    }
}

impl<T> Deref for PerNode<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Few { values, nodes } => &values[..usize::from(*nodes)],
            Self::Many(values) => values,
        }
    }
}

impl<T> DerefMut for PerNode<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Few { values, nodes } => &mut values[..usize::from(*nodes)],
            Self::Many(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is a place for each node, however many they are, and no other.
    #[test]
    fn each_node_has_a_place() {
        for nodes in [1, FEW, FEW + 1, 64] {
            let mut places = PerNode::<usize>::new(nodes);
            places.iter_mut().enumerate().for_each(|(node, place)| *place = node);
            assert_eq!(places.to_vec(), (0..nodes).collect::<Vec<_>>());
            assert_eq!(places.get(nodes), None);
        }
    }
}
