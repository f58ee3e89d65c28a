//! Guards dropped in every situation a program can be in.

use std::time::Duration;

use redquorum::testing::MemoryCluster;

use super::support::{KEY, nothing_is_left};
use harness::Ear;

/// Law: a guard dropped on a plain thread, outside every runtime, releases its lock.
#[tokio::test(start_paused = true)]
async fn dropped_on_a_plain_thread() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();

    std::thread::spawn(move || drop(guard)).join().unwrap();

    nothing_is_left(&cluster, &redlock, "plain thread").await;
}

/// Law: outcomes that stay open for a while and are settled are worth no warning.
#[tokio::test(start_paused = true)]
async fn debts_that_are_settled_are_no_trouble() {
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    cluster.node(1).crash();
    drop(redlock.acquire(KEY).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.node(1).heal();

    nothing_is_left(&cluster, &redlock, "a node was away").await;
    assert!(!ear.heard().contains("left to their TTL"), "{}", ear.heard());
}

/// Law: a panic while the lock is held releases it while unwinding.
#[tokio::test(start_paused = true)]
async fn dropped_while_unwinding() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();

    let worker = tokio::spawn(async move {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the work failed"));
    });

    assert!(worker.await.unwrap_err().is_panic());
    nothing_is_left(&cluster, &redlock, "unwinding").await;
}

/// Law: an aborted task releases what it held or was about to hold.
#[tokio::test(start_paused = true)]
async fn dropped_with_an_aborted_task() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    for millis in 0..20 {
        cluster.nodes().iter().for_each(|node| node.delay(Duration::from_millis(7)));
        let worker = tokio::spawn({
            let redlock = redlock.clone();
            async move {
                let _guard = redlock.acquire(KEY).await.unwrap();
                std::future::pending::<()>().await;
            }
        });
        tokio::time::sleep(Duration::from_millis(millis)).await;

        worker.abort();

        nothing_is_left(&cluster, &redlock, &format!("aborted after {millis} ms")).await;
    }
}

/// Law: guards that outlive their runtime, and clients too, are dropped without a panic and without a hang.
#[test]
fn dropped_after_the_runtime_has_ended() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap();
    let (guard, redlock) = runtime.block_on(async {
        let redlock = MemoryCluster::new(3).builder().build().await.unwrap();
        (redlock.acquire(KEY).await.unwrap(), redlock)
    });

    drop(runtime);

    assert!(guard.is_valid(), "validity needs no runtime");
    drop(guard);
    drop(redlock);
}

/// Law: a runtime that shuts down with guards held, waits going on and watchers watching ends at once.
#[test]
fn runtime_shuts_down_with_everything_under_way() {
    let started = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let cluster = MemoryCluster::new(3);
        let redlock = cluster.builder().build().await.unwrap();
        let guard = redlock.acquire(KEY).await.unwrap();
        tokio::spawn(guard.lost());
        tokio::spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        tokio::spawn(async move { redlock.lock(KEY).wait_forever().await.map(drop) });
        tokio::time::sleep(Duration::from_millis(50)).await;
    });

    drop(runtime);

    assert!(started.elapsed() < Duration::from_secs(2));
}

/// Law: when the last handle is gone, so are the client's tasks, and the releases it had admitted are written first.
#[tokio::test(start_paused = true)]
async fn last_handle_dropped_ends_all_tasks() {
    let baseline = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let cluster = MemoryCluster::new(3);
    for round in 0..20 {
        let redlock = cluster.builder().build().await.unwrap();
        let guard = redlock.acquire(KEY).await.unwrap();
        let lost = guard.lost();
        if round % 3 == 0 {
            cluster.node(0).hang();
        }
        drop(redlock);
        drop(guard);
        assert_eq!(lost.await, redquorum::Lost::Released);

        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), baseline, "round {round}");
        cluster.node(0).heal();
        assert!(cluster.nodes()[1..].iter().all(|node| node.keys().is_empty()), "round {round}");
        cluster.node(0).wipe();
    }
}

/// Law: close waits for guards that are still held, up to its deadline, and says whether all was settled.
#[tokio::test(start_paused = true)]
async fn close_waits_for_guards() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    let worker = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        guard.release().await
    });

    assert!(redlock.close(Duration::from_secs(5)).await, "all settled");

    worker.await.unwrap().unwrap();
    assert!(cluster.nodes().iter().all(|node| node.keys().is_empty()));

    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    assert!(!redlock.close(Duration::from_secs(1)).await, "a guard is still held");
    assert!(guard.is_valid(), "its validity stands");
}
