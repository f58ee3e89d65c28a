//! Services in other languages lock the same names: this client and the ones that people use elsewhere respect each other.
//!
//! | who | what runs here |
//! | --- | --- |
//! | `redis` of Python, its `Lock` | the package, on one server |
//! | Redlock by hand on `redis` of Python, and `pottery` | the packages, on five servers |
//! | node-redlock, redsync (Go), redlock-rb (Ruby), rslock (Rust) | their commands, values and undoing, as a server sees them |
//!
//! `scripts/languages.sh` gets the packages; without them the first two rows are skipped, and the tests say so.

mod python;
mod wire;

use std::future::IntoFuture;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clients::{SLACK, SOON, TTL, all_vote, builder, ms};
use harness::{Cluster, Server, eventually};
use python::Python;
use rand::RngExt;
use redquorum::{Redlock, ReleaseError};
use wire::{Manner, Wire};

/// The name on the servers: one that every client here can use.
const KEY: &str = "redlock:shared";

/// The documented pause between two looks at a lock that another library holds.
const LOOK: Duration = ms(100);

/// A kind of client, as the tests name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Wire(Manner),
    /// By its name in `client.py`.
    Python(&'static str),
}

impl Kind {
    /// Those that lock a majority of several nodes, and those that lock one; Python's where its packages are there.
    fn all(nodes: usize) -> Vec<Self> {
        let mut kinds = [Manner::NodeRedlock, Manner::Redsync, Manner::Rslock, Manner::RedlockRb]
            .map(Self::Wire)
            .to_vec();
        if packages().is_some() {
            kinds.extend(["loop", "pottery"].map(Self::Python));
            if nodes == 1 {
                kinds.push(Self::Python("lock"));
            }
        }
        kinds
    }
}

/// The packages of other languages; says where they are missing.
fn packages() -> Option<PathBuf> {
    let packages = python::packages();
    if packages.is_none() {
        println!("skipped: the Python clients are not here, scripts/languages.sh gets them");
    }
    packages
}

/// One lock of a client of another kind.
enum Other {
    Wire(Wire),
    Python(Box<Python>),
}

impl Other {
    async fn start(kind: Kind, ttl: Duration, urls: &[String]) -> Self {
        match kind {
            Kind::Wire(manner) => Self::Wire(Wire::start(manner, KEY, ttl, urls).await),
            Kind::Python(kind) => {
                let packages = python::packages().expect("looked for");
                Self::Python(Box::new(Python::start(&packages, kind, KEY, ttl, urls).await))
            }
        }
    }

    async fn acquire(&mut self, wait: Duration) -> bool {
        match self {
            Self::Wire(wire) => wire.acquire(wait).await,
            Self::Python(python) => python.acquire(wait).await,
        }
    }

    async fn release(&mut self) -> bool {
        match self {
            Self::Wire(wire) => wire.release().await,
            Self::Python(python) => python.release().await,
        }
    }

    async fn extend(&mut self) -> bool {
        match self {
            Self::Wire(wire) => wire.extend().await,
            Self::Python(python) => python.extend().await,
        }
    }
}

/// Stands in the critical section, and notes who enters.
#[derive(Default)]
struct Witness {
    inside: AtomicUsize,
    entered: Mutex<Vec<usize>>,
    over: AtomicBool,
}

impl Witness {
    /// One visit: alone, and with the same value on a majority of the servers from the beginning to the end.
    async fn visit(&self, cluster: &Cluster, who: usize) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
        self.entered.lock().expect("a list").push(who);
        let carried = quorum_value(cluster);
        let pause = rand::rng().random_range(0..4);
        tokio::time::sleep(ms(pause)).await;
        assert!(carried.is_some(), "held without a majority");
        assert_eq!(quorum_value(cluster), carried, "somebody else's release took it away");
        assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 1, "two holders at once");
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// What a majority of the servers carries, as bytes.
fn quorum_value(cluster: &Cluster) -> Option<Vec<u8>> {
    let read = |server: &Server| match server.command(&["GET", KEY]) {
        redis::Value::BulkString(value) => Some(value),
        _ => None,
    };
    let values: Vec<_> = cluster.iter().map(read).collect();
    let count = |value: &Vec<u8>| values.iter().flatten().filter(|other| *other == value).count();
    values.iter().flatten().find(|value| 2 * count(value) > values.len()).cloned()
}

fn nothing_left(cluster: &Cluster) -> bool {
    cluster.iter().all(|server| !server.exists(KEY))
}

/// Lets two tasks of this client and one lock of each other kind contend for so long, and tells how often each was in.
async fn contend(cluster: Arc<Cluster>, length: Duration) -> Vec<(String, usize)> {
    const OURS: usize = 2;
    let witness = Arc::new(Witness::default());
    let kinds = Kind::all(cluster.len());
    let redlock = patient(&cluster).await;
    let mut tasks = Vec::new();
    for ours in 0..OURS {
        let (redlock, cluster, witness) = (redlock.clone(), cluster.clone(), witness.clone());
        tasks.push(tokio::spawn(async move {
            while !witness.is_over() {
                let guard = redlock.lock(KEY).wait(SOON).await.expect("in the end");
                witness.visit(&cluster, ours).await;
                guard.release().await.expect("still ours");
                pause().await;
            }
        }));
    }
    for (number, kind) in kinds.iter().enumerate() {
        let mut other = Other::start(*kind, TTL, &cluster.urls()).await;
        let (cluster, witness) = (cluster.clone(), witness.clone());
        tasks.push(tokio::spawn(async move {
            while !witness.is_over() {
                if other.acquire(ms(200)).await {
                    witness.visit(&cluster, OURS + number).await;
                    assert!(other.release().await, "still its own");
                    pause().await;
                }
            }
        }));
    }
    // On a busy machine, those that ask again and again need longer to get in.
    let started = Instant::now();
    let all_were_in = || {
        let entered = witness.entered.lock().expect("a list");
        (0..OURS + kinds.len()).all(|who| entered.iter().filter(|entered| **entered == who).count() > 2)
    };
    while started.elapsed() < length || (!all_were_in() && started.elapsed() < 2 * SOON) {
        tokio::time::sleep(ms(50)).await;
    }
    witness.over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no law was broken");
    }
    eventually(SOON, "no key is left", || nothing_left(&cluster)).await;
    eventually(SOON, "nothing is owed", || redlock.pending_cleanups() == 0).await;

    let entered = witness.entered.lock().expect("a list");
    let changes = entered.windows(2).filter(|pair| pair[0] != pair[1]).count();
    println!("{} visits, {changes} of them after another's", entered.len());
    let count = |who: usize| entered.iter().filter(|entered| **entered == who).count();
    let mut counts: Vec<_> = (0..OURS).map(|ours| (format!("ours {ours}"), count(ours))).collect();
    counts.extend(kinds.iter().enumerate().map(|(number, kind)| (format!("{kind:?}"), count(OURS + number))));
    counts
}

/// A client that a busy machine does not put off.
async fn patient(cluster: &Cluster) -> Redlock {
    let redlock = builder(cluster.urls()).reply_timeout(ms(2_000)).build().await.expect("nodes");
    all_vote(&redlock).await;
    redlock
}

/// Long enough that those who ask again and again find the lock free now and then.
async fn pause() {
    let pause = rand::rng().random_range(5..40);
    tokio::time::sleep(ms(pause)).await;
}

/// Law: clients of all kinds that contend for one name are never two inside at once, none of them takes away what is
/// another's, all of them get in, and nothing is left. On five servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_two_holders_over_five_servers() {
    let counts = contend(Arc::new(Cluster::start(5)), ms(4_000)).await;
    println!("{counts:?}");
    assert!(counts.iter().all(|(_, visits)| *visits > 0), "{counts:?}");
}

/// The same with one server, which is how the lock of the `redis` package for Python is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_two_holders_on_one_server() {
    let counts = contend(Arc::new(Cluster::start(1)), ms(3_000)).await;
    println!("{counts:?}");
    assert!(counts.iter().all(|(_, visits)| *visits > 0), "{counts:?}");
}

/// What is asked of each other kind of client, with five servers and with one.
async fn with_each(mut law: impl AsyncFnMut(Kind, &Cluster, &Redlock, &mut Other), ttl: Duration) {
    for nodes in [5, 1] {
        let cluster = Cluster::start(nodes);
        let redlock = patient(&cluster).await;
        // One server makes a difference to the lock of Python's `redis` only; one other shows that it makes none.
        let alone = [Kind::Wire(Manner::NodeRedlock), Kind::Python("lock")];
        for kind in Kind::all(nodes).into_iter().filter(|kind| nodes > 1 || alone.contains(kind)) {
            let mut other = Other::start(kind, ttl, &cluster.urls()).await;
            law(kind, &cluster, &redlock, &mut other).await;
            eventually(SOON, "no key is left", || nothing_left(&cluster)).await;
        }
    }
}

/// Law: each refuses while the other holds, without touching what the other set, and gets in as soon as the other has
/// released; a refusal names the value of whoever holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_respects_the_other() {
    let law = async |kind: Kind, cluster: &Cluster, redlock: &Redlock, other: &mut Other| {
        let guard = redlock.lock(KEY).wait(SOON).await.expect("free");
        let everywhere = || cluster.iter().all(|server| server.exists(KEY));
        eventually(SOON, "on all nodes", everywhere).await;
        let ours = quorum_value(cluster);
        assert!(!other.acquire(ms(50)).await, "{kind:?} got in");
        assert!(everywhere() && quorum_value(cluster) == ours && guard.is_valid(), "{kind:?} took it away");
        guard.release().await.expect("still ours");

        assert!(other.acquire(SOON).await, "{kind:?} does not get in");
        eventually(SOON, "on all nodes", everywhere).await;
        let theirs = quorum_value(cluster);
        let refused = redlock.try_acquire(KEY).await;
        let waited = redlock.lock(KEY).wait(ms(50)).await;
        for refused in [refused, waited] {
            let error = refused.expect_err("it is held");
            assert!(error.is_contention(), "{kind:?}: {error}");
            assert!(error.holder().is_some() || !names_holders(&cluster[0]), "{kind:?}: {error}");
        }
        tokio::time::sleep(ms(20)).await;
        assert!(everywhere() && quorum_value(cluster) == theirs, "{kind:?}'s lock was touched");
        assert!(theirs != ours && other.extend().await && other.release().await, "{kind:?}");
        let guard = redlock.try_acquire(KEY).await;
        guard.expect("it is free").release().await.expect("still ours");
    };
    with_each(law, TTL).await;
}

/// Whether a refused `SET` tells the value found.
fn names_holders(server: &Server) -> bool {
    server.version().at_least((7, 0), (0, 0))
}

/// Law: who waits in the queue here gets in within one look of 100 ms when a client of another kind releases, which wakes
/// nobody, whatever its value looks like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_in_when_another_kind_of_client_releases() {
    let law = async |kind: Kind, cluster: &Cluster, redlock: &Redlock, other: &mut Other| {
        let mut took = Vec::new();
        let (mut round, until) = (0, Instant::now() + 6 * SOON);
        while round < 3 {
            assert!(Instant::now() < until, "{kind:?}: nobody ever waits in the queue");
            assert!(other.acquire(SOON).await, "{kind:?} does not get in");
            let waiting = tokio::spawn(redlock.lock(KEY).wait(SOON).into_future());
            let stands = async || redlock.inspect(KEY).await.is_ok_and(|found| found.waiting() > 0);
            while !waiting.is_finished() && !stands().await {
                tokio::time::sleep(ms(2)).await;
            }
            if waiting.is_finished() {
                // The other's lock was still on its way to the line's node, which gave its vote: who has that stands in no
                // line. Or the machine stood still, and the lock ran out.
                let _ = waiting.await.expect("no panic");
                other.release().await;
                continue;
            }
            round += 1;
            let looks = || cluster.iter().map(|server| server.commandstats("evalsha")).max();
            let before = looks();
            let hold = ms(263 + 37 * round);
            tokio::time::sleep(hold).await;
            let looked = looks().unwrap_or(0) - before.unwrap_or(0);

            let released = Instant::now();
            assert!(other.release().await, "{kind:?}");
            let guard = waiting.await.expect("no panic").expect("free");
            took.push(released.elapsed());
            guard.release().await.expect("still ours");
            assert!(looked >= 1, "{kind:?}: {looked} looks in {hold:?}");
        }
        // A busy machine may make one of them late.
        took.sort();
        assert!(took[1] < LOOK + SLACK, "{kind:?}: {took:?}");
    };
    with_each(law, TTL).await;
}

/// Law: a lock of another kind of client that runs out is waited for no longer than its life and a look, and its late release
/// leaves the next holder alone; and the same the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_out_is_the_next_holders() {
    let life = ms(700);
    let law = async |kind: Kind, cluster: &Cluster, redlock: &Redlock, other: &mut Other| {
        assert!(other.acquire(SOON).await, "{kind:?} does not get in");
        let acquired = Instant::now();
        let guard = redlock.lock(KEY).wait(SOON).await.expect("it runs out");
        let took = acquired.elapsed();
        assert!(took < life + LOOK + 2 * SLACK, "{kind:?}: {took:?}");
        let ours = quorum_value(cluster);
        assert!(!other.release().await && !other.extend().await, "{kind:?} has it still");
        assert!(quorum_value(cluster) == ours && ours.is_some() && guard.is_valid(), "{kind:?} took it away");
        guard.release().await.expect("still ours");

        let guard =
            clients::client(cluster.urls()).await.lock(KEY).ttl(ms(300)).wait(SOON).await.expect("free");
        assert!(other.acquire(SOON).await, "{kind:?} does not get in");
        let theirs = quorum_value(cluster);
        let released = guard.release().await;
        let over = matches!(released, Err(ReleaseError::Expired { .. } | ReleaseError::TakenOver { .. }));
        assert!(over, "{kind:?}: {released:?}");
        assert!(quorum_value(cluster) == theirs && theirs.is_some(), "{kind:?}'s lock was taken away");
        assert!(other.release().await, "{kind:?}");
    };
    with_each(law, life).await;
}
