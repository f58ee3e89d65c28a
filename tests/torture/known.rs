//! What each client knows of its nodes, written down by itself every 50 ms, for the storm that makes the faults.
//!
//! Some faults are noticed only by clients that knew the node before, and docs/safety.md promises no more. So the storm asks what
//! they know before it begins one of these, and waits until they have noticed it before it goes on. No law is judged by this.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use redquorum::{Health, NodeVote, Redlock};

use super::time::{Nanos, Time};

/// What a client knows of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Since when the client has been connected, with a look that is not too old to count. Zero if it is not.
    pub since: Nanos,
    /// Whether its grants count.
    pub counts: bool,
    /// Which run of the server answers. Empty until one has been seen.
    pub run: String,
}

/// Writes what one client knows.
pub struct Notebook {
    file: PathBuf,
    time: Time,
    since: Vec<Nanos>,
}

impl Notebook {
    /// That of this process.
    pub fn new(folder: &Path, time: Time) -> Self {
        Self { file: file(folder, std::process::id()), time, since: Vec::new() }
    }

    /// Writes what the client knows now.
    pub fn write(&mut self, redlock: &Redlock) {
        let now = self.time.now();
        let nodes = redlock.nodes();
        self.since.resize(nodes.len(), 0);
        let mut text = format!("{now}\n");
        for (node, since) in nodes.iter().zip(&mut self.since) {
            let counts = node.vote == NodeVote::Counts;
            let seen = counts || matches!(node.vote, NodeVote::TooYoung { remaining: Some(_) });
            *since = match node.health == Health::Up && seen {
                false => 0,
                true if *since == 0 => now,
                true => *since,
            };
            let _ = writeln!(text, "{since} {counts} {}", node.run_id.as_deref().unwrap_or_default());
        }
        // Whole at any moment: it is read while it is written.
        let next = self.file.with_extension("next");
        fs::write(&next, text).expect("what is known is written");
        fs::rename(next, &self.file).expect("what is known is written");
    }
}

/// What the client in this process wrote last, and when; nothing until it has written.
pub fn read(folder: &Path, process: u32) -> Option<(Nanos, Vec<Known>)> {
    let text = fs::read_to_string(file(folder, process)).ok()?;
    let mut lines = text.lines();
    let at = lines.next()?.parse().expect("a time");
    let known = |line: &str| {
        let [since, counts, run] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let (since, counts) = (since.parse().expect("a time"), counts == "true");
        Known { since, counts, run: run.to_owned() }
    };
    Some((at, lines.map(known).collect()))
}

fn file(folder: &Path, process: u32) -> PathBuf {
    folder.join(format!("{process}.known"))
}
