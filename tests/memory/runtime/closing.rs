//! Closing, and life without the client's runtime.

use std::time::Duration;

use redquorum::testing::MemoryCluster;
use redquorum::{AcquireError, BuildError, InvalidRequest};

use super::support::{KEY, cancelled_after, holders};

/// Law: close says "all settled" only when it is: a debt that no task has taken up yet counts.
#[tokio::test(start_paused = true)]
async fn close_counts_debts_that_nobody_took_up_yet() {
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().build().await.unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    cluster.nodes().iter().for_each(|node| node.crash());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let healer = tokio::spawn({
        let cluster = cluster.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cluster.nodes().iter().for_each(|node| node.heal());
        }
    });

    drop(guard);
    let settled = redlock.close(Duration::from_secs(3)).await;

    healer.await.unwrap();
    assert!(settled, "there was time enough");
    assert_eq!(holders(&cluster), 0, "settled means deleted");
}

/// Law: no lock is born on a client that is closing, wherever its acquire stood; and nothing of it is left.
#[tokio::test(start_paused = true)]
async fn no_lock_is_born_on_a_closing_client() {
    for polls in 1..10 {
        let cluster = MemoryCluster::new(3);
        let redlock = cluster.builder().build().await.unwrap();
        let mut acquire = Box::pin(redlock.acquire(KEY));
        let early = cancelled_after(polls, &mut acquire).await;
        if let Some(guard) = early {
            assert!(guard.is_ok());
            break;
        }
        // The task of the acquire is busy elsewhere while its answers come and the client closes.
        let closing = tokio::spawn({
            let redlock = redlock.clone();
            async move { redlock.close(Duration::from_secs(1)).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;

        let outcome = acquire.await;

        assert!(matches!(outcome, Err(AcquireError::Closed)), "{outcome:?}");
        assert!(closing.await.unwrap(), "after {polls} polls: the undo was written before the end");
        assert_eq!(holders(&cluster), 0);
    }
}

/// Law: a client whose runtime has ended says so at once, instead of waiting for what cannot come.
#[test]
fn client_of_an_ended_runtime_is_closed() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = build();
    let redlock = first.block_on(async { MemoryCluster::new(3).builder().build().await.unwrap() });
    drop(first);

    let second = build();
    let started = std::time::Instant::now();
    let outcome = second.block_on(async { redlock.lock(KEY).wait_forever().await });

    assert!(matches!(outcome, Err(AcquireError::Closed)), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_secs(1));
}

/// Law (rule 10): futures of a client may be polled by any executor: they bring their timers along.
#[test]
fn any_executor_may_poll() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
    let server = harness::Server::start();
    let redlock = runtime.block_on(async {
        redquorum::Redlock::builder().node(server.url()).without_restart_delay().build().await.unwrap()
    });

    std::thread::spawn(move || {
        let guard = futures::executor::block_on(redlock.acquire(KEY)).unwrap();
        let refused =
            futures::executor::block_on(async { redlock.lock(KEY).wait(Duration::from_millis(30)).await });
        assert!(matches!(refused, Err(AcquireError::TimedOut { .. })));
        futures::executor::block_on(guard.release()).unwrap();
    })
    .join()
    .unwrap();
}

/// Law: a pause of zero, which would keep all other tasks of a thread from their turn, is refused; and the shortest
/// pause lets them have it.
#[tokio::test(start_paused = true)]
async fn waiting_leaves_others_their_turn() {
    let cluster = MemoryCluster::new(3);
    let zero = cluster.builder().retry_delay(Duration::ZERO, Duration::from_millis(1)).build().await;
    let expected = InvalidRequest::ZeroTimeout { name: "first retry pause" };
    assert!(matches!(zero, Err(BuildError::Invalid(error)) if error == expected));

    let shortest = Duration::from_nanos(1);
    let redlock = cluster.builder().retry_delay(shortest, shortest).build().await.unwrap();
    cluster.nodes().iter().for_each(|node| node.crash());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let others = tokio::spawn(async {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    });

    let outcome = redlock.lock(KEY).wait(Duration::from_secs(2)).await;

    assert!(matches!(outcome, Err(AcquireError::TimedOut { .. })));
    assert!(others.is_finished());
}

/// Law: two spellings of one server's address are one server. It would vote twice, so the client is refused if the rest is no
/// quorum.
#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let server = harness::Server::start();
    let port = server.port();
    let built = redquorum::Redlock::builder()
        .node(format!("redis://localhost:{port}"))
        .node(format!("redis://127.0.0.1:{port}"))
        .build()
        .await;

    let error = built.expect_err("one server twice");
    assert!(matches!(error, BuildError::DuplicateNode { first: 1, second: 2, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("localhost") && text.contains("127.0.0.1"), "{text}");
}
