//! Servers that say no: full, read-only, loading, busy, in cluster mode, without memory of the lock. The rest decides,
//! the cause is named, and nothing has to be rebuilt afterwards.

use std::time::Duration;

use clients::{REPLY, SLACK, SOON, TTL, builder, client, ms, quorum_value, timed, until_votes, votes};
use harness::{Cluster, Server, ServerBuilder, eventually};
use redis::Value;
use redquorum::{AcquireError, ExtendError, Outcome, Redlock, ReleaseError};

/// Whether an outcome names this cause.
fn names(outcome: &Outcome, cause: &str) -> bool {
    match outcome {
        Outcome::Refused(text) | Outcome::NotSent(text) | Outcome::Unknown(text) => text.contains(cause),
        _ => false,
    }
}

/// Waits until the node at `index` answers with this cause.
async fn until_cause(redlock: &Redlock, index: usize, cause: &str) {
    until_votes(redlock, |outcomes| names(&outcomes[index], cause)).await;
}

/// The refusals that a command can bring about, and the command that ends them.
const REFUSALS: [(&str, &[&str], &[&str]); 3] = [
    ("READONLY", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
    (
        "NOREPLICAS",
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ),
    ("OOM", &["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
];

/// A node that refuses costs its own vote; a quorum of such nodes is an outage whose cause is named, and the grants of
/// the others are undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_named_and_undone() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    for (code, begin, end) in REFUSALS {
        cluster[0].command(begin);
        redlock
            .try_acquire("one")
            .await
            .expect("two nodes grant")
            .release()
            .await
            .expect("two nodes confirm");
        cluster[1].command(begin);
        let refused = redlock.try_acquire("k").await;

        let Err(error @ AcquireError::NoQuorum { report, .. }) = &refused else {
            panic!("{code}: {refused:?}")
        };
        assert!(names(&report.nodes()[0].outcome, code), "{report}");
        assert!(names(&report.nodes()[1].outcome, code), "{report}");
        assert!(error.to_string().contains(code), "{error}");
        cluster.no_key("k", SOON).await;

        cluster[0].command(end);
        cluster[1].command(end);
        clients::all_vote(&redlock).await;
    }
}

/// Full memory refuses new holders; those who hold extend and release as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_refuses_new_holders_only() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let mut guard = redlock.try_acquire("k").await.expect("acquired");
    for server in cluster.iter() {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    }

    let refused = redlock.try_acquire("other").await;
    let waited = redlock.lock("other").wait(ms(200)).await;
    guard.extend(2 * TTL).await.expect("extended");

    assert!(matches!(refused, Err(AcquireError::NoQuorum { .. })), "{refused:?}");
    assert!(waited.as_ref().is_err_and(|error| error.to_string().contains("OOM")), "{waited:?}");
    assert!(guard.remaining() > TTL, "{:?}", guard.remaining());
    guard.release().await.expect("released");
    cluster.no_key("k", SOON).await;
}

/// A server whose background save fails refuses every write: the release is unconfirmed and names the cause, a rival is
/// refused, and after the repair the same clients go on, with the open release settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_saves_refuse_release_and_acquire() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    let obstacles: Vec<_> = cluster[..2].iter().map(block_saves).collect();
    for server in &cluster[..2] {
        save_until(server, "err").await;
    }

    let released = guard.release().await;
    let refused = rival.try_acquire("other").await;

    let Err(ReleaseError::Unconfirmed { report, .. }) = &released else { panic!("{released:?}") };
    assert!(report.granted() <= 1, "{report}");
    assert_eq!(report.nodes().iter().filter(|node| names(&node.outcome, "MISCONF")).count(), 2, "{report}");
    let Err(AcquireError::NoQuorum { report, .. }) = &refused else { panic!("{refused:?}") };
    assert!(report.to_string().contains("MISCONF"), "{report}");
    eventually(SOON, "the third node is rolled back", || !cluster[2].exists("other")).await;
    assert!(cluster[0].exists("k") && !cluster[2].exists("k"));

    for (server, obstacle) in cluster.iter().zip(obstacles) {
        std::fs::remove_dir_all(obstacle).expect("remove the obstacle");
        save_until(server, "ok").await;
    }
    cluster.no_key("k", SOON).await;
    for redlock in [&redlock, &rival] {
        clients::all_vote(redlock).await;
    }
}

/// Puts a directory where the server would save to, and switches saving on.
fn block_saves(server: &Server) -> std::path::PathBuf {
    let Value::Array(answer) = server.command(&["CONFIG", "GET", "dir"]) else { panic!("no directory") };
    let Some(Value::BulkString(dir)) = answer.get(1) else { panic!("{answer:?}") };
    let obstacle = std::path::Path::new(std::str::from_utf8(dir).expect("a path")).join("dump.rdb");
    std::fs::create_dir_all(obstacle.join("in the way")).expect("make the obstacle");
    server.command(&["CONFIG", "SET", "save", "3600 1000000"]);
    obstacle
}

async fn save_until(server: &Server, status: &str) {
    eventually(SOON, "the save ends", || {
        // A save that is under way already is an error, and does as well.
        let _ = server.try_command(&["BGSAVE"]);
        server.info("persistence", "rdb_last_bgsave_status").as_deref() == Some(status)
    })
    .await;
}

/// A key that one node evicts is put back by the next extensions; a key that a quorum evicts is a lost lock, found by
/// the next extension, which is never confirmed by the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_is_healed_or_found() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let mut guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    let value = quorum_value(&cluster, "k");

    evict(&cluster[0]);
    assert!(!cluster[0].exists("k"));
    for _ in 0..100 {
        guard.extend(TTL).await.expect("two nodes carry it");
        tokio::time::sleep(ms(5)).await;
        if cluster[0].exists("k") {
            break;
        }
    }
    assert_eq!(cluster[0].get("k"), value, "healed with the same owner");

    evict(&cluster[0]);
    evict(&cluster[1]);
    let lost = guard.lost();
    let extended = guard.extend(TTL).await;
    assert!(matches!(extended, Err(ExtendError::Lost { .. })), "{extended:?}");
    assert!(!guard.is_valid());
    assert_eq!(tokio::time::timeout(SOON, lost).await, Ok(redquorum::Lost::Forgotten));
    cluster.no_key("k", SOON).await;
    let theirs = rival.try_acquire("k").await.expect("the lock was given up everywhere");
    drop(guard);
    tokio::time::sleep(ms(100)).await;
    assert!(quorum_value(&cluster, "k").is_some() && theirs.is_valid());
}

/// Makes a server evict all it has.
fn evict(server: &Server) {
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    // Only a command that may need memory makes it evict, and is then refused.
    let _ = server.try_command(&["SET", "filler", "x"]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
}

/// A node that comes back empty, as a replica does that never saw the key: the holder keeps its quorum, no rival gets
/// one, and the holder's extensions heal the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_in_place_of_a_full_one() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let mut guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    let value = quorum_value(&cluster, "k");

    cluster[0].kill9();
    cluster[0].restart();
    assert!(!cluster[0].exists("k"));
    let refused = rival.try_acquire("k").await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");

    let healed = || cluster[0].get("k") == value;
    for _ in 0..500 {
        guard.extend(TTL).await.expect("two nodes carry it");
        tokio::time::sleep(ms(5)).await;
        if healed() {
            break;
        }
    }
    assert!(healed(), "{:?}", cluster.values("k"));
    guard.release().await.expect("released");
    cluster.no_key("k", SOON).await;
}

/// A server that is loading its data does not vote, and the handshake is made whole afterwards: authenticated, in the
/// right database, within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loading_server_votes_once_it_is_ready() {
    // Each key takes the server 100 µs to load. Where it can be told to, it looks at its connections meanwhile; older
    // ones are silent.
    let looks = ["--loading-process-events-interval-bytes", "1024"];
    let says_so = Server::builder().args(looks).try_start().is_ok();
    let cluster = Cluster::start_with(3, |_| {
        let server = Server::builder().args(["--requirepass", "secret", "--key-load-delay", "100"]);
        if says_so { server.args(looks) } else { server }
    });
    let url = |server: &Server| server.url_with(None, Some("secret"), 3);
    let redlock = client(cluster.iter().map(url)).await;
    cluster[0].command(&["EVAL", "for i = 1, 8000 do redis.call('SET', 'filler' .. i, 'x') end", "0"]);
    cluster[0].command(&["SAVE"]);

    let loaded = std::thread::scope(|scope| {
        let restart = scope.spawn(|| cluster[0].restart());
        let mut loading = false;
        tokio::task::block_in_place(|| {
            while !restart.is_finished() {
                tokio::runtime::Handle::current().block_on(async {
                    let guard = redlock.lock("k").wait(ms(1_000)).await.expect("two nodes grant");
                    guard.release().await.expect("two nodes confirm");
                    let seen = votes(&redlock).await;
                    assert!(!names(&seen[0], "NOAUTH"), "{seen:?}");
                    loading |= names(&seen[0], "LOADING");
                    tokio::time::sleep(ms(20)).await;
                });
            }
        });
        loading
    });
    assert!(loaded || !says_so, "the test never met the server while it was loading");
    let after = until_votes(&redlock, |outcomes| {
        assert!(!names(&outcomes[0], "NOAUTH"), "{outcomes:?}");
        outcomes[0] == Outcome::Granted
    })
    .await;

    assert!(after < ms(1_000) + SLACK, "{after:?}");
    let filled = cluster[0].dbsize();
    let guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "it is in database 3", || cluster[0].info("keyspace", "db3").is_some()).await;
    guard.release().await.expect("released");
    assert_eq!((filled, cluster[1].dbsize(), cluster[2].dbsize()), (8_000, 0, 0), "nothing in database 0");
}

/// A server that is busy with a script is silent, then says so: no call waits for it, and nothing is left on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_delays_nobody() {
    let cluster = Cluster::start_with(3, |_| Server::builder().args(["--lua-time-limit", "600"]));
    let redlock = client(cluster.urls()).await;
    // Of one node alone, every answer is told.
    let alone = client([cluster[0].url()]).await;
    let url = cluster[0].url();
    let busy = std::thread::spawn(move || {
        let script = "local t = redis.call('TIME'); local s = t[1] * 1e6 + t[2]; \
                      repeat t = redis.call('TIME') until t[1] * 1e6 + t[2] > s + 2200000";
        let mut connection =
            redis::Client::open(url).and_then(|client| client.get_connection()).expect("connect");
        let _: redis::RedisResult<Value> = redis::cmd("EVAL").arg(script).arg(0).query(&mut connection);
    });
    tokio::time::sleep(ms(100)).await;

    let mut longest = Duration::ZERO;
    let mut causes = Vec::new();
    for i in 0.. {
        let (guard, took) = timed(redlock.lock(format!("k{i}")).wait(SOON)).await;
        let guard = guard.expect("two nodes grant");
        longest = longest.max(took);
        guard.release().await.expect("two nodes confirm");
        causes.extend(votes(&alone).await);
        if busy.is_finished() && i >= 20 {
            break;
        }
        tokio::time::sleep(ms(20)).await;
    }
    busy.join().expect("no panic");

    assert!(longest < 2 * REPLY + SLACK, "{longest:?}");
    assert!(causes.iter().any(|outcome| names(outcome, "BUSY")), "{causes:?}");
    let is_silent = |outcome: &Outcome| names(outcome, "no answer") || names(outcome, "silent");
    assert!(causes.iter().any(is_silent), "{causes:?}");
    eventually(ms(1_000) + SLACK, "nothing is left", || clients::keys_left(&cluster) == 0).await;
    clients::all_vote(&redlock).await;
}

/// A node in cluster mode does not vote, and says why; its redirect is not followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_mode_is_a_refusal() {
    let plain = Cluster::start(2);
    let (without_slots, elsewhere) = (cluster_mode(), cluster_mode());
    let nodes = [plain[0].url(), plain[1].url(), without_slots.url()];
    let redlock = client_of_two(nodes).await;

    until_cause(&redlock, 2, "CLUSTERDOWN").await;
    redlock.try_acquire("k").await.expect("two nodes grant").release().await.expect("two nodes confirm");

    // All slots live elsewhere: every key is answered with a redirect.
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut command = vec!["CLUSTER", "ADDSLOTS"];
    command.extend(slots.iter().map(String::as_str));
    elsewhere.command(&command);
    without_slots.command(&["CLUSTER", "MEET", "127.0.0.1", &elsewhere.port().to_string()]);
    until_cause(&redlock, 2, "MOVED").await;
    redlock.try_acquire("k").await.expect("two nodes grant").release().await.expect("two nodes confirm");
    assert_eq!(elsewhere.connected_clients(), 0, "the redirect was not followed");
}

async fn client_of_two(nodes: [String; 3]) -> Redlock {
    builder(nodes).build().await.expect("two nodes are enough")
}

/// A server in cluster mode. Its second port is 10 000 above the first, which may be taken or too high.
fn cluster_mode() -> Server {
    let start = || -> Result<Server, String> {
        let builder: ServerBuilder = Server::builder();
        builder.args(["--cluster-enabled", "yes"]).try_start()
    };
    (0..100).find_map(|_| start().ok()).expect("a server in cluster mode")
}
