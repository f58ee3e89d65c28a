//! Fenced leases: from the numbers that nodes gave to the token.

use super::*;
use crate::protocol::fencing::{Carry, Fence, FencingToken, Retention};

fn week() -> Retention {
    Retention::new(Duration::from_secs(604_800))
}

fn fenced(nodes: usize) -> Lease {
    lease_with(nodes, advancing())
}

/// A token is wanted, with 100 for a candidate.
fn advancing() -> Options {
    let fence = Some(Fence::Advance { candidate: 100, retention: week() });
    Options { fence, ..Options::default() }
}

fn number(number: u64) -> Reply {
    Reply::Fenced(FencingToken::new(number))
}

fn carry(token: u64) -> Carry {
    Carry { token: FencingToken::new(token), retention: week() }
}

/// A lease of three nodes that gave these numbers at 10 ms.
fn claimed(numbers: [u64; 3]) -> Lease {
    let mut lease = fenced(3);
    let sends = drain(&mut lease, at(0));
    for (send, given) in sends.iter().zip(numbers) {
        answer(&mut lease, send, number(given), at(10));
    }
    lease
}

fn fences(sends: &[ToSend]) -> Vec<Option<Fence>> {
    let fence = |send: &ToSend| match &send.operation {
        Operation::Claim { fence, .. } => *fence,
        _ => None,
    };
    sends.iter().map(fence).collect()
}

/// The usual: all nodes get the same candidate and give it back. One round, and nobody waits for the third node.
#[test]
fn agreed_numbers_need_one_round() {
    let mut lease = fenced(3);
    let sends = drain(&mut lease, at(0));
    assert_eq!(fences(&sends), [Some(Fence::Advance { candidate: 100, retention: week() }); 3]);
    answer(&mut lease, &sends[0], number(100), at(10));
    assert_eq!(lease.fencing_token(), None);
    answer(&mut lease, &sends[2], number(100), at(10));

    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(100)));
    answer(&mut lease, &sends[1], number(700), at(11));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(100)), "a straggler changes nothing");
    assert!(drain(&mut lease, at(11)).is_empty());
}

/// Numbers that differ are raised on all nodes; the lock is handed out when Q of them stand at the highest. Validity counts
/// from before the first round.
#[test]
fn numbers_that_differ_are_raised() {
    let mut lease = claimed([100, 120, 100]);
    assert_eq!((lease.poll_event(), lease.fencing_token()), (None, None));
    let raises = drain(&mut lease, at(10));
    assert_eq!(names(&raises), [(0, "raise"), (1, "raise"), (2, "raise")]);
    assert!(
        raises
            .iter()
            .all(|send| matches!(send.operation, Operation::Raise { carry: c, .. } if c == carry(120)))
    );

    answer(&mut lease, &raises[0], Reply::Granted, at(20));
    assert_eq!(lease.poll_event(), None);
    answer(&mut lease, &raises[2], Reply::Granted, at(20));

    let Some(Event::Held(validity)) = lease.poll_event() else { panic!("not held") };
    assert_eq!(validity.until(), at(9_898));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(120)));
}

/// A raise counts only where a claim was granted: elsewhere the lock may be this owner's by a vote in the queue, which ends long
/// before the validity does.
#[test]
fn raises_count_only_where_a_claim_was_granted() {
    let mut lease = fenced(3);
    let sends = drain(&mut lease, at(0));
    answer(&mut lease, &sends[2], Reply::NotSent(NotSent::Backlog), at(1));
    answer(&mut lease, &sends[0], number(100), at(10));
    answer(&mut lease, &sends[1], number(120), at(10));
    let raises = drain(&mut lease, at(10));

    answer(&mut lease, &raises[0], Reply::Granted, at(20));
    answer(&mut lease, &raises[2], Reply::Granted, at(20));
    assert_eq!((lease.poll_event(), lease.validity()), (None, None));
    answer(&mut lease, &raises[1], Reply::Granted, at(21));

    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
}

/// A node where the lock is not this owner's any more does not count, whatever its counter; the attempt is undone then.
#[test]
fn raise_counts_only_where_the_lock_is_ours() {
    let mut lease = claimed([100, 120, 100]);
    let raises = drain(&mut lease, at(10));
    answer(&mut lease, &raises[1], Reply::Granted, at(20));
    answer(&mut lease, &raises[0], held(), at(20));
    answer(&mut lease, &raises[2], Reply::Absent, at(20));

    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Contended)));
    assert_eq!(lease.fencing_token(), None);
    assert_eq!(names(&drain(&mut lease, at(20))), [(0, "release"), (1, "release"), (2, "release")]);
}

/// A raise that is not answered ends with its reply timeout, and is undone.
#[test]
fn silent_raise_is_undone() {
    let mut lease = claimed([100, 120, 100]);
    drain(&mut lease, at(10));
    assert_eq!(lease.poll_timeout(), Some(at(210)));
    lease.handle_timeout(at(210));

    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
    assert_eq!(drain(&mut lease, at(210)).len(), 3);
}

/// Rule 1: a raise that used the validity up is no lock.
#[test]
fn late_raise_is_exhausted() {
    let mut lease = claimed([100, 120, 100]);
    let raises = drain(&mut lease, at(10));
    answer(&mut lease, &raises[0], Reply::Granted, at(9_000));
    answer(&mut lease, &raises[1], Reply::Granted, at(9_000));

    let remaining = Duration::from_millis(898);
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Exhausted { remaining })));
}

/// Rules 3 and 8: an acquire that is dropped during its raise is released everywhere.
#[test]
fn dropped_raise_is_released() {
    let mut lease = claimed([100, 120, 100]);
    lease.poll_send();
    lease.abandon(at(11));
    assert_eq!(names(&drain(&mut lease, at(11))), [(0, "release"), (1, "release"), (2, "release")]);
}

/// Extending and healing carry the token along.
#[test]
fn extension_and_healing_carry_the_token() {
    let mut lease = claimed([100, 120, 120]);
    let raises = drain(&mut lease, at(10));
    raises.iter().for_each(|send| answer(&mut lease, send, Reply::Granted, at(11)));
    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));

    lease.extend(ttl(10_000), at(100));
    let extensions = drain(&mut lease, at(100));
    let carried =
        |send: &ToSend| matches!(send.operation, Operation::Extend { carry: c, .. } if c == Some(carry(120)));
    assert!(extensions.iter().all(carried));
    answer(&mut lease, &extensions[0], Reply::Absent, at(101));
    answer(&mut lease, &extensions[1], Reply::Granted, at(101));
    answer(&mut lease, &extensions[2], Reply::Granted, at(101));

    assert!(matches!(lease.poll_event(), Some(Event::Extended(_))));
    let healing = drain(&mut lease, at(101));
    assert_eq!(fences(&healing), [Some(Fence::Carry(carry(120)))]);
    answer(&mut lease, &healing[0], number(120), at(102));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(120)));
}

/// A lock from another process keeps its token.
#[test]
fn resumed_lease_keeps_its_token() {
    let (key, owner) = (Key::new(*b"k"), Owner::from_bytes([7; 16]));
    let resumed = Resumed { longest: ttl(10_000), before: at(5_000), owed: false };
    let options = Options { fence: Some(Fence::Carry(carry(120))), ..Options::default() };
    let mut lease = Lease::resume(terms(3), key, owner, resumed, options, at(0));
    let sends = drain(&mut lease, at(0));
    assert!(sends.iter().all(|send| matches!(send.operation, Operation::Extend { carry: Some(_), .. })));
    sends.iter().for_each(|send| answer(&mut lease, send, Reply::Granted, at(1)));

    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(120)));
}

/// Counters at their end are refusals, and no contention.
#[test]
fn spent_counters_are_no_contention() {
    let mut lease = fenced(3);
    let sends = drain(&mut lease, at(0));
    answer(&mut lease, &sends[0], Reply::CounterExhausted, at(1));
    answer(&mut lease, &sends[1], Reply::CounterExhausted, at(1));

    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
    assert!(lease.round().is_spent());
}

/// A node whose grant does not count may remember a greater number than those whose grants do: the others are raised to it. It
/// counts for the raise no more than for the claim.
#[test]
fn uncounted_grants_count_for_the_number() {
    let mut lease = fenced(3);
    let sends = drain(&mut lease, at(0));
    let too_young = Standing::CountsFrom(Instant::FAR_FUTURE);
    weighed_answer(&mut lease, &sends[0], number(900), too_young, at(1));
    answer(&mut lease, &sends[1], number(100), at(1));
    answer(&mut lease, &sends[2], number(100), at(1));

    let raises = drain(&mut lease, at(1));
    assert_eq!(names(&raises), [(0, "raise"), (1, "raise"), (2, "raise")]);
    weighed_answer(&mut lease, &raises[0], Reply::Granted, too_young, at(2));
    answer(&mut lease, &raises[1], Reply::Granted, at(2));
    assert_eq!(lease.poll_event(), None, "one node of two");
    answer(&mut lease, &raises[2], Reply::Granted, at(2));
    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(900)));
}

/// Rule 1: the validity of a fenced lock counts from the start of its clock, whatever that shows.
#[test]
fn validity_counts_from_the_start_of_the_clock() {
    let owner = Owner::from_bytes([7; 16]);
    let mut lease = Lease::acquire(terms(3), Key::new(*b"k"), owner, Asking::Set, advancing(), at(1_000));
    for send in drain(&mut lease, at(1_000)) {
        answer(&mut lease, &send, number(100), at(1_010));
    }
    assert!(matches!(lease.poll_event(), Some(Event::Held(validity)) if validity.until() == at(10_898)));
}

/// A token is wanted; clocks explain numbers up to 1 000.
fn careful(nodes: usize) -> Lease {
    lease_with(nodes, Options { expected: Some(1_000), ..advancing() })
}

const FAR: u64 = 8_000_000_000_000_000;

/// One node at a number that nothing explains is no vote, and its number goes nowhere.
#[test]
fn a_number_that_nothing_explains_is_no_vote() {
    let mut lease = careful(5);
    let sends = drain(&mut lease, at(0));
    for (node, given) in [(4, FAR), (0, 100), (1, 100)] {
        answer(&mut lease, &sends[node], number(given), at(10));
    }
    assert_eq!((lease.poll_event(), lease.round().granted()), (None, 2));
    answer(&mut lease, &sends[2], number(100), at(10));

    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(100)));
}

/// Two nodes at such numbers confirm the lower one of them: clocks may be wrong, and the token is what it is.
#[test]
fn two_nodes_confirm_what_no_clock_explains() {
    let mut lease = careful(3);
    let sends = drain(&mut lease, at(0));
    answer(&mut lease, &sends[0], number(FAR), at(10));
    answer(&mut lease, &sends[1], number(FAR), at(10));
    assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
    assert_eq!(lease.fencing_token(), Some(FencingToken::new(FAR)));

    for order in [[(0, 5_000), (1, FAR)], [(1, FAR), (0, 5_000)]] {
        let mut lease = careful(5);
        let sends = drain(&mut lease, at(0));
        for (node, given) in order.into_iter().chain([(2, 100)]) {
            answer(&mut lease, &sends[node], number(given), at(10));
        }
        assert_eq!((lease.poll_event(), lease.round().granted()), (None, 2), "the highest is alone");
        answer(&mut lease, &sends[3], number(100), at(10));
        assert_eq!(lease.carry(), Some(carry(5_000)));
        assert_eq!(names(&drain(&mut lease, at(10))).len(), 5, "raised");
    }
}

/// The attempt fails as soon as no node is left that could confirm it, or the time is over; and the report tells why.
#[test]
fn without_another_word_the_number_is_no_vote() {
    let told = |lease: &Lease| lease.round().vote(NodeId::new(0)).and_then(|vote| vote.reply.cloned());
    let implausible = Some(Reply::Uncounted(Uncounted::Implausible));
    for late in [false, true] {
        let mut lease = careful(3);
        let sends = drain(&mut lease, at(0));
        answer(&mut lease, &sends[0], number(FAR), at(10));
        answer(&mut lease, &sends[1], Reply::NotSent(NotSent::Suspect), at(11));
        assert_eq!((lease.poll_event(), told(&lease)), (None, None));
        if late {
            let deadline = lease.poll_timeout().expect("it waits");
            lease.handle_timeout(deadline);
        } else {
            answer(&mut lease, &sends[2], number(100), at(12));
        }

        assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::Unavailable)));
        assert_eq!(told(&lease), implausible);
        let undone = drain(&mut lease, at(13));
        assert!(undone.iter().any(|send| send.node == NodeId::new(0)), "what was set there is undone");
    }
}

/// Of one or two nodes none can contradict the other, so that any number is taken.
#[test]
fn few_nodes_are_believed() {
    let mut lease = careful(1);
    let sends = drain(&mut lease, at(0));
    answer(&mut lease, &sends[0], number(FAR), at(10));

    assert_eq!(lease.fencing_token(), Some(FencingToken::new(FAR)));
}

/// A node whose grant does not count confirms a number all the same, and its own is doubted like any other.
#[test]
fn uncounted_grants_are_heard_and_doubted() {
    let young = Standing::CountsFrom(at(60_000));
    let mut lease = careful(3);
    let sends = drain(&mut lease, at(0));
    weighed_answer(&mut lease, &sends[0], number(FAR), young, at(10));
    assert_eq!(lease.carry(), Some(carry(0)), "doubted");
    answer(&mut lease, &sends[1], number(FAR), at(10));
    answer(&mut lease, &sends[2], number(100), at(10));

    assert_eq!(lease.carry(), Some(carry(FAR)));
    assert_eq!(names(&drain(&mut lease, at(10))), [(0, "raise"), (1, "raise"), (2, "raise")]);
}
