//! When a node is tried again that has no connection, and what is said of its trouble.
//!
//! A node that cannot be reached costs nobody anything, and is tried often, so that it is used soon after it is back. A server
//! that refuses or hangs up does work for each attempt. Many clients that come again at once may be all that it does. So they
//! come less and less often.

use std::time::Duration;

use crate::protocol::time::Instant;

/// The least pause between two attempts, from start to start: at most ten a second.
const LEAST: Duration = Duration::from_millis(100);

/// A pause before doubling is drawn from this span above the least. A node that could not be reached is used within a second.
const SPREAD: Duration = Duration::from_millis(200);

/// The longest pause, less half of what was drawn: a server that refused is used within two seconds.
const MOST: Duration = Duration::from_millis(1_950);

/// Another trouble than the one that was said is said after so long: a server that starts has several, one after the other.
const STEADY: Duration = Duration::from_secs(2);

/// Why an attempt brought no connection, or why it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Nothing answered, or it will answer soon, or a connection in use ended.
    Away,
    /// The server answered with an error, or hung up.
    Refused,
}

/// The attempts to connect to one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reconnect {
    refusals: u32,
    /// Something was said since the last connection.
    said: bool,
    /// When the present trouble began that was not said.
    began: Option<Instant>,
}

impl Reconnect {
    /// There is a connection.
    pub fn handle_connected(&mut self) {
        *self = Self::default();
    }

    /// An attempt failed, or the connection ended. Says whether to say so: `is_said` that this very trouble was said last, and
    /// `is_new` that the attempt before had another.
    pub fn handle_failure(&mut self, failure: Failure, is_said: bool, is_new: bool, now: Instant) -> bool {
        self.refusals = match failure {
            Failure::Away => 0,
            Failure::Refused => self.refusals.saturating_add(1),
        };
        if self.said && is_said {
            self.began = None;
            return false;
        }
        let began = *self.began.get_or_insert(now);
        if is_new {
            self.began = Some(now);
        }
        let say = !self.said || (!is_new && now.since(began) >= STEADY);
        if say {
            (self.said, self.began) = (true, None);
        }
        say
    }

    /// The pause from the start of the last attempt to that of the next, drawn with `random`, a uniform 64-bit number.
    pub fn pause(&self, random: u64) -> Duration {
        let spread = u64::try_from(SPREAD.as_nanos()).unwrap_or(u64::MAX);
        let drawn = LEAST.saturating_add(Duration::from_nanos(random % spread));
        let doubled = drawn.saturating_mul(1 << self.refusals.saturating_sub(1).min(8));
        doubled.min(MOST.saturating_sub(drawn / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::default().after(Duration::from_millis(millis))
    }

    /// A node that is away is tried again within 0.3 s, however long it is away; one that refuses, less and less often, down
    /// to once in two seconds.
    #[test]
    fn refusals_make_attempts_rarer() {
        let mut reconnect = Reconnect::default();
        for random in [0, u64::MAX, 1 << 40] {
            for _ in 0..100 {
                reconnect.handle_failure(Failure::Away, true, false, at(0));
            }
            let pause = reconnect.pause(random);
            assert!(pause >= LEAST && pause < LEAST + SPREAD, "{pause:?}");
        }
        for random in [0, u64::MAX, 1 << 40] {
            let (mut reconnect, mut spent, mut attempts) = (Reconnect::default(), Duration::ZERO, 0);
            while spent < Duration::from_secs(60) {
                reconnect.handle_failure(Failure::Refused, true, false, at(0));
                let pause = reconnect.pause(random);
                assert!(pause < Duration::from_secs(2), "{pause:?}");
                (spent, attempts) = (spent + pause, attempts + 1);
            }
            assert!(attempts <= 40, "{attempts} in a minute");
            reconnect.handle_connected();
            assert!(reconnect.pause(random) < LEAST + SPREAD, "forgotten with a connection");
        }
    }

    /// The first trouble is said at once. Another one is said if it stays, and the same is not said twice.
    #[test]
    fn trouble_is_said_once() {
        let mut reconnect = Reconnect::default();
        let mut fails =
            |is_said, is_new, millis| reconnect.handle_failure(Failure::Away, is_said, is_new, at(millis));
        assert!(fails(false, true, 0), "closed by the server");
        assert!(!fails(false, true, 100), "refused");
        assert!(!fails(false, false, 300), "refused");
        assert!(!fails(false, true, 1_900), "loading");
        assert!(!fails(false, false, 2_200), "loading");
        assert!(fails(false, false, 3_900), "loading, for two seconds");
        assert!(!fails(true, false, 9_000), "still loading");
        assert!(!fails(false, true, 9_100), "refused");
        assert!(!fails(true, true, 9_200), "loading again");
        assert!(!fails(false, true, 11_150), "refused, but not all the time");
        assert!(fails(false, false, 13_200));
        reconnect.handle_connected();
        assert!(
            reconnect.handle_failure(Failure::Away, false, true, at(13_300)),
            "another loss is another change"
        );
    }
}
