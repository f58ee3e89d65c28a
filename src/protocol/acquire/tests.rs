//! One acquisition, by hand.

use super::*;
use crate::protocol::message::{HolderValue, NotSent, Owner, Uncounted};
use crate::protocol::restart::Standing;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::default().after(ms(millis))
}

fn three() -> Quorum {
    Quorum::of(3).unwrap()
}

/// Five seconds of waiting in the queue, with pauses from 20 to 250 ms.
fn rules() -> Rules {
    Rules {
        quorum: three(),
        wait: Wait::AtMost(ms(5_000)),
        backoff: Backoff::new(ms(20), ms(250)),
        queues: true,
        contended: false,
    }
}

/// The same without a queue.
fn alone() -> Rules {
    Rules { queues: false, ..rules() }
}

/// An acquisition that began at 1 s.
fn begun(rules: Rules) -> Acquisition {
    Acquisition::new(rules, at(1_000))
}

fn holder(byte: u8, remaining: Option<Duration>) -> Holder {
    Holder { value: HolderValue::Owner(Owner::from_bytes([byte; 16])), remaining }
}

fn held(byte: u8) -> Reply {
    Reply::Held(holder(byte, None))
}

fn failed(failure: Failure, replies: &[Reply]) -> Failed {
    let mut round = Round::new(three(), at(1_000));
    for (node, reply) in replies.iter().enumerate() {
        round.record(NodeId::new(node), reply.clone(), at(1_001));
    }
    Failed { failure, round, at: at(1_002) }
}

/// One holder has two nodes.
fn contended() -> Failed {
    failed(Failure::Contended, &[held(1), held(1)])
}

fn unavailable() -> Failed {
    failed(Failure::Unavailable, &[Reply::NotSent(NotSent::Suspect), Reply::NotSent(NotSent::Suspect)])
}

fn young() -> Failed {
    let vote = || Reply::Uncounted(Uncounted::TooYoung { until: at(3_000) });
    failed(Failure::TooYoung { until: at(3_000) }, &[vote(), vote()])
}

fn spent() -> Failed {
    failed(Failure::Unavailable, &[Reply::CounterExhausted, Reply::CounterExhausted])
}

fn lost() -> Reply {
    Reply::Unknown(Unknown::Timeout(ms(200)))
}

const QUEUE: Step = Step::Queue { until: Instant::from_nanos(6_000_000_000) };
const SET: Step = Step::Attempt(Asking::Set);

/// How long it sleeps from `now` on.
fn slept(acquisition: &Acquisition, now: Instant) -> Duration {
    let Step::Sleep(until) = acquisition.step() else { panic!("{:?}", acquisition.step()) };
    until.since(now)
}

/// One that has made an attempt in vain, and stands in the queue.
fn queueing() -> Acquisition {
    let mut acquisition = begun(rules());
    acquisition.handle_failure(contended(), 0, at(1_002));
    assert_eq!(acquisition.step(), QUEUE);
    acquisition
}

/// The fast path first; contention leads into the queue, with no pause before.
#[test]
fn contention_leads_into_the_queue() {
    let acquisition = begun(rules());
    assert_eq!(acquisition.step(), SET);
    queueing();
}

/// What the key's last release told leads there at once, but only those who may wait at all.
#[test]
fn a_contended_key_is_queued_for_at_once() {
    let hinted = Rules { contended: true, ..rules() };
    assert_eq!(begun(hinted).step(), QUEUE);
    for barging in [
        Rules { queues: false, ..hinted },
        Rules { wait: Wait::No, ..hinted },
        Rules { wait: Wait::AtMost(Duration::ZERO), ..hinted },
    ] {
        assert_eq!(begun(barging).step(), SET, "{barging:?}");
    }
    let unlimited = begun(Rules { wait: Wait::Unlimited, ..hinted });
    assert_eq!(unlimited.step(), Step::Queue { until: Instant::FAR_FUTURE });
}

/// An outage is paused for, and asked again as before: the queue is for contention.
#[test]
fn an_outage_is_paused_for() {
    let mut acquisition = begun(rules());
    acquisition.handle_failure(unavailable(), 0, at(1_002));
    assert_eq!(slept(&acquisition, at(1_002)), ms(10), "half of the first bound");
    acquisition.handle_timeout(at(1_011));
    assert_eq!(slept(&acquisition, at(1_002)), ms(10), "too early");
    acquisition.handle_timeout(at(1_012));
    assert_eq!(acquisition.step(), SET);
}

/// Without a queue, contention is paused for as well; then a script asks, which tells how long the holder's key lives.
#[test]
fn without_a_queue_later_attempts_are_claims() {
    let mut acquisition = begun(alone());
    acquisition.handle_failure(contended(), 0, at(1_002));
    assert_eq!(slept(&acquisition, at(1_002)), ms(10));
    acquisition.handle_timeout(at(1_012));
    assert_eq!(acquisition.step(), Step::Attempt(Asking::Claim));
}

/// Pauses go by what stood in the way: a holder by its remaining life, contenders by a short bound from zero on; none is
/// shorter than the least.
#[test]
fn pauses_follow_the_cause() {
    let ends_soon = || Reply::Held(holder(1, Some(ms(3))));
    for (failure, random, pause) in [
        (failed(Failure::Contended, &[ends_soon(), ends_soon()]), 0, ms(4)),
        (failed(Failure::Contended, &[held(1), held(2), Reply::Granted]), 0, LEAST_PAUSE),
        (failed(Failure::Contended, &[held(1), held(2), Reply::Granted]), u64::MAX, ms(5)),
        (failed(Failure::Exhausted { remaining: ms(1) }, &[]), 0, ms(10)),
    ] {
        let mut acquisition = begun(alone());
        acquisition.handle_failure(failure, random, at(1_002));
        let slept = slept(&acquisition, at(1_002));
        assert!(slept <= pause && slept + ms(1) > pause, "{slept:?}, not {pause:?}");
    }
}

/// The last pause ends with the wait, the last attempt follows it at once, and its failure ends the wait.
#[test]
fn the_last_pause_ends_with_the_wait() {
    let mut acquisition = begun(Rules { wait: Wait::AtMost(ms(15)), ..alone() });
    acquisition.handle_failure(contended(), 0, at(1_010));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_015)));
    acquisition.handle_timeout(at(1_015));
    assert!(matches!(acquisition.step(), Step::Attempt(_)));
    acquisition.handle_failure(unavailable(), 0, at(1_020));
    assert_eq!(acquisition.step(), Step::Fail);

    let end = acquisition.into_end();
    assert_eq!((end.waited, end.last.failure, end.holder), (Some(ms(20)), Failure::Unavailable, None));
}

/// The wait ends at its deadline, and not before.
#[test]
fn a_failure_at_the_deadline_ends_the_wait() {
    for (now, over) in [(5_999, false), (6_000, true)] {
        let mut acquisition = begun(rules());
        acquisition.handle_failure(contended(), 0, at(now));
        assert_eq!(acquisition.step() == Step::Fail, over);

        let mut acquisition = queueing();
        acquisition.handle_claim_failed(unavailable(), at(now));
        assert_eq!(acquisition.step() == Step::Fail, over);

        let mut acquisition = queueing();
        acquisition.handle_timeout(at(now));
        assert_eq!(acquisition.step() == Step::Fail, over);

        let mut acquisition = queueing();
        acquisition.handle_unable(&lost(), 0, at(now));
        assert_eq!(acquisition.step() == Step::Fail, over);
    }
}

/// Who does not wait asks once, and is told the cause itself; one who waits for no time at all has waited.
#[test]
fn who_does_not_wait_asks_once() {
    let mut acquisition = begun(Rules { wait: Wait::No, ..rules() });
    acquisition.handle_failure(contended(), 0, at(1_000));
    assert_eq!(acquisition.step(), Step::Fail);
    assert_eq!(acquisition.into_end().waited, None);

    let mut acquisition = begun(Rules { wait: Wait::AtMost(Duration::ZERO), ..rules() });
    acquisition.handle_failure(contended(), 0, at(1_002));
    assert_eq!(acquisition.into_end().waited, Some(ms(2)));
}

/// Where no token is left, waiting does not help: neither after an attempt nor after a claim from the queue.
#[test]
fn spent_tokens_are_final() {
    assert!(spent().is_final() && !unavailable().is_final());
    let elsewhere = Failed { failure: Failure::Contended, ..spent() };
    assert!(!elsewhere.is_final(), "only if nothing else stood in the way");

    let mut acquisition = begun(rules());
    acquisition.handle_failure(spent(), 0, at(1_002));
    assert_eq!(acquisition.step(), Step::Fail);
    let mut claiming = queueing();
    claiming.handle_standing(NodeId::new(1), Some(holder(7, None)));
    claiming.handle_claim_failed(spent(), at(1_500));
    assert_eq!(claiming.step(), Step::Fail);
    for end in [acquisition.into_end(), claiming.into_end()] {
        assert!(end.waited.is_none() && end.holder.is_none() && end.last.is_final());
    }
}

/// A claim that failed otherwise leaves the waiter in the queue.
#[test]
fn a_failed_claim_stays_in_the_queue() {
    let mut acquisition = queueing();
    for failure in [contended(), unavailable()] {
        acquisition.handle_claim_failed(failure, at(2_000));
        assert_eq!(acquisition.step(), QUEUE);
    }
}

/// A queue that could not be reached is tried again at the next contention; one that was refused never is, and attempts are
/// claims from then on.
#[test]
fn a_refused_queue_is_not_tried_again() {
    for (reply, again) in [
        (Reply::NotSent(NotSent::Suspect), true),
        (lost(), true),
        (Reply::Unknown(Unknown::ConnectionLost("gone".into())), true),
        (Reply::Unknown(Unknown::Error("in the script".into())), false),
        (Reply::Refused("NOPERM".into()), false),
        (Reply::QueueFull, false),
    ] {
        let mut acquisition = queueing();
        acquisition.handle_unable(&reply, 0, at(2_000));
        let pause = slept(&acquisition, at(2_000));
        assert_eq!(pause, ms(10), "the pause is by the last failure");
        acquisition.handle_timeout(at(2_010));
        let asking = if again { Asking::Set } else { Asking::Claim };
        assert_eq!(acquisition.step(), Step::Attempt(asking), "{reply:?}");
        acquisition.handle_failure(contended(), 0, at(2_012));
        assert_eq!(acquisition.step() == QUEUE, again, "{reply:?}");
    }
}

/// One that was led into the queue by a hint pauses as for a holder of whom nothing is known.
#[test]
fn without_any_failure_the_pause_is_for_a_holder() {
    let mut acquisition = begun(Rules { contended: true, ..rules() });
    acquisition.handle_unable(&lost(), u64::MAX, at(1_200));
    let pause = slept(&acquisition, at(1_200));
    assert!(pause > ms(19) && pause <= ms(20), "{pause:?}");
}

/// At the end the last failure is told; and who holds the lock by the node of the queue, if contention was the last.
#[test]
fn the_end_tells_the_holder_that_the_queue_knew() {
    let told = |last: Option<Failed>, holder: Option<Holder>| {
        let mut acquisition = begun(Rules { contended: true, ..rules() });
        acquisition.handle_standing(NodeId::new(1), holder);
        if let Some(last) = last {
            acquisition.handle_claim_failed(last, at(2_000));
        }
        acquisition.handle_timeout(at(6_000));
        acquisition.into_end()
    };
    let known = Some((NodeId::new(1), holder(7, None)));
    assert_eq!(told(Some(contended()), Some(holder(7, None))).holder, known);
    assert_eq!(told(Some(contended()), None).holder, None);
    assert_eq!(told(Some(unavailable()), Some(holder(7, None))).holder, None);

    let never_asked = told(None, Some(holder(7, None)));
    assert_eq!((never_asked.holder, never_asked.waited), (known, Some(ms(5_000))));
    assert_eq!((never_asked.last.failure, never_asked.last.round.pending()), (Failure::Contended, 3));
    assert_eq!((never_asked.last.at, never_asked.last.round.started()), (at(1_000), at(1_000)));
}

/// What a queue told that was left since is not told any more; nor what comes from one that the acquisition is not in.
#[test]
fn a_queue_that_was_left_tells_nothing() {
    let mut acquisition = queueing();
    acquisition.handle_standing(NodeId::new(1), Some(holder(7, None)));
    acquisition.handle_unable(&lost(), 0, at(2_000));
    acquisition.handle_standing(NodeId::new(1), Some(holder(7, None)));
    acquisition.handle_timeout(at(3_000));
    acquisition.handle_failure(contended(), 0, at(7_000));
    assert_eq!(acquisition.into_end().holder, None);
}

/// One that failed by the restart delay and is about to look at the nodes.
fn looking() -> Acquisition {
    let mut acquisition = begun(rules());
    acquisition.handle_failure(young(), 0, at(1_002));
    assert_eq!(acquisition.step(), Step::Look);
    acquisition
}

/// A wait that ends before the delay does fails at once, told by the delay; one that ends with it does not.
#[test]
fn a_guard_that_outlasts_the_wait_fails_at_once() {
    let mut acquisition = looking();
    acquisition.handle_outlook(Outlook::Surely(at(6_001)), 0, at(1_002));
    assert_eq!(acquisition.step(), Step::Fail);
    let end = acquisition.into_end();
    assert_eq!((end.waited, end.last.failure), (None, Failure::TooYoung { until: at(3_000) }));

    let mut acquisition = looking();
    acquisition.handle_outlook(Outlook::Surely(at(6_000)), 0, at(1_002));
    assert_eq!(slept(&acquisition, at(1_002)), LOOK_AGAIN);
}

/// Until enough nodes count, the acquisition looks again every 250 ms, or sooner if the moment is known; then it asks at
/// once. It fails at the first look or not at all.
#[test]
fn guarded_nodes_are_looked_at_again_and_again() {
    let mut acquisition = looking();
    acquisition.handle_outlook(Outlook::Perhaps, 0, at(1_002));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_252)));
    acquisition.handle_timeout(at(1_251));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_252)), "too early");
    acquisition.handle_timeout(at(1_252));
    assert_eq!(acquisition.step(), Step::Look);
    acquisition.handle_outlook(Outlook::Surely(at(9_000)), 0, at(1_252));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_502)));
    acquisition.handle_timeout(at(1_502));
    acquisition.handle_outlook(Outlook::Surely(at(1_600)), 0, at(1_502));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_600)));
    acquisition.handle_timeout(at(1_600));
    acquisition.handle_outlook(Outlook::Open, 0, at(1_600));
    assert_eq!(acquisition.step(), SET);
}

/// The wait ends while nodes are too young: with a last attempt.
#[test]
fn a_guarded_wait_ends_with_an_attempt() {
    let mut acquisition = looking();
    acquisition.handle_outlook(Outlook::Perhaps, 0, at(5_900));
    assert_eq!(acquisition.step(), Step::Sleep(at(6_000)));
    acquisition.handle_timeout(at(6_000));
    acquisition.handle_outlook(Outlook::Perhaps, 0, at(6_000));
    assert_eq!(acquisition.step(), SET);
}

/// A claim from the queue that failed by the restart delay: nothing is claimed until the delay is over, and then the queue is
/// entered again. If the wait ends before, it fails at once.
#[test]
fn a_claim_that_failed_by_the_delay_waits_for_its_end() {
    let claimed = || {
        let mut acquisition = queueing();
        acquisition.handle_claim_failed(young(), at(1_010));
        assert_eq!(acquisition.step(), Step::Look);
        acquisition
    };
    let mut acquisition = claimed();
    acquisition.handle_outlook(Outlook::Surely(at(6_001)), 0, at(1_010));
    assert_eq!(acquisition.step(), Step::Fail);
    assert_eq!(acquisition.into_end().waited, None);

    let mut acquisition = claimed();
    acquisition.handle_outlook(Outlook::Surely(at(1_100)), 0, at(1_010));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_100)));
    acquisition.handle_timeout(at(1_100));
    acquisition.handle_outlook(Outlook::Perhaps, 0, at(1_100));
    assert_eq!(acquisition.step(), Step::Sleep(at(1_350)));
    acquisition.handle_timeout(at(1_350));
    acquisition.handle_outlook(Outlook::Open, 0, at(1_350));
    assert_eq!(acquisition.step(), QUEUE);

    let mut acquisition = queueing();
    acquisition.handle_claim_failed(young(), at(6_000));
    assert_eq!(acquisition.step(), Step::Fail, "the wait is over");
}

/// Nodes that count by the time of the first look, or too few of which are known, are asked after a pause.
#[test]
fn an_open_outlook_is_paused_for() {
    let mut acquisition = looking();
    acquisition.handle_outlook(Outlook::Open, 0, at(1_002));
    assert_eq!(slept(&acquisition, at(1_002)), ms(10));
}

/// Events that do not belong to the step change nothing.
#[test]
fn events_of_other_steps_change_nothing() {
    let mut acquisition = begun(rules());
    acquisition.handle_claim_failed(spent(), at(9_000));
    acquisition.handle_unable(&Reply::QueueFull, 0, at(9_000));
    acquisition.handle_outlook(Outlook::Surely(at(9_000)), 0, at(9_000));
    acquisition.handle_timeout(at(9_000));
    assert_eq!(acquisition.step(), SET);
    let mut acquisition = queueing();
    acquisition.handle_failure(spent(), 0, at(9_000));
    assert_eq!(acquisition.step(), QUEUE);
}

/// The outlook of three nodes at 100 ms: what the second of them to count says, if so many are connected.
#[test]
fn the_outlook_is_that_of_a_quorum() {
    let from = |millis: u64| Standing::CountsFrom(at(millis));
    let never = Standing::CountsFrom(Instant::FAR_FUTURE);
    let same = Standing::SameAs(NodeId::new(0));
    let cases: [(&[Standing], Outlook); 10] = [
        (&[from(0), from(100), from(900)], Outlook::Open),
        (&[from(900), from(101), from(0)], Outlook::Surely(at(101))),
        (&[from(900), from(101)], Outlook::Perhaps),
        (&[from(900)], Outlook::Open),
        (&[], Outlook::Open),
        (&[from(0), from(300), Standing::Replica], Outlook::Perhaps),
        (&[from(0), Standing::Replica, same], Outlook::Open),
        (&[from(0), never, never], Outlook::Perhaps),
        (&[from(300), from(400), never], Outlook::Surely(at(400))),
        (&[from(0), from(0), Standing::Replica], Outlook::Open),
    ];
    for (standings, outlook) in cases {
        assert_eq!(Outlook::of(three(), standings.iter().copied(), at(100)), outlook, "{standings:?}");
    }
}
