//! Claims that a queue node's vote stands behind.

use super::*;
use crate::protocol::message::{ClientId, HolderValue};
use crate::protocol::wait_queue::rank;
use crate::protocol::wait_queue::rank::QueueNodes;

const VOTER: usize = 1;

fn nodes(indices: &[usize]) -> NodeSet {
    let mut set = NodeSet::EMPTY;
    indices.iter().for_each(|index| set.insert(NodeId::new(*index)));
    set
}

fn client() -> ClientId {
    ClientId::from_bytes([3; 16])
}

/// QueueNodes on the first three of five nodes, the voter's the best.
fn lines() -> QueueNodes {
    QueueNodes { client: client(), nodes: nodes(&[0, 1, 2]), best: NodeId::new(VOTER), early: nodes(&[0, 2]) }
}

/// What a waiter knows that waited in the queue at the voter and was given its vote.
fn doubt() -> Doubt {
    let mut doubt = Doubt::default();
    doubt.looked(C1, at(0), ttl(500), Duration::from_secs(60));
    doubt.answered(C1, &Reply::Voted);
    doubt
}

/// A claim of five nodes under the vote.
fn claim(patient: bool) -> Lease {
    claim_with(Some(QueueVote { node: NodeId::new(VOTER), doubt: doubt(), patient }))
}

/// A claim of five nodes that knows its queues.
fn claim_with(vote: Option<QueueVote>) -> Lease {
    let (key, owner) = (Key::new(*b"k"), Owner::from_bytes([7; 16]));
    let options = Options { queues: Some(lines()), vote, ..Options::default() };
    Lease::acquire(terms(5), key, owner, Asking::Claim, options, at(0))
}

fn other() -> Reply {
    Reply::Held(Holder { value: HolderValue::Owner(Owner::from_bytes([9; 16])), remaining: None })
}

/// Claims go out in the order of releases, a quorum that ends with the voter first. A patient one sends plain sets where it
/// expects the key to be free, and a claim where the vote is; one that is not sends claims.
#[test]
fn claims_go_in_the_order_of_releases() {
    let sends = drain(&mut claim(true), at(0));
    assert_eq!(names(&sends)[..3], [(0, "set"), (2, "set"), (1, "claim")]);
    assert!(names(&sends)[3..].iter().all(|(_, name)| *name == "set"), "{:?}", names(&sends));

    let sends = drain(&mut claim(false), at(0));
    assert_eq!(names(&sends)[..3], [(0, "claim"), (2, "claim"), (1, "claim")]);
    assert!(sends.iter().all(|send| send.operation.name() == "claim"));

    // Without a vote nothing is expected of any node, and the order is of no matter.
    let sends = drain(&mut claim_with(None), at(0));
    assert!(sends.iter().all(|send| send.operation.name() == "claim"));
    assert_ne!(names(&sends)[..2], [(0, "claim"), (2, "claim")]);
}

/// A refusal is not the last word of a node that is asked patiently: it is asked again, by a claim, and counts only once the
/// patience is over. An answer after the decision counts as it is.
#[test]
fn refusals_are_not_final_for_a_patient_claim() {
    let mut lease = claim(true);
    let sends = drain(&mut lease, at(0));
    for send in &sends[..3] {
        answer(&mut lease, send, other(), at(1));
    }
    assert_eq!(lease.poll_event(), None, "three of five have refused, and are asked again");
    assert_eq!(lease.poll_timeout(), Some(at(1)));
    lease.handle_timeout(at(1));
    let again = drain(&mut lease, at(1));
    assert_eq!(names(&again).len(), 3);
    assert!(again.iter().all(|send| send.operation.name() == "claim"), "{:?}", names(&again));
    for send in &again {
        answer(&mut lease, send, Reply::Granted, at(2));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));

    answer(&mut lease, &sends[3], other(), at(2));
    let straggler = lease.votes().nth(sends[3].node.index()).and_then(|vote| vote.reply.cloned());
    assert_eq!(straggler, Some(other()));
}

/// Who refuses to the end of the patience, has refused.
#[test]
fn patience_ends() {
    let mut lease = claim(true);
    for send in &drain(&mut lease, at(0))[..3] {
        answer(&mut lease, send, other(), at(1));
    }
    lease.handle_timeout(at(200));
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Contended)));
}

/// The undo of a failed claim spares the voter: what is open there is the waiter's once it takes it, and it takes it once. A
/// lease that is dropped before that releases there too.
#[test]
fn a_failed_claim_hands_the_vote_back() {
    for taken in [true, false] {
        let mut lease = claim(false);
        assert_eq!(lease.surrender(), None, "nothing has failed yet");
        for send in &drain(&mut lease, at(0))[..3] {
            answer(
                &mut lease,
                send,
                if send.node.index() == VOTER { Reply::Granted } else { other() },
                at(1),
            );
        }
        assert_eq!(lease.poll_event(), None);
        lease.handle_timeout(at(200));
        assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Contended)));
        let undone: Vec<_> = drain(&mut lease, at(200)).iter().map(|send| send.node.index()).collect();
        assert!(undone.len() == 4 && !undone.contains(&VOTER), "{undone:?}");

        if taken {
            let doubt = lease.surrender().expect("the vote is the waiter's");
            assert!(doubt.is_written() && doubt.is_answered());
            assert_eq!(lease.surrender(), None, "it is given once");
        }
        lease.abandon(at(200));
        let released: Vec<_> = drain(&mut lease, at(200)).iter().map(|send| send.node.index()).collect();
        assert_eq!(released, if taken { vec![] } else { vec![VOTER] });
    }
}

/// A hand-over allows for the slowest node that granted, not for one that refused.
#[test]
fn a_hand_over_allows_for_the_slowest_grant() {
    let mut lease = lease_with(5, Options { queues: Some(lines()), ..Options::default() });
    for (send, (millis, reply)) in drain(&mut lease, at(0)).iter().zip([
        (190, Reply::Refused("no".into())),
        (100, Reply::Granted),
        (150, Reply::Granted),
        (191, Reply::Granted),
        (195, Reply::Granted),
    ]) {
        answer(&mut lease, send, reply, at(millis));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    lease.release(at(300));
    let sends = drain(&mut lease, at(300));
    let hand_overs: Vec<_> = sends
        .iter()
        .filter_map(|send| match send.operation {
            Operation::HandOver { hand_over, .. } => Some(hand_over),
            _ => None,
        })
        .collect();
    assert_eq!(hand_overs, [rank::hand_over(Duration::from_millis(191), ttl(10_000)); 3]);
}
