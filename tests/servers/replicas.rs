//! Nodes that follow each other for a while, and names that lead to another server of the list: they lose their own vote, and
//! cost no other node its vote.

use std::time::Duration;

use clients::{REPLY, SOON, ms};
use harness::{Cluster, Server, eventually};
use redquorum::{NodeVote, Redlock, RedlockBuilder};

/// Short, so that delays are.
const TTL: Duration = Duration::from_secs(2);

fn delayed(urls: impl IntoIterator<Item = String>) -> RedlockBuilder {
    Redlock::builder().nodes(urls).ttl(TTL).reply_timeout(REPLY)
}

/// Waits until all votes are as wanted. Meanwhile these nodes keep theirs, and locks are had.
async fn until(redlock: &Redlock, what: &str, keep: &[usize], wanted: impl Fn(&[NodeVote]) -> bool) {
    let now = || redlock.nodes().iter().map(|node| node.vote).collect::<Vec<_>>();
    let started = std::time::Instant::now();
    while !wanted(&now()) {
        assert!(started.elapsed() < 2 * SOON, "not in time: {what}, but {:?}", now());
        for node in keep {
            assert_eq!(now()[*node], NodeVote::Counts, "n{} {what}: {:?}", node + 1, now());
        }
        if !keep.is_empty() {
            let guard = redlock.lock("k").wait(SOON).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            guard.release().await.expect("released");
        }
        tokio::time::sleep(ms(20)).await;
    }
}

fn all_count(votes: &[NodeVote]) -> bool {
    votes.iter().all(|vote| *vote == NodeVote::Counts)
}

async fn aged(cluster: &Cluster) {
    eventually(TTL + SOON, "the servers are old enough", || {
        cluster.iter().all(|server| server.uptime() >= TTL + ms(2_100))
    })
    .await;
}

/// Law: a node that becomes another's replica loses its own vote alone. Clients can be built meanwhile; after its promotion
/// it gets a marker of its own and counts again, for those who saw it and for those who did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_leaves_its_primary_the_vote() {
    let cluster = Cluster::start(3);
    aged(&cluster).await;
    let marker = |server: &Server| server.get("redquorum:node");
    for seen in [true, false] {
        let redlock = delayed(cluster.urls()).build().await.expect("nodes");
        until(&redlock, "all count", &[], all_count).await;
        // Without anybody who saw it as a replica, its history tells.
        let redlock = seen.then_some(redlock);
        cluster[0].command(&["REPLICAOF", "127.0.0.1", &cluster[1].port().to_string()]);
        eventually(SOON, "in step", || marker(&cluster[0]) == marker(&cluster[1])).await;

        if let Some(redlock) = &redlock {
            let is_replica = |votes: &[NodeVote]| votes[0] == NodeVote::Replica;
            until(redlock, "the replica has no vote", &[1, 2], is_replica).await;
            let new = delayed(cluster.urls()).build().await.expect("two nodes are a quorum");
            until(&new, "as the new client sees it", &[1, 2], is_replica).await;
        }
        cluster[0].command(&["REPLICAOF", "NO", "ONE"]);
        let new = delayed(cluster.urls()).build().await.expect("two nodes are a quorum");
        until(&new, "all count again", &[1, 2], all_count).await;
        if let Some(redlock) = &redlock {
            until(redlock, "all count again for those who saw it", &[1, 2], all_count).await;
        }
        assert_ne!(marker(&cluster[0]), marker(&cluster[1]));
        assert!(marker(&cluster[0]).is_some());
    }
}

/// Law: a name that leads to a server of the list costs its own vote alone. Clients are built as long as the other servers are
/// a quorum, and the error says why not otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_leads_to_another_node_costs_its_own_vote_alone() {
    let cluster = Cluster::start(4);
    aged(&cluster).await;
    let mut urls = cluster.urls();
    urls.push(cluster[3].url().replace("127.0.0.1", "localhost"));
    for _ in 0..10 {
        let redlock = delayed(urls.clone()).build().await.expect("four of five servers");
        let doubled =
            |votes: &[NodeVote]| all_count(&votes[..4]) && votes[4] == NodeVote::SameServer { earlier: 4 };
        until(&redlock, "the later has no vote", &[], doubled).await;
        let guard = redlock.acquire("k").await.expect("free");
        eventually(SOON, "all four carry it", || cluster.values("k").iter().all(Option::is_some)).await;
        guard.release().await.expect("released");
    }

    cluster[0].kill9();
    let redlock = delayed(urls.clone()).build().await.expect("three of five servers");
    redlock.acquire("k").await.expect("free").release().await.expect("released");
    cluster[1].kill9();
    let refused = delayed(urls).build().await.map(|_| ()).expect_err("two of five servers").to_string();
    assert!(refused.contains("connected to 2 of 5") && refused.contains("same server as n4"), "{refused}");
}
