//! The storm: servers, clients and the faults between them, drawn from a seed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

use super::checker::Lives;
use super::history::{Fault, Hold, Kind, Request, Target};
use super::looks;
use super::nodes::{NODES, Nodes};
use super::time::{Nanos, Time};
use super::{TTL, ms};
use harness::{Mode, Proxy, faketime, set_clock, with_clock_in};

pub const CLIENTS: usize = 4;

/// Wall clocks differ by less than the guard even between two that were stepped: more is no part of what tokens promise
/// where nodes forget.
const STEP: i64 = 800;

/// What is left when it is over.
pub struct Aftermath {
    pub faults: Vec<Fault>,
    pub lives: Lives,
    pub from: Nanos,
    pub to: Nanos,
    /// Lock keys on the servers after everybody closed.
    pub leftovers: Vec<String>,
    /// Clients that ended with an error or a panic.
    pub failed: Vec<String>,
    /// Bytes in memory of the client that is never killed, second by second.
    pub memory: Vec<u64>,
}

impl Aftermath {
    /// How often there was such a fault, and how many locks were held when they came.
    pub fn count(&self, kind: Kind, requests: &[Request]) -> (usize, usize) {
        let mut moments: Vec<Nanos> =
            self.faults.iter().filter(|fault| fault.kind == kind).map(|fault| fault.from).collect();
        let times = moments.len();
        moments.sort_unstable();
        moments.dedup();
        let during = |hold: &Hold| {
            let before = |moment| moments.partition_point(|at| *at < moment);
            before(hold.ended).saturating_sub(before(hold.granted))
        };
        (times, requests.iter().filter_map(Request::hold).map(during).sum())
    }
}

/// Servers, clients and all that is between them.
pub struct Storm {
    pub nodes: Nodes,
    /// One row of proxies for every second client: two clients may see the same node differently.
    pub proxies: [Vec<Proxy>; 2],
    pub folder: PathBuf,
    pub time: Time,
    pub clients: Vec<Client>,
    ended: Vec<(usize, u32, Nanos, Nanos)>,
    pub failed: Vec<String>,
    pub faults: Vec<Fault>,
    pub random: StdRng,
    /// Kinds of faults that come next, the last one first.
    due: Vec<Kind>,
    /// When each durable node's directory was copied.
    pub copied: Vec<Option<Nanos>>,
    /// Before that no client starts that would have to know more than it can.
    pub newcomers_from: Nanos,
    /// How far the machine's wall clock, which is that of the clients, is ahead of what it shows, in seconds.
    pub wall: f64,
}

pub struct Client {
    pub child: Child,
    born: Nanos,
    /// How far its wall clock was stepped, in seconds.
    step: f64,
}

/// Lets it blow on these nodes for so long. The faults of `first` come before all others.
pub fn blow(nodes: Nodes, length: Duration, seed: u64, first: &[Kind], folder: &Path) -> Aftermath {
    let mut storm = Storm::new(nodes, folder, seed);
    storm.wait_for_age();
    for place in 0..CLIENTS {
        storm.start(place);
    }
    let memory = watch_memory(storm.clients[0].child.id());
    let from = storm.time.now();
    let until = Instant::now() + length;
    // Some calm at the beginning, and now and then: order in line is promised there.
    thread::sleep(ms(1_000));
    storm.begin_copies();
    thread::sleep(ms(6_500));
    let mut first = first.iter().copied();
    while Instant::now() < until || first.len() > 0 {
        let hit = match first.next() {
            Some(kind) => storm.hit(kind).unwrap_or_else(|| panic!("{} was not possible", kind.name())),
            None => storm.squall(),
        };
        let calm = match storm.random.random_range(0..30) {
            0 if first.len() == 0 => 8_000,
            // How long it takes until somebody gets in again is seen where nothing else comes in between.
            _ if hit > NODES / 2 => 2_500,
            _ => storm.random.random_range(50..600),
        };
        thread::sleep(ms(calm).min(until.saturating_duration_since(Instant::now())));
    }
    storm.end(from, memory)
}

impl Storm {
    fn new(nodes: Nodes, folder: &Path, seed: u64) -> Self {
        let proxies = [nodes.proxies(), nodes.proxies()];
        let random = StdRng::seed_from_u64(seed);
        let (clients, ended, failed, faults, due, copied, newcomers_from, wall) = Default::default();
        let (folder, time) = (folder.to_owned(), Time::of(folder));
        Self {
            nodes,
            proxies,
            folder,
            time,
            clients,
            ended,
            failed,
            faults,
            random,
            due,
            copied,
            newcomers_from,
            wall,
        }
    }

    fn wait_for_age(&self) {
        while !self.nodes.are_older_than(TTL) {
            thread::sleep(ms(50));
        }
    }

    /// Starts a client in its place, for the first time or again.
    fn start(&mut self, place: usize) {
        let urls: Vec<_> = self.proxies[place % 2].iter().map(Proxy::url).collect();
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "client", "--ignored", "--nocapture"]).stdout(Stdio::null());
        command.env("REDQUORUM_CHILD_NODES", urls.join(",")).env("REDQUORUM_CHILD_FOLDER", &self.folder);
        let errors =
            File::options().append(true).create(true).open(self.folder.join("errors")).expect("a file");
        command.stderr(errors);
        if let Some(library) = faketime() {
            let clock = self.clock(place);
            set_clock(&clock, self.wall);
            with_clock_in(&mut command, &library, &clock);
        }
        let child = command.spawn().expect("a client");
        let client = Client { child, born: self.time.now(), step: 0.0 };
        if place < self.clients.len() {
            self.clients[place] = client;
        } else {
            self.clients.push(client);
        }
    }

    fn clock(&self, place: usize) -> PathBuf {
        self.folder.join(format!("clock{place}"))
    }

    /// Every client's wall clock shows what it should.
    pub fn show_wall(&self) {
        for (place, client) in self.clients.iter().enumerate() {
            set_clock(&self.clock(place), self.wall + client.step);
        }
    }

    /// One to some faults at a time, and their end; returns how many.
    fn squall(&mut self) -> usize {
        let mut put_off = Vec::new();
        loop {
            // Each kind comes before one comes again.
            if self.due.is_empty() {
                self.due = plan(&self.nodes);
                self.due.shuffle(&mut self.random);
            }
            let kind = self.due.pop().expect("some kind");
            if let Some(hit) = self.hit(kind) {
                self.due.append(&mut put_off);
                return hit;
            }
            put_off.push(kind);
        }
    }

    /// Nodes in random order: mostly a minority; now and then a majority, after which it has to go on at once.
    pub fn some_nodes(&mut self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..NODES).collect();
        places.shuffle(&mut self.random);
        let many = match self.random.random_range(0..10) {
            0..6 => 1,
            6..9 => 2,
            _ => self.random.random_range(NODES / 2 + 1..=NODES),
        };
        places.truncate(many);
        places
    }

    /// Does it to one or some at a time, and ends it; returns to how many. `None` if it cannot be done now.
    fn hit(&mut self, kind: Kind) -> Option<usize> {
        match kind {
            _ if Kind::NOTICED.contains(&kind) => return self.hit_noticed(kind),
            Kind::Killed if self.time.now() < self.newcomers_from => return None,
            _ => {}
        }
        let places = self.some_nodes();
        let length = ms(self.random.random_range(50..1_500));
        let hit = match kind {
            Kind::Paused => vec![Target::Client(self.random.random_range(0..CLIENTS))],
            // The first is never killed: its memory is watched.
            Kind::Killed => vec![Target::Client(self.random.random_range(1..CLIENTS))],
            Kind::SteppedClock => vec![Target::Client(self.random.random_range(0..CLIENTS))],
            _ => places.into_iter().map(Target::Node).collect(),
        };
        let begun: Vec<(Target, Nanos)> = hit
            .into_iter()
            .map(|target| {
                let from = self.time.now();
                self.begin(kind, target);
                (target, from)
            })
            .collect();
        if !matches!(
            kind,
            Kind::Wiped | Kind::Reset | Kind::FlushedScripts | Kind::Killed | Kind::SteppedClock
        ) {
            // A paused client is left to sleep beyond its validity now and then.
            thread::sleep(if kind == Kind::Paused { 2 * length } else { length });
        }
        let many = begun.len();
        for (target, from) in begun {
            self.finish(kind, target);
            let to = self.time.now();
            self.faults.push(Fault { kind, target, from, to });
        }
        Some(many)
    }

    /// Both rows of proxies of a node, or one of them: what one half of the clients sees.
    fn links(&mut self, node: usize) -> Vec<&Proxy> {
        let rows: &[usize] = [&[0, 1][..], &[0], &[1]][self.random.random_range(0..3)];
        rows.iter().map(|row| &self.proxies[*row][node]).collect()
    }

    fn begin(&mut self, kind: Kind, target: Target) {
        match target {
            Target::Client(place) => self.begin_client(kind, place),
            Target::Node(node) => self.begin_node(kind, node),
        }
    }

    fn begin_client(&mut self, kind: Kind, place: usize) {
        match kind {
            Kind::Paused => signal(&self.clients[place].child, Signal::STOP),
            Kind::Killed => {
                let client = &mut self.clients[place];
                client.child.kill().expect("a client is killed");
                client.child.wait().expect("a client has ended");
                self.ended.push((place, client.child.id(), client.born, self.time.now()));
                self.start(place);
            }
            _ => {
                self.clients[place].step = self.random.random_range(-STEP..=STEP) as f64 / 1_000.0;
                self.show_wall();
            }
        }
    }

    fn begin_node(&mut self, kind: Kind, node: usize) {
        let delay = ms(self.random.random_range(1..20));
        match kind {
            Kind::BlackHole => self.links(node).into_iter().for_each(Proxy::black_hole),
            Kind::LostReplies => self.links(node).into_iter().for_each(|link| link.replies(Mode::Hold)),
            Kind::Reset => self.links(node).into_iter().for_each(Proxy::reset),
            Kind::Slow => self.links(node).into_iter().for_each(|link| link.requests(Mode::Delay(delay))),
            _ => {}
        }
        self.nodes.begin(kind, node);
    }

    fn finish(&mut self, kind: Kind, target: Target) {
        match (kind, target) {
            (Kind::Paused, Target::Client(place)) => signal(&self.clients[place].child, Signal::CONT),
            (Kind::BlackHole | Kind::LostReplies | Kind::Slow, Target::Node(node)) => {
                self.proxies.iter().for_each(|row| row[node].pass());
            }
            (_, Target::Node(node)) => self.nodes.finish(kind, node),
            _ => {}
        }
    }

    /// Everybody finishes and closes; then nothing may be left.
    fn end(mut self, from: Nanos, memory: MemoryWatch) -> Aftermath {
        let to = self.time.now();
        thread::sleep(ms(500));
        File::create(self.folder.join("over")).expect("a file");
        for (place, mut client) in self.clients.drain(..).enumerate() {
            let deadline = Instant::now() + Duration::from_secs(60);
            let status = loop {
                match client.child.try_wait().expect("a client") {
                    Some(status) => break Some(status),
                    None if Instant::now() > deadline => break None,
                    None => thread::sleep(ms(10)),
                }
            };
            match status {
                Some(status) if status.success() => {}
                Some(status) => self.failed.push(format!("client {place} ended with {status}")),
                None => {
                    let _ = client.child.kill();
                    let _ = client.child.wait();
                    self.failed.push(format!("client {place} did not end within a minute"));
                }
            }
            self.ended.push((place, client.child.id(), client.born, self.time.now()));
        }
        // Those of clients that were killed end with their TTL, by a clock that may have been set back since.
        let deadline = Instant::now() + 2 * TTL + looks::FARTHEST;
        let leftovers = loop {
            let left = self.nodes.lock_keys();
            if left.is_empty() || Instant::now() > deadline {
                break left;
            }
            thread::sleep(ms(20));
        };
        let errors = fs::read_to_string(self.folder.join("errors")).unwrap_or_default();
        self.failed.extend(errors.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        Aftermath {
            faults: std::mem::take(&mut self.faults),
            lives: Lives(std::mem::take(&mut self.ended)),
            from,
            to,
            leftovers,
            failed: std::mem::take(&mut self.failed),
            memory: memory.stop(),
        }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        for client in &mut self.clients {
            let _ = client.child.kill();
            let _ = client.child.wait();
        }
    }
}

/// All kinds of faults that are possible with these nodes, or those of them that were asked for.
pub fn plan(nodes: &Nodes) -> Vec<Kind> {
    let asked = std::env::var("REDQUORUM_STORM_KINDS").ok();
    let asked_for = |kind: Kind| {
        asked.as_ref().is_none_or(|asked| asked.split(',').any(|name| name == format!("{kind:?}")))
    };
    let kinds = Kind::ALL.iter().copied().filter(|kind| nodes.suffers(*kind) && asked_for(*kind));
    kinds.filter(|kind| *kind != Kind::SteppedClock || faketime().is_some()).collect()
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("a client is there");
}

/// Looks at a process's memory every second.
struct MemoryWatch(Arc<AtomicBool>, Arc<Mutex<Vec<u64>>>, thread::JoinHandle<()>);

fn watch_memory(process: u32) -> MemoryWatch {
    let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let (stop, notes) = (over.clone(), seen.clone());
    let watching = thread::spawn(move || {
        let resident = || {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
        };
        while !stop.load(Ordering::Relaxed) {
            notes.lock().expect("a list").extend(resident());
            thread::sleep(ms(1_000));
        }
    });
    MemoryWatch(over, seen, watching)
}

impl MemoryWatch {
    fn stop(self) -> Vec<u64> {
        self.0.store(true, Ordering::Relaxed);
        self.2.join().expect("no panic");
        std::mem::take(&mut self.1.lock().expect("a list"))
    }
}
