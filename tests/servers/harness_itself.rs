//! The harness itself: each fault does what it says, to a real server, seen by a plain client.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Cluster, Mode, Proxy, ReplyFramer, Server, eventually};
use redis::{RedisError, RedisResult};

/// Longer than any step here takes on a busy machine: it bounds a failing test, not a passing one.
const SOON: Duration = Duration::from_secs(10);

/// How long a client waits where no answer is to come.
const SILENCE: Duration = Duration::from_millis(60);

fn connect(url: &str) -> redis::Connection {
    let client = redis::Client::open(url).expect("a well-formed url");
    let connection = client.get_connection_with_timeout(SOON).expect("connect");
    connection.set_read_timeout(Some(SOON)).expect("set a timeout");
    connection
}

fn set(connection: &mut redis::Connection, key: &str) -> RedisResult<()> {
    redis::cmd("SET").arg(key).arg("value").exec(connection)
}

fn ping(connection: &mut redis::Connection) -> RedisResult<String> {
    redis::cmd("PING").query(connection)
}

/// A connection that speaks bytes, where it matters when they come and how it ends.
fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    stream.set_read_timeout(Some(SOON)).expect("set a timeout");
    stream.set_nodelay(true).expect("switch Nagle off");
    stream
}

fn ask(stream: &mut TcpStream, request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).expect("send");
    expect(stream, reply);
}

fn expect(stream: &mut TcpStream, reply: &str) {
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).expect("a reply");
    assert_eq!(String::from_utf8_lossy(&got), reply);
}

/// Nothing comes for a while, and the connection stays open.
fn expect_silence(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SILENCE)).expect("set a timeout");
    let error = stream.read(&mut [0]).expect_err("no byte and no end");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    stream.set_read_timeout(Some(SOON)).expect("set a timeout");
}

fn expect_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

fn is_refused(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn is_timeout<T>(answer: &RedisResult<T>) -> bool {
    answer.as_ref().is_err_and(RedisError::is_timeout)
}

// Servers.

/// Five servers are independent, and each answers at its own url.
#[test]
fn servers_of_a_cluster_are_independent() {
    let cluster = Cluster::start(5);

    for (i, url) in cluster.urls().iter().enumerate() {
        set(&mut connect(url), &format!("key-{i}")).expect("set");
    }

    for (i, server) in cluster.iter().enumerate() {
        assert_eq!(server.keys(), [format!("key-{i}")]);
    }
}

/// What the harness reads is what the server holds.
#[test]
fn a_server_shows_what_it_holds() {
    let server = Server::start();
    server.command(&["SET", "lease", "owner", "PX", "60000"]);
    server.command(&["SET", "marker", "id"]);

    assert_eq!(server.get("lease").as_deref(), Some("owner"));
    assert_eq!(server.get("absent"), None);
    let left = server.pttl("lease").expect("a key");
    assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60), "{left:?}");
    assert_eq!(server.pttl("marker"), Some(Duration::MAX));
    assert_eq!(server.pttl("absent"), None);
    assert!(server.exists("lease") && !server.exists("absent"));
    assert_eq!(server.dbsize(), 2);

    let error = server.try_command(&["INCR", "lease"]).expect_err("not a number");
    assert!(error.to_string().contains("not an integer"), "{error}");
    server.command(&[&b"SET"[..], b"\0\xff\r\n", b"binary"]);
    assert_eq!(server.dbsize(), 3);
}

/// Connections and commands of a client are counted, those of the harness are known.
#[tokio::test]
async fn a_server_counts_connections_and_commands() {
    let server = Server::start();
    let (received, calls) = (server.total_connections_received(), server.commandstats("SET"));
    assert_eq!((server.connected_clients(), calls), (0, 0));

    let mut client = connect(&server.url());
    set(&mut client, "a").expect("set");
    set(&mut client, "b").expect("set");

    assert_eq!(server.connected_clients(), 1);
    assert_eq!(server.total_connections_received(), received + 1);
    assert_eq!(server.commandstats("set"), 2);
    drop(client);
    eventually(SOON, "the client is gone", || server.connected_clients() == 0).await;
}

/// A test can take all users and connections away without locking the harness out.
#[test]
fn the_harness_gets_in_whatever_a_test_forbids() {
    let server = Server::builder().args(["--requirepass", "p@ss:w/rd %"]).start();

    let refused = redis::Client::open(server.url()).and_then(|client| client.get_connection());
    assert!(refused.is_err() || ping(&mut refused.unwrap()).is_err());
    let mut client = connect(&server.url_with(None, Some("p@ss:w/rd %"), 3));
    set(&mut client, "in-db-3").expect("set");

    server.command(&["ACL", "SETUSER", "us/er", "on", ">s?cret", "~*", "+@all"]);
    ping(&mut connect(&server.url_with(Some("us/er"), Some("s?cret"), 0))).expect("ping");
    server.command(&["ACL", "SETUSER", "default", "off"]);
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"]);

    assert_eq!(server.dbsize(), 0, "the key is in another database");
    assert_eq!(server.info("keyspace", "db3").map(|stats| stats.starts_with("keys=1")), Some(true));
}

/// A server also listens on a Unix socket.
#[test]
fn a_server_answers_on_its_unix_socket() {
    let server = Server::start();

    set(&mut connect(&server.unix_url()), "key").expect("set");

    assert!(server.exists("key"));
}

/// A restart keeps port and arguments, and loses memory; with the append-only file it keeps memory
/// too, also over a crash; a wipe loses it in any case.
#[test]
fn memory_survives_only_where_it_is_to() {
    let cluster =
        Cluster::start_with(2, |i| if i == 0 { Server::builder() } else { Server::builder().aof() });
    let (forgetful, durable) = (&cluster[0], &cluster[1]);
    let before = (forgetful.url(), forgetful.pid());
    for server in cluster.iter() {
        server.command(&["SET", "key", "value"]);
    }

    forgetful.restart();
    assert_eq!(forgetful.url(), before.0);
    assert_ne!(forgetful.pid(), before.1);
    assert_eq!(forgetful.dbsize(), 0);

    durable.restart();
    assert!(durable.exists("key"));
    durable.kill9();
    assert!(!durable.is_running());
    assert!(is_refused(durable.port()));
    durable.restart();
    assert!(durable.exists("key"));
    durable.wipe();
    assert_eq!(durable.dbsize(), 0);
    ping(&mut connect(&durable.url())).expect("ping");
}

/// While a server is down its port is given to nobody else.
#[test]
fn the_port_of_a_server_that_is_down_stays_reserved() {
    let server = Server::start();
    server.stop();

    let others: Vec<_> =
        (0..200).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("bind")).collect();
    let taken = others.iter().any(|other| other.local_addr().expect("an address").port() == server.port());

    assert!(!taken);
    server.restart();
    ping(&mut connect(&server.url())).expect("ping");
}

/// A command that reached a frozen server is executed after the thaw, though its client gave up long
/// before and closed the connection.
#[tokio::test]
async fn a_frozen_server_executes_late() {
    let server = Server::start();
    let mut client = connect(&server.url());
    client.set_read_timeout(Some(SILENCE)).expect("set a timeout");

    server.freeze();
    let answer = set(&mut client, "late");
    drop(client);
    let accepted_by_the_kernel = dial(server.port());
    server.thaw();

    assert!(is_timeout(&answer), "{answer:?}");
    eventually(SOON, "the late command is executed", || server.exists("late")).await;
    drop(accepted_by_the_kernel);
    for _ in 0..20 {
        server.freeze();
        server.thaw();
    }
    server.freeze();
    server.kill9();
    server.restart();
    assert_eq!(server.dbsize(), 0);
}

/// The version tells Redis from Valkey and old from new.
#[test]
fn a_server_tells_its_version() {
    let version = Server::start().version();

    assert!(version.at_least((6, 2), (7, 2)), "{version:?}");
    assert!(!version.at_least((99, 0), (99, 0)), "{version:?}");
}

/// A server with TLS speaks TLS alone, with a certificate that its authority vouches for.
#[test]
fn a_server_speaks_tls() {
    if !Server::supports_tls() {
        eprintln!("skipped: this server program was built without TLS");
        return;
    }
    let server = Server::builder().tls().start();
    let ca = std::fs::read(server.ca()).expect("the authority's certificate");
    let trusting = |root_cert| redis::TlsCertificates { client_tls: None, root_cert };
    let ping_with = |url: &str, root_cert| {
        let client = redis::Client::build_with_tls(url, trusting(root_cert))?;
        ping(&mut client.get_connection_with_timeout(SOON)?)
    };

    assert_eq!(ping_with(&server.url(), Some(ca.clone())).expect("ping over TLS"), "PONG");
    assert!(ping_with(&server.url(), None).is_err(), "nobody else trusts this authority");
    let proxy = Proxy::start(&server);
    assert_eq!(ping_with(&proxy.url(), Some(ca)).expect("ping over TLS through a proxy"), "PONG");
    let plain = redis::Client::open(server.url().replace("rediss:", "redis:")).expect("a url");
    assert!(plain.get_connection_with_timeout(SOON).and_then(|mut it| ping(&mut it)).is_err());
}

/// Servers end with the test process, however that ends and whatever state they are in.
#[tokio::test]
async fn servers_die_with_the_test_process() {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "harness_itself::holds_servers_until_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("run this program again");
    let lines = BufReader::new(child.stdout.take().expect("asked for")).lines();
    let ports: Vec<u16> = lines
        .map_while(Result::ok)
        .filter_map(|line| line.split_once("port=")?.1.parse().ok())
        .take(2)
        .collect();
    assert_eq!(ports.len(), 2);
    assert!(!is_refused(ports[0]));

    child.kill().expect("kill the child");
    child.wait().expect("wait for the child");

    eventually(SOON, "both servers are gone", || ports.iter().all(|&port| is_refused(port))).await;
}

/// Not a test: what `servers_die_with_the_test_process` runs and kills.
#[test]
#[ignore = "the child process of another test"]
fn holds_servers_until_killed() {
    let cluster = Cluster::start(2);
    cluster[1].freeze();
    for server in cluster.iter() {
        println!("\nport={}", server.port());
    }
    thread::sleep(SOON * 3);
}

/// `no_key` waits for the last node, and names what is left where it never comes true.
#[tokio::test]
async fn no_key_waits_and_tells() {
    let cluster = Cluster::start(3);
    cluster[2].command(&["SET", "key", "owner", "PX", "100"]);
    cluster[0].kill9();

    cluster.no_key("key", SOON).await;

    cluster[1].command(&["SET", "key", "owner"]);
    let cluster = std::sync::Arc::new(cluster);
    let failing = tokio::spawn({
        let cluster = std::sync::Arc::clone(&cluster);
        async move { cluster.no_key("key", Duration::from_millis(20)).await }
    });
    let panic = failing.await.expect_err("the key stays").into_panic();
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains(r#"[None, Some("owner"), None]"#), "{message}");
}

// The proxy.

/// A copy of a server's directory brings its older state back, also one that was made while it was writing.
#[test]
fn a_copy_brings_an_older_state_back() {
    let server = Server::builder().aof().start();
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    server.command(&["SET", "before", "value"]);
    server.back_up(&copy);
    server.command(&["SET", "after", "value"]);

    server.restore(&copy);

    assert_eq!(server.keys(), ["before"]);
}

/// A proxy leads new connections elsewhere when told, and leaves open ones where they are.
#[tokio::test]
async fn a_proxy_leads_to_another_server() {
    let (one, other) = (Server::start(), Server::start());
    other.command(&["SET", "key", "other"]);
    let proxy = Proxy::start(&one);
    let mut open = dial(proxy.port());
    ask(&mut open, "EXISTS key\r\n", ":0\r\n");

    proxy.leads_to(&other);

    ask(&mut dial(proxy.port()), "EXISTS key\r\n", ":1\r\n");
    ask(&mut open, "EXISTS key\r\n", ":0\r\n");
}

/// A proxy that was told nothing changes nothing, and counts.
#[tokio::test]
async fn a_proxy_passes() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());

    ask(&mut client, "PING\r\n", "+PONG\r\n");
    ask(&mut client, "PING\r\n", "+PONG\r\n");

    let traffic = proxy.traffic();
    assert_eq!((traffic.accepted, traffic.open), (1, 1));
    assert_eq!((traffic.requests.received, traffic.requests.forwarded), (12, 12));
    assert_eq!((traffic.replies.received, traffic.replies.forwarded), (14, 14));
    drop(client);
    eventually(SOON, "closed on both sides", || server.connected_clients() == 0 && proxy.traffic().open == 0)
        .await;
}

/// Megabytes pass unharmed both ways, also late.
#[test]
fn a_proxy_passes_large_values() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let large = "0123456789abcdef".repeat(256 * 1024);
    proxy.requests(Mode::Delay(Duration::from_millis(10)));

    let mut client = connect(&proxy.url());
    redis::cmd("SET").arg("key").arg(&large).exec(&mut client).expect("set");
    let echoed: String = redis::cmd("GET").arg("key").query(&mut client).expect("get");

    assert!(echoed == large);
}

/// A delay holds requests or replies up by its length, once per round trip and not once per request.
#[test]
fn a_proxy_delays_without_narrowing() {
    const DELAY: Duration = Duration::from_millis(50);
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    ask(&mut client, "PING\r\n", "+PONG\r\n");

    for delay in [Proxy::requests, Proxy::replies] {
        delay(&proxy, Mode::Delay(DELAY));
        let start = Instant::now();
        for _ in 0..20 {
            client.write_all(b"PING\r\n").expect("send");
            thread::sleep(Duration::from_millis(1));
        }
        expect(&mut client, &"+PONG\r\n".repeat(20));
        let took = start.elapsed();
        assert!(took >= DELAY && took < DELAY * 10, "{took:?}");
        delay(&proxy, Mode::Pass);
    }
}

/// A delayed request reaches the server although its client closed meanwhile.
#[tokio::test]
async fn a_delayed_request_outlives_its_client() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    ask(&mut client, "PING\r\n", "+PONG\r\n");

    proxy.requests(Mode::Delay(Duration::from_millis(100)));
    client.write_all(b"SET late value\r\n").expect("send");
    drop(client);

    assert!(!server.exists("late"));
    eventually(SOON, "the delayed command is executed", || server.exists("late")).await;
    eventually(SOON, "then the connection closes", || server.connected_clients() == 0).await;
}

/// Dropped requests are never executed, and the connection that lost them carries nothing later.
#[test]
fn dropped_requests_are_not_executed() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    let mut other = dial(proxy.port());
    ask(&mut other, "PING\r\n", "+PONG\r\n");

    proxy.requests(Mode::Drop);
    client.write_all(b"SET lost value\r\n").expect("send");
    expect_silence(&mut client);
    proxy.pass();

    client.write_all(b"PING\r\n").expect("send");
    expect_reset(&mut client);
    ask(&mut other, "EXISTS lost\r\n", ":0\r\n");
}

/// Commands whose replies are dropped are executed, and the connection carries no later reply.
#[tokio::test]
async fn dropped_replies_belong_to_executed_commands() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    ask(&mut client, "PING\r\n", "+PONG\r\n");

    proxy.replies(Mode::Drop);
    client.write_all(b"SET done value\r\n").expect("send");
    eventually(SOON, "the command is executed", || server.exists("done")).await;
    expect_silence(&mut client);
    let traffic = proxy.traffic();
    assert_eq!(traffic.replies.received - traffic.replies.forwarded, 5, "{traffic:?}");
    proxy.pass();

    client.write_all(b"PING\r\n").expect("send");
    expect_reset(&mut client);
    ping(&mut connect(&proxy.url())).expect("a new connection works");
}

/// A black hole accepts and keeps silent, for old connections and new ones; what it held arrives once it
/// ends.
#[tokio::test]
async fn a_black_hole_keeps_silent_and_lets_go() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut old = dial(proxy.port());
    ask(&mut old, "PING\r\n", "+PONG\r\n");
    let received = server.total_connections_received();

    proxy.black_hole();
    let mut new = dial(proxy.port());
    let mut gone = dial(proxy.port());
    old.write_all(b"SET old value\r\n").expect("send");
    new.write_all(b"SET new value\r\n").expect("send");
    gone.write_all(b"SET gone value\r\n").expect("send");
    drop(gone);
    expect_silence(&mut old);
    expect_silence(&mut new);
    assert_eq!((server.dbsize(), server.total_connections_received()), (0, received));

    proxy.pass();
    expect(&mut old, "+OK\r\n");
    expect(&mut new, "+OK\r\n");
    eventually(SOON, "the command of the closed connection is executed", || server.exists("gone")).await;
}

/// Held replies belong to executed commands and arrive late.
#[tokio::test]
async fn held_replies_arrive_late() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());

    proxy.replies(Mode::Hold);
    client.write_all(b"SET key value\r\n").expect("send");
    eventually(SOON, "the command is executed", || server.exists("key")).await;
    expect_silence(&mut client);
    proxy.replies(Mode::Pass);

    expect(&mut client, "+OK\r\n");
}

/// A reset tears all connections off on both sides, and new ones work.
#[tokio::test]
async fn a_reset_tears_connections_off() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut clients: Vec<_> = (0..3).map(|_| dial(proxy.port())).collect();
    for client in &mut clients {
        ask(client, "PING\r\n", "+PONG\r\n");
    }

    proxy.reset();

    assert_eq!(proxy.traffic().open, 0);
    clients.iter_mut().for_each(expect_reset);
    eventually(SOON, "the server's side is gone too", || server.connected_clients() == 0).await;
    ask(&mut dial(proxy.port()), "PING\r\n", "+PONG\r\n");
}

/// A refusing proxy refuses new connections, keeps old ones, and accepts again on the same port.
#[test]
fn a_proxy_refuses_and_accepts_again() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut old = dial(proxy.port());
    ask(&mut old, "PING\r\n", "+PONG\r\n");

    for _ in 0..3 {
        proxy.refuse();
        assert!(is_refused(proxy.port()));
        ask(&mut old, "PING\r\n", "+PONG\r\n");
        proxy.accept();
        ask(&mut dial(proxy.port()), "PING\r\n", "+PONG\r\n");
    }
}

/// Only the beginning of each new connection is slow.
#[test]
fn a_slow_connect_delays_the_first_reply_alone() {
    const DELAY: Duration = Duration::from_millis(300);
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut old = dial(proxy.port());
    ask(&mut old, "PING\r\n", "+PONG\r\n");
    proxy.slow_connect(DELAY);

    let start = Instant::now();
    let mut new = dial(proxy.port());
    ask(&mut old, "PING\r\n", "+PONG\r\n");
    assert!(start.elapsed() < DELAY, "an old connection is not slow");
    ask(&mut new, "PING\r\n", "+PONG\r\n");
    assert!(start.elapsed() >= DELAY);

    let start = Instant::now();
    ask(&mut new, "PING\r\n", "+PONG\r\n");
    assert!(start.elapsed() < DELAY, "slow only at first");
}

/// Exactly the next n replies are swallowed; what came before passes, and what would follow on the same
/// connection resets it.
#[test]
fn the_next_replies_are_dropped_and_no_more() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    let mut other = dial(proxy.port());
    ask(&mut client, "PING\r\n", "+PONG\r\n");
    ask(&mut other, "PING\r\n", "+PONG\r\n");

    proxy.drop_next_replies(2);
    client.write_all(b"INCR counter\r\n").expect("send");
    client.write_all(b"INCR counter\r\n").expect("send");
    expect_silence(&mut client);
    ask(&mut other, "GET counter\r\n", "$1\r\n2\r\n");
    client.write_all(b"INCR counter\r\n").expect("send");
    expect_reset(&mut client);

    assert_eq!(server.get("counter").as_deref(), Some("3"));
}

/// A skipped reply leaves a hole in the stream, however the replies were cut into pieces.
#[test]
fn skipped_replies_leave_the_stream_out_of_step() {
    let server = Server::start();
    server.command(&["RPUSH", "list", "a", "$3", "c\r\nd"]);
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());

    proxy.skip_next_replies(2);
    client.write_all(b"LRANGE list 0 -1\r\nGET absent\r\nECHO third\r\n").expect("send");
    expect(&mut client, "$5\r\nthird\r\n");

    ask(&mut client, "PING\r\n", "+PONG\r\n");
}

/// A push is no reply: it passes while replies are swallowed.
#[test]
fn pushes_are_not_counted_as_replies() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    client.write_all(b"HELLO 3\r\nSUBSCRIBE wake\r\nPING\r\n").expect("send");
    let mut seen = String::new();
    while !seen.ends_with("+PONG\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("a reply");
        seen.push(char::from(byte[0]));
    }

    proxy.skip_next_replies(1);
    server.command(&["PUBLISH", "wake", "up"]);
    expect(&mut client, ">3\r\n$7\r\nmessage\r\n$4\r\nwake\r\n$2\r\nup\r\n");
    ask(&mut client, "PING\r\nECHO second\r\n", "$6\r\nsecond\r\n");
}

/// A server that dies behind a proxy closes the connections in front of it; afterwards they end at once.
#[test]
fn a_dead_server_shows_through_the_proxy() {
    let server = Server::start();
    let proxy = Proxy::start(&server);
    let mut client = dial(proxy.port());
    ask(&mut client, "PING\r\n", "+PONG\r\n");

    server.kill9();
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    let ended = dial(proxy.port()).read(&mut [0]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");

    server.restart();
    ask(&mut dial(proxy.port()), "PING\r\n", "+PONG\r\n");
}

/// Dropping a proxy ends its connections and its port, on both sides, in whatever mode it was.
#[tokio::test]
async fn a_dropped_proxy_leaves_nothing_behind() {
    let server = Server::start();
    for mode in [Mode::Pass, Mode::Delay(SOON * 10), Mode::Drop, Mode::Hold] {
        let proxy = Proxy::start(&server);
        let mut client = dial(proxy.port());
        ask(&mut client, "PING\r\n", "+PONG\r\n");
        proxy.requests(mode);
        client.write_all(b"SET key value\r\n").expect("send");
        let port = proxy.port();

        drop(proxy);

        assert!(is_refused(port));
        if mode == Mode::Pass {
            // The reply may have come through before.
            let ended = client.read_to_end(&mut Vec::new());
            assert!(ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        } else {
            expect_reset(&mut client);
        }
        eventually(SOON, "the server's side is gone too", || server.connected_clients() == 0).await;
    }
}

/// The end of a reply is found wherever the stream is cut, for every type of value.
#[test]
fn the_framer_finds_the_end_of_every_reply() {
    let replies = [
        "+OK\r\n",
        "-ERR something longer than the framer has any reason to keep of a line\r\n",
        ":-12\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "$7\r\na\r\n$5\r\n\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n*2\r\n$1\r\nx\r\n*0\r\n$-1\r\n",
        "_\r\n",
        "#t\r\n",
        ",3.25\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "!21\r\nSYNTAX invalid syntax\r\n",
        "=15\r\ntxt:Some string\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n*1\r\n:2\r\n",
        "~2\r\n+a\r\n+b\r\n",
        "|1\r\n+ttl\r\n:3600\r\n*2\r\n:1\r\n|1\r\n+a\r\n+b\r\n:2\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
    ];
    let stream = replies.concat();

    for cut in 1..=stream.len() {
        let mut framer = ReplyFramer::default();
        let (mut found, mut reply) = (Vec::new(), Vec::new());
        for mut piece in stream.as_bytes().chunks(cut) {
            while !piece.is_empty() {
                let (part, rest) = piece.split_at(framer.advance(piece));
                reply.extend_from_slice(part);
                piece = rest;
                if framer.between_replies() {
                    found.push(String::from_utf8(std::mem::take(&mut reply)).expect("text"));
                }
            }
        }
        assert_eq!(found, replies, "in pieces of {cut}");
    }
}

/// Bytes that are no replies at all neither stall nor upset the framer.
#[test]
fn the_framer_bears_garbage() {
    for garbage in [
        "*99999999999999999999\r\n",
        "%9223372036854775807\r\n",
        "$x\r\n",
        "\n",
        "\r\n",
        "\u{16}\u{3}\u{1}\n",
    ] {
        let mut framer = ReplyFramer::default();
        let mut left = garbage.repeat(50).into_bytes();
        while !left.is_empty() {
            let taken = framer.advance(&left);
            assert!(taken > 0);
            left.drain(..taken);
        }
    }
}
