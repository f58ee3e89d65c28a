//! When a command under a lock is asked to stop, and when it is killed. Pure arithmetic on the boot clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::exit::Failure;

/// A moment: time since the machine was booted, suspension included, as the library counts validity.
pub type Moment = Duration;

/// Now.
pub fn now() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How long before the end of validity what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// The command is asked to stop.
    pub grace: Duration,
    /// It is killed. A kernel that is busy takes milliseconds to end a process, a large one longer.
    pub margin: Duration,
}

impl Deadlines {
    /// By default the command is asked a quarter of the TTL before the end: extensions begin at a third of the TTL at the latest
    /// and are repeated each thirtieth, so that a dozen of them have failed by then.
    pub fn new(ttl: Duration, grace: Option<Duration>) -> Result<Self, Failure> {
        let margin = (ttl / 10).clamp(Duration::from_millis(50), Duration::from_millis(500));
        let grace = grace.unwrap_or(ttl / 4).max(margin);
        // What is left between the first extension and the request to stop should be enough to try again.
        if grace > ttl / 2 {
            return Err(Failure::usage(format!(
                "a grace of {grace:?} is more than half of the TTL of {ttl:?}: a single extension that fails would stop the \
                 command"
            ))
            .next(format!("use a TTL of {:?} or more, or a shorter grace", 2 * grace)));
        }
        Ok(Self { grace, margin })
    }

    /// When to ask the command to stop, of a lock that is valid until then.
    pub fn ask_at(&self, until: Moment) -> Moment {
        until.saturating_sub(self.grace)
    }

    /// When to kill a command that was asked at `asked`: after its grace, and before the end.
    pub fn kill_at(&self, asked: Moment, until: Moment) -> Moment {
        (asked + self.grace - self.margin).min(until.saturating_sub(self.margin))
    }

    /// When somebody else kills it, if whoever should have done so has not.
    pub fn overdue_at(&self, until: Moment) -> Moment {
        until.saturating_sub(self.margin / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Whatever is asked for, the command is asked, killed, and killed by the guardian in this order, before the end.
    #[test]
    fn everything_is_before_the_end_of_validity() {
        for ttl in [100, 300, 1_000, 10_000, 3_600_000] {
            for grace in [None, Some(Duration::ZERO), Some(ms(ttl) / 2)] {
                let deadlines = Deadlines::new(ms(ttl), grace).unwrap();
                let until = ms(1_000_000 + ttl);
                let asked = deadlines.ask_at(until);
                let killed = deadlines.kill_at(asked, until);
                assert!(asked <= killed, "{ttl} {grace:?}");
                assert!(killed < deadlines.overdue_at(until) && deadlines.overdue_at(until) < until);
            }
        }
    }

    /// A command that is asked early, because the nodes have forgotten it, gets its grace and no more.
    #[test]
    fn an_early_request_ends_early() {
        let deadlines = Deadlines::new(ms(10_000), Some(ms(2_000))).unwrap();
        assert_eq!(deadlines.kill_at(ms(1_000), ms(9_000)), ms(2_500));
        assert_eq!(deadlines.kill_at(ms(8_900), ms(9_000)), ms(8_500));
    }

    /// A grace that the first failed extension would use up is refused, with both numbers.
    #[test]
    fn a_grace_above_half_the_ttl_is_refused() {
        let failure = Deadlines::new(ms(1_000), Some(ms(600))).unwrap_err();
        assert!(failure.what.contains("600ms") && failure.what.contains("1s"), "{failure:?}");
    }
}
