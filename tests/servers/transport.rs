//! What happens below the lock: silence, black holes, refused and slow connections, and what a client leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clients::{REPLY, SLACK, SOON, builder, client, keys_left, ms, resident, sets, timed, until_votes};
use harness::{Cluster, Proxy, Server, alone, eventually};
use redquorum::{AcquireError, Outcome, Redlock};

/// A node that is back is used again within this.
const BACK: Duration = Duration::from_secs(1);

/// One frozen node costs nothing, two cost one reply timeout; thousands of calls to it pile nothing up, and after the
/// thaw it votes again, with no key left of what was sent meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_costs_nothing() {
    if !alone("transport::a_frozen_node_costs_nothing") {
        return;
    }
    let cycles = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let before = resident();
    cluster[0].freeze();

    let mut slow = 0;
    for i in 0..cycles {
        let (guard, took) = timed(redlock.lock(format!("k{i}")).wait(SOON)).await;
        // Whoever waited for the frozen node took at least a reply timeout.
        slow += usize::from(took >= REPLY);
        guard.expect("two nodes grant").release().await.expect("two nodes confirm");
    }
    assert!(slow <= cycles / 500, "{slow} of {cycles} acquires took as long as a reply timeout");
    let grown = resident().saturating_sub(before);
    assert!(grown < 20 << 20, "{grown} bytes more");

    cluster[1].freeze();
    let (refused, took) = timed(redlock.try_acquire("k")).await;
    assert!(matches!(refused, Err(AcquireError::NoQuorum { .. })), "{refused:?}");
    assert!(took < REPLY + SLACK, "{took:?}");

    cluster[0].thaw();
    cluster[1].thaw();
    let back = until_votes(&redlock, |outcomes| outcomes[0] == Outcome::Granted).await;
    assert!(back < BACK + SLACK, "{back:?}");
    eventually(BACK + SLACK, "no key is left", || keys_left(&cluster) == 0).await;
}

/// A node behind a black hole costs nothing, from before the first connection on, and votes soon after it is reachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_holed_node_costs_nothing() {
    let cluster = Cluster::start(3);
    let proxy = Proxy::start(&cluster[0]);
    proxy.black_hole();
    let nodes = [proxy.url(), cluster[1].url(), cluster[2].url()];
    let (redlock, building) = timed(builder(nodes).build()).await;
    let redlock = redlock.expect("two nodes are enough");
    assert!(building < ms(100) + SLACK, "{building:?}");

    for round in 0..2 {
        let mut slow = 0;
        for i in 0..200 {
            let (guard, took) = timed(redlock.lock(format!("k{i}")).wait(SOON)).await;
            slow += usize::from(took >= REPLY);
            guard.expect("two nodes grant").release().await.expect("two nodes confirm");
        }
        assert!(slow <= 3, "round {round}: {slow} acquires took as long as a reply timeout");
        proxy.pass();
        let back = until_votes(&redlock, |outcomes| outcomes[0] == Outcome::Granted).await;
        assert!(back < BACK + SLACK, "round {round}: {back:?}");
        // The second time in the middle of a connection.
        proxy.black_hole();
    }
    proxy.pass();
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
}

/// While a node cannot be used, connecting goes on at a bounded rate, the others are as fast as ever, and it votes
/// again soon after the repair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnecting_goes_on_at_a_bounded_rate() {
    let cluster = Cluster::start_with(5, |_| Server::builder().args(["--requirepass", "one"]));
    let hole = Proxy::start(&cluster[1]);
    let mut nodes: Vec<_> = cluster.iter().map(|server| server.url_with(None, Some("one"), 0)).collect();
    nodes[1] = cluster[1].url_at(hole.port(), None, Some("one"), 0);
    let redlock = client(nodes).await;
    let fault = Duration::from_secs(3);
    let received = cluster[0].total_connections_received();

    // One refuses the password, one the connection.
    cluster[0].command(&["CONFIG", "SET", "requirepass", "another"]);
    cluster[0].command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    hole.refuse();
    hole.reset();
    let accepted = hole.traffic().accepted;
    let (started, mut slow) = (Instant::now(), 0);
    while started.elapsed() < fault {
        let (guard, took) = timed(redlock.lock("k").wait(SOON)).await;
        slow += usize::from(took >= REPLY);
        guard.expect("three nodes grant").release().await.expect("three nodes confirm");
        tokio::time::sleep(ms(5)).await;
    }

    assert!(slow <= 3, "{slow} acquires took as long as a reply timeout");
    let attempts = cluster[0].total_connections_received() - received;
    // Less and less often, down to one in two seconds.
    let most = 6 + started.elapsed().as_secs() / 2;
    // A handshake that HELLO fails in is not tried again in the old protocol, so each attempt is one connection.
    assert!((3..=most).contains(&attempts), "{attempts} attempts in {:?}", started.elapsed());
    assert_eq!(hole.traffic().accepted, accepted);
    cluster[0].command(&["CONFIG", "SET", "requirepass", "one"]);
    hole.accept();
    let back =
        until_votes(&redlock, |outcomes| outcomes[..2].iter().all(|vote| *vote == Outcome::Granted)).await;
    assert!(back < Duration::from_secs(2) + BACK, "{back:?}");
    // A connection that is up stays up.
    let received = cluster[0].total_connections_received();
    tokio::time::sleep(ms(500)).await;
    assert_eq!(cluster[0].total_connections_received(), received);
}

/// Clients that are dropped leave no connection and no task, whatever state their nodes are in, and a runtime ends
/// without waiting for them.
#[test]
fn dropped_clients_leave_nothing() {
    let cluster = Cluster::start(3);
    let dead = Proxy::start(&cluster[0]);
    dead.refuse();
    let hole = Proxy::start(&cluster[0]);
    hole.black_hole();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let tasks = runtime.metrics().num_alive_tasks();

    runtime.block_on(async {
        for i in 0..200 {
            let first = match i % 4 {
                0 => dead.url(),
                1 => hole.url(),
                _ => cluster[0].url(),
            };
            let nodes = [first, cluster[1].url(), cluster[2].url()];
            let building = builder(nodes);
            let redlock = if i % 4 < 2 { building.lazy() } else { building };
            let redlock = redlock.build().await.expect("a quorum");
            match i % 3 {
                0 => drop(redlock.try_acquire("k").await),
                1 => {
                    if let Ok(guard) = redlock.lock("k").wait(SOON).await {
                        // Somebody watches the loss when the client goes.
                        drop(tokio::time::timeout(ms(1), guard.lost()).await);
                    }
                }
                _ => {}
            }
        }
        let gone = || cluster.iter().all(|server| server.connected_clients() == 0);
        eventually(BACK + SLACK, "no connection is left", gone).await;
        let ended = || runtime.metrics().num_alive_tasks() <= tasks;
        eventually(BACK + SLACK, "no task is left", ended).await;
        eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
    });
    let redlock = runtime.block_on(client(cluster.urls()));
    let started = Instant::now();
    drop(runtime);

    assert!(started.elapsed() < BACK, "{:?}", started.elapsed());
    drop(redlock);
    let patience = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gone = || cluster.iter().all(|server| server.connected_clients() == 0);
    patience.block_on(eventually(BACK, "no connection is left", gone));
}

/// One client has one connection per node, however many tasks use it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_per_node_and_client() {
    let cluster = Cluster::start(3);
    let before: Vec<_> = cluster.iter().map(Server::total_connections_received).collect();
    let redlock = client(cluster.urls()).await;

    let tasks = (0..32).map(|task| {
        let redlock = redlock.clone();
        tokio::spawn(async move {
            for i in 0..32 {
                let guard = redlock.try_acquire(format!("{task}-{i}")).await.expect("acquired");
                guard.release().await.expect("released");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }

    for (server, before) in cluster.iter().zip(before) {
        assert_eq!(server.total_connections_received() - before, 1);
    }
}

/// Connecting has its own time, longer than a reply's: a node that is slow to connect votes, and delays nobody
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connect_is_no_slow_reply() {
    let cluster = Cluster::start(3);
    let proxy = Proxy::start(&cluster[0]);
    proxy.slow_connect(ms(500));
    let nodes = [proxy.url(), cluster[1].url(), cluster[2].url()];
    let redlock = builder(nodes).reply_timeout(ms(100)).build().await.expect("two nodes are enough");
    let started = Instant::now();
    let before = sets(&cluster[0]);

    let mut voted = None;
    let mut slow = 0;
    for i in 0.. {
        let (guard, took) = timed(redlock.lock(format!("k{i}")).wait(SOON)).await;
        slow += usize::from(took >= ms(100));
        guard.expect("two nodes grant").release().await.expect("two nodes confirm");
        if voted.is_none() && sets(&cluster[0]) > before {
            voted = Some(started.elapsed());
        }
        if started.elapsed() > ms(1_500) {
            break;
        }
        tokio::time::sleep(ms(10)).await;
    }

    assert!(voted.is_some_and(|voted| voted > ms(100) && voted < BACK + SLACK), "{voted:?}");
    assert!(slow <= 3, "{slow} acquires took as long as a reply timeout");
}

/// A node that dies and comes back, again and again, under load: no acquire hangs, no key is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_leave_no_key() {
    let cluster = Arc::new(Cluster::start(3));
    let redlock = client(cluster.urls()).await;
    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (redlock, over) = (redlock.clone(), over.clone());
            tokio::spawn(async move {
                let (mut i, mut acquired) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    if let Ok(guard) = redlock.try_acquire(format!("{task}-{i}")).await {
                        acquired += 1;
                        drop(guard.release().await);
                    }
                    i += 1;
                }
                acquired
            })
        })
        .collect();

    for round in 0..3 {
        let victim = cluster.clone();
        let restarting = tokio::task::spawn_blocking(move || {
            victim[round].kill9();
            std::thread::sleep(ms(100));
            victim[round].restart();
        });
        restarting.await.expect("restarted");
        tokio::time::sleep(ms(300)).await;
    }
    over.store(true, Ordering::Relaxed);

    for task in tasks {
        let acquired: usize = tokio::time::timeout(SOON, task).await.expect("no hang").expect("no panic");
        assert!(acquired > 0);
    }
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
    clients::all_vote(&redlock).await;
}

/// A runtime of one thread serves as well as many, also while it is busy with other work.
#[tokio::test]
async fn one_busy_thread_is_enough() {
    let cluster = Cluster::start(3);
    let redlock: Redlock = client(cluster.urls()).await;
    let busy = tokio::spawn(async {
        loop {
            std::thread::sleep(ms(2));
            tokio::task::yield_now().await;
        }
    });

    for i in 0..50 {
        let guard = redlock.try_acquire(format!("k{i}")).await.expect("acquired");
        guard.release().await.expect("released");
    }

    busy.abort();
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
}
