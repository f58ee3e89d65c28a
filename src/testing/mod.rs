//! Nodes in memory, with faults at the flick of a switch, for testing code that uses locks. Needs no server.
//!
//! Everything above the sockets is the real thing: the same client, guards, timeouts, debts. Code that is given its
//! [`Redlock`](crate::Redlock) can be given one of these nodes:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redquorum::testing::MemoryCluster;
//!
//! let cluster = MemoryCluster::new(3);
//! let redlock = cluster.builder().build().await?;
//!
//! let guard = redlock.try_acquire("order:1").await?;
//! assert!(cluster.node(1).holder("order:1").is_some());
//!
//! guard.release().await?;
//! assert_eq!(cluster.node(1).holder("order:1"), None);
//! # Ok(())
//! # }
//! ```
//!
//! The guide is [Testing your own service](crate::docs::testing_your_service): faults, paused time, suspended machines.
//! `tests/memory/users_service.rs` of this package is a small service with all of its tests, as a template for your own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::builder::{NodeAddress, RedlockBuilder};
use crate::clock::Clock;
use crate::node::memory::Server;
use crate::protocol::message::Key;

pub use crate::clock::ManualClock;

/// A set of independent nodes in memory. Clients built from one cluster contend for the same locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use redquorum::testing::MemoryCluster;
/// # let cluster = MemoryCluster::new(3);
/// # let redlock = cluster.builder().build().await?;
/// // Two processes, as far as the nodes can tell.
/// let (here, there) = (cluster.builder().build().await?, cluster.builder().build().await?);
/// let guard = here.acquire("order:1").await?;
/// assert!(there.try_acquire("order:1").await.is_err());
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryCluster {
    nodes: Arc<[MemoryNode]>,
    clock: Clock,
}

/// One node in memory, and its faults. Where a method takes a key, it is the key on the server: the client's prefix, if it has
/// one, and the name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use redquorum::testing::MemoryCluster;
/// # let cluster = MemoryCluster::new(3);
/// # let redlock = cluster.builder().build().await?;
/// cluster.node(2).crash();
/// assert!(redlock.try_acquire("order:1").await.is_ok());
/// cluster.node(2).heal();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryNode {
    server: Arc<Server>,
}

impl MemoryCluster {
    /// `count` nodes on tokio's clock.
    pub fn new(count: usize) -> Self {
        Self::on(count, Clock::Tokio(tokio::time::Instant::now()))
    }

    /// `count` nodes on a clock that the test moves by hand: nodes, clients and timeouts all wait for it.
    ///
    /// ```
    /// # use redquorum::testing::{ManualClock, MemoryCluster};
    /// let clock = ManualClock::new();
    /// let cluster = MemoryCluster::with_clock(3, clock.clone());
    /// ```
    pub fn with_clock(count: usize, clock: ManualClock) -> Self {
        Self::on(count, Clock::Manual(clock))
    }

    fn on(count: usize, clock: Clock) -> Self {
        let node = |index| MemoryNode { server: Server::new(format!("memory-{}", index + 1), clock.clone()) };
        Self { nodes: (0..count).map(node).collect(), clock }
    }

    /// A builder of a client of these nodes, on their clock. Nodes that have just been made could not vote for a TTL, so
    /// the restart delay is off; a test of its own with [`RedlockBuilder::restart_delay`] and [`MemoryNode::set_age`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let redlock = cluster.builder().ttl(Duration::from_secs(1)).prefix("test:").build().await?;
    /// let guard = redlock.acquire("order:1").await?;
    /// assert!(cluster.node(2).holder("test:order:1").is_some());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(&self) -> RedlockBuilder {
        let addresses = self.nodes.iter().map(|node| NodeAddress::memory(node.server.clone()));
        RedlockBuilder::new().clock(self.clock.clone()).without_restart_delay().nodes(addresses)
    }

    /// The node at `index`, counted from 0.
    ///
    /// # Panics
    ///
    /// Where there is no such node, as with a slice: this is for tests.
    pub fn node(&self, index: usize) -> &MemoryNode {
        &self.nodes[index]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[MemoryNode] {
        &self.nodes
    }

    /// As many nodes as can be lost: two of five. They are the first ones, and those that
    /// [`majority`](MemoryCluster::majority) does not name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use redquorum::testing::{MemoryCluster, MemoryNode};
    ///
    /// let cluster = MemoryCluster::new(5);
    /// let redlock = cluster.builder().build().await?;
    /// cluster.minority().iter().for_each(MemoryNode::crash);
    /// assert!(redlock.try_acquire("order:1").await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn minority(&self) -> &[MemoryNode] {
        &self.nodes[..self.spare()]
    }

    /// As many nodes as a lock needs: three of five. They are the last ones.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use redquorum::testing::{MemoryCluster, MemoryNode};
    ///
    /// let cluster = MemoryCluster::new(5);
    /// let redlock = cluster.builder().build().await?;
    /// cluster.majority().iter().for_each(MemoryNode::crash);
    /// assert!(redlock.try_acquire("order:1").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn majority(&self) -> &[MemoryNode] {
        &self.nodes[self.spare()..]
    }

    /// How many nodes can be lost.
    fn spare(&self) -> usize {
        self.nodes.len().saturating_sub(1) / 2
    }

    /// Ends all faults of all nodes ([`MemoryNode::heal`]). What they have forgotten stays forgotten.
    pub fn heal(&self) {
        self.nodes.iter().for_each(MemoryNode::heal);
    }
}

impl MemoryNode {
    /// Executes nothing from now on, with connections left open, like a stopped process. What is sent meanwhile is
    /// executed when it goes on, even if nobody waits for it any more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.node(0).hang();
    /// let guard = redlock.acquire("order:1").await?;
    /// assert_eq!(cluster.node(0).holder("order:1"), None);
    ///
    /// cluster.node(0).heal();
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert!(cluster.node(0).holder("order:1").is_some(), "late, but executed");
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hang(&self) {
        self.server.switch(|faults| faults.hung = true);
    }

    /// Executes everything from now on and answers nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.majority().iter().for_each(|node| node.lose_replies());
    /// assert!(redlock.try_acquire("order:1").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn lose_replies(&self) {
        self.server.switch(|faults| faults.loses_replies = true);
    }

    /// Resets all connections and takes none from now on. The keys stay.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.majority().iter().for_each(|node| node.crash());
    /// assert!(redlock.try_acquire("order:1").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn crash(&self) {
        self.server.switch(|faults| faults.crashed = true);
    }

    /// Takes this long for each call from now on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.nodes().iter().for_each(|node| node.delay(Duration::from_millis(5)));
    /// let started = tokio::time::Instant::now();
    /// let guard = redlock.acquire("order:1").await?;
    /// assert!(started.elapsed() >= Duration::from_millis(5));
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn delay(&self, delay: Duration) {
        self.server.switch(|faults| faults.delay = delay);
    }

    /// Forbids publishing, as an ACL can: clients that connect from now on cannot be woken by this node.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.nodes().iter().for_each(|node| node.forbid_wake_ups());
    /// let redlock = cluster.builder().build().await?;
    /// let guard = redlock.acquire("order:1").await?;
    /// let waiting = tokio::spawn(redlock.lock("order:1").into_future());
    /// tokio::time::sleep(Duration::from_millis(10)).await;
    /// drop(guard);
    /// assert!(waiting.await?.is_ok(), "those who wait look again and again");
    /// # Ok(())
    /// # }
    /// ```
    pub fn forbid_wake_ups(&self) {
        self.server.forbid_wake_ups();
    }

    /// How many stand in the line for a key on this node.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let guard = redlock.acquire("order:1").await?;
    /// let waiting = tokio::spawn(redlock.lock("order:1").into_future());
    /// tokio::time::sleep(Duration::from_millis(10)).await;
    /// assert_eq!(cluster.nodes().iter().map(|node| node.waiting("order:1")).sum::<usize>(), 1);
    /// # drop(guard);
    /// # waiting.abort();
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiting(&self, key: impl AsRef<[u8]>) -> usize {
        self.server.with_store(|store, now| store.waiting(&Key::new(key.as_ref()), now))
    }

    /// Ends hanging, lost replies, the crash and the delay. Whoever is connected, connects again. What was forgotten stays so.
    pub fn heal(&self) {
        self.server.switch(|faults| *faults = Default::default());
    }

    /// Forgets all keys, as a restart without persistence does. Its memory begins now.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let guard = redlock.acquire("order:1").await?;
    /// cluster.node(0).wipe();
    /// assert_eq!(cluster.node(0).holder("order:1"), None);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wipe(&self) {
        self.server.wipe();
    }

    /// Lets the node have forgotten nothing for so long: an older one than the restart delay votes at once. A node that
    /// was just made has no age.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// // Nodes that were just started do not vote for a TTL, where the restart delay is on.
    /// let young = cluster.builder().restart_delay(Duration::from_secs(10)).build().await?;
    /// assert!(young.try_acquire("order:1").await.is_err());
    ///
    /// cluster.nodes().iter().for_each(|node| node.set_age(Duration::from_secs(60)));
    /// let young = cluster.builder().restart_delay(Duration::from_secs(10)).build().await?;
    /// assert!(young.try_acquire("order:1").await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_age(&self, age: Duration) {
        self.server.set_age(age);
    }

    /// Forgets one key, as an eviction does. Returns whether it was there.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let guard = redlock.lock("order:1").keep_alive().await?;
    /// cluster.majority().iter().for_each(|node| assert!(node.forget("order:1")));
    /// assert_eq!(guard.lost().await, redquorum::Lost::Forgotten);
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(&self, key: impl AsRef<[u8]>) -> bool {
        self.server.with_store(|store, _| store.remove(&Key::new(key.as_ref())))
    }

    /// Sets a key to another client's value, with or without an expiry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.nodes().iter().for_each(|node| node.put("order:1", b"another", Some(Duration::from_secs(5))));
    /// assert!(redlock.try_acquire("order:1").await.is_err_and(|error| error.is_contention()));
    /// assert!(redlock.acquire("order:1").await.is_ok(), "after five seconds");
    /// # Ok(())
    /// # }
    /// ```
    pub fn put(&self, key: impl AsRef<[u8]>, value: &[u8], ttl: Option<Duration>) {
        self.server.with_store(|store, now| store.put_foreign(&Key::new(key.as_ref()), value, ttl, now));
    }

    /// The value under a key, as reports show it; `None` where there is no such key.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// cluster.node(0).put("order:1", b"another", None);
    /// assert_eq!(cluster.node(0).holder("order:1").as_deref(), Some("\"another\""));
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder(&self, key: impl AsRef<[u8]>) -> Option<String> {
        let holder = self.server.with_store(|store, now| store.holder(&Key::new(key.as_ref()), now));
        holder.map(|holder| holder.value.to_string())
    }

    /// The fencing counter of a key, if the node keeps one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let guard = redlock.lock("order:1").fenced().await?;
    /// assert_eq!(cluster.node(0).fencing_counter("order:1"), guard.fencing_token().map(u64::from));
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_counter(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        let counter = self.server.with_store(|store, now| store.counter(&Key::new(key.as_ref()), now));
        counter.map(|counter| counter.number)
    }

    /// What is left of a key's life; `None` where there is no such key, or where it never expires.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let guard = redlock.lock("order:1").ttl(Duration::from_secs(3)).await?;
    /// tokio::time::sleep(Duration::from_secs(1)).await;
    /// assert!(cluster.node(0).remaining("order:1") <= Some(Duration::from_secs(2)));
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self, key: impl AsRef<[u8]>) -> Option<Duration> {
        self.server.with_store(|store, now| store.holder(&Key::new(key.as_ref()), now))?.remaining
    }

    /// All keys there are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// redlock.acquire("order:1").await?.release().await?;
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert!(cluster.nodes().iter().all(|node| node.keys().is_empty()), "nothing is left");
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let keys = self.server.with_store(|store, now| store.keys(now));
        keys.iter().map(|key| key.as_bytes().to_vec()).collect()
    }

    /// How many operations the node has executed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use redquorum::testing::MemoryCluster;
    /// # let cluster = MemoryCluster::new(3);
    /// # let redlock = cluster.builder().build().await?;
    /// let before = cluster.node(0).executed();
    /// let guard = redlock.acquire("order:1").await?;
    /// assert_eq!(cluster.node(0).executed() - before, 1);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn executed(&self) -> u64 {
        self.server.executed()
    }
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.server, f)
    }
}

/// One real server, spoken to through the same node as in a client, an operation at a time: for comparing it with the
/// in-memory node. No part of the stable interface.
#[doc(hidden)]
#[derive(Debug)]
pub struct RawNode {
    node: crate::node::Node,
    mailbox: Arc<crate::registry::Mailbox>,
    _shutdown: tokio_util::sync::DropGuard,
}

#[doc(hidden)]
impl RawNode {
    /// Connects to the server at `url`.
    pub async fn connect(
        url: &str,
        client: crate::protocol::message::ClientId,
    ) -> Result<Self, crate::BuildError> {
        use crate::node::redis::{Settings, address::Address, serve};

        let (debts, _) = crate::registry::Debts::channel();
        let clock = Clock::system(tokio::runtime::Handle::current());
        let Some(quorum) = crate::protocol::quorum::Quorum::of(1) else {
            return Err(crate::BuildError::NoNodes);
        };
        let settings = Settings {
            address: Address::parse(url)?,
            connect_timeout: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(5),
            backlog: crate::config::BACKLOG,
            client_name: "redquorum-raw".into(),
            prefix: Arc::default(),
            wakeups: crate::registry::Wakeups::new(client, clock.clone(), debts.clone()),
            in_queue: true,
            delay: None,
            node_table: crate::registry::NodeTable::new(quorum),
        };
        let limits = crate::node::Limits { backlog: settings.backlog };
        let id = crate::protocol::quorum::NodeId::new(0);
        let contended_keys = Arc::default();
        let (node, inbox) = crate::node::node(
            id,
            settings.address.name().clone(),
            limits,
            debts,
            contended_keys,
            settings.node_table.clone(),
        );
        let shutdown = tokio_util::sync::CancellationToken::new();
        tokio::spawn(serve(inbox, settings, clock, shutdown.clone()));
        // The sender is in the node, so waiting cannot fail.
        let _ = node.state().wait_for(|state| *state == crate::node::State::Up).await;
        Ok(Self { node, mailbox: crate::registry::Mailbox::new(), _shutdown: shutdown.drop_guard() })
    }

    /// Executes one operation.
    pub async fn execute(
        &self,
        operation: crate::protocol::message::Operation,
    ) -> crate::protocol::message::Reply {
        let mailbox = self.mailbox.clone();
        let request = crate::node::Outgoing { operation, debt: None, mailbox, call: Default::default() };
        if let Err(reason) = self.node.send(request) {
            return crate::protocol::message::Reply::NotSent(reason);
        }
        let mut answers = Vec::new();
        std::future::poll_fn(|cx| self.mailbox.poll_take(cx, &mut answers)).await;
        answers.remove(0).reply
    }
}

/// An operation as the words of the command that runs its script, the script's text being the second: for running other texts.
/// No part of the stable interface.
#[doc(hidden)]
pub fn script_command(operation: &crate::protocol::message::Operation) -> Vec<Vec<u8>> {
    crate::node::redis::script_command(operation)
}

/// What the answer to such a command means. No part of the stable interface.
#[doc(hidden)]
pub fn script_reply(
    operation: &crate::protocol::message::Operation,
    answer: redis::Value,
) -> crate::protocol::message::Reply {
    crate::node::redis::script_reply(operation, answer)
}
