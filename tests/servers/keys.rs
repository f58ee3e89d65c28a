//! Keys and owners: any bytes within the policy, exactly as other clients would see them, and no owner twice.

use std::collections::HashSet;

use clients::{SLACK, SOON, builder, client, keys_left, lock_commands, ms, timed};
use harness::{Cluster, Server, eventually};
use redis::Value;
use redquorum::{AcquireError, InvalidRequest};

fn exists(server: &Server, key: &[u8]) -> bool {
    server.command(&[&b"EXISTS"[..], key]) == Value::Int(1)
}

/// A lock on a key that an application uses is refused as held, promptly, and the data stays as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn application_data_is_never_touched() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let data: [&[&str]; 5] = [
        &["HSET", "hash", "field", "data"],
        &["RPUSH", "list", "data"],
        &["ZADD", "sorted", "1", "data"],
        &["SET", "string", "data"],
        &["SET", "almost", "0123456789abcdef0123456789abcdef"],
    ];
    for server in cluster.iter() {
        data.iter().for_each(|command| drop(server.command(command)));
    }
    let dump = |key: &str| cluster.iter().map(|server| server.command(&["DUMP", key])).collect::<Vec<_>>();

    for command in data {
        let (key, before) = (command[1], dump(command[1]));
        let (refused, took) = timed(redlock.try_acquire(key)).await;
        assert!(matches!(refused, Err(AcquireError::Held { .. })), "{key}: {refused:?}");
        assert!(took < SLACK, "{key}: {took:?}");
        // The contended path asks by a script, which meets the same data.
        let waited = redlock.lock(key).wait(ms(150)).await;
        assert!(waited.as_ref().is_err_and(|error| error.is_contention()), "{key}: {waited:?}");
        tokio::time::sleep(ms(50)).await;
        assert_eq!(dump(key), before, "{key}");
    }
    eventually(SOON, "no outcome is open", || redlock.pending_cleanups() == 0).await;
}

/// A key that only one node uses otherwise costs that node's vote, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn application_data_on_one_node_costs_one_vote() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    cluster[0].command(&["HSET", "k", "field", "data"]);

    let mut guard = redlock.try_acquire("k").await.expect("two nodes grant");
    guard.extend(clients::TTL).await.expect("two nodes confirm");
    guard.release().await.expect("two nodes confirm");

    eventually(SOON, "the others are free", || keys_left(&cluster) == 1).await;
    assert_eq!(cluster[0].command(&["HGET", "k", "field"]), Value::BulkString(b"data".into()));
}

/// A prefix keeps locks apart from data: the key on the servers is prefix and name, and nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_keeps_locks_apart() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).prefix("lock:").build().await.expect("nodes");
    for server in cluster.iter() {
        server.command(&["HSET", "k", "field", "data"]);
    }

    let guard = redlock.try_acquire("k").await.expect("acquired");

    assert_eq!(guard.key(), b"lock:k");
    eventually(SOON, "on all nodes", || cluster.values("lock:k").iter().all(Option::is_some)).await;
    guard.release().await.expect("released");
    cluster.no_key("lock:k", SOON).await;
    assert!(cluster.iter().all(|server| server.exists("k")));
}

/// The value under the key is the owner alone, as 32 upper-case hex digits: what any other client can compare, and none
/// uses itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_value_is_the_owner() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;

    let values: HashSet<_> = cluster.values("k").into_iter().flatten().collect();

    assert_eq!(values.len(), 1, "{values:?}");
    for value in values {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
        assert!(value.len() == 32 && value.bytes().all(is_hex), "{value}");
    }
    drop(guard);
}

/// Keys of any bytes make the whole round trip, over RESP3 and RESP2 alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_any_bytes_make_the_round_trip() {
    let modern = Cluster::start(3);
    let resp2 = Cluster::start_with(3, |_| Server::builder().args(["--rename-command", "HELLO", ""]));
    let longest = vec![b'x'; 64 * 1024];
    let keys: [&[u8]; 9] = [
        b"\x00\xff\r\n",
        b"\0",
        b"*1\r\n$8\r\nFLUSHALL\r\n",
        b"{tag}:x",
        b"a b*?[",
        "\u{1f512}".as_bytes(),
        b"%s%n\x1b[31m",
        b" ",
        &longest,
    ];
    for cluster in [&modern, &resp2] {
        let redlock = client(cluster.urls()).await;
        for key in keys {
            let name = key[..key.len().min(20)].escape_ascii();
            let mut guard = redlock.try_acquire(key).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(guard.key(), key);
            let there = || cluster.iter().filter(|server| exists(server, key)).count();
            assert!(there() >= 2, "{name}");
            guard.extend(2 * clients::TTL).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            guard.release().await.unwrap_or_else(|error| panic!("{name}: {error}"));
            eventually(SOON, "the key is gone", || there() == 0).await;
        }
        // A node that hung behind may have seen neither the claim nor the release when it was last looked at.
        eventually(SOON, "nothing left", || keys_left(cluster) == 0).await;
    }
}

/// The policy on keys: an empty one, one above 64 KiB and the client's own are refused before anything is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_outside_the_policy_are_refused_unsent() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let before = lock_commands(&cluster[0]);

    let empty = redlock.try_acquire("").await.map(drop);
    let huge = redlock.acquire(vec![b'x'; 1024 * 1024]).await.map(drop);
    let above = redlock.acquire(vec![b'x'; 64 * 1024 + 1]).await.map(drop);
    let own = redlock.try_acquire("jobs:redquorum:line").await.map(drop);

    assert!(matches!(empty, Err(AcquireError::Invalid(InvalidRequest::EmptyKey))), "{empty:?}");
    for (result, given) in [(huge, 1024 * 1024), (above, 64 * 1024 + 1)] {
        let Err(AcquireError::Invalid(InvalidRequest::KeyTooLong { length, maximum })) = result else {
            panic!("{result:?}");
        };
        assert_eq!((length, maximum), (given, 64 * 1024));
    }
    let Err(AcquireError::Invalid(InvalidRequest::ReservedKey { suffix })) = own else { panic!("{own:?}") };
    assert_eq!(suffix, ":redquorum:line");
    assert_eq!(lock_commands(&cluster[0]), before);
}

/// Every acquire has an owner of its own, over all clients and threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_owner_is_ever_used_twice() {
    let each = if cfg!(debug_assertions) { 150 } else { 1_500 };
    let cluster = Cluster::start(1);
    let shared = client(cluster.urls()).await;
    let mut tasks = Vec::new();
    for task in 0..16 {
        // Half of them share a client, the others have one each.
        let redlock = if task % 2 == 0 { shared.clone() } else { client(cluster.urls()).await };
        tasks.push(tokio::spawn(async move {
            for i in 0..each {
                std::mem::forget(redlock.try_acquire(format!("{task}-{i}")).await.expect("acquired"));
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }

    let keys = clients::lock_keys(&cluster[0]);
    let owners: HashSet<_> = keys.iter().filter_map(|key| cluster[0].get(key)).collect();

    assert_eq!((keys.len(), owners.len()), (16 * each, 16 * each));
    // Random, not counted up: every position takes every digit.
    for position in 0..32 {
        let digits: HashSet<_> = owners.iter().map(|owner| owner.as_bytes()[position]).collect();
        assert_eq!(digits.len(), 16, "position {position}");
    }
}

/// Locks of different names have nothing to do with each other, in any order of taking them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_independent() {
    let cluster = Cluster::start(3);
    let (redlock, rival) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let one = redlock.try_acquire("one").await.expect("acquired");

    let other = rival.try_acquire("other").await.expect("acquired");
    let refused = rival.try_acquire("one").await;

    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    other.release().await.expect("released");
    one.release().await.expect("released");
    eventually(SOON, "no key is left", || keys_left(&cluster) == 0).await;
}
