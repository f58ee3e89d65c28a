//! Nodes that may have forgotten a lock: restarted, flushed, promoted, or one server under two names. Their grants do not
//! count until whatever they forgot has ended.

use std::time::{Duration, Instant};

use clients::{REPLY, SLACK, SOON, ms, timed, votes};
use harness::{Cluster, Server, eventually};
use redquorum::{
    AcquireError, BuildError, IntoNode, NodeVote, Outcome, Persistence, Redlock, RedlockBuilder, Role,
};

/// Short, so that guards are.
const TTL: Duration = Duration::from_secs(1);

/// guard × (1 + drift) + 2 ms.
const GUARD: Duration = Duration::from_millis(1_012);

/// A builder with the restart delay as it is by default: for the client's longest TTL.
fn delayed<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
    Redlock::builder().nodes(nodes).ttl(TTL).reply_timeout(REPLY)
}

async fn client(cluster: &Cluster) -> Redlock {
    delayed(cluster.urls()).build().await.expect("a quorum of nodes")
}

/// Waits until every server has been up for so long that its uptime alone lets it vote.
async fn aged(cluster: &Cluster) {
    eventually(SOON, "the servers have been up for three seconds", || {
        cluster.iter().all(|server| server.uptime() >= ms(3_000))
    })
    .await;
}

/// Waits until the nodes' votes are as wanted, by what the client knows of them.
async fn until(redlock: &Redlock, within: Duration, what: &str, wanted: impl Fn(&[NodeVote]) -> bool) {
    let now = || redlock.nodes().iter().map(|node| node.vote).collect::<Vec<_>>();
    eventually(within, what, || wanted(&now())).await;
}

fn all_count(votes: &[NodeVote]) -> bool {
    votes.iter().all(|vote| *vote == NodeVote::Counts)
}

fn is_young_only(vote: &NodeVote) -> bool {
    matches!(vote, NodeVote::TooYoung { .. })
}

/// What the third client of a broken pair of nodes gets while the first holds the lock: n3 was down, n2 forgot.
async fn second_holder(cluster: &Cluster, rival: impl Fn() -> RedlockBuilder) -> Result<(), AcquireError> {
    cluster[2].kill9();
    let redlock = client(cluster).await;
    let guard = redlock.lock("k").wait(SOON).await.expect("two nodes grant");
    cluster[2].restart();
    cluster[1].wipe();
    let rival = rival().build().await.expect("three nodes");

    let mut result = rival.try_acquire("k").await;
    // As long as the first holds the lock nobody else may, however often he asks.
    while guard.is_valid() && result.is_err() {
        tokio::time::sleep(ms(10)).await;
        let again = rival.try_acquire("k").await;
        if !guard.is_valid() {
            break;
        }
        result = again;
    }
    result.map(|_| ())
}

/// A node that was restarted empty gives no lock to a second holder while the first may hold it, and does so again
/// afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_makes_no_second_holder() {
    let cluster = Cluster::start(3);

    let refused = second_holder(&cluster, || delayed(cluster.urls())).await;

    let error = refused.expect_err("the lock is held");
    assert!(matches!(error, AcquireError::NodesTooYoung { .. } | AcquireError::Held { .. }), "{error}");
    let redlock = client(&cluster).await;
    redlock.lock("k").wait(SOON).await.expect("the guard ends").release().await.expect("released");
}

/// The same without the guard: this is what it is for, and shows that the test above can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_guard_there_would_be_two() {
    let cluster = Cluster::start(3);

    let granted = second_holder(&cluster, || delayed(cluster.urls()).without_restart_delay()).await;

    granted.expect("two holders at once");
}

/// Fresh nodes do not vote until the guard ends; who asks once is told at once, and until when; who may wait sleeps
/// until then, and asks no more often than that takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_sleeps_until_the_guard_ends() {
    let started = Instant::now();
    let cluster = Cluster::start(3);
    let redlock = client(&cluster).await;

    let (once, took) = timed(redlock.try_acquire("k")).await;
    let (short, short_took) = timed(redlock.lock("k").wait(ms(100))).await;
    let early = started.elapsed() < GUARD;
    let held = redlock.lock("k").wait(SOON).await.expect("the guard ends");
    let waited = started.elapsed();

    assert!(waited >= GUARD, "{waited:?}");
    if early {
        for error in [once.expect_err("fresh nodes"), short.expect_err("too short a wait")] {
            let AcquireError::NodesTooYoung { remaining, report, .. } = &error else { panic!("{error}") };
            assert!(remaining.is_some_and(|left| left > Duration::ZERO && left <= GUARD), "{error}");
            let outcome = |outcome: &Outcome| matches!(outcome, Outcome::TooYoung { .. } | Outcome::Pending);
            assert!(report.nodes().iter().all(|node| outcome(&node.outcome)), "{report}");
            assert!(error.to_string().contains("too young until"), "{error}");
        }
        assert!(took < SLACK && short_took < SLACK, "{took:?} and {short_took:?}");
    }
    held.release().await.expect("released");
    cluster.no_key("k", SOON).await;
    for server in cluster.iter() {
        // The marker, three rounds, and a few more where the machine is slow.
        assert!(clients::sets(server) <= 8, "{}", clients::sets(server));
    }
}

/// Nodes that were up long before anybody used them vote at once, for the first client and for the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_long_up_vote_at_once() {
    let cluster = Cluster::start(3);
    aged(&cluster).await;

    let (first, second) = tokio::join!(client(&cluster), client(&cluster));
    first.try_acquire("one").await.expect("acquired").release().await.expect("released");
    second.try_acquire("two").await.expect("acquired").release().await.expect("released");

    until(&first, SOON, "all count", all_count).await;
    let third = client(&cluster).await;
    third.try_acquire("three").await.expect("acquired").release().await.expect("released");
    assert!(all_count(&third.nodes().iter().map(|node| node.vote).collect::<Vec<_>>()));
}

/// A node that lost its marker among others that have theirs lost its memory as well, however long it has been up: a
/// client that never saw it before is not taken in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_nodes_are_not_taken_for_new() {
    let cluster = Cluster::start(3);
    aged(&cluster).await;
    let first = client(&cluster).await;
    until(&first, SOON, "all count", all_count).await;
    cluster[0].command(&["FLUSHALL"]);
    cluster[1].command(&["FLUSHALL"]);

    let fresh = client(&cluster).await;
    let refused = fresh.try_acquire("k").await;

    assert!(matches!(refused, Err(AcquireError::NodesTooYoung { .. })), "{refused:?}");
    until(&fresh, SOON, "all count", all_count).await;
}

/// A FLUSHALL is noticed by the look that every client takes every five seconds; the node is marked and delayed anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_is_noticed_while_connected() {
    let cluster = Cluster::start(3);
    let redlock = client(&cluster).await;
    until(&redlock, SOON, "all count", all_count).await;
    let marker = cluster[0].get("redquorum:node");
    cluster[0].command(&["FLUSHALL"]);

    until(&redlock, SOON, "the first is too young, the others are not", |votes| {
        is_young_only(&votes[0]) && all_count(&votes[1..])
    })
    .await;
    let noticed = Instant::now();
    redlock.try_acquire("k").await.expect("two nodes count").release().await.expect("released");
    until(&redlock, SOON, "all count again", all_count).await;

    assert!(noticed.elapsed() >= GUARD - ms(50), "{:?}", noticed.elapsed());
    assert!(marker.is_some() && cluster[0].get("redquorum:node").is_some_and(|new| Some(new) != marker));
}

/// A node that writes every change to disk before it answers votes at once after a restart, for who was connected before;
/// one that does so every second does not. A newcomer cannot know whether a node has an older state, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_durable_nodes_vote_after_a_restart() {
    let durable = Cluster::start_with(3, |_| Server::builder().aof());
    let lax = Cluster::start_with(3, |_| Server::builder().aof().args(["--appendfsync", "everysec"]));
    let (redlock, other) = (client(&durable).await, client(&lax).await);
    for redlock in [&redlock, &other] {
        until(redlock, SOON, "all count", all_count).await;
    }
    let fsync = |redlock: &Redlock| redlock.nodes()[0].persistence.clone();
    let always = Some(Persistence::AppendOnly { fsync: Some("always".into()) });
    let everysec = Some(Persistence::AppendOnly { fsync: Some("everysec".into()) });
    assert_eq!((fsync(&redlock), fsync(&other)), (always, everysec));

    for (redlock, cluster, remembers) in [(&redlock, &durable, true), (&other, &lax, false)] {
        let runs = || redlock.nodes().iter().map(|node| node.run_id.clone()).collect::<Vec<_>>();
        let before = runs();
        cluster.iter().for_each(Server::kill9);
        cluster.iter().for_each(Server::restart);
        eventually(SOON, "connected to the new runs", || {
            runs().iter().zip(&before).all(|(now, before)| now.is_some() && now != before)
        })
        .await;
        let now: Vec<_> = redlock.nodes().iter().map(|node| node.vote).collect();
        assert!(if remembers { all_count(&now) } else { now.iter().all(is_young_only) }, "{now:?}");

        let fresh = client(cluster).await;
        let refused = fresh.try_acquire("k").await;
        assert!(matches!(refused, Err(AcquireError::NodesTooYoung { .. })), "{refused:?}");
        let acquired = redlock.try_acquire("k").await;
        assert_eq!(acquired.is_ok(), remembers, "{acquired:?}");
    }
}

/// A node that turns out to be a replica does not vote, whether or not it takes writes; once promoted it is too young, and
/// then votes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_do_not_vote_and_promoted_ones_are_guarded() {
    let cluster = Cluster::start(3);
    let redlock = client(&cluster).await;
    until(&redlock, SOON, "all count", all_count).await;

    // The refusal itself makes the client look: sooner than it would have.
    cluster[0].command(&["REPLICAOF", "127.0.0.1", "1"]);
    votes(&redlock).await;
    until(&redlock, ms(2_000) + SLACK, "the first is a replica", |votes| votes[0] == NodeVote::Replica).await;
    assert_eq!(redlock.nodes()[0].role, Some(Role::Replica));

    cluster[0].command(&["CONFIG", "SET", "replica-read-only", "no"]);
    let seen = votes(&redlock).await;
    assert!(matches!(&seen[0], Outcome::NonVoting(why) if why.contains("replica")), "{seen:?}");
    cluster[1].kill9();
    let refused = redlock.try_acquire("k").await;
    assert!(matches!(refused, Err(AcquireError::NoQuorum { .. })), "{refused:?}");
    cluster[1].restart();

    cluster[0].command(&["REPLICAOF", "NO", "ONE"]);
    let promoted = Instant::now();
    clients::until_votes(&redlock, |seen| matches!(seen[0], Outcome::TooYoung { .. })).await;
    until(&redlock, SOON, "all count again", all_count).await;
    assert!(promoted.elapsed() >= GUARD, "{:?}", promoted.elapsed());
}

/// A promotion is noticed by the first grant of a replica, a fenced one as well, and not only by the next regular look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promotions_are_noticed_by_fenced_grants() {
    let cluster = Cluster::start(3);
    let redlock = client(&cluster).await;
    until(&redlock, SOON, "all count", all_count).await;
    cluster[0].command(&["REPLICAOF", "127.0.0.1", "1"]);
    votes(&redlock).await;
    until(&redlock, ms(2_000) + SLACK, "the first is a replica", |votes| votes[0] == NodeVote::Replica).await;

    cluster[0].command(&["REPLICAOF", "NO", "ONE"]);
    let promoted = Instant::now();
    while redlock.nodes()[0].vote == NodeVote::Replica {
        let guard = redlock.lock("k").fenced().await.expect("two nodes grant");
        guard.release().await.expect("two nodes confirm");
        assert!(promoted.elapsed() < ms(2_000) + SLACK, "regular looks are five seconds apart");
        tokio::time::sleep(ms(20)).await;
    }
}

/// A young node counts for an extension as any other does: it is asked whether the key is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarded_nodes_count_for_extensions() {
    let cluster = Cluster::start(3);
    let redlock = delayed(cluster.urls()).ttl(3 * TTL).build().await.expect("nodes");
    let mut guard = redlock.lock("k").wait(SOON).await.expect("the guard ends");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    cluster[0].wipe();
    // Healed as soon as it is connected again.
    let healed = async {
        while !cluster[0].exists("k") {
            guard.extend(3 * TTL).await.expect("two nodes carry it");
            tokio::time::sleep(ms(20)).await;
        }
    };
    tokio::time::timeout(SOON, healed).await.expect("healed");
    assert!(is_young_only(&redlock.nodes()[0].vote));

    cluster[1].kill9();
    guard.extend(3 * TTL).await.expect("a young node and another one carry it");

    assert!(is_young_only(&redlock.nodes()[0].vote), "the test was too slow to show anything");
    guard.release().await.expect("released");
}

/// Two addresses of one server are told by its run or, where that is forbidden, by its marker. The client is built if the rest
/// is a quorum, and the later one does not vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_has_one_vote() {
    let (one, other) = (Server::start(), Server::start());
    for server in [&one, &other] {
        let rules = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-info"];
        server.command(&rules);
    }
    let spelt = |user: Option<&str>| {
        let url = |server: &Server| server.url_with(user, user.map(|_| "pw"), 0);
        [url(&one), url(&other), url(&one).replace("127.0.0.1", "localhost")]
    };
    for user in [None, Some("app")] {
        let redlock = delayed(spelt(user)).build().await.expect("two servers are a quorum of three");
        until(&redlock, SOON, "the later does not vote", |votes| {
            votes[2] == NodeVote::SameServer { earlier: 1 } && votes[1] != votes[2] && votes[0] != votes[2]
        })
        .await;
        let [first, _, third] = spelt(user);
        let built = delayed([first, third]).build().await;
        let error = built.map(|_| ()).expect_err("one server twice");
        assert!(matches!(error, BuildError::DuplicateNode { first: 1, second: 2, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("localhost") && text.contains("127.0.0.1"), "{text}");
    }

    let redlock = delayed(spelt(None)).without_restart_delay().lazy().build().await.expect("lazy");
    let same = |votes: &[NodeVote]| votes[2] == NodeVote::SameServer { earlier: 1 };
    until(&redlock, SOON, "the later does not vote", same).await;
    let guard = redlock.lock("k").wait(SOON).await.expect("two servers grant");
    let counted = guard.report().nodes()[2].outcome.clone();
    assert_ne!(counted, Outcome::Granted);
    drop(guard);
    other.kill9();
    let refused = redlock.try_acquire("k").await;
    assert!(matches!(refused, Err(AcquireError::NoQuorum { .. } | AcquireError::Held { .. })), "{refused:?}");
}

/// What the servers tell of themselves can be read, and reads well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_tell_what_they_are() {
    let cluster = Cluster::start_with(2, |_| {
        Server::builder().args(["--maxmemory-policy", "allkeys-lru", "--requirepass", "s3cret"])
    });
    let mut nodes: Vec<_> = cluster.iter().map(|server| server.url_with(None, Some("s3cret"), 0)).collect();
    nodes.push("redis://127.0.0.1:1".to_owned());
    let redlock = delayed(nodes).without_restart_delay().build().await.expect("two nodes");
    redlock.try_acquire("k").await.expect("acquired").release().await.expect("released");

    let seen = redlock.nodes();

    assert_eq!(seen[0].role, Some(Role::Primary));
    assert_eq!(seen[0].persistence, Some(Persistence::Snapshots));
    assert_eq!(seen[0].eviction_policy.as_deref(), Some("allkeys-lru"));
    assert_eq!(seen[0].run_id.as_deref(), cluster[0].info("server", "run_id").as_deref());
    assert!(seen[0].uptime.is_some_and(|uptime| uptime < SOON), "{:?}", seen[0].uptime);
    assert!(seen[0].round_trip.is_some_and(|took| took > Duration::ZERO && took < SLACK));
    assert!(matches!(&seen[2].health, redquorum::Health::Down(why) if !why.is_empty()), "{:?}", seen[2]);
    let line = seen[0].to_string();
    assert!(line.contains("votes") && line.contains("allkeys-lru") && !line.contains("s3cret"), "{line}");
}
