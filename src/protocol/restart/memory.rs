//! How old a node's memory is: drawn from readings of the node, with no clock of its own.

use std::time::Duration;

use super::beat::{Beat, State};
use super::{Evidence, Id, Jump, Marker, MarkerSeen, Reading, RestartDelay, Role, Run, Standing, StoodStill};
use crate::protocol::time::Instant;
use crate::protocol::validity::Drift;

/// Servers tell their uptime in whole seconds, cut from two clock readings.
const UPTIME_ROUNDING: Duration = Duration::from_secs(1);

/// A node's clock that gained or lost more than this between two readings, beyond drift, was set.
const CLOCK_JUMP: Duration = Duration::from_secs(1);

/// So many earlier runs are remembered: of several servers behind one address, one comes back within as many changes.
const REMEMBERED_RUNS: usize = 8;

/// Servers that alternated are one again after so long without a change.
const ALTERNATE_FOR: Duration = Duration::from_secs(60);

/// What is known of the memory behind one address.
///
/// The memory age is the least of: the uptime less a second; the node's time less its marker's; own time since a
/// restart, a change of role, replication history or marker, an older state, or a set clock was noticed. A restart is no
/// evidence if all of this holds: both runs write every change to disk before they answer; the marker is the same; the
/// node has what was written at the last look; and the restart came after that look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    delay: Option<RestartDelay>,
    from: Instant,
    /// The same for a clock that was set ahead, until it turns out to be the client's.
    clock_from: Instant,
    unmarked: bool,
    run: Option<Run>,
    /// Runs before that one, and how many there were.
    ran: [Option<Id>; REMEMBERED_RUNS],
    changes: usize,
    /// Until then the runs alternate.
    several_until: Instant,
    several: bool,
    replication: Option<Id>,
    role: Option<Role>,
    marker: Option<Marker>,
    beat: Beat,
    /// When the last look began.
    looked: Option<Instant>,
    /// The node's time and the own moments around it.
    time: Option<(u64, Instant, Instant)>,
    /// What the node's clock gained on the client's at the last look, if that was a jump.
    jump: Option<Jump>,
    /// The last jump that the node is blamed for.
    blamed: Option<Jump>,
    /// When the client's clock stood still last, as far as was heard.
    stood: Option<StoodStill>,
}

impl Memory {
    /// Nothing known yet. Without a delay, every memory is old enough.
    pub fn new(delay: Option<RestartDelay>) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Takes in what the node told. Returns why its grants count later than before, where they do.
    pub fn handle_reading(&mut self, reading: &Reading) -> Option<Evidence> {
        let mut doubts = Doubts { least: None, cause: Evidence::Restarted };
        let same_marker = self.judge_marker(reading, &mut doubts);
        self.judge_run(reading, same_marker, &mut doubts);
        let ahead = self.judge_clock(reading, &mut doubts);
        self.looked = Some(reading.sent);
        self.several = reading.received < self.several_until;
        let delay = self.delay?;
        if ahead {
            self.clock_from = reading.received.after(delay.least);
        }
        self.bar(&doubts, reading.received).or(ahead.then_some(Evidence::ClockSet))
    }

    /// The count of the present run, raised after a look. The node has what was written with it for as long as that count
    /// stays or rises. Returns why its grants count later than before, if they do.
    pub fn handle_beat(&mut self, count: u64, now: Instant) -> Option<Evidence> {
        let mut doubts = Doubts { least: None, cause: Evidence::WentBack };
        if self.beat.handle_raised(self.run.and_then(|run| run.id), count) {
            doubts.add(Duration::ZERO, Evidence::WentBack);
        }
        self.bar(&doubts, now)
    }

    fn bar(&mut self, doubts: &Doubts, now: Instant) -> Option<Evidence> {
        let (delay, age) = (self.delay?, doubts.least?);
        let from = now.after(delay.least.saturating_sub(age));
        let later = from > self.from && from > now;
        self.from = self.from.max(from);
        later.then_some(doubts.cause)
    }

    /// How far the node's clock jumped ahead of the client's at the last look, if it did.
    pub fn jump(&self) -> Option<Jump> {
        self.jump
    }

    /// Whether the node is blamed for a jump.
    pub fn is_blamed(&self) -> bool {
        self.blamed.is_some()
    }

    /// The client's clock stood still, and was put forward. What was told before is told on the new clock from then on, and
    /// the node is not blamed. Returns whether that changed anything.
    pub fn handle_stood_still(&mut self, stood: StoodStill) -> bool {
        if self.stood.replace(stood) != Some(stood) {
            // The clock may be ahead by so much now, and a delay would end too early.
            self.from = self.from.after(stood.within());
            self.clock_from = self.clock_from.after(stood.within());
            if !self.blamed.is_some_and(|jump| stood.is_that(jump)) {
                self.time = self.time.and_then(|(time, sent, received)| {
                    let (sent, received) = (stood.on_corrected(sent)?, stood.on_corrected(received)?);
                    Some((time, sent, received))
                });
            }
        }
        let Some(jump) = self.blamed.take_if(|jump| stood.is_that(*jump)) else { return false };
        let by = stood.by();
        let cleared = stood.clears();
        self.clock_from = if cleared { Instant::default() } else { self.clock_from.after(by) };
        // One that began with these looks began on the new clock.
        if self.from > jump.before {
            self.from = self.from.after(by);
        }
        self.time = self.time.map(|(time, sent, received)| (time, sent.after(by), received.after(by)));
        self.looked = self.looked.map(|looked| looked.after(by));
        true
    }

    /// Returns whether the marker is the one that was there, or was there before we came.
    fn judge_marker(&mut self, reading: &Reading, doubts: &mut Doubts) -> bool {
        match (self.marker, reading.marker) {
            (_, MarkerSeen::Unread) => {
                self.unmarked = false;
                false
            }
            (known, MarkerSeen::Absent) => {
                if known.is_some() {
                    doubts.add(Duration::ZERO, Evidence::MarkerLost);
                }
                // What follows is judged by its date, and by the moment at which this one was found missing.
                self.marker = None;
                self.unmarked = true;
                false
            }
            (Some(known), MarkerSeen::Found(marker)) if known.id == marker.id => {
                self.unmarked = false;
                true
            }
            (Some(_), MarkerSeen::Found(marker)) => {
                doubts.add(Duration::ZERO, Evidence::MarkerChanged);
                self.marker = Some(marker);
                false
            }
            (None, MarkerSeen::Found(marker)) => {
                // A marker from the node's future, whose clock was put back, dates nothing: then own time counts.
                let age = reading.time.unwrap_or(0).saturating_sub(marker.since);
                doubts.add(Duration::from_micros(age), Evidence::MarkedLately);
                self.marker = Some(marker);
                !std::mem::replace(&mut self.unmarked, false)
            }
        }
    }

    fn judge_run(&mut self, reading: &Reading, same_marker: bool, doubts: &mut Doubts) {
        let changed =
            |known: Option<Id>, told: Option<Id>| known.is_some() && told.is_some() && known != told;
        let before = self.run;
        let run = reading.run.or(before);
        let restarted = before.is_some_and(|before| changed(before.id, run.and_then(|run| run.id)));
        let state = self.beat.handle_kept(run.and_then(|run| run.id), reading.kept);
        let mut remembered = false;
        if let Some(run) = reading.run {
            self.run = Some(run);
            let was_durable = before.is_some_and(|before| before.durable);
            let replaced = restarted && self.is_replaced(run, reading);
            let keeps = !restarted || (state == State::AsSeen && !replaced);
            let remembers = run.durable && was_durable && same_marker && keeps;
            remembered = restarted && remembers;
            if restarted && !remembers {
                let older = run.durable && was_durable && state == State::Older;
                doubts.add(
                    Duration::ZERO,
                    match () {
                        () if replaced => Evidence::Replaced,
                        () if older => Evidence::WentBack,
                        () => Evidence::Restarted,
                    },
                );
                self.note_run(before.and_then(|before| before.id), run.id, reading.received);
            }
            if remembers {
            } else if let (Some(_), Some(uptime)) = (run.id, run.uptime) {
                doubts.add(uptime.saturating_sub(UPTIME_ROUNDING), Evidence::Young);
            } else {
                doubts.add(Duration::ZERO, Evidence::Undated);
            }
        }
        if state == State::Older {
            doubts.add(Duration::ZERO, Evidence::WentBack);
        }
        // A restart alone begins another replication history.
        let other_history = changed(self.replication, reading.replication) && !remembered;
        let other_role = self.role.is_some() && reading.role.is_some() && self.role != reading.role;
        if other_history || other_role {
            doubts.add(Duration::ZERO, Evidence::RoleChanged);
        }
        self.replication = reading.replication.or(self.replication);
        self.role = reading.role.or(self.role);
    }

    /// Whether this run cannot be the known server started again: it ran before the last look at the other, or goes on with
    /// what the other wrote, as a promoted replica does. Marker and counts of a replica are copies, and show nothing.
    fn is_replaced(&self, run: Run, reading: &Reading) -> bool {
        let latest_start =
            run.uptime.map(|uptime| reading.received.before(uptime.saturating_sub(UPTIME_ROUNDING)));
        let ran_before = latest_start.zip(self.looked).is_some_and(|(start, looked)| start < looked);
        let promoted = reading.former.is_some() && reading.former == self.replication;
        ran_before || promoted
    }

    /// No run ever comes back. If one does, several servers answer in turn.
    fn note_run(&mut self, before: Option<Id>, run: Option<Id>, now: Instant) {
        if run.is_some() && self.ran.contains(&run) {
            let least = self.delay.map(RestartDelay::least).unwrap_or_default();
            self.several_until = now.after(ALTERNATE_FOR.max(least));
        }
        self.ran[self.changes % REMEMBERED_RUNS] = before;
        self.changes += 1;
    }

    /// Returns whether the node's clock was set ahead, or the client's stood still.
    fn judge_clock(&mut self, reading: &Reading, doubts: &mut Doubts) -> bool {
        self.jump = None;
        let Some(time) = reading.time else { return false };
        let before = self.time.replace((time, reading.sent, reading.received));
        let Some((earlier, sent, received)) = before else { return false };
        let (shortest, longest) = (reading.sent.since(received), reading.received.since(sent));
        let drift = self.delay.map_or_else(Drift::default, |delay| delay.drift);
        let tolerance = CLOCK_JUMP.saturating_add(drift.share(longest));
        let micros = |duration: Duration| i128::try_from(duration.as_micros()).unwrap_or(i128::MAX);
        let went = i128::from(time) - i128::from(earlier);
        if went < micros(shortest) - micros(tolerance) {
            doubts.add(Duration::ZERO, Evidence::ClockSet);
        }
        let ahead = went > micros(longest.saturating_add(tolerance));
        if ahead {
            let by = Duration::from_micros(u64::try_from(went - micros(shortest)).unwrap_or(u64::MAX));
            let within = longest.saturating_sub(shortest);
            self.jump = Some(Jump { by, within, after: sent, before: reading.received });
            self.blamed = self.jump;
        }
        ahead
    }

    /// What the node's grants are worth.
    pub fn standing(&self) -> Standing {
        if self.role == Some(Role::Replica) {
            return Standing::Replica;
        }
        if self.several {
            return Standing::Several;
        }
        let unmarked = self.unmarked && self.delay.is_some();
        Standing::CountsFrom(if unmarked { Instant::FAR_FUTURE } else { self.from.max(self.clock_from) })
    }
}

/// The least age that the evidence of one reading allows for, and which evidence that is.
struct Doubts {
    least: Option<Duration>,
    cause: Evidence,
}

impl Doubts {
    fn add(&mut self, age: Duration, cause: Evidence) {
        if self.least.is_none_or(|least| age < least) {
            (self.least, self.cause) = (Some(age), cause);
        }
    }
}
