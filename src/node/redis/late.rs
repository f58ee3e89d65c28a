//! Extensions that were sent without a script, and may be executed late.
//!
//! A script never shortens a life, whenever it is executed. `SET … IFEQ … PX` sets it. One that is still under way on a connection
//! that ended may be executed after a later extension by more, and would take from the holder what that one gave. So the
//! later one is no confirmation, from the owner's first extension that was left unanswered until the owner is released.

use std::collections::BTreeMap;

use crate::protocol::message::{Operation, Owner, Reply, ServerMessage, Unknown};
use crate::protocol::validity::Ttl;

/// So many owners are remembered. Of more, only the shortest life.
const MOST: usize = 16_384;

/// What was left unanswered on earlier connections to one server.
#[derive(Debug, Default)]
pub(super) struct Late {
    owners: BTreeMap<Owner, Ttl>,
    /// The shortest of those that found no room.
    of_any: Option<Ttl>,
}

impl Late {
    /// This was sent without a script and not answered before its connection ended.
    pub(super) fn left(&mut self, operation: &Operation) {
        let Some((owner, ttl)) = life(operation) else { return };
        if self.owners.len() < MOST || self.owners.contains_key(&owner) {
            let shortest = self.owners.entry(owner).or_insert(ttl);
            *shortest = ttl.min(*shortest);
        } else {
            self.of_any = Some(self.of_any.map_or(ttl, |shortest| ttl.min(shortest)));
        }
    }

    /// An operation is sent. Nothing counts any more for an owner that is released.
    pub(super) fn sends(&mut self, operation: &Operation) {
        if operation.releases()
            && let Some(owner) = operation.owner()
        {
            self.owners.remove(&owner);
        }
    }

    /// What an answer is worth to an operation that was sent without a script.
    pub(super) fn weigh(&self, operation: &Operation, reply: Reply) -> Reply {
        let (Some((owner, ttl)), Reply::Granted) = (life(operation), &reply) else { return reply };
        let shortest = self.owners.get(&owner).copied().into_iter().chain(self.of_any).min();
        if shortest.is_some_and(|shortest| shortest < ttl) {
            let why: ServerMessage =
                "extended, but an earlier extension by less may still be under way".into();
            return Reply::Unknown(Unknown::Error(why));
        }
        reply
    }
}

fn life(operation: &Operation) -> Option<(Owner, Ttl)> {
    match operation {
        Operation::Extend { owner, ttl, .. } | Operation::Claim { owner, ttl, .. } => Some((*owner, *ttl)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::message::Key;
    use crate::protocol::validity::Drift;

    fn extend(byte: u8, seconds: u64) -> Operation {
        let ttl = Ttl::new(Duration::from_secs(seconds), Drift::default(), Duration::from_secs(100)).unwrap();
        Operation::Extend { key: Key::new(&b"k"[..]), owner: Owner::from_bytes([byte; 16]), ttl, carry: None }
    }

    fn is_granted(late: &Late, operation: &Operation) -> bool {
        late.weigh(operation, Reply::Granted) == Reply::Granted
    }

    /// A longer extension does not count while a shorter one of the same owner may come late; one by as much or less does.
    #[test]
    fn a_longer_one_does_not_count() {
        let mut late = Late::default();
        late.left(&extend(1, 10));
        late.left(&extend(1, 20));
        assert!(is_granted(&late, &extend(1, 10)) && is_granted(&late, &extend(1, 5)));
        assert!(!is_granted(&late, &extend(1, 11)) && is_granted(&late, &extend(2, 60)));
        assert_eq!(late.weigh(&extend(1, 60), Reply::Absent), Reply::Absent);

        let (key, owner) = (Key::new(&b"k"[..]), Owner::from_bytes([1; 16]));
        late.sends(&Operation::Release { key, owner });
        assert!(is_granted(&late, &extend(1, 60)));
    }

    /// What finds no room is remembered all the same.
    #[test]
    fn too_many_are_one() {
        let mut late = Late::default();
        for number in 0..=MOST {
            let Operation::Extend { key, ttl, .. } = extend(0, 10) else { panic!() };
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            late.left(&Operation::Extend { key, owner: Owner::from_bytes(bytes), ttl, carry: None });
        }
        assert!(is_granted(&late, &extend(9, 10)) && !is_granted(&late, &extend(9, 11)));
    }
}
