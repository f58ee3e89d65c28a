//! Moments, as the protocol counts them.
//!
//! The protocol never reads a clock: every moment is an argument, so that a test or a simulation decides what time
//! it is. Which clock stands behind an [`Instant`] is the runtime's business (the boot clock on Linux).

use std::fmt;
use std::time::Duration;

/// A moment on one client's steady clock: nanoseconds since an origin that means nothing in itself.
///
/// All arithmetic saturates (rule 9: no duration arithmetic panics or wraps). [`Instant::FAR_FUTURE`] is later than
/// every moment that a clock returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The end of time: what a wait without limit waits for.
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment, `duration` later; the end of time where that is out of range.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }

    /// This moment, `duration` earlier; the origin where that is out of range.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(duration)))
    }

    /// How long ago `earlier` was, zero if it is still to come.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 9: no arithmetic on moments wraps.
    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let now = Instant::from_nanos(5);

        assert_eq!(now.after(Duration::MAX), Instant::FAR_FUTURE);
        assert_eq!(now.before(Duration::from_secs(1)), Instant::from_nanos(0));
        assert_eq!(now.since(Instant::FAR_FUTURE), Duration::ZERO);
        assert_eq!(now.after(Duration::from_nanos(2)).since(now), Duration::from_nanos(2));
    }
}
