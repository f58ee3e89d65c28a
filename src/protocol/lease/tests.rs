//! The life of a lease, step by step: one law each.

use super::*;
use crate::protocol::message::{Holder, Uncounted, Unknown};

mod fenced;
mod voted;

const C1: ConnectionId = ConnectionId(1);

fn at(millis: u64) -> Instant {
    Instant::default().after(Duration::from_millis(millis))
}

fn ttl(millis: u64) -> Ttl {
    let duration = Duration::from_millis(millis);
    Ttl::new(duration, Drift::default(), duration).unwrap()
}

fn terms(nodes: usize) -> Terms {
    Terms {
        quorum: Quorum::of(nodes).unwrap(),
        ttl: ttl(10_000),
        drift: Drift::default(),
        min_validity: Duration::from_secs(1),
        reply_timeout: Duration::from_millis(200),
    }
}

fn lease(nodes: usize) -> Lease {
    Lease::acquire(terms(nodes), Key::new(*b"k"), Owner::from_bytes([7; 16]), Asking::Set, at(0))
}

/// Takes all sends, each admitted on connection 1.
fn drain(lease: &mut Lease, now: Instant) -> Vec<ToSend> {
    let mut sends = Vec::new();
    while let Some(send) = lease.poll_send() {
        lease.handle_sent(send.node, send.call, Ok(C1), now);
        sends.push(send);
    }
    sends
}

fn answer(lease: &mut Lease, send: &ToSend, reply: Reply, now: Instant) {
    lease.handle_reply(send.node, send.call, send.operation.creates(), C1, reply, now);
}

fn held() -> Reply {
    Reply::Held(Holder::UNNAMED)
}

/// A lease held on all nodes since the start.
fn held_lease(nodes: usize) -> Lease {
    let mut lease = lease(nodes);
    for send in drain(&mut lease, at(0)) {
        answer(&mut lease, &send, Reply::Granted, at(1));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    lease
}

/// The same with an extension under way since `now`, and what it sent.
fn extending(nodes: usize, now: Instant) -> (Lease, Vec<ToSend>) {
    let mut lease = held_lease(nodes);
    lease.extend(ttl(10_000), now);
    let sends = drain(&mut lease, now);
    (lease, sends)
}

fn names(sends: &[ToSend]) -> Vec<(usize, &'static str)> {
    sends.iter().map(|send| (send.node.index(), send.operation.name())).collect()
}

/// Rules 1 and 6: held at the Q-th grant, valid from the start of the fan-out.
#[test]
fn held_at_the_qth_grant() {
    let mut lease = lease(5);
    let sends = drain(&mut lease, at(0));
    assert_eq!(sends.len(), 5);

    for send in &sends[..3] {
        assert_eq!(lease.poll_event(), None);
        answer(&mut lease, send, Reply::Granted, at(30));
    }

    let Some(Event::Held(validity)) = lease.poll_event() else { panic!("not held") };
    assert_eq!(validity.until(), at(9_898));
    assert_eq!(lease.poll_timeout(), None);
}

/// Rule 1: enough grants, but too late, are no lock, and are undone everywhere.
#[test]
fn late_quorum_is_exhausted_and_undone() {
    let mut lease = lease(3);
    let sends = drain(&mut lease, at(0));
    answer(&mut lease, &sends[0], Reply::Granted, at(9_000));
    answer(&mut lease, &sends[1], Reply::Granted, at(9_000));

    let remaining = Duration::from_millis(898);
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Exhausted { remaining })));
    assert_eq!(names(&drain(&mut lease, at(9_000))), [(0, "release"), (1, "release"), (2, "release")]);
}

/// Rule 3: the undo goes to every node that was written to, the silent and the refusing ones included; a debt
/// travels along wherever something of ours may be.
#[test]
fn undo_reaches_every_node_written_to() {
    let mut lease = lease(5);
    let mut sends = Vec::new();
    while let Some(send) = lease.poll_send() {
        let admitted = if send.node.index() == 4 { Err(NotSent::Suspect) } else { Ok(C1) };
        lease.handle_sent(send.node, send.call, admitted, at(0));
        sends.push(send);
    }
    answer(&mut lease, &sends[0], Reply::Granted, at(1));
    answer(&mut lease, &sends[1], held(), at(1));
    assert_eq!(lease.poll_event(), None);
    answer(&mut lease, &sends[2], held(), at(1));

    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Contended)));
    let undo = drain(&mut lease, at(1));
    assert_eq!(names(&undo), [(0, "release"), (1, "release"), (2, "release"), (3, "release")]);
    let owed: Vec<_> = undo.iter().map(|send| send.debt.is_some()).collect();
    assert_eq!(owed, [true, false, false, true], "granted and silent nodes leave a debt");
    assert!(undo.iter().all(|send| send.operation.owner() == sends[0].operation.owner()));
}

/// Answers to the undo do not rewrite the report of the round that failed.
#[test]
fn undo_answers_are_no_votes() {
    let mut lease = lease(1);
    let sends = drain(&mut lease, at(0));
    lease.handle_timeout(at(200));
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
    for undo in drain(&mut lease, at(200)) {
        answer(&mut lease, &undo, Reply::Granted, at(201));
    }
    let first = |lease: &Lease| lease.votes().next().and_then(|vote| vote.reply.cloned());
    assert!(matches!(first(&lease), Some(Reply::Unknown(Unknown::Timeout(_)))));

    answer(&mut lease, &sends[0], Reply::Granted, at(202));
    assert_eq!(first(&lease), Some(Reply::Granted), "the straggler does");
    assert_eq!((lease.poll_event(), lease.validity()), (None, None));
}

/// Nodes that are down at the door decide a round without waiting for a timeout.
#[test]
fn nodes_known_to_be_down_fail_at_once() {
    let mut lease = lease(3);
    while let Some(send) = lease.poll_send() {
        lease.handle_sent(send.node, send.call, Err(NotSent::Down("refused".into())), at(0));
    }
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
    assert!(lease.poll_send().is_none(), "nothing was written, nothing is undone");
}

/// Rule 7: an extension counts only answers that still held this owner, and never shortens.
#[test]
fn extension_takes_the_longer_validity() {
    let mut lease = held_lease(3);
    lease.extend(ttl(1_000), at(100));
    let sends = drain(&mut lease, at(100));
    answer(&mut lease, &sends[0], Reply::Granted, at(101));
    answer(&mut lease, &sends[1], Reply::Granted, at(101));

    let Some(Event::Extended(validity)) = lease.poll_event() else { panic!("not extended") };
    assert_eq!(validity.until(), at(9_898), "a shorter extension leaves the longer validity");
}

/// Rule 7: a node that lost the key is set again, after a quorum confirmed, and late answers too.
#[test]
fn missing_nodes_are_healed_after_the_quorum() {
    let (mut lease, sends) = extending(5, at(100));
    answer(&mut lease, &sends[0], Reply::Absent, at(101));
    assert!(lease.poll_send().is_none(), "no healing before the quorum");
    for send in &sends[1..4] {
        answer(&mut lease, send, Reply::Granted, at(101));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Extended(_))));
    assert_eq!(names(&drain(&mut lease, at(101))), [(0, "claim")]);

    answer(&mut lease, &sends[4], Reply::Absent, at(102));
    assert_eq!(names(&drain(&mut lease, at(102))), [(4, "claim")]);

    lease.release(at(103));
    assert_eq!(drain(&mut lease, at(103)).len(), 5);
    answer(&mut lease, &sends[4], Reply::Absent, at(104));
    assert!(lease.poll_send().is_none(), "no healing after release");
}

/// Rule 7: a failed extension destroys nothing while a quorum may still be ours.
#[test]
fn unconfirmed_extension_keeps_the_old_validity() {
    let (mut lease, sends) = extending(3, at(100));
    answer(&mut lease, &sends[0], Reply::Granted, at(101));
    lease.handle_timeout(at(300));

    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Unconfirmed)));
    assert_eq!(lease.validity().map(Validity::until), Some(at(9_898)));
    lease.extend(ttl(10_000), at(301));
    for send in drain(&mut lease, at(301)) {
        answer(&mut lease, &send, Reply::Granted, at(302));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Extended(v)) if v.until() == at(301 + 9_898)));
}

/// Rule 7: the Q-th answer after the old deadline extends nothing; the lease is over and released.
#[test]
fn extension_confirmed_too_late_is_a_loss() {
    let (mut lease, sends) = extending(3, at(9_897));
    answer(&mut lease, &sends[0], Reply::Granted, at(9_897));
    answer(&mut lease, &sends[1], Reply::Granted, at(9_898));

    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Expired)));
    assert_eq!(lease.validity(), None);
    assert_eq!(names(&drain(&mut lease, at(9_898))), [(0, "release"), (1, "release"), (2, "release")]);
}

/// Rule 7: past its validity a lease is never extended, nor after its release.
#[test]
fn expired_lease_is_not_revived() {
    let mut lease = held_lease(3);
    lease.extend(ttl(10_000), at(9_898));
    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Expired)));
    assert!(drain(&mut lease, at(9_898)).iter().all(|send| send.operation.name() == "release"));

    lease.extend(ttl(10_000), at(9_899));
    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Expired)));
    assert!(lease.poll_send().is_none());
}

/// A majority that does not carry our owner is a loss, told at once.
#[test]
fn majority_without_our_owner_is_a_loss() {
    let (mut lease, sends) = extending(3, at(100));
    answer(&mut lease, &sends[0], Reply::Absent, at(101));
    answer(&mut lease, &sends[1], held(), at(101));

    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Lost)));
    assert_eq!(drain(&mut lease, at(101)).len(), 3);
}

/// A release says which it was.
#[test]
fn release_tells_how_it_ended() {
    let cases = [
        ([Reply::Granted, Reply::Granted], Released::Confirmed),
        ([Reply::Absent, Reply::Absent], Released::Gone),
        ([Reply::NotOurs, Reply::Absent], Released::Gone),
        ([held(), held()], Released::TakenOver),
        ([Reply::Granted, Reply::Unknown(Unknown::Closed)], Released::Unconfirmed),
        ([Reply::Refused("MISCONF".into()), Reply::Granted], Released::Unconfirmed),
    ];
    for (replies, expected) in cases {
        let mut lease = held_lease(3);
        lease.release(at(100));
        assert_eq!(lease.validity(), None, "not valid before the first byte leaves");
        let sends = drain(&mut lease, at(100));
        for (send, reply) in sends.iter().zip(replies) {
            answer(&mut lease, send, reply, at(101));
        }
        lease.handle_timeout(at(300));
        assert_eq!(lease.poll_event(), Some(Event::Released(expected)));
    }
}

/// A dropped acquire undoes what it sent, once, in any state.
#[test]
fn abandoned_lease_releases_once() {
    let mut lease = lease(3);
    let first = lease.poll_send().unwrap();
    lease.handle_sent(first.node, first.call, Ok(C1), at(0));

    lease.abandon(at(1));
    assert_eq!(names(&drain(&mut lease, at(1))), [(0, "release")], "only where something was written");
    lease.abandon(at(2));
    assert!(lease.poll_send().is_none());

    let mut untouched = self::lease(3);
    untouched.abandon(at(0));
    assert!(untouched.poll_send().is_none());
}

/// A set that is still unanswered when the lease ends is a debt; one answered "held" is none.
#[test]
fn calls_to_unknown_nodes_are_ignored() {
    let mut lease = lease(1);
    let send = drain(&mut lease, at(0)).remove(0);
    lease.handle_sent(NodeId::new(9), send.call, Ok(C1), at(0));
    lease.handle_reply(NodeId::new(9), send.call, true, C1, Reply::Granted, at(0));
    assert_eq!(lease.poll_event(), None);
    assert_eq!(lease.poll_timeout(), Some(at(200)));
}

/// Rule 7: a loss has its reason: taken over where most of those who deny carry another, forgotten otherwise.
#[test]
fn loss_tells_its_reason() {
    for (replies, end) in [
        ([held(), held()], End::TakenOver),
        ([held(), Reply::Absent], End::Lost),
        ([Reply::Absent, Reply::Absent], End::Lost),
    ] {
        let (mut lease, sends) = extending(3, at(100));
        for (send, reply) in sends.iter().zip(replies) {
            answer(&mut lease, send, reply, at(101));
        }
        assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Lost)));
        assert_eq!(lease.end(), Some(end));
        lease.extend(ttl(10_000), at(102));
        assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Lost)), "and keeps it");
    }
}

/// Denials that come after an extension's verdict are a loss as soon as they are a majority's.
#[test]
fn late_denials_are_a_loss() {
    let (mut lease, sends) = extending(5, at(100));
    for send in &sends[..2] {
        answer(&mut lease, send, Reply::Absent, at(101));
    }
    answer(&mut lease, &sends[2], Reply::Refused("LOADING".into()), at(101));
    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Unconfirmed)));
    assert!(lease.poll_send().is_none());

    answer(&mut lease, &sends[3], held(), at(150));

    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Lost)));
    assert_eq!(drain(&mut lease, at(150)).len(), 5, "and it is released");
}

/// A lease that may be held for so long ends then, whatever extensions confirm, and says why.
#[test]
fn maximum_hold_caps_every_validity() {
    let mut lease = lease(3).held_at_most(Duration::from_secs(12));
    assert_eq!(lease.limit(), at(12_000));
    for send in drain(&mut lease, at(0)) {
        answer(&mut lease, &send, Reply::Granted, at(1));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Held(v)) if v.until() == at(9_898)));
    lease.extend(ttl(10_000), at(5_000));
    for send in drain(&mut lease, at(5_000)) {
        answer(&mut lease, &send, Reply::Granted, at(5_001));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Extended(v)) if v.until() == at(12_000)));

    lease.extend(ttl(10_000), at(12_000));
    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Expired)));
    assert_eq!(lease.end(), Some(End::MaxHoldReached));
    assert!(drain(&mut lease, at(12_000)).iter().all(|send| send.operation.releases()));
}

fn resumed(before: Instant, now: Instant) -> (Lease, Vec<ToSend>) {
    let owner = Owner::from_bytes([7; 16]);
    let mut lease = Lease::resume(terms(3), Key::new(*b"k"), owner, ttl(20_000), before, now);
    let sends = drain(&mut lease, now);
    assert!(
        sends.iter().all(|send| send.operation.name() == "extend"),
        "nothing is set before a quorum confirmed"
    );
    assert_eq!(lease.validity(), None, "not held before");
    (lease, sends)
}

/// Rule 7: a lease from elsewhere is held once Q nodes still carried it, before its old deadline; then it heals.
#[test]
fn resumed_lease_is_held_when_confirmed() {
    let (mut lease, sends) = resumed(at(1_000), at(500));
    answer(&mut lease, &sends[0], Reply::Absent, at(501));
    answer(&mut lease, &sends[1], Reply::Granted, at(501));
    assert_eq!(lease.poll_event(), None);
    answer(&mut lease, &sends[2], Reply::Granted, at(502));

    assert!(matches!(lease.poll_event(), Some(Event::Held(v)) if v.until() == at(500 + 9_898)));
    assert_eq!(names(&drain(&mut lease, at(502))), [(0, "claim")]);
    lease.release(at(600));
    assert_eq!(
        drain(&mut lease, at(600)).len(),
        3,
        "released everywhere, also where nothing was sent from here"
    );
}

/// Rule 7: confirmed after its old deadline, it is not held; denied or unconfirmed neither, and nothing is sent unasked.
#[test]
fn resumed_lease_is_not_revived() {
    let (mut lease, sends) = resumed(at(1_000), at(900));
    answer(&mut lease, &sends[0], Reply::Granted, at(1_000));
    answer(&mut lease, &sends[1], Reply::Granted, at(1_000));
    assert!(matches!(lease.poll_event(), Some(Event::Failed(Failure::Exhausted { .. }))));
    assert_eq!(lease.validity(), None);

    let (mut lease, sends) = resumed(Instant::FAR_FUTURE, at(0));
    answer(&mut lease, &sends[0], Reply::Absent, at(1));
    answer(&mut lease, &sends[1], held(), at(1));
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Contended)));

    let (mut lease, sends) = resumed(Instant::FAR_FUTURE, at(0));
    answer(&mut lease, &sends[0], Reply::Granted, at(1));
    lease.handle_timeout(at(200));
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
    lease.hand_on();
    lease.abandon(at(201));
    assert!(lease.poll_send().is_none(), "handed on, it is nobody's to release here");
}

/// What may still be on its way is known when a lease is handed on.
#[test]
fn unanswered_sets_are_known() {
    let mut lease = lease(3);
    let sends = drain(&mut lease, at(0));
    for send in &sends[..2] {
        answer(&mut lease, send, Reply::Granted, at(1));
    }
    assert!(!lease.is_answered());
    answer(&mut lease, &sends[2], Reply::Unknown(Unknown::Closed), at(2));
    assert!(!lease.is_answered(), "unknown is no answer");
    assert!(held_lease(3).is_answered());
}

/// A grant that does not count is no grant for the verdict, is undone like any other, and names the moment from which
/// enough of them count.
#[test]
fn guarded_grants_do_not_count_and_are_undone() {
    let mut lease = lease(3);
    let sends = drain(&mut lease, at(0));
    let standing = |node: usize| match node {
        0 => Standing::COUNTS,
        _ => Standing::CountsFrom(at(100 * node as u64)),
    };
    for (node, send) in sends.iter().enumerate() {
        let reply = lease.weigh(Reply::Granted, true, standing(node));
        answer(&mut lease, send, reply, at(1));
    }

    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::TooYoung { until: at(100) })));
    assert_eq!(drain(&mut lease, at(1)).len(), 3, "released on each of them");
}

/// Extending asks whether the key is still there, which a node without an old memory knows as well as any.
#[test]
fn guarded_nodes_count_for_extensions() {
    let mut lease = held_lease(3);
    lease.extend(ttl(10_000), at(2));
    for send in drain(&mut lease, at(2)) {
        let reply =
            lease.weigh(Reply::Granted, send.operation.creates(), Standing::CountsFrom(Instant::FAR_FUTURE));
        answer(&mut lease, &send, reply, at(3));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Extended(_))));
}

/// What stands in the way: the restart delay, where the young would be enough; contention, where those who refused would be;
/// the delay again, while answers are missing that may make it so; else an outage.
#[test]
fn refusals_name_what_stands_in_the_way() {
    let (granted, unknown) = (Reply::Granted, Reply::Unknown(Unknown::ConnectionLost("gone".into())));
    let young = |until: u64| Reply::Uncounted(Uncounted::TooYoung { until: at(until) });
    let cases: [(&[Reply], Failure); 5] = [
        (&[granted.clone(), young(70), young(90), unknown.clone()], Failure::TooYoung { until: at(90) }),
        (&[held(), held(), young(70), granted.clone(), held()], Failure::Contended),
        (&[unknown.clone(), young(70), unknown.clone()], Failure::TooYoung { until: at(70) }),
        (&[unknown.clone(), unknown.clone(), unknown.clone()], Failure::Unavailable),
        (&[unknown.clone(), unknown, held()], Failure::Contended),
    ];
    for (replies, expected) in cases {
        let mut lease = lease(5);
        for (send, reply) in drain(&mut lease, at(0)).iter().zip(replies) {
            answer(&mut lease, send, reply.clone(), at(1));
        }
        assert_eq!(lease.poll_event(), Some(Event::Failed(expected)), "{replies:?}");
    }

    // Nobody answers any more who could make it enough.
    let mut lease = lease(5);
    let sends = drain(&mut lease, at(0));
    answer(&mut lease, &sends[0], young(70), at(1));
    lease.handle_timeout(at(200));
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
}

/// A lock with exactly the least validity is one; a millisecond later it is none, and the error says what was left.
#[test]
fn least_validity_is_enough() {
    for (answered, left) in [(8_898, 1_000), (8_899, 999)] {
        let mut lease = Lease::acquire(
            Terms { reply_timeout: Duration::from_secs(9), ..terms(1) },
            Key::new(*b"k"),
            Owner::from_bytes([7; 16]),
            Asking::Set,
            at(0),
        );
        let sends = drain(&mut lease, at(0));
        answer(&mut lease, &sends[0], Reply::Granted, at(answered));
        let remaining = Duration::from_millis(left);
        match lease.poll_event() {
            Some(Event::Held(validity)) => {
                assert_eq!((left, validity.remaining(at(answered))), (1_000, remaining))
            }
            event => assert_eq!((left, event), (999, Some(Event::Failed(Failure::Exhausted { remaining })))),
        }
    }
}

/// A release with nobody to tell ends at once; one that was sent may leave a debt at each node.
#[test]
fn release_of_what_was_never_sent_ends_at_once() {
    let mut unsent = lease(3);
    unsent.release(at(1));
    assert_eq!(unsent.poll_event(), Some(Event::Released(Released::Unconfirmed)));

    let mut lease = held_lease(3);
    lease.release(at(2));
    let sends = drain(&mut lease, at(2));
    assert_eq!(sends.len(), 3);
    for send in &sends {
        assert_eq!(send.call, lease.call(), "its answer is a vote");
        assert!(send.debt.is_some(), "and without an answer it is repeated");
    }
}

/// After a confirmed extension only a missing key is set again; an answer after one that was not confirmed proves no loss by
/// itself; and a lease that ran out by its TTL has expired, it was not held out.
#[test]
fn stragglers_prove_what_they_say() {
    let (mut lease, sends) = extending(5, at(2));
    for send in &sends[..3] {
        answer(&mut lease, send, Reply::Granted, at(3));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Extended(_))));
    answer(&mut lease, &sends[3], Reply::Granted, at(4));
    assert!(drain(&mut lease, at(4)).is_empty(), "it is there");
    answer(&mut lease, &sends[4], Reply::Absent, at(4));
    assert_eq!(names(&drain(&mut lease, at(4))), [(4, "claim")]);

    let (mut lease, sends) = extending(5, at(2));
    for send in &sends[..3] {
        answer(&mut lease, send, Reply::Unknown(Unknown::Closed), at(3));
    }
    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Unconfirmed)));
    answer(&mut lease, &sends[3], Reply::Absent, at(4));
    assert_eq!((lease.poll_event(), lease.end()), (None, None), "one of five");

    lease.extend(ttl(10_000), at(9_898));
    assert_eq!(lease.poll_event(), Some(Event::NotExtended(NotExtended::Expired)));
    assert_eq!(lease.end(), Some(End::Expired));
}
