//! What makes a quorum: a majority of the configured nodes, whatever their number and state.

use std::sync::Arc;
use std::time::Instant;

use clients::{REPLY, SLACK, SOON, builder, client, count, lock_commands, ms, quorum_value, sets, timed};
use harness::{Cluster, Mode, Proxy, Server, eventually};
use redquorum::{AcquireError, BuildError, Health, Outcome, Redlock};

/// A port that refuses connections, kept so for as long as it lives.
fn dead(server: &Server) -> Proxy {
    let proxy = Proxy::start(server);
    proxy.refuse();
    proxy
}

/// A client of `up` live nodes and `down` dead ones, with the live ones connected.
async fn partly(cluster: &Cluster, up: usize, dead: &[Proxy]) -> Redlock {
    let nodes = cluster[..up].iter().map(Server::url).chain(dead.iter().map(Proxy::url));
    let redlock = builder(nodes).lazy().build().await.expect("a lazy client");
    // A handshake may set a marker, which would be taken for a question.
    let connected = || redlock.nodes()[..up].iter().all(|node| node.health == Health::Up);
    eventually(SOON, "the live nodes are connected", connected).await;
    asks(&redlock, &cluster[..up]).await;
    redlock
}

/// Waits until an acquire reaches each of these servers: where the quorum is out of reach, no report tells, since
/// nobody waits for their answers.
async fn asks(redlock: &Redlock, servers: &[Server]) {
    let asked = || servers.iter().map(sets).collect::<Vec<_>>();
    let deadline = Instant::now() + SOON;
    loop {
        let before = asked();
        drop(redlock.try_acquire("asks").await);
        tokio::time::sleep(ms(20)).await;
        if asked().iter().zip(&before).all(|(now, before)| now > before) {
            return;
        }
        assert!(Instant::now() < deadline, "not all servers are asked");
    }
}

/// The quorum is of the configured nodes, never of the reachable ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_nodes_count() {
    let cluster = Cluster::start(5);
    let holes: Vec<_> = cluster[2..].iter().map(Proxy::start).collect();
    holes.iter().for_each(Proxy::black_hole);
    let nodes = || cluster[..2].iter().map(Server::url).chain(holes.iter().map(Proxy::url));

    let strict = builder(nodes()).connect_timeout(ms(400)).build().await;
    let Err(BuildError::NotConnected { connected, nodes: of, needed, .. }) = strict else {
        panic!("{strict:?}")
    };
    assert_eq!((connected, of, needed), (2, 5, 3));

    let redlock = builder(nodes()).lazy().build().await.expect("a lazy client connects in the background");
    asks(&redlock, &cluster[..2]).await;
    let (result, took) = timed(redlock.try_acquire("k")).await;

    let Err(AcquireError::NoQuorum { report, .. }) = result else { panic!("{result:?}") };
    // Decided at the door: the two that could grant are asked, but not waited for.
    assert!(report.granted() <= 2 && report.needed() == 3, "{report}");
    assert!(took < REPLY + SLACK, "{took:?}");
    cluster.no_key("k", SOON).await;
}

/// Half of the nodes is no quorum, one more is: for even numbers too, and for a single node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_is_not_enough_and_one_more_is() {
    let cluster = Cluster::start(4);
    let dead: Vec<_> = (0..3).map(|_| dead(&cluster[0])).collect();

    for n in [1, 2, 4, 6] {
        let half = n / 2;
        let redlock = partly(&cluster, half, &dead[..(n - half).min(3)]).await;
        let refused = redlock.try_acquire("half").await;
        let Err(AcquireError::NoQuorum { report, .. }) = refused else { panic!("{n} nodes: {refused:?}") };
        assert!(report.granted() <= half && report.needed() == half + 1, "{report}");

        let redlock = partly(&cluster, half + 1, &dead[..n - half - 1]).await;
        let guard = redlock.try_acquire("more").await.expect("half and one more");
        assert_eq!(guard.report().granted(), half + 1);
        guard.release().await.expect("released");
        cluster.no_key("half", SOON).await;
        cluster.no_key("more", SOON).await;
    }
}

/// A single node works as a lock, with one SET.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_is_a_quorum_of_one() {
    let cluster = Cluster::start(1);
    let redlock = client(cluster.urls()).await;
    let before = (sets(&cluster[0]), lock_commands(&cluster[0]));

    let guard = redlock.try_acquire("k").await.expect("acquired");

    assert_eq!((sets(&cluster[0]), lock_commands(&cluster[0])), (before.0 + 1, before.1 + 1));
    guard.release().await.expect("released");
    assert!(!cluster[0].exists("k"));
}

/// Two clients that each get half of the nodes both fail, both give their half back, and are told of contention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_split_in_half_has_no_winner() {
    for n in [2, 4] {
        let cluster = Cluster::start(n);
        // Each client reaches its own half at once and the other half late, when the other client has been there; both
        // hear of it later still, so that neither gives its half back before the other has asked for it.
        let proxies: [Vec<Proxy>; 2] = [cluster.proxies(), cluster.proxies()];
        let mut redlocks = Vec::new();
        for side in &proxies {
            let nodes = side.iter().map(Proxy::url);
            let redlock = builder(nodes).reply_timeout(ms(2_000)).build().await.expect("nodes");
            clients::all_vote(&redlock).await;
            redlocks.push(redlock);
        }
        for (index, server) in cluster.iter().enumerate() {
            assert!(!server.exists("k"));
            proxies[usize::from(index < n / 2)][index].requests(Mode::Delay(ms(200)));
            proxies.iter().for_each(|side| side[index].replies(Mode::Delay(ms(600))));
        }

        let (one, other) = tokio::join!(redlocks[0].try_acquire("k"), redlocks[1].try_acquire("k"));

        for result in [one, other] {
            let Err(AcquireError::Held { report, .. }) = &result else { panic!("{n} nodes: {result:?}") };
            assert_eq!(report.granted(), n / 2, "{report}");
            assert!(result.is_err_and(|error| error.is_contention()));
        }
        cluster.no_key("k", SOON).await;
    }
}

/// Seven nodes: the four that answer decide, and the fourth that does not decides too, without waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seven_nodes_need_four() {
    let cluster = Cluster::start(4);
    let dead: Vec<_> = (0..4).map(|_| dead(&cluster[0])).collect();

    let redlock = partly(&cluster, 4, &dead[..3]).await;
    let guard = redlock.try_acquire("k").await.expect("four of seven");
    assert_eq!(guard.report().granted(), 4, "{}", guard.report());
    assert_eq!(count(&guard.report(), |outcome| matches!(outcome, Outcome::NotSent(_))), 3);
    guard.release().await.expect("released");

    let redlock = partly(&cluster, 3, &dead).await;
    let (refused, took) = timed(redlock.try_acquire("k")).await;
    let Err(AcquireError::NoQuorum { report, .. }) = refused else { panic!("{refused:?}") };
    assert!(report.granted() <= 3 && report.needed() == 4, "{report}");
    assert!(took < REPLY + SLACK, "{took:?}");
    cluster.no_key("k", SOON).await;
}

/// Many contended cycles over seven nodes, some of them down, end without a hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_cycles_over_seven_nodes_end() {
    let rounds = if cfg!(debug_assertions) { 50 } else { 500 };
    let cluster = Arc::new(Cluster::start(4));
    let dead: Arc<Vec<_>> = Arc::new((0..3).map(|_| dead(&cluster[0])).collect());
    let tasks = (0..4).map(|_| {
        let (cluster, dead) = (cluster.clone(), dead.clone());
        tokio::spawn(async move {
            let nodes = cluster.iter().map(Server::url).chain(dead.iter().map(Proxy::url));
            let redlock = builder(nodes).retry_delay(ms(2), ms(15)).build().await.expect("a quorum");
            for _ in 0..rounds {
                redlock.lock("k").wait_forever().await.expect("acquired").release().await.expect("released");
            }
        })
    });

    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(6 * SOON, task).await.expect("no hang").expect("no panic");
    }

    cluster.no_key("k", SOON).await;
}

/// A holder of a quorum keeps out a rival that sees other nodes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_client_is_refused_and_told_by_whom() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let guard = redlock.try_acquire("k").await.expect("acquired");
    let holder = quorum_value(&cluster, "k").expect("a quorum carries it");

    let refused = rival.try_acquire("k").await;

    let Err(AcquireError::Held { key, report }) = &refused else { panic!("{refused:?}") };
    assert_eq!(key, "k");
    if cluster[0].version().at_least((7, 0), (7, 2)) {
        assert!(report.to_string().contains(&holder[..16]), "{report} does not name {holder}");
    }
    eventually(SOON, "nothing changed", || quorum_value(&cluster, "k").as_ref() == Some(&holder)).await;
    guard.release().await.expect("released");
}
