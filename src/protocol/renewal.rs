//! When a kept lease is extended: the schedule of one lease, as a plain value.
//!
//! Knows nothing of nodes, votes or validity: the lease decides whether an extension succeeded and how long the holder may
//! act. Random numbers are arguments, as time is.

use std::time::Duration;

use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;

/// An extension is due when a third of the TTL has gone by: the other two thirds are for trying again.
pub const SHARE: u32 = 3;

/// It comes up to this share of the interval earlier, at random: leases that were taken together part at once, and are
/// spread over the whole interval after some rounds.
pub const JITTER: u32 = 3;

/// It may come earlier still by this share of the TTL, in the company of others: what makes one call serve many leases.
const COMPANY: u32 = 100;

/// After a failure it is tried again after this share of the TTL, or half as much more or less at random: some twenty
/// times within what validity is left.
pub const AGAIN: u32 = 30;

/// Pauses are no shorter: timers are no finer.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// When one kept lease is extended next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    ttl: Ttl,
    due: Instant,
}

impl Schedule {
    /// The schedule of a lease that was confirmed last, by an acquire or an extension, by a round that began at `started`.
    /// `random` is uniform over all its values.
    pub fn new(ttl: Ttl, started: Instant, random: u32) -> Self {
        let mut keep = Self { ttl, due: started };
        keep.confirmed(started, random);
        keep
    }

    /// The life that extensions give.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// When it is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Whether it may go now with others.
    pub fn may_join(&self, now: Instant) -> bool {
        self.due.before(self.ttl.duration() / COMPANY) <= now
    }

    /// An extension whose round began at `started` was confirmed.
    pub fn confirmed(&mut self, started: Instant, random: u32) {
        let interval = interval(self.ttl);
        let earlier = share(interval / JITTER, random);
        self.due = started.after((interval - earlier).max(LEAST_PAUSE));
    }

    /// An extension was not confirmed, and what is left of the validity is for trying again.
    pub fn unconfirmed(&mut self, now: Instant, random: u32) {
        let pause = self.ttl.duration() / AGAIN;
        self.due = now.after((pause / 2 + share(pause, random)).max(LEAST_PAUSE));
    }
}

/// How long after it was confirmed a lease is extended again, at the latest.
pub fn interval(ttl: Ttl) -> Duration {
    (ttl.duration() / SHARE).max(LEAST_PAUSE)
}

/// From nothing up to `whole`.
fn share(whole: Duration, random: u32) -> Duration {
    let nanos = whole.as_nanos() * u128::from(random) / u128::from(u32::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How long a failed extension by hand takes at least.
const LEAST_FAILURE: Duration = Duration::from_millis(50);

/// How long an extension by hand that failed at `now` waits before it says so. Nodes that are down refuse at once, and a caller
/// that extends in a loop would do nothing else. It waits for no more than half of what `remaining` leaves to the holder.
pub fn pause_after_failure(began: Instant, now: Instant, remaining: Duration) -> Duration {
    LEAST_FAILURE.saturating_sub(now.since(began)).min(remaining / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::validity::Drift;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Instant {
        Instant::default().after(ms(millis))
    }

    fn ttl(millis: u64) -> Ttl {
        Ttl::new(ms(millis), Drift::default(), ms(millis)).unwrap()
    }

    /// Due at a third of the TTL from the start of the confirmed round, or earlier by up to a third of that.
    #[test]
    fn due_at_a_third_of_the_ttl() {
        assert_eq!(Schedule::new(ttl(9_000), at(500), 0).due(), at(3_500));
        assert_eq!(Schedule::new(ttl(9_000), at(500), u32::MAX).due(), at(2_500));
        let mut keep = Schedule::new(ttl(9_000), at(500), 0);
        keep.confirmed(at(3_400), u32::MAX / 2);
        assert!(keep.due() > at(5_890) && keep.due() < at(5_910), "{:?}", keep.due());
    }

    /// Leases taken together are not extended together: after ten intervals they are spread over most of one.
    #[test]
    fn leases_taken_together_part() {
        let mut random = 12_345_u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random
        };
        let mut moments: Vec<_> = (0..1_000)
            .map(|_| {
                let mut keep = Schedule::new(ttl(9_000), at(0), next());
                (0..10).for_each(|_| keep.confirmed(keep.due(), next()));
                keep.due()
            })
            .collect();
        moments.sort_unstable();

        let middle = moments[949].since(moments[50]);
        assert!(middle > ms(2_000), "nine in ten within {middle:?}");
        let busiest =
            (0..1_000).map(|i| moments[i..].iter().take_while(|m| m.since(moments[i]) < ms(90)).count());
        assert!(busiest.max().unwrap() < 100, "a hundredth of the TTL has its share only");
    }

    /// A failure leaves room for many more attempts within two thirds of the TTL, and they part too.
    #[test]
    fn failures_are_tried_again_soon() {
        let mut keep = Schedule::new(ttl(9_000), at(0), 0);
        keep.unconfirmed(at(3_200), 0);
        assert_eq!(keep.due(), at(3_350));
        keep.unconfirmed(at(3_200), u32::MAX);
        assert_eq!(keep.due(), at(3_650));
    }

    /// One may join others a hundredth of the TTL early, and not before.
    #[test]
    fn joins_others_a_little_early() {
        let keep = Schedule::new(ttl(9_000), at(0), 0);
        assert!(!keep.may_join(at(2_909)));
        assert!(keep.may_join(at(2_910)) && keep.may_join(at(9_999)));
    }

    /// The shortest TTLs have pauses, and nothing wraps with the longest.
    #[test]
    fn extremes_have_pauses() {
        let mut keep = Schedule::new(ttl(4), at(0), u32::MAX);
        assert!(keep.due() >= at(1));
        keep.unconfirmed(at(5), 0);
        assert_eq!(keep.due(), at(6));
        let longest = Schedule::new(Ttl::unchecked(Duration::MAX), Instant::FAR_FUTURE, 7);
        assert_eq!(longest.due(), Instant::FAR_FUTURE);
    }

    /// A failure takes 50 ms at least, and never half of what is left of the lock.
    #[test]
    fn a_failed_extension_takes_its_time() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let millis = Duration::from_millis;

        assert_eq!(pause_after_failure(at(100), at(100), millis(1_000)), millis(50));
        assert_eq!(pause_after_failure(at(100), at(120), millis(1_000)), millis(30));
        assert_eq!(pause_after_failure(at(100), at(400), millis(1_000)), Duration::ZERO);
        assert_eq!(pause_after_failure(at(100), at(100), millis(20)), millis(10));
    }
}
