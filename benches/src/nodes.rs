//! The servers of a run: ended with this process, whatever ends it, by the harness's own watcher.

use std::process::Command;

use harness::{Cluster, Server, server_binary};

/// The most nodes that are measured.
pub const MOST: usize = 7;

/// What the nodes are like.
pub struct Nodes {
    healthy: Cluster,
    frozen: Server,
    dead: Server,
}

impl Nodes {
    /// Starts them all, or says why not.
    pub fn start() -> Result<Self, String> {
        version()?;
        Ok(Self { healthy: Cluster::start(MOST), frozen: Server::start(), dead: Server::start() })
    }

    /// The servers that stay healthy.
    pub fn healthy(&self) -> &[Server] {
        &self.healthy
    }

    /// The addresses of `n` healthy nodes.
    pub fn urls(&self, n: usize) -> Vec<String> {
        self.healthy[..n].iter().map(Server::url).collect()
    }

    /// The addresses of `n` nodes, of which the last will hang.
    pub fn urls_with_hung(&self, n: usize) -> Vec<String> {
        self.urls(n - 1).into_iter().chain([self.frozen.url()]).collect()
    }

    /// The addresses of `n` nodes, of which the last will be dead.
    pub fn urls_with_dead(&self, n: usize) -> Vec<String> {
        self.urls(n - 1).into_iter().chain([self.dead.url()]).collect()
    }

    /// Freezes one node and kills another, to which clients were connected a moment ago.
    pub fn strike(&self) {
        self.frozen.freeze();
        self.dead.kill9();
    }

    /// Freezes the one alone.
    pub fn freeze(&self) {
        self.frozen.freeze();
    }

    /// Lets the frozen node go on.
    pub fn thaw(&self) {
        self.frozen.thaw();
    }

    /// The node that is frozen now and then. To be asked while it is not.
    pub fn frozen(&self) -> &Server {
        &self.frozen
    }

    /// Undoes [`Nodes::strike`].
    pub fn heal(&self) {
        self.frozen.thaw();
        self.dead.restart();
    }
}

/// What the server program says of itself, such as `Redis server v=7.0.15`.
pub fn version() -> Result<String, String> {
    let named = std::env::var_os("REDQUORUM_REDIS_SERVER").is_some_and(|name| !name.is_empty());
    let in_path = || ["redis-server", "valkey-server"].iter().any(|name| runs(name).is_some());
    let binary = if named || in_path() { server_binary() } else { Default::default() };
    let missing = "no server program: install Redis or Valkey, or name one in REDQUORUM_REDIS_SERVER";
    let said = runs(binary).ok_or(missing)?;
    Ok(said.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

fn runs(binary: impl AsRef<std::ffi::OsStr>) -> Option<String> {
    let output = Command::new(binary).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
