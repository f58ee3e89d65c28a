//! Asking refusing nodes again within one round: for a claim that a queue node's vote stands behind.
//!
//! The holder before has released everywhere at once, but each node learns it at its own time; and newcomers who are
//! about to fail hold a minority for a moment. A refusal is therefore not the node's last word for two more round trips.

use std::time::Duration;

use crate::protocol::message::Reply;
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::time::Instant;

/// A node is asked again this often without a pause: the way there and back is one, and timers are coarse.
const AT_ONCE: u8 = 2;

/// Then after an eighth of a round trip; twice that the next time, and so on.
const FIRST_PAUSE: u32 = 8;

/// A server needs this long for a command or two; asking again sooner would only load it.
const LEAST_PAUSE: Duration = Duration::from_micros(50);

/// The patience lasts for this many round trips of the Q-th node, counted from the start of the round: the first one, and
/// two more.
const ROUND_TRIPS: u32 = 3;

/// On a busy machine round trips differ by more than their length.
const LEAST: Duration = Duration::from_millis(2);

/// The refusals that are not final yet. Times are the round's.
#[derive(Debug)]
pub(super) struct Patience {
    quorum: Quorum,
    started: Instant,
    answered: usize,
    /// When it ends: with the round, as long as Q nodes have not answered.
    until: Instant,
    nodes: Box<[Node]>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    answered: bool,
    refusals: u8,
    pause: Duration,
    refused: Option<Refused>,
}

#[derive(Clone, Debug)]
struct Refused {
    reply: Reply,
    /// When to ask again; `None` while it is being asked.
    due: Option<Instant>,
}

impl Patience {
    pub(super) fn new(quorum: Quorum, started: Instant, deadline: Instant) -> Self {
        let nodes = vec![Node::default(); quorum.nodes()].into_boxed_slice();
        Self { quorum, started, answered: 0, until: deadline, nodes }
    }

    /// Takes in an answer. Returns it where it is final, and keeps a refusal that is not.
    pub(super) fn take(&mut self, node: NodeId, reply: Reply, now: Instant) -> Option<Reply> {
        let Some(state) = self.nodes.get_mut(node.index()) else { return Some(reply) };
        let elapsed = now.since(self.started);
        if !std::mem::replace(&mut state.answered, true) {
            self.answered += 1;
            if self.answered == self.quorum.needed() {
                self.until = self.until.min(self.started.after((elapsed * ROUND_TRIPS).max(LEAST)));
            }
        }
        state.refused = None;
        if !matches!(reply, Reply::Held(_)) || self.until <= now {
            return Some(reply);
        }
        state.refusals = state.refusals.saturating_add(1);
        if state.refusals > AT_ONCE {
            let first = (elapsed / FIRST_PAUSE).max(LEAST_PAUSE);
            state.pause = if state.pause.is_zero() { first } else { state.pause * 2 };
        }
        let due = now.after(state.pause);
        state.refused = Some(Refused { reply, due: Some(due) });
        None
    }

    /// The next node to ask again now.
    pub(super) fn poll_again(&mut self, now: Instant) -> Option<NodeId> {
        if self.until <= now {
            return None;
        }
        let due = |refused: &mut Refused| refused.due.take_if(|due| *due <= now).is_some();
        let index = self.nodes.iter_mut().position(|node| node.refused.as_mut().is_some_and(due))?;
        Some(NodeId::new(index))
    }

    /// Once the patience is over: the next refusal that has become final. Nodes that are being asked have their answer
    /// taken as it comes.
    pub(super) fn poll_final(&mut self, now: Instant) -> Option<(NodeId, Reply)> {
        if now < self.until {
            return None;
        }
        self.nodes.iter_mut().enumerate().find_map(|(index, node)| {
            let refused = node.refused.take_if(|refused| refused.due.is_some())?;
            Some((NodeId::new(index), refused.reply))
        })
    }

    /// When something is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let dues = self.nodes.iter().filter_map(|node| node.refused.as_ref()?.due);
        dues.min().map(|due| due.min(self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::Holder;

    fn at(micros: u64) -> Instant {
        Instant::default().after(Duration::from_micros(micros))
    }

    fn held() -> Reply {
        Reply::Held(Holder::UNNAMED)
    }

    /// A refusal is final only two round trips of the Q-th node later; until then the node is asked again and again.
    #[test]
    fn refusals_are_asked_again_for_two_round_trips() {
        let mut patience = Patience::new(Quorum::of(3).unwrap(), at(0), at(50_000));
        assert_eq!(patience.take(NodeId::new(0), Reply::Granted, at(800)), Some(Reply::Granted));
        assert_eq!(patience.take(NodeId::new(1), held(), at(1_000)), None);
        assert_eq!(patience.take(NodeId::new(2), held(), at(1_600)), None);

        assert_eq!(patience.poll_timeout(), Some(at(1_000)), "at once");
        assert_eq!(patience.poll_again(at(1_600)), Some(NodeId::new(1)));
        assert_eq!(patience.poll_again(at(1_600)), Some(NodeId::new(2)));
        assert_eq!(patience.poll_again(at(1_600)), None, "once each");
        assert_eq!(patience.take(NodeId::new(1), held(), at(1_700)), None);
        assert_eq!(patience.poll_again(at(1_700)), Some(NodeId::new(1)), "and once more");
        assert_eq!(patience.take(NodeId::new(1), held(), at(1_800)), None);
        assert_eq!(patience.poll_timeout(), Some(at(2_025)), "then after a pause");
        assert_eq!(patience.poll_again(at(2_024)), None);
        assert_eq!(patience.poll_again(at(2_025)), Some(NodeId::new(1)));
        assert_eq!(patience.take(NodeId::new(1), held(), at(2_100)), None);
        assert_eq!(patience.poll_timeout(), Some(at(2_550)), "of twice the length");
        assert_eq!(patience.poll_again(at(2_550)), Some(NodeId::new(1)));
        assert_eq!(patience.take(NodeId::new(2), held(), at(2_600)), None);

        assert_eq!(patience.poll_final(at(2_999)), None);
        assert_eq!(patience.poll_final(at(3_000)), Some((NodeId::new(2), held())));
        assert_eq!(patience.poll_final(at(3_000)), None, "node 1 is being asked");
        assert_eq!(patience.take(NodeId::new(1), held(), at(3_100)), Some(held()));
    }

    /// A node that changes its mind is a grant like any other.
    #[test]
    fn granted_after_all_is_granted() {
        let mut patience = Patience::new(Quorum::of(1).unwrap(), at(0), at(50_000));
        assert_eq!(patience.take(NodeId::new(0), held(), at(1_000)), None);
        assert_eq!(patience.poll_again(at(1_200)), Some(NodeId::new(0)));
        assert_eq!(patience.take(NodeId::new(0), Reply::Granted, at(1_900)), Some(Reply::Granted));
        assert_eq!((patience.poll_timeout(), patience.poll_final(at(9_000))), (None, None));
    }
}
