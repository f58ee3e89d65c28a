//! What each node answered in a round, and when: for people, and for code that decides by it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::Node;
#[cfg(feature = "blocking")]
use crate::protocol::message::NotSent;
use crate::protocol::message::{Found, Holder, HolderValue, Key, Reply, Uncounted};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::{Round, Vote};
use crate::protocol::time::Instant;

/// What a node did that did what an acquire asked for.
const GRANTED: &str = "granted";

/// The votes of one round. `Display` is one queue that a person understands:
///
/// ```text
/// 1 granted, 1 unknown, 1 pending of 3 nodes, 2 needed (n1 127.0.0.1:7101 granted in 0.4ms; n2 127.0.0.1:7102 no answer
/// within 50.0ms; n3 127.0.0.1:7103 not waited for)
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    needed: usize,
    nodes: Arc<[NodeReport]>,
    /// What a node did that did what was asked.
    done: &'static str,
}

/// One node's part in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// Where the node is, without credentials.
    pub address: Arc<str>,
    /// What it answered.
    pub outcome: Outcome,
    /// When its answer was there, counted from the start of the round; for a node that was not asked or is still being
    /// waited for, when that was noted.
    pub elapsed: Duration,
}

/// What the nodes know of one lock: a look from outside, out of date as soon as it is there. `Display` is one queue per
/// node.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// print!("{}", redlock.inspect("nightly-report").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    key: Key,
    nodes: Arc<[NodeInspection]>,
}

/// What one node knows of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInspection {
    /// Where the node is, without credentials.
    pub address: Arc<str>,
    /// What it answered, or why it did not.
    pub state: Result<NodeState, String>,
}

/// A lock on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// The value under the key, as in [`Outcome::Held`]; `None` where the lock is free.
    pub holder: Option<String>,
    /// What is left of the key's life; `None` where it is free or never expires.
    pub remaining: Option<Duration>,
    /// How many wait in the queue. Usually one node keeps the queue for all.
    pub waiting: u32,
}

impl Inspection {
    /// What each node told of a key.
    pub(crate) fn new(key: &Key, told: impl IntoIterator<Item = Reply>, nodes: &[Node]) -> Self {
        let state = |told| match told {
            Reply::Found(Found { holder, waiting }) => Ok(NodeState {
                remaining: holder.as_ref().and_then(|holder| holder.remaining),
                holder: holder.map(|holder| holder.value.to_string()),
                waiting,
            }),
            other => Err(Outcome::new(&other, Instant::default()).to_string()),
        };
        let nodes = told
            .into_iter()
            .zip(nodes)
            .map(|(told, node)| NodeInspection { address: node.address().clone(), state: state(told) });
        Self { key: key.clone(), nodes: nodes.collect() }
    }

    /// What a client tells that can ask no node any more.
    #[cfg(feature = "blocking")]
    pub(crate) fn of_a_closed_client(key: &Key, nodes: &[Node]) -> Self {
        let unasked = nodes.iter().map(|_| Reply::NotSent(NotSent::Closed));
        Self::new(key, unasked, nodes)
    }

    /// Each node's part, in the configured order.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let seen = redlock.inspect("report").await?;
    /// let silent = seen.nodes().iter().filter(|node| node.state.is_err());
    /// println!("{} nodes did not tell", silent.count());
    /// # Ok(())
    /// # }
    /// ```
    pub fn nodes(&self) -> &[NodeInspection] {
        &self.nodes
    }

    /// The value that a majority of all nodes carries: whoever has it holds the lock, or did until just now.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// println!("held by {}", redlock.inspect("report").await?.holder().unwrap_or("nobody"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder(&self) -> Option<&str> {
        let names = || self.nodes.iter().filter_map(|node| node.state.as_ref().ok()?.holder.as_deref());
        names().find(|name| 2 * names().filter(|other| other == name).count() > self.nodes.len())
    }

    /// How many wait in the queue, over all nodes.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// println!("{} wait", redlock.inspect("report").await?.waiting());
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiting(&self) -> u32 {
        self.nodes.iter().filter_map(|node| Some(node.state.as_ref().ok()?.waiting)).sum()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = self.holder().unwrap_or("nobody");
        writeln!(f, "lock \"{}\": held by {holder}, {} waiting", self.key, self.waiting())?;
        for (index, NodeInspection { address, state }) in self.nodes.iter().enumerate() {
            write!(f, "n{} {address}: ", index + 1)?;
            match state {
                Err(why) => writeln!(f, "{why}")?,
                Ok(NodeState { holder, remaining, waiting }) => {
                    write!(f, "{}", holder.as_deref().unwrap_or("free"))?;
                    remaining.map_or(Ok(()), |left| write!(f, " for another {left:.1?}"))?;
                    writeln!(f, ", {waiting} waiting")?;
                }
            }
        }
        Ok(())
    }
}

/// How a request ended on one node.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use redquorum::Outcome;
///
/// let report = redlock.acquire("report").await?.report();
/// let slow = report.nodes().iter().filter(|node| node.outcome == Outcome::Pending);
/// println!("{} nodes were not waited for", slow.count());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The node did what was asked: set, extended or deleted.
    Granted,
    /// The key carries another value: the holder's, where the server told.
    Held {
        /// The value found: this client's owners as 32 hex digits cut to 16, others as they are, cut to 64 bytes.
        holder: Option<String>,
        /// What is left of the key's life, where the server told.
        remaining: Option<Duration>,
    },
    /// The node granted, but it may have forgotten a lock that is still held, so that its grant does not count yet: the
    /// restart delay.
    TooYoung {
        /// How much longer, counted from its answer; `None` where that is not known yet.
        remaining: Option<Duration>,
    },
    /// The node granted, but it does not vote: why.
    NonVoting(String),
    /// There is no such key, or it is another's (release and extend).
    NotOurs,
    /// The server refused before executing anything: its error.
    Refused(String),
    /// Nothing was sent: why.
    NotSent(String),
    /// Sent, but whether it was executed is not known: why.
    Unknown(String),
    /// Not answered yet when the round was decided; nobody had to wait for it.
    Pending,
}

impl Report {
    pub(crate) fn new(round: &Round, nodes: &[Node]) -> Self {
        let started = round.started();
        let nodes = round.votes().zip(nodes).map(|(vote, node)| NodeReport::new(vote, node, started));
        Self { needed: round.quorum().needed(), nodes: nodes.collect(), done: GRANTED }
    }

    /// The same of an extension, for people.
    pub(crate) fn of_an_extension(self) -> Self {
        Self { done: "extended", ..self }
    }

    /// The same of a release, for people.
    pub(crate) fn of_a_release(self) -> Self {
        Self { done: "deleted", ..self }
    }

    /// The same with what one node said last of the holder.
    pub(crate) fn with_holder(&self, node: NodeId, holder: Holder, elapsed: Duration) -> Self {
        let mut nodes = self.nodes.to_vec();
        if let Some(report) = nodes.get_mut(node.index()) {
            report.outcome = Outcome::new(&Reply::Held(holder), Instant::default());
            report.elapsed = elapsed;
        }
        Self { nodes: nodes.into(), ..self.clone() }
    }

    /// Who holds the lock, as far as the nodes told: the value that most of them named.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// if let Some(report) = redlock.try_acquire("report").await.err().as_ref().and_then(|error| error.report()) {
    ///     println!("most nodes name {:?}", report.holder());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder(&self) -> Option<&str> {
        let names = || {
            self.nodes.iter().filter_map(|node| match &node.outcome {
                Outcome::Held { holder, .. } => holder.as_deref(),
                _ => None,
            })
        };
        names().max_by_key(|name| names().filter(|other| other == name).count())
    }

    /// How many nodes did what was asked: granted the lock, extended it, or deleted it.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let report = redlock.acquire("report").await?.report();
    /// assert!(report.granted() >= report.needed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn granted(&self) -> usize {
        self.nodes.iter().filter(|node| node.outcome == Outcome::Granted).count()
    }

    /// How many grants decide: the majority of all configured nodes.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let report = redlock.acquire("report").await?.report();
    /// assert!(2 * report.needed() > report.nodes().len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Each node's part, in the configured order.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let report = redlock.acquire("report").await?.report();
    /// report.nodes().iter().for_each(|node| println!("{}: {} in {:?}", node.address, node.outcome, node.elapsed));
    /// # Ok(())
    /// # }
    /// ```
    pub fn nodes(&self) -> &[NodeReport] {
        &self.nodes
    }

    /// Whether nobody can have a majority, as far as the nodes told: contenders have split the votes.
    pub(crate) fn is_split(&self) -> bool {
        let named = self.holder().map_or(0, |most| {
            self.count(
                |outcome| matches!(outcome, Outcome::Held { holder: Some(holder), .. } if holder == most),
            )
        });
        // Those who did not say may all be the same one's.
        let untold = self.count(|outcome| match outcome {
            Outcome::Held { holder, .. } => holder.is_none(),
            Outcome::Granted | Outcome::NotOurs => false,
            _ => true,
        });
        self.count(|outcome| matches!(outcome, Outcome::Held { .. })) > 0 && named + untold < self.needed
    }

    fn count(&self, counts: impl Fn(&Outcome) -> bool) -> usize {
        self.nodes.iter().filter(|node| counts(&node.outcome)).count()
    }
}

impl NodeReport {
    fn new(vote: Vote<'_>, node: &Node, started: Instant) -> Self {
        let answered = started.after(vote.elapsed);
        let outcome = vote.reply.map_or(Outcome::Pending, |reply| Outcome::new(reply, answered));
        Self { address: node.address().clone(), outcome, elapsed: vote.elapsed }
    }

    /// The same for people, with the word for what was `done`.
    fn tell(&self, f: &mut fmt::Formatter<'_>, done: &str) -> fmt::Result {
        let Self { address, outcome, elapsed } = self;
        match outcome {
            Outcome::Granted => write!(f, "{address} {done} in {elapsed:.1?}"),
            Outcome::TooYoung { .. } | Outcome::NonVoting(_) | Outcome::NotOurs | Outcome::Held { .. } => {
                write!(f, "{address} {outcome} in {elapsed:.1?}")
            }
            Outcome::Refused(_) | Outcome::NotSent(_) | Outcome::Unknown(_) | Outcome::Pending => {
                write!(f, "{address} {outcome}")
            }
        }
    }
}

impl Outcome {
    fn new(reply: &Reply, answered: Instant) -> Self {
        match reply {
            Reply::Granted | Reply::Fenced(_) | Reply::HandedOver | Reply::Voted => Self::Granted,
            Reply::Uncounted(Uncounted::TooYoung { until }) => {
                Self::TooYoung { remaining: (*until != Instant::FAR_FUTURE).then(|| until.since(answered)) }
            }
            Reply::Uncounted(Uncounted::Replica) => Self::NonVoting("it is a replica".to_owned()),
            Reply::Uncounted(Uncounted::SameServer(node)) => {
                Self::NonVoting(format!("it is the same server as {node}"))
            }
            Reply::Uncounted(Uncounted::Implausible) => Self::NonVoting(
                "its fencing counter for this key is ahead of all clocks and of the other nodes".to_owned(),
            ),
            Reply::Uncounted(Uncounted::SeveralServers) => {
                Self::NonVoting("several servers answer in turn at its address".to_owned())
            }
            Reply::Held(Holder { value, remaining }) => {
                let holder = (*value != HolderValue::Unnamed).then(|| value.to_string());
                Self::Held { holder, remaining: *remaining }
            }
            Reply::Absent | Reply::NotOurs => Self::NotOurs,
            // No round asks for these.
            Reply::Queued(_) | Reply::QueueFull | Reply::Found(_) | Reply::Each(_) => Self::Pending,
            Reply::CounterExhausted => Self::Refused("the fencing counter is at its end, or is none".into()),
            Reply::Refused(message) => Self::Refused(message.to_string()),
            Reply::NotSent(reason) => Self::NotSent(reason.to_string()),
            Reply::Unknown(reason) => Self::Unknown(reason.to_string()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.granted(), self.done)?;
        let kinds = [
            ("held", self.count(|outcome| matches!(outcome, Outcome::Held { .. }))),
            ("too_young", self.count(|outcome| matches!(outcome, Outcome::TooYoung { .. }))),
            ("not voting", self.count(|outcome| matches!(outcome, Outcome::NonVoting(_)))),
            ("not ours", self.count(|outcome| matches!(outcome, Outcome::NotOurs))),
            ("refused", self.count(|outcome| matches!(outcome, Outcome::Refused(_)))),
            ("not asked", self.count(|outcome| matches!(outcome, Outcome::NotSent(_)))),
            ("unknown", self.count(|outcome| matches!(outcome, Outcome::Unknown(_)))),
            ("pending", self.count(|outcome| matches!(outcome, Outcome::Pending))),
        ];
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, ", {count} {kind}")?;
        }
        write!(f, " of {} nodes, {} needed (", self.nodes.len(), self.needed)?;
        for (index, node) in self.nodes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}n{} ", index + 1)?;
            node.tell(f, self.done)?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f, GRANTED)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str(GRANTED),
            Self::Held { holder, remaining } => {
                write!(f, "held by {}", holder.as_deref().unwrap_or("another"))?;
                remaining.map_or(Ok(()), |left| write!(f, " for another {left:.1?}"))
            }
            Self::TooYoung { remaining: Some(left) } => {
                write!(f, "granted, but may have forgotten a lock, too young for another {left:.1?},")
            }
            Self::TooYoung { remaining: None } => {
                f.write_str("granted, but may have forgotten a lock, young,")
            }
            Self::NonVoting(why) => write!(f, "granted, but does not vote ({why}),"),
            Self::NotOurs => f.write_str("not ours"),
            Self::Refused(message) => write!(f, "refused: {message}"),
            Self::NotSent(reason) => f.write_str(reason),
            Self::Unknown(reason) => f.write_str(reason),
            Self::Pending => f.write_str("not waited for"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Votes are split only where no one can have a majority, whatever the nodes that did not say would say.
    #[test]
    fn votes_are_split_where_nobody_can_have_a_majority() {
        let held =
            |holder: Option<&str>| Outcome::Held { holder: holder.map(str::to_owned), remaining: None };
        let (granted, a, b, unnamed) = (Outcome::Granted, held(Some("a")), held(Some("b")), held(None));
        let pending = Outcome::Pending;
        for (outcomes, split) in [
            ([&granted, &granted, &a, &a, &b], true),
            ([&granted, &a, &a, &a, &granted], false),
            ([&granted, &granted, &a, &a, &pending], false),
            ([&granted, &granted, &a, &a, &unnamed], false),
            ([&granted, &granted, &a, &b, &unnamed], true),
            ([&granted, &granted, &granted, &granted, &granted], false),
            ([&pending, &pending, &pending, &pending, &pending], false),
        ] {
            let node = |outcome: &&Outcome| NodeReport {
                address: "node".into(),
                outcome: (*outcome).clone(),
                elapsed: Duration::ZERO,
            };
            let nodes = outcomes.iter().map(node).collect();
            let report = Report { needed: 3, nodes, done: "granted" };

            assert_eq!(report.is_split(), split, "{report}");
        }
    }

    /// A report says what the nodes did in the words of what they were asked.
    #[test]
    fn a_report_names_what_was_done() {
        let node = NodeReport {
            address: "node".into(),
            outcome: Outcome::Granted,
            elapsed: Duration::from_millis(2),
        };
        let of = Report { needed: 1, nodes: [node].into(), done: "granted" };
        for (report, word) in [
            (of.clone(), "granted"),
            (of.clone().of_an_extension(), "extended"),
            (of.of_a_release(), "deleted"),
        ] {
            assert_eq!(
                report.to_string(),
                format!("1 {word} of 1 nodes, 1 needed (n1 node {word} in 2.0ms)")
            );
        }
    }
}
