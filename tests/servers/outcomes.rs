//! How a release ends: told apart by type, and never at the cost of the next holder.

use std::time::{Duration, Instant};

use clients::{REPLY, SLACK, SOON, acquired, builder, client, count, ms, quorum_value, timed};
use harness::{Cluster, Proxy, Server, eventually};
use redquorum::{AcquireError, Outcome, ReleaseError};

const SHORT: Duration = Duration::from_millis(500);

/// Whether a release says that another has the lock now. The native compare-and-delete of newer servers does not tell
/// that from an expired lock.
fn is_taken_over(server: &Server, released: &Result<(), ReleaseError>) -> bool {
    match released {
        Err(ReleaseError::TakenOver { .. }) => true,
        Err(ReleaseError::Expired { .. }) => server.version().at_least((8, 4), (9, 0)),
        _ => false,
    }
}

/// A release within validity is confirmed. A second release of the same lock does not compile: it consumes the guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_time_is_confirmed() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.lock("k").ttl(SHORT).await.expect("acquired");

    guard.release().await.expect("released");

    cluster.no_key("k", SOON).await;
}

/// A release after expiry, with nobody else there, says expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_says_expired() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.lock("k").ttl(SHORT).await.expect("acquired");
    cluster.no_key("k", SOON).await;

    let released = guard.release().await;

    let Err(ReleaseError::Expired { key, report }) = &released else { panic!("{released:?}") };
    assert_eq!(
        (key.as_bytes(), count(report, |outcome| *outcome == Outcome::NotOurs) >= 2),
        (&b"k"[..], true),
        "{report}"
    );
}

/// A release after another client acquired says taken over, and leaves that client's key as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_after_a_takeover_says_so_and_touches_nothing() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let guard = redlock.lock("k").ttl(SHORT).await.expect("acquired");
    cluster.no_key("k", SOON).await;
    let (theirs, _) = acquired(&rival, "k", SOON).await;
    let on_all = || cluster.values("k").iter().all(Option::is_some);
    eventually(SOON, "the rival is on all nodes", on_all).await;
    let values = cluster.values("k");

    let released = guard.release().await;

    assert!(is_taken_over(&cluster[0], &released), "{released:?}");
    assert_eq!(cluster.values("k"), values);
    assert!(theirs.is_valid());
    theirs.release().await.expect("released");
}

/// A holder that outlived its TTL, releases and drops its guard, never shortens the next holder's hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_and_drop_leave_the_next_holder_alone() {
    let cluster = Cluster::start(5);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let (released, dropped) =
        tokio::join!(redlock.lock("released").ttl(ms(300)), redlock.lock("dropped").ttl(ms(300)));
    let (released, dropped) = (released.expect("acquired"), dropped.expect("acquired"));
    let mut theirs = Vec::new();
    for key in ["released", "dropped"] {
        // Expired on every node: otherwise the rival may have to do with a quorum of them.
        cluster.no_key(key, SOON).await;
        theirs.push(acquired(&rival, key, SOON).await.0);
        eventually(SOON, "on all", || cluster.values(key).iter().all(Option::is_some)).await;
    }
    let seen = Instant::now();
    let view = || {
        let lives = cluster.iter().flat_map(|server| [server.pttl("released"), server.pttl("dropped")]);
        (cluster.values("released"), cluster.values("dropped"), lives.collect::<Vec<_>>())
    };
    let before = view();

    let outcome = released.release().await;
    drop(dropped);
    tokio::time::sleep(ms(200)).await;

    assert!(is_taken_over(&cluster[0], &outcome), "{outcome:?}");
    let after = view();
    assert_eq!((before.0, before.1), (after.0, after.1));
    let passed = seen.elapsed() + ms(5);
    for (before, after) in before.2.iter().zip(&after.2) {
        let (before, after) = (before.expect("a key"), after.expect("a key"));
        assert!(after + passed >= before && after <= before, "{before:?} became {after:?} in {passed:?}");
    }
}

/// A failed release leaves nothing behind in the client: the same key is acquired again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_release_does_not_block_the_same_client() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let late = tokio::spawn({
        let redlock = redlock.clone();
        async move {
            let guard = redlock.lock("k").ttl(SHORT).await.expect("acquired");
            let lost = guard.lost().await;
            tokio::time::sleep(ms(50)).await;
            (lost, guard.release().await)
        }
    });
    eventually(SOON, "held", || quorum_value(&cluster, "k").is_some()).await;

    cluster.no_key("k", SOON).await;
    let (guard, after) = acquired(&redlock, "k", SOON).await;

    assert!(after < SLACK, "{after:?}");
    let (_, released) = late.await.expect("no panic");
    assert!(released.is_err(), "{released:?}");
    assert!(guard.is_valid() && quorum_value(&cluster, "k").is_some());
    guard.release().await.expect("released");
}

/// Contention and outage are told apart by type, and both say what each node answered in one line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_and_outage_are_different_errors() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let guard = redlock.try_acquire("k").await.expect("acquired");

    let contended = rival.try_acquire("k").await.expect_err("held");
    let in_vain = rival.lock("k").wait(ms(200)).await.expect_err("held for long");
    cluster[0].kill9();
    cluster[1].kill9();
    eventually(SOON, "both are missed", || rival_misses(&rival)).await;
    let outage = rival.try_acquire("other").await.expect_err("two of three are dead");

    assert!(matches!(contended, AcquireError::Held { .. }) && contended.is_contention(), "{contended:?}");
    let AcquireError::TimedOut { waited, last } = &in_vain else { panic!("{in_vain:?}") };
    assert!(*waited >= ms(200) && matches!(**last, AcquireError::Held { .. }), "{in_vain:?}");
    assert!(in_vain.is_contention());
    assert!(matches!(outage, AcquireError::NoQuorum { .. }) && !outage.is_contention(), "{outage:?}");
    for error in [&contended, &in_vain, &outage] {
        let text = error.to_string();
        assert!(!text.contains('\n') && text.contains("2 needed"), "{text}");
        for server in cluster.iter() {
            assert!(text.contains(&format!("127.0.0.1:{}", server.port())), "{text}");
        }
    }
    drop(guard);
}

fn rival_misses(rival: &redquorum::Redlock) -> bool {
    let attempt = tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current().block_on(async { rival.try_acquire("missing").await })
    });
    let Err(error) = attempt else { return false };
    error.report().is_some_and(|report| count(report, |outcome| matches!(outcome, Outcome::NotSent(_))) == 2)
}

/// A release with most nodes silent is unconfirmed within one reply timeout, and is settled once they answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_too_few_confirm_says_so() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    cluster[0].freeze();
    cluster[1].freeze();

    let (released, took) = timed(guard.release()).await;

    let Err(ReleaseError::Unconfirmed { report, .. }) = &released else { panic!("{released:?}") };
    assert_eq!(report.granted(), 1, "{report}");
    assert!(took < REPLY + SLACK, "{took:?}");
    cluster[0].thaw();
    cluster[1].thaw();
    cluster.no_key("k", SOON).await;
    eventually(SOON, "no outcome is open", || redlock.pending_cleanups() == 0).await;
}

/// Closing waits for guards and open outcomes, leaves no key and no connection, and says whether all was settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_settles_what_is_open() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(proxies.iter().map(Proxy::url)).await;
    let guard = redlock.try_acquire("k").await.expect("acquired");
    let holder = tokio::spawn(async move {
        tokio::time::sleep(ms(200)).await;
        guard.release().await
    });

    let (settled, took) = timed(redlock.close(SOON)).await;

    assert!(settled && took >= ms(150) && took < SOON / 2, "{settled}, {took:?}");
    holder.await.expect("no panic").expect("released");
    cluster.no_key("k", ms(0)).await;
    let gone = || cluster.iter().all(|server| server.connected_clients() == 0);
    eventually(ms(1_000), "no connection is left", gone).await;
    let closed = redlock.try_acquire("k").await;
    assert!(matches!(closed, Err(AcquireError::Closed)), "{closed:?}");
}

/// Closing gives up at its deadline, where a node that owes an answer stays silent, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_ends_at_its_deadline() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    cluster[2].freeze();
    drop(redlock.try_acquire("k").await.expect("two nodes grant"));

    let (settled, took) = timed(redlock.close(ms(300))).await;

    assert!(!settled && took >= ms(300) && took < ms(300) + SLACK, "{settled}, {took:?}");
    cluster[2].thaw();
    // What was written before the end is executed; the release was, on the same connection as the set.
    cluster.no_key("k", SOON).await;
    eventually(SOON, "no connection is left", || {
        cluster.iter().all(|server: &Server| server.connected_clients() == 0)
    })
    .await;
}
