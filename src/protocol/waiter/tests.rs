//! One waiter, by hand.

use super::super::line::{NodeName, rank};
use super::super::quorum::Quorum;
use super::*;

const C1: ConnectionId = ConnectionId(1);
const C2: ConnectionId = ConnectionId(2);

fn at(millis: u64) -> Instant {
    Instant::default().after(Duration::from_millis(millis))
}

fn owner(byte: u8) -> Owner {
    Owner::from_bytes([byte; 16])
}

/// One holder has the other nodes.
fn held_by_one() -> Setback {
    Setback { best: true, refused: true, holder: true, remaining: None }
}

/// A waiter of three nodes that has asked at the best one, as owner 1.
fn asking() -> Waiter {
    let names = [Some(NodeName::of(b"a")), Some(NodeName::of(b"b")), Some(NodeName::of(b"c"))];
    let habits = Habits {
        client: ClientId::from_bytes([9; 16]),
        hand_over: Ttl::unchecked(Duration::from_millis(500)),
        reply_timeout: Duration::from_millis(200),
        drift: Drift::default(),
    };
    let ranks = rank(b"k", &names, Quorum::of(3).unwrap());
    let mut waiter = Waiter::new(Key::new(*b"k"), ranks, habits, 7);
    waiter.supply(owner(1), false, at(0));
    waiter
}

/// Takes all sends, each admitted on this connection, and names them.
fn drain(waiter: &mut Waiter, connection: ConnectionId, now: Instant) -> Vec<(u32, Operation)> {
    let mut sent = Vec::new();
    while let Some(send) = waiter.poll_send() {
        waiter.handle_sent(send.call, Ok(connection), now);
        sent.push((send.call, send.operation));
    }
    sent
}

/// Rule 2: after a failed claim a new owner takes over entry and vote, and the old one is never sent again; on the
/// same connection nothing of it is left open.
#[test]
fn failed_claim_is_followed_by_a_new_owner() {
    let mut waiter = asking();
    let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
    waiter.handle_reply(call, C1, Reply::Voted, at(1));
    assert_eq!(waiter.poll_event(), Some(Event::Claim { patient: true }));

    waiter.claim_failed(waiter.doubt(), held_by_one(), at(3));
    assert!(waiter.wants_owner());
    waiter.supply(owner(2), false, at(3));
    let (call, operation) = drain(&mut waiter, C1, at(3)).remove(0);
    let Operation::Queue { owner: sent, rename_from, .. } = operation else { panic!("{operation:?}") };
    assert_eq!((sent, rename_from), (owner(2), Some(owner(1))));

    waiter.handle_reply(call, C1, Reply::Voted, at(4));
    assert!(drain(&mut waiter, C1, at(4)).is_empty(), "the old owner needs no release");
    let due = waiter.poll_timeout().unwrap();
    waiter.handle_timeout(due);
    assert_eq!(waiter.poll_event(), Some(Event::Claim { patient: false }));
}

/// Whoever takes the lead does not repeat a look that has just been made, unless it polls.
#[test]
fn a_look_that_was_just_made_is_not_repeated() {
    for polls in [false, true] {
        let mut waiter = asking();
        waiter.polls = polls;
        let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
        waiter.handle_reply(
            call,
            C1,
            Reply::Queued(Place { before: 3, score: 7, entered: true, holder: None }),
            at(1),
        );
        waiter.set_leads(false, at(1));
        assert_eq!(waiter.poll_timeout(), None);

        waiter.take_lead(at(90), at(100));

        let next = if polls { at(100) } else { at(100).after(BEAT) };
        assert_eq!(waiter.poll_timeout(), Some(next));
        waiter.take_lead(at(130), at(100));
        assert_eq!(waiter.poll_timeout(), Some(at(130).min(next)));
    }
}

/// The pauses of a head whose claims fail grow, and stay well within the life of the vote that it keeps.
#[test]
fn head_claims_again_before_its_vote_runs_out() {
    for hand_over in [100, 500] {
        let mut waiter = asking();
        waiter.habits.hand_over = Ttl::unchecked(Duration::from_millis(hand_over));
        let (mut call, _) = drain(&mut waiter, C1, at(0)).remove(0);
        waiter.handle_reply(call, C1, Reply::Voted, at(0));
        let mut longest = 0;
        for round in 2..20 {
            let now = at(u64::from(round) * 1_000);
            waiter.claim_failed(waiter.doubt(), held_by_one(), now);
            waiter.supply(owner(round), false, now);
            (call, _) = drain(&mut waiter, C1, now).remove(0);
            waiter.handle_reply(call, C1, Reply::Voted, now);
            let due = waiter.poll_timeout().unwrap();
            longest = longest.max(due.since(now).as_millis() as u64);
            waiter.handle_timeout(due);
        }
        assert_eq!(longest, hand_over / 2);
    }
}

/// Rule 4: where the connection changed before the take-over, the old owner is released, and owed until answered.
#[test]
fn take_over_on_another_connection_leaves_a_debt() {
    let mut waiter = asking();
    let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
    waiter.handle_reply(call, C1, Reply::Voted, at(1));
    waiter.claim_failed(waiter.doubt(), held_by_one(), at(3));
    waiter.supply(owner(2), false, at(3));
    let (call, _) = drain(&mut waiter, C2, at(3)).remove(0);

    waiter.handle_reply(call, C2, Reply::Voted, at(4));

    let send = waiter.poll_send().expect("a release");
    assert_eq!(send.operation.owner(), Some(owner(1)));
    assert!(send.operation.releases() && send.debt.is_some());
}

/// A node that does not answer is left for the next in rank, with a release for what may stand there.
#[test]
fn silent_node_is_left_for_the_next() {
    let mut waiter = asking();
    let first = waiter.node();
    drain(&mut waiter, C1, at(0));

    waiter.handle_timeout(at(200));

    let (_, operation) = drain(&mut waiter, C1, at(200)).remove(0);
    assert!(operation.releases() && operation.owner() == Some(owner(1)));
    assert!(waiter.wants_owner() && waiter.node() != first);
    waiter.supply(owner(2), false, at(200));
    drain(&mut waiter, C1, at(200));
    waiter.handle_timeout(at(400));
    drain(&mut waiter, C1, at(400));
    assert!(matches!(waiter.poll_event(), Some(Event::Unable(_))), "there is no third");
}

/// Leaving releases wherever it stands, once; a claim under way is the lease's to undo.
#[test]
fn giving_up_releases_once() {
    let mut waiter = asking();
    let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
    let place = Place { before: 3, score: 77, entered: true, holder: None };
    waiter.handle_reply(call, C1, Reply::Queued(place), at(1));
    waiter.give_up();
    assert_eq!(drain(&mut waiter, C1, at(2)).len(), 1);
    waiter.give_up();
    assert!(waiter.poll_send().is_none());

    let mut claiming = asking();
    drain(&mut claiming, C1, at(0));
    claiming.handle_wake();
    claiming.give_up();
    assert!(claiming.poll_send().is_none());
}

/// Two heads, each with the vote of a node that it takes for the best, would wait for each other for ever: one that sees
/// no holder again and again gives its vote back now and then, and comes back to its place.
#[test]
fn head_that_claims_in_vain_gives_way() {
    for refused in [true, false] {
        let mut waiter = asking();
        let (mut call, _) = drain(&mut waiter, C1, at(0)).remove(0);
        waiter.handle_reply(call, C1, Reply::Voted, at(0));
        let setback = Setback { holder: false, refused, ..held_by_one() };
        let mut kept = 0;
        let given_back = loop {
            let now = at(1_000 * (u64::from(kept) + 1));
            waiter.claim_failed(waiter.doubt(), setback, now);
            if !waiter.wants_owner() {
                break drain(&mut waiter, C1, now);
            }
            kept += 1;
            waiter.supply(owner(kept + 1), false, now);
            (call, _) = drain(&mut waiter, C1, now).remove(0);
            waiter.handle_reply(call, C1, Reply::Voted, now);
            waiter.handle_timeout(waiter.poll_timeout().unwrap());
        };

        assert!((7..40).contains(&kept), "{kept}");
        let hands_over = matches!(given_back[0].1, Operation::HandOver { .. });
        assert_eq!(hands_over, !refused, "nobody in the way: the next may reach more nodes");
        let back = waiter.poll_timeout().unwrap();
        waiter.handle_timeout(back);
        let left = drain(&mut waiter, C1, back);
        assert_eq!(left.len(), usize::from(refused), "it has left the line for good: {left:?}");
        assert!(waiter.wants_owner());
    }
}
