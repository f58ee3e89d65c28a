//! The waiters of one client, by hand.

use super::*;
use crate::protocol::message::{ConnectionId, Holder, Operation, Place as QueuePlace, Reply};
use crate::protocol::quorum::Quorum;
use crate::protocol::wait_queue::rank::{NodeName, Ranks, rank};
use crate::protocol::wait_queue::signal::Signals;
use crate::protocol::wait_queue::waiter::WaiterSettings;

const C1: ConnectionId = ConnectionId(1);

fn at(millis: u64) -> Instant {
    Instant::default().after(Duration::from_millis(millis))
}

fn owner(byte: u8) -> Owner {
    Owner::from_bytes([byte; 16])
}

fn client() -> ClientId {
    ClientId::from_bytes([9; 16])
}

fn key() -> Key {
    Key::new(*b"k")
}

fn ranks() -> Ranks {
    let names = [Some(NodeName::of(b"a")), Some(NodeName::of(b"b")), Some(NodeName::of(b"c"))];
    rank(b"k", &names, Quorum::of(3).unwrap())
}

/// A waiter that is about to enter.
fn waiter() -> Waiter {
    let habits = WaiterSettings {
        client: client(),
        hand_over: Ttl::unchecked(Duration::from_millis(500)),
        reply_timeout: Duration::from_millis(200),
        drift: Drift::default(),
    };
    Waiter::new(key(), ranks(), habits, 7)
}

/// Answers the look of a waiter with a place behind others.
fn answer(waiter: &mut Waiter, score: u64, now: Instant) {
    while let Some(send) = waiter.poll_send() {
        waiter.handle_sent(send.call, Ok(C1), now);
        if let Operation::Queue { .. } = send.operation {
            let place = QueuePlace { before: 5, score, entered: true, holder: Some(Holder::UNNAMED) };
            waiter.handle_reply(send.call, C1, Reply::Queued(place), now);
        }
    }
}

/// A waiter that stands at the best node under owner `number`, by a look of `now`.
fn standing(number: u8, score: u64, now: Instant) -> Waiter {
    let mut waiter = waiter();
    waiter.supply(owner(number), false, now);
    answer(&mut waiter, score, now);
    waiter
}

/// One that stands at the second node, the best being silent.
fn at_the_second(number: u8, score: u64, now: Instant) -> Waiter {
    let mut waiter = waiter();
    waiter.supply(owner(number), false, now);
    while let Some(send) = waiter.poll_send() {
        waiter.handle_sent(send.call, Ok(C1), now);
    }
    waiter.handle_timeout(now.after(Duration::from_millis(200)));
    waiter.supply(owner(number), false, now);
    answer(&mut waiter, score, now);
    waiter
}

fn stand(score: u64) -> Stand {
    Stand { score, dropped: false, usable: NodeSet::EMPTY }
}

fn groups() -> Groups {
    Groups::new(client())
}

fn signals(groups: &mut Groups) -> Vec<(Owner, Signal)> {
    std::iter::from_fn(|| groups.poll_signal()).collect()
}

/// Whether the waiter looks for others: it has a timer then.
fn leads(waiter: &Waiter) -> bool {
    waiter.poll_timeout().is_some()
}

/// A wake-up belongs to the waiter whose owner it names; one for an owner that is not listened for is passed on by a
/// release that hands over, and owed for the life of a queue.
#[test]
fn a_wake_up_belongs_to_its_owner_or_is_passed_on() {
    let mut groups = groups();
    for number in [1, 2] {
        groups.listen(owner(number));
        assert_eq!(groups.handle_wake_up(NodeId::new(2), owner(number), key(), at(5)), None);
    }
    assert_eq!(signals(&mut groups), [(owner(1), Signal::Woken), (owner(2), Signal::Woken)]);

    groups.forget(owner(1));
    let debt = groups.handle_wake_up(NodeId::new(2), owner(1), key(), at(5)).expect("passed on");
    assert!(signals(&mut groups).is_empty());
    assert_eq!(debt.node, NodeId::new(2));
    let Operation::HandOver { owner: released, client: by, hand_over, .. } = debt.operation() else {
        panic!("{:?}", debt.operation())
    };
    assert_eq!((released, by, hand_over.as_millis()), (owner(1), client(), 500));
    assert!(debt.ends() > at(5).after(QUEUE_LIFE));
}

/// An owner that is forgotten while its waiter has a place is not woken any more, and nothing of it is left in the end.
#[test]
fn what_is_forgotten_leaves_nothing() {
    let mut groups = groups();
    let mut waiter = standing(1, 10, at(0));
    groups.listen(owner(1));
    groups.stand(&mut waiter, stand(10), at(0));
    groups.forget(owner(1));
    assert!(groups.handle_wake_up(NodeId::new(0), owner(1), key(), at(1)).is_some());
    groups.leave(owner(1), at(500));
    assert!(groups.owners.is_empty() && groups.groups.is_empty());

    groups.listen(owner(2));
    groups.leave(owner(2), at(500));
    assert!(
        groups.handle_wake_up(NodeId::new(0), owner(2), key(), at(1)).is_none(),
        "listened for as before"
    );
    groups.forget(owner(2));
    assert!(groups.owners.is_empty());
}

/// The first by its place leads, whenever it comes; the one that led before is told, and the others have no timer.
#[test]
fn the_best_placed_leads() {
    let mut groups = groups();
    let (mut second, mut third, mut first) =
        (standing(2, 20, at(0)), standing(3, 30, at(0)), standing(1, 10, at(0)));
    groups.stand(&mut second, stand(20), at(0));
    groups.stand(&mut third, stand(30), at(0));
    assert!(leads(&second) && !leads(&third));
    assert!(signals(&mut groups).is_empty());

    groups.listen(owner(3));
    assert_eq!(groups.handle_wake_up(NodeId::new(0), owner(3), key(), at(0)), None);
    groups.stand(&mut first, stand(10), at(0));
    assert!(leads(&first));
    let told = [(owner(3), Signal::Woken), (owner(2), Signal::Leads(None))];
    assert_eq!(signals(&mut groups), told, "in the order of what happened");

    // Its own next look is no news.
    groups.stand(&mut first, stand(10), at(0));
    assert!(leads(&first) && signals(&mut groups).is_empty());
}

/// If the leader leaves, the next leads from then on, and looks when the other would have; if another leaves, nobody is told.
#[test]
fn the_lead_passes_on_with_its_look() {
    let mut groups = groups();
    let (mut first, mut second, mut third) =
        (standing(1, 10, at(500)), standing(2, 20, at(0)), standing(3, 30, at(0)));
    for (waiter, score) in [(&mut first, 10), (&mut second, 20), (&mut third, 30)] {
        groups.stand(waiter, stand(score), at(500));
    }
    let look = first.poll_timeout().expect("it leads");
    groups.leave(owner(2), at(500));
    assert!(signals(&mut groups).is_empty());
    groups.leave(owner(1), at(500));
    assert_eq!(signals(&mut groups), [(owner(3), Signal::Leads(Some(look)))]);
    groups.leave(owner(1), at(500));
    groups.leave(owner(3), at(500));
    assert!(signals(&mut groups).is_empty() && groups.groups.is_empty());
}

/// A leader that does not look is overdue 400 ms after its look: the next one leads and looks at once. If that one does
/// not look either, the third does. A leader that looks again leads again.
#[test]
fn an_overdue_leader_loses_the_lead() {
    let mut groups = groups();
    let mut waiters = [1, 2, 3].map(|number| standing(number, 10 * u64::from(number), at(0)));
    groups.stand(&mut waiters[0], stand(10), at(0));
    assert_eq!(groups.poll_timeout(), None, "there is no other to lead");
    groups.stand(&mut waiters[1], stand(20), at(0));
    groups.stand(&mut waiters[2], stand(30), at(0));
    let overdue = waiters[0].poll_timeout().expect("it leads").after(OVERDUE);
    assert_eq!(groups.poll_timeout(), Some(overdue));

    groups.handle_timeout(overdue.before(Duration::from_nanos(1)));
    assert!(signals(&mut groups).is_empty());
    groups.handle_timeout(overdue);
    let led = |number, now| [(owner(number), Signal::Leads(Some(now))), (owner(number), Signal::Nudged)];
    assert_eq!(signals(&mut groups), led(2, overdue));
    let again = overdue.after(OVERDUE);
    assert_eq!(groups.poll_timeout(), Some(again));
    groups.handle_timeout(again);
    assert_eq!(signals(&mut groups), led(3, again));
    assert_eq!(groups.poll_timeout(), None, "the last one keeps the lead");

    let mut first = standing(1, 10, again);
    groups.stand(&mut first, stand(10), again);
    assert!(leads(&first));
    assert_eq!(signals(&mut groups), [(owner(3), Signal::Leads(None))]);
}

/// A leader that has the vote and does not claim is overdue 400 ms after its wake-up. One that claims is not.
#[test]
fn a_woken_leader_that_does_not_claim_loses_the_lead() {
    for claims in [true, false] {
        let mut groups = groups();
        let (mut first, mut second, mut third) =
            (standing(1, 10, at(0)), standing(2, 20, at(0)), standing(3, 30, at(0)));
        for (waiter, score) in [(&mut first, 10), (&mut second, 20), (&mut third, 30)] {
            groups.listen(owner((score / 10) as u8));
            groups.stand(waiter, stand(score), at(0));
        }
        let look = first.poll_timeout().expect("it leads");
        assert_eq!(groups.handle_wake_up(NodeId::new(0), owner(2), key(), at(50)), None);
        assert_eq!(groups.poll_timeout(), Some(look.after(OVERDUE)), "it does not lead");
        assert_eq!(groups.handle_wake_up(NodeId::new(0), owner(1), key(), at(100)), None);
        assert_eq!(groups.poll_timeout(), Some(at(100).after(OVERDUE)));
        if claims {
            groups.leave(owner(1), at(101));
            assert_eq!(groups.poll_timeout(), Some(look.after(OVERDUE)));
        }
        signals(&mut groups);
        groups.handle_timeout(at(500));
        let next = signals(&mut groups).first().map(|(owner, _)| *owner);
        assert_eq!(next, (!claims).then_some(owner(2)));
    }
}

/// The lead that passes on with a look that is due is overdue by the look that follows.
#[test]
fn a_new_leader_is_overdue_by_its_own_look() {
    let mut groups = groups();
    let mut waiters = [1, 2, 3].map(|number| standing(number, 10 * u64::from(number), at(0)));
    for (waiter, score) in waiters.iter_mut().zip([10, 20, 30]) {
        groups.stand(waiter, stand(score), at(0));
    }
    groups.leave(owner(1), at(1_200));
    assert_eq!(groups.poll_timeout(), Some(at(1_200).after(BEAT).after(OVERDUE)));
}

/// A waiter whose place at the same node changes is a member once.
#[test]
fn another_place_takes_the_place_of_the_old_one() {
    let mut groups = groups();
    let (mut first, mut second) = (standing(1, 10, at(0)), standing(2, 20, at(0)));
    groups.stand(&mut first, stand(10), at(0));
    groups.stand(&mut second, stand(20), at(0));
    groups.stand(&mut first, stand(30), at(0));
    assert!(!leads(&first));
    let look = groups.groups.values().next().expect("a group").look;
    assert_eq!(signals(&mut groups), [(owner(2), Signal::Leads(Some(look)))]);
    assert_eq!(groups.groups.values().next().map(|group| group.members.len()), Some(2));
}

/// A dropped entry of the leader lets all others look; that of another lets nobody.
#[test]
fn what_the_leader_lost_the_others_lost() {
    let mut groups = groups();
    let (mut first, mut second) = (standing(1, 10, at(0)), standing(2, 20, at(0)));
    groups.stand(&mut first, stand(10), at(0));
    groups.stand(&mut second, Stand { dropped: true, ..stand(20) }, at(0));
    assert!(signals(&mut groups).is_empty());
    groups.stand(&mut first, Stand { dropped: true, ..stand(10) }, at(0));
    assert_eq!(signals(&mut groups), [(owner(2), Signal::Nudged)]);
}

/// A leader at a worse node sends the whole group to a better one that takes work, once it has stood there for some time; no
/// other member does, and no node that takes no work is gone to.
#[test]
fn a_leader_sends_its_group_to_a_better_node() {
    let mut groups = groups();
    let best = ranks().as_slice()[0];
    let mut usable = NodeSet::EMPTY;
    usable.insert(best);
    let (mut first, mut second) = (at_the_second(1, 10, at(0)), at_the_second(2, 20, at(0)));
    groups.stand(&mut first, stand(10), at(0));
    groups.stand(&mut second, stand(20), at(0));
    assert!(signals(&mut groups).is_empty());

    groups.stand(&mut second, Stand { usable, ..stand(20) }, at(9_000));
    groups.stand(&mut first, Stand { usable, ..stand(10) }, at(1_999));
    groups.stand(&mut first, stand(10), at(9_000));
    assert!(signals(&mut groups).is_empty());
    groups.stand(&mut first, Stand { usable, ..stand(10) }, at(2_000));
    assert_eq!(signals(&mut groups), [(owner(1), Signal::Usable(best)), (owner(2), Signal::Usable(best))]);
}

/// A node that takes work again: the leader there looks, all who stand at a worse one move, and others are not told.
#[test]
fn a_node_that_takes_work_again_moves_those_at_worse_ones() {
    let mut groups = groups();
    let ranks = ranks();
    let &[best, second_best] = ranks.as_slice() else { panic!("two of three may keep a queue") };
    let (mut first, mut second) = (standing(1, 10, at(0)), standing(2, 20, at(0)));
    let (mut third, mut fourth) = (at_the_second(3, 10, at(0)), at_the_second(4, 20, at(0)));
    let mut fifth = at_the_second(5, 30, at(0));
    for (waiter, score) in
        [(&mut first, 10), (&mut second, 20), (&mut third, 10), (&mut fourth, 20), (&mut fifth, 30)]
    {
        groups.stand(waiter, stand(score), at(0));
    }
    signals(&mut groups);
    let told = |groups: &mut Groups, node| {
        groups.handle_usable(node);
        let mut told: Vec<_> = signals(groups).into_iter().map(|(owner, _)| owner).collect();
        told.sort_unstable();
        told
    };
    assert_eq!(told(&mut groups, best), [owner(1), owner(3), owner(4), owner(5)]);
    assert_eq!(told(&mut groups, second_best), [owner(3)]);
}

/// Who goes to another node's queue tells the others, who find out why; who only takes another owner does not. Either way the
/// lead passes on.
#[test]
fn who_moves_on_tells_the_others() {
    let best = ranks().as_slice()[0];
    let elsewhere = ranks().as_slice()[1];
    for to in [best, elsewhere] {
        let mut groups = groups();
        let (mut first, mut second) = (standing(1, 10, at(0)), standing(2, 20, at(0)));
        groups.stand(&mut first, stand(10), at(0));
        groups.stand(&mut second, stand(20), at(0));
        let look = first.poll_timeout().expect("it leads");
        groups.move_on(owner(1), to, at(0));
        let lead = (owner(2), Signal::Leads(Some(look)));
        let told = signals(&mut groups);
        match to == elsewhere {
            true => assert_eq!(told, [(owner(2), Signal::Nudged), lead]),
            false => assert_eq!(told, [lead]),
        }
    }
    let mut groups = groups();
    groups.move_on(owner(1), best, at(0));
    assert!(signals(&mut groups).is_empty(), "it had no place");
}

/// Signals are marks: each kind once, the last word on the lead counts, and taken together they lead to one look.
#[test]
fn signals_are_marks() {
    let mut marks = Signals::default();
    assert!(marks.is_empty());
    for signal in [
        Signal::Leads(Some(at(1))),
        Signal::Nudged,
        Signal::Nudged,
        Signal::Leads(None),
        Signal::Usable(NodeId::new(2)),
        Signal::Woken,
    ] {
        marks.add(signal);
        assert!(!marks.is_empty());
    }
    let usable = NodeSet::first(3).filter(|node| node.index() == 2);
    assert!(marks.woken && marks.nudged && marks.usable.eq(usable));
    assert_eq!(marks.leads, Some(None));
}

/// What a signal does to its waiter: a wake-up lets it claim, a nudge look, a lead gives or takes its timer.
#[test]
fn a_waiter_follows_its_signals() {
    let signalled = |signal: Signal| {
        let mut waiter = standing(1, 10, at(0));
        waiter.poll_event();
        waiter.set_leads(false, at(0));
        let mut signals = Signals::default();
        signals.add(signal);
        waiter.handle_signals(&signals, at(100));
        waiter
    };
    assert!(signalled(Signal::Woken).poll_event().is_some(), "it claims");
    assert!(signalled(Signal::Nudged).poll_send().is_some(), "it looks");
    assert_eq!(signalled(Signal::Leads(Some(at(700)))).poll_timeout(), Some(at(700)));
    assert_eq!(signalled(Signal::Leads(Some(at(50)))).poll_timeout(), Some(at(100).after(BEAT)));
    assert_eq!(signalled(Signal::Leads(None)).poll_timeout(), None);
    assert!(signalled(Signal::Usable(ranks().as_slice()[0])).poll_send().is_none(), "another's to look");
}
