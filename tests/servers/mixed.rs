//! One lock over servers of different lines and makers: it makes no difference which of them keeps what, and a node may
//! become another server under a running client.
//!
//! The programs are those that `scripts/servers.sh matrix` left in `target/servers`. With fewer than two lines there is
//! nothing to mix, and the tests say so; `REDQUORUM_MIXED=required`, as in `make test-matrix`, makes that a failure.

use std::future::IntoFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clients::{SLACK, SOON, TTL, all_vote, builder, client, ms, quorum_value, timed};
use harness::{Cluster, Mode, Server, eventually};
use redquorum::{AcquireError, Outcome, Redlock};

/// For who must not be put off by a machine that is busy.
const PATIENT: Duration = Duration::from_secs(5);

/// One server program, and the line that it belongs to, such as `redis-6.2`.
struct Line {
    name: String,
    program: PathBuf,
}

impl Line {
    /// Whether its `SET` answers with the value that is in the way.
    fn names_holders(&self) -> bool {
        !self.name.starts_with("redis-6.")
    }
}

/// The lines that are there; `None` where there are too few to mix.
fn lines() -> Option<Vec<Line>> {
    let list = harness::top().join("target/servers/matrix.txt");
    let text = std::fs::read_to_string(list).unwrap_or_default();
    let named = text.lines().filter_map(|line| line.split_once(' '));
    let lines: Vec<_> =
        named.map(|(name, path)| Line { name: name.to_owned(), program: path.into() }).collect();
    let lines: Vec<_> = lines.into_iter().filter(|line| line.program.is_file()).collect();
    if lines.len() >= 2 {
        return Some(lines);
    }
    let required = std::env::var("REDQUORUM_MIXED").is_ok_and(|value| value == "required");
    assert!(!required, "fewer than two server lines: run scripts/servers.sh matrix");
    println!("skipped: fewer than two server lines are here, scripts/servers.sh matrix gets them");
    None
}

/// `n` servers of the lines in turn.
fn mixed(lines: &[Line], n: usize) -> Cluster {
    Cluster::start_with(n, |i| Server::builder().binary(&lines[i % lines.len()].program))
}

/// Whether a holder as the client shows it, cut to its beginning, is this value.
fn is_shown(holder: Option<&str>, value: &Option<String>) -> bool {
    let shown = holder.and_then(|holder| holder.strip_suffix('…'));
    shown.is_some_and(|start| {
        start.len() == 16 && value.as_ref().is_some_and(|value| value.starts_with(start))
    })
}

/// Law: over nodes of all lines a lock is acquired, refused with its holder's name, extended, kept, fenced and released as
/// over nodes of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lock_lives_on_all_lines() {
    let Some(lines) = lines() else { return };
    let cluster = mixed(&lines, 5);
    let (one, other) = tokio::join!(client(cluster.urls()), client(cluster.urls()));
    let everywhere = |key: &str| {
        let values = cluster.values(key);
        values[0].is_some() && values.iter().all(|value| *value == values[0])
    };

    let mut guard = one.try_acquire("k").await.expect("free");
    eventually(SOON, "on all nodes", || everywhere("k")).await;
    let value = quorum_value(&cluster, "k");
    let refused = other.try_acquire("k").await;
    let waited = other.lock("k").wait(ms(150)).await;
    guard.extend(2 * TTL).await.expect("extended");
    let longer = |server: &Server| server.pttl("k").is_some_and(|left| left > TTL);
    eventually(SOON, "extended on all nodes", || cluster.iter().all(longer)).await;
    guard.release().await.expect("released");
    cluster.no_key("k", SOON).await;

    for refused in [refused, waited] {
        let error = refused.expect_err("it is held");
        assert!(error.is_contention() && is_shown(error.holder(), &value), "{error}, not {value:?}");
    }

    let mut last = None;
    for _ in 0..3 {
        for redlock in [&one, &other] {
            let guard = redlock.lock("fenced").fenced().await.expect("free");
            let token = guard.fencing_token();
            assert!(token.is_some() && token > last, "{token:?} after {last:?}");
            last = token;
            guard.release().await.expect("released");
        }
    }

    let kept = one.lock("kept").ttl(ms(1_500)).keep_alive().await.expect("free");
    tokio::time::sleep(ms(3_500)).await;
    assert!(kept.is_valid() && everywhere("kept"), "{:?}", cluster.values("kept"));
    kept.release().await.expect("released");
    cluster.no_key("kept", SOON).await;
}

/// Law: whichever line keeps the line for a key, those who wait are let in as they came, each as soon as the one before has
/// released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_keeps_lines_alike() {
    const WAITERS: usize = 4;
    let Some(lines) = lines() else { return };
    let cluster = mixed(&lines, 5);
    // With patience: who gets no answer in time stands at another node, or in no line.
    let patient = async || {
        let redlock = builder(cluster.urls()).reply_timeout(PATIENT).build().await.expect("nodes");
        all_vote(&redlock).await;
        redlock
    };
    let (holder, one, other) = tokio::join!(patient(), patient(), patient());
    let mut kept = [0; 5];
    for number in 0..200 {
        if kept.iter().all(|keys| *keys >= 2) {
            break;
        }
        let key = format!("k{number}");
        let guard = holder.try_acquire(&key).await.expect("free");
        // Where it is not yet, the first who waits gets that node's vote, and stands in no line.
        let everywhere = || cluster.values(&key).iter().all(Option::is_some);
        eventually(SOON, "on all nodes", everywhere).await;
        let mut waits = Vec::new();
        for (place, redlock) in [&one, &other, &one, &other].into_iter().enumerate() {
            let waiting = redlock.lock(&key).wait(TTL).into_future();
            waits.push(tokio::spawn(async move { (waiting.await, tokio::time::Instant::now()) }));
            let entered = async || holder.inspect(&key).await.expect("a name").waiting() as usize > place;
            let since = std::time::Instant::now();
            while !entered().await {
                assert!(since.elapsed() < SOON, "not in line: {:?}", holder.inspect(&key).await);
                tokio::time::sleep(ms(2)).await;
            }
        }
        let name = format!("{{{key}}}:redquorum:line");
        let keeper = cluster.iter().position(|server| server.exists(&name)).expect("a line");
        kept[keeper] += 1;

        let mut released = tokio::time::Instant::now();
        guard.release().await.expect("released");
        for waiting in waits {
            let (guard, at) = waiting.await.expect("no panic");
            let guard = guard.expect("handed over");
            assert!(at >= released, "on {}: overtaken", lines[keeper % lines.len()].name);
            // A wake-up that is lost costs a look, a second later.
            assert!(at - released < ms(1_100) + SLACK, "on {}", lines[keeper % lines.len()].name);
            released = tokio::time::Instant::now();
            guard.release().await.expect("released");
        }
        cluster.no_key(&key, SOON).await;
    }
    assert!(kept.iter().all(|keys| *keys >= 2), "{kept:?} lines of {WAITERS}");
}

/// Law: a refusal names the holder also where some of the nodes cannot tell who holds a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_the_holder_where_some_nodes_cannot() {
    let Some(lines) = lines() else { return };
    let (able, unable): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.names_holders());
    let (Some(unable), true) = (unable.first(), !able.is_empty()) else {
        return println!("skipped: no line here answers a SET without the value found");
    };
    // Three refusals decide, so one of those who can tell is always among them.
    let of = |i: usize| if i < 2 { unable } else { able[i % able.len()] };
    let cluster = Cluster::start_with(5, |i| Server::builder().binary(&of(i).program));
    let (one, other) = tokio::join!(client(cluster.urls()), client(cluster.urls()));
    let guard = one.try_acquire("k").await.expect("free");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    let value = quorum_value(&cluster, "k");

    let (mut untold, mut told) = (0, 0);
    for _ in 0..100 {
        let refused = other.try_acquire("k").await;
        let Err(error @ AcquireError::Held { report, .. }) = &refused else { panic!("{refused:?}") };
        assert!(is_shown(error.holder(), &value), "{error}");
        for (i, node) in report.nodes().iter().enumerate() {
            match &node.outcome {
                Outcome::Held { holder: None, .. } => {
                    assert!(i < 2, "{report}");
                    untold += 1;
                }
                Outcome::Held { holder, .. } => {
                    assert!(is_shown(holder.as_deref(), &value), "{report}");
                    told += 1;
                }
                _ => {}
            }
        }
    }
    assert!(untold > 0 && told > 0, "{untold} of the refusals named nobody, {told} somebody");
    guard.release().await.expect("released");
    cluster.no_key("k", SOON).await;
}

/// Law: a node that becomes a server of another line, older or newer, under a running client is used for what it is: what
/// it can do is found anew, a held lock stays held, nobody notices, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_becomes_another_server_under_a_running_client() {
    let Some(lines) = lines() else { return };
    let cluster = mixed(&lines, 3);
    // One that releases by the servers' own command where there is one, and one whose releases hand over.
    let patient = || builder(cluster.urls()).reply_timeout(PATIENT);
    let plain = patient().without_wait_queue().build().await.expect("nodes");
    let in_queue = patient().build().await.expect("nodes");
    all_vote(&plain).await;
    all_vote(&in_queue).await;
    let stop = Arc::new(AtomicBool::new(false));
    // Each has a name of its own: of two that contend, one may have the lock on two nodes only, and its release is then
    // unconfirmed where one of them goes.
    let busy = [("busy plainly", plain.clone()), ("busy in line", in_queue.clone())].map(|(key, redlock)| {
        let stop = stop.clone();
        tokio::spawn(async move {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let guard = redlock.lock(key).wait(SOON).await.expect("two nodes grant");
                guard.release().await.expect("two nodes confirm");
                rounds += 1;
                tokio::time::sleep(ms(5)).await;
            }
            rounds
        })
    });

    for line in lines.iter().chain(lines.iter().rev()) {
        let mut guards = Vec::new();
        for (key, redlock) in [("held plainly", &plain), ("held in line", &in_queue)] {
            guards.push((key, redlock.try_acquire(key).await.expect("two nodes grant")));
        }

        tokio::task::block_in_place(|| cluster[0].replace(&line.program));
        all_vote(&plain).await;
        all_vote(&in_queue).await;

        let version = cluster[0].version();
        let maker = if version.is_valkey { "Valkey" } else { "Redis" };
        let known = format!("{maker} {}.{}", version.major, version.minor);
        assert_eq!(plain.nodes()[0].version.as_deref(), Some(known.as_str()), "{}", line.name);
        let native = cluster[0].commandstats("delifeq") + cluster[0].commandstats("delex");
        let able = version.at_least((8, 4), (9, 0));
        assert_eq!(native > 0, able, "{}: {native} releases by a command of its own", line.name);
        assert_eq!(refusal_names(&plain, &in_queue, 0).await, line.names_holders(), "{}", line.name);
        for (key, mut guard) in guards {
            let healed = || cluster[0].exists(key);
            for _ in 0..500 {
                guard.extend(TTL).await.expect("two nodes carry it");
                tokio::time::sleep(ms(5)).await;
                if healed() {
                    break;
                }
            }
            assert!(healed() && guard.is_valid(), "{}: {:?}", line.name, cluster.values(key));
            guard.release().await.expect("released");
            cluster.no_key(key, SOON).await;
        }
    }

    stop.store(true, Ordering::Relaxed);
    for busy in busy {
        let rounds: u32 = busy.await.expect("nobody noticed");
        assert!(rounds > 5, "{rounds} rounds");
    }
    cluster.no_key("busy plainly", SOON).await;
    cluster.no_key("busy in line", SOON).await;
}

/// Whether the node at `index` names the holder when it refuses a plain set.
async fn refusal_names(holder: &Redlock, other: &Redlock, index: usize) -> bool {
    let guard = holder.try_acquire("named").await.expect("free");
    let named = async {
        loop {
            let refused = other.try_acquire("named").await;
            let report = refused.as_ref().err().and_then(AcquireError::report).expect("it is held");
            if let Outcome::Held { holder, .. } = &report.nodes()[index].outcome {
                return holder.is_some();
            }
            // Decided before this node had answered, or it does not have the key yet.
            tokio::time::sleep(ms(2)).await;
        }
    };
    let named = tokio::time::timeout(SOON, named).await.expect("the node answers among the first");
    guard.release().await.expect("released");
    named
}

/// Law: a script that was called by its digest and arrives late, at a node that has lost its scripts meanwhile, is sent
/// again as text on every line, and what it was sent for happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_digest_at_a_node_without_scripts_is_sent_again() {
    let Some(lines) = lines() else { return };
    let cluster = mixed(&lines, 5);
    let proxies = cluster.proxies();
    let urls: Vec<_> = proxies.iter().map(|proxy| proxy.url()).collect();
    let redlock = builder(urls).reply_timeout(PATIENT).build().await.expect("nodes");
    all_vote(&redlock).await;
    // Everything that is on its way to the nodes waits until their scripts are gone.
    let meanwhile_flushed = async || {
        tokio::time::sleep(ms(100)).await;
        cluster.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
        proxies.iter().for_each(|proxy| proxy.pass());
    };
    let hold = || proxies.iter().for_each(|proxy| proxy.requests(Mode::Hold));

    let mut guard = redlock.lock("k").fenced().await.expect("free");
    hold();
    let (extended, ()) = tokio::join!(guard.extend(2 * TTL), meanwhile_flushed());
    extended.expect("extended");
    let longer = |server: &Server| server.pttl("k").is_some_and(|left| left > TTL);
    eventually(SOON, "extended on all nodes", || cluster.iter().all(longer)).await;
    hold();
    let refused = redlock.lock("k").wait(ms(500)).into_future();
    let (refused, ()) = tokio::join!(refused, meanwhile_flushed());
    assert!(refused.as_ref().is_err_and(AcquireError::is_contention), "{refused:?}");
    hold();
    let (released, ()) = tokio::join!(guard.release(), meanwhile_flushed());
    released.expect("released");
    cluster.no_key("k", SOON).await;

    // Nobody waits for the last node's release, which comes after everything else is over.
    let guard = redlock.try_acquire("late").await.expect("free");
    eventually(SOON, "on all nodes", || cluster.values("late").iter().all(Option::is_some)).await;
    proxies[0].requests(Mode::Hold);
    let (released, took) = timed(guard.release()).await;
    released.expect("four nodes confirm");
    assert!(took < SLACK, "{took:?}");
    cluster[0].command(&["SCRIPT", "FLUSH"]);
    assert!(cluster[0].exists("late"));
    proxies[0].pass();
    cluster.no_key("late", SOON).await;
    eventually(SOON, "nothing is owed", || redlock.pending_cleanups() == 0).await;
}
