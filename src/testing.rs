//! Nodes in memory, with faults at the flick of a switch, for testing code that uses locks. Needs no server.
//!
//! Everything above the sockets is the real thing: the same client, guards, timeouts, debts. Time is tokio's, so that
//! `#[tokio::test(start_paused = true)]` runs a test of minutes in milliseconds; or a [`ManualClock`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redquorum::testing::MemoryCluster;
//!
//! let cluster = MemoryCluster::new(3);
//! let redlock = cluster.builder().build().await?;
//!
//! cluster.node(0).hang();
//! let guard = redlock.try_acquire("order:1").await?;
//! assert!(cluster.node(1).holder("order:1").is_some());
//!
//! guard.release().await?;
//! assert_eq!(cluster.node(1).holder("order:1"), None);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::builder::{NodeAddress, RedlockBuilder};
use crate::clock::Clock;
use crate::node::memory::Server;
use crate::protocol::message::Key;

pub use crate::clock::ManualClock;

/// A set of independent nodes in memory. Clients built from one cluster contend for the same locks.
#[derive(Clone, Debug)]
pub struct MemoryCluster {
    nodes: Arc<[MemoryNode]>,
    clock: Clock,
}

/// One node in memory, and its faults.
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
    pub fn with_clock(count: usize, clock: ManualClock) -> Self {
        Self::on(count, Clock::Manual(clock))
    }

    fn on(count: usize, clock: Clock) -> Self {
        let node = |index| MemoryNode { server: Server::new(format!("memory-{}", index + 1), clock.clone()) };
        Self { nodes: (0..count).map(node).collect(), clock }
    }

    /// A builder of a client of these nodes, on their clock. Nodes that have just been made could not vote for a TTL, so
    /// the restart guard is off; a test of its own with [`RedlockBuilder::restart_guard`] and [`MemoryNode::set_age`].
    pub fn builder(&self) -> RedlockBuilder {
        let addresses = self.nodes.iter().map(|node| NodeAddress::memory(node.server.clone()));
        RedlockBuilder::new().clock(self.clock.clone()).no_restart_guard().nodes(addresses)
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
}

impl MemoryNode {
    /// Executes nothing from now on, with connections left open, like a stopped process. What is sent meanwhile is
    /// executed when it goes on, even if nobody waits for it any more.
    pub fn hang(&self) {
        self.server.switch(|faults| faults.hung = true);
    }

    /// Executes everything from now on and answers nothing.
    pub fn lose_replies(&self) {
        self.server.switch(|faults| faults.loses_replies = true);
    }

    /// Resets all connections and takes none from now on. The keys stay.
    pub fn crash(&self) {
        self.server.switch(|faults| faults.crashed = true);
    }

    /// Takes this long for each call from now on.
    pub fn delay(&self, delay: Duration) {
        self.server.switch(|faults| faults.delay = delay);
    }

    /// Forbids publishing, as an ACL can: clients that connect from now on cannot be woken by this node.
    pub fn forbid_wake_ups(&self) {
        self.server.forbid_wake_ups();
    }

    /// How many stand in the line for a key on this node.
    pub fn waiting(&self, key: impl AsRef<[u8]>) -> usize {
        self.server.with_store(|store, now| store.waiting(&Key::new(key.as_ref()), now))
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.server.switch(|faults| *faults = Default::default());
    }

    /// Forgets all keys, as a restart without persistence does. Its memory begins now.
    pub fn wipe(&self) {
        self.server.wipe();
    }

    /// Lets the node have forgotten nothing for so long: an older one than the restart guard votes at once. A node that
    /// was just made has no age.
    pub fn set_age(&self, age: Duration) {
        self.server.set_age(age);
    }

    /// Forgets one key, as an eviction does. Returns whether it was there.
    pub fn forget(&self, key: impl AsRef<[u8]>) -> bool {
        self.server.with_store(|store, _| store.remove(&Key::new(key.as_ref())))
    }

    /// Sets a key to another client's value, with or without an expiry.
    pub fn put(&self, key: impl AsRef<[u8]>, value: &[u8], ttl: Option<Duration>) {
        self.server.with_store(|store, now| store.put_foreign(&Key::new(key.as_ref()), value, ttl, now));
    }

    /// The value under a key, as reports show it; `None` where there is no such key.
    pub fn holder(&self, key: impl AsRef<[u8]>) -> Option<String> {
        let holder = self.server.with_store(|store, now| store.holder(&Key::new(key.as_ref()), now));
        holder.map(|holder| holder.value.to_string())
    }

    /// The fencing counter of a key, if the node keeps one.
    pub fn fencing_counter(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        let counter = self.server.with_store(|store, now| store.counter(&Key::new(key.as_ref()), now));
        counter.map(|counter| counter.number)
    }

    /// What is left of a key's life; `None` where there is no such key, or where it never expires.
    pub fn remaining(&self, key: impl AsRef<[u8]>) -> Option<Duration> {
        self.server.with_store(|store, now| store.holder(&Key::new(key.as_ref()), now))?.remaining
    }

    /// All keys there are.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let keys = self.server.with_store(|store, now| store.keys(now));
        keys.iter().map(|key| key.as_bytes().to_vec()).collect()
    }

    /// How many operations the node has executed.
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
    mailbox: Arc<crate::node::Mailbox>,
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

        let (debts, _) = crate::node::Debts::channel();
        let clock = Clock::System(tokio::runtime::Handle::current());
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
            wakeups: crate::node::Wakeups::new(client, clock.clone(), debts.clone()),
            in_line: true,
            guard: None,
            census: crate::node::Census::new(quorum),
        };
        let limits = crate::node::Limits { backlog: settings.backlog };
        let id = crate::protocol::quorum::NodeId::new(0);
        let hints = Arc::default();
        let (node, desk) = crate::node::node(
            id,
            settings.address.name().clone(),
            limits,
            debts,
            hints,
            settings.census.clone(),
        );
        let shutdown = tokio_util::sync::CancellationToken::new();
        tokio::spawn(serve(desk, settings, clock, shutdown.clone()));
        // The sender is in the node, so waiting cannot fail.
        let _ = node.state().wait_for(|state| *state == crate::node::State::Up).await;
        Ok(Self { node, mailbox: crate::node::Mailbox::new(), _shutdown: shutdown.drop_guard() })
    }

    /// Executes one operation.
    pub async fn execute(
        &self,
        operation: crate::protocol::message::Operation,
    ) -> crate::protocol::message::Reply {
        let mailbox = self.mailbox.clone();
        let request = crate::node::Request { operation, debt: None, mailbox, call: 0 };
        if let Err(reason) = self.node.send(request) {
            return crate::protocol::message::Reply::NotSent(reason);
        }
        let mut answers = Vec::new();
        std::future::poll_fn(|cx| self.mailbox.poll_take(cx, &mut answers)).await;
        answers.remove(0).reply
    }
}
