//! The holder is told in time, whatever the sockets do.

use std::time::Duration;

use redquorum::testing::{ManualClock, MemoryCluster};
use redquorum::{ExtendError, Lost, ReleaseError};

use super::support::KEY;

/// Law (rule 8): told no later than the end of validity, with all nodes hung; at most 5 ms early.
#[tokio::test(start_paused = true)]
async fn told_at_the_end_of_validity_with_all_nodes_hung() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    cluster.nodes().iter().for_each(|node| node.hang());
    let acquired = tokio::time::Instant::now();
    let validity = guard.remaining();

    assert_eq!(guard.lost().await, Lost::Expired);

    let told = acquired.elapsed();
    assert!(told <= validity && told + Duration::from_millis(5) >= validity, "{told:?} of {validity:?}");
}

/// Law: an extension moves the moment of loss; those who watch need not do anything.
#[tokio::test(start_paused = true)]
async fn extension_moves_the_loss() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    let acquired = tokio::time::Instant::now();
    let lost = tokio::spawn({
        let lost = guard.lost();
        async move {
            lost.await;
            acquired.elapsed()
        }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;

    guard.extend(Duration::from_secs(10)).await.unwrap();

    let told = lost.await.unwrap();
    assert!(told > Duration::from_millis(14_800) && told < Duration::from_secs(15), "{told:?}");
    assert!(matches!(guard.extend(Duration::from_secs(10)).await, Ok(()) | Err(ExtendError::Expired { .. })));
}

/// Law (rule 8): `lost()` resolves before the first byte of the release leaves.
#[tokio::test(start_paused = true)]
async fn told_before_the_release_leaves() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    let mut lost = std::pin::pin!(guard.lost());
    assert!(futures_now(lost.as_mut()).is_none());
    let executed = cluster.node(0).executed();

    drop(guard);

    assert_eq!(futures_now(lost.as_mut()), Some(Lost::Released));
    assert_eq!(cluster.node(0).executed(), executed, "the node's task has not even run");
}

/// Polls once.
fn futures_now<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut cx) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// Law: a majority that does not carry the holder is a loss, told at once by the extension and to those who watch.
#[tokio::test(start_paused = true)]
async fn majority_that_forgot_is_a_loss() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    cluster.node(0).forget(KEY);
    cluster.node(1).put(KEY, b"rival", None);

    let error = guard.extend(Duration::from_secs(10)).await.unwrap_err();

    assert!(matches!(error, ExtendError::Lost { .. }), "{error}");
    assert_eq!(lost.await.unwrap(), Lost::Forgotten);
    assert!(!guard.is_valid());
    assert!(matches!(guard.release().await, Err(ReleaseError::Expired { .. })));
    assert_eq!(cluster.node(1).holder(KEY).as_deref(), Some("\"rival\""), "another's key is not touched");
    assert_eq!(cluster.node(2).holder(KEY), None, "the rest of ours is gone");
}

/// Law: an extension sets the key again on a node that had lost it, once a quorum confirmed.
#[tokio::test(start_paused = true)]
async fn extension_heals_a_node_that_forgot() {
    let cluster = MemoryCluster::new(5);
    let redlock = cluster.builder().build().await.unwrap();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    cluster.node(0).wipe();
    cluster.node(1).wipe();

    guard.extend(Duration::from_secs(10)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Stragglers of a confirmed extension are taken up at the next one.
    guard.extend(Duration::from_secs(10)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;

    assert!(cluster.nodes().iter().all(|node| node.holder(KEY).is_some()));
}

/// Law (rule 1): validity counts the time in which the machine was suspended. A jump of the clock is all that a process
/// sees of it; not a single network call is needed to know.
#[tokio::test]
async fn suspend_ends_validity() {
    let clock = ManualClock::new();
    let cluster = MemoryCluster::with_clock(3, clock.clone());
    let redlock = cluster.builder().ttl(Duration::from_secs(30)).build().await.unwrap();
    let rival = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    let executed: Vec<_> = cluster.nodes().iter().map(|node| node.executed()).collect();

    clock.advance(Duration::from_secs(600));

    assert!(!guard.is_valid());
    assert_eq!(lost.await.unwrap(), Lost::Expired);
    let after: Vec<_> = cluster.nodes().iter().map(|node| node.executed()).collect();
    assert_eq!(executed, after, "known without asking any node");
    let theirs = rival.try_acquire(KEY).await.unwrap();
    assert!(matches!(guard.release().await, Err(ReleaseError::TakenOver { .. })));
    assert!(theirs.is_valid() && cluster.nodes().iter().all(|node| node.holder(KEY).is_some()));
}
