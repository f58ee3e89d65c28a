//! Fencing tokens: numbers that rise with each fenced holder of a key, for resources that refuse the late writes of an
//! earlier one.
//!
//! Each node keeps a counter for a key: a number, and the owner that advanced it last. A fenced claim advances it; the
//! highest number among the granting nodes is the holder's token, and Q nodes must stand at it, while the lock is this
//! owner's there, before the lock is handed out. Any later holder's quorum contains one of these nodes, and was granted
//! there after this holder's lock had ended: its number, and so its token, is greater. Clocks only matter where a node
//! has lost its counters.
//!
//! Knows the numbers and what they decide; no votes, no commands, no clock.

use std::fmt;
use std::time::Duration;

use crate::protocol::quorum::{NodeId, NodeSet, Quorum};
use crate::protocol::time::Instant;

/// How far beyond the foremost of the nodes' clocks a client's clock may advance a counter: one that is years ahead moves the
/// tokens by this much. Well-kept clocks differ by less than a second.
pub const MOST_AHEAD: Duration = Duration::from_secs(10);

/// What a number may be beyond [`MOST_AHEAD`] of the foremost node that this client knows: other clients know other nodes,
/// and each claim advances a counter by one at least.
const ALLOWANCE: Duration = Duration::from_secs(1);

/// Counters end below this, which is close to 2^53, where the numbers of server scripts stop being exact. In microseconds
/// since 1970 it is the year 2255.
pub const END: u64 = 9_000_000_000_000_000;

/// A number that rises with each fenced holder of a key.
///
/// Mostly it is the microseconds since 1970 at the time of the claim; nothing may be concluded from that.
///
/// ```
/// # #[cfg(feature = "runtime")] {
/// use redquorum::FencingToken;
///
/// assert!(FencingToken::new(2) > FencingToken::new(1));
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token of this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, below 2^53: it fits a signed 64-bit column, and a double.
    ///
    /// ```
    /// # #[cfg(feature = "runtime")] {
    /// let token = redquorum::FencingToken::new(4711);
    /// let column: i64 = token.as_u64().try_into().expect("below 2^53");
    /// # }
    /// ```
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// How long a node keeps a counter beyond both its own time and the time that the counter denotes: whole milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention(u64);

impl Retention {
    /// The longest: a hundred years, which is as good as for ever and leaves the arithmetic room.
    pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

    /// A retention of this long, cut to whole milliseconds, [`Retention::LONGEST`] at most.
    pub fn new(retention: Duration) -> Self {
        Self(u64::try_from(retention.min(Self::LONGEST).as_millis()).unwrap_or(u64::MAX))
    }

    /// In milliseconds, as sent to servers.
    pub fn as_millis(self) -> u64 {
        self.0
    }
}

/// A token that an operation carries along: where the lock is this owner's, the node's counter is lifted to at least it,
/// and kept for as long as ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carry {
    /// The token.
    pub token: FencingToken,
    /// How long the counter is kept.
    pub retention: Retention,
}

/// What a claim does to the node's counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// Advances it, unless this owner did so before: to max(stored + 1, candidate).
    Advance {
        /// What [`candidate`] suggests.
        candidate: u64,
        /// How long the counter is kept.
        retention: Retention,
    },
    /// Lifts it: the claim heals.
    Carry(Carry),
}

/// What one node stores for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter<O> {
    /// The number.
    pub number: u64,
    /// The owner that advanced it last.
    pub owner: O,
    /// The last millisecond in which it is there.
    pub expires: u64,
}

impl<O: Copy + PartialEq> Counter<O> {
    /// The counter after a claim by `owner` at `now`, the node's time in microseconds; as it was where the claim does not
    /// touch it. `None` at the end of all numbers: the claim is refused.
    pub fn claimed(stored: Option<Self>, owner: O, fence: Fence, now: u64) -> Option<Self> {
        let number = stored.map_or(0, |stored| stored.number);
        let (next, retention) = match (fence, stored) {
            (Fence::Carry(Carry { token, retention }), _) => (number.max(token.0), retention),
            (Fence::Advance { .. }, Some(stored)) if stored.owner == owner => {
                return Some(stored).filter(|stored| stored.number < END);
            }
            (Fence::Advance { candidate, retention }, _) => {
                (candidate.max(number.saturating_add(1)), retention)
            }
        };
        if next >= END {
            return None;
        }
        let owner = stored.filter(|_| next == number).map_or(owner, |stored| stored.owner);
        let expires = (now.max(next) / 1_000).saturating_add(retention.0);
        Some(Self { number: next, owner, expires })
    }
}

/// The number that a client suggests, in microseconds since 1970: what its wall clock shows, but no more than [`MOST_AHEAD`]
/// beyond the foremost of the `nodes`' clocks, as far as the client knows them.
///
/// A node does not hold a client back by its own clock: where all nodes that grant are behind, and one of them lost its
/// counters, the token would be smaller than the last. A client that acquires knows the clocks of a quorum at least. If
/// fewer nodes are behind, or it has met one of the others before, it is not held back.
pub fn candidate(wall: u64, nodes: impl IntoIterator<Item = u64>) -> u64 {
    let ahead = u64::try_from(MOST_AHEAD.as_micros()).unwrap_or(u64::MAX);
    nodes.into_iter().max().map_or(wall, |foremost| wall.min(foremost.saturating_add(ahead)))
}

/// The highest number that candidates explain, as far as the client knows the `nodes`' clocks; `None` if it knows none.
///
/// A number above it may be honest: some clients know a node whose clock is further ahead. Then a quorum of nodes stands at such
/// numbers, and each later quorum has one of these nodes.
pub fn most_expected(nodes: impl IntoIterator<Item = u64>) -> Option<u64> {
    let beyond = u64::try_from((MOST_AHEAD + ALLOWANCE).as_micros()).unwrap_or(u64::MAX);
    nodes.into_iter().max().map(|foremost| foremost.saturating_add(beyond))
}

/// A grant whose number no clock explains, as long as no other node confirms it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubted {
    /// Who granted.
    pub node: NodeId,
    /// The number.
    pub number: FencingToken,
    /// Whether the grant counts if the number is believed.
    pub counts: bool,
}

/// One lease's way to its token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fencing {
    candidate: u64,
    retention: Retention,
    /// When the acquire's clock was started: validity counts from there, however the token was come by.
    started: Instant,
    /// The highest number among the granting nodes, and who gave it.
    highest: u64,
    standing: NodeSet,
    /// Who granted a claim of the acquire: there the key lives for the whole TTL. A vote that the owner was handed in the queue
    /// is this owner's as well, and ends sooner.
    claimed: NodeSet,
    /// Q nodes stand at it.
    settled: bool,
    /// Numbers above this are doubted.
    expected: u64,
    /// The node with the highest such number, if it is the only one that has one as high.
    doubted: Option<Doubted>,
}

impl Fencing {
    /// Of an acquire whose clock was started at `started`. With [`Fence::Carry`] it has its token already.
    ///
    /// Numbers above `expected` are doubted, if there is one; see [`most_expected`].
    pub fn new(fence: Fence, expected: Option<u64>, started: Instant) -> Self {
        let (candidate, retention, highest) = match fence {
            Fence::Advance { candidate, retention } => (candidate, retention, 0),
            Fence::Carry(Carry { token, retention }) => (token.0, retention, token.0),
        };
        let settled = matches!(fence, Fence::Carry(_));
        let (standing, claimed) = (NodeSet::EMPTY, NodeSet::EMPTY);
        let expected = expected.unwrap_or(u64::MAX);
        Self { candidate, retention, started, highest, standing, claimed, settled, expected, doubted: None }
    }

    /// When the acquire's clock was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// What a claim of the acquire does.
    pub fn advance(&self) -> Fence {
        Fence::Advance { candidate: self.candidate, retention: self.retention }
    }

    /// What everything after the acquire's claims carries along.
    pub fn carry(&self) -> Carry {
        Carry { token: FencingToken(self.highest), retention: self.retention }
    }

    /// A node granted at a number. It is believed if a clock explains it, or if another of at least three nodes has one as high.
    /// Returns whether it is, and the earlier grant that it confirms.
    ///
    /// One node's number alone must not be taken: a single node with a number close to the end would spend the key's tokens on all
    /// nodes. Not taking it is safe. A token that was handed out stands at Q nodes, so Q grants at lower numbers cannot be. They
    /// would need nodes that lost their counters, and then clocks decide as they always do.
    pub fn believes(&mut self, grant: Doubted, quorum: Quorum) -> (bool, Option<Doubted>) {
        let number = grant.number.0;
        if number <= self.expected || quorum.nodes() < 3 {
            return (true, None);
        }
        if grant.counts {
            // The lock is this owner's there, whatever the number: a raise counts.
            self.claimed.insert(grant.node);
        }
        let Some(other) = self.doubted.filter(|other| other.node != grant.node) else {
            self.doubted = Some(grant);
            return (false, None);
        };
        self.expected = number.min(other.number.0);
        let (believed, confirmed) = (number <= self.expected, other.number.0 <= self.expected);
        self.doubted = match (believed, confirmed) {
            (true, true) => None,
            (true, false) => Some(other),
            (false, _) => Some(grant),
        };
        (believed, confirmed.then_some(other))
    }

    /// The node whose grant would count if its number were believed. It is taken once.
    pub fn take_doubted(&mut self) -> Option<NodeId> {
        let doubted = self.doubted.as_mut().filter(|doubted| doubted.counts)?;
        doubted.counts = false;
        Some(doubted.node)
    }

    /// Whether a grant waits for another node to confirm its number.
    pub fn has_doubted(&self) -> bool {
        self.doubted.is_some_and(|doubted| doubted.counts)
    }

    /// A node granted, whether or not its grant counts, and stands at this number.
    pub fn seen(&mut self, number: FencingToken) {
        if number.0 > self.highest {
            (self.highest, self.standing) = (number.0, NodeSet::EMPTY);
        }
    }

    /// A node's grant counts, and it stands at this number.
    pub fn granted(&mut self, node: NodeId, number: FencingToken) {
        self.seen(number);
        self.claimed.insert(node);
        if number.0 == self.highest {
            self.standing.insert(node);
        }
    }

    /// A claim was granted after the verdict.
    pub fn granted_late(&mut self, node: NodeId) {
        self.claimed.insert(node);
    }

    /// Whether the node granted a claim of the acquire, so that a raise there counts.
    pub fn has_claimed(&self, node: NodeId) -> bool {
        self.claimed.contains(node)
    }

    /// Whether Q of the nodes that granted stand at the highest number. Where not, the others have to be raised to it.
    pub fn is_agreed(&self, quorum: Quorum) -> bool {
        self.standing.len() >= quorum.needed()
    }

    /// Q nodes stand at the highest number, which is the token from now on.
    pub fn settle(&mut self) {
        self.settled = true;
    }

    /// The token, once Q nodes stand at it.
    pub fn token(&self) -> Option<FencingToken> {
        self.settled.then_some(FencingToken(self.highest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node's time: a billion seconds.
    const NOW: u64 = 1_000_000_000_000_000;
    const WEEK: Retention = Retention(604_800_000);

    fn advance(candidate: u64) -> Fence {
        Fence::Advance { candidate, retention: WEEK }
    }

    fn carry(token: u64) -> Fence {
        Fence::Carry(Carry { token: FencingToken(token), retention: WEEK })
    }

    fn stored(number: u64, owner: u8) -> Option<Counter<u8>> {
        Some(Counter { number, owner, expires: 0 })
    }

    fn number(stored: Option<Counter<u8>>, owner: u8, fence: Fence) -> u64 {
        Counter::claimed(stored, owner, fence, NOW).unwrap().number
    }

    /// f = max(stored + 1, candidate), for every owner but the one that advanced it last, whatever the node's clock shows.
    #[test]
    fn claims_advance_the_counter() {
        assert_eq!(number(None, 1, advance(NOW - 5)), NOW - 5);
        assert_eq!(number(stored(NOW, 1), 2, advance(NOW - 5)), NOW + 1, "a clock that is behind");
        assert_eq!(number(stored(NOW, 1), 2, advance(NOW + 7)), NOW + 7);
        assert_eq!(number(stored(7, 1), 1, advance(NOW)), 7, "the same owner again");
        let decade = 10 * 365 * 86_400 * 1_000_000;
        assert_eq!(
            number(stored(7, 1), 2, advance(NOW + decade)),
            NOW + decade,
            "the node's clock is behind"
        );
        assert_eq!(number(stored(NOW + decade, 1), 2, advance(0)), NOW + decade + 1, "never back");
    }

    /// A client's clock counts up to ten seconds beyond the foremost node's that it knows, and where it knows none, as it is.
    #[test]
    fn the_foremost_node_caps_the_candidate() {
        let decade = 10 * 365 * 86_400 * 1_000_000;
        assert_eq!(candidate(NOW, []), NOW);
        assert_eq!(candidate(NOW, [NOW - decade, NOW - 10_000_000, 0]), NOW, "one that is right is enough");
        assert_eq!(candidate(NOW, [NOW - decade, NOW + decade]), NOW, "and so is one that is ahead");
        assert_eq!(
            candidate(NOW + decade, [NOW - 5, NOW, NOW - decade]),
            NOW + 10_000_000,
            "ten years ahead"
        );
        assert_eq!(candidate(u64::MAX, [u64::MAX - 1]), u64::MAX, "nothing wraps");
    }

    /// Healing lifts a counter to the token and never lowers it; it stays whose it was where nothing was lifted.
    #[test]
    fn healing_carries_the_counter_along() {
        assert_eq!(number(None, 1, carry(NOW)), NOW);
        assert_eq!(number(stored(NOW - 1, 2), 1, carry(NOW)), NOW);
        let above = Counter::claimed(stored(NOW + 1, 2), 1, carry(NOW), NOW).unwrap();
        assert_eq!((above.number, above.owner), (NOW + 1, 2));
    }

    /// A counter is kept for the retention beyond both the node's time and the time that it denotes.
    #[test]
    fn counters_outlive_the_time_that_they_denote() {
        let expires = |fence| Counter::claimed(stored(1, 9), 1, fence, NOW).unwrap().expires;
        assert_eq!(expires(advance(NOW - 1_000)), NOW / 1_000 + WEEK.0);
        assert_eq!(expires(advance(NOW + 5_000_000)), (NOW + 5_000_000) / 1_000 + WEEK.0);
        assert_eq!(expires(carry(NOW + 3_600_000_000)), NOW / 1_000 + 3_600_000 + WEEK.0);
    }

    /// Close to 2^53 no counter goes on, since scripts would not count exactly any more.
    #[test]
    fn counters_end_before_they_are_inexact() {
        assert_eq!(number(stored(END - 2, 1), 2, advance(0)), END - 1);
        assert_eq!(Counter::claimed(stored(END - 1, 1), 2, advance(0), NOW), None);
        assert_eq!(Counter::claimed(stored(1, 1), 2, carry(END), NOW), None);
        const { assert!(END < 1 << 53) };
    }

    /// The token is the highest number of the granting nodes, and agreed only where Q of them gave it.
    #[test]
    fn token_is_agreed_by_a_quorum_of_grants() {
        let (three, retention) = (Quorum::of(3).unwrap(), WEEK);
        let mut same = Fencing::new(Fence::Advance { candidate: 10, retention }, None, Instant::default());
        same.granted(NodeId::new(0), FencingToken(10));
        same.granted(NodeId::new(0), FencingToken(10));
        assert!(!same.is_agreed(three), "one node, whatever it repeats");
        same.granted(NodeId::new(2), FencingToken(10));
        assert!(same.is_agreed(three));
        assert_eq!(same.token(), None, "not before it is settled");

        let mut split = Fencing::new(Fence::Advance { candidate: 10, retention }, None, Instant::default());
        for (node, number) in [(0, 10), (1, 12), (2, 10)] {
            split.granted(NodeId::new(node), FencingToken(number));
        }
        assert!(!split.is_agreed(three), "two nodes, but not at the highest");
        // A grant that does not count may know more, and nobody stands at its number.
        split.seen(FencingToken(11));
        assert_eq!(split.carry().token, FencingToken(12));
        same.seen(FencingToken(11));
        assert!(!same.is_agreed(three));
        split.settle();
        assert_eq!(split.token(), Some(FencingToken(12)));
    }

    /// A token is its number, a retention whole milliseconds, a hundred years at most.
    #[test]
    fn tokens_and_retentions_are_what_they_say() {
        assert_eq!((FencingToken::new(4711).as_u64(), u64::from(FencingToken::new(4711))), (4711, 4711));
        assert_eq!(Retention::new(Duration::from_micros(10_999)).as_millis(), 10);
        assert_eq!(Retention::new(Duration::MAX).as_millis(), 3_153_600_000_000);
    }

    /// A counter at the end of all numbers refuses everybody, the owner that advanced it last included.
    #[test]
    fn the_end_of_numbers_is_for_all() {
        for owner in [1, 2] {
            assert_eq!(Counter::claimed(stored(END, 1), owner, advance(NOW), NOW), None);
        }
        assert_eq!(number(stored(END - 1, 1), 1, advance(NOW)), END - 1);
    }
}
