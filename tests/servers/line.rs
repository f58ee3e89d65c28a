//! Waiting in the queue on real servers: turns, ways out and faults.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clients::{SLACK, builder, client, held_on_all, keys_left, ms, until_waiting};
use harness::{Cluster, Server, eventually};
use redquorum::LockGuard;

const KEY: &str = "in-line";

/// Who is inside, as nobody but the tasks themselves can say.
#[derive(Clone, Default)]
struct Witness(Arc<AtomicUsize>);

impl Witness {
    async fn hold(&self, guard: LockGuard, hold: Duration) {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "two holders at a time");
        tokio::time::sleep(hold).await;
        assert_eq!(self.0.fetch_sub(1, Ordering::SeqCst), 1, "two holders at a time");
        guard.release().await.expect("released");
    }
}

/// Another process that takes part: killed when dropped.
struct Process(Child);

impl Process {
    /// Runs [`child`] in a process of its own.
    fn start(cluster: &Cluster, role: &str) -> Self {
        let this = std::env::current_exe().expect("this program");
        let mut command = Command::new(this);
        command.args(["--exact", "line::child", "--nocapture"]).stdout(Stdio::null());
        command.env("REDQUORUM_CHILD_ROLE", role).env("REDQUORUM_CHILD_NODES", cluster.urls().join(","));
        Self(command.spawn().expect("another process"))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).expect("a process");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What another process does; nothing where this is the test run itself.
#[tokio::test]
async fn child() {
    let Ok(role) = std::env::var("REDQUORUM_CHILD_ROLE") else { return };
    let nodes = std::env::var("REDQUORUM_CHILD_NODES").expect("the nodes");
    let redlock = builder(nodes.split(',')).ttl(ms(2_000)).build().await.expect("a client");
    let waiters = match role.as_str() {
        "holds" => 1,
        count => count.parse().expect("how many wait"),
    };
    let locks = (0..waiters).map(|_| redlock.lock(KEY).wait_forever().into_future());
    let _held = futures::future::join_all(locks.collect::<Vec<_>>()).await;
    std::future::pending::<()>().await;
}

/// Law: however many contend, one holds at a time, and everybody gets in; at the end nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_never_overlap() {
    let cluster = Cluster::start(5);
    let (witness, mut tasks) = (Witness::default(), Vec::new());
    for _ in 0..4 {
        let redlock = client(cluster.urls()).await;
        for _ in 0..2 {
            let (redlock, witness) = (redlock.clone(), witness.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..25 {
                    witness.hold(redlock.acquire(KEY).await.expect("a turn"), ms(1)).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("a contender");
    }
    eventually(SLACK, "nothing left", || keys_left(&cluster) == 0).await;
}

/// Law: scripts flushed and connections killed at any time, a hand-over takes about a second at most, and never two hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_survive_killed_connections_and_flushed_scripts() {
    let cluster = Arc::new(Cluster::start(3));
    let (witness, mut tasks) = (Witness::default(), Vec::new());
    for _ in 0..2 {
        let (redlock, witness) = (client(cluster.urls()).await, witness.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..60 {
                let asked = Instant::now();
                let guard = redlock.acquire(KEY).await.expect("a turn");
                assert!(asked.elapsed() < ms(2_000) + SLACK, "{:?}", asked.elapsed());
                assert_eq!(witness.0.fetch_add(1, Ordering::SeqCst), 0, "two holders at a time");
                tokio::time::sleep(ms(5)).await;
                assert_eq!(witness.0.fetch_sub(1, Ordering::SeqCst), 1, "two holders at a time");
                let _ = guard.release().await;
            }
        }));
    }
    let mut turn = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        let server = &cluster[turn % cluster.len()];
        match turn % 2 {
            0 => drop(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"])),
            _ => drop(server.command(&["SCRIPT", "FLUSH"])),
        }
        turn += 1;
        tokio::time::sleep(ms(150)).await;
    }
    for task in tasks {
        task.await.expect("a contender");
    }
}

/// Law: after kill -9 of a holder, the first in the queue has the lock as soon as its keys expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_outlived_by_its_ttl_only() {
    let cluster = Cluster::start(5);
    let redlock = client(cluster.urls()).await;
    let holder = Process::start(&cluster, "holds");
    eventually(Duration::from_secs(10), "the other process holds", || keys_left(&cluster) == 5).await;
    let waiter = tokio::spawn(redlock.lock(KEY).into_future());
    tokio::time::sleep(ms(50)).await;

    let left = cluster.iter().filter_map(|server| server.pttl(KEY)).max().expect("held");
    let killed = Instant::now();
    drop(holder);
    let guard = waiter.await.expect("a task").expect("a turn");

    let took = killed.elapsed();
    assert!(took < left + ms(100) + SLACK, "{took:?}, with {left:?} left");
    guard.release().await.expect("released");
}

/// Law: a live waiter behind others of a stopped process waits for one hand-over and a look; behind a thousand of a
/// killed one, for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_killed_processes_are_passed_over() {
    for (waiters, signal) in [(5, rustix::process::Signal::STOP), (1_000, rustix::process::Signal::KILL)] {
        let cluster = Cluster::start(5);
        let redlock = client(cluster.urls()).await;
        let holder = held_on_all(&redlock, KEY).await;
        let others = Process::start(&cluster, &waiters.to_string());
        until_waiting(&redlock, KEY, waiters).await;
        let waiter = tokio::spawn(redlock.lock(KEY).into_future());
        until_waiting(&redlock, KEY, waiters + 1).await;
        others.signal(signal);
        tokio::time::sleep(ms(50)).await;

        let released = Instant::now();
        holder.release().await.expect("released");
        let guard = waiter.await.expect("a task").expect("a turn");

        let took = released.elapsed();
        println!("behind {waiters}: {took:?}");
        assert!(took < ms(1_500) + SLACK, "behind {waiters}: {took:?}");
        guard.release().await.expect("released");
    }
}

/// Law: where an ACL forbids channels, waiters look by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_channels_are_made_up_for() {
    let cluster = Cluster::start(3);
    for server in cluster.iter() {
        server.command(&["ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all"]);
    }
    let urls: Vec<_> =
        cluster.iter().map(|server| server.url_with(Some("deaf"), Some("secret"), 0)).collect();
    let (one, two) = (client(urls.clone()).await, client(urls).await);
    let holder = held_on_all(&one, KEY).await;
    let waiter = tokio::spawn(two.lock(KEY).into_future());
    until_waiting(&one, KEY, 1).await;
    tokio::time::sleep(ms(200)).await;

    let released = Instant::now();
    holder.release().await.expect("released");
    let guard = waiter.await.expect("a task").expect("a turn");

    assert!(released.elapsed() < ms(150) + SLACK, "{:?}", released.elapsed());
    guard.release().await.expect("released");
}

/// Law: killed and back at any time, the line's node costs seconds at most, and never lets two in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lines_node_may_die_and_come_back() {
    let cluster = Cluster::start(3);
    let (one, two) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let holder = held_on_all(&one, KEY).await;
    let waiter = tokio::spawn(two.lock(KEY).into_future());
    until_waiting(&one, KEY, 1).await;
    let seen = one.inspect(KEY).await.expect("a key");
    let keeps = |node: &redquorum::NodeInspection| node.state.as_ref().is_ok_and(|state| state.waiting > 0);
    let line = seen.nodes().iter().position(keeps).expect("a line");

    cluster[line].kill9();
    tokio::time::sleep(ms(50)).await;
    let released = Instant::now();
    holder.release().await.expect("released by the others");
    let guard = waiter.await.expect("a task").expect("a turn");
    assert!(released.elapsed() < ms(2_000) + SLACK, "{:?}", released.elapsed());

    cluster[line].restart();
    let waiter = tokio::spawn(one.lock(KEY).into_future());
    tokio::time::sleep(ms(500)).await;
    let released = Instant::now();
    guard.release().await.expect("released");
    let guard = waiter.await.expect("a task").expect("a turn");
    assert!(released.elapsed() < ms(2_000) + SLACK, "{:?}", released.elapsed());
    guard.release().await.expect("released");
}

/// Law: grants follow the order of arrival at the line's node, over clients and hand-overs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_follow_the_order_of_arrival() {
    let cluster = Cluster::start(5);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(cluster.urls()).await);
    }
    let holder = held_on_all(&clients[0], KEY).await;
    let (order, mut waiters) = (Arc::new(std::sync::Mutex::new(Vec::new())), Vec::new());
    for turn in 0..40_u32 {
        let (lock, order) = (clients[turn as usize * 7 % 4].lock(KEY).into_future(), order.clone());
        waiters.push(tokio::spawn(async move {
            let guard = lock.await.expect("a turn");
            order.lock().expect("a lock").push(turn);
            guard.release().await.expect("released");
        }));
        until_waiting(&clients[0], KEY, turn + 1).await;
    }

    holder.release().await.expect("released");
    for waiter in waiters {
        waiter.await.expect("a task");
    }

    assert_eq!(*order.lock().expect("a lock"), (0..40).collect::<Vec<_>>());
}

/// Law: without the newer protocol nobody can be woken, and waiters get their turns by looking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_protocol_looks_instead() {
    let cluster = Cluster::start_with(3, |_| Server::builder().args(["--rename-command", "HELLO", ""]));
    let (one, two) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let holder = held_on_all(&one, KEY).await;
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let lock = two.lock(KEY).into_future();
            tokio::spawn(async move { lock.await.expect("a turn").release().await })
        })
        .collect();
    until_waiting(&one, KEY, 4).await;

    let released = Instant::now();
    holder.release().await.expect("released");
    for waiter in waiters {
        waiter.await.expect("a task").expect("released");
    }

    assert!(released.elapsed() < ms(2_000) + SLACK, "{:?}", released.elapsed());
    eventually(SLACK, "nothing left", || keys_left(&cluster) == 0).await;
}

/// Law: dropped or closed at any moment around a hand-over, a waiter passes the lock on to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_and_closed_waiters_pass_the_lock_on() {
    let cluster = Cluster::start(5);
    let (one, two) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let mut claimed = 0;
    for micros in (0..1_200).step_by(40) {
        let gone = client(cluster.urls()).await;
        let holder = held_on_all(&one, KEY).await;
        // Whoever has the lock before it is dropped or closed, gives it back at once.
        let lock = gone.lock(KEY).into_future();
        let first = tokio::spawn(async move { lock.await.map(drop).is_ok() });
        until_waiting(&one, KEY, 1).await;
        let second = tokio::spawn(two.lock(KEY).into_future());
        until_waiting(&one, KEY, 2).await;

        let released = Instant::now();
        let release = tokio::spawn(holder.release());
        let until = released + Duration::from_micros(micros);
        while Instant::now() < until {
            tokio::task::yield_now().await;
        }
        if micros % 80 == 0 {
            first.abort();
        } else {
            assert!(gone.close(Duration::from_secs(10)).await, "closed");
        }
        claimed += usize::from(matches!(first.await, Ok(true)));
        let guard = second.await.expect("a task").expect("a turn");

        assert!(released.elapsed() < ms(1_100) + SLACK, "after {micros} µs: {:?}", released.elapsed());
        guard.release().await.expect("released");
        release.await.expect("a task").expect("released");
    }
    println!("{claimed} of 30 had the lock before they were dropped");
    assert!(claimed < 30, "nobody was dropped before it had the lock");
    eventually(SLACK, "nothing left", || keys_left(&cluster) == 0).await;
}
