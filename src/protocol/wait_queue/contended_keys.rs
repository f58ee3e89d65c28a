//! Which keys are contended, as far as one client's own releases and waits tell.
//!
//! An acquisition of a key that was handed over of late stands in the queue at once, instead of barging in. A hint may be wrong
//! in both directions, and costs one command then.

use std::collections::HashMap;

use crate::protocol::message::{Key, Reply};
use crate::protocol::quorum::NodeId;

/// Most keys remembered. At some 100 bytes each they cost half a megabyte; beyond it, any other is forgotten.
const MOST: usize = 4_096;

/// The contended keys of one client, each with the node at which somebody waits.
#[derive(Debug, Default)]
pub struct ContendedKeys(HashMap<Key, NodeId>);

impl ContendedKeys {
    /// Somebody waits for this key at this node, or waited.
    pub fn note(&mut self, key: &Key, node: NodeId) {
        if let Some(noted) = self.0.get_mut(key) {
            *noted = node;
            return;
        }
        if self.0.len() >= MOST
            && let Some(any) = self.0.keys().next().cloned()
        {
            self.0.remove(&any);
        }
        self.0.insert(key.clone(), node);
    }

    /// Whether the next acquisition of this key should stand in the queue.
    pub fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// What a node that may keep a queue answered to a release: somebody waited there, or nobody did. That nobody waits says
    /// nothing at a node that keeps no queue at present.
    pub fn released(&mut self, key: &Key, node: NodeId, reply: &Reply) {
        match reply {
            Reply::HandedOver => self.note(key, node),
            Reply::Granted if self.0.get(key) == Some(&node) => _ = self.0.remove(key),
            _ => {}
        }
    }

    /// How many keys are remembered.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(number.to_le_bytes())
    }

    /// A key is contended from a hand-over on, until a release finds nobody in the queue.
    #[test]
    fn hints_come_with_a_hand_over_and_go_with_the_queue() {
        let mut contended_keys = ContendedKeys::default();
        let (here, elsewhere) = (NodeId::new(0), NodeId::new(1));
        contended_keys.released(&key(1), here, &Reply::HandedOver);
        contended_keys.released(&key(2), here, &Reply::Granted);
        assert!(contended_keys.contains(&key(1)) && !contended_keys.contains(&key(2)));

        contended_keys.released(&key(1), here, &Reply::Absent);
        contended_keys.released(&key(1), elsewhere, &Reply::Granted);
        assert!(contended_keys.contains(&key(1)));
        contended_keys.released(&key(1), here, &Reply::Granted);
        assert!(!contended_keys.contains(&key(1)) && contended_keys.is_empty());
    }

    /// Whoever waits at another node than before is looked for there.
    #[test]
    fn the_last_node_counts() {
        let mut contended_keys = ContendedKeys::default();
        contended_keys.note(&key(1), NodeId::new(0));
        contended_keys.note(&key(1), NodeId::new(1));
        contended_keys.released(&key(1), NodeId::new(0), &Reply::Granted);
        assert!(contended_keys.contains(&key(1)));
        contended_keys.released(&key(1), NodeId::new(1), &Reply::Granted);
        assert_eq!(contended_keys.len(), 0);
    }

    /// Rule 10: bounded.
    #[test]
    fn hints_are_bounded() {
        let mut contended_keys = ContendedKeys::default();
        (0..MOST).for_each(|number| contended_keys.note(&key(number), NodeId::new(0)));
        assert_eq!(contended_keys.len(), 4_096);
        (MOST..3 * MOST).for_each(|number| contended_keys.note(&key(number), NodeId::new(0)));
        assert_eq!(contended_keys.len(), MOST);
        assert!(contended_keys.contains(&key(3 * MOST - 1)));
    }
}
