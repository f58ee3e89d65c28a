//! `doctor`: every kind of fault planted on real servers is found, and nothing else is.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::*;
use harness::{Cluster, Mode, Server, ServerBuilder};

/// As `docs/operations.md` wants a node.
fn good() -> ServerBuilder {
    Server::builder().aof().args(["--aof-load-truncated", "no"])
}

fn good_set() -> Cluster {
    Cluster::start_with(3, |_| good())
}

/// Has the restart delay looked at, too. Else it is off: servers that were just started do not vote with it.
const YOUNG: &str = "too-young";

/// What a run of the doctor found: its code, and the names of the faults.
fn examined(urls: &[String], args: &[&str]) -> (i32, BTreeSet<String>, Value) {
    let mut command = bare(&["--json", "doctor"]);
    if !args.contains(&"--clocks") {
        command.args(["--clocks", "100ms"]);
    }
    let args: Vec<_> = match args {
        [YOUNG, args @ ..] => args.to_vec(),
        args => [&["--no-restart-delay"], args].concat(),
    };
    command.args(args).env("REDQUORUM_NODES", urls.join(","));
    let output = done(command);
    let value: Value =
        serde_json::from_str(&out(&output)).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let findings = value["findings"].as_array().expect("findings").clone();
    for finding in &findings {
        for field in ["what", "why", "mend"] {
            assert!(finding[field].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
    }
    let names = findings.iter().filter_map(|finding| Some(finding["fault"].as_str()?.to_owned()));
    (code(&output), names.collect(), value)
}

/// Asserts what is found, and the code for it.
#[track_caller]
fn assert_found(urls: &[String], args: &[&str], code: i32, faults: &[&str]) {
    let (ended, found, value) = examined(urls, args);
    let expected: BTreeSet<_> = faults.iter().map(|fault| (*fault).to_owned()).collect();
    assert_eq!((ended, found), (code, expected), "{value:#}");
}

/// A good set is all well: no false alarm, not when it has been used, and not with the guard on, once that is over.
#[test]
fn a_good_set_has_nothing_wrong() {
    let cluster = good_set();
    assert_found(&cluster.urls(), &[], 0, &[]);
    assert_eq!(code(&done(tool(&cluster, &["run", "--fenced", "job", "--", "true"]))), 0);
    assert_found(&cluster.urls(), &["--ttl", "5s"], 0, &[]);
    eventually("the guard is over", || examined(&cluster.urls(), &[YOUNG, "--ttl", "2s"]).0 == 0);
    for server in cluster.iter() {
        assert!(server.keys().iter().all(|key| !key.contains("doctor")), "{:?}", server.keys());
    }
}

/// Settings of a running node that endanger locks, or cost votes.
#[test]
fn wrong_settings_are_found() {
    let cluster = good_set();
    let urls = cluster.urls();
    let used: u64 =
        cluster[1].info("memory", "used_memory").and_then(|used| used.parse().ok()).expect("a number");
    let nearly = (used + used / 20).to_string();
    for (settings, code, fault) in [
        (&[("maxmemory-policy", "allkeys-lru", "noeviction")][..], 1, "eviction-armed"),
        (&[("maxmemory", "100mb", "0"), ("maxmemory-policy", "volatile-ttl", "noeviction")], 2, "eviction"),
        (&[("maxmemory", &nearly, "0")], 2, "memory-full"),
        (&[("min-replicas-to-write", "1", "0")], 2, "needs-replicas"),
        (&[("appendfsync", "everysec", "always")], 1, "fsync"),
        (&[("no-appendfsync-on-rewrite", "yes", "no")], 1, "fsync-on-rewrite"),
        (&[("timeout", "2", "0")], 1, "idle-timeout"),
        (&[("aof-load-truncated", "yes", "no")], 0, "aof-load-truncated"),
    ] {
        for (name, wrong, _) in settings {
            cluster[1].command(&["CONFIG", "SET", name, wrong]);
        }
        assert_found(&urls, &[], code, &[fault]);
        for (name, _, right) in settings {
            cluster[1].command(&["CONFIG", "SET", name, right]);
        }
    }
    assert_found(&urls, &[], 0, &[]);
}

/// What the doctor says mends a fault does mend it.
#[test]
fn what_is_said_to_mend_it_does() {
    let cluster = good_set();
    cluster[2].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (_, _, value) = examined(&cluster.urls(), &[]);
    let mend = value["findings"][0]["mend"].as_str().expect("a command").to_owned();
    let (first, _) = mend.split_once(" && ").expect("two commands");
    let (server, command) = first.split_once(" CONFIG ").expect("a setting");
    assert_eq!(server, format!("redis-cli -h 127.0.0.1 -p {}", cluster[2].port()));
    let words: Vec<_> = std::iter::once("CONFIG").chain(command.split_whitespace()).collect();
    cluster[2].command(&words);
    assert_found(&cluster.urls(), &[], 0, &[]);
}

/// Nodes that are away, let nobody in, or are too few.
#[test]
fn nodes_that_cannot_be_asked_are_found() {
    let cluster = good_set();
    let locked = good().args(["--requirepass", "s3cret"]).start();
    let with = |url: String| vec![cluster[0].url(), cluster[1].url(), url];
    assert_found(&with(locked.url()), &[], 2, &["denied"]);
    assert_found(&with(locked.url_with(None, Some("wrong"), 0)), &[], 2, &["denied"]);
    assert_found(&with(locked.url_with(None, Some("s3cret"), 0)), &[], 0, &[]);

    cluster[2].kill9();
    assert_found(&cluster.urls(), &[], 2, &["unreachable"]);
    cluster[1].kill9();
    assert_found(&cluster.urls(), &[], 2, &["unreachable", "no-majority"]);
}

/// A node that does not answer, though its port is open, is found in a bounded time.
#[test]
fn a_silent_node_is_found() {
    let cluster = good_set();
    cluster[2].freeze();
    let began = Instant::now();
    assert_found(&cluster.urls(), &[], 2, &["unreachable"]);
    assert!(began.elapsed() < Duration::from_secs(15));
    cluster[2].thaw();
}

/// Nodes that are not what a lock needs: the same one twice, a copy, a replica, in cluster mode, too few, an even number.
#[test]
fn sets_that_are_none_are_found() {
    let cluster = good_set();
    let again = format!("redis://localhost:{}", cluster[0].port());
    let (first, second) = (cluster[0].url(), cluster[1].url());
    assert_found(&[first.clone(), second.clone(), again], &[], 2, &["same-server"]);
    assert_found(&[first.clone(), second.clone(), format!("{first}/3")], &[], 2, &["same-server"]);
    assert_found(std::slice::from_ref(&first), &[], 1, &["one-node"]);
    let fourth = good().start();
    assert_found(&[cluster.urls(), vec![fourth.url()]].concat(), &[], 1, &["even"]);

    let marker = cluster[0].get("redquorum:node").expect("a marker");
    let own = cluster[2].get("redquorum:node").expect("a marker");
    cluster[2].command(&["SET", "redquorum:node", &marker]);
    assert_found(&cluster.urls(), &[], 2, &["copied-data"]);
    cluster[2].command(&["SET", "redquorum:node", &own]);

    let clustered = Server::builder().aof().args(["--cluster-enabled", "yes"]).start();
    let (_, found, value) = examined(&[first, second, clustered.url()], &[]);
    assert!(found.contains("cluster"), "{value:#}");

    let port = cluster[0].port().to_string();
    cluster[2].command(&["REPLICAOF", "127.0.0.1", &port]);
    eventually("it has a replica", || {
        cluster[0].info("replication", "connected_slaves").as_deref() == Some("1")
    });
    eventually("it is in step", || {
        cluster[2].info("replication", "master_link_status").as_deref() == Some("up")
    });
    // A replica is a copy, too.
    assert_found(&cluster.urls(), &[], 2, &["replica", "has-replicas", "copied-data"]);
}

/// A node that forgets, and one that has just forgotten.
#[test]
fn forgetful_nodes_are_found() {
    let cluster = Cluster::start(3);
    assert_found(&cluster.urls(), &[], 1, &["no-append-only-file"]);
    assert_found(&cluster.urls(), &[YOUNG], 2, &["no-append-only-file", "too-young", "no-majority"]);
}

/// The finding of a name.
#[track_caller]
fn finding<'a>(value: &'a Value, fault: &str) -> &'a Value {
    let findings = value["findings"].as_array().expect("findings");
    findings.iter().find(|finding| finding["fault"] == fault).unwrap_or_else(|| panic!("{value:#}"))
}

/// Nodes that do not vote yet are no majority, and it is told when they will be; nobody is told to look for a loss where
/// there was none.
#[test]
fn fresh_nodes_are_no_majority_yet() {
    let cluster = good_set();
    let (code, found, value) = examined(&cluster.urls(), &[YOUNG]);
    assert_eq!(code, 2, "{value:#}");
    assert_eq!(found, BTreeSet::from(["too-young", "no-majority"].map(str::to_owned)), "{value:#}");
    let majority = finding(&value, "no-majority");
    let what = majority["what"].as_str().expect("text");
    assert!(what.starts_with("0 of 3 nodes vote now, 2 are needed: enough do in"), "{what}");
    for mend in
        [majority, finding(&value, "too-young")].map(|finding| finding["mend"].as_str().expect("text"))
    {
        assert!(mend.contains("just set up") && mend.contains("--no-restart-delay"), "{mend}");
    }
}

/// One server has one vote, under however many addresses: what is left may be no majority.
#[test]
fn one_server_twice_may_be_no_majority() {
    let cluster = good_set();
    let (first, port) = (cluster[0].url(), cluster[0].port());
    let again = format!("redis://localhost:{port}");
    assert_found(&[first.clone(), again, format!("{first}/3")], &[], 2, &["same-server", "no-majority"]);
    assert_found(
        &[first, format!("redis://localhost:{port}")],
        &[],
        2,
        &["same-server", "no-majority", "even"],
    );
}

/// A node whose disk cannot be written to refuses every lock.
#[test]
fn a_stopped_writer_is_found() {
    let cluster = good_set();
    let redis::Value::Array(told) = cluster[1].command(&["CONFIG", "GET", "dir"]) else {
        panic!("no setting")
    };
    let dir: String = redis::from_redis_value(told.into_iter().nth(1).expect("a value")).expect("a path");
    std::fs::remove_dir_all(dir).expect("remove it");
    cluster[1].command(&["CONFIG", "SET", "save", "3600 1"]);
    let _ = cluster[1].try_command(&["BGSAVE"]);
    eventually("the snapshot fails", || {
        cluster[1].info("persistence", "rdb_last_bgsave_status").as_deref() == Some("err")
    });
    assert_found(&cluster.urls(), &[], 2, &["write-stopped"]);
}

/// A server that was promoted from a replica is named, also once it has no primary.
#[test]
fn a_promoted_replica_is_found() {
    let (cluster, primary) = (good_set(), good().start());
    cluster[2].command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually("it is in step", || {
        cluster[2].info("replication", "master_link_status").as_deref() == Some("up")
    });
    cluster[2].command(&["REPLICAOF", "NO", "ONE"]);
    assert_found(&cluster.urls(), &[], 1, &["promoted"]);
}

/// An address that leads to two servers in turn is named, and is no vote.
#[test]
fn several_servers_behind_one_address_are_found() {
    let (cluster, other) = (good_set(), good().start());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("redis://{}", listener.local_addr().expect("bound"));
    let ports = [cluster[2].port(), other.port()];
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", ports[number / 2 % 2])) else { return };
            for (mut from, mut to) in [(&client, &server), (&server, &client)]
                .map(|(from, to)| (from.try_clone().expect("a handle"), to.try_clone().expect("a handle")))
            {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let (code, found, value) = examined(&[cluster[0].url(), cluster[1].url(), address], &[]);
    assert!(code == 2 && found.contains("several-servers"), "{value:#}");
}

/// A user that may not ask to be told of changes hears of a flush later, which is said.
#[test]
fn refused_tracking_is_found() {
    let cluster = good_set();
    cluster[1].command(&[
        "ACL",
        "SETUSER",
        "app",
        "reset",
        "on",
        ">s3cret",
        "~*",
        "&*",
        "+@all",
        "-client",
        "+client|setname",
    ]);
    let urls = [cluster[0].url(), cluster[1].url_with(Some("app"), Some("s3cret"), 0), cluster[2].url()];
    assert_found(&urls, &[], 1, &["no-tracking"]);
}

/// Rights that are missing are told apart: those without which there is no lock, and the others.
#[test]
fn missing_rights_are_found() {
    let cluster = good_set();
    let as_user = |rules: &[&str]| {
        let command =
            [&["ACL", "SETUSER", "app", "reset", "on", ">s3cret", "~*", "&*", "+@all"], rules].concat();
        cluster[1].command(&command);
        vec![cluster[0].url(), cluster[1].url_with(Some("app"), Some("s3cret"), 0), cluster[2].url()]
    };
    assert_found(&as_user(&[]), &[], 0, &[]);
    assert_found(&as_user(&["-pexpire"]), &[], 2, &["lock-command-refused"]);
    assert_found(&as_user(&["-publish"]), &[], 1, &["line-command-refused"]);
    assert_found(&as_user(&["resetchannels"]), &[], 1, &["line-command-refused"]);
    assert_found(&as_user(&["resetkeys", "~other:*"]), &["--prefix", "other:"], 0, &[]);
    let (code, found, value) = examined(&as_user(&["resetkeys", "~other:*"]), &[]);
    assert!(code == 2 && found.contains("lock-command-refused"), "{value:#}");
}

/// Commands that were renamed away.
#[test]
fn renamed_commands_are_found() {
    let renamed = |name: &'static str| good().args(["--rename-command", name, ""]).start();
    let (cluster, hello, publish) = (good_set(), renamed("HELLO"), renamed("PUBLISH"));
    let with = |server: &Server| vec![cluster[0].url(), cluster[1].url(), server.url()];
    assert_found(&with(&hello), &[], 1, &["no-wake-up"]);
    assert_found(&with(&publish), &[], 1, &["line-command-refused"]);
}

/// A node that is nearly out of connections.
#[test]
fn few_clients_left_are_found() {
    let cluster = good_set();
    cluster[1].command(&["CONFIG", "SET", "maxclients", "12"]);
    let busy: Vec<_> =
        (0..8).map(|_| TcpStream::connect(("127.0.0.1", cluster[1].port())).expect("connect")).collect();
    eventually("all are accepted", || cluster[1].connected_clients() >= 8);
    assert_found(&cluster.urls(), &[], 1, &["few-clients-left"]);
    drop(busy);
}

/// Answers that take long, for one node and for the quorum.
#[test]
fn slow_answers_are_found() {
    let cluster = good_set();
    let proxies = cluster.proxies();
    let urls: Vec<_> = proxies.iter().map(harness::Proxy::url).collect();
    proxies[2].replies(Mode::Delay(Duration::from_millis(300)));
    assert_found(&urls, &[], 2, &["reply-timeout"]);
    proxies[1].replies(Mode::Delay(Duration::from_millis(300)));
    assert_found(&urls, &["--reply-timeout", "3s"], 1, &["slow"]);
}

/// A clock that is off, one that runs at another rate, and this machine's own.
#[test]
fn wrong_clocks_are_found() {
    let cluster = good_set();
    // The markers are made by nodes whose clocks are right.
    assert_found(&cluster.urls(), &[], 0, &[]);
    let ahead =
        |index: usize, seconds: f64, rate: f64| ClockProxy::start(&cluster[index], seconds, rate).url();
    let with = |url: String| vec![cluster[0].url(), cluster[1].url(), url];
    assert_found(&with(ahead(2, 30.0, 0.0)), &[], 1, &["clock-offset"]);
    assert_found(&with(ahead(2, -30.0, 0.0)), &[], 1, &["clock-offset"]);
    let fast = with(ahead(2, 0.0, 0.2));
    assert_found(&fast, &["--clocks", "1s"], 2, &["clock-rate"]);
    let all: Vec<_> = (0..3).map(|index| ahead(index, -60.0, 0.0)).collect();
    assert_found(&all, &[], 1, &["client-clock"]);
    let two = [cluster[0].url(), ahead(1, -60.0, 0.0), ahead(2, -60.0, 0.0)];
    assert_found(&two, &[], 2, &["fencing-clocks", "clock-offset", "client-clock"]);
}

/// The list names every kind, for people and machines.
#[test]
fn the_list_has_every_kind() {
    let shown = out(&done(bare(&["doctor", "--list"])));
    let listed: Value =
        serde_json::from_str(&out(&done(bare(&["--json", "doctor", "--list"])))).expect("JSON");
    let names: Vec<_> =
        listed.as_array().expect("a list").iter().filter_map(|fault| fault["fault"].as_str()).collect();
    assert!(names.len() >= 15, "{names:?}");
    assert!(names.iter().all(|name| shown.contains(name)));
}

/// A proxy that changes what a server says of the time, in answers to TIME, and nothing else.
struct ClockProxy {
    port: u16,
}

impl ClockProxy {
    /// It lives as long as the test process.
    fn start(server: &Server, ahead: f64, rate: f64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, target, began) =
            (listener.local_addr().expect("bound").port(), server.port(), Instant::now());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", target)) else { return };
                let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
                let (mut to, mut from) =
                    (upstream.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                thread::spawn(move || {
                    let (mut client, mut upstream, mut bytes) = (client, upstream, [0; 65_536]);
                    while let Ok(length @ 1..) = upstream.read(&mut bytes) {
                        let off = ahead + began.elapsed().as_secs_f64() * rate;
                        if client.write_all(&shifted(&bytes[..length], off)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

/// An answer to TIME is two strings, of which the first has ten digits.
fn shifted(bytes: &[u8], off: f64) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let time = text.strip_prefix("*2\r\n$10\r\n").and_then(|rest| {
        let mut lines = rest.split("\r\n");
        let (seconds, _, micros) = (lines.next()?, lines.next()?, lines.next()?);
        Some(seconds.parse::<f64>().ok()? + micros.parse::<f64>().ok()? / 1e6)
    });
    let Some(time) = time else { return bytes.to_vec() };
    let micros = ((time + off) * 1e6) as u64;
    let (seconds, rest) = (micros / 1_000_000, (micros % 1_000_000).to_string());
    format!("*2\r\n$10\r\n{seconds}\r\n${}\r\n{rest}\r\n", rest.len()).into_bytes()
}
