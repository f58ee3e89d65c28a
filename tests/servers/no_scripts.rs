//! Servers on which scripts cannot be had: renamed away, forbidden, or refused by something in between. Commands of the server's
//! own stand in their place, or nothing is set at all.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use clients::{SOON, builder, ms};
use futures::future::join_all;
use harness::{Cluster, Server, eventually};
use redquorum::{AcquireError, Redlock, RedlockBuilder, Scripts};

/// How scripts are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Renamed,
    Forbidden,
    /// Those that the server knows may be run, and none may be given to it.
    Unknown,
    ByProxy,
}

const WAYS: [Refused; 4] = [Refused::Renamed, Refused::Forbidden, Refused::Unknown, Refused::ByProxy];

fn servers(way: Refused) -> Cluster {
    Cluster::start_with(3, |_| match way {
        Refused::Renamed => Server::builder()
            .args(["EVAL", "EVALSHA", "SCRIPT"].iter().flat_map(|name| ["--rename-command", name, ""])),
        Refused::Forbidden | Refused::Unknown | Refused::ByProxy => Server::builder(),
    })
}

fn urls(cluster: &Cluster, way: Refused) -> Vec<String> {
    let url = |server: &Server| match way {
        Refused::Renamed => server.url(),
        Refused::Forbidden | Refused::Unknown => {
            let digest = if way == Refused::Forbidden { "-evalsha" } else { "+evalsha" };
            let rules =
                ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-eval", "-script", digest];
            server.command(&rules);
            server.url_with(Some("app"), Some("pw"), 0)
        }
        Refused::ByProxy => format!("redis://127.0.0.1:{}", proxy(server)),
    };
    cluster.iter().map(url).collect()
}

fn client(cluster: &Cluster, way: Refused) -> RedlockBuilder {
    builder(urls(cluster, way))
}

/// Passes everything on but scripts, which it answers as a proxy with a list of allowed scripts does: the server is asked to
/// say so in its place, so that answers stay in order. Returns its port.
fn proxy(server: &Server) -> u16 {
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").expect("a port"), server.port());
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut server = TcpStream::connect(("127.0.0.1", to)).expect("connected");
            let (mut answers, mut back) =
                (server.try_clone().expect("a handle"), client.try_clone().expect("a handle"));
            for stream in [&server, &client] {
                stream.set_nodelay(true).expect("set");
            }
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            std::thread::spawn(move || {
                while let Some(words) = command(&mut client) {
                    let is_script =
                        words[0].eq_ignore_ascii_case(b"eval") || words[0].eq_ignore_ascii_case(b"evalsha");
                    let refusal =
                        [&b"EVAL"[..], b"return redis.error_reply('ERR script is not on the list')", b"0"];
                    let words = if is_script { refusal.map(<[u8]>::to_vec).into() } else { words };
                    let mut packed = format!("*{}\r\n", words.len()).into_bytes();
                    for word in words {
                        packed.extend(format!("${}\r\n", word.len()).bytes());
                        packed.extend([&word[..], b"\r\n"].concat());
                    }
                    if server.write_all(&packed).is_err() {
                        return;
                    }
                }
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    port
}

/// The next command of a client; none at its end.
fn command(client: &mut TcpStream) -> Option<Vec<Vec<u8>>> {
    let count = number(client)?;
    let words = (0..count).map(|_| {
        let mut word = vec![0; number(client)? + 2];
        client.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        Some(word)
    });
    words.collect()
}

/// The number in the next line, behind its first character.
fn number(client: &mut TcpStream) -> Option<usize> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        line.push(byte[0]);
    }
    String::from_utf8(line).ok()?.trim()[1..].parse().ok()
}

fn numbers() -> (usize, usize) {
    let read =
        |name: &str, usual| std::env::var(name).map_or(usual, |number| number.parse().expect("a number"));
    (read("REDQUORUM_NO_SCRIPTS_CYCLES", 30), read("REDQUORUM_NO_SCRIPTS_KEPT", 20))
}

fn able(cluster: &Cluster) -> bool {
    cluster[0].version().at_least((8, 4), (8, 1))
}

async fn clean(cluster: &Cluster) {
    let none_left = || cluster.iter().all(|server| clients::lock_keys(server).is_empty());
    eventually(ms(2_000), "no key is left", none_left).await;
}

/// Law: without scripts, locks are taken, extended, kept, waited for and released as with them, but in no order, on servers that
/// have commands in their place; and no key is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_do_without_scripts() {
    let (cycles, kept) = numbers();
    for way in WAYS {
        let cluster = servers(way);
        if !able(&cluster) {
            println!("skipped: this server has nothing in place of scripts");
            return;
        }
        let redlock = client(&cluster, way).build().await.expect("nodes");
        clients::all_vote(&redlock).await;
        for node in redlock.nodes() {
            assert_eq!(node.scripts, Some(Scripts::Replaced), "{way:?} {node}");
        }

        let keep = (0..kept).map(|number| redlock.lock(format!("kept-{number}")).ttl(ms(3_000)).keep_alive());
        let keep = join_all(keep.map(IntoFuture::into_future)).await;
        let keep: Vec<_> = keep.into_iter().map(|guard| guard.expect("free")).collect();
        let held = redlock.acquire("contended").await.expect("free");
        // In no order, so each lets go by itself.
        let waits = || {
            let redlock = redlock.clone();
            tokio::spawn(async move {
                let guard = redlock.lock("contended").wait(3 * SOON).await?;
                tokio::time::sleep(ms(50)).await;
                drop(guard.release().await);
                Ok::<_, AcquireError>(())
            })
        };
        let waiters = [waits(), waits(), waits()];
        let started = std::time::Instant::now();
        for cycle in 0..cycles {
            // A server without a native compare-and-delete ends the key a millisecond later.
            let (mut guard, _) = clients::acquired(&redlock, "k", SOON).await;
            guard.extend(clients::TTL).await.unwrap_or_else(|error| panic!("{way:?} {cycle}: {error}"));
            let seen = redlock.inspect("k").await.expect("a name");
            assert!(seen.to_string().contains("held"), "{seen}");
            guard.release().await.unwrap_or_else(|error| panic!("{way:?} {cycle}: {error}"));
        }
        println!("{way:?}: {cycles} cycles in {:?}", started.elapsed());
        held.release().await.expect("released");
        for waiter in waiters {
            waiter.await.expect("no panic").unwrap_or_else(|error| panic!("{way:?}: {error}"));
        }
        let extended = Duration::from_millis(3_500).saturating_sub(started.elapsed());
        tokio::time::sleep(extended).await;
        for guard in keep {
            assert!(guard.is_valid(), "{way:?}: a kept lock was lost");
            guard.release().await.expect("released");
        }

        let fenced = redlock.lock("fenced").fenced().without_waiting().await;
        let Err(AcquireError::NoQuorum { report, .. }) = &fenced else { panic!("{way:?}: {fenced:?}") };
        assert!(report.to_string().contains("EVALSHA"), "{report}");
        clean(&cluster).await;
        assert_eq!(redlock.pending_cleanups(), 0);
    }
}

async fn refused_before_a_set(cluster: &Cluster, redlock: &Redlock) {
    let before: Vec<_> = cluster.iter().map(clients::sets).collect();
    for _ in 0..3 {
        let refused = redlock.try_acquire("k").await;
        let Err(AcquireError::NoQuorum { report, .. }) = &refused else { panic!("{refused:?}") };
        let text = report.to_string();
        assert!(text.contains("EVALSHA") && text.contains("SET IFEQ"), "{text}");
    }
    let after: Vec<_> = cluster.iter().map(clients::sets).collect();
    assert_eq!(before, after, "nothing was set");
}

/// Law: where nothing stands in place of scripts, a lock is refused before the first SET, with the right that is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_released_is_not_set() {
    for way in WAYS {
        let cluster = servers(way);
        if able(&cluster) {
            println!("skipped: this server has commands in place of scripts");
            return;
        }
        let redlock = client(&cluster, way).build().await.expect("nodes");
        let known = || redlock.nodes().iter().all(|node| node.scripts == Some(Scripts::Missing));
        eventually(SOON, "the nodes say so", known).await;
        refused_before_a_set(&cluster, &redlock).await;
        clean(&cluster).await;
    }
}

/// Law: a node without scripts among others with them takes part as far as it can, and its missing rights cost no other node
/// anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_without_scripts_is_one_of_three() {
    let cluster = servers(Refused::Forbidden);
    let mut urls = urls(&cluster, Refused::Forbidden);
    urls[1] = cluster[1].url();
    urls[2] = cluster[2].url();
    let redlock = builder(urls).build().await.expect("nodes");
    for _ in 0..10 {
        let mut guard = redlock.lock("k").wait(SOON).await.expect("two nodes suffice");
        guard.extend(clients::TTL).await.expect("extended");
        let waiter = tokio::spawn(redlock.lock("k").wait(SOON).into_future());
        tokio::time::sleep(ms(20)).await;
        guard.release().await.expect("released");
        waiter.await.expect("no panic").expect("its turn comes").release().await.expect("released");
        let mut fenced = redlock.lock("f").fenced().wait(SOON).await.expect("two nodes suffice");
        fenced.extend(clients::TTL).await.expect("extended");
        fenced.release().await.expect("released");
    }
    clean(&cluster).await;
}
