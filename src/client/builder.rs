//! Building a client: its nodes, its numbers, and the checks of both.

#[cfg(feature = "testing")]
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::client::Redlock;
use crate::client::error::BuildError;
use crate::clock::Clock;
use crate::config::{Config, Delay};
use crate::node::{Address, Node, State};
use crate::protocol::acquire::Wait;
use crate::protocol::quorum::{MAX_NODES, NodeId, Quorum};
use crate::protocol::validity::Drift;
use crate::runtime::shared::Shared;
use crate::runtime::start::start;

/// How long `build` waits, once a quorum is connected, for the other nodes: a healthy one needs no longer, and a client
/// should not start with fewer nodes than it could have.
const GRACE_FOR_THE_REST: Duration = Duration::from_millis(100);

/// Something that names a node: a URL, or connection info of the `redis` crate (with TLS certificates, for instance). That one
/// is the only type of another crate in this interface.
///
/// ```
/// use redquorum::{BuildError, IntoNode};
///
/// assert!("redis://10.0.0.1:6380/2".into_node().is_ok());
/// assert!(matches!("10.0.0.1".into_node(), Err(BuildError::MalformedUrl { .. })));
/// ```
pub trait IntoNode {
    /// The address, or why it is none.
    ///
    /// # Errors
    ///
    /// [`BuildError::MalformedUrl`], [`BuildError::TlsNotCompiled`].
    fn into_node(self) -> Result<NodeAddress, BuildError>;
}

/// A checked address of a node. Shows no credentials.
///
/// ```
/// use redquorum::IntoNode;
///
/// let address = "redis://worker:secret@10.0.0.1:6380".into_node()?;
/// assert!(!format!("{address:?}").contains("secret"));
/// # Ok::<(), redquorum::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeAddress(Address);

impl IntoNode for &str {
    fn into_node(self) -> Result<NodeAddress, BuildError> {
        Ok(NodeAddress(Address::parse(self)?))
    }
}

impl IntoNode for String {
    fn into_node(self) -> Result<NodeAddress, BuildError> {
        self.as_str().into_node()
    }
}

impl IntoNode for &String {
    fn into_node(self) -> Result<NodeAddress, BuildError> {
        self.as_str().into_node()
    }
}

/// So that a borrowed list of addresses is a list of nodes: `nodes(&["redis://…", "redis://…"])`.
impl IntoNode for &&str {
    fn into_node(self) -> Result<NodeAddress, BuildError> {
        (*self).into_node()
    }
}

impl IntoNode for redis::ConnectionInfo {
    fn into_node(self) -> Result<NodeAddress, BuildError> {
        Ok(NodeAddress(Address::new(self)?))
    }
}

impl IntoNode for NodeAddress {
    fn into_node(self) -> Result<NodeAddress, BuildError> {
        Ok(self)
    }
}

#[cfg(feature = "testing")]
impl NodeAddress {
    pub(crate) fn memory(server: Arc<crate::node::memory::Server>) -> Self {
        Self(Address::Memory(server))
    }
}

/// Builds a [`Redlock`]. Every setting has a default; the nodes are all that must be given.
///
/// ```no_run
/// # async fn example() -> Result<(), redquorum::BuildError> {
/// use std::time::Duration;
///
/// use redquorum::Redlock;
///
/// let redlock = Redlock::builder()
///     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .ttl(Duration::from_secs(5))
///     .wait(Duration::from_secs(2))
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedlockBuilder {
    nodes: Vec<Result<NodeAddress, BuildError>>,
    config: Config,
    client_name: Option<String>,
    lazy: bool,
    /// `None`: the system's.
    clock: Option<Clock>,
}

impl Redlock {
    /// Starts building a client.
    ///
    /// ```
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]);
    /// ```
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::new()
    }
}

impl RedlockBuilder {
    pub(crate) fn new() -> Self {
        Self { nodes: Vec::new(), config: Config::default(), client_name: None, lazy: false, clock: None }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Adds a node: `redis://[user:password@]host[:port][/db]`, `rediss://…` for TLS (feature `tls`),
    /// `redis+unix:///path/to/socket?db=0`, or connection info of the `redis` crate. A wrong address is told by
    /// [`RedlockBuilder::build`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder()
    ///     .node("redis://worker:secret@10.0.0.1:6380/2")
    ///     .node("redis://10.0.0.2")
    ///     .node("redis+unix:///run/redis/locks.sock");
    /// ```
    pub fn node(mut self, node: impl IntoNode) -> Self {
        self.nodes.push(node.into_node());
        self
    }

    /// Adds nodes. All clients of a lock must be given the same set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // From a list in the environment, for example.
    /// let nodes = "redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3";
    /// let builder = Redlock::builder().nodes(nodes.split_whitespace());
    /// ```
    pub fn nodes<N: IntoNode>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.nodes.extend(nodes.into_iter().map(IntoNode::into_node));
        self
    }

    /// What stands before every name on the servers. Default: nothing, as with other clients.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // `lock("invoice:4711")` is the key `billing:invoice:4711` on the servers.
    /// let builder = Redlock::builder().prefix("billing:");
    /// ```
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.config.prefix = prefix.as_ref().into();
        self
    }

    /// The life given to keys where a request names none: whole milliseconds. Default: 10 s.
    ///
    /// Unless said otherwise it is the longest TTL of a request ([`max_ttl`](Self::max_ttl)), and with that the restart delay. Where
    /// others lock for longer on the same nodes, such as the command line tool with its 10 s, set
    /// [`restart_delay`](Self::restart_delay) to the longest of all.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().ttl(Duration::from_secs(5));
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// The longest TTL that a request or extension may ask for. Default: the client's TTL.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // 5 s as a rule, and up to a minute where a request asks for it.
    /// let builder = Redlock::builder().ttl(Duration::from_secs(5)).max_ttl(Duration::from_secs(60));
    /// ```
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.config.max_ttl = Some(max_ttl);
        self
    }

    /// The allowance for clocks of different rates, in parts per million of the TTL; a constant 2 ms comes on top.
    /// Default: 10 000 (1 %). All clients of a lock should agree.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // 2 %: of a TTL of 10 s, 202 ms are for clocks.
    /// let builder = Redlock::builder().drift_ppm(20_000);
    /// ```
    pub fn drift_ppm(mut self, parts_per_million: u32) -> Self {
        self.config.drift = Drift::parts_per_million(parts_per_million);
        self
    }

    /// The least validity that an acquired lock must have. Default: a tenth of the TTL.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // Work that takes two seconds need not begin with less.
    /// let builder = Redlock::builder().ttl(Duration::from_secs(10)).min_validity(Duration::from_secs(2));
    /// ```
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.config.min_validity = Some(min_validity);
        self
    }

    /// How long one round waits for the replies of nodes. Default: a fiftieth of the TTL, between 10 and 500 ms. Whoever
    /// does not answer in time is counted as unknown; a quorum that answers earlier decides at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // Nodes on three continents.
    /// let builder = Redlock::builder().ttl(Duration::from_secs(30)).reply_timeout(Duration::from_secs(1));
    /// ```
    pub fn reply_timeout(mut self, reply_timeout: Duration) -> Self {
        self.config.reply_timeout = Some(reply_timeout);
        self
    }

    /// How long one attempt to connect may take, handshake included. Default: 1 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().connect_timeout(Duration::from_secs(3));
    /// ```
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.config.connect_timeout = connect_timeout;
        self
    }

    /// How long [`Redlock::acquire`] waits for a lock. Default: 30 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().wait(Duration::from_secs(2));
    /// ```
    pub fn wait(mut self, limit: Duration) -> Self {
        self.config.wait = Wait::AtMost(limit);
        self
    }

    /// Lets [`Redlock::acquire`] wait for ever.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().wait_forever();
    /// ```
    pub fn wait_forever(mut self) -> Self {
        self.config.wait = Wait::Unlimited;
        self
    }

    /// The pauses between two attempts of a waiting acquire: random, up to `least` at first, doubling up to `most`.
    /// Default: 20 ms and 250 ms. Shorter after a split vote, and never beyond the expiry of the holder's key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder =
    ///     Redlock::builder().without_wait_queue().retry_delay(Duration::from_millis(50), Duration::from_millis(500));
    /// ```
    pub fn retry_delay(mut self, least: Duration, most: Duration) -> Self {
        self.config.retry = (least, most);
        self
    }

    /// Lets those who wait for a lock ask again at random moments, with the pauses of [`RedlockBuilder::retry_delay`], instead of
    /// waiting in the queue at one node per key to be handed the lock by whoever releases it.
    ///
    /// For clients that shall create no key but the locks themselves. All clients of a lock should agree on it: those who
    /// do not are correct all the same, only slower and less fair. See [`docs::waiting`](crate::docs::waiting).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().without_wait_queue();
    /// ```
    pub fn without_wait_queue(mut self) -> Self {
        self.config.in_queue = false;
        self
    }

    /// Keeps every lock alive that is acquired, as [`LockRequest::keep_alive`] does for one. Default: only those that are asked
    /// to be.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().keep_alive().max_hold(Duration::from_secs(3600));
    /// ```
    ///
    /// [`LockRequest::keep_alive`]: crate::LockRequest::keep_alive
    pub fn keep_alive(mut self) -> Self {
        self.config.keeping.alive = true;
        self
    }

    /// How long a lock that is kept alive is held at most, where its request does not say. Default: without limit, until
    /// its guard is released or dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().max_hold(Duration::from_secs(3600));
    /// ```
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.keeping.longest = Some(longest);
        self
    }

    /// For how long a node that may have forgotten a lock does not vote: the longest TTL that *anybody* uses on these nodes,
    /// under any prefix; longer ones are refused. Default: the client's longest TTL. All clients of a lock must agree.
    ///
    /// A node that was restarted without durable writes, flushed, promoted, or whose clock was set may grant a lock that
    /// is still held. It is asked all the same, and counts for extensions, but its grants count again in acquires only
    /// once its memory is older than this, drift and 2 ms included. See [`docs::operations`](crate::docs::operations).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // Another service takes locks of up to a minute on these nodes.
    /// let builder = Redlock::builder().ttl(Duration::from_secs(5)).restart_delay(Duration::from_secs(60));
    /// ```
    pub fn restart_delay(mut self, longest_ttl: Duration) -> Self {
        self.config.delay = Delay::Of(longest_ttl);
        self
    }

    /// Lets every node vote at once, whatever it may have forgotten: for nodes that were just started and hold nothing, as in
    /// tests. On nodes that are in use, a single one that is restarted empty may then give a lock to a second holder.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // Nodes that a test has just started.
    /// let builder = Redlock::builder().node("redis://127.0.0.1:7101").without_restart_delay();
    /// ```
    pub fn without_restart_delay(mut self) -> Self {
        self.config.delay = Delay::Off;
        self
    }

    /// How long a node keeps the counter of a fenced lock after it was used last ([`LockRequest::fenced`]): at least the
    /// longest TTL, at most a hundred years. Default: 7 days. All clients of a lock should agree.
    ///
    /// When a counter is gone, tokens rise all the same, by the clocks of clients.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().fencing_retention(Duration::from_secs(30 * 86_400));
    /// ```
    ///
    /// [`LockRequest::fenced`]: crate::LockRequest::fenced
    pub fn fencing_retention(mut self, retention: Duration) -> Self {
        self.config.fencing_retention = retention;
        self
    }

    /// Lets this client's wall clock be off by so many microseconds, for tests of fencing tokens. No part of the stable
    /// interface.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn wall_clock_off(mut self, micros: i64) -> Self {
        self.config.wall_clock_off = micros;
        self
    }

    /// The client's name as `CLIENT LIST` on the servers shows it. Default: `redquorum-` and a random uuid.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// let builder = Redlock::builder().client_name("billing-worker-3");
    /// ```
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = Some(name.into());
        self
    }

    /// Does not wait for any node: connecting goes on in the background, and until a quorum is connected every acquire
    /// fails or waits.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redquorum::Redlock;
    /// // Starts also while the nodes are down, and takes locks once they are up.
    /// let builder = Redlock::builder().nodes(["redis://10.0.0.1", "redis://10.0.0.2"]).lazy();
    /// ```
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Builds the client: checks everything, starts connecting, and waits until a quorum is connected.
    ///
    /// ```no_run
    /// # async fn example() {
    /// use redquorum::{BuildError, Redlock};
    ///
    /// match Redlock::builder().nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]).build().await {
    ///     Ok(redlock) => println!("{redlock:?}"),
    ///     Err(BuildError::NotConnected { trouble, .. }) => eprintln!("look after the nodes: {trouble}"),
    ///     Err(error) => eprintln!("look after the settings: {error}"),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong with the settings, quoting what was given, before anything is sent; or
    /// [`BuildError::NotConnected`].
    ///
    /// # Panics
    ///
    /// On a tokio runtime without its time or I/O driver, as everything in tokio that needs them does.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future closes what was connected.
    pub async fn build(self) -> Result<Redlock, BuildError> {
        let nodes = self.nodes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let quorum = match (Quorum::of(nodes.len()), nodes.len()) {
            (Some(quorum), _) => quorum,
            (None, 0) => return Err(BuildError::NoNodes),
            (None, given) => return Err(BuildError::TooManyNodes { given, maximum: MAX_NODES }),
        };
        refuse_duplicates(&nodes)?;
        self.config.check(quorum)?;
        let delay = self.config.delay()?;
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Err(BuildError::NoRuntime) };
        let clock = self.clock.unwrap_or(Clock::system(runtime));
        let name = self.client_name.unwrap_or_else(|| format!("redquorum-{}", Uuid::new_v4()));
        let addresses = nodes.into_iter().map(|node| node.0).collect();
        let (shared, renewal) = start(addresses, quorum, self.config, delay, clock, &name);
        let redlock = Redlock { shared, renewal };
        if !self.lazy {
            connected(&redlock.shared).await?;
        }
        Ok(redlock)
    }
}

fn refuse_duplicates(nodes: &[NodeAddress]) -> Result<(), BuildError> {
    for (second, node) in nodes.iter().enumerate() {
        let first = nodes[..second].iter().position(|earlier| earlier.0.is_same_server(&node.0));
        if let Some(first) = first {
            let address = node.0.name().to_string();
            return Err(BuildError::DuplicateNode { first: first + 1, second: second + 1, address });
        }
    }
    Ok(())
}

/// Waits until a quorum is connected, and a little longer for the rest. Two spellings of one server's address are one server
/// all the same, which its run or its marker shows: it counts once.
async fn connected(shared: &Shared) -> Result<(), BuildError> {
    let limit = shared.config.connect_timeout;
    let deadline = shared.clock.now().after(limit);
    let mut states: Vec<_> = shared.nodes.iter().map(Node::state).collect();
    let quorum_is_up = async {
        loop {
            let up: Vec<_> = states.iter_mut().map(|state| *state.borrow_and_update() == State::Up).collect();
            let servers =
                up.iter().enumerate().filter(|(index, up)| **up && !is_double(shared, *index)).count();
            if servers >= shared.quorum.needed() {
                return true;
            }
            if up.iter().all(|up| *up) {
                return false;
            }
            let changes = states.iter_mut().map(|state| Box::pin(state.changed()));
            let _ = futures::future::select_all(changes).await;
        }
    };
    let reached = tokio::select! {
        biased;
        reached = quorum_is_up => reached,
        () = shared.clock.sleep_until(deadline) => false,
    };
    // Attempts that take the whole of the connect timeout end at this same moment: then each can say why.
    // What `wait_for` returns holds a lock, with which this future could not be spawned: it ends inside.
    let first_attempts = states.iter_mut().map(|state| async {
        let _ = state.wait_for(|state| *state != State::Connecting).await;
    });
    let grace = shared.clock.now().after(GRACE_FOR_THE_REST);
    tokio::select! {
        biased;
        _ = futures::future::join_all(first_attempts) => {}
        () = shared.clock.sleep_until(grace) => {}
    }
    // The last one of a quorum may have come in the grace.
    let up = shared.nodes.iter().filter(|node| *node.state().borrow() == State::Up).count();
    if reached || up >= shared.quorum.needed() { Ok(()) } else { Err(not_connected(shared, limit)) }
}

fn is_double(shared: &Shared, index: usize) -> bool {
    shared.node_table.double_of(NodeId::new(index)).is_some()
}

/// With every node connected, what is missing are servers: some are named twice.
fn one_server_twice(shared: &Shared) -> Option<BuildError> {
    let all_up = shared.nodes.iter().all(|node| *node.state().borrow() == State::Up);
    let mut numbers = (0..shared.nodes.len()).filter(|_| all_up);
    let (second, first) =
        numbers.find_map(|index| Some((index, shared.node_table.double_of(NodeId::new(index))?.index())))?;
    let name =
        |index: usize| shared.nodes.get(index).map(|node| node.address().to_string()).unwrap_or_default();
    let address = format!("{} and {}", name(first), name(second));
    Some(BuildError::DuplicateNode { first: first + 1, second: second + 1, address })
}

fn not_connected(shared: &Shared, within: Duration) -> BuildError {
    if let Some(error) = one_server_twice(shared) {
        return error;
    }
    let mut connected = 0;
    let mut troubles = Vec::new();
    for (index, node) in shared.nodes.iter().enumerate() {
        let trouble = match &*node.state().borrow() {
            State::Up => match shared.node_table.double_of(NodeId::new(index)) {
                None => {
                    connected += 1;
                    continue;
                }
                Some(other) => format!("the same server as {other}"),
            },
            State::Connecting => "no answer yet".to_owned(),
            State::Suspect => "silent".to_owned(),
            State::Down(trouble) => trouble.to_string(),
        };
        troubles.push(format!("n{} {}: {trouble}", index + 1, node.address()));
    }
    BuildError::NotConnected {
        connected,
        nodes: shared.nodes.len(),
        needed: shared.quorum.needed(),
        within,
        trouble: troubles.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        BACKLOG, DEFAULT_CONNECT_TIMEOUT, DEFAULT_FENCING_RETENTION, DEFAULT_RETRY_LEAST, DEFAULT_RETRY_MOST,
        DEFAULT_TTL, DEFAULT_WAIT, KeepAlive, MAX_KEY_LENGTH,
    };
    use crate::protocol::renewal;

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
            format!("its marker | | every {}", seconds(crate::protocol::restart::LOOK_EVERY)),
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
}
