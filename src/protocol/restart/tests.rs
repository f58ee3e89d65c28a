use super::*;
use crate::protocol::message::{Holder, Reply, Uncounted};
use crate::protocol::quorum::{NodeId, Quorum};

const GUARD: Duration = Duration::from_millis(10_102);
const LONG: Duration = Duration::from_secs(86_400);

fn delay() -> RestartDelay {
    let ttl = Ttl::new(Duration::from_secs(10), Drift::default(), Duration::from_secs(10)).unwrap();
    RestartDelay::new(ttl, Drift::default())
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(1_000_000_000_000).after(Duration::from_millis(millis))
}

/// A look at `millis` at a primary that has run for a day: its time is a day and that long.
fn look(millis: u64) -> Reading {
    Reading {
        sent: at(millis),
        received: at(millis),
        time: Some(LONG.as_micros() as u64 + millis * 1_000),
        replication: Some(Id::of(b"history")),
        role: Some(Role::Primary),
        marker: marker(b"marker", Duration::ZERO),
        run: None,
        former: None,
        kept: None,
    }
}

fn marker(id: &[u8], since: Duration) -> MarkerSeen {
    MarkerSeen::Found(Marker { id: Id::of(id), since: since.as_micros() as u64 })
}

/// The same on a new connection.
fn connect(millis: u64, run: &[u8], uptime: Duration, durable: bool) -> Reading {
    Reading { run: Some(Run { id: Some(Id::of(run)), uptime: Some(uptime), durable }), ..look(millis) }
}

fn known(durable: bool) -> Memory {
    let mut memory = Memory::new(Some(delay()));
    assert_eq!(memory.handle_reading(&connect(0, b"run", LONG, durable)), None);
    assert_eq!(memory.handle_beat(BEAT, at(0)), None);
    assert_eq!(memory.standing().objection(at(0)), None);
    memory
}

/// The count of looks that a known node has.
const BEAT: u64 = 5;

/// A durable node that is back a second after it was started, with what it had at the last look.
fn back(millis: u64) -> Reading {
    let replication = Some(Id::of(b"another"));
    Reading { replication, kept: Some(BEAT), ..connect(millis, b"other", Duration::from_secs(1), true) }
}

fn young(until: Instant) -> Option<Uncounted> {
    Some(Uncounted::TooYoung { until })
}

/// The least memory age is delay × (1 + drift) + 2 ms, and counts at exactly that.
#[test]
fn the_guard_is_the_longest_ttl_with_its_drift() {
    assert_eq!(delay().least(), GUARD);
    let standing = Standing::CountsFrom(at(10));
    assert_eq!(standing.objection(at(9)), young(at(10)));
    assert_eq!(standing.objection(at(10)), None);
}

/// Uptime counts less a second, which is how servers round it.
#[test]
fn a_young_node_is_guarded_for_what_its_uptime_lacks() {
    let mut memory = Memory::new(Some(delay()));
    let young = connect(0, b"run", Duration::from_secs(4), false);

    assert_eq!(memory.handle_reading(&young), Some(Evidence::Young));
    assert_eq!(memory.standing(), Standing::CountsFrom(at(10_102 - 3_000)));
    // Own time goes on, and later looks do not start it anew.
    assert_eq!(memory.handle_reading(&look(5_000)), None);
    assert_eq!(memory.standing(), Standing::CountsFrom(at(7_102)));
}

/// A marker younger than the server says that its memory was lost while it ran; one from its future dates nothing, and
/// own time counts instead, once.
#[test]
fn the_marker_dates_the_memory() {
    for (since, from) in [(LONG - Duration::from_secs(4), 6_102), (2 * LONG, 10_102)] {
        let mut memory = Memory::new(Some(delay()));
        let found = Reading { marker: marker(b"marker", since), ..connect(0, b"run", LONG, true) };

        assert_eq!(memory.handle_reading(&found), Some(Evidence::MarkedLately));
        assert_eq!(memory.standing(), Standing::CountsFrom(at(from)));
        let again = Reading { marker: marker(b"marker", since), ..look(5_000) };
        assert_eq!(memory.handle_reading(&again), None);
        assert_eq!(memory.standing(), Standing::CountsFrom(at(from)));
    }
}

/// Every change that may go with lost memory starts own time, from when it was noticed.
#[test]
fn changes_start_the_guard() {
    let with = |change: fn(&mut Reading)| {
        let mut reading = look(20_000);
        change(&mut reading);
        reading
    };
    let cases = [
        (connect(20_000, b"other", Duration::from_secs(1), false), Evidence::Restarted),
        (connect(20_000, b"other", LONG, false), Evidence::Replaced),
        (with(|look| look.replication = Some(Id::of(b"other"))), Evidence::RoleChanged),
        (with(|look| look.marker = MarkerSeen::Absent), Evidence::MarkerLost),
        (with(|look| look.marker = marker(b"other", Duration::ZERO)), Evidence::MarkerChanged),
        (with(|look| look.time = look.time.map(|time| time + 1_300_000)), Evidence::ClockSet),
        (with(|look| look.time = look.time.map(|time| time - 1_300_000)), Evidence::ClockSet),
        (with(|look| look.time = Some(0)), Evidence::ClockSet),
        (with(|look| look.run = Some(Run::default())), Evidence::Undated),
    ];
    for (reading, cause) in cases {
        let mut memory = known(false);

        assert_eq!(memory.handle_reading(&reading), Some(cause));
        assert!(memory.standing().objection(at(20_000 + 10_101)).is_some(), "{cause:?}");
    }
    let mut memory = known(false);
    assert_eq!(memory.handle_reading(&connect(20_000, b"run", LONG, false)), None, "the same run again");
    // A fiftieth of a second beside 20 s is drift.
    let drifted = with(|look| look.time = look.time.map(|time| time + 1_190_000));
    assert_eq!(known(false).handle_reading(&drifted), None);
}

/// Without a marker nothing dates the memory; the date of the one that is set then does.
#[test]
fn an_unmarked_node_waits_for_its_marker() {
    let mut memory = Memory::new(Some(delay()));
    let unmarked = Reading { marker: MarkerSeen::Absent, ..connect(0, b"run", LONG, true) };
    memory.handle_reading(&unmarked);
    assert_eq!(memory.standing(), Standing::CountsFrom(Instant::FAR_FUTURE));

    let mut adopted = memory;
    assert_eq!(adopted.handle_reading(&look(1)), None);
    assert_eq!(adopted.standing().objection(at(1)), None, "dated back to the start of the server");

    let now = Reading { marker: marker(b"marker", LONG + Duration::from_millis(1)), ..look(1) };
    assert_eq!(memory.handle_reading(&now), Some(Evidence::MarkedLately));
    assert_eq!(memory.standing(), Standing::CountsFrom(at(10_103)));

    // Nobody may set one: the rest of the evidence has to do.
    let mut memory = Memory::new(Some(delay()));
    memory.handle_reading(&Reading { marker: MarkerSeen::Absent, ..connect(0, b"run", LONG, false) });
    memory.handle_reading(&Reading { marker: MarkerSeen::Unread, ..look(1) });
    assert_eq!(memory.standing().objection(at(1)), None);
}

/// A restart is no evidence where every change was on disk before and after, and the marker shows that it was read back.
#[test]
fn a_node_that_writes_before_it_answers_remembers() {
    let young = Duration::from_secs(1);
    let restarted = back(20_000);
    assert_eq!(known(true).handle_reading(&restarted), None);

    // Who did not know the node goes by its uptime.
    let mut fresh = Memory::new(Some(delay()));
    assert_eq!(fresh.handle_reading(&connect(0, b"run", young, true)), Some(Evidence::Young));

    // But not with a marker that is another or gone, nor where one of the runs did not write so.
    let mut lost = restarted;
    lost.marker = MarkerSeen::Absent;
    assert_eq!(known(true).handle_reading(&lost), Some(Evidence::MarkerLost));
    assert_eq!(known(false).handle_reading(&restarted), Some(Evidence::Restarted));
    let lax = connect(20_000, b"other", young, false);
    assert_eq!(known(true).handle_reading(&lax), Some(Evidence::Restarted));
    // A promotion is none of its disk's business.
    let mut promoted = known(true);
    promoted.handle_reading(&Reading { role: Some(Role::Replica), ..look(10_000) });
    assert_eq!(promoted.handle_reading(&look(20_000)), Some(Evidence::RoleChanged));
}

/// A node that lacks what was written at the last look went back to an older state: after a restart, and in the same run as
/// well. Where nobody tells, a restarted node goes by its uptime.
#[test]
fn an_older_state_is_no_memory() {
    let with = |kept| Reading { kept, ..back(20_000) };
    for (kept, cause) in [
        (Some(BEAT), None),
        (Some(BEAT + 3), None),
        (Some(BEAT - 1), Some(Evidence::WentBack)),
        (Some(0), Some(Evidence::WentBack)),
        (None, Some(Evidence::Restarted)),
    ] {
        let mut memory = known(true);
        assert_eq!(memory.handle_reading(&with(kept)), cause, "{kept:?}");
        let objection = cause.and(young(at(20_000 + 10_102)));
        assert_eq!(memory.standing().objection(at(20_000)), objection, "{kept:?}");
    }

    let mut memory = known(false);
    let older = Reading { kept: Some(BEAT - 1), ..look(5_000) };
    assert_eq!(memory.handle_reading(&older), Some(Evidence::WentBack));
    assert_eq!(known(false).handle_beat(BEAT, at(5_000)), Some(Evidence::WentBack));
    assert_eq!(known(false).handle_beat(BEAT + 1, at(5_000)), None);
}

/// Another run that was there before the last look at the known one, or that goes on with its history, is no restart of it:
/// marker and count of a replica are copies. Uptimes are off by up to a second, either way.
#[test]
fn another_server_in_its_place_is_no_restart() {
    let up = |uptime| {
        let mut reading = back(20_000);
        reading.run = reading.run.map(|run| Run { uptime: Some(Duration::from_secs(uptime)), ..run });
        reading
    };
    let known = |looked| {
        let mut memory = known(true);
        memory.handle_reading(&look(looked));
        memory
    };
    assert_eq!(known(15_000).handle_reading(&up(5)), None, "started at the last look, perhaps");
    assert_eq!(known(15_000).handle_reading(&up(6)), None);
    assert_eq!(known(15_000).handle_reading(&up(7)), Some(Evidence::Replaced));
    assert_eq!(known(15_000).handle_reading(&up(1_000)), Some(Evidence::Replaced));

    let promoted = Reading { former: Some(Id::of(b"history")), ..back(20_000) };
    assert_eq!(known(15_000).handle_reading(&promoted), Some(Evidence::Replaced));
    let other = Reading { former: Some(Id::of(b"some other")), ..back(20_000) };
    assert_eq!(known(15_000).handle_reading(&other), None);
}

/// No run comes back: where one does, several servers answer in turn, and have no vote until a minute went by without.
#[test]
fn runs_that_alternate_are_several_servers() {
    let mut memory = known(false);
    assert_eq!(memory.handle_reading(&connect(5_000, b"second", LONG, false)), Some(Evidence::Replaced));
    assert!(matches!(memory.standing(), Standing::CountsFrom(_)), "once is a restart");

    memory.handle_reading(&connect(10_000, b"run", LONG, false));

    assert_eq!(memory.standing().objection(at(100_000)), Some(Uncounted::SeveralServers));
    memory.handle_reading(&look(69_999));
    assert_eq!(memory.standing(), Standing::Several);
    memory.handle_reading(&look(70_000));
    assert_eq!(memory.standing().objection(at(70_000)), None);
}

/// When the client's clock stood still, the nodes that showed it are not blamed, and what they told is told on the clock that
/// was put forward. A delay for another reason goes on.
#[test]
fn a_clock_that_stood_still_blames_nobody() {
    let minute = Duration::from_secs(60);
    let ahead = |millis| {
        let mut reading = look(millis);
        reading.time = reading.time.map(|time| time + 60_000_000);
        reading
    };
    let mut clock = ClientClock::new(Quorum::of(3).unwrap());
    let mut memories = [known(false), known(false)];
    memories[0].handle_reading(&Reading { kept: Some(0), ..look(1_000) });
    let stood = memories.iter_mut().enumerate().find_map(|(node, memory)| {
        assert_eq!(memory.handle_reading(&ahead(5_000)), Some(Evidence::ClockSet));
        assert!(memory.standing().objection(at(12_000)).is_some());
        clock.handle_jump(NodeId::new(node), memory.jump().expect("ahead by a minute"))
    });
    let stood = stood.expect("two of three");
    assert!(stood.by() >= minute && stood.by() < minute + Duration::from_secs(6), "{stood:?}");

    for (node, memory) in memories.iter_mut().enumerate() {
        assert!(memory.handle_stood_still(stood) && !memory.handle_stood_still(stood));
        let lost = if node == 0 { Some(()) } else { None };
        let objection = memory.standing().objection(at(6_000));
        assert_eq!(objection.map(|_| ()), lost, "{objection:?}");
        // The next look, on the corrected clock.
        let next = Reading { time: ahead(10_000).time, ..look(10_000 + stood.by().as_millis() as u64) };
        assert_eq!(memory.handle_reading(&next), None);
    }
}

/// A replica does not count; once promoted it is too young from when that was noticed.
#[test]
fn replicas_do_not_count() {
    let mut memory = known(false);
    memory.handle_reading(&Reading { role: Some(Role::Replica), ..look(1_000) });
    assert_eq!(memory.standing(), Standing::Replica);

    memory.handle_reading(&look(2_000));
    assert_eq!(memory.standing(), Standing::CountsFrom(at(2_000 + 10_102)));
}

/// Switched off, nothing is too young; replicas do not count all the same.
#[test]
fn without_a_guard_every_memory_is_old_enough() {
    let mut memory = Memory::new(None);
    let unmarked = Reading { marker: MarkerSeen::Absent, ..connect(0, b"run", Duration::ZERO, false) };
    assert_eq!(memory.handle_reading(&unmarked), None);
    assert_eq!(memory.standing().objection(Instant::default()), None);

    memory.handle_reading(&Reading { role: Some(Role::Replica), ..look(1) });
    assert_eq!(memory.standing().objection(at(1)), Some(Uncounted::Replica));
}

/// Only a grant is weighed: who holds the key is worth knowing from any node.
#[test]
fn only_grants_are_weighed() {
    let standing = Standing::CountsFrom(at(1));
    assert_eq!(standing.weigh(Reply::Granted, at(0)), Reply::Uncounted(Uncounted::TooYoung { until: at(1) }));
    assert_eq!(standing.weigh(Reply::Granted, at(1)), Reply::Granted);
    let held = Reply::Held(Holder::UNNAMED);
    assert_eq!(standing.weigh(held.clone(), at(0)), held);
    let same = Standing::SameAs(NodeId::new(0));
    assert_eq!(same.weigh(Reply::Granted, at(9)), Reply::Uncounted(Uncounted::SameServer(NodeId::new(0))));
}

/// A clock may be off by a second and the drift since the last look, to the microsecond, either way.
#[test]
fn clocks_may_be_off_by_a_second_and_their_drift() {
    for (micros, cause) in [
        (1_200_000, None),
        (1_200_001, Some(Evidence::ClockSet)),
        (-1_200_000, None),
        (-1_200_001, Some(Evidence::ClockSet)),
    ] {
        let look = look(20_000);
        let off = Reading { time: look.time.and_then(|time| time.checked_add_signed(micros)), ..look };
        assert_eq!(known(false).handle_reading(&off), cause, "{micros}");
    }
}

/// A run without its uptime dates nothing, and one that did not restart has no reason for another replication history, however
/// well it writes.
#[test]
fn half_a_run_proves_nothing() {
    let run = Some(Run { id: Some(Id::of(b"run")), uptime: None, durable: false });
    let mut memory = Memory::new(Some(delay()));
    assert_eq!(memory.handle_reading(&Reading { run, ..look(0) }), Some(Evidence::Undated));

    let other = Reading { replication: Some(Id::of(b"other")), ..connect(20_000, b"run", LONG, true) };
    assert_eq!(known(true).handle_reading(&other), Some(Evidence::RoleChanged));
}

/// What was told once is not told again where another reading says the same.
#[test]
fn the_same_evidence_is_no_news() {
    let mut memory = Memory::new(Some(delay()));
    let young = |millis| connect(millis, b"run", Duration::from_millis(4_000 + millis), false);
    assert_eq!(memory.handle_reading(&young(0)), Some(Evidence::Young));
    assert_eq!(memory.handle_reading(&young(1_000)), None);
    assert_eq!(memory.standing(), Standing::CountsFrom(at(7_102)));
}

/// A look says what a grant is worth for two intervals, and no longer; what a replica or a double is worth it says for good.
#[test]
fn a_look_goes_out_of_date() {
    let late = at(10_000).after(Duration::from_nanos(1));
    assert_eq!(Standing::COUNTS.as_seen(at(0), LOOKS_LAST, at(10_000)), Standing::COUNTS);
    assert_eq!(Standing::COUNTS.as_seen(at(0), LOOKS_LAST, late), Standing::UNSEEN);
    assert_eq!(Standing::Replica.as_seen(at(0), LOOKS_LAST, late), Standing::Replica);
    assert_eq!(Standing::UNSEEN.objection(late), young(Instant::FAR_FUTURE));
}
