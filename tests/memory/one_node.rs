//! What a client keeps to at a single node, shown without a server: one node answers what and when the test says, the other is in
//! memory.

use std::time::Duration;

use redquorum::testing::MemoryCluster;
use redquorum::{Health, Redlock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// On however busy a machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers no set, and nothing behind it, until it is told to go on. Then it refuses the set, as servers before 7.0
/// refuse one that asks for the value found.
struct Refusing {
    url: String,
    /// The names of the commands that came.
    came: watch::Receiver<Vec<String>>,
    goes_on: watch::Sender<bool>,
}

impl Refusing {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let (note, came) = watch::channel(Vec::new());
        let (goes_on, told) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (reader, writer) = TcpStream::into_split(stream);
                let (commands, to_answer) = mpsc::unbounded_channel();
                tokio::spawn(read(reader, note.clone(), commands));
                tokio::spawn(answer(writer, to_answer, told.clone()));
            }
        });
        Self { url, came, goes_on }
    }

    /// Waits until so many of these commands have come.
    async fn has(&mut self, count: usize, command: &str) {
        let has_come =
            self.came.wait_for(|came| came.iter().filter(|name| *name == command).count() >= count);
        let in_time = tokio::time::timeout(PATIENCE, has_come).await;
        in_time.unwrap_or_else(|_| panic!("no {command} came")).expect("the server is there");
    }
}

async fn read(
    mut reader: OwnedReadHalf,
    note: watch::Sender<Vec<String>>,
    commands: mpsc::UnboundedSender<String>,
) {
    let mut input = Vec::new();
    while reader.read_buf(&mut input).await.is_ok_and(|count| count > 0) {
        while let Some((name, length)) = command(&input) {
            input.drain(..length);
            note.send_modify(|came| came.push(name.clone()));
            let _ = commands.send(name);
        }
    }
}

async fn answer(
    mut writer: OwnedWriteHalf,
    mut commands: mpsc::UnboundedReceiver<String>,
    mut told: watch::Receiver<bool>,
) {
    while let Some(name) = commands.recv().await {
        let answer = match name.as_str() {
            "INFO" => "$22\r\nredis_version:7.0.15\r\n\r\n",
            "EVALSHA" => ":0\r\n",
            "SET" if !*told.borrow() => {
                let _ = told.wait_for(|told| *told).await;
                "-ERR syntax error\r\n"
            }
            _ => "+OK\r\n",
        };
        let _ = writer.write_all(answer.as_bytes()).await;
    }
}

/// The name of the first command, and its length; nothing until all of it is there.
fn command(input: &[u8]) -> Option<(String, usize)> {
    fn number(input: &[u8], at: &mut usize) -> Option<usize> {
        let line = &input[*at..];
        let length = line.windows(2).position(|end| end == b"\r\n")?;
        *at += length + 2;
        std::str::from_utf8(&line[1..length]).expect("digits").parse().ok()
    }
    let (mut at, mut name) = (0, None);
    for _ in 0..number(input, &mut at)? {
        let length = number(input, &mut at)?;
        let word = input.get(at..at + length)?;
        at += length + 2;
        // What the client may do here is asked about this key, which never exists.
        match word {
            b"redquorum:none" => name = Some("RIGHTS".to_owned()),
            word => drop(name.get_or_insert_with(|| String::from_utf8_lossy(word).into_owned())),
        }
    }
    (at <= input.len()).then_some((name?, at))
}

/// Rule 2: a set that was refused in one form is not sent in another behind its own release.
#[tokio::test]
async fn no_second_form_follows_a_release() {
    let mut server = Refusing::start().await;
    let builder = Redlock::builder().node(server.url.as_str()).without_restart_delay().without_wait_queue();
    let redlock = builder.build().await.expect("a node");
    {
        let mut acquire = std::pin::pin!(redlock.try_acquire("k"));
        tokio::select! {
            ended = &mut acquire => panic!("{ended:?}"),
            () = server.has(1, "SET") => {}
        }
    }
    // The acquire was dropped, which releases.
    server.has(1, "EVALSHA").await;

    server.goes_on.send(true).expect("the server is there");
    redlock.close(PATIENCE).await;

    let came = server.came.borrow().clone();
    let sets = came.iter().filter(|name| *name == "SET").count();
    assert_eq!(sets, 1, "{came:?}");
}

/// A node in memory that answers nothing is suspect before its connection is given up, and is used again once it answers.
#[tokio::test(start_paused = true)]
async fn silent_nodes_in_memory_are_suspect() {
    let reply_timeout = Duration::from_millis(200);
    let cluster = MemoryCluster::new(3);
    let redlock = cluster.builder().reply_timeout(reply_timeout).build().await.expect("nodes");
    let health = || redlock.nodes()[0].health.clone();
    cluster.node(0).hang();
    drop(redlock.acquire("k").await.expect("two nodes grant"));

    tokio::time::sleep(reply_timeout * 2).await;
    assert_eq!(health(), Health::Up);
    tokio::time::sleep(reply_timeout * 3 / 2).await;
    assert_eq!(health(), Health::Suspect);
    cluster.node(0).heal();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(health(), Health::Up);

    cluster.node(0).hang();
    drop(redlock.acquire("k").await.expect("two nodes grant"));
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(matches!(health(), Health::Down(_)), "{:?}", health());
}
