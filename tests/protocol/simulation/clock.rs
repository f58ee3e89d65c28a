//! True time, which nobody in the simulation can read, and the clocks that each client and node reads instead.

use redquorum::protocol::time::Instant;

/// Nanoseconds of true time since the history began.
pub type TrueTime = u64;

/// One millisecond of it.
pub const MILLI: u64 = 1_000_000;

const MILLION: u64 = 1_000_000;

/// How far a clock's rate may be off, in parts per million. Two clocks then differ by at most 1.005 / 0.995, which is
/// just within the one per cent that the protocol allows between a client and a node (rule 1).
pub const RATE_BOUND: u64 = 5_000;

/// A clock of a constant, slightly wrong rate. Its reading may be shifted, which models a step, or standing still.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Reading at the beginning of the history: large enough that no step makes a reading negative.
    origin: u64,
    /// Nanoseconds shown per millisecond of true time.
    rate: u64,
}

impl Clock {
    pub fn new(origin: u64, rate: u64) -> Self {
        Self { origin, rate }
    }

    pub fn origin(self) -> u64 {
        self.origin
    }

    /// The same clock, but with another reading at the beginning.
    pub fn begun_at(self, origin: u64) -> Self {
        Self { origin, ..self }
    }

    /// What the clock shows at `now`.
    pub fn at(self, now: TrueTime) -> Instant {
        Instant::from_nanos(self.origin + now / MILLION * self.rate + now % MILLION * self.rate / MILLION)
    }

    /// The first true moment at which the clock shows at least `reading`.
    pub fn when(self, reading: Instant) -> TrueTime {
        let shown = reading.as_nanos().saturating_sub(self.origin);
        let whole = shown / self.rate * MILLION;
        let rest = shown % self.rate * MILLION;
        whole + rest.div_ceil(self.rate)
    }

    /// Sets the clock forward or back by so many nanoseconds.
    pub fn step(&mut self, nanos: i64) {
        self.origin = self.origin.saturating_add_signed(nanos);
    }
}

/// A clock within the bound, at a random offset of some thousand seconds.
pub fn draw_clock(draw: &mut super::draw::Draw) -> Clock {
    let extremes = [MILLION - RATE_BOUND, MILLION, MILLION + RATE_BOUND];
    let between = draw.between(MILLION - RATE_BOUND, MILLION + RATE_BOUND);
    let rate = if draw.chance(500) { draw.pick(&extremes) } else { between };
    Clock::new(draw.between(1_000, 9_000) * 1_000 * MILLI + draw.below(MILLI), rate)
}

/// The protocol relies on this: a reading that is waited for is shown when it is said to be, and not before.
#[test]
fn a_clock_and_its_inverse_agree() {
    let mut draw = super::draw::Draw::new(1);
    for _ in 0..10_000 {
        let clock = draw_clock(&mut draw);
        let moment = draw.spread(1, 1_000_000 * MILLI);
        let reading = clock.at(moment);
        let when = clock.when(reading);

        assert!(when <= moment && clock.at(when) >= reading, "{clock:?} at {moment}");
        assert!(when == 0 || clock.at(when - 1) < reading, "{clock:?} at {moment}");
    }
}
