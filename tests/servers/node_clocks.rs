//! Fencing tokens while the clocks of nodes are wrong: they rise all the same, also after counters were lost.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clients::{all_vote, builder, client, until_votes};
use harness::{Cluster, Proxy, Server, ServerBuilder, faketime, set_clock};
use redis::Value;
use redquorum::{FencingToken, Outcome, Redlock};

const KEY: &str = "k";

/// Far more than the ten seconds for which a client's clock is let ahead of the nodes', in seconds.
const BEHIND: i64 = 60;

/// A server whose clock is behind, by the library that moves clocks.
fn late(library: &Path, folder: &Path) -> ServerBuilder {
    let clock = folder.join("clock");
    set_clock(&clock, -(BEHIND as f64));
    Server::builder().clock_in(library, clock)
}

/// How far a server's clock is ahead of this machine's, in seconds.
fn ahead(server: &Server) -> i64 {
    let Value::Array(parts) = server.command(&["TIME"]) else { panic!("a time") };
    let Value::BulkString(seconds) = &parts[0] else { panic!("seconds") };
    let shown: i64 = String::from_utf8_lossy(seconds).parse().expect("a number");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    shown - now as i64
}

/// Takes the lock, lets go of it, and tells the token.
async fn token(redlock: &Redlock) -> FencingToken {
    let guard = redlock.lock(KEY).fenced().await.expect("a quorum grants");
    let token = guard.fencing_token().expect("fenced");
    guard.release().await.expect("a quorum confirms");
    token
}

/// Cuts a node off, and waits until the client knows.
async fn without(proxies: &[Proxy], away: usize, redlock: &Redlock) {
    proxies[away].refuse();
    proxies[away].reset();
    until_votes(redlock, |outcomes| matches!(outcomes[away], Outcome::NotSent(_))).await;
}

/// Law: tokens rise after a node lost its counters, though the clocks of all nodes that grant are a minute behind: a client that
/// has met one node whose clock is right is not held back by the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_though_the_granting_nodes_are_behind() {
    let Some(library) = faketime() else { return println!("skipped: libfaketime is not installed") };
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start_with(3, |index| match index {
        0 | 1 => late(&library, folder.path()),
        _ => Server::builder(),
    });
    let offsets: Vec<_> = cluster.iter().map(ahead).collect();
    assert!(offsets[0] < -50 && offsets[1] < -50 && offsets[2].abs() < 2, "{offsets:?}");
    let proxies = cluster.proxies();
    let redlock = client(proxies.iter().map(Proxy::url)).await;
    let other = client(proxies.iter().map(Proxy::url)).await;

    without(&proxies, 0, &redlock).await;
    let first = token(&redlock).await;
    // The node that was away has never seen the number, and this one has lost it.
    cluster[1].command(&["FLUSHALL"]);
    proxies[0].accept();
    all_vote(&redlock).await;
    without(&proxies, 2, &redlock).await;
    let next = token(&redlock).await;
    assert!(next > first, "{next} after {first}");

    cluster[..2].iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
    without(&proxies, 2, &other).await;
    let last = token(&other).await;
    assert!(last > next, "{last} after {next}");
}

/// Law: a client's clock that is years ahead moves tokens by ten seconds beyond the foremost node's clock, whichever node that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_foremost_node_holds_a_client_back() {
    let Some(library) = faketime() else { return println!("skipped: libfaketime is not installed") };
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start_with(3, |index| match index {
        0 | 1 => late(&library, folder.path()),
        _ => Server::builder(),
    });
    let years = 10 * 365 * 86_400 * 1_000_000;
    let ahead = builder(cluster.urls()).wall_clock_off(years).build().await.expect("nodes");
    all_vote(&ahead).await;

    let token = token(&ahead).await.as_u64();

    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros() as u64;
    assert!(token <= now + 10_000_000 && token > now + 5_000_000, "{token} at {now}");
}
