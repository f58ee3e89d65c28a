//! The floor: the least that an acquire and a release on the `redis` crate cost.
//!
//! A bare fan-out, with nothing of this project in it: `SET key value NX PX ttl` to all nodes, `EVALSHA` of a compare-and-delete
//! to all nodes, each decided at quorum. Each command is built once for all nodes. The answers still missing are read by
//! a spawned task, since a request that is dropped may never be sent. No validity, no timer, no report, no undo, no
//! record of what is open: so it is no lock to use, only a measure.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, RedisResult, Value};

use crate::locker::Locker;

const TTL_MILLIS: u64 = 10_000;

/// How long the floor waits for a node that hangs: the `redis` crate's own default. Without one a call to it stays for ever.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The bare fan-out, connected to some nodes.
#[derive(Clone)]
pub struct Floor {
    connections: Arc<[MultiplexedConnection]>,
    script: Arc<str>,
}

/// What a release has to repeat.
pub struct Held {
    key: String,
    owner: String,
}

impl Floor {
    /// Connects to all nodes. Without a `response_timeout` a call costs no timer, and one to a hung node stays for ever.
    pub async fn connect(urls: &[String], response_timeout: Option<Duration>) -> RedisResult<Self> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(response_timeout)
            // Never the limit, up to 512 tasks.
            .set_pipeline_buffer_size(4_096);
        let mut connections = Vec::new();
        let mut script = String::new();
        for url in urls {
            let info = url.as_str().into_connection_info()?;
            // Without it a second request on the connection may wait for the acknowledgement of the first.
            let tcp = info.tcp_settings().clone().set_nodelay(true);
            let client = Client::open(info.set_tcp_settings(tcp))?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut load = redis::cmd("SCRIPT");
            script = load.arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self { connections: connections.into(), script: script.into() })
    }

    /// The same commands one after the other, each awaited by itself: what the `redis` crate needs for them, and nothing
    /// else.
    pub async fn in_turn(&self, key: &str) -> RedisResult<()> {
        let owner = owner();
        for command in [set(key, &owner), self.release_command(key, &owner)] {
            for connection in &*self.connections {
                connection.clone().send_packed_command(&command).await?;
            }
        }
        Ok(())
    }

    fn release_command(&self, key: &str, owner: &str) -> Cmd {
        let mut release = Cmd::with_capacity(5, 100 + key.len());
        release.arg("EVALSHA").arg(&*self.script).arg(1).arg(key).arg(owner);
        release
    }

    async fn fan_out(&self, command: Cmd, is_yes: fn(&Value) -> bool) -> bool {
        let command = Arc::new(command);
        let call = |connection: &MultiplexedConnection| {
            let (mut connection, command) = (connection.clone(), command.clone());
            async move { connection.send_packed_command(&command).await }
        };
        let mut calls: FuturesUnordered<_> = self.connections.iter().map(call).collect();
        let needed = self.connections.len() / 2 + 1;
        let mut yes = 0;
        while let Some(answer) = calls.next().await {
            yes += usize::from(answer.is_ok_and(|value| is_yes(&value)));
            if yes == needed || yes + calls.len() < needed {
                break;
            }
        }
        if !calls.is_empty() {
            tokio::spawn(async move { while calls.next().await.is_some() {} });
        }
        yes == needed
    }
}

impl Locker for Floor {
    type Held = Held;

    async fn acquire(&self, key: &str) -> Option<Held> {
        let owner = owner();
        let granted = self.fan_out(set(key, &owner), |answer| *answer == Value::Okay).await;
        granted.then(|| Held { key: key.to_owned(), owner })
    }

    async fn release(&self, held: Held) {
        let release = self.release_command(&held.key, &held.owner);
        self.fan_out(release, |answer| *answer == Value::Int(1)).await;
    }
}

fn set(key: &str, owner: &str) -> Cmd {
    let mut set = Cmd::with_capacity(6, 60 + key.len());
    set.arg("SET").arg(key).arg(owner).arg("NX").arg("PX").arg(TTL_MILLIS);
    set
}

fn owner() -> String {
    format!("{:032x}", rand::random::<u128>())
}
