//! Waiting for a lock: as long as the caller wants, no longer, and with nothing left behind.

use std::time::Duration;

use clients::{REPLY, SLACK, SOON, acquired, builder, client, lock_commands, ms, sets, timed};
use harness::{Cluster, Proxy, Server, eventually};
use redquorum::AcquireError;

/// Somebody else's lock, as another client in another language would set it.
fn hold(cluster: &Cluster, key: &str, ttl: Duration) {
    for server in cluster.iter() {
        server.command(&["SET", key, "somebody", "NX", "PX", &ttl.as_millis().to_string()]);
    }
}

fn all_sets(cluster: &Cluster) -> Vec<u64> {
    cluster.iter().map(sets).collect()
}

/// Not waiting is one attempt, not none: one SET per node, and an answer at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_attempt_sends_one_set_per_node() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;

    let before = all_sets(&cluster);
    let guard = redlock.try_acquire("free").await.expect("it is free");
    let asked_once = || all_sets(&cluster).iter().zip(&before).all(|(now, before)| now - before == 1);
    eventually(SOON, "one SET per node", asked_once).await;
    guard.release().await.expect("released");
    assert!(asked_once());

    let before = all_sets(&cluster);
    let guard = redlock.lock("free").wait(Duration::ZERO).await.expect("it is free again");
    eventually(SOON, "one SET per node", || {
        all_sets(&cluster).iter().zip(&before).all(|(now, before)| now - before == 1)
    })
    .await;
    drop(guard);

    hold(&cluster, "held", SOON);
    let before = all_sets(&cluster);
    let (result, took) = timed(redlock.try_acquire("held")).await;
    assert!(matches!(result, Err(AcquireError::Held { .. })), "{result:?}");
    assert!(took < SLACK, "{took:?}");
    tokio::time::sleep(ms(200)).await;
    assert!(all_sets(&cluster).iter().zip(&before).all(|(now, before)| now - before == 1));
}

/// The caller's limit holds where no node answers, however the nodes fail; and the lock is there again once they do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_holds_when_nothing_answers() {
    let cluster = Cluster::start(3);
    let proxies = cluster.proxies();
    let redlock = client(proxies.iter().map(Proxy::url)).await;
    let each_proxy = |fault: fn(&Proxy)| proxies.iter().for_each(fault);
    let each_server = |fault: fn(&Server)| cluster.iter().for_each(fault);

    for (name, fault, heal) in [
        (
            "black hole",
            &(|| each_proxy(Proxy::black_hole)) as &dyn Fn(),
            &(|| each_proxy(Proxy::pass)) as &dyn Fn(),
        ),
        ("frozen", &|| each_server(Server::freeze), &|| each_server(Server::thaw)),
        (
            "closed",
            &|| {
                each_proxy(Proxy::refuse);
                each_proxy(Proxy::reset);
            },
            &|| each_proxy(Proxy::pass),
        ),
    ] {
        fault();
        let (result, took) = timed(redlock.lock("k").wait(ms(1_000))).await;
        let Err(AcquireError::TimedOut { last, .. }) = &result else { panic!("{name}: {result:?}") };
        assert!(matches!(**last, AcquireError::NoQuorum { .. }), "{name}: {last:?}");
        assert!(took >= ms(1_000) && took < ms(1_000) + REPLY + SLACK, "{name}: {took:?}");

        heal();
        let (guard, after) = acquired(&redlock, "k", SOON).await;
        assert!(after < ms(1_000) + SLACK, "{name}: healed after {after:?}");
        guard.release().await.expect("released");
        cluster.no_key("k", SOON).await;
    }
}

/// How long a caller waits has nothing to do with its own TTL: it gets the lock when the crashed holder's key expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_outlasts_a_crashed_holder() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    hold(&cluster, "k", ms(1_500));

    let (result, took) = timed(redlock.lock("k").ttl(ms(500)).wait(ms(5_000))).await;

    let guard = result.expect("acquired once it expired");
    assert!(took >= ms(1_400) && took < ms(1_500) + SLACK, "{took:?}");
    assert!(guard.remaining() > ms(200) && guard.remaining() <= ms(493), "{:?}", guard.remaining());
    guard.release().await.expect("released");
}

/// The last attempt begins no later than the limit, and no pause follows it. (There is no limit on the number of
/// attempts: a caller's time is what it can spend.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pause_after_the_last_attempt() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).retry_delay(ms(5_000), ms(5_000)).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    hold(&cluster, "k", 2 * SOON);
    let before = lock_commands(&cluster[0]);

    let (result, took) = timed(redlock.lock("k").wait(ms(1_000))).await;

    assert!(matches!(result, Err(AcquireError::TimedOut { .. })), "{result:?}");
    assert!(took >= ms(1_000) && took < ms(1_000) + REPLY + SLACK, "{took:?}");
    // The first attempt and the last, each with its undo.
    eventually(SOON, "two attempts were made", || lock_commands(&cluster[0]) >= before + 2).await;
}

/// A waiter that is dropped in a pause asks no more, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_waiter_asks_no_more() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    hold(&cluster, "k", 2 * SOON);
    // The line is kept by one of them.
    let asked = || cluster.iter().map(lock_commands).sum::<u64>();
    let before = asked();
    let waiter = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.lock("k").wait_forever().await.map(drop) }
    });
    eventually(SOON, "the waiter asks", || asked() > before + 12).await;

    waiter.abort();
    assert!(waiter.await.expect_err("aborted").is_cancelled());

    tokio::time::sleep(ms(100)).await;
    let before = asked();
    tokio::time::sleep(ms(600)).await;
    assert_eq!(asked(), before);
    assert_eq!(cluster.values("k"), vec![Some("somebody".to_owned()); 3]);
}

/// Closing the client ends every wait with "closed", at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_ends_every_wait() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).retry_delay(ms(5_000), ms(5_000)).build().await.expect("nodes");
    hold(&cluster, "k", 2 * SOON);
    let before = lock_commands(&cluster[0]);
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let redlock = redlock.clone();
            tokio::spawn(async move { redlock.lock("k").wait_forever().await.map(drop) })
        })
        .collect();
    eventually(SOON, "the waiters ask", || lock_commands(&cluster[0]) >= before + 10).await;

    let (settled, took) = timed(redlock.close(SOON)).await;

    assert!(settled && took < SLACK, "{settled}, {took:?}");
    for waiter in waiters {
        let ended = tokio::time::timeout(SLACK, waiter).await.expect("at once").expect("no panic");
        assert!(matches!(ended, Err(AcquireError::Closed)), "{ended:?}");
    }
    let asked = lock_commands(&cluster[0]);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(lock_commands(&cluster[0]), asked);
    assert_eq!(cluster.values("k"), vec![Some("somebody".to_owned()); 3]);
}

/// A waiter gets the lock soon after its release: within the longest pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_follows_a_release() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let guard = redlock.try_acquire("k").await.expect("acquired");
    let waiter = tokio::spawn(async move { rival.lock("k").wait(SOON).await });
    tokio::time::sleep(ms(400)).await;

    guard.release().await.expect("released");
    let (next, took) = timed(waiter).await;

    assert!(took < ms(250) + SLACK, "{took:?}");
    next.expect("no panic").expect("acquired").release().await.expect("released");
}
