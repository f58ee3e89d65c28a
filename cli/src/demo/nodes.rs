//! The nodes that the demo plays on, and their faults.
//!
//! Nodes in memory have faults of their own. Real servers get a proxy each, in this process: the demo has no power over
//! the servers themselves, and wants none. Looking at a key goes past the proxy.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redquorum::testing::{MemoryCluster, MemoryNode};
use redquorum::{Redlock, RedlockBuilder};

use super::proxy::{Mode, Proxy};

/// What a network would take for the way to a node in memory, so that times mean something.
const PRETENDED_WAY: Duration = Duration::from_millis(1);

/// All nodes of the demo.
pub struct Nodes {
    nodes: Vec<Node>,
    /// The nodes in memory, where there are no others.
    cluster: Option<MemoryCluster>,
}

/// One node, with power over its faults.
pub enum Node {
    Memory(MemoryNode),
    Real(Box<Server>),
}

/// A real server behind a proxy.
pub struct Server {
    address: String,
    info: ConnectionInfo,
    proxy: Proxy,
}

/// What one node has under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub owner: String,
    pub remaining: Duration,
}

impl Nodes {
    /// Five nodes in memory.
    pub fn in_memory() -> Self {
        let cluster = MemoryCluster::new(5);
        let nodes = cluster.nodes().iter().cloned().map(Node::Memory).collect::<Vec<_>>();
        nodes.iter().for_each(Node::heal);
        Self { nodes, cluster: Some(cluster) }
    }

    /// The servers at these addresses, each behind a proxy.
    pub async fn real(urls: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut nodes = Vec::with_capacity(urls.len());
        for url in urls {
            let info = url.as_str().into_connection_info()?;
            let ConnectionAddr::Tcp(host, port) = info.addr() else {
                return Err(
                    "the demo puts a proxy before each node, and takes plain redis:// addresses".into()
                );
            };
            let address = format!("{host}:{port}");
            let proxy = Proxy::start(address.clone()).await?;
            nodes.push(Node::Real(Box::new(Server { address, info, proxy })));
        }
        Ok(Self { nodes, cluster: None })
    }

    /// A builder of a client of these nodes.
    pub fn builder(&self) -> RedlockBuilder {
        if let Some(cluster) = &self.cluster {
            return cluster.builder();
        }
        self.nodes.iter().fold(Redlock::builder().without_restart_delay(), |builder, node| match node {
            Node::Real(server) => builder.node(server.proxied()),
            Node::Memory(_) => builder,
        })
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// How many nodes decide.
    pub fn quorum(&self) -> usize {
        self.len() / 2 + 1
    }

    /// The last `count` nodes: those that faults happen to.
    pub fn last(&self, count: usize) -> &[Node] {
        &self.nodes[self.len() - count..]
    }

    pub fn are_in_memory(&self) -> bool {
        self.cluster.is_some()
    }

    /// What each node has under a key, in order.
    pub async fn look(&self, key: &[u8]) -> Result<Vec<Option<Entry>>, Box<dyn Error>> {
        let mut found = Vec::with_capacity(self.len());
        for node in &self.nodes {
            found.push(node.look(key).await?);
        }
        Ok(found)
    }

    /// On how many nodes the key is.
    pub async fn count(&self, key: &[u8]) -> Result<usize, Box<dyn Error>> {
        Ok(self.look(key).await?.iter().flatten().count())
    }

    /// Takes a key of the demo's own from every server that can be reached.
    pub async fn remove(&self, key: &str) {
        for node in &self.nodes {
            if let Node::Real(server) = node
                && let Ok(client) = redis::Client::open(server.info.clone())
                && let Ok(mut direct) = client.get_multiplexed_async_connection().await
            {
                let _: Result<u64, _> = redis::cmd("DEL").arg(key).query_async(&mut direct).await;
            }
        }
    }

    /// One line about each node.
    pub fn describe(&self) -> Vec<String> {
        let describe = |node: &Node| match node {
            Node::Memory(_) => "in memory".to_owned(),
            Node::Real(server) => {
                format!("{} behind a proxy on port {}", server.address, server.proxy.port())
            }
        };
        self.nodes.iter().map(describe).collect()
    }
}

impl Node {
    /// Keeps connections open and executes nothing, until it heals.
    pub fn hang(&self) {
        match self {
            Self::Memory(node) => node.hang(),
            Self::Real(server) => server.proxy.set(Mode::Hold),
        }
    }

    /// Executes everything, and its answers do not arrive.
    pub fn lose_replies(&self) {
        match self {
            Self::Memory(node) => node.lose_replies(),
            Self::Real(server) => server.proxy.set(Mode::DropReplies),
        }
    }

    /// Takes no connection any more.
    pub fn go_down(&self) {
        match self {
            Self::Memory(node) => node.crash(),
            Self::Real(server) => server.proxy.set(Mode::Refuse),
        }
    }

    /// Ends every fault.
    pub fn heal(&self) {
        match self {
            Self::Memory(node) => {
                node.heal();
                node.delay(PRETENDED_WAY);
            }
            Self::Real(server) => server.proxy.set(Mode::Pass),
        }
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Entry>, Box<dyn Error>> {
        match self {
            Self::Memory(node) => {
                let owner = node.holder(key);
                let remaining = node.remaining(key).unwrap_or_default();
                Ok(owner.map(|owner| Entry { owner, remaining }))
            }
            Self::Real(server) => server.look(key).await,
        }
    }
}

impl Server {
    /// The same address, through the proxy.
    fn proxied(&self) -> ConnectionInfo {
        let localhost = SocketAddr::from(([127, 0, 0, 1], self.proxy.port()));
        let addr = ConnectionAddr::Tcp(localhost.ip().to_string(), localhost.port());
        self.info.clone().set_addr(addr)
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Entry>, Box<dyn Error>> {
        let client = redis::Client::open(self.info.clone())?;
        let mut direct: MultiplexedConnection = client.get_multiplexed_async_connection().await?;
        let (owner, remaining): (Option<String>, i64) =
            redis::pipe().cmd("GET").arg(key).cmd("PTTL").arg(key).query_async(&mut direct).await?;
        let remaining = Duration::from_millis(u64::try_from(remaining).unwrap_or(0));
        // As the library shows owners: the first half is enough to tell them apart.
        let owner = owner.map(|owner| format!("{}…", owner.chars().take(16).collect::<String>()));
        Ok(owner.map(|owner| Entry { owner, remaining }))
    }
}
