use std::time::Duration;

use crate::protocol::message::{ClientId, ConnectionId, Holder, Key, NotSent, Owner, Reply, Unknown};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;
use crate::protocol::validity::{Drift, Ttl};

use super::ledger::*;
use super::*;

const C1: ConnectionId = ConnectionId(1);
const C2: ConnectionId = ConnectionId(2);

fn at(millis: u64) -> Instant {
    Instant::default().after(Duration::from_millis(millis))
}

fn ttl() -> Ttl {
    Ttl::new(Duration::from_secs(10), Drift::default(), Duration::from_secs(10)).unwrap()
}

fn lost() -> Reply {
    Reply::Unknown(Unknown::ConnectionLost("reset".into()))
}

fn unanswered_set() -> Doubt {
    let mut doubt = Doubt::default();
    doubt.wrote(C1, at(0), ttl());
    doubt
}

fn debt(doubt: Doubt, owner: u8) -> Debt {
    let owner = Owner::from_bytes([owner; 16]);
    Debt::new(NodeId::new(0), Key::new(*b"k"), owner, doubt, ttl(), Drift::default())
}

/// Rule 4: on the set's own connection any answer settles; on a later one only "deleted".
#[test]
fn not_yours_on_another_connection_settles_nothing() {
    let doubt = unanswered_set();

    assert!(doubt.is_settled_by(C1, &Reply::Absent));
    assert!(doubt.is_settled_by(C1, &Reply::Granted));
    assert!(doubt.is_settled_by(C2, &Reply::Granted));
    for reply in [Reply::Absent, Reply::NotOurs, Reply::Held(Holder::UNNAMED), lost()] {
        assert!(!doubt.is_settled_by(C2, &reply), "{reply:?}");
    }
    assert!(!doubt.is_settled_by(C1, &Reply::Refused("MISCONF".into())));
}

/// Who has left the queue, as an answer says, owes only for the key that a late look may have brought.
#[test]
fn leaving_the_line_shortens_a_debt() {
    let (mut ledger, hand_over) = (Ledger::default(), Ttl::unchecked(Duration::from_millis(500)));
    let mut doubt = Doubt::default();
    doubt.looked(C1, at(0), hand_over, Duration::from_secs(60));
    let owner = Owner::from_bytes([1; 16]);
    let debt = Debt::new(NodeId::new(0), Key::new(*b"k"), owner, doubt, hand_over, Drift::default());
    let debt = debt.in_queue(ClientId::from_bytes([2; 16]), hand_over);
    ledger.owe(debt, at(10));
    let first = ledger.poll_send(at(10)).unwrap();
    ledger.handle_reply(first.debt, C2, &lost(), at(20));
    assert!(ledger.poll_send(at(1_600)).is_some(), "no answer, no end before the entry's");

    ledger.handle_reply(first.debt, C2, &Reply::Absent, at(1_610));

    assert_eq!(ledger.ends(first.debt), Some(at(1_610 + 500 + 7 + 1_000)));
}

/// Rule 4: a frozen node executes an unanswered set whenever it goes on, so the debt counts neither from the set nor from the
/// release while the node is silent.
#[test]
fn an_unanswered_set_is_owed_for_as_long_as_its_node_is_silent() {
    let mut ledger = Ledger::default();
    ledger.owe(debt(unanswered_set(), 1), at(60_000));
    let refused = Reply::NotSent(NotSent::Suspect);
    for now in (60_000..300_000).step_by(1_000).map(at) {
        let settlement = ledger.poll_send(now).expect("still owed");
        ledger.handle_reply(settlement.debt, ConnectionId(0), &refused, now);
    }

    ledger.handle_usable(NodeId::new(0), at(300_000));
    let settlement = ledger.poll_send(at(300_000)).expect("due at once");
    ledger.handle_reply(settlement.debt, C2, &Reply::Granted, at(300_001));

    assert_eq!(ledger.settled(), Settled { answered: 1, ..Settled::default() });
}

/// Rule 4: the first answer shows that the node executes commands, and later ones do not prolong the debt. Without any, it
/// ends after the longest silence.
#[test]
fn the_first_answer_dates_the_end_of_a_debt() {
    let mut ledger = Ledger::default();
    ledger.owe(debt(unanswered_set(), 1), at(60_000));
    let id = ledger.poll_send(at(60_000)).unwrap().debt;
    assert_eq!(ledger.ends(id), Some(at(60_000).after(LONGEST_SILENCE)));

    ledger.handle_reply(id, C2, &Reply::Absent, at(70_000));
    assert_eq!(ledger.ends(id), Some(at(70_000 + 10_000 + 102 + 1_000)));
    ledger.poll_send(at(75_000)).unwrap();
    ledger.handle_reply(id, C2, &Reply::Absent, at(75_000));

    assert_eq!(ledger.ends(id), Some(at(70_000 + 10_000 + 102 + 1_000)));
    assert_eq!(ledger.balance(), Balance { open: 1, settled: Settled::default() });
    assert_eq!(ledger.poll_send(at(81_102)), None);
    assert_eq!(ledger.balance(), Balance { open: 0, settled: Settled { expired: 1, ..Settled::default() } });
}

/// A waiter owes for a vote, which is short, and for its claim that was never answered: the debt lasts for the longer life.
#[test]
fn the_longest_life_asked_for_dates_the_end() {
    let mut ledger = Ledger::default();
    let vote = Ttl::unchecked(Duration::from_millis(500));
    let owner = Owner::from_bytes([1; 16]);
    let owed = Debt::new(NodeId::new(0), Key::new(*b"k"), owner, unanswered_set(), vote, Drift::default());
    ledger.owe(owed, at(60_000));
    let id = ledger.poll_send(at(60_000)).unwrap().debt;

    ledger.handle_reply(id, C2, &Reply::Absent, at(70_000));
    assert_eq!(ledger.ends(id), Some(at(70_000 + 10_000 + 102 + 1_000)));
}

/// A set that was answered is executed: its key ends with its TTL, whether or not the node says anything.
#[test]
fn an_answered_set_is_owed_no_longer_than_its_key() {
    let mut ledger = Ledger::default();
    let mut doubt = unanswered_set();
    doubt.answered(C1, &Reply::Granted);

    ledger.owe(debt(doubt, 1), at(5_000));

    assert_eq!(ledger.ends(DebtId(0)), Some(at(10_000 + 102 + 1_000)));
}

/// An answered set is no doubt any more: "not yours" settles it on every connection.
#[test]
fn answered_set_is_settled_anywhere() {
    let mut doubt = unanswered_set();
    doubt.answered(C1, &Reply::Granted);

    assert!(!doubt.is_clear(), "the key is there");
    assert!(doubt.is_settled_by(C2, &Reply::Absent));
    assert!(doubt.is_settled_by(C2, &Reply::Granted));
}

/// With a granted key and an old unanswered set, "deleted" may speak of the granted one alone.
#[test]
fn deleted_does_not_settle_an_older_unanswered_set() {
    let mut doubt = unanswered_set();
    doubt.wrote(C2, at(5), ttl());
    doubt.answered(C2, &Reply::Granted);

    assert!(!doubt.is_settled_by(C2, &Reply::Granted));
    assert!(!doubt.is_settled_by(C2, &Reply::Absent));
}

/// The same while the newer set is unanswered: its release, on its own connection, deletes what it made.
#[test]
fn deleted_does_not_settle_an_older_set_behind_an_unanswered_one() {
    let mut doubt = unanswered_set();
    doubt.wrote(C2, at(5), ttl());

    assert!(!doubt.is_settled_by(C2, &Reply::Granted));
    doubt.answered(C2, &Reply::Held(Holder::UNNAMED));
    assert!(doubt.is_settled_by(C2, &Reply::Granted), "only the older one can have made it");
}

#[test]
fn refused_or_held_set_leaves_no_doubt() {
    for reply in
        [Reply::Held(Holder::UNNAMED), Reply::Refused("OOM".into()), Reply::NotSent(NotSent::Suspect)]
    {
        let mut doubt = unanswered_set();
        doubt.answered(C1, &reply);
        assert!(doubt.is_clear() && doubt.is_written());
    }
    let mut doubt = unanswered_set();
    doubt.answered(C1, &lost());
    assert!(!doubt.is_clear());
}

/// What a node names to us may be there for a TTL, and nothing is on its way.
#[test]
fn named_owner_may_be_there() {
    let doubt = Doubt::named(at(7), ttl());

    assert!(doubt.is_written() && doubt.is_answered() && !doubt.is_clear());
    assert!(doubt.is_settled_by(C1, &Reply::Absent));
    assert_eq!(debt(doubt, 1).ends(), at(7 + 10_000 + 102 + 1_000));
}

/// What another process handed on may also still be on its way: only "deleted" settles it.
#[test]
fn owed_owner_may_be_on_its_way() {
    let doubt = Doubt::owed(at(7), ttl());

    assert!(doubt.is_written() && !doubt.is_answered() && !doubt.is_clear());
    assert!(doubt.is_settled_by(C1, &Reply::Granted) && !doubt.is_settled_by(C1, &Reply::Absent));
    assert_eq!(debt(doubt, 1).ends(), at(7 + 10_000 + 102 + 1_000));
}

/// Rule 4: repeated with growing pauses, and no longer than last send + TTL + margin.
#[test]
fn repeats_with_growing_pauses_until_its_end() {
    let mut ledger = Ledger::default();
    let debt = debt(unanswered_set(), 1);
    let ends = debt.ends();
    assert_eq!(ends, at(10_000 + 102 + 1_000));
    ledger.owe(debt, at(0));

    let mut sends = Vec::new();
    let mut now = at(0);
    while let Some(wake) = ledger.poll_timeout() {
        now = now.max(wake);
        while let Some(settlement) = ledger.poll_send(now) {
            sends.push(now);
            ledger.handle_reply(settlement.debt, C2, &Reply::Absent, now);
        }
    }

    assert_eq!(sends[..4], [at(0), at(50), at(150), at(350)]);
    assert!(sends.len() > 10 && sends.last().is_some_and(|last| *last < ends));
    assert_eq!(now, ends);
    assert_eq!(ledger.settled(), Settled { expired: 1, ..Settled::default() });
}

/// A node that takes nothing is looked at with one debt, and gets all of them once it is back.
#[test]
fn blocked_node_is_probed_by_one_debt() {
    let mut ledger = Ledger::default();
    for owner in 0..10 {
        ledger.owe(debt(unanswered_set(), owner), at(0));
    }

    let first = ledger.poll_send(at(0)).unwrap();
    ledger.handle_reply(first.debt, ConnectionId(0), &Reply::NotSent(NotSent::Suspect), at(0));
    assert_eq!(ledger.poll_send(at(0)), None);
    assert_eq!(ledger.poll_timeout(), Some(at(1_000)));
    assert!(ledger.poll_send(at(1_000)).is_some());
    assert_eq!(ledger.poll_send(at(1_000)), None);

    ledger.handle_usable(NodeId::new(0), at(1_200));
    let mut settled = 0;
    while let Some(settlement) = ledger.poll_send(at(1_200)) {
        ledger.handle_reply(settlement.debt, C2, &Reply::Granted, at(1_200));
        settled += 1;
    }
    assert_eq!((settled, ledger.open()), (9, 1), "the probe itself is still in flight");
    assert_eq!(ledger.settled(), Settled { answered: 9, ..Settled::default() });
}

/// Nobody says that a full node has room again, so it is tried soon: a key left there meanwhile stands in the way
/// of everybody.
#[test]
fn full_node_is_tried_again_soon() {
    let mut ledger = Ledger::default();
    ledger.owe(debt(unanswered_set(), 1), at(0));

    let first = ledger.poll_send(at(0)).unwrap();
    ledger.handle_reply(first.debt, ConnectionId(0), &Reply::NotSent(NotSent::Backlog), at(0));
    assert_eq!(ledger.poll_send(at(0)), None);
    assert_eq!(ledger.poll_timeout(), Some(at(50)));
    assert!(ledger.poll_send(at(50)).is_some());
}

/// Bounds: a few hundred in flight, and with no room the debt that ends first is given up and counted.
#[test]
fn bounds_hold() {
    let mut ledger = Ledger::default();
    for extra in 0..MAX_DEBTS_PER_NODE as u64 + 3 {
        let mut doubt = Doubt::default();
        doubt.wrote(C1, at(extra), ttl());
        ledger.owe(debt(doubt, 0), at(extra));
    }
    assert_eq!(ledger.open_on(NodeId::new(0)), MAX_DEBTS_PER_NODE);
    assert_eq!(ledger.settled().dropped, 3);

    let now = at(MAX_DEBTS_PER_NODE as u64 + 3).min(at(9_000));
    let mut in_flight = Vec::new();
    while let Some(settlement) = ledger.poll_send(now) {
        in_flight.push(settlement.debt);
    }
    assert_eq!(in_flight.len(), MAX_IN_FLIGHT);
    assert_eq!(in_flight[0], DebtId(3), "the first three were given up");
    // What is due has to wait for an answer, and nobody polls for it meanwhile.
    assert!(ledger.poll_timeout().is_some_and(|wake| wake > now));
    ledger.handle_reply(in_flight[0], C1, &Reply::Absent, now);
    assert!(ledger.poll_send(now).is_some());
}

#[test]
fn unknown_debts_and_nodes_are_ignored() {
    let mut ledger = Ledger::default();
    ledger.handle_reply(DebtId(7), C1, &Reply::Granted, at(0));
    ledger.handle_usable(NodeId::new(3), at(0));
    assert_eq!((ledger.open(), ledger.poll_timeout(), ledger.poll_send(at(0))), (0, None, None));
    assert_eq!(ledger.open_on(NodeId::new(3)), 0);
}
