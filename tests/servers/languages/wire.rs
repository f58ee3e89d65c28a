//! Clients that are not at hand, as they look on the wire: which commands they send, what their values are, when they try
//! again and what they undo. From their public sources; nothing of these is repeated here but what a server sees.

use std::time::Duration;

use futures::future::join_all;
use rand::RngExt;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, RedisResult, cmd};
use tokio::time::Instant;

/// Whose manners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// node-redlock 5: takes and frees by scripts, 16 random bytes in hex; several tries under one value, and only then
    /// undoes what the tries have set.
    NodeRedlock,
    /// redsync 4, of Go: `SET … PX … NX`, 16 random bytes in base 64, undone after each try.
    Redsync,
    /// rslock 0.10, of Rust: `SET … NX PX`, 20 random bytes as they are, undone after each try.
    Rslock,
    /// redlock-rb 2, of Ruby: a script that sets, or extends what is its own; a uuid with dashes.
    RedlockRb,
}

const SET_IF_NONE: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
     redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1";
const SET_OR_EXTEND: &str = "local held = redis.call('GET', KEYS[1]) \
     if not held or held == ARGV[1] then return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end";
const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXPIRE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// One lock of such a client.
pub struct Wire {
    manner: Manner,
    key: String,
    ttl: Duration,
    nodes: Vec<MultiplexedConnection>,
    value: Vec<u8>,
}

impl Wire {
    pub async fn start(manner: Manner, key: &str, ttl: Duration, urls: &[String]) -> Self {
        let mut nodes = Vec::new();
        for url in urls {
            let client = Client::open(url.as_str()).expect("a url");
            nodes.push(client.get_multiplexed_async_connection().await.expect("connect"));
        }
        Self { manner, key: key.to_owned(), ttl, nodes, value: Vec::new() }
    }

    /// Tries again and again, in its own way, no longer than this.
    pub async fn acquire(&mut self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        loop {
            self.value = self.manner.value();
            let tries = if self.manner == Manner::NodeRedlock { 4 } else { 1 };
            for again in 0..tries {
                if again > 0 {
                    pause(10, 30).await;
                }
                let started = Instant::now();
                if self.each(self.set()).await && started.elapsed() < self.ttl * 99 / 100 {
                    return true;
                }
            }
            self.release().await;
            if Instant::now() >= until {
                return false;
            }
            pause(0, 20).await;
        }
    }

    /// Whether it was still this client's on a majority.
    pub async fn release(&mut self) -> bool {
        self.each(self.script(DELETE)).await
    }

    /// Whether it was still this client's on a majority.
    pub async fn extend(&mut self) -> bool {
        let mut script = self.script(EXPIRE);
        script.arg(self.millis());
        self.each(script).await
    }

    fn set(&self) -> Cmd {
        match self.manner {
            Manner::NodeRedlock | Manner::RedlockRb => {
                let node = self.manner == Manner::NodeRedlock;
                let mut script = self.script(if node { SET_IF_NONE } else { SET_OR_EXTEND });
                script.arg(self.millis());
                script
            }
            Manner::Redsync => {
                let mut set = cmd("set");
                set.arg(&self.key).arg(&self.value).arg("px").arg(self.millis()).arg("nx");
                set
            }
            Manner::Rslock => {
                let mut set = cmd("SET");
                set.arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(self.millis());
                set
            }
        }
    }

    fn script(&self, code: &str) -> Cmd {
        let mut eval = cmd("EVAL");
        eval.arg(code).arg(1).arg(&self.key).arg(&self.value);
        eval
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).expect("a short time")
    }

    /// Sends a command to all nodes, and tells whether a majority did it.
    async fn each(&self, command: Cmd) -> bool {
        let command = &command;
        let sent = self.nodes.iter().map(|node| {
            let mut node = node.clone();
            async move {
                let answer: RedisResult<redis::Value> = command.query_async(&mut node).await;
                matches!(answer, Ok(redis::Value::Okay | redis::Value::Int(1)))
            }
        });
        let done = join_all(sent).await.into_iter().filter(|done| *done).count();
        done > self.nodes.len() / 2
    }
}

impl Manner {
    fn value(self) -> Vec<u8> {
        let bytes: [u8; 20] = rand::random();
        let hex: String = bytes[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::NodeRedlock => hex.into_bytes(),
            Self::Redsync => format!("{}==", &hex[..22]).into_bytes(),
            Self::Rslock => bytes.to_vec(),
            Self::RedlockRb => {
                format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
                    .into_bytes()
            }
        }
    }
}

async fn pause(least: u64, most: u64) {
    let pause = Duration::from_millis(rand::rng().random_range(least..=most));
    tokio::time::sleep(pause).await;
}
