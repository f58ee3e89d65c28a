//! Every vote, in every order, with the timeout at every point: what a round decides, and when.
//!
//! Enumerating is cheaper than drawing: four outcomes and the timeout make 4⁵ × 6! = 737 280 rounds of five nodes.
//! The expected verdict is stated without counting votes the way the round does: by trying every way in which the
//! answers still missing could turn out.

use std::time::Duration;

use redquorum::protocol::message::{Holder, Reply, Unknown};
use redquorum::protocol::quorum::{NodeId, Quorum};
use redquorum::protocol::round::{Round, Verdict};
use redquorum::protocol::time::Instant;

/// The outcomes that a round must tell apart: a yes, a no that knows of a holder, a no, a doubt.
const OUTCOMES: usize = 4;

fn reply(outcome: usize) -> Reply {
    match outcome {
        0 => Reply::Granted,
        1 => Reply::Held(Holder::UNNAMED),
        2 => Reply::Refused("OOM".into()),
        _ => Reply::Unknown(Unknown::Timeout(Duration::ZERO)),
    }
}

/// What is known of one node's vote at some point of a round.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Yes,
    NotYes,
    Open,
}

/// The definition: a round is reached when every way the open votes could turn out has a majority of yes, out of
/// reach when none has, and pending in between.
fn verdict_by_definition(known: &[Known]) -> Verdict {
    let has_majority = |case: usize| {
        let yes = |(node, known): (usize, &Known)| match known {
            Known::Yes => true,
            Known::NotYes => false,
            Known::Open => case & (1 << node) != 0,
        };
        let votes = known.iter().enumerate().filter(|vote| yes(*vote)).count();
        2 * votes > known.len()
    };
    let cases = 0..1_usize << known.len();
    if cases.clone().all(has_majority) {
        Verdict::Reached
    } else if !cases.clone().any(has_majority) {
        Verdict::OutOfReach
    } else {
        Verdict::Pending
    }
}

/// All verdicts by the definition, by the state of each node in base 3: looked up, since they are needed often.
fn verdicts(nodes: usize) -> Vec<Verdict> {
    let states = [Known::Yes, Known::NotYes, Known::Open];
    (0..3_usize.pow(nodes as u32))
        .map(|code| {
            let known: Vec<_> = (0..nodes).map(|node| states[code / 3_usize.pow(node as u32) % 3]).collect();
            verdict_by_definition(&known)
        })
        .collect()
}

fn look_up(verdicts: &[Verdict], known: &[Known]) -> Verdict {
    verdicts[known.iter().rev().fold(0, |code, known| code * 3 + *known as usize)]
}

/// Every order of `count` arrivals, by exchange (Heap's algorithm).
fn for_each_order(count: usize, mut visit: impl FnMut(&[usize])) {
    fn exchange(length: usize, order: &mut [usize], visit: &mut impl FnMut(&[usize])) {
        if length <= 1 {
            return visit(order);
        }
        for place in 0..length {
            exchange(length - 1, order, visit);
            order.swap(if length.is_multiple_of(2) { place } else { 0 }, length - 1);
        }
    }
    let mut order: Vec<usize> = (0..count).collect();
    exchange(count, &mut order, &mut visit);
}

/// What an arrival tells: the number `nodes` stands for the timeout, after which silence is no yes. A node answers
/// once.
fn learn(known: &mut [Known], votes: &[usize], arrival: usize) {
    match known.get_mut(arrival) {
        Some(open @ Known::Open) => *open = if votes[arrival] == 0 { Known::Yes } else { Known::NotYes },
        Some(_) => {}
        None => {
            known.iter_mut().filter(|known| **known == Known::Open).for_each(|open| *open = Known::NotYes)
        }
    }
}

/// Plays one round: the answers, and the timeout, in this order.
fn play(verdicts: &[Verdict], votes: &[usize], order: &[usize]) {
    let nodes = votes.len();
    let mut round = Round::new(Quorum::of(nodes).unwrap(), Instant::default());
    let mut known = [Known::Open; 5];
    let mut expected = Verdict::Pending;

    for arrival in order.iter().copied() {
        let brought = match votes.get(arrival) {
            Some(outcome) => round.record(NodeId::new(arrival), reply(*outcome), Instant::default()),
            None => round.expire(Instant::default()),
        };

        learn(&mut known[..nodes], votes, arrival);
        let before = expected;
        if before == Verdict::Pending {
            expected = look_up(verdicts, &known[..nodes]);
        }
        assert_eq!(round.verdict(), expected, "votes {votes:?}, order {order:?}, at {arrival}");
        assert_eq!(brought, expected != before, "votes {votes:?}, order {order:?}, at {arrival}");
    }
    assert_ne!(round.verdict(), Verdict::Pending, "undecided in the end: votes {votes:?}, order {order:?}");
}

/// Plays every combination of votes in every order; returns how many rounds that were.
fn play_all(nodes: usize) -> usize {
    let verdicts = verdicts(nodes);
    let mut played = 0;
    for_each_order(nodes + 1, |order| {
        for code in 0..OUTCOMES.pow(nodes as u32) {
            let mut votes = [0; 5];
            for (node, vote) in votes.iter_mut().enumerate() {
                *vote = code / OUTCOMES.pow(node as u32) % OUTCOMES;
            }
            play(&verdicts, &votes[..nodes], order);
            played += 1;
        }
    });
    played
}

/// Rules 5 and 6: a round is decided at the earliest moment at which nothing still missing could change it, never
/// later, never twice, and unknown is never a yes.
#[test]
fn every_round_is_decided_at_the_earliest_moment() {
    let played: Vec<usize> = (1..=5).map(play_all).collect();

    assert_eq!(played, [8, 96, 1_536, 30_720, 737_280]);
}
