//! A TCP proxy in front of one server that breaks the connection in chosen ways.
//!
//! It knows bytes and, for counting replies, where one reply ends ([`ReplyFramer`]); so everything but
//! `drop_next_replies` and `skip_next_replies` works for TLS too.
//!
//! One rule holds throughout: **no fault makes a stream that a network could not make**. A connection
//! that has lost bytes never carries later ones, because a client would take the next answer for the
//! missing one; it is reset instead. `skip_next_replies` alone breaks the rule, on purpose and by name.

use std::collections::VecDeque;
use std::future::{pending, ready};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Server;
use crate::port::{Listener, Port};
use crate::replies::ReplyFramer;

/// Pieces under way in one direction of one connection, of at most 64 KiB each; then reading pauses.
const QUEUE_BOUND: usize = 1024;

/// What happens to the bytes of one direction, from the moment they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They go on at once.
    Pass,
    /// They go on that much later. This is latency, not a narrow pipe: what arrives together leaves
    /// together. Bytes once under way reach the other side also when the sender closes meanwhile.
    Delay(Duration),
    /// They are read and thrown away, for good: a connection that lost any is reset at the first byte
    /// that would have to follow. Closing still goes through.
    Drop,
    /// They stay where they are, and so does a close. As with lost packets that TCP sends again, they
    /// go on once the mode changes, whatever became of the sender.
    Hold,
}

/// A fault proxy on a port of its own; passes everything until told otherwise.
///
/// It lives on its own thread, so its methods are plain and need no runtime. Each has taken effect when
/// it returns: the next byte, the next connection meets the new state. When the proxy is dropped, its
/// port refuses and its connections are reset.
pub struct Proxy {
    port: u16,
    url: String,
    modes: watch::Sender<Modes>,
    orders: Option<mpsc::UnboundedSender<(Order, std_mpsc::Sender<()>)>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What passed through a [`Proxy`] since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// What went to the server.
    pub requests: Flow,
    /// What came from it.
    pub replies: Flow,
}

/// Bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Read from the sender: forwarded, lost or still under way.
    pub received: u64,
    /// Handed on to the receiver, and neither lost nor under way.
    pub forwarded: u64,
}

impl Proxy {
    /// Starts a proxy in front of `server`.
    pub fn start(server: &Server) -> Self {
        Self::between(server.port(), |port| server.url_at(port, None, None, 0))
    }

    /// Starts a proxy in front of whatever listens on a port of this machine, without TLS.
    pub fn before(port: u16) -> Self {
        Self::between(port, |port| format!("redis://127.0.0.1:{port}"))
    }

    fn between(server: u16, url: impl FnOnce(u16) -> String) -> Self {
        let reserved = Port::reserve().expect("reserve a port for a proxy");
        let (modes, modes_seen) = watch::channel(Modes::default());
        let (orders, orders_taken) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        let port = reserved.number();
        shared.upstream.store(server, Relaxed);
        let front = Front { port: reserved, modes: modes_seen, shared: Arc::clone(&shared) };
        let thread = thread::Builder::new()
            .name(format!("proxy {port}"))
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime for the proxy").block_on(front.serve(orders_taken));
            })
            .expect("start the proxy's thread");
        let proxy = Self { port, url: url(port), modes, orders: Some(orders), shared, thread: Some(thread) };
        proxy.accept();
        proxy
    }

    /// The port on 127.0.0.1 where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's url through the proxy, for the default user. With credentials:
    /// `server.url_at(proxy.port(), …)`.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    // Bytes.

    /// What happens to the bytes from clients.
    pub fn requests(&self, mode: Mode) {
        self.modes.send_modify(|modes| modes.requests = mode);
    }

    /// What happens to the bytes from the server.
    pub fn replies(&self, mode: Mode) {
        self.modes.send_modify(|modes| modes.replies = mode);
    }

    /// Accepts connections and keeps them open, but forwards nothing either way, closes included. The
    /// server does not learn of connections made meanwhile.
    pub fn black_hole(&self) {
        self.modes.send_modify(|modes| (modes.requests, modes.replies) = (Mode::Hold, Mode::Hold));
    }

    /// Ends every fault: bytes pass, connections are accepted, nothing is counted down any more.
    pub fn pass(&self) {
        self.shared.losses().left = 0;
        self.modes.send_replace(Modes::default());
        self.accept();
    }

    /// Swallows the next `n` whole replies, over all connections. The connection that lost one stays
    /// open and silent, and is reset when a further reply on it would have to pass.
    ///
    /// Pushes (RESP3) are not replies, and pass. RESP2 messages cannot be told from replies.
    pub fn drop_next_replies(&self, n: u64) {
        *self.shared.losses() = Losses { left: n, then_reset: true };
    }

    /// Swallows the next `n` whole replies, over all connections, and passes those that follow: a
    /// broken server or proxy, not a broken network. A client that counts on order is then out of step.
    pub fn skip_next_replies(&self, n: u64) {
        *self.shared.losses() = Losses { left: n, then_reset: false };
    }

    // Connections.

    /// For that long after it was accepted, each new connection carries nothing; then it passes what
    /// the modes say. Zero switches it off.
    pub fn slow_connect(&self, delay: Duration) {
        self.modes.send_modify(|modes| modes.connect_delay = delay);
    }

    /// Resets (RST) all open connections, on both sides. New ones are accepted as before.
    pub fn reset(&self) {
        self.order(Order::Reset);
    }

    /// Refuses new connections. Open ones go on; see [`reset`](Self::reset).
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Accepts connections again after [`refuse`](Self::refuse), on the same port.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// Leads new connections to another server, as a virtual address that has moved. Open ones go on where they are; see
    /// [`reset`](Self::reset).
    pub fn leads_to(&self, server: &Server) {
        self.shared.upstream.store(server.port(), Relaxed);
    }

    fn order(&self, order: Order) {
        let (done, wait) = std_mpsc::channel();
        let orders = self.orders.as_ref().expect("open until drop");
        orders.send((order, done)).expect("the proxy's thread is running");
        wait.recv().expect("the proxy's thread is running");
    }

    // What passed.

    /// What has passed so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            accepted: self.shared.accepted.load(Relaxed),
            open: self.shared.open.load(Relaxed),
            requests: self.shared.requests.read(),
            replies: self.shared.replies.read(),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The thread ends with the channel, and all connections with the runtime on it.
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // It panicked, and said so, or it ended well: the test's own outcome counts.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Modes {
    requests: Mode,
    replies: Mode,
    connect_delay: Duration,
}

impl Default for Modes {
    fn default() -> Self {
        Self { requests: Mode::Pass, replies: Mode::Pass, connect_delay: Duration::ZERO }
    }
}

/// What must be done, and waited for, rather than be looked up at the next byte.
#[derive(Debug)]
enum Order {
    Accept,
    Refuse,
    Reset,
}

#[derive(Default)]
struct Shared {
    /// The port of the server.
    upstream: AtomicU16,
    accepted: AtomicU64,
    open: AtomicU64,
    requests: Counter,
    replies: Counter,
    losses: Mutex<Losses>,
}

impl Shared {
    fn losses(&self) -> std::sync::MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Counter {
    received: AtomicU64,
    forwarded: AtomicU64,
}

impl Counter {
    fn read(&self) -> Flow {
        // In this order, so that no more is ever forwarded than was received.
        let forwarded = self.forwarded.load(Relaxed);
        Flow { received: self.received.load(Relaxed), forwarded }
    }
}

/// Replies still to be swallowed.
#[derive(Default)]
struct Losses {
    left: u64,
    then_reset: bool,
}

/// The accepting side; owns all connections.
struct Front {
    port: Port,
    modes: watch::Receiver<Modes>,
    shared: Arc<Shared>,
}

impl Front {
    async fn serve(self, mut orders: mpsc::UnboundedReceiver<(Order, std_mpsc::Sender<()>)>) {
        let mut listener: Option<Listener> = None;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                order = orders.recv() => {
                    let Some((order, done)) = order else { return };
                    match order {
                        Order::Accept if listener.is_some() => {}
                        Order::Accept => listener = Some(self.port.listen().expect("listen again")),
                        Order::Refuse => listener = None,
                        Order::Reset => connections.shutdown().await,
                    }
                    // Nobody waits any more where the test panicked meanwhile.
                    let _ = done.send(());
                }
                client = accept(listener.as_ref()) => {
                    connections.spawn(Connection::open(client, &self).run());
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// The next client; never ends while there is no listener, or none that works.
async fn accept(listener: Option<&Listener>) -> TcpStream {
    match listener {
        None => pending().await,
        Some(listener) => loop {
            // An error concerns the connection that was being made, and that client knows of it.
            if let Ok(client) = listener.accept().await {
                return client;
            }
        },
    }
}

/// One client's connection, and the server's that belongs to it.
///
/// Ends in a reset whenever it is dropped before both sides have closed: aborting its task is enough.
struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    closed: bool,
    modes: watch::Receiver<Modes>,
    shared: Arc<Shared>,
}

impl Connection {
    fn open(client: TcpStream, front: &Front) -> Self {
        front.shared.accepted.fetch_add(1, Relaxed);
        front.shared.open.fetch_add(1, Relaxed);
        let (modes, shared) = (front.modes.clone(), Arc::clone(&front.shared));
        Self { client, server: None, closed: false, modes, shared }
    }

    async fn run(mut self) {
        if self.carry().await.is_ok() {
            self.closed = true;
        }
    }

    /// Carries bytes until both sides have closed; an error ends in a reset.
    async fn carry(&mut self) -> io::Result<()> {
        let delay = self.modes.borrow().connect_delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let held = |modes: &Modes| modes.requests == Mode::Hold;
        self.modes.wait_for(|modes| !held(modes)).await.map_err(io::Error::other)?;

        let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, self.shared.upstream.load(Relaxed)));
        let server = self.server.insert(TcpStream::connect(upstream).await?);
        server.set_nodelay(true)?;
        self.client.set_nodelay(true)?;
        let (from_client, to_client) = self.client.split();
        let (from_server, to_server) = server.split();
        let requests = Pump::new(Direction::Requests, self.modes.clone(), &self.shared);
        let replies = Pump::new(Direction::Replies, self.modes.clone(), &self.shared);
        tokio::try_join!(requests.run(from_client, to_server), replies.run(from_server, to_client))?;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Relaxed);
        if !self.closed {
            for stream in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
                // Fails where the peer has reset it already.
                let _ = stream.set_zero_linger();
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// One direction of one connection.
struct Pump<'a> {
    direction: Direction,
    modes: watch::Receiver<Modes>,
    shared: &'a Shared,
    /// Bytes under way and when they are due, in order.
    queue: VecDeque<(Instant, Vec<u8>)>,
    framer: ReplyFramer,
    /// Whether the reply that is being read is one to swallow.
    swallowing: bool,
    /// Whether bytes are missing, so that none may follow.
    lost: bool,
}

impl<'a> Pump<'a> {
    fn new(direction: Direction, modes: watch::Receiver<Modes>, shared: &'a Shared) -> Self {
        let framer = ReplyFramer::default();
        Self { direction, modes, shared, queue: VecDeque::new(), framer, swallowing: false, lost: false }
    }

    /// Moves bytes until the sender has closed and all that it sent is through, then closes towards the
    /// receiver. The error says that the connection must be reset.
    async fn run(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        let (mut reading, mut writing) = (true, true);
        loop {
            // Marks the present mode as seen, so that `changed` below waits for the next.
            self.modes.mark_unchanged();
            let held = self.mode() == Mode::Hold;
            let due = self.queue.front().map(|(due, _)| *due);
            let room = self.queue.len() < QUEUE_BOUND;
            if due.is_none() && !reading && !held {
                if writing {
                    let _ = to.shutdown().await;
                }
                return Ok(());
            }
            tokio::select! {
                changed = self.modes.changed() => changed.map_err(io::Error::other)?,
                read = from.read(&mut buffer), if reading && room && !held => match read {
                    // Torn off is closed as well: what came before must still arrive.
                    Ok(0) | Err(_) => reading = false,
                    Ok(n) => self.take(&buffer[..n])?,
                },
                () = at(due), if !held => {
                    let (_, bytes) = self.queue.pop_front().expect("something was due");
                    if writing {
                        // Counted first: a client that has read the bytes must find them counted.
                        self.counter().forwarded.fetch_add(bytes.len() as u64, Relaxed);
                        // Once the receiver is gone, reading goes on: the sender's end must be noticed.
                        writing = to.write_all(&bytes).await.is_ok();
                    }
                }
            }
        }
    }

    /// Decides, under the mode of this very moment, what becomes of the bytes that were just read.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.counter().received.fetch_add(bytes.len() as u64, Relaxed);
        match self.direction {
            Direction::Requests => self.admit(bytes),
            Direction::Replies => self.take_replies(bytes),
        }
    }

    /// As [`take`](Self::take), reply by reply, without those that are to be swallowed.
    fn take_replies(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut passing = Vec::with_capacity(bytes.len());
        while let Some(&first) = bytes.first() {
            if self.framer.between_replies() {
                let mut losses = self.shared.losses();
                self.swallowing = first != b'>' && losses.left > 0;
                if self.swallowing {
                    losses.left -= 1;
                    // What came before the lost reply still passes, so it goes first.
                    if losses.then_reset {
                        self.admit(&std::mem::take(&mut passing))?;
                        self.lost = true;
                    }
                }
            }
            let (reply, rest) = bytes.split_at(self.framer.advance(bytes));
            if !self.swallowing {
                passing.extend_from_slice(reply);
            }
            bytes = rest;
        }
        self.admit(&passing)
    }

    fn admit(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let delay = match self.mode() {
            Mode::Drop => {
                self.lost = true;
                return Ok(());
            }
            _ if self.lost => return Err(io::Error::other("bytes are missing before these")),
            Mode::Delay(delay) => delay,
            Mode::Pass | Mode::Hold => Duration::ZERO,
        };
        self.queue.push_back((Instant::now() + delay, bytes.to_vec()));
        Ok(())
    }

    fn mode(&self) -> Mode {
        let modes = self.modes.borrow();
        match self.direction {
            Direction::Requests => modes.requests,
            Direction::Replies => modes.replies,
        }
    }

    fn counter(&self) -> &'a Counter {
        match self.direction {
            Direction::Requests => &self.shared.requests,
            Direction::Replies => &self.shared.replies,
        }
    }
}

/// Ends when `due` comes, and never where nothing is due.
async fn at(due: Option<Instant>) {
    match due {
        None => pending().await,
        // The timer counts in milliseconds, upwards; what is due now must not wait for one.
        Some(due) if due <= Instant::now() => ready(()).await,
        Some(due) => sleep_until(due).await,
    }
}
