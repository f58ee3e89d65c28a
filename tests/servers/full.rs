//! A node that is full of clients: those that it refuses do not wear it down, and are back soon after there is room.

use std::time::Duration;

use clients::{SLACK, SOON, acquired, builder, ms};
use futures::future::join_all;
use harness::{Cluster, Server, eventually};
use redquorum::{Health, Redlock};

/// Clients as there would be processes.
const CLIENTS: u64 = 5;

/// How long the node is full.
const FULL: Duration = Duration::from_secs(15);

/// So many attempts come before one in two seconds is reached, and a pause is 1.8 s at least.
const MOST: u64 = 6 + FULL.as_secs() * 10 / 18;

fn rejected(server: &Server) -> u64 {
    server.info("stats", "rejected_connections").and_then(|count| count.parse().ok()).expect("a number")
}

/// Law: a node that refuses connections is asked once per attempt, down to one attempt in two seconds from each client. It is
/// named, locks go on without it, and every client is back within two seconds after there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_full_of_clients_is_left_in_peace() {
    let cluster = Cluster::start(5);
    let full = &cluster[0];
    let clients = join_all((0..CLIENTS).map(|_| clients::client(cluster.urls()))).await;
    let trouble = |redlock: &Redlock| redlock.nodes()[0].health.to_string();

    full.command(&["CONFIG", "SET", "maxclients", "1"]);
    full.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    full.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually(SOON, "each is told why", || {
        clients.iter().all(|redlock| trouble(redlock).contains("max number of clients"))
    })
    .await;
    let began = tokio::time::Instant::now();
    while began.elapsed() < FULL {
        let (guard, _) = acquired(&clients[0], "k", SOON).await;
        // On a busy machine its confirmation may come late.
        let _ = guard.release().await;
        tokio::time::sleep(ms(100)).await;
    }

    let count = rejected(full);
    println!("{count} rejected connections in {FULL:?} of {CLIENTS} clients");
    assert!(count <= MOST * CLIENTS, "{count} rejected connections, {} at most", MOST * CLIENTS);
    assert!(count >= CLIENTS * FULL.as_secs() / 4, "{count}: it is asked again and again");
    full.command(&["CONFIG", "SET", "maxclients", "1000"]);
    let up = || clients.iter().all(|redlock| redlock.nodes()[0].health == Health::Up);
    eventually(Duration::from_secs(2) + SLACK, "all are back", up).await;
    assert_eq!(full.connected_clients(), CLIENTS, "one connection each");
}

/// Law: an error that is no answer to HELLO brings no second connection, whatever its words are; one that may be is tried in the
/// old protocol once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_brings_no_second_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let redlock = builder([url]).lazy().build().await.expect("lazy");
    let (mut accepted, began) = (0, tokio::time::Instant::now());
    while let Ok(Ok((mut stream, _))) = tokio::time::timeout_at(began + ms(6_000), listener.accept()).await {
        accepted += 1;
        tokio::spawn(async move {
            let mut bytes = [0; 1_024];
            let _ = stream.read(&mut bytes).await;
            let _ = stream.write_all(b"-ERR out of order today\r\n").await;
            let _ = stream.shutdown().await;
        });
    }
    // 0.3 s, 0.6 s, 1.2 s, then 1.8 s and more, and one for the old protocol: at least and at most.
    assert!((3..=8).contains(&accepted), "{accepted} connections in 6 s");
    assert!(redlock.nodes()[0].health.to_string().contains("out of order"), "{}", redlock.nodes()[0]);
}
