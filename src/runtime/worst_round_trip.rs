//! How long round trips take at worst: what a hand-over has to allow for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The worst round trip of late, in nanoseconds. A bad one is forgotten over some twenty good ones.
#[derive(Debug, Default)]
pub(crate) struct WorstRoundTrip(AtomicU64);

impl WorstRoundTrip {
    /// A round trip took so long. Of two at the same time one may be missed, which changes nothing.
    pub(crate) fn note(&self, round_trip: Duration) {
        let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(nanos.max(before - before / 8), Ordering::Relaxed);
    }

    /// The worst of late; zero where nothing is known.
    pub(crate) fn worst(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bad round trip counts for a while, not for ever.
    #[test]
    fn worst_is_forgotten_slowly() {
        let (pace, good) = (WorstRoundTrip::default(), Duration::from_millis(1));
        pace.note(Duration::from_millis(10));
        pace.note(good);
        assert_eq!(pace.worst(), Duration::from_micros(8_750));
        (0..40).for_each(|_| pace.note(good));
        assert_eq!(pace.worst(), good);
    }
}
