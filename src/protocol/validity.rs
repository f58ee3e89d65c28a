//! How long a holder may act: TTLs, the drift allowance, and the deadline that follows from them.
//!
//! Knows the arithmetic of rules 1 and 9 and nothing of nodes or votes.

use std::time::Duration;

use crate::protocol::time::Instant;

/// The constant part of the drift allowance. Servers count expiry in whole milliseconds, so a key may go up to one
/// early on the server, and the TTL's own rounding takes another (Redlock's specification allows for the same 2 ms).
const ROUNDING: Duration = Duration::from_millis(2);

/// Parts per million of a whole.
const MILLION: u128 = 1_000_000;

/// The life given to a key on each node: whole milliseconds, longer than the drift allowance, at most the allowed
/// maximum. A value of this type has been checked (rule 9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ttl(u64);

/// Why a duration cannot be a TTL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TtlError {
    /// It is zero.
    Zero,
    /// It is not a whole number of milliseconds, which is the unit that servers count in.
    NotWholeMillis,
    /// It does not exceed the drift allowance, so that nothing would be left of it.
    WithinDrift {
        /// What the drift takes from this TTL.
        allowance: Duration,
    },
    /// It is longer than the client allows.
    AboveMaximum {
        /// The longest TTL allowed.
        maximum: Duration,
    },
}

impl Ttl {
    /// Checks `ttl` against the drift allowance and the maximum.
    pub fn new(ttl: Duration, drift: Drift, maximum: Duration) -> Result<Self, TtlError> {
        if ttl.is_zero() {
            return Err(TtlError::Zero);
        }
        if ttl > maximum {
            return Err(TtlError::AboveMaximum { maximum });
        }
        // Servers read the TTL as a signed 64-bit count and add the wall clock to it; half of that range is far
        // beyond any maximum that means something, and leaves room for the addition.
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if millis > (i64::MAX / 2) as u64 {
            return Err(TtlError::AboveMaximum { maximum: Duration::from_millis((i64::MAX / 2) as u64) });
        }
        if !ttl.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(TtlError::NotWholeMillis);
        }
        let checked = Self(millis);
        let allowance = drift.allowance(checked);
        if ttl <= allowance {
            return Err(TtlError::WithinDrift { allowance });
        }
        Ok(checked)
    }

    /// A life that no holder relies on, such as a hand-over's: whole milliseconds, at least one. Nothing is subtracted
    /// from it, so nothing is checked.
    pub fn unchecked(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, (i64::MAX / 2) as u64))
    }

    /// The TTL in milliseconds, as sent to servers.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// The TTL as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// The allowance for clocks of different rates: a share of the TTL plus a constant 2 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drift {
    parts_per_million: u32,
}

impl Drift {
    /// An allowance of `parts_per_million` of the TTL (10 000 is one per cent), plus 2 ms.
    pub const fn parts_per_million(parts_per_million: u32) -> Self {
        Self { parts_per_million }
    }

    /// What is taken from a TTL: ttl × drift + 2 ms.
    pub fn allowance(self, ttl: Ttl) -> Duration {
        self.share(ttl.duration()).saturating_add(ROUNDING)
    }

    /// By how much two clocks may part within a duration: duration × drift.
    pub fn share(self, duration: Duration) -> Duration {
        let nanos = duration.as_nanos().saturating_mul(u128::from(self.parts_per_million)) / MILLION;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// One per cent: quartz drifts by some 0.01 %, a virtual machine's badly disciplined clock by ten times that.
impl Default for Drift {
    fn default() -> Self {
        Self::parts_per_million(10_000)
    }
}

/// Until when a holder may act: an absolute deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    until: Instant,
}

impl Validity {
    /// Validity of keys that were given `ttl` by a fan-out whose first byte left at or after `started`:
    /// started + ttl − (ttl × drift + 2 ms). It counts from before sending, because a server may have counted from
    /// then (rule 1).
    pub fn new(started: Instant, ttl: Ttl, drift: Drift) -> Self {
        Self { until: started.after(ttl.duration().saturating_sub(drift.allowance(ttl))) }
    }

    /// The first moment at which the holder may no longer act.
    pub fn until(self) -> Instant {
        self.until
    }

    /// What is left at `now`, zero when it is over.
    pub fn remaining(self, now: Instant) -> Duration {
        self.until.since(now)
    }

    /// Whether the holder may act at `now`.
    pub fn holds_at(self, now: Instant) -> bool {
        now < self.until
    }

    /// The same, but no longer than to this moment.
    pub fn until_at_most(self, limit: Instant) -> Validity {
        Validity { until: self.until.min(limit) }
    }

    /// The longer of the two: an extension never shortens (rule 7).
    pub fn max(self, other: Validity) -> Validity {
        Validity { until: self.until.max(other.until) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn ttl(millis: u64) -> Result<Ttl, TtlError> {
        Ttl::new(ms(millis), Drift::default(), ms(60_000))
    }

    /// Rule 1: validity = ttl − elapsed − (ttl × drift + 2 ms), counted from before the first byte.
    #[test]
    fn drift_is_subtracted_once() {
        let started = Instant::from_nanos(1_000_000_000);
        let validity = Validity::new(started, ttl(10_000).unwrap(), Drift::default());

        assert_eq!(validity.remaining(started), ms(9_898));
        assert_eq!(validity.remaining(started.after(ms(9_897))), ms(1));
        assert!(validity.holds_at(started.after(ms(9_897))));
        assert!(!validity.holds_at(started.after(ms(9_898))), "the deadline itself is too late");
        assert_eq!(validity.remaining(started.after(ms(20_000))), Duration::ZERO);
    }

    /// Rule 9: what cannot be a TTL is refused before anything is sent.
    #[test]
    fn impossible_ttls_are_refused_with_their_reason() {
        assert_eq!(Ttl::new(Duration::ZERO, Drift::default(), ms(10)), Err(TtlError::Zero));
        assert_eq!(
            Ttl::new(Duration::from_micros(1_500), Drift::default(), ms(10)),
            Err(TtlError::NotWholeMillis)
        );
        assert_eq!(ttl(2), Err(TtlError::WithinDrift { allowance: Duration::from_micros(2_020) }));
        assert_eq!(ttl(3).map(Ttl::as_millis), Ok(3));
        assert_eq!(ttl(60_001), Err(TtlError::AboveMaximum { maximum: ms(60_000) }));
        assert!(matches!(
            Ttl::new(Duration::MAX, Drift::default(), Duration::MAX),
            Err(TtlError::AboveMaximum { .. })
        ));
    }

    #[test]
    fn absurd_drift_saturates() {
        let all = Drift::parts_per_million(u32::MAX);
        assert!(matches!(Ttl::new(ms(1_000), all, ms(1_000)), Err(TtlError::WithinDrift { .. })));
    }
}
