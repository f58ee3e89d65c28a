//! The server processes of a storm, a spare one that takes the place of another, and what is done to them.
//!
//! Each has a clock of its own, if libfaketime is there and the server starts with it: the true time, plus what its node's clock is
//! off by.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::history::Kind;
use super::ms;
use super::nodes::NODES;
use harness::{Cluster, Server, faketime, set_clock};

/// So many of them keep every write, the first ones. The spare does as well.
pub const DURABLE: usize = 2;

/// Where a server would save to: nothing does, but a replica.
const DUMP: &str = "blocked";

/// See the module.
pub struct Servers {
    nodes: Vec<Place>,
    spare: Place,
    /// What the clock of every client has missed.
    missed: Duration,
    /// A copy of each durable node's directory.
    copies: Vec<PathBuf>,
    clocks: bool,
    _folder: TempDir,
}

/// A server, the file that moves its clock, and by how many seconds its clock is wrong.
struct Place {
    server: Server,
    clock: PathBuf,
    wrong: f64,
}

impl Servers {
    /// Starts all of them.
    pub fn start() -> Self {
        let folder = TempDir::with_prefix("redquorum-torture-").expect("a folder");
        let clock = |place: usize| folder.path().join(format!("clock{place}"));
        (0..=NODES).for_each(|place| set_clock(&clock(place), 0.0));
        let library = faketime().filter(|library| {
            let tried = Server::builder().clock_in(library, clock(0)).try_start();
            if tried.is_err() {
                println!(
                    "left out: this server does not start with libfaketime, so no clock of a server is moved"
                );
            }
            tried.is_ok()
        });
        let build = |place: usize| {
            let server = Server::builder().args(["--dbfilename", DUMP]);
            let server =
                server.args(["--auto-aof-rewrite-min-size", "16mb", "--repl-diskless-sync-delay", "0"]);
            let server = match &library {
                Some(library) => server.clock_in(library, clock(place)),
                None => server,
            };
            if place < DURABLE || place == NODES { server.aof() } else { server }
        };
        let servers = Cluster::start_with(NODES + 1, build).into_servers().into_iter();
        let mut nodes: Vec<_> = servers
            .enumerate()
            .map(|(place, server)| Place { server, clock: clock(place), wrong: 0.0 })
            .collect();
        let spare = nodes.pop().expect("the spare one");
        let copies = (0..DURABLE).map(|node| folder.path().join(format!("copy{node}"))).collect();
        Self { nodes, spare, missed: Duration::ZERO, copies, clocks: library.is_some(), _folder: folder }
    }

    /// What can be done to them.
    pub fn suffer(&self, kind: Kind) -> bool {
        match kind {
            Kind::Disconnected => false,
            Kind::SteppedNode | Kind::StoodStill => self.clocks,
            _ => true,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().map(|place| &place.server)
    }

    /// Which run of the server is in this place.
    pub fn run(&self, node: usize) -> String {
        self.nodes[node].server.info("server", "run_id").expect("a run")
    }

    /// Copies what a durable node keeps.
    pub fn back_up(&self, node: usize) {
        self.nodes[node].server.back_up(&self.copies[node]);
    }

    /// Puts that copy back.
    pub fn restore(&self, node: usize) {
        let server = &self.nodes[node].server;
        server.restore(&self.copies[node]);
        assert!(server.exists(MARKER), "the copy has the marker of a node");
    }

    /// Makes the spare server a replica of a node, and waits until it is in step. Returns whether it is.
    pub fn replicate(&self, node: usize) -> bool {
        let (primary, replica) = (&self.nodes[node].server, &self.spare.server);
        self.show(&self.spare, self.nodes[node].wrong);
        replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        let in_step = || {
            let is = |section, field, value: &str| {
                replica.info(section, field).is_some_and(|found| found.starts_with(value))
            };
            is("replication", "master_link_status", "up")
                && is("persistence", "aof_rewrite_in_progress", "0")
                && is("persistence", "aof_rewrite_scheduled", "0")
                && is("persistence", "aof_last_bgrewrite_status", "ok")
                && replica.get(MARKER) == primary.get(MARKER)
        };
        let deadline = Instant::now() + ms(20_000);
        while !in_step() {
            if Instant::now() > deadline {
                replica.command(&["REPLICAOF", "NO", "ONE"]);
                return false;
            }
            thread::sleep(ms(10));
        }
        // It received its state in a file, which would stand in the way.
        let _ = fs::remove_file(dump(replica));
        true
    }

    /// Promotes the replica. Its primary does not know, and what it does from now on is not in the replica.
    pub fn promote(&self) {
        self.spare.server.command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// The promoted server and the node change places; the one that was there is gone at once.
    pub fn change_places(&mut self, node: usize) -> &Server {
        let place = &mut self.nodes[node];
        std::mem::swap(&mut place.server, &mut self.spare.server);
        std::mem::swap(&mut place.clock, &mut self.spare.clock);
        self.spare.server.kill9();
        &place.server
    }

    /// The one that was replaced starts as the spare one, and knows nothing.
    pub fn renew_spare(&self) {
        self.spare.server.wipe();
    }

    /// Sets a node's clock wrong by so many seconds.
    pub fn set_clock(&mut self, node: usize, wrong: f64) {
        self.nodes[node].wrong = wrong;
        let place = &self.nodes[node];
        self.show(place, wrong);
        self.until_shown(node);
    }

    /// All clocks go on by so much, while the clients' stand still.
    pub fn go_on(&mut self, by: Duration) {
        self.missed += by;
        self.nodes.iter().chain([&self.spare]).for_each(|place| self.show(place, place.wrong));
        (0..NODES).for_each(|node| self.until_shown(node));
    }

    /// Servers may look at their clock now and then only.
    fn until_shown(&self, node: usize) {
        let (wanted, deadline) =
            (self.missed.as_secs_f64() + self.nodes[node].wrong, Instant::now() + ms(5_000));
        loop {
            let shown = self.ahead(node);
            if (shown - wanted).abs() < 1.0 {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the clock of a server is ahead by {shown} s instead of {wanted} s"
            );
            thread::sleep(ms(1));
        }
    }

    fn show(&self, place: &Place, wrong: f64) {
        set_clock(&place.clock, self.missed.as_secs_f64() + wrong);
    }

    /// How far a server's clock is ahead of this machine's, in seconds.
    fn ahead(&self, node: usize) -> f64 {
        let shown: (u64, u64) =
            redis::from_redis_value(self.nodes[node].server.command(&["TIME"])).expect("a time");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        shown.0 as f64 + shown.1 as f64 / 1e6 - now.as_secs_f64()
    }

    /// Does it to a node.
    pub fn begin(&self, kind: Kind, node: usize) {
        begin(kind, &self.nodes[node].server);
    }

    /// Ends it.
    pub fn finish(&self, kind: Kind, node: usize) {
        finish(kind, &self.nodes[node].server);
    }
}

/// The key that names a node and dates its memory.
const MARKER: &str = "redquorum:node";

fn begin(kind: Kind, server: &Server) {
    match kind {
        Kind::Frozen => server.freeze(),
        Kind::Crashed => server.kill9(),
        Kind::Wiped => server.wipe(),
        Kind::FullMemory => drop(server.command(&["CONFIG", "SET", "maxmemory", "1"])),
        Kind::FailedSave => {
            // A folder stands where the file should be.
            fs::create_dir_all(dump(server)).expect("a folder");
            server.command(&["CONFIG", "SET", "save", "3600 1"]);
            drop(server.try_command(&["BGSAVE"]));
            saved(server);
        }
        Kind::FlushedScripts => drop(server.command(&["SCRIPT", "FLUSH"])),
        _ => {}
    }
}

fn finish(kind: Kind, server: &Server) {
    match kind {
        Kind::Frozen => server.thaw(),
        Kind::Crashed => server.restart(),
        Kind::FullMemory => drop(server.command(&["CONFIG", "SET", "maxmemory", "0"])),
        Kind::FailedSave => {
            server.command(&["CONFIG", "SET", "save", ""]);
            saved(server);
            // A server that starts would try to read it.
            fs::remove_dir(dump(server)).expect("the folder was there");
        }
        _ => {}
    }
}

/// Waits until no save is under way any more.
fn saved(server: &Server) {
    while server.info("persistence", "rdb_bgsave_in_progress").is_some_and(|saves| saves != "0") {
        thread::sleep(ms(5));
    }
}

/// The file that a server would save to.
fn dump(server: &Server) -> PathBuf {
    let folder = server.command(&["CONFIG", "GET", "dir"]);
    let folder: HashMap<String, String> = redis::from_redis_value(folder).expect("a folder");
    Path::new(&folder["dir"]).join(DUMP)
}
