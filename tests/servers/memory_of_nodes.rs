//! Nodes that go back to an older state, forget together, are replaced behind their address, or seem to jump in time: no
//! client takes their grants for votes while a lock that they may have forgotten is still held.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clients::{REPLY, SOON, a_moment, ms};
use harness::{Cluster, Server, eventually, faketime, set_clock};
use redquorum::{AcquireError, IntoNode, NodeVote, Outcome, Redlock, RedlockBuilder};

/// Short, so that delays are.
const TTL: Duration = Duration::from_secs(2);

/// delay × (1 + drift) + 2 ms.
const DELAY: Duration = Duration::from_millis(2_022);

/// A client looks at each node this often.
const LOOK: Duration = Duration::from_secs(5);

fn delayed<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
    Redlock::builder().nodes(nodes).ttl(TTL).reply_timeout(REPLY)
}

async fn client(cluster: &Cluster) -> Redlock {
    built(|| delayed(cluster.urls())).await
}

/// A client, as soon as a quorum of nodes can be reached: on a busy machine a server may take its time.
async fn built(builder: impl Fn() -> RedlockBuilder) -> Redlock {
    let started = Instant::now();
    loop {
        match builder().build().await {
            Ok(redlock) => return redlock,
            Err(error) => assert!(started.elapsed() < 2 * SOON, "{error}"),
        }
    }
}

/// Waits until all votes are as wanted, by what the client knows of its nodes.
async fn until(redlock: &Redlock, within: Duration, what: &str, wanted: impl Fn(&[NodeVote]) -> bool) {
    let now = || redlock.nodes().iter().map(|node| node.vote).collect::<Vec<_>>();
    let deadline = Instant::now() + within;
    while !wanted(&now()) {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}, but {:?}", now());
        tokio::time::sleep(ms(5)).await;
    }
}

fn all_count(votes: &[NodeVote]) -> bool {
    votes.iter().all(|vote| *vote == NodeVote::Counts)
}

fn is_too_young(vote: &NodeVote) -> bool {
    matches!(vote, NodeVote::TooYoung { .. })
}

/// Waits until every server has been up for so long that its uptime alone lets it vote for a delay of `delay`.
async fn aged(servers: &[Server], delay: Duration) {
    let least = delay + ms(2_100);
    eventually(delay + SOON, "the servers are old enough", || {
        servers.iter().all(|server| server.uptime() >= least)
    })
    .await;
}

/// What a rival is told that asks every millisecond, until it gets the lock: how long after `since` that was, and what
/// its first answer was.
async fn asked_without_pause(rival: &Redlock, since: Instant) -> (Duration, u32, Option<AcquireError>) {
    let (mut first, mut tries) = (None, 0);
    loop {
        tries += 1;
        match rival.try_acquire("k").await {
            Ok(guard) => {
                let took = since.elapsed();
                drop(guard);
                return (took, tries, first);
            }
            Err(error) => first = first.or(Some(error)),
        }
        assert!(since.elapsed() < 3 * SOON, "the rival never gets it: {first:?}");
        tokio::time::sleep(ms(1)).await;
    }
}

/// Whatever makes all nodes forget at the same moment, a rival that asks every millisecond from then on, and was connected
/// all the time, is refused from its first try until the restart delay is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_forget_together_stand_aside_at_once() {
    let cluster = Cluster::start(3);
    aged(&cluster, DELAY).await;
    let rival = client(&cluster).await;
    for forget in [&["FLUSHALL"][..], &["FLUSHDB"], &["FLUSHALL", "ASYNC"], &["DEL", "redquorum:node"]] {
        until(&rival, SOON, "all count", all_count).await;
        let holder = client(&cluster).await;
        a_moment(LOOK).await;
        let guard = clients::held_on_all(&holder, "k").await;
        cluster.iter().for_each(|server| drop(server.command(forget)));
        let forgotten = Instant::now();
        cluster.iter().for_each(|server| drop(server.command(&["DEL", "k"])));

        let (took, tries, first) = asked_without_pause(&rival, forgotten).await;

        assert!(matches!(first, Some(AcquireError::NodesTooYoung { .. })), "{forget:?}: {first:?}");
        assert!(took >= DELAY - ms(30), "{forget:?}: a second holder after {took:?} and {tries} tries");
        drop(guard);
    }
}

/// The figure: every millisecond from 0 to 5 s after a FLUSHALL of all nodes, and no grant before the restart delay is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_try_in_five_seconds_after_a_flush_succeeds() {
    let (ttl, delay) = (Duration::from_secs(5), Duration::from_millis(5_052));
    let cluster = Cluster::start(5);
    aged(&cluster, delay).await;
    let rival = built(|| delayed(cluster.urls()).ttl(ttl)).await;
    until(&rival, SOON, "all count", all_count).await;
    a_moment(LOOK).await;
    cluster.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
    let flushed = Instant::now();

    let (took, tries, first) = asked_without_pause(&rival, flushed).await;

    println!("figure: {tries} tries, the first grant {took:?} after the flush");
    assert!(matches!(first, Some(AcquireError::NodesTooYoung { .. })), "{first:?}");
    assert!(took >= delay - ms(30), "a grant after {took:?}");
}

/// On one connection the news of a flush is acted on before the answer to a later SET is weighed: many tries around
/// a flush, and none is granted that began after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_of_a_flush_overtakes_no_answer() {
    const TRIES: usize = 30;
    const SHORT: Duration = Duration::from_millis(40);
    let clusters: Vec<_> = (0..5).map(|_| Cluster::start(1)).collect();
    for cluster in &clusters {
        aged(cluster, SHORT).await;
    }
    let tries = clusters.into_iter().map(|cluster| async move {
        let rival = delayed(cluster.urls()).ttl(SHORT).reply_timeout(ms(30)).build().await.expect("a node");
        let server = Arc::new(cluster);
        let mut refused = 0;
        for number in 0..TRIES {
            until(&rival, SOON, "it counts", all_count).await;
            // From another thread, so that the flush falls into whatever the client does at that moment.
            let flushing = server.clone();
            let flush = tokio::task::spawn_blocking(move || drop(flushing[0].command(&["FLUSHALL"])));
            if number % 2 == 0 {
                let _ = rival.try_acquire("other").await;
            }
            flush.await.expect("flushed");
            let flushed = Instant::now();
            let acquired = rival.try_acquire("k").await;
            let late = flushed.elapsed() >= SHORT;
            assert!(acquired.is_err() || late, "try {number}: granted right after the flush");
            refused += usize::from(acquired.is_err());
        }
        refused
    });
    let refused: usize = futures::future::join_all(tries).await.into_iter().sum();
    assert!(refused > 5 * TRIES * 9 / 10, "only {refused} tries showed anything");
}

/// What the library relies on, of the `redis` crate and of the server: a push that the server sent before an answer is handed
/// over before that answer, also between the answers of commands that were sent together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_are_handed_over_before_later_answers() {
    const TRIES: u64 = 5_000;
    let server = Server::start();
    let pushes = Arc::<AtomicU64>::default();
    let count = pushes.clone();
    let config = redis::AsyncConnectionConfig::new().set_push_sender(
        move |push: redis::PushInfo| -> Result<(), std::convert::Infallible> {
            count.fetch_add(u64::from(push.kind == redis::PushKind::Invalidate), Ordering::SeqCst);
            Ok(())
        },
    );
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).expect("a url");
    let connect = || client.get_multiplexed_async_connection_with_config(&config);
    let mut tracked = connect().await.expect("connected");
    let mut other = client.get_multiplexed_async_connection().await.expect("connected");
    let mut on = redis::cmd("CLIENT");
    on.arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP").exec_async(&mut tracked).await.expect("on");
    for number in 1..=TRIES {
        let mut look = redis::pipe();
        look.cmd("CLIENT").arg("CACHING").arg("YES").ignore().cmd("GET").arg("marker").ignore();
        look.exec_async(&mut tracked).await.expect("looked");
        assert_eq!(pushes.load(Ordering::SeqCst), number - 1, "what was set by others alone is told");
        let (forget, set) = (redis::cmd(["FLUSHALL", "FLUSHDB"][number as usize % 2]), redis::cmd("SET"));
        forget.exec_async(&mut other).await.expect("forgotten");

        // As the library does it: alone, or together with others.
        let mut sets = redis::pipe();
        (0..1 + number % 3).for_each(|key| {
            let mut set = set.clone();
            set.arg(key).arg("owner").arg("NX").arg("PX").arg(1_000);
            sets.add_command(set);
        });
        sets.exec_async(&mut tracked).await.expect("set");
        assert_eq!(pushes.load(Ordering::SeqCst), number, "an answer overtook the news of a flush");
    }
}

/// Without the rights that this takes, locks work as before: a flush is noticed by the next look, and a restarted durable node
/// goes by its uptime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_missing_are_done_without() {
    let server = Server::builder().aof().start();
    let rights = "~* &* +@all -client +client|setname -hget -hincrby -hkeys";
    let user = ["ACL", "SETUSER", "app", "on", ">pw"].into_iter().chain(rights.split(' '));
    server.command(&user.clone().collect::<Vec<_>>());
    let redlock = built(|| delayed([server.url_with(Some("app"), Some("pw"), 0)])).await;
    until(&redlock, SOON, "it counts", all_count).await;
    let guard = redlock.acquire("k").await.expect("free");
    // Each write goes to the disk before its answer: on a busy machine that may take longer than a release waits.
    let _ = guard.release().await;
    assert!(!server.exists("redquorum:beat"));

    server.command(&["FLUSHALL"]);
    until(&redlock, LOOK + ms(1_000), "the look notices it", |votes| is_too_young(&votes[0])).await;
    until(&redlock, SOON, "it counts again", all_count).await;

    server.kill9();
    server.restart();
    server.command(&user.collect::<Vec<_>>());
    until(&redlock, SOON, "nothing shows that its state is no older one", |votes| is_too_young(&votes[0]))
        .await;
}

/// A client that stood still for longer than two looks, on servers that tell nothing by themselves (RESP2), looks at a node
/// before it counts that node's grant.
#[tokio::test]
async fn a_grant_counts_only_with_a_fresh_look() {
    let cluster = Cluster::start_with(3, |_| Server::builder().args(["--rename-command", "HELLO", ""]));
    aged(&cluster, DELAY).await;
    let redlock = client(&cluster).await;
    until(&redlock, SOON, "all count", all_count).await;
    a_moment(LOOK).await;
    // The whole runtime stands still, as a stopped process does.
    std::thread::sleep(2 * LOOK + ms(500));
    cluster.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));

    let refused = redlock.try_acquire("k").await;

    assert!(matches!(refused, Err(AcquireError::NodesTooYoung { .. })), "{refused:?}");
}

/// The same without a flush: the look comes first, and then the grants count. Nobody is refused for having stood still.
#[tokio::test]
async fn who_stood_still_looks_first_and_then_counts() {
    let cluster = Cluster::start_with(3, |_| Server::builder().args(["--rename-command", "HELLO", ""]));
    aged(&cluster, DELAY).await;
    let redlock = client(&cluster).await;
    until(&redlock, SOON, "all count", all_count).await;
    a_moment(LOOK).await;
    std::thread::sleep(2 * LOOK + ms(500));

    redlock.try_acquire("k").await.expect("nothing was forgotten").release().await.expect("released");
}

/// Leads to one server at a time, and to another when told: a virtual address that moves.
struct VirtualAddress {
    port: u16,
    upstream: Arc<Mutex<u16>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl VirtualAddress {
    /// `keeps`: whether connections of clients are kept when the address moves, as by a proxy that ends them itself.
    fn of(server: &Server, keeps: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (upstream, open) = (Arc::new(Mutex::new(server.port())), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (to, known) = (upstream.clone(), open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (to, known) = (to.clone(), known.clone());
                std::thread::spawn(move || carry(client, &to, &known, keeps));
            }
        });
        Self { port, upstream, open }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn moves_to(&self, server: &Server) {
        *self.upstream.lock().expect("whole") = server.port();
        for connection in self.open.lock().expect("whole").drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Carries bytes between a client and the server that the address leads to. What ends with the move of the address is the
/// server's side, and the client's too unless it is kept.
fn carry(client: TcpStream, to: &Mutex<u16>, open: &Mutex<Vec<TcpStream>>, keeps: bool) {
    client.set_read_timeout(Some(ms(1))).expect("a timeout");
    let mut client = client;
    loop {
        let port = *to.lock().expect("whole");
        let Ok(mut server) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) else { return };
        server.set_read_timeout(Some(ms(1))).expect("a timeout");
        open.lock().expect("whole").push(server.try_clone().expect("a handle"));
        let moved = loop {
            match (pass(&mut client, &mut server), pass(&mut server, &mut client)) {
                (false, _) => return,
                (_, false) => break *to.lock().expect("whole") != port,
                _ => {}
            }
        };
        if !(keeps && moved) {
            let _ = client.shutdown(Shutdown::Both);
            return;
        }
    }
}

/// Passes on what is there. Returns whether the sender may send more.
fn pass(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    let mut bytes = [0; 65_536];
    match from.read(&mut bytes) {
        Ok(0) => false,
        Ok(read) => to.write_all(&bytes[..read]).is_ok(),
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// A replica that takes its primary's place behind the same address has been up for long, has the marker and the beats, and
/// may lack a lock: it is no restart of a durable node, and stands aside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_behind_the_address_stands_aside() {
    let (primary, replica) = (Server::builder().aof().start(), Server::builder().aof().start());
    let address = VirtualAddress::of(&primary, false);
    aged(std::slice::from_ref(&replica), DELAY).await;
    let (holder, rival) = (
        built(|| delayed([address.url()]).ttl(3 * TTL)).await,
        built(|| delayed([address.url()]).ttl(3 * TTL)).await,
    );
    for redlock in [&holder, &rival] {
        until(redlock, 2 * SOON, "it counts", all_count).await;
    }
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let marker = primary.get("redquorum:node");
    assert!(marker.is_some());
    eventually(SOON, "in step", || replica.get("redquorum:node") == marker).await;
    // A look with the replica in step, so that it has the beat as well.
    tokio::time::sleep(LOOK + ms(500)).await;
    replica.command(&["REPLICAOF", "NO", "ONE"]);

    a_moment(LOOK).await;
    let guard = holder.acquire("k").await.expect("free");
    a_moment(TTL).await;
    address.moves_to(&replica);
    primary.kill9();
    let moved = Instant::now();
    while guard.is_valid() {
        let second = rival.try_acquire("k").await;
        let (valid, vote) = (guard.is_valid(), rival.nodes()[0].vote);
        assert!(second.is_err() || !valid, "a second holder after {:?}, {vote}", moved.elapsed());
        tokio::time::sleep(ms(5)).await;
    }
    assert!(moved.elapsed() > TTL, "nothing was tried");
}

/// A durable node that comes back with an older state of itself is noticed by who was connected, and a newcomer goes by the
/// uptime. With its own state it votes at once for who was connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_state_of_a_durable_node_is_noticed() {
    let server = Server::builder().aof().start();
    let longer = 4 * TTL;
    let build = || delayed([server.url()]).ttl(longer);
    let old = built(build).await;
    until(&old, 2 * SOON, "it counts", all_count).await;

    server.kill9();
    server.restart();
    clients::until_votes(&old, |seen| matches!(seen[0], Outcome::Granted | Outcome::TooYoung { .. })).await;
    assert!(all_count(&[old.nodes()[0].vote]), "its own state, and it was seen: {}", old.nodes()[0].vote);
    let fresh = built(build).await;
    assert!(is_too_young(&fresh.nodes()[0].vote), "a newcomer cannot know");
    drop(fresh);

    let folder = tempfile::tempdir().expect("a folder");
    let backup = folder.path().join("backup");
    server.back_up(&backup);
    // The next look is later than the copy.
    tokio::time::sleep(LOOK + ms(500)).await;
    a_moment(LOOK).await;
    let guard = old.acquire("k").await.expect("free");
    a_moment(TTL).await;
    server.restore(&backup);
    assert!(!server.exists("k"), "the copy is older than the lock");

    let fresh = built(build).await;
    let mut asked = 0;
    while guard.is_valid() {
        for rival in [&old, &fresh] {
            let second = rival.try_acquire("k").await;
            assert!(second.is_err() || !guard.is_valid(), "a second holder: {}", rival.nodes()[0].vote);
        }
        asked += 1;
        tokio::time::sleep(ms(5)).await;
    }
    assert!(asked > 20);
}

/// The library that moves the servers' clocks by what the file `clock` says; none if it is not installed, or if the server
/// program does not start with it.
fn movable(clock: &Path) -> Option<PathBuf> {
    set_clock(clock, 0.0);
    let Some(library) = faketime() else {
        println!("skipped: libfaketime is not installed");
        return None;
    };
    if let Err(log) = Server::builder().clock_in(&library, clock).try_start() {
        assert!(log.contains("libfaketime"), "the server did not start: {log}");
        println!("skipped: this server does not start with libfaketime");
        return None;
    }
    Some(library)
}

/// The clocks of all nodes ahead by a minute at once: it is the client's clock that stood still. What it holds ends, and the
/// nodes keep their votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_stood_still_ends_what_is_held() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = folder.path().join("clock");
    let Some(library) = movable(&clock) else { return };
    let cluster = Cluster::start_with(3, |_| Server::builder().clock_in(&library, &clock));
    aged(&cluster, 8 * TTL).await;
    let redlock = built(|| delayed(cluster.urls()).ttl(8 * TTL)).await;
    until(&redlock, SOON, "all count", all_count).await;
    let guard = redlock.acquire("k").await.expect("free");
    a_moment(LOOK).await;
    let (lost, started) = (tokio::spawn(guard.lost()), Instant::now());

    set_clock(&clock, 60.0);

    eventually(LOOK + ms(2_000), "the lock is over", || !guard.is_valid()).await;
    assert!(started.elapsed() < LOOK + ms(2_000));
    tokio::time::timeout(ms(1_000), lost).await.expect("told at once").expect("told");
    until(&redlock, ms(1_000), "the nodes keep their votes", all_count).await;
    redlock.acquire("other").await.expect("all is well").release().await.expect("released");
}

/// One node that jumps alone stands aside, and what is held stays held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clock_that_jumps_alone_is_the_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = folder.path().join("clock");
    let Some(library) = movable(&clock) else { return };
    let cluster = Cluster::start_with(3, |index| match index {
        0 => Server::builder().clock_in(&library, &clock),
        _ => Server::builder(),
    });
    aged(&cluster, 8 * TTL).await;
    let redlock = built(|| delayed(cluster.urls()).ttl(8 * TTL)).await;
    until(&redlock, SOON, "all count", all_count).await;
    let guard = redlock.acquire("k").await.expect("free");
    a_moment(LOOK).await;

    set_clock(&clock, 60.0);

    until(&redlock, LOOK + ms(2_000), "the first stands aside, the others do not", |votes| {
        is_too_young(&votes[0]) && all_count(&votes[1..])
    })
    .await;
    assert!(guard.is_valid());
}

/// Another server behind a connection that is kept is a restart at the next look; two that alternate are several servers,
/// and have no vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_alternate_behind_one_connection_have_no_vote() {
    let (one, other) = (Server::start(), Server::start());
    let address = VirtualAddress::of(&one, true);
    aged(std::slice::from_ref(&other), DELAY).await;
    let redlock = built(|| delayed([address.url()])).await;
    until(&redlock, SOON, "it counts", all_count).await;
    let marker = one.get("redquorum:node").expect("marked");
    other.command(&["SET", "redquorum:node", &marker]);

    a_moment(LOOK).await;
    address.moves_to(&other);
    until(&redlock, LOOK + ms(2_000), "another run is a restart", |votes| is_too_young(&votes[0])).await;
    address.moves_to(&one);
    eventually(LOOK + ms(2_000), "several servers are told", || {
        redlock.nodes()[0].vote.to_string().contains("several servers")
    })
    .await;

    // The move may have ended the connection after all.
    let started = Instant::now();
    loop {
        let refused = redlock.try_acquire("k").await.expect_err("it has no vote").to_string();
        if refused.contains("several servers") {
            break;
        }
        assert!(started.elapsed() < SOON && refused.contains("not connected"), "{refused}");
        tokio::time::sleep(ms(20)).await;
    }
}
