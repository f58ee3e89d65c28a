//! What happened: one line for each event, written by the clients and by whoever makes the faults.
//!
//! Knows nothing of locks but their names. A line is written in one piece and never buffered, so that a client killed with
//! SIGKILL leaves all that it saw.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::time::{Nanos, Time};

/// Writes what one client does.
#[derive(Clone)]
pub struct Pen(Arc<File>, Time);

impl Pen {
    /// Goes on in a file of this process.
    pub fn new(folder: &Path, time: Time) -> Self {
        let file = folder.join(format!("{}.history", std::process::id()));
        let file = OpenOptions::new().append(true).create(true).open(file).expect("a file for the history");
        Self(Arc::new(file), time)
    }

    fn now(&self) -> Nanos {
        self.1.now()
    }

    fn line(&self, line: &str) {
        (&*self.0).write_all(line.as_bytes()).expect("the history is written");
    }

    /// A task asks for a lock, at the moment that is returned.
    pub fn asked(&self, task: usize, key: &str) -> Nanos {
        let at = self.now();
        self.line(&format!("a {at} {task} {key}\n"));
        at
    }

    /// It has it, for so much longer.
    pub fn granted(&self, task: usize, at: Nanos, left: Duration, token: u64) {
        self.line(&format!("g {} {task} {} {token}\n", self.now(), until(at, left)));
    }

    /// It still has it, for so much longer.
    pub fn holds(&self, task: usize, at: Nanos, left: Duration) {
        self.line(&format!("h {} {task} {}\n", self.now(), until(at, left)));
    }

    /// It is about to give it back.
    pub fn releases(&self, task: usize) {
        self.line(&format!("r {} {task}\n", self.now()));
    }

    /// It gave up waiting, or was refused: why, in one word.
    pub fn failed(&self, task: usize, why: &str) {
        self.line(&format!("x {} {task} {why}\n", self.now()));
    }
}

fn until(at: Nanos, left: Duration) -> Nanos {
    at + u64::try_from(left.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// What became of one request for a lock.
#[derive(Clone, Debug)]
pub struct Request {
    pub process: u32,
    pub task: usize,
    pub key: String,
    pub asked: Nanos,
    pub end: End,
}

#[derive(Clone, Debug)]
pub enum End {
    /// The client was killed meanwhile, or the storm was over.
    Open,
    Failed {
        at: Nanos,
        why: String,
    },
    Held(Hold),
}

/// One holder's time, by its own account.
#[derive(Clone, Debug)]
pub struct Hold {
    pub granted: Nanos,
    /// When it gave the lock back, or its validity ended by the last look.
    pub ended: Nanos,
    /// Zero where it asked for none.
    pub token: u64,
}

impl Request {
    pub fn hold(&self) -> Option<&Hold> {
        match &self.end {
            End::Held(hold) => Some(hold),
            _ => None,
        }
    }
}

/// Reads what all clients wrote, in the order in which they asked.
pub fn read(folder: &Path) -> Vec<Request> {
    let mut requests = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder of histories").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "history") {
            continue;
        }
        let process = path.file_stem().and_then(|name| name.to_str()?.parse().ok()).expect("a process");
        requests.extend(parse(process, &fs::read_to_string(&path).expect("a history")));
    }
    requests.sort_by_key(|request: &Request| request.asked);
    requests
}

fn parse(process: u32, text: &str) -> Vec<Request> {
    let (mut requests, mut open): (Vec<Request>, HashMap<usize, Request>) = Default::default();
    // A process that was killed may have left half a line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap_or_else(|| panic!("{line:?}"));
        let kind = next();
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("{line:?}"));
        let (at, task) = (number(next()), number(next()) as usize);
        if kind == "a" {
            let asked = Request { process, task, key: next().to_owned(), asked: at, end: End::Open };
            requests.extend(open.insert(task, asked));
            continue;
        }
        let Some(request) = open.get_mut(&task) else { panic!("{line:?} without a request") };
        match (kind, &mut request.end) {
            ("g", end @ End::Open) => {
                let (ended, token) = (number(next()), number(next()));
                *end = End::Held(Hold { granted: at, ended, token });
            }
            // Extended, or a look at the same end again.
            ("h", End::Held(hold)) => hold.ended = hold.ended.max(number(next())),
            ("r", End::Held(hold)) => hold.ended = hold.ended.min(at),
            ("x", end @ End::Open) => *end = End::Failed { at, why: next().to_owned() },
            _ => panic!("{line:?} after {:?}", request.end),
        }
    }
    requests.extend(open.into_values());
    requests
}

/// What was done to whom, and from when to when.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub target: Target,
    pub from: Nanos,
    pub to: Nanos,
}

/// Whom a fault hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Node(usize),
    /// A client by its place, whatever process is in it.
    Client(usize),
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    Frozen,
    Crashed,
    Wiped,
    BlackHole,
    Disconnected,
    LostReplies,
    Reset,
    Slow,
    FullMemory,
    FailedSave,
    FlushedScripts,
    Paused,
    Killed,
    SteppedClock,
    FlushedAll,
    Restored,
    Promoted,
    SteppedNode,
    StoodStill,
}

impl Kind {
    pub const ALL: [Self; 19] = [
        Self::Frozen,
        Self::Crashed,
        Self::Wiped,
        Self::BlackHole,
        Self::Disconnected,
        Self::LostReplies,
        Self::Reset,
        Self::Slow,
        Self::FullMemory,
        Self::FailedSave,
        Self::FlushedScripts,
        Self::Paused,
        Self::Killed,
        Self::SteppedClock,
        Self::FlushedAll,
        Self::Restored,
        Self::Promoted,
        Self::SteppedNode,
        Self::StoodStill,
    ];

    /// Those that a client has to notice by looking at its nodes: see [`super::looks`].
    pub const NOTICED: [Self; 5] =
        [Self::SteppedNode, Self::FlushedAll, Self::StoodStill, Self::Promoted, Self::Restored];

    pub fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen (SIGSTOP)",
            Self::Crashed => "crashed (SIGKILL), back after a while",
            Self::Wiped => "wiped and restarted",
            Self::BlackHole => "cut off, bytes held",
            Self::Disconnected => "off its network",
            Self::LostReplies => "replies held",
            Self::Reset => "connections reset",
            Self::Slow => "slow link",
            Self::FullMemory => "out of memory",
            Self::FailedSave => "cannot save",
            Self::FlushedScripts => "scripts flushed",
            Self::Paused => "client paused (SIGSTOP)",
            Self::Killed => "client killed (SIGKILL)",
            Self::SteppedClock => "client's wall clock stepped",
            Self::FlushedAll => "all nodes flushed at once",
            Self::Restored => "an older copy of its directory put back",
            Self::Promoted => "a replica promoted behind its address",
            Self::SteppedNode => "node's clock stepped, and set back",
            Self::StoodStill => "all clients stopped, and their clock with them",
        }
    }
}
