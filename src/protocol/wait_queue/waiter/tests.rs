//! One waiter, by hand.

use super::*;
use crate::protocol::message::Holder;
use crate::protocol::quorum::Quorum;
use crate::protocol::wait_queue::rank::{NodeName, rank};

const C1: ConnectionId = ConnectionId(1);
const C2: ConnectionId = ConnectionId(2);

fn at(millis: u64) -> Instant {
    Instant::default().after(Duration::from_millis(millis))
}

fn owner(byte: u8) -> Owner {
    Owner::from_bytes([byte; 16])
}

/// One holder has the other nodes.
fn held_by_one() -> ClaimFailure {
    ClaimFailure { best: true, refused: true, holder: true, remaining: None }
}

/// A waiter of three nodes that has asked at the best one, as owner 1.
fn asking() -> Waiter {
    let names = [Some(NodeName::of(b"a")), Some(NodeName::of(b"b")), Some(NodeName::of(b"c"))];
    let habits = WaiterSettings {
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

/// The same with that node's vote since `at(1)`, about to claim.
fn voted() -> Waiter {
    let mut waiter = asking();
    let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
    waiter.handle_reply(call, C1, Reply::Voted, at(1));
    waiter
}

/// Takes all sends, each admitted on this connection, and names them.
fn drain(waiter: &mut Waiter, connection: ConnectionId, now: Instant) -> Vec<(CallId, Operation)> {
    let mut sent = Vec::new();
    while let Some(send) = waiter.poll_send() {
        waiter.handle_sent(send.call, Ok(connection), now);
        sent.push((send.call, send.operation));
    }
    sent
}

/// Whether it wants to claim now, with its own vote, and if so whether patiently.
fn claimed(waiter: &mut Waiter) -> Option<bool> {
    let Some(Event::Claim(vote)) = waiter.poll_event() else { return None };
    assert_eq!((vote.node, vote.doubt), (waiter.node(), waiter.doubt()));
    Some(vote.patient)
}

/// Rule 2: after a failed claim a new owner takes over entry and vote, and the old one is never sent again; on the
/// same connection nothing of it is left open.
#[test]
fn failed_claim_is_followed_by_a_new_owner() {
    let mut waiter = voted();
    assert_eq!(claimed(&mut waiter), Some(true));

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
    assert_eq!(claimed(&mut waiter), Some(false));
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
    let mut waiter = voted();
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
        let claim_failure = ClaimFailure { holder: false, refused, ..held_by_one() };
        let mut kept = 0;
        let given_back = loop {
            let now = at(1_000 * (u64::from(kept) + 1));
            waiter.claim_failed(waiter.doubt(), claim_failure, now);
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
        assert_eq!(left.len(), usize::from(refused), "it has left the queue for good: {left:?}");
        assert!(waiter.wants_owner());
    }
}

fn place(before: u32, holder: Option<Holder>) -> Place {
    Place { before, score: 7, entered: false, holder }
}

fn held_for(millis: u64, value: HolderValue) -> Option<Holder> {
    Some(Holder { value, remaining: Some(Duration::from_millis(millis)) })
}

/// A waiter that stands at the best node since `at(1)`.
fn standing(polls: bool, place: Place) -> Waiter {
    let mut waiter = asking();
    waiter.polls = polls;
    let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
    waiter.handle_reply(call, C1, Reply::Queued(place), at(1));
    waiter
}

/// A waiter whose best node does not answer, and that stands at the second since `at(500)`.
fn at_the_second() -> Waiter {
    let mut waiter = asking();
    drain(&mut waiter, C1, at(0));
    waiter.handle_timeout(at(200));
    waiter.supply(owner(2), false, at(500));
    let calls = drain(&mut waiter, C1, at(500));
    let (call, _) = calls.into_iter().find(|(_, operation)| !operation.releases()).expect("a look");
    waiter.handle_reply(call, C1, Reply::Queued(place(0, None)), at(501));
    waiter.poll_event();
    waiter
}

/// Whether it asks now: a look, and nothing else.
fn asks(waiter: &mut Waiter) -> bool {
    let sent = drain(waiter, C1, at(900));
    assert!(sent.len() <= 1 && sent.iter().all(|(_, operation)| operation.name() == "queue"), "{sent:?}");
    !sent.is_empty()
}

/// The pace of looks: a beat for who is woken; for who polls by its place, up to twenty times 50 ms; the first two no later
/// than a millisecond after the end of the key; the first behind another client's holder every 100 ms.
#[test]
fn looks_follow_place_and_holder() {
    let ours = || HolderValue::Owner(owner(8));
    let other = || HolderValue::Foreign((*b"x").into());
    let beat = (1_010, 1_050);
    for (polls, before, holder, (least, most)) in [
        (false, 0, None, beat),
        (false, 5, held_for(300, ours()), beat),
        (false, 0, held_for(300, ours()), (301, 301)),
        (false, 1, held_for(300, ours()), (301, 301)),
        (false, 0, held_for(9_000, ours()), beat),
        (false, 0, held_for(9_000, other()), (100, 100)),
        (false, 0, held_for(40, other()), (41, 41)),
        (false, 1, held_for(9_000, other()), beat),
        (false, u32::MAX, held_for(300, ours()), beat),
        (true, u32::MAX, None, (1_000, 1_000)),
        (true, 0, None, (50, 50)),
        (true, 3, None, (200, 200)),
        (true, 19, None, (1_000, 1_000)),
        (true, 500, None, (1_000, 1_000)),
    ] {
        let waiter = standing(polls, place(before, holder.clone()));
        let pause = waiter.poll_timeout().expect("a look").since(at(1)).as_millis() as u64;
        assert!((least..=most).contains(&pause), "polls {polls}, {before} before, {holder:?}: {pause} ms");
    }
}

/// Rule 10: whatever a node answers, a waiter does not panic, and looks no more than once a millisecond.
#[test]
fn any_answer_to_a_look_is_survived() {
    let numbers = [0, 1, 2, u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
    let lives = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    let holders =
        lives.map(|left| Some(Holder { value: HolderValue::Owner(owner(8)), remaining: Some(left) }));
    let holders = [None, Some(Holder::UNNAMED)].into_iter().chain(holders);
    for holder in holders {
        for (before, score) in numbers.iter().flat_map(|before| numbers.map(|score| (*before, score))) {
            for polls in [false, true] {
                for entered in [false, true] {
                    let mut waiter = asking();
                    waiter.polls = polls;
                    let mut now = at(1);
                    for _ in 0..3 {
                        let before = before as u32;
                        let place = Place { before, score, entered, holder: holder.clone() };
                        let (call, _) = drain(&mut waiter, C1, now).remove(0);
                        waiter.handle_reply(call, C1, Reply::Queued(place.clone()), now);
                        assert!(matches!(waiter.poll_event(), Some(Event::Standing { .. })), "{place:?}");
                        let due = waiter.poll_timeout().expect("a look");
                        let pause = due.since(now);
                        assert!(pause >= Duration::from_millis(1) && pause <= BEAT, "{place:?}: {pause:?}");
                        now = due;
                        waiter.handle_timeout(now);
                    }
                }
            }
        }
    }
}

/// Its place is told with whether it had been dropped: only who had one before can have been.
#[test]
fn a_place_that_was_dropped_is_told() {
    let mut waiter = asking();
    for (entered, dropped) in [(true, false), (false, false), (true, true)] {
        let (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
        let place = Place { entered, ..place(1, None) };
        waiter.handle_reply(call, C1, Reply::Queued(place.clone()), at(1));
        assert_eq!(waiter.poll_event(), Some(Event::Standing { place, dropped }));
        waiter.handle_nudge(at(2));
    }
}

/// Who stands at a worse node knows the better ones, and tries again after two seconds; who stands at the best stays.
#[test]
fn a_worse_node_is_left_in_time() {
    let best = standing(false, place(0, None));
    assert!(best.better().is_empty() && !best.wants_back(at(60_000)));

    let second = at_the_second();
    assert_eq!(second.node(), best.ranks.as_slice()[1]);
    assert_eq!(second.better().min(), Some(best.node()));
    assert!(!second.wants_back(at(2_499)) && second.wants_back(at(2_500)));
}

/// A node that takes work again: a better one is moved to, the own one is looked at by who leads, others are nothing to it.
#[test]
fn a_node_that_takes_work_again_matters_by_its_rank() {
    let ranks = asking().ranks;
    let [best, own] = ranks.as_slice() else { panic!("two of three may keep a queue") };

    let mut waiter = at_the_second();
    waiter.handle_usable(*best, at(900));
    assert!(waiter.wants_owner() && waiter.node() == *best);
    assert!(drain(&mut waiter, C1, at(900)).iter().all(|(_, operation)| operation.releases()), "it leaves");

    for leads in [true, false] {
        let mut waiter = at_the_second();
        waiter.set_leads(leads, at(5_000));
        waiter.handle_usable(*own, at(900));
        assert_eq!(asks(&mut waiter), leads);
    }

    let mut waiter = standing(false, place(0, None));
    waiter.handle_usable(*own, at(900));
    assert!(!asks(&mut waiter) && !waiter.wants_owner(), "a worse one");
    waiter.handle_nudge(at(900));
    assert!(asks(&mut waiter), "a nudge is worth a look");
}

/// A timer that comes too early changes nothing; at its time it makes the look.
#[test]
fn looks_are_made_at_their_time() {
    let mut waiter = standing(true, place(0, None));
    waiter.handle_timeout(at(50));
    assert!(!asks(&mut waiter));
    waiter.handle_timeout(at(51));
    assert!(asks(&mut waiter));
}

/// The first look without an answer is repeated after a grace; after the second the next node is gone to.
#[test]
fn one_lost_answer_costs_no_place() {
    let mut waiter = standing(true, place(0, None));
    waiter.handle_timeout(at(51));
    assert!(asks(&mut waiter));
    waiter.handle_timeout(at(251));
    assert_eq!(waiter.poll_timeout(), Some(at(251).after(GRACE)));
    assert!(!waiter.wants_owner());

    waiter.handle_timeout(at(251).after(GRACE));
    assert!(asks(&mut waiter));
    waiter.handle_timeout(at(900));
    assert!(waiter.wants_owner());
    assert_eq!(waiter.node(), waiter.ranks.as_slice()[1]);
}

/// A node that is full for the moment is asked again after an eighth of a beat, at the same place.
#[test]
fn a_full_node_is_asked_again_soon() {
    let mut waiter = standing(true, place(0, None));
    waiter.handle_timeout(at(51));
    let send = waiter.poll_send().expect("a look");
    waiter.handle_sent(send.call, Err(NotSent::Backlog), at(60));
    let pause = waiter.poll_timeout().expect("a look").since(at(60)).as_millis();
    assert!((126..=131).contains(&pause), "{pause} ms");
    assert!(waiter.doubt().is_answered(), "nothing was sent");
}

/// Answers to calls of an earlier owner say nothing of the present one.
#[test]
fn answers_to_earlier_owners_are_ignored() {
    let mut waiter = asking();
    let (early, _) = drain(&mut waiter, C1, at(0)).remove(0);
    waiter.handle_timeout(at(200));
    waiter.supply(owner(2), false, at(300));
    let calls = drain(&mut waiter, C1, at(300));
    waiter.handle_reply(early, C1, Reply::Voted, at(301));
    assert_eq!(waiter.poll_event(), None);
    assert!(!waiter.doubt().is_answered(), "{calls:?}");

    // Nor is a call of theirs, sent late, one of its own.
    let before = waiter.doubt();
    waiter.handle_sent(early, Ok(C2), at(302));
    assert_eq!(waiter.doubt(), before);
}

/// What a failed round says of a claim_failure: whether a better node answered, whether anybody refused, whether one holder shows,
/// and the shortest life that was told.
#[test]
fn a_setback_is_read_from_the_round() {
    let mut round = Round::new(Quorum::of(3).unwrap(), at(0));
    let waiter = at_the_second();
    let best = waiter.ranks.as_slice()[0];
    let free = ClaimFailure { best: true, refused: false, holder: false, remaining: None };
    assert_eq!(waiter.claim_failure(&round), free);

    let holder = held_for(70, HolderValue::Owner(owner(8))).expect("a holder");
    round.record(best, Reply::Held(holder), at(1));
    let refused =
        ClaimFailure { best: false, refused: true, holder: true, remaining: Some(Duration::from_millis(70)) };
    assert_eq!(waiter.claim_failure(&round), refused);
    let first = standing(false, place(0, None));
    assert!(first.claim_failure(&round).best, "no node is better than the best");
}

/// Who gives its vote back stands aside for its pause, and up to 40 ms more.
#[test]
fn who_gives_its_vote_back_stands_aside() {
    let mut waiter = voted();
    let claim_failure = ClaimFailure { best: false, refused: true, holder: true, remaining: None };
    waiter.claim_failed(waiter.doubt(), claim_failure, at(10));
    let aside = waiter.poll_timeout().expect("a pause").since(at(10));
    assert!(
        aside >= waiter.retry_pause() && aside < waiter.retry_pause() + Duration::from_millis(40),
        "{aside:?}"
    );
}

/// The pause after so many failed claims, when the last of them told that the key lives so much longer.
fn paused(failures: u8, left: Option<u64>) -> Duration {
    let mut waiter = asking();
    waiter.habits.hand_over = Ttl::unchecked(Duration::from_secs(60));
    let (mut call, _) = drain(&mut waiter, C1, at(0)).remove(0);
    waiter.handle_reply(call, C1, Reply::Voted, at(0));
    for failure in 1..=failures {
        let remaining = left.filter(|_| failure == failures).map(Duration::from_millis);
        waiter.claim_failed(waiter.doubt(), ClaimFailure { remaining, ..held_by_one() }, at(0));
        waiter.supply(owner(failure + 1), false, at(0));
        (call, _) = drain(&mut waiter, C1, at(0)).remove(0);
        waiter.handle_reply(call, C1, Reply::Voted, at(0));
        if failure < failures {
            waiter.handle_timeout(waiter.poll_timeout().expect("a pause"));
        }
    }
    waiter.poll_timeout().expect("a pause").since(at(0))
}

/// Pauses double; one that would outlast the key is cut to the longest that does not, the first at least.
#[test]
fn pauses_do_not_outlast_the_key() {
    let first = paused(1, None);
    assert_eq!(first, FIRST_RETRY);
    assert_eq!((paused(2, None), paused(4, None)), (first * 2, first * 8));
    let (two, first_millis) = (first.as_millis() as u64 * 2, first.as_millis() as u64);
    assert_eq!(paused(4, Some(two)), first * 2, "as long as the key lives is not longer");
    assert_eq!(paused(4, Some(two - 1)), first);
    assert_eq!(paused(4, Some(0)), first);
    assert_eq!(paused(4, Some(first_millis * 100)), first * 8);
    assert_eq!(paused(1, Some(0)), first);
}

/// What is drawn differs from time to time and stays below its limit, so that those who failed together do not go on together.
#[test]
fn what_is_drawn_differs() {
    let mut waiter = asking();
    let drawn: Vec<_> = (0..100).map(|_| waiter.draw(40)).collect();
    assert!(drawn.iter().all(|number| *number < 40));
    let kinds: std::collections::BTreeSet<_> = drawn.iter().collect();
    assert!(kinds.len() > 30, "{drawn:?}");
    let odd = drawn.iter().filter(|number| *number % 2 == 1).count();
    assert!((30..=70).contains(&odd), "a choice of two is one: {odd}");
}

/// Rule 3: a take-over without an answer leaves neither owner behind: both are released, and owed until that is answered.
#[test]
fn a_take_over_without_an_answer_releases_both_owners() {
    let mut waiter = voted();
    waiter.claim_failed(waiter.doubt(), held_by_one(), at(3));
    waiter.supply(owner(2), false, at(3));
    drain(&mut waiter, C1, at(3));

    waiter.handle_timeout(at(203));

    let mut released = Vec::new();
    while let Some(send) = waiter.poll_send() {
        assert!(send.operation.releases() && send.debt.is_some(), "{send:?}");
        released.extend(send.operation.owner());
    }
    assert_eq!(released, [owner(1), owner(2)]);
}
