//! Several independent servers, as the nodes of one lock.

use std::ops::Deref;
use std::thread;
use std::time::Duration;

use crate::{Proxy, Server, ServerBuilder};

/// N servers that know nothing of each other. Derefs to a slice of [`Server`].
pub struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    /// Starts `n` servers, all at once: five come up in the time of one or two.
    pub fn start(n: usize) -> Self {
        Self::start_with(n, |_| Server::builder())
    }

    /// Starts `n` servers, the i-th as `build(i)` says.
    pub fn start_with(n: usize, build: impl Fn(usize) -> ServerBuilder) -> Self {
        let servers = thread::scope(|scope| {
            let starting: Vec<_> = (0..n)
                .map(|i| {
                    let builder = build(i);
                    scope.spawn(move || builder.start())
                })
                .collect();
            // All are joined before the first panic goes on, so that the others are dropped in order.
            let ended: Vec<_> = starting.into_iter().map(thread::ScopedJoinHandle::join).collect();
            ended
                .into_iter()
                .map(|server| server.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        Self { servers }
    }

    /// The servers, in order, for those that take each other's places.
    pub fn into_servers(self) -> Vec<Server> {
        self.servers
    }

    /// The address of each server, in order.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// One proxy in front of each server, in the same order.
    pub fn proxies(&self) -> Vec<Proxy> {
        self.servers.iter().map(Proxy::start).collect()
    }

    /// What each server holds under `key`, in order. A server that is down holds nothing.
    pub fn values(&self, key: &str) -> Vec<Option<String>> {
        self.servers.iter().map(|server| server.is_running().then(|| server.get(key)).flatten()).collect()
    }

    /// Waits until no server holds `key`; panics, with what each still holds, where that takes longer
    /// than `within`.
    ///
    /// Read over the harness's own connections, past every proxy. No server may be frozen meanwhile.
    pub async fn no_key(&self, key: &str, within: Duration) {
        let mut values = Vec::new();
        let gone = async {
            while {
                values = self.values(key);
                values.iter().any(Option::is_some)
            } {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(within, gone).await.is_err() {
            panic!("key {key:?} not gone within {within:?}, the servers hold {values:?}");
        }
    }
}

impl Deref for Cluster {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.servers
    }
}
