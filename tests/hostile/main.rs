//! Servers that answer anything at all: whatever comes back, nothing panics, hangs or grows, and the locks of those who have a
//! quorum of honest nodes are as good as ever.
//!
//! Between client and server stands a liar, which passes commands on and puts other bytes in the place of replies. So it lies at
//! every stage, the handshake included, and the server behind it stays one of the real world.

use std::future::IntoFuture;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use clients::{REPLY, SLACK, SOON, ms, resident};
use harness::{Cluster, ReplyFramer, Server, eventually};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redquorum::{IntoNode, Redlock, RedlockBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What replaces the n-th reply of a connection; `None` lets the real one through.
type Lie = Arc<dyn Fn(u64, &mut StdRng) -> Option<Vec<u8>> + Send + Sync>;

/// Stands before a server, and lies.
struct Liar {
    url: String,
    lie: Arc<Mutex<Lie>>,
    task: tokio::task::JoinHandle<()>,
}

impl Liar {
    async fn start(server: &Server, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let port = server.port();
        let truth: Lie = Arc::new(|_, _| None);
        let lie = Arc::new(Mutex::new(truth));
        let lies = lie.clone();
        let task = tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            while let Ok((client, _)) = listener.accept().await {
                let random = StdRng::seed_from_u64(random.random());
                tokio::spawn(between(client, port, lies.clone(), random));
            }
        });
        Self { url, lie, task }
    }

    fn tell(&self, lie: impl Fn(u64, &mut StdRng) -> Option<Vec<u8>> + Send + Sync + 'static) {
        *self.lie.lock().expect("a lie") = Arc::new(lie);
    }

    fn be_honest(&self) {
        self.tell(|_, _| None);
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries one connection until either side ends it.
async fn between(
    mut client: TcpStream,
    port: u16,
    lie: Arc<Mutex<Lie>>,
    mut random: StdRng,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut asks, mut answers) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let (mut framer, mut reply, mut number) = (ReplyFramer::default(), Vec::new(), 0);
    loop {
        tokio::select! {
            read = client.read(&mut asks) => match read? {
                0 => return Ok(()),
                count => server.write_all(&asks[..count]).await?,
            },
            read = server.read(&mut answers) => {
                let mut bytes = match read? {
                    0 => return Ok(()),
                    count => &answers[..count],
                };
                while !bytes.is_empty() {
                    let taken = framer.advance(bytes);
                    reply.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if framer.between_replies() {
                        let told = lie.lock().expect("a lie").clone()(number, &mut random);
                        client.write_all(told.as_deref().unwrap_or(&reply)).await?;
                        number += 1;
                        reply.clear();
                    }
                }
            }
        }
    }
}

/// How many panics there were in this process, of any thread or task.
fn panics() -> usize {
    static ONCE: Once = Once::new();
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // A test that fails beside this one is no concern of this one.
            let ours = info.location().is_some_and(|place| place.file().starts_with("tests"));
            PANICS.fetch_add(usize::from(!ours), Ordering::SeqCst);
            usual(info);
        }));
    });
    PANICS.load(Ordering::SeqCst)
}

fn builder<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
    clients::builder(nodes).ttl(ms(2_000)).max_ttl(ms(2_000)).connect_timeout(REPLY).lazy()
}

/// The same with more patience, for a client that is to succeed on a busy machine.
fn patient<N: IntoNode>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
    builder(nodes).ttl(SOON).max_ttl(SOON).reply_timeout(5 * REPLY)
}

/// Everything that a client can do, once; nothing may take longer than a few timeouts, whatever becomes of it. Returns whether
/// all went well.
async fn everything(redlock: &Redlock, key: &str) -> bool {
    async fn soon<T>(what: &str, work: impl IntoFuture<Output = T>) -> T {
        let limit = 10 * REPLY + SLACK;
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("{what} hangs"))
    }
    let mut well = true;
    match soon("a plain lock", redlock.lock(key).without_waiting()).await {
        Ok(mut guard) => {
            well &= soon("extending", guard.extend(ms(2_000))).await.is_ok();
            let _ = soon("looking", redlock.inspect(key)).await.expect("a key");
            well &= soon("releasing", guard.release()).await.is_ok();
        }
        Err(error) => {
            well = false;
            assert!(!error.to_string().is_empty());
        }
    }
    match soon("a kept and fenced lock", redlock.lock(key).fenced().keep_alive().wait(REPLY)).await {
        Ok(guard) => {
            well &= soon("releasing", guard.release()).await.is_ok();
        }
        Err(error) => {
            well = false;
            assert!(!format!("{error} {error:?}").is_empty());
        }
    }
    let _ = format!("{:?}", redlock.nodes());
    well
}

/// Well-formed replies of any kind and depth, with the words that real ones use.
fn any_value(random: &mut StdRng, depth: u32, into: &mut Vec<u8>) {
    const WORDS: [&str; 12] = [
        "OK",
        "",
        "PONG",
        "message",
        "1",
        "-1",
        "0",
        "9007199254740993",
        "redis_version:7.0.0\r\nrun_id:x",
        "master",
        "\u{1f512}",
        "0123456789abcdef0123456789abcdef",
    ];
    const ERRORS: [&str; 14] = [
        "ERR",
        "NOSCRIPT",
        "NOPERM",
        "MOVED 1 127.0.0.1:1",
        "ASK 1 ?",
        "LOADING",
        "MISCONF",
        "OOM",
        "READONLY",
        "BUSY",
        "NOAUTH",
        "CROSSSLOT",
        "TRYAGAIN",
        "é unheard of",
    ];
    const NUMBERS: [i64; 8] = [0, 1, -1, 2, i64::MAX, i64::MIN, 1 << 53, -2];
    let word = WORDS[random.random_range(0..WORDS.len())];
    let number = NUMBERS[random.random_range(0..NUMBERS.len())];
    let kinds = if depth == 0 { 9 } else { 14 };
    let mut line = |text: String| into.extend_from_slice(text.as_bytes());
    match random.random_range(0..kinds) {
        0 => line(format!("+{}\r\n", word.replace("\r\n", " "))),
        1 => line(format!("-{} because\r\n", ERRORS[random.random_range(0..ERRORS.len())])),
        2 => line(format!(":{number}\r\n")),
        3 => line(format!("${}\r\n{word}\r\n", word.len())),
        4 => line("$-1\r\n".to_owned()),
        5 => line("_\r\n".to_owned()),
        6 => line(format!("#{}\r\n", if number > 0 { 't' } else { 'f' })),
        7 => line(format!(",{}\r\n", ["nan", "inf", "-inf", "1.5e300", "3"][random.random_range(0..5)])),
        8 => line(format!("({number}{number}\r\n").replace("--", "-")),
        kind => {
            let count = random.random_range(0..4_u32);
            let (mark, values) = match kind {
                9 | 10 => ('*', count),
                11 => ('~', count),
                12 => ('%', 2 * count),
                _ => ('>', count + 1),
            };
            line(format!("{mark}{}\r\n", if mark == '%' { count } else { values }));
            for i in 0..values {
                if mark == '>' && i == 0 {
                    into.extend_from_slice(b"$7\r\nmessage\r\n");
                } else {
                    any_value(random, depth - 1, into);
                }
            }
        }
    }
}

fn lies(share: f64) -> impl Fn(u64, &mut StdRng) -> Option<Vec<u8>> + Send + Sync + 'static {
    move |_, random| {
        random.random_bool(share).then(|| {
            let mut bytes = Vec::new();
            any_value(random, 4, &mut bytes);
            // Beside the reply, now and then something nobody asked for.
            if random.random_bool(0.1) {
                any_value(random, 3, &mut bytes);
            }
            bytes
        })
    }
}

/// Bytes that a parser may stumble over.
fn traps() -> Vec<(&'static str, Vec<u8>)> {
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("nested a hundred thousand deep", b"*1\r\n".repeat(100_000)),
        ("nested deep in maps", b"%1\r\n+k\r\n".repeat(10_000)),
        ("an array without end", text("*9223372036854775807\r\n")),
        ("an array of a billion", text("*1000000000\r\n:1\r\n")),
        ("a map without end", text("%9223372036854775807\r\n")),
        ("a map of a negative size", text("%-5\r\n")),
        ("an array of a negative size", text("*-5\r\n")),
        ("a set of a negative size", text("~-5\r\n")),
        ("a push of a negative size", text(">-5\r\n")),
        ("a push of nothing", text(">0\r\n")),
        ("a string without end", text("$9223372036854775807\r\nabc")),
        ("a string of a negative size", text("$-5\r\n")),
        ("a blob of a negative size", text("=-1\r\n")),
        ("an error of a negative size", text("!-1\r\n")),
        ("a verbatim string without its format", text("=1\r\nx\r\n")),
        ("a string that is longer than it says", text("$1\r\nabcdef\r\n")),
        ("an attribute of nothing", text("|0\r\n+OK\r\n")),
        ("an attribute of a negative size", text("|-7\r\n+OK\r\n")),
        ("an empty error", text("-\r\n")),
        ("an error of blanks", text("-    \r\n")),
        ("a number that is none", text(":12a\r\n")),
        ("a number too large", text(":99999999999999999999\r\n")),
        ("a double that is none", text(",one\r\n")),
        ("a truth that is none", text("#x\r\n")),
        ("a big number that is none", text("(1x\r\n")),
        ("an unknown type", text("@1\r\n")),
        ("a web page", text("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")),
        ("half a reply", text("*3\r\n:1\r\n")),
        ("zeros", vec![0; 4_096]),
        ("bytes that are no text", vec![b'+', 0xff, 0xfe, 0xc3, 0x28, b'\r', b'\n']),
        ("line feeds", text("\n\n\n\n")),
        ("returns", text("\r\r\r\r")),
        ("a wake-up without payload", text(">2\r\n+message\r\n+c\r\n")),
        ("a wake-up with a short payload", text(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\nabc\r\n")),
        ("a wake-up with half a letter", {
            let mut bytes = text(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$33\r\n");
            bytes.extend_from_slice(&[0xc3; 33]);
            bytes.extend_from_slice(b"\r\n");
            bytes
        }),
    ]
}

/// Law: one node that answers anything, at any stage, costs its own vote at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_liar_costs_one_vote() {
    panics();
    let cluster = Cluster::start(3);
    let liar = Liar::start(&cluster[0], 1).await;
    let urls = [liar.url.clone(), cluster[1].url(), cluster[2].url()];
    for share in [0.1, 0.5, 1.0] {
        liar.tell(lies(share));
        let redlock = patient(urls.clone()).build().await.expect("a client");
        clients::until_votes(&redlock, |votes| {
            votes.iter().filter(|vote| **vote == redquorum::Outcome::Granted).count() >= 2
        })
        .await;
        for round in 0..30 {
            assert!(everything(&redlock, &format!("k{round}")).await, "share {share}, round {round}");
        }
        redlock.close(SOON).await;
    }
    assert_eq!(panics(), 0);
}

/// Law: with lies from all nodes nothing hangs and nothing panics, and once they are honest again all is well: what they were
/// made to forget or to keep is over with its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn liars_everywhere_are_survived() {
    panics();
    let cluster = Cluster::start(3);
    let mut liars = Vec::new();
    for (node, server) in cluster.iter().enumerate() {
        liars.push(Liar::start(server, 100 + node as u64).await);
    }
    let redlock = builder(liars.iter().map(|liar| liar.url.clone())).build().await.expect("a client");
    for share in [0.05, 0.3, 1.0] {
        liars.iter().for_each(|liar| liar.tell(lies(share)));
        for round in 0..25 {
            everything(&redlock, &format!("k{share}-{round}")).await;
        }
    }

    liars.iter().for_each(Liar::be_honest);

    let until = Instant::now() + SOON;
    while !everything(&redlock, "k").await {
        assert!(Instant::now() < until, "never well again: {:?}", redlock.nodes());
    }
    assert!(redlock.close(SOON).await, "debts are open");
    eventually(SOON, "nothing left", || clients::keys_left(&cluster) == 0).await;
    assert_eq!(panics(), 0);
}

/// Held by tests that look at the memory of this process, which they share.
static MEMORY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Law: each of the traps, in the place of any of the first replies, ends the connection or is an answer like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traps_catch_nobody() {
    let _alone = MEMORY.lock().await;
    panics();
    let cluster = Cluster::start(1);
    let liar = Liar::start(&cluster[0], 7).await;
    let before = resident();
    for (name, bytes) in traps() {
        // In the handshake, and after it.
        for place in [0, 1, 5, 14, 18] {
            let bytes = bytes.clone();
            liar.tell(move |number, _| (number >= place).then(|| bytes.clone()));
            let redlock = builder([liar.url.clone()]).build().await.expect("a client");
            let counted = panics();
            everything(&redlock, "k").await;
            redlock.close(Duration::ZERO).await;
            assert_eq!(panics(), counted, "{name}, from reply {place} on");
        }
    }
    liar.be_honest();
    let redlock = builder([liar.url.clone()]).build().await.expect("a client");
    eventually(SOON, "connected", || redlock.nodes()[0].version.is_some()).await;
    assert!(resident() < before + (64 << 20), "{} bytes more", resident() - before);
}

/// Law: a connection on which one reply got lost, or one came too many, is given up, though it is never silent: from then on
/// every answer would be another call's. Only where nothing is on its way for a moment, one too many falls into the void, and the
/// connection is in step again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_out_of_step_is_given_up() {
    for slip in [Vec::new(), b":7\r\n:7\r\n".to_vec()] {
        let lost = slip.is_empty();
        let cluster = Cluster::start(1);
        let liar = Liar::start(&cluster[0], 8).await;
        let redlock = builder([liar.url.clone()]).build().await.expect("a client");
        clients::all_vote(&redlock).await;
        let before = cluster[0].total_connections_received();
        let slipped = Arc::new(AtomicUsize::new(0));
        let once = slipped.clone();
        liar.tell(move |_, _| (once.fetch_add(1, Ordering::SeqCst) == 0).then(|| slip.clone()));

        // So many at a time that there is always one on its way.
        let (stop, stopped) = watch::channel(false);
        let tasks = (0..8).map(|task| {
            let (redlock, stopped) = (redlock.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut round = 0;
                while !*stopped.borrow() {
                    if redlock.lock(format!("{task}-{round}")).without_waiting().await.is_err() {
                        // Refused at once while there is no connection: others get their turn.
                        tokio::time::sleep(ms(5)).await;
                    }
                    round += 1;
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        // The harness has a connection of its own, made before.
        let replaced = || cluster[0].total_connections_received() > before;
        if lost {
            eventually(2 * SOON, "another connection", replaced).await;
        } else {
            // Two probes.
            let until = Instant::now() + Duration::from_secs(11);
            while Instant::now() < until && !replaced() {
                tokio::time::sleep(ms(20)).await;
            }
        }
        stop.send(true).expect("they listen");
        for task in tasks {
            task.await.expect("no panic");
        }

        clients::all_vote(&redlock).await;
        // Either way every answer is to its own question from here on.
        for round in 0..10 {
            let key = format!("in step {round}");
            let guard = redlock.lock(&key).without_waiting().await.expect("granted");
            assert!(cluster[0].exists(&key), "{key} was said to be held");
            guard.release().await.expect("released");
            assert!(!cluster[0].exists(&key), "{key} was said to be released");
        }
        assert!(everything(&redlock, "k").await);
    }
}

/// Law: a reply without end is given up with the limit of silence, and what it took in memory is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_reply_is_given_up() {
    let _alone = MEMORY.lock().await;
    let cluster = Cluster::start(3);
    let liar = Liar::start(&cluster[0], 9).await;
    let urls = [liar.url.clone(), cluster[1].url(), cluster[2].url()];
    let redlock = patient(urls).build().await.expect("a client");
    clients::all_vote(&redlock).await;
    let before = resident();
    // A mebibyte in the place of each reply, and never the end of a line.
    liar.tell(|_, _| Some([b"+".as_slice(), &vec![b'x'; 1 << 20]].concat()));

    let mut most = 0;
    for round in 0..200 {
        assert!(everything(&redlock, &format!("k{round}")).await, "round {round}");
        most = most.max(resident());
    }

    assert!(most < before + (256 << 20), "{} MiB more", (most - before) >> 20);
    liar.be_honest();
    clients::all_vote(&redlock).await;
}
