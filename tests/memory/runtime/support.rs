//! Cancelling a future after so many polls, and what must be true afterwards.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use redquorum::Redlock;
use redquorum::testing::MemoryCluster;

/// Polls a future a number of times, then lets it be dropped: `None` where it was not finished by then. With N from
/// zero up, every await of the future is cancelled in turn.
pub async fn cancelled_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |cx: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        Pin::as_mut(&mut future).poll(cx).map(Some)
    })
    .await
}

/// Faults that a cancellation may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Fair,
    /// Nodes answer after different times.
    Slow,
    OneHung,
    OneLosesReplies,
    OneCrashed,
    /// No quorum.
    ThreeLoseReplies,
    /// Somebody else holds the key.
    Contended,
}

pub const WEATHERS: [Weather; 7] = [
    Weather::Fair,
    Weather::Slow,
    Weather::OneHung,
    Weather::OneLosesReplies,
    Weather::OneCrashed,
    Weather::ThreeLoseReplies,
    Weather::Contended,
];

impl Weather {
    pub fn set(self, cluster: &MemoryCluster) {
        match self {
            Self::Fair => {}
            Self::Slow => {
                for (index, node) in cluster.nodes().iter().enumerate() {
                    node.delay(Duration::from_millis(3 * index as u64 + 1));
                }
            }
            Self::OneHung => cluster.node(0).hang(),
            Self::OneLosesReplies => cluster.node(1).lose_replies(),
            Self::OneCrashed => cluster.node(2).crash(),
            Self::ThreeLoseReplies => cluster.nodes()[..3].iter().for_each(|node| node.lose_replies()),
            Self::Contended => {
                cluster
                    .nodes()
                    .iter()
                    .for_each(|node| node.put(KEY, b"rival", Some(Duration::from_secs(3600))));
            }
        }
    }
}

pub const KEY: &str = "k";

/// The life of locks in tests of what goes on over many TTLs.
pub const TTL: Duration = Duration::from_secs(1);

/// A client of these nodes, with that TTL.
pub async fn client(cluster: &MemoryCluster) -> Redlock {
    cluster.builder().ttl(TTL).build().await.unwrap()
}

/// On how many nodes the key is.
pub fn holders(cluster: &MemoryCluster) -> usize {
    cluster.nodes().iter().filter(|node| node.holder(KEY).is_some()).count()
}

pub fn heal(cluster: &MemoryCluster) {
    for node in cluster.nodes() {
        node.heal();
        if node.holder(KEY).as_deref() == Some("\"rival\"") {
            node.forget(KEY);
        }
    }
}

/// Law: after the faults are over, nothing of ours is left on any node within seconds, far below the TTL; every debt ends
/// at the latest when its key must have expired; and the lock can be had.
pub async fn nothing_is_left(cluster: &MemoryCluster, redlock: &Redlock, what: &str) {
    heal(cluster);
    // Two seconds for a connection to be given up, noticed and made anew, before the undo gets through.
    within(Duration::from_millis(3_500), what, || holders(cluster) == 0).await;
    let again = redlock.lock(KEY).wait(Duration::from_secs(1)).await;
    assert!(again.is_ok(), "{what}: {again:?}");
    drop(again);
    // Where a connection died with a set on it, only the TTL of 10 s proves that it never came: and 1 % and 1 s more.
    within(Duration::from_millis(12_200), what, || redlock.pending_cleanups() == 0).await;
}

async fn within(limit: Duration, what: &str, condition: impl Fn() -> bool) {
    let started = tokio::time::Instant::now();
    while !condition() {
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
