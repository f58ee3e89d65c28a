//! The settings of a client: defaults with their reasons, and the checks that a request has to pass.

mod invalid;

use std::time::Duration;

use crate::protocol::fencing::Retention;
use crate::protocol::lease::Terms;
use crate::protocol::message::Key;
use crate::protocol::quorum::Quorum;
use crate::protocol::renewal;
use crate::protocol::restart::RestartDelay;
use crate::protocol::validity::{Drift, Ttl};

pub use invalid::InvalidRequest;

/// Long enough for a garbage collection, a slow disk or a failover of the caller's database; short enough that a crashed
/// holder does not block others for long.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// Three times the default TTL: a crashed holder's key expires within it, and one or two queues before.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// A TCP connection over a distance takes some 300 ms with a lost packet, and TLS a little more.
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// First upper bound of a pause between attempts: some round trips within a data centre.
pub(crate) const DEFAULT_RETRY_LEAST: Duration = Duration::from_millis(20);

/// Longest pause between attempts: a lock that becomes free is noticed within it.
pub(crate) const DEFAULT_RETRY_MOST: Duration = Duration::from_millis(250);

/// Long enough that a lock which is taken once a day, or not over a holiday, keeps its counter; short enough that the names of
/// locks that are never used again do not pile up.
pub(crate) const DEFAULT_FENCING_RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// Longest key, prefix included. Servers take 512 MB; a name of more than 64 KiB is a mistake, and would make every
/// command expensive.
pub(crate) const MAX_KEY_LENGTH: usize = 64 * 1024;

/// Most calls inside one node's door. Some 500 tasks with a set and a release each fit twice.
pub(crate) const BACKLOG: usize = 2_048;

/// Endings of the client's own keys: a lock of such a name would collide with another lock's helper.
pub(crate) const RESERVED_SUFFIXES: [&str; 4] =
    [":redquorum:line", ":redquorum:lives", ":redquorum:fence", "redquorum:node"];

/// The settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) prefix: Vec<u8>,
    pub(crate) ttl: Duration,
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) drift: Drift,
    pub(crate) min_validity: Option<Duration>,
    pub(crate) reply_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) wait: Wait,
    pub(crate) retry: (Duration, Duration),
    /// Whether those who wait wait in the queue, instead of asking again and again.
    pub(crate) in_queue: bool,
    pub(crate) keeping: KeepAlive,
    pub(crate) delay: Delay,
    pub(crate) fencing_retention: Duration,
    /// How far this client's wall clock is off, in microseconds: for tests.
    pub(crate) wall_clock_off: i64,
}

/// Whether a lock is kept alive, and for how long at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeepAlive {
    pub(crate) alive: bool,
    pub(crate) longest: Option<Duration>,
}

impl KeepAlive {
    /// What is in force. A limit alone, as a client may have it for all its kept locks, keeps nothing.
    pub(crate) fn in_force(self) -> Self {
        if self.alive { self } else { Self::default() }
    }
}

/// The restart delay: the longest TTL that anybody uses on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delay {
    /// The client's own longest TTL.
    MaxTtl,
    /// This long.
    Of(Duration),
    /// Every node votes at once.
    Off,
}

/// How long an acquire may wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// One round, no waiting.
    No,
    /// At most this long.
    AtMost(Duration),
    /// For ever.
    Unlimited,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            ttl: DEFAULT_TTL,
            max_ttl: None,
            drift: Drift::default(),
            min_validity: None,
            reply_timeout: None,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            wait: Wait::AtMost(DEFAULT_WAIT),
            retry: (DEFAULT_RETRY_LEAST, DEFAULT_RETRY_MOST),
            in_queue: true,
            keeping: KeepAlive::default(),
            delay: Delay::MaxTtl,
            fencing_retention: DEFAULT_FENCING_RETENTION,
            wall_clock_off: 0,
        }
    }
}

impl Config {
    /// The longest TTL that a request may ask for.
    pub(crate) fn max_ttl(&self) -> Duration {
        self.max_ttl.unwrap_or(self.ttl)
    }

    /// How old a node's memory must be.
    pub(crate) fn delay(&self) -> Result<Option<RestartDelay>, InvalidRequest> {
        let (delay, max_ttl) = match (self.delay, self.max_ttl()) {
            (Delay::Off, _) => return Ok(None),
            (Delay::MaxTtl, max_ttl) => (max_ttl, max_ttl),
            (Delay::Of(delay), max_ttl) => (delay, max_ttl),
        };
        if delay < max_ttl {
            return Err(InvalidRequest::RestartDelayTooShort { delay, max_ttl });
        }
        let checked = Ttl::new(delay, self.drift, delay);
        let checked = checked.map_err(|error| InvalidRequest::from_ttl(delay, error))?;
        Ok(Some(RestartDelay::new(checked, self.drift)))
    }

    /// How long one round waits for replies: a fiftieth of the TTL, so that waiting costs 2 % of it at most; not below
    /// 10 ms, which a busy network needs, and not above 500 ms, after which nothing comes any more.
    pub(crate) fn reply_timeout(&self, ttl: Duration) -> Duration {
        let derived = (ttl / 50).clamp(Duration::from_millis(10), Duration::from_millis(500));
        self.reply_timeout.unwrap_or(derived)
    }

    /// The least validity of a lock that was just acquired: a tenth of the TTL, since a holder who cannot do anything
    /// with it should rather be told.
    fn min_validity(&self, ttl: Duration) -> Duration {
        self.min_validity.unwrap_or(ttl / 10)
    }

    /// Checks everything that does not depend on a single request.
    pub(crate) fn check(&self, quorum: Quorum) -> Result<(), InvalidRequest> {
        for (name, timeout) in [
            ("reply timeout", self.reply_timeout.unwrap_or(Duration::MAX)),
            ("connect timeout", self.connect_timeout),
            ("first retry pause", self.retry.0),
            ("longest retry pause", self.retry.1),
        ] {
            if timeout.is_zero() {
                return Err(InvalidRequest::ZeroTimeout { name });
            }
        }
        self.delay()?;
        let (retention, least, most) = (self.fencing_retention, self.max_ttl(), Retention::LONGEST);
        if retention < least || retention > most {
            return Err(InvalidRequest::FencingRetention { retention, least, most });
        }
        self.terms(quorum, self.ttl, self.keeping).map(|_| ())
    }

    /// The terms of a lease with this TTL, kept alive or not.
    pub(crate) fn terms(
        &self,
        quorum: Quorum,
        ttl: Duration,
        keeping: KeepAlive,
    ) -> Result<Terms, InvalidRequest> {
        let terms = self.plain_terms(quorum, ttl)?;
        if !keeping.alive {
            return Ok(terms);
        }
        let min_validity = terms.min_validity;
        if let Some(max_hold) = keeping.longest.filter(|longest| *longest <= min_validity) {
            return Err(InvalidRequest::MaxHoldTooShort { max_hold, min_validity });
        }
        // An extension that waits in vain for replies leaves time for another one.
        let left =
            ttl.saturating_sub(self.drift.allowance(terms.ttl)).saturating_sub(renewal::interval(terms.ttl));
        let most = left / 2;
        let reply_timeout = self.reply_timeout.unwrap_or(terms.reply_timeout.min(most));
        if reply_timeout > most || most.is_zero() {
            return Err(InvalidRequest::NoRoomToExtend { reply_timeout, ttl, most });
        }
        Ok(Terms { reply_timeout, ..terms })
    }

    fn plain_terms(&self, quorum: Quorum, ttl: Duration) -> Result<Terms, InvalidRequest> {
        let checked = self.ttl(ttl)?;
        let allowance = self.drift.allowance(checked);
        let most = ttl.saturating_sub(allowance);
        let min_validity = self.min_validity(ttl);
        if min_validity >= most {
            return Err(InvalidRequest::MinValidityTooLong { min_validity, ttl, most });
        }
        // A derived timeout adapts to a short TTL; one that was set is taken at its word, and must fit.
        let left = most - min_validity;
        let derived = self.reply_timeout(ttl).min(left);
        let reply_timeout = self.reply_timeout.unwrap_or(derived);
        if reply_timeout > left {
            return Err(InvalidRequest::ReplyTimeoutTooLong {
                reply_timeout,
                ttl,
                allowance,
                min_validity,
                left,
            });
        }
        Ok(Terms { quorum, ttl: checked, drift: self.drift, min_validity, reply_timeout })
    }

    /// How long nodes keep the counters of fenced locks.
    pub(crate) fn retention(&self) -> Retention {
        Retention::new(self.fencing_retention)
    }

    /// A TTL that was checked.
    pub(crate) fn ttl(&self, ttl: Duration) -> Result<Ttl, InvalidRequest> {
        Ttl::new(ttl, self.drift, self.max_ttl()).map_err(|error| InvalidRequest::from_ttl(ttl, error))
    }

    /// The key on the servers: prefix + name.
    pub(crate) fn key(&self, name: &[u8]) -> Result<Key, InvalidRequest> {
        if name.is_empty() {
            return Err(InvalidRequest::EmptyKey);
        }
        let length = self.prefix.len().saturating_add(name.len());
        if length > MAX_KEY_LENGTH {
            return Err(InvalidRequest::KeyTooLong { length, maximum: MAX_KEY_LENGTH });
        }
        let key =
            if self.prefix.is_empty() { Key::new(name) } else { Key::new([&self.prefix, name].concat()) };
        let reserved = |suffix: &&str| key.as_bytes().ends_with(suffix.as_bytes());
        match RESERVED_SUFFIXES.into_iter().find(reserved) {
            Some(suffix) => Err(InvalidRequest::ReservedKey { suffix }),
            None => Ok(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn three() -> Quorum {
        Quorum::of(3).unwrap()
    }

    /// The defaults table of the README.
    #[test]
    fn defaults_are_what_the_documents_say() {
        let config = Config::default();
        let terms = config.terms(three(), config.ttl, KeepAlive::default()).unwrap();

        assert_eq!(config.check(three()), Ok(()));
        assert_eq!((terms.ttl.duration(), config.max_ttl()), (ms(10_000), ms(10_000)));
        assert_eq!((terms.reply_timeout, terms.min_validity), (ms(200), ms(1_000)));
        assert_eq!(config.wait, Wait::AtMost(ms(30_000)));
        assert_eq!(config.connect_timeout, ms(1_000));
        assert_eq!(config.reply_timeout(ms(100)), ms(10));
        assert_eq!(config.reply_timeout(ms(60_000)), ms(500));
    }

    /// The README's table has each default as it is here.
    #[test]
    fn readme_names_every_default() {
        let seconds = |duration: Duration| format!("{} s", duration.as_secs());
        let millis = |duration: Duration| format!("{} ms", duration.as_millis());
        let (ttl, wait) = (seconds(DEFAULT_TTL), seconds(DEFAULT_WAIT));
        let (least, most) = (millis(DEFAULT_RETRY_LEAST), millis(DEFAULT_RETRY_MOST));
        let rows = [
            format!("| `ttl` | {ttl} |"),
            format!("| `wait`, `wait_forever` | {wait} |"),
            format!("| `retry_delay` | random, up to {least} at first, doubling to {most} |"),
            format!("| `connect_timeout` | {} |", seconds(DEFAULT_CONNECT_TIMEOUT)),
            "| `restart_delay`, `without_restart_delay` | the longest TTL of a request".to_owned(),
            format!("its marker | | every {}", seconds(crate::node::redis::LOOK_EVERY)),
            format!("from 1 byte to {MAX_KEY_LENGTH} bytes |"),
            format!("{BACKLOG} sets at most, {} with releases", 2 * BACKLOG),
            format!(
                "{} at most, then the one that ends first",
                crate::protocol::in_doubt::MAX_DEBTS_PER_NODE
            ),
            format!("from 1 to {} are possible", crate::protocol::quorum::MAX_NODES),
            format!("| {} before the end of validity |", millis(crate::runtime::alarm::EARLY)),
            format!("| {} at most; one, where", crate::protocol::message::MOST_EXTENSIONS),
            format!("| {} at most, others wait |", crate::runtime::renewal::work::MOST_UNDER_WAY),
            "| `keep_alive` | only where a request asks for it |".to_owned(),
            format!("| `fencing_retention` | {} days", DEFAULT_FENCING_RETENTION.as_secs() / 86_400),
            format!("more than {} ahead", seconds(crate::protocol::fencing::MOST_AHEAD)),
            "| `max_hold` | none: until it is released |".to_owned(),
            format!("again after a {}th of the TTL", renewal::AGAIN),
        ];
        assert_eq!(Config::default().keeping, KeepAlive { alive: false, longest: None });
        assert_eq!((renewal::SHARE, renewal::JITTER), (3, 3), "a third, or up to a third earlier");
        let readme = include_str!("../../README.md");
        for row in rows {
            assert!(readme.contains(&row), "{row:?} is not in the README");
        }
    }

    /// Settings that contradict each other are refused, with both numbers.
    #[test]
    fn contradictions_quote_both_numbers() {
        let config = Config { reply_timeout: Some(ms(2_000)), ttl: ms(1_000), ..Config::default() };
        let error = config.check(three()).unwrap_err();
        assert!(matches!(error, InvalidRequest::ReplyTimeoutTooLong { .. }));
        let text = error.to_string();
        assert!(text.contains("2s") && text.contains("1s") && text.contains("888ms"), "{text}");

        let config = Config { min_validity: Some(ms(990)), ttl: ms(1_000), ..Config::default() };
        assert!(matches!(config.check(three()), Err(InvalidRequest::MinValidityTooLong { .. })));
        let config = Config { connect_timeout: Duration::ZERO, ..Config::default() };
        assert_eq!(config.check(three()), Err(InvalidRequest::ZeroTimeout { name: "connect timeout" }));
        let config = Config { reply_timeout: Some(Duration::ZERO), ..Config::default() };
        assert_eq!(config.check(three()), Err(InvalidRequest::ZeroTimeout { name: "reply timeout" }));
    }

    /// The restart delay is for the longest TTL, on by default; one that is shorter is refused, quoting both.
    #[test]
    fn the_guard_covers_the_longest_ttl() {
        let config = Config { ttl: ms(1_000), max_ttl: Some(ms(5_000)), ..Config::default() };
        assert_eq!(config.delay().unwrap().unwrap().least(), ms(5_052));
        let longer = Config { delay: Delay::Of(ms(20_000)), ..config.clone() };
        assert_eq!(longer.delay().unwrap().unwrap().least(), ms(20_202));
        assert!(longer.check(three()).is_ok());
        let shorter = Config { delay: Delay::Of(ms(4_999)), ..config.clone() };
        let error = shorter.check(three()).unwrap_err();
        assert_eq!(error, InvalidRequest::RestartDelayTooShort { delay: ms(4_999), max_ttl: ms(5_000) });
        assert!(error.to_string().contains("4.999s") && error.to_string().contains("5s"), "{error}");
        assert_eq!(Config { delay: Delay::Off, ..config }.delay(), Ok(None));
    }

    /// A derived reply timeout gives way to a short TTL; every TTL above the drift allowance by 2 ms works.
    #[test]
    fn short_ttls_shorten_the_reply_timeout() {
        let config = Config::default();
        for millis in 4..200 {
            let terms = config.terms(three(), ms(millis), KeepAlive::default()).unwrap();
            assert!(terms.reply_timeout > Duration::ZERO && terms.reply_timeout <= ms(millis));
        }
        assert!(matches!(
            config.terms(three(), ms(2), KeepAlive::default()),
            Err(InvalidRequest::TtlWithinDrift { .. })
        ));
        assert!(matches!(
            config.terms(three(), ms(10_001), KeepAlive::default()),
            Err(InvalidRequest::TtlTooLong { .. })
        ));
    }

    /// Keys are any bytes but none, too many, or the client's own.
    #[test]
    fn key_policy() {
        let config = Config { prefix: b"app:".to_vec(), ..Config::default() };
        assert_eq!(config.key(b"k").unwrap().as_bytes(), b"app:k");
        assert_eq!(config.key(b"\x00\xff\r\n").unwrap().as_bytes(), b"app:\x00\xff\r\n");
        assert_eq!(config.key(b""), Err(InvalidRequest::EmptyKey));
        assert!(config.key(&vec![b'x'; MAX_KEY_LENGTH - 4]).is_ok());
        let error = config.key(&vec![b'x'; MAX_KEY_LENGTH - 3]).unwrap_err();
        assert_eq!(error, InvalidRequest::KeyTooLong { length: MAX_KEY_LENGTH + 1, maximum: MAX_KEY_LENGTH });
        assert!(matches!(config.key(b"a:redquorum:line"), Err(InvalidRequest::ReservedKey { .. })));
    }
}
