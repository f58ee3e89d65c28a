//! What is counted: under the documented names, and each of them.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use redquorum::AcquireError;
use redquorum::testing::MemoryCluster;

const OPERATIONS: &str = include_str!("../../docs/operations.md");

/// Every name in the table of docs/operations.md, without the suffixes that an exporter adds.
fn documented() -> Vec<String> {
    let names = OPERATIONS.split('`').filter(|text| text.starts_with("redquorum_"));
    let mut names: Vec<_> = names.map(|name| name.split('{').next().unwrap_or(name).to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Every name that an exporter shows.
fn shown(text: &str) -> Vec<String> {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    kinds.filter_map(|kind| Some(kind.split_whitespace().next()?.to_owned())).collect()
}

/// A life of locks with everything in it that is counted, and the counts: contention, a wait in the queue, a loss, a lost reply,
/// a young node. Nothing is counted under a name that is not documented, and everything that is documented is counted.
#[tokio::test(start_paused = true)]
async fn all_is_counted_under_its_documented_name() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let metrics = recorder.handle();
    let cluster = MemoryCluster::new(3);
    let ttl = Duration::from_secs(5);
    let redlock = cluster.builder().ttl(ttl).build().await.expect("nodes");

    let mut guard = redlock.acquire("k").await.expect("free");
    guard.extend(ttl).await.expect("held");
    assert!(matches!(redlock.try_acquire("k").await, Err(AcquireError::Held { .. })));
    let waiter = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("k").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting = metrics.render();
    guard.release().await.expect("released");
    let guard = waiter.await.expect("no panic").expect("handed over");
    tokio::time::sleep(ttl).await;
    let lost = {
        let mut guard = guard;
        guard.extend(ttl).await
    };
    assert!(lost.is_err());
    cluster.node(0).lose_replies();
    drop(redlock.acquire("other").await.expect("two nodes grant"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let owed = metrics.render();
    cluster.node(0).heal();
    cluster.nodes().iter().for_each(|node| node.set_age(Duration::ZERO));
    let delayed = cluster.builder().ttl(ttl).restart_delay(ttl).build().await.expect("nodes");
    assert!(matches!(delayed.try_acquire("fresh").await, Err(AcquireError::NodesTooYoung { .. })));
    assert!(redlock.close(Duration::from_secs(20)).await);

    let text = metrics.render();
    for expected in [
        "redquorum_acquires_total{outcome=\"held\"} 3",
        "redquorum_acquires_total{outcome=\"contended\"} 1",
        "redquorum_acquires_total{outcome=\"too_young\"} 1",
        "redquorum_releases_total{outcome=\"released\"} 1",
        "redquorum_extends_total{outcome=\"extended\"} 1",
        "redquorum_extends_total{outcome=\"lost\"} 1",
        "redquorum_locks_lost_total{reason=\"expired\"} 1",
        "redquorum_hold_seconds_count 3",
        "redquorum_locks_held 0",
        "redquorum_waiters 0",
        "redquorum_pending_cleanups 0",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(
        waiting.contains("redquorum_waiters 1") && waiting.contains("redquorum_locks_held 1"),
        "{waiting}"
    );
    for expected in ["redquorum_pending_cleanups 1", "redquorum_node_up{node=\"memory-1\"} 0"] {
        assert!(owed.contains(expected), "{expected} is not in\n{owed}");
    }
    // The renewal task's extensions are extensions.
    let extended = || {
        let text = metrics.render();
        let counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("redquorum_extends_total{outcome=\"extended\"} "));
        counts.map(|count| count.parse::<u64>().expect("a count")).sum::<u64>()
    };
    let (before, keeping) = (extended(), cluster.builder().ttl(ttl).build().await.expect("nodes"));
    let kept = keeping.lock("kept").keep_alive().await.expect("free");
    tokio::time::sleep(3 * ttl).await;
    assert!(extended() >= before + 8, "{} in three TTLs", extended() - before);
    kept.release().await.expect("released");
    // What this one does not bring about is documented all the same.
    let rare = ["redquorum_cleanups_dropped_total", "redquorum_node_too_young_total"];
    let (documented, mut shown) = (documented(), shown(&text));
    shown.extend(rare.map(str::to_owned));
    shown.sort_unstable();
    shown.dedup();
    assert_eq!(shown, documented);
}
