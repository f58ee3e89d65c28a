//! What a client says of its nodes at `warn`: once per change, with numbers that can be, and with hints that fit.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clients::{REPLY, SOON, ms};
use futures::future::join_all;
use harness::{Ear, Server, eventually};
use redquorum::{NodeVote, Redlock};

/// Short, so that delays are.
const TTL: Duration = Duration::from_secs(2);

/// A client looks at each node this often.
const LOOK: Duration = Duration::from_secs(5);

/// The warnings about one server.
fn warnings(heard: &str, server: &Server) -> Vec<String> {
    let of_it = format!("address=127.0.0.1:{} ", server.port());
    let about_it = heard.lines().filter(|line| line.starts_with("WARN ") && line.contains(&of_it));
    about_it.map(str::to_owned).collect()
}

/// One thing that happens to a node and may make it stand aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Command(&'static [&'static str]),
    Restart,
    Crash,
}

impl Change {
    fn happens_to(self, server: &Server) {
        match self {
            Self::Command(command) => drop(server.command(command)),
            Self::Restart => server.restart(),
            Self::Crash => {
                server.kill9();
                server.restart();
            }
        }
    }

    /// How many warnings there are: one of the vote, and one of the connection if that ended.
    fn warnings(self, aof: bool) -> usize {
        match self {
            Self::Command(_) => 1,
            Self::Restart | Self::Crash => 1 + usize::from(!aof),
        }
    }
}

/// Law: one change of a node is one warning, and a restart one more for the connection that it ends. The time that is left is
/// said only if it is known.
#[tokio::test]
async fn one_change_is_one_warning() {
    let flushes: [&[&str]; 4] =
        [&["FLUSHALL"], &["FLUSHDB"], &["FLUSHALL", "ASYNC"], &["DEL", "redquorum:node"]];
    let changes = flushes.map(Change::Command).into_iter().chain([Change::Restart, Change::Crash]);
    let changed: Vec<_> = changes
        .flat_map(|change| [(false, change), (true, change)])
        .map(|(aof, change)| {
            (if aof { Server::builder().aof().start() } else { Server::start() }, aof, change)
        })
        .collect();
    eventually(2 * SOON, "they are old enough", || {
        changed.iter().all(|(server, ..)| server.uptime() >= TTL + ms(2_100))
    })
    .await;
    let ear = Ear::default();
    let listening = tracing::subscriber::set_default(ear.clone());
    let build = |server: &Server| Redlock::builder().node(server.url()).ttl(TTL).reply_timeout(REPLY).build();
    let clients = join_all(changed.iter().map(|(server, ..)| build(server))).await;
    let clients: Vec<_> = clients.into_iter().map(|client| client.expect("a node")).collect();
    let all_count = || clients.iter().all(|redlock| redlock.nodes()[0].vote == NodeVote::Counts);
    eventually(SOON, "they count", all_count).await;
    for (server, ..) in &changed {
        assert_eq!(warnings(&ear.heard(), server), [""; 0]);
    }

    for (server, _, change) in &changed {
        change.happens_to(server);
        tokio::time::sleep(ms(5)).await;
    }
    // One look more than it takes.
    tokio::time::sleep(LOOK + ms(1_000)).await;
    eventually(2 * SOON, "they count again", all_count).await;
    drop(listening);

    let heard = ear.heard();
    for (server, aof, change) in &changed {
        let warned = warnings(&heard, server);
        assert_eq!(warned.len(), change.warnings(*aof), "{change:?}, append-only: {aof}: {warned:#?}");
    }
    let remaining = heard.lines().filter_map(|line| line.split_once(" remaining=")?.1.split(' ').next());
    for left in remaining {
        let short = left.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok());
        assert!(left == "not" || left.ends_with("ms") || short.is_some_and(|left| left < 3.0), "{left}");
    }
}

/// Leads to a server, until it ends all connections and from then on each at once.
struct Leaves {
    port: u16,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Leaves {
    fn in_front_of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, to) = (listener.local_addr().expect("bound").port(), server.port());
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let known = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Some(open) = &mut *known.lock().expect("whole") else { continue };
                let server = TcpStream::connect(("127.0.0.1", to)).expect("connected");
                for (from, into) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut into) =
                        (from.try_clone().expect("a handle"), into.try_clone().expect("one"));
                    std::thread::spawn(move || copy(&mut from, &mut into));
                }
                open.extend([client, server]);
            }
        });
        Self { port, open }
    }

    fn leave(&self) {
        for stream in self.open.lock().expect("whole").take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Law: a server that hangs up on a client which it served before is not suspected of speaking TLS; one that never answered is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_gets_no_hint() {
    let server = Server::start();
    let (left, never) = (Leaves::in_front_of(&server), Leaves::in_front_of(&server));
    never.leave();
    let redlock = Redlock::builder()
        .node(format!("redis://127.0.0.1:{}", left.port))
        .node(format!("redis://127.0.0.1:{}", never.port))
        .lazy()
        .build()
        .await
        .expect("lazy");
    let trouble = |node: usize| redlock.nodes()[node].health.to_string();
    eventually(SOON, "it is connected", || trouble(0) == "up").await;

    left.leave();
    eventually(SOON, "it was tried again", || {
        trouble(0).starts_with("down") && !trouble(0).contains("closed by")
    })
    .await;

    assert!(!trouble(0).contains("TLS"), "{}", trouble(0));
    eventually(SOON, "the hint", || trouble(1).contains("does the port speak TLS?")).await;
}
