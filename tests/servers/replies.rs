//! Replies that never come, commands that are executed late, and callers that do not wait: no key is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clients::{
    REPLY, SLACK, TTL, acquired, builder, client, count, is_unknown, keys_left, ms, quorum_value, scripts,
    sets, timed,
};
use harness::{Cluster, Mode, Proxy, eventually};
use redquorum::{AcquireError, Outcome, ReleaseError};

/// Within this after its cause is gone, nothing is left of a lost outcome.
const SETTLED: Duration = Duration::from_secs(2);

fn urls(proxies: &[Proxy]) -> Vec<String> {
    proxies.iter().map(Proxy::url).collect()
}

/// A set whose reply is lost may have been executed: a failed round undoes it everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_no_key() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(urls(&proxies)).await;
    let before = sets(&cluster[0]);
    proxies[0].replies(Mode::Drop);
    proxies[1].replies(Mode::Drop);

    let (result, took) = timed(redlock.try_acquire("k")).await;

    let Err(AcquireError::NoQuorum { report, .. }) = result else { panic!("{result:?}") };
    assert_eq!((report.granted(), count(&report, is_unknown)), (1, 2), "{report}");
    assert!(report.to_string().contains("no answer within"), "{report}");
    assert!(took < REPLY + SLACK, "{took:?}");
    assert_eq!(sets(&cluster[0]), before + 1, "the set arrived, only its reply did not");
    cluster.no_key("k", SETTLED).await;
}

/// A release goes to every node that may hold the key, the silent one included, and waits for none but a quorum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_reaches_the_node_whose_reply_was_lost() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(urls(&proxies)).await;
    proxies[2].replies(Mode::Drop);

    let guard = redlock.try_acquire("k").await.expect("two nodes grant");
    eventually(SETTLED, "the silent node has the key", || cluster[2].exists("k")).await;
    let (released, took) = timed(guard.release()).await;

    released.expect("two nodes confirm");
    assert!(took < REPLY + SLACK, "{took:?}");
    cluster.no_key("k", SETTLED).await;
}

/// While a client is told that it holds the lock, a quorum of the nodes carries one value, and nobody else is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_undo_touches_the_grant_of_the_next_round() {
    const CLIENTS: usize = 10;
    let rounds = if cfg!(debug_assertions) { 12 } else { 100 };
    let cluster = Arc::new(Cluster::start(5));
    let holders = Arc::new(AtomicUsize::new(0));
    let held = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let redlock =
            builder(cluster.urls()).ttl(ms(2_000)).retry_delay(ms(2), ms(15)).build().await.expect("nodes");
        let (cluster, holders, held) = (cluster.clone(), holders.clone(), held.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = redlock.lock("k").wait_forever().await.expect("acquired in the end");
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                let first = quorum_value(&cluster, "k");
                tokio::time::sleep(ms(5)).await;
                let second = quorum_value(&cluster, "k");
                // Only what was read while the lock was valid counts.
                if guard.is_valid() {
                    assert!(first.is_some(), "no quorum carries the holder: {:?}", cluster.values("k"));
                    assert_eq!(first, second, "another value in the middle of a hold");
                    held.fetch_add(1, Ordering::Relaxed);
                }
                holders.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            }
        }));
    }

    for task in tasks {
        task.await.expect("no violation");
    }

    let held = held.load(Ordering::Relaxed);
    assert!(held > (CLIENTS * rounds / 2) as u64, "only {held} holds were looked at");
    cluster.no_key("k", SETTLED).await;
}

/// A grant that arrives long after the quorum was reached and the lock released is taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_grant_is_released() {
    let cluster = Cluster::start(5);
    let proxies = cluster.proxies();
    let redlock = builder(urls(&proxies)).reply_timeout(ms(5_000)).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    let before = sets(&cluster[4]);
    proxies[4].requests(Mode::Delay(ms(1_000)));

    let (guard, acquiring) = timed(redlock.try_acquire("k")).await;
    let (released, releasing) = timed(guard.expect("four nodes grant").release()).await;

    released.expect("four nodes confirm");
    assert!(acquiring < SLACK && releasing < SLACK, "{acquiring:?}, {releasing:?}");
    assert_eq!(sets(&cluster[4]), before, "nothing has arrived at the slow node yet");
    eventually(SETTLED, "the set arrives at the slow node", || sets(&cluster[4]) == before + 1).await;
    cluster.no_key("k", SETTLED).await;
}

/// An acquire that is dropped at any moment leaves no key, and no traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_no_key() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(urls(&proxies)).await;
    let before = sets(&cluster[0]);
    for proxy in &proxies {
        proxy.replies(Mode::Delay(ms(40)));
    }

    let attempts = (0..200_u64).map(|i| {
        let redlock = redlock.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(ms(i * 37 % 100), redlock.acquire(format!("k{i}"))).await;
        })
    });
    for attempt in attempts.collect::<Vec<_>>() {
        attempt.await.expect("no panic");
    }

    eventually(SETTLED, "no key is left", || keys_left(&cluster) == 0).await;
    eventually(SETTLED, "no outcome is open", || redlock.pending_cleanups() == 0).await;
    assert!(sets(&cluster[0]) >= before + 100, "most attempts were sent");
    let quiet = scripts(&cluster[0]);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(scripts(&cluster[0]), quiet, "nothing is sent any more");
    assert_eq!(keys_left(&cluster), 0);
}

/// A lost reply to a release is no lost lock: it is never reported as expired or taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_release_is_unconfirmed_at_worst() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(urls(&proxies)).await;
    let guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SETTLED, "all have the key", || cluster.values("k").iter().all(Option::is_some)).await;
    tokio::time::sleep(ms(50)).await;
    proxies[0].drop_next_replies(1);
    proxies[1].drop_next_replies(1);

    let released = guard.release().await;

    let Err(ReleaseError::Unconfirmed { report, .. }) = &released else { panic!("{released:?}") };
    assert_eq!((report.granted(), count(report, is_unknown)), (1, 2), "{report}");
    cluster.no_key("k", SETTLED).await;
    let (guard, _) = acquired(&redlock, "k", SETTLED).await;
    guard.release().await.expect("released");
}

/// A set that a frozen node executes after the thaw is undone, on the same connection or on the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_executed_after_the_thaw_is_undone() {
    for frozen_for in [ms(100), ms(700), ms(1_600)] {
        let cluster = Cluster::start(3);
        let redlock = client(cluster.urls()).await;
        let before = sets(&cluster[0]);
        cluster[0].freeze();
        cluster[1].freeze();

        let failed = redlock.try_acquire("k").await;
        tokio::time::sleep(frozen_for).await;
        cluster[0].thaw();
        cluster[1].thaw();

        assert!(matches!(failed, Err(AcquireError::NoQuorum { .. })), "{failed:?}");
        eventually(SETTLED, "the set is executed late", || sets(&cluster[0]) > before).await;
        cluster.no_key("k", SETTLED).await;
        let (guard, _) = acquired(&redlock, "k", SETTLED).await;
        guard.release().await.expect("released");
        cluster.no_key("k", SETTLED).await;
    }
}

/// The release of a node that was already known to be silent is owed, not skipped, and reaches it once it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_owed_to_a_silent_node_is_paid() {
    // Silent while the connection is still trusted; suspect; with the connection given up.
    for held_for in [ms(0), ms(700), ms(1_600)] {
        let cluster = Cluster::start(3);
        let redlock = client(cluster.urls()).await;
        let before = sets(&cluster[2]);
        cluster[2].freeze();

        let guard = redlock.try_acquire("k").await.expect("two nodes grant");
        tokio::time::sleep(held_for).await;
        guard.release().await.expect("two nodes confirm");
        cluster[2].thaw();

        eventually(SETTLED, "the set is executed late", || sets(&cluster[2]) > before).await;
        cluster.no_key("k", SETTLED).await;
    }
}

/// A set that is still on its way on a connection that was given up is undone when it arrives, though the first undo on
/// the new connection found nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_overtook_its_set_is_repeated() {
    let cluster = Cluster::start(3);
    let slow = Proxy::start(&cluster[2]);
    let redlock = builder([cluster[0].url(), cluster[1].url(), slow.url()]).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    // Longer than a connection may owe an answer, so that the set arrives on a connection that nobody holds any more.
    slow.requests(Mode::Delay(ms(3_000)));
    let guard = redlock.try_acquire("k").await.expect("two nodes grant");
    tokio::time::sleep(ms(100)).await;
    slow.requests(Mode::Pass);
    tokio::time::sleep(ms(1_300)).await;
    let up = || redlock.nodes()[2].health == redquorum::Health::Up;
    eventually(ms(1_000), "it is connected again", up).await;
    let before = (sets(&cluster[2]), scripts(&cluster[2]));

    guard.release().await.expect("two nodes confirm");

    eventually(SETTLED, "the undo arrives", || scripts(&cluster[2]) > before.1).await;
    assert_eq!(sets(&cluster[2]), before.0, "its set has not arrived yet");
    eventually(ms(5_000), "the set arrives", || sets(&cluster[2]) > before.0).await;
    cluster.no_key("k", SETTLED).await;
}

/// A connection that breaks under a set whose outcome nobody knows: the next one carries the undo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_connection_leaves_no_key() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(urls(&proxies)).await;
    for proxy in &proxies[..2] {
        proxy.replies(Mode::Drop);
    }

    let attempt = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.try_acquire("k").await }
    });
    eventually(SETTLED, "the set has arrived", || cluster[0].exists("k") && cluster[1].exists("k")).await;
    for proxy in &proxies[..2] {
        proxy.reset();
        proxy.pass();
    }

    let failed = attempt.await.expect("no panic").expect_err("two nodes are unknown");
    let report = failed.report().expect("a round was made");
    // The third one may not have answered yet when the round was decided.
    assert_eq!(count(report, |outcome| matches!(outcome, Outcome::Unknown(_))), 2, "{report}");
    cluster.no_key("k", SETTLED).await;
}

/// A guard that is dropped outside any runtime releases all the same.
#[test]
fn a_guard_dropped_on_a_plain_thread_releases() {
    let cluster = Cluster::start(3);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (redlock, guard) = runtime.block_on(async {
        let redlock = client(cluster.urls()).await;
        let guard = redlock.try_acquire("k").await.expect("acquired");
        (redlock, guard)
    });
    assert!(quorum_value(&cluster, "k").is_some());

    std::thread::spawn(move || drop(guard)).join().expect("no panic");

    runtime.block_on(cluster.no_key("k", SETTLED));
    drop(redlock);
}

/// A guard that is dropped while its task unwinds releases, and so does one of an aborted task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_of_panicking_and_aborted_tasks_release() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let (panicking, aborted) = (redlock.clone(), redlock.clone());

    let unwound = tokio::spawn(async move {
        let _guard = panicking.try_acquire("unwound").await.expect("acquired");
        std::panic::resume_unwind(Box::new("the work failed"));
    });
    assert!(unwound.await.expect_err("it panicked").is_panic());
    let task = tokio::spawn(async move {
        let _guard = aborted.lock("aborted").ttl(TTL).await.expect("acquired");
        std::future::pending::<()>().await;
    });
    eventually(SETTLED, "held", || quorum_value(&cluster, "aborted").is_some()).await;
    task.abort();

    cluster.no_key("unwound", SETTLED).await;
    cluster.no_key("aborted", SETTLED).await;
}

/// Calls that go out together, each with another answer, get each its own: granted, held by whom, an error of its own, and a
/// second form where a server forgot its scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_sent_together_find_their_own_answers() {
    const KEYS: usize = 120;
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    for key in 0..KEYS {
        let (name, other) = (format!("k{key}"), format!("other{key}"));
        for server in cluster.iter() {
            match key % 3 {
                0 => {}
                1 => drop(server.command(&["SET", &name, &other])),
                _ => drop(server.command(&["RPUSH", &name, "no lock"])),
            }
        }
    }

    // Servers before 7.0 do not name the holder in a refusal.
    let named = cluster[0].version().at_least((7, 0), (7, 2));
    // All in one turn of the runtime, more than fit into one request.
    let attempts = (0..KEYS).map(|key| redlock.lock(format!("k{key}")).without_waiting().into_future());
    let mut guards = Vec::new();
    for (key, result) in futures::future::join_all(attempts).await.into_iter().enumerate() {
        match (key % 3, result) {
            (0, Ok(guard)) => {
                assert_eq!(guard.key(), format!("k{key}").as_bytes());
                guards.push(guard);
            }
            (1, Err(error)) if named => {
                assert_eq!(error.holder(), Some(format!("\"other{key}\"").as_str()), "{error}")
            }
            (1, Err(error)) => assert!(error.is_contention(), "{error}"),
            (2, Err(_)) => {}
            (_, other) => panic!("k{key}: {other:?}"),
        }
    }
    for guard in &guards {
        let name = String::from_utf8_lossy(guard.key()).into_owned();
        assert!(quorum_value(&cluster, &name).is_some(), "{name} is held");
    }

    cluster.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
    for released in futures::future::join_all(guards.into_iter().map(|guard| guard.release())).await {
        released.expect("every node confirms, by text where the digest is unknown");
    }
    for key in 0..KEYS {
        let name = format!("k{key}");
        match key % 3 {
            0 => cluster.no_key(&name, SETTLED).await,
            1 => assert!(cluster.iter().all(|server| server.get(&name) == Some(format!("other{key}")))),
            _ => assert!(cluster.iter().all(|server| server.exists(&name)), "{name} is not ours to delete"),
        }
    }
}
