//! Ways in: users, passwords, databases, sockets, old protocols, and rights that are missing.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::time::Duration;

use clients::{SOON, TTL, builder, client, ms};
use futures::future::join_all;
use harness::{Cluster, Server, eventually};
use redis::Value;
use redquorum::{AcquireError, Redlock, ReleaseError};

/// Acquire, extend, release, with nothing left.
async fn round_trip(redlock: &Redlock, key: &str) {
    let mut guard = redlock.try_acquire(key).await.unwrap_or_else(|error| panic!("{error}"));
    guard.extend(TTL).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(guard.is_valid());
    // The contended path as well: it asks by a script.
    let refused = redlock.lock(key).wait(ms(100)).await;
    assert!(refused.as_ref().is_err_and(AcquireError::is_contention), "{refused:?}");
    guard.release().await.unwrap_or_else(|error| panic!("{error}"));
}

/// Gives a user of every server these access rules, and none else.
fn set_user<'a>(cluster: &Cluster, name: &'a str, rules: impl IntoIterator<Item = &'a str>) {
    let command: Vec<_> = ["ACL", "SETUSER", name, "reset"].into_iter().chain(rules).collect();
    cluster.iter().for_each(|server| drop(server.command(&command)));
}

/// The same for the user whose addresses are [`urls_of_user`].
fn user(cluster: &Cluster, rules: &[&str]) {
    set_user(cluster, "app", ["on", ">s3cret"].iter().chain(rules).copied());
}

fn urls_of_user(cluster: &Cluster) -> Vec<String> {
    cluster.iter().map(|server| server.url_with(Some("app"), Some("s3cret"), 0)).collect()
}

/// A server that does not know HELLO is spoken to in the old protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hello_the_old_protocol_serves() {
    let cluster = Cluster::start_with(3, |_| {
        Server::builder().args(["--rename-command", "HELLO", "", "--requirepass", "p@ss/w:rd %"])
    });
    let redlock = client(cluster.iter().map(|server| server.url_with(None, Some("p@ss/w:rd %"), 2))).await;

    round_trip(&redlock, "k").await;

    // One key names the node, for good.
    let is_free = |stats: String| stats.starts_with("keys=1,expires=0");
    let free = || cluster.iter().all(|server| server.info("keyspace", "db2").is_some_and(is_free));
    eventually(SOON, "no key is left", free).await;
    // Nothing tells of a closed connection there, so it is noticed by asking.
    cluster[0].restart();
    clients::all_vote(&redlock).await;
}

/// The core needs SET and scripts, and what the scripts call: nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_few_rights_is_enough() {
    let cluster = Cluster::start(3);
    for rules in [
        &["~*", "+@all", "-client", "-info"][..],
        &["~*", "+@all", "-client", "-info", "-script", "-ping"],
        &["~*", "+set", "+get", "+del", "+pexpire", "+evalsha", "+eval"],
        &["~*", "+set", "+get", "+del", "+pexpire", "+eval", "+hello"],
        &["~app:*", "+@all"],
    ] {
        let mut rules = rules.to_vec();
        if !cluster[0].version().at_least((7, 0), (0, 0)) {
            rules.push("+pttl");
        }
        user(&cluster, &rules);
        let redlock = builder(urls_of_user(&cluster)).prefix("app:").build().await.expect("nodes");
        clients::all_vote(&redlock).await;
        round_trip(&redlock, "k").await;
        eventually(SOON, "no key is left", || clients::keys_left(&cluster) == 0).await;
        cluster.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
    }
}

/// A right that is missing is named, and decides nothing else: the key outside the user's pattern, and the release
/// that the user must not do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named() {
    let cluster = Cluster::start(3);
    user(&cluster, &["~app:*", "+@all"]);
    let redlock = builder(urls_of_user(&cluster)).build().await.expect("nodes");
    let refused = redlock.try_acquire("elsewhere").await;
    let Err(AcquireError::NoQuorum { report, .. }) = &refused else { panic!("{refused:?}") };
    assert!(report.to_string().contains("NOPERM"), "{report}");

    // May take a lock that it cannot release. Who may run no scripts may take none: see no_scripts.rs.
    for (rules, causes) in [
        // From inside a script, in the words of different servers.
        (&["~*", "+@all", "-del", "-delifeq", "-delex"][..], &["can't run this command", "ACL failure"][..]),
    ] {
        let known: Vec<_> = rules.iter().copied().filter(|rule| knows(&cluster[0], rule)).collect();
        user(&cluster, &known);
        cluster.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
        let redlock = builder(urls_of_user(&cluster)).build().await.expect("nodes");
        let guard = redlock.lock("k").ttl(ms(1_000)).await.expect("setting is allowed");

        let released = guard.release().await;

        let Err(ReleaseError::Unconfirmed { report, .. }) = &released else {
            panic!("{rules:?}: {released:?}")
        };
        let text = report.to_string();
        assert!(causes.iter().any(|cause| text.contains(cause)), "{rules:?}: {text}");
        // The TTL frees it.
        cluster.no_key("k", SOON).await;
    }
}

/// Releasing a lock needs no right to its line: a user without the commands of sorted sets and hashes frees it at once, with
/// others standing there; and so where something else stands in the line's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_out_of_reach_keeps_no_lock() {
    let cluster = Cluster::start(3);
    user(&cluster, &["~*", "&*", "+@all", "-@sortedset", "-@hash"]);
    let redlock = builder(urls_of_user(&cluster)).build().await.expect("nodes");
    let others = client(cluster.urls()).await;
    clients::all_vote(&redlock).await;

    let guard = redlock.try_acquire("k").await.expect("free");
    let waits = tokio::spawn(others.lock("k").wait(SOON).into_future());
    let line = "{k}:redquorum:line";
    eventually(SOON, "somebody waits in the queue", || cluster.iter().any(|server| server.exists(line)))
        .await;
    guard.release().await.expect("three nodes confirm");
    waits.await.expect("no panic").expect("it is free").release().await.expect("handed over");
    cluster.no_key("k", SOON).await;

    for foreign in [&["SET", line, "x"][..], &["RPUSH", line, "x"], &["SET", "{k}:redquorum:lives", "x"]] {
        cluster.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
        cluster.iter().for_each(|server| drop(server.command(foreign)));
        let guard = others.try_acquire("k").await.expect("free");
        guard.release().await.unwrap_or_else(|error| panic!("{foreign:?}: {error}"));
        cluster.no_key("k", SOON).await;
    }
    eventually(SOON, "nothing is owed", || redlock.pending_cleanups() + others.pending_cleanups() == 0).await;
}

/// Whether a server knows the command that a rule takes away.
fn knows(server: &Server, rule: &str) -> bool {
    let Some(command) = rule.strip_prefix('-') else { return true };
    let known = server.command(&["COMMAND", "INFO", command]);
    !matches!(&known, redis::Value::Array(infos) if infos.iter().all(|info| *info == redis::Value::Nil))
        && !matches!(&known, redis::Value::Array(infos) if infos.iter().all(
            |info| matches!(info, redis::Value::Array(fields) if fields.is_empty())))
}

/// Scripts that a server forgot are sent again, in whatever they are needed for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_sent_again() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let flush = || cluster.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));

    flush();
    let mut guard = redlock.try_acquire("k").await.expect("acquired");
    guard.extend(2 * TTL).await.expect("extended");
    flush();
    let refused = redlock.lock("k").wait(ms(100)).await;
    flush();
    guard.release().await.expect("released");

    assert!(refused.as_ref().is_err_and(AcquireError::is_contention), "{refused:?}");
    cluster.no_key("k", SOON).await;
    assert_eq!(redlock.pending_cleanups(), 0);
}

/// Unix sockets, database numbers and users are addresses like any other, and one client may mix them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_address_serves() {
    let cluster = Cluster::start(3);
    user(&cluster, &["~*", "+@all"]);
    let nodes = [
        cluster[0].unix_url(),
        cluster[1].url_with(None, None, 5),
        cluster[2].url_with(Some("app"), Some("s3cret"), 0),
    ];
    let redlock = client(nodes).await;

    let guard = redlock.try_acquire("k").await.expect("acquired");
    eventually(SOON, "the first has it", || cluster[0].exists("k")).await;
    eventually(SOON, "the second has it in database 5", || cluster[1].info("keyspace", "db5").is_some())
        .await;
    eventually(SOON, "the third has it", || cluster[2].exists("k")).await;
    assert!(!cluster[1].exists("k"));
    let names = guard.report().to_string();
    assert!(names.contains("unix:") && names.contains("/5"), "{names}");
    guard.release().await.expect("released");
    round_trip(&redlock, "k").await;
}

/// Connection info of the `redis` crate is an address too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_info_is_an_address() {
    use redis::IntoConnectionInfo;
    let cluster = Cluster::start(3);
    let infos = cluster.iter().map(|server| server.url().into_connection_info().expect("a url"));

    round_trip(&client(infos.collect::<Vec<_>>()).await, "k").await;
}

/// The client names its connections, so that an operator finds them on the servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_carry_the_client_name() {
    let cluster = Cluster::start(1);
    let _redlock = builder(cluster.urls()).client_name("billing-7").build().await.expect("nodes");

    let list = || format!("{:?}", cluster[0].command(&["CLIENT", "LIST"]));

    eventually(SOON, "the name shows", || list().contains("name=billing-7")).await;
}

/// The access rules of docs/operations.md, as one user's.
fn documented_rules() -> Vec<String> {
    let text = include_str!("../../docs/operations.md");
    let line = text.lines().find(|line| line.starts_with("user app on ")).expect("the rules");
    line.split_whitespace().skip(2).map(str::to_owned).collect()
}

/// The documented rights are enough for everything, the restart delay and the line included: no server refuses anything,
/// nothing is missing from what the nodes tell, and every command that a script calls is among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let cluster = Cluster::start(3);
    let mut rules = documented_rules();
    rules.extend(
        ["delex", "delifeq"]
            .iter()
            .filter(|name| knows(&cluster[0], &format!("-{name}")))
            .map(|name| format!("+{name}")),
    );
    set_user(&cluster, "app", rules.iter().map(String::as_str));
    let urls = cluster.iter().map(|server| server.url_with(Some("app"), Some("secret"), 0));
    let ttl = ms(1_000);
    let of_user = |nodes: Vec<String>| {
        redquorum::Redlock::builder().nodes(nodes).prefix("app:").ttl(ttl).reply_timeout(ms(200))
    };
    let urls: Vec<_> = urls.collect();
    let (one, other) = tokio::join!(of_user(urls.clone()).build(), of_user(urls).build());
    let (one, other) = (one.expect("nodes"), other.expect("nodes"));

    let mut guard = one.acquire("k").await.expect("the guard ends");
    let (waiter, second) =
        (tokio::spawn(other.lock("k").into_future()), tokio::spawn(other.lock("k").into_future()));
    let waiting = async || one.inspect("k").await.expect("a name").waiting();
    while waiting().await < 2 {
        tokio::time::sleep(ms(5)).await;
    }
    guard.extend(ttl).await.expect("extended");
    guard.release().await.expect("released");
    let mut fenced = one.lock("fenced").fenced().await.expect("with a token");
    fenced.extend(ttl).await.expect("extended");
    fenced.release().await.expect("released");
    let (first, second) = (waiter.await.expect("no panic"), tokio::time::timeout(ms(200), second).await);
    first.expect("handed over").release().await.expect("released");
    drop(second);
    // The next look at each server.
    tokio::time::sleep(ms(5_200)).await;

    for node in one.nodes() {
        assert_eq!(node.vote, redquorum::NodeVote::Counts, "{node}");
        assert!(node.version.is_some() && node.role.is_some() && node.run_id.is_some(), "{node}");
        assert!(
            node.uptime.is_some() && node.eviction_policy.is_some() && node.persistence.is_some(),
            "{node}"
        );
    }
    for server in cluster.iter() {
        let log = format!("{:?}", server.command(&["ACL", "LOG"]));
        assert!(log == "Array([])" || log == "array([])", "{log}");
        assert!(server.exists("app:redquorum:node"));
    }
    let scripts = std::fs::read_dir(harness::top().join("src/node/scripts")).expect("scripts");
    for script in scripts {
        let text = std::fs::read_to_string(script.expect("a file").path()).expect("text");
        for called in text.split("call('").skip(1).filter_map(|rest| rest.split('\'').next()) {
            let rule = format!("+{}", called.to_lowercase());
            assert!(rules.contains(&rule), "{rule}");
        }
    }
}

/// What a lock is made of, without which nothing else works.
const LOCK: &[&str] = &["lock", "fenced", "line", "woken", "waits", "told", "beat"];

/// What does not work without each of the documented rights, as [`probe`] names it; all else does. Servers before 7.0 cannot
/// compare lives by themselves, and need `pttl` as well.
const LOST: [(&str, &[&str]); 34] = [
    ("ping", &[]),
    ("client|setname", &["named"]),
    ("client|tracking", &["told"]),
    ("client|caching", &["told"]),
    ("select", &[]),
    ("info", &["run", "fsync", "beat"]),
    ("time", &["marker", "fenced", "line", "woken", "told"]),
    ("config|get", &["fsync"]),
    ("get", &["lock", "marker", "fenced", "line", "woken", "waits", "told", "beat"]),
    ("set", &["lock", "marker", "fenced", "line", "woken", "waits", "told", "beat"]),
    ("del", LOCK),
    ("eval", &[]),
    ("evalsha", &[]),
    ("script|load", &[]),
    ("subscribe", &["woken"]),
    ("publish", &["woken"]),
    ("exists", &[]),
    ("expire", &["line", "woken"]),
    ("pexpire", LOCK),
    ("pexpireat", &["fenced"]),
    ("pttl", &[]),
    ("hdel", &[]),
    ("hget", &[]),
    ("hincrby", &["beat"]),
    ("hkeys", &[]),
    ("hset", &["line", "woken"]),
    ("zadd", &["line", "woken"]),
    ("zcard", &["line", "woken"]),
    ("zpopmin", &[]),
    ("zrange", &[]),
    ("zrank", &["line", "woken"]),
    ("zrem", &[]),
    ("zrevrange", &["line", "woken"]),
    ("zscore", &["line", "woken"]),
];

/// Everything that [`probe`] looks for.
const EVERYTHING: [&str; 11] =
    ["lock", "fenced", "line", "woken", "waits", "run", "fsync", "marker", "named", "told", "beat"];

/// Whether every node tells a client with a restart delay that its marker is gone, at once, and counts its looks.
async fn watched(cluster: &Cluster, user: &str, prefix: &str) -> (bool, bool) {
    let urls: Vec<_> = cluster.iter().map(|server| server.url_with(Some(user), Some("secret"), 0)).collect();
    let builder = redquorum::Redlock::builder().nodes(urls).prefix(prefix).without_wait_queue();
    let _redlock = builder.connect_timeout(SOON).build().await.expect("nodes");
    let marker = format!("{prefix}redquorum:node");
    let marked = || cluster.iter().all(|server| server.exists(&marker));
    let within = |limit| async move {
        let until = std::time::Instant::now() + limit;
        while std::time::Instant::now() < until && !marked() {
            tokio::time::sleep(ms(5)).await;
        }
        marked()
    };
    // The next regular look is five seconds away.
    let told = within(ms(3_000)).await && {
        cluster.iter().for_each(|server| drop(server.command(&["DEL", &marker])));
        within(ms(1_500)).await
    };
    (told, cluster.iter().all(|server| server.exists(&format!("{prefix}redquorum:beat"))))
}

/// Does what there is to do as a user, under a prefix of its own, and tells what works.
async fn probe(cluster: &Cluster, user: &str, prefix: &str) -> BTreeSet<&'static str> {
    let urls: Vec<_> = cluster.iter().map(|server| server.url_with(Some(user), Some("secret"), 0)).collect();
    let builder = builder(urls).prefix(prefix).client_name(user).reply_timeout(ms(2_000));
    let redlock = builder.connect_timeout(SOON).build().await.expect("nodes");
    tokio::time::timeout(SOON, async {
        while !redlock.nodes().iter().all(|node| node.health == redquorum::Health::Up) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
    .expect("all nodes");
    let mut works = BTreeSet::new();
    let mut note = |what: &'static str, is_so: bool| {
        if is_so {
            works.insert(what);
        }
    };

    let plainly = async {
        let mut guard = redlock.try_acquire("plain").await.ok()?;
        guard.extend(2 * TTL).await.ok()?;
        guard.release().await.ok()
    };
    note("lock", plainly.await.is_some());
    let nodes = redlock.nodes();
    note("run", nodes.iter().all(|node| node.run_id.is_some() && node.version.is_some()));
    let fsync = |node: &redquorum::NodeStatus| format!("{:?}", node.persistence).contains("always");
    note("fsync", nodes.iter().all(fsync));
    note("marker", cluster.iter().all(|server| server.exists(&format!("{prefix}redquorum:node"))));
    let name = format!("name={user} ");
    let named = |server: &Server| format!("{:?}", server.command(&["CLIENT", "LIST"])).contains(&name);
    note("named", cluster.iter().all(named));
    if !works.contains("lock") {
        return works;
    }
    let mut note = |what: &'static str, is_so: bool| {
        if is_so {
            works.insert(what);
        }
    };
    let (told, beat) = watched(cluster, user, &format!("{prefix}watched:")).await;
    note("told", told);
    note("beat", beat);
    let fenced = async {
        let mut guard = redlock.lock("fenced").fenced().without_waiting().await.ok()?;
        guard.extend(2 * TTL).await.ok()?;
        guard.release().await.ok()
    };
    note("fenced", fenced.await.is_some());

    // Two wait. One is handed the lock, then the other; the last finds that the lock was taken from its holder.
    let held = redlock.lock("line").without_waiting().ttl(ms(2_500)).await;
    let wait = || tokio::spawn(redlock.lock("line").ttl(ms(2_500)).wait(SOON).into_future());
    let waiters = [wait(), wait()];
    let name = |end: &str| format!("{prefix}{{{prefix}line}}:redquorum:{end}");
    let in_queue = || cluster.iter().any(|server| server.exists(&name("line")));
    let woken = || cluster.iter().any(|server| is_woken(server, &name("lives")));
    for _ in 0..15 {
        tokio::time::sleep(ms(100)).await;
        if in_queue() && woken() {
            break;
        }
    }
    note("line", in_queue());
    // What the line notes of a client means nothing without a line.
    note("woken", in_queue() && woken());
    if let Ok(held) = held {
        let _ = held.release().await;
    }
    let mut all = true;
    for waiter in waiters {
        match waiter.await.expect("no panic") {
            Ok(guard) => {
                let _ = guard.release().await;
            }
            Err(_) => all = false,
        }
    }
    let taken = redlock.lock("line").wait(SOON).ttl(ms(2_500)).await;
    let last = wait();
    tokio::time::sleep(ms(300)).await;
    cluster.iter().for_each(|server| drop(server.command(&["DEL", &format!("{prefix}line")])));
    all &= match last.await.expect("no panic") {
        Ok(guard) => {
            let _ = guard.release().await;
            true
        }
        Err(_) => false,
    };
    drop(taken);
    note("waits", all);
    works
}

/// Whether a client in the queue expects to be woken, as the line's own notes say.
fn is_woken(server: &Server, lives: &str) -> bool {
    let Value::Array(notes) = server.command(&["HVALS", lives]) else { return false };
    notes.iter().any(|note| matches!(note, Value::BulkString(note) if note.starts_with(b"w")))
}

/// Commands that scripts alone call, but for the question whether they may.
const IN_SCRIPTS: [&str; 16] = [
    "del",
    "exists",
    "expire",
    "hdel",
    "hset",
    "pexpire",
    "pexpireat",
    "pttl",
    "zadd",
    "zcard",
    "zpopmin",
    "zrange",
    "zrank",
    "zrem",
    "zrevrange",
    "zscore",
];

/// The commands that a server refused a user, as its log of refusals names them.
fn refused(server: &Server, user: &str) -> BTreeSet<String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    let Value::Array(entries) = server.command(&["ACL", "LOG", "100000"]) else { panic!("a list") };
    let fields = entries.iter().filter_map(|entry| match entry {
        Value::Array(fields) => Some(fields),
        _ => None,
    });
    let field = |fields: &[Value], name: &str| {
        fields.chunks(2).find(|pair| text(&pair[0]) == name).map(|pair| text(&pair[1])).unwrap_or_default()
    };
    let of_user = fields.filter(|fields| field(fields, "username") == user);
    // Whether scripts may call a command is asked beforehand, which shows no use of it.
    let used = of_user.filter(|fields| {
        field(fields, "context") == "lua" || !IN_SCRIPTS.contains(&&*field(fields, "object").to_lowercase())
    });
    used.map(|fields| field(fields, "object").to_lowercase()).collect()
}

/// Law: the documented rights are the least. Each is really used, and without it what the documentation says is lost, and
/// nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_documented_right_is_needed_for_what_is_documented() {
    let cluster = Cluster::start_with(3, |_| Server::builder().aof().args(["--acllog-max-len", "100000"]));
    let documented = documented_rules();
    let rights: Vec<_> = documented.iter().filter_map(|rule| rule.strip_prefix('+')).collect();
    let probes = [""].iter().chain(&rights).enumerate().map(|(number, right)| {
        let (cluster, documented) = (&cluster, &documented);
        let (user, prefix) = (format!("app{number}"), format!("app{number}:"));
        async move {
            let rules = documented.iter().filter(|rule| rule.strip_prefix('+') != Some(right));
            let rules: Vec<_> = rules.map(|rule| rule.replace("app:", &prefix)).collect();
            set_user(cluster, &user, rules.iter().map(String::as_str));
            (*right, user.clone(), probe(cluster, &user, &prefix).await)
        }
    });
    let probed = join_all(probes).await;
    assert_eq!(probed[0].2, BTreeSet::from(EVERYTHING), "with all of the documented rights");
    let known: BTreeSet<_> = LOST.iter().map(|(right, _)| *right).collect();
    assert_eq!(known, rights.iter().copied().collect(), "the rights of docs/operations.md");
    for (right, user, works) in &probed[1..] {
        let lost: BTreeSet<_> = EVERYTHING.iter().filter(|what| !works.contains(**what)).copied().collect();
        let expected = match *right {
            "pttl" if !cluster[0].version().at_least((7, 0), (0, 0)) => LOCK,
            right => LOST.iter().find(|(name, _)| *name == right).map(|(_, lost)| *lost).unwrap_or_default(),
        };
        assert_eq!(lost, expected.iter().copied().collect(), "without {right}");
        assert!(is_documented(right, &lost), "docs/operations.md tells something else of {right}: {lost:?}");
        // The others of these two are asked for below.
        if !["select", "eval"].contains(right) {
            // Servers before 7.0 know subcommands as one.
            let command = right.split('|').next().unwrap_or(right);
            // The line's commands are asked of the node that keeps it.
            let refused: BTreeSet<_> = cluster.iter().flat_map(|server| refused(server, user)).collect();
            assert!(refused.contains(*right) || refused.contains(command), "{right} is never used");
        }
    }

    let of = |right: &str| rights.iter().position(|name| *name == right).map(|at| format!("app{}", at + 1));
    let (without_select, without_eval) = (of("select").expect("documented"), of("eval").expect("documented"));
    let urls = |user: &str, db: u32| -> Vec<_> {
        cluster.iter().map(|server| server.url_with(Some(user), Some("secret"), db)).collect()
    };
    let elsewhere = builder(urls(&without_select, 2)).connect_timeout(ms(500)).build().await;
    let error = elsewhere.expect_err("another database needs the right").to_string();
    assert!(error.to_lowercase().contains("permission"), "{error}");

    let prefix = format!("{without_eval}:");
    let redlock = builder(urls(&without_eval, 0)).prefix(&prefix).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    let guard = redlock.lock("forgotten").ttl(ms(1_000)).without_waiting().await.expect("free");
    cluster.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
    let released = guard.release().await;
    match &released {
        Ok(()) if cluster[0].version().at_least((8, 4), (8, 1)) => {}
        Err(ReleaseError::Unconfirmed { report, .. }) => {
            assert!(report.to_string().contains("NOPERM"), "{report}");
        }
        other => panic!("{other:?}"),
    }
    assert!(cluster.iter().any(|server| refused(server, &without_eval).contains("eval")));
    let again = builder(urls(&without_eval, 0)).prefix(&prefix).build().await.expect("nodes");
    again.lock("forgotten").wait(SOON).await.expect("the TTL frees it").release().await.expect("released");
}

/// Law: where a line may not be given an end, nothing of it is written: somebody who waited in vain leaves nothing that never
/// ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_given_an_end_is_not_written() {
    let cluster = Cluster::start(3);
    let rules = documented_rules();
    set_user(&cluster, "app", rules.iter().map(String::as_str).filter(|rule| *rule != "+expire"));
    for server in cluster.iter() {
        server.command(&["SET", "app:k", "somebody's", "PX", "60000"]);
    }
    let urls = cluster.iter().map(|server| server.url_with(Some("app"), Some("secret"), 0));
    let redlock = builder(urls).prefix("app:").without_restart_delay().build().await.expect("nodes");

    redlock.lock("k").wait(ms(300)).await.expect_err("somebody has it");

    assert!(cluster.iter().any(|server| refused(server, "app").contains("expire")), "a line was asked for");
    for server in cluster.iter() {
        let endless = server.keys().into_iter().filter(|key| server.pttl(key) == Some(Duration::MAX));
        assert_eq!(endless.filter(|key| key != "app:redquorum:node").collect::<Vec<_>>(), [""; 0]);
    }
}

/// Whether the table of docs/operations.md says that this goes with a right.
fn is_documented(right: &str, lost: &BTreeSet<&str>) -> bool {
    let text = include_str!("../../docs/operations.md").replace("\\|", "/");
    let right = format!("`{}`", right.replace('|', "/"));
    let of_line = ["`z", "`h"].iter().any(|start| right.starts_with(start));
    let (_, table) = text.split_once("| without | what is lost |").expect("the table");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows = rows.take_while(|(left, _)| !left.starts_with("what"));
    let mentioned = |(left, _): &(&str, &str)| {
        left.contains(&right) || (of_line && left.contains("sorted sets and hashes"))
    };
    let losses: Vec<_> = rows.filter(mentioned).map(|(_, loss)| loss).collect();
    let told = |start: &str| losses.iter().any(|loss| loss.contains(start));
    let needs = text.lines().find(|line| line.starts_with("A lock itself needs")).unwrap_or_default();
    let (plain, fenced) = needs.split_once(';').unwrap_or_default();
    if lost.contains("lock") {
        return plain.contains(&right);
    }
    let each = [
        ("fenced", fenced.contains(&right)),
        ("line", told("the line")),
        ("woken", told("wake-ups") || told("the line")),
        ("run", told("the run")),
        ("fsync", told("the run") || told("writes before it answers")),
        ("marker", told("the date of its memory")),
        ("named", told("nothing but convenience")),
        ("told", told("a flush is")),
        ("beat", told("an older state")),
    ];
    // Some have to be told of although nothing here shows what is lost, but for the database's, of which the text tells.
    let all = each.iter().all(|(what, is_told)| !lost.contains(what) || *is_told);
    all && (right == "`select`" || right == "`pexpireat`" || !losses.is_empty())
}

/// Law: what a user may name is as little: without the pattern of keys, that of channels, or the password, it is refused with
/// the right error, or loses what is documented.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_and_password_are_needed() {
    let cluster = Cluster::start(3);
    let allow = |rules: &[String]| {
        for server in cluster.iter() {
            let words = ["ACL", "SETUSER", "app", "reset"].map(str::to_owned);
            server.command(&words.into_iter().chain(rules.iter().cloned()).collect::<Vec<_>>());
        }
    };
    let without = |part: &str| -> Vec<_> {
        documented_rules().into_iter().filter(|rule| !rule.starts_with(part)).collect()
    };
    let built = async || {
        let urls = cluster.iter().map(|server| server.url_with(Some("app"), Some("secret"), 0));
        builder(urls).prefix("app:").connect_timeout(ms(700)).build().await
    };

    allow(&without("~"));
    let refused = built().await.expect("nodes").try_acquire("k").await;
    let Err(AcquireError::NoQuorum { report, .. }) = &refused else { panic!("{refused:?}") };
    assert!(report.to_string().contains("NOPERM"), "{report}");

    allow(&without("&"));
    let redlock = built().await.expect("nodes");
    let guard = redlock.acquire("k").await.expect("free");
    let waits = tokio::spawn(redlock.lock("k").wait(SOON).into_future());
    let line = || cluster.iter().any(|server| server.exists("app:{app:k}:redquorum:line"));
    eventually(SOON, "somebody waits in the queue", line).await;
    assert!(
        !cluster.iter().any(|server| is_woken(server, "app:{app:k}:redquorum:lives")),
        "and looks by itself"
    );
    guard.release().await.expect("released");
    waits.await.expect("no panic").expect("it is free").release().await.expect("released");

    for part in [">", "on"] {
        allow(&without(part));
        let error = built().await.expect_err("nobody comes in").to_string();
        assert!(error.contains("WRONGPASS") || error.contains("authentication failed"), "{part}: {error}");
    }
}
