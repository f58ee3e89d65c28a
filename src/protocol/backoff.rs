//! Pauses between two attempts, random so that contenders drift apart.
//!
//! Two loops with different reasons: after a *split vote* nobody holds the lock and everybody has to step back for
//! about a round trip; where the lock is *held*, asking again helps only once the holder is gone, which is at the
//! latest when its key expires.

use std::time::Duration;

/// Why an attempt failed, as far as the pause depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryReason {
    /// Contenders share the votes; nobody has a quorum.
    Split,
    /// Somebody holds the lock; when the first of the keys seen expires, if known.
    Held(Option<Duration>),
    /// Too few nodes answer.
    Unavailable,
}

/// The pauses of one waiting acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    splits: u32,
    others: u32,
}

/// A random pause of at least half its upper bound is long enough to be a pause, and spreads contenders well.
const SPREAD: u32 = 2;

impl Backoff {
    /// Pauses from `least` (the first upper bound) doubling up to `most`. After a split vote, a quarter of that.
    pub fn new(least: Duration, most: Duration) -> Self {
        Self { least, most: most.max(least), splits: 0, others: 0 }
    }

    /// The next pause, drawn with `random`, a uniform 64-bit number.
    pub fn next(&mut self, cause: RetryReason, random: u64) -> Duration {
        let doubled = |from: Duration, times: u32| from.saturating_mul(1 << times.min(16)).min(self.most);
        match cause {
            RetryReason::Split => {
                self.splits = self.splits.saturating_add(1);
                let upper = doubled(self.least / 4, self.splits - 1).min(self.most / 4);
                fraction(upper, random)
            }
            RetryReason::Held(expires_in) => {
                self.others = self.others.saturating_add(1);
                let upper = doubled(self.least, self.others - 1);
                let pause = upper / SPREAD + fraction(upper / SPREAD, random);
                // One millisecond more: a server still shows the key in the millisecond in which it ends.
                expires_in.map_or(pause, |left| pause.min(left.saturating_add(Duration::from_millis(1))))
            }
            RetryReason::Unavailable => {
                self.others = self.others.saturating_add(1);
                let upper = doubled(self.least, self.others - 1);
                upper / SPREAD + fraction(upper / SPREAD, random)
            }
        }
    }
}

/// A duration below `upper`, as `random` is below 2⁶⁴.
fn fraction(upper: Duration, random: u64) -> Duration {
    let nanos = (upper.as_nanos().min(u128::from(u64::MAX)) * u128::from(random)) >> 64;
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Held: growing, never beyond the longest pause, never far beyond the holder's expiry.
    #[test]
    fn held_grows_up_to_the_cap_and_ends_with_the_holder() {
        let mut backoff = Backoff::new(ms(20), ms(250));
        let pauses: Vec<_> = (0..8).map(|_| backoff.next(RetryReason::Held(None), u64::MAX)).collect();

        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
        assert!(pauses[0] > ms(19) && pauses[0] <= ms(20));
        assert!(pauses[7] > ms(249) && pauses[7] <= ms(250));
        assert_eq!(backoff.next(RetryReason::Held(Some(ms(3))), u64::MAX), ms(4));
        assert!(backoff.next(RetryReason::Unavailable, 0) >= ms(125), "never a busy loop");
    }

    /// Unavailable: from half of an upper bound to all of it, which doubles.
    #[test]
    fn unavailable_grows_from_half_the_bound() {
        let (mut shortest, mut longest) = (Backoff::new(ms(20), ms(250)), Backoff::new(ms(20), ms(250)));
        for upper in [20, 40, 80, 160, 250, 250].map(ms) {
            assert_eq!(shortest.next(RetryReason::Unavailable, 0), upper / 2);
            let pause = longest.next(RetryReason::Unavailable, u64::MAX);
            assert!(pause < upper && pause > upper - ms(1), "{pause:?}");
        }
    }

    /// Split: short, from zero on, so that one of two contenders is clearly first.
    #[test]
    fn split_is_short() {
        let mut backoff = Backoff::new(ms(20), ms(250));
        assert!(backoff.next(RetryReason::Split, u64::MAX) <= ms(5));
        assert_eq!(backoff.next(RetryReason::Split, 0), Duration::ZERO);
        for _ in 0..100 {
            assert!(backoff.next(RetryReason::Split, u64::MAX) <= ms(63));
        }
    }

    #[test]
    fn absurd_limits_do_not_wrap() {
        let mut backoff = Backoff::new(Duration::MAX, Duration::ZERO);
        for _ in 0..100 {
            backoff.next(RetryReason::Held(None), u64::MAX);
            backoff.next(RetryReason::Split, u64::MAX);
        }
    }
}
