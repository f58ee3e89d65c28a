//! How the tool ends: its exit codes, and what it says where something went wrong.
//!
//! Knows the library's errors, and turns each into a code for scripts, a sentence for people, and the next step. Knows no
//! command.

use std::io;

use redquorum::{AcquireError, BuildError, ReleaseError};
use serde_json::{Value, json};

/// Nothing to complain about.
pub const OK: u8 = 0;
/// Called in a way that cannot work.
pub const USAGE: u8 = 64;
/// Too few nodes.
pub const NO_QUORUM: u8 = 69;
/// The operating system refused something.
pub const SYSTEM: u8 = 71;
/// Somebody else has the lock.
pub const HELD: u8 = 75;
/// The lock was lost while the command ran.
pub const LOST: u8 = 76;
/// The configuration file cannot be used.
pub const CONFIG: u8 = 78;
/// The command cannot be run.
pub const NOT_RUN: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;
/// As a shell counts a process that a signal ended: this and the signal's number.
pub const SIGNALLED: u8 = 128;
/// The reader of the output has gone.
pub const BROKEN_PIPE: u8 = SIGNALLED + 13;

/// All codes of the tool's own, for `--help`, the manual and the documents.
pub const CODES: [(&str, &str); 12] = [
    ("0", "all is well; with `run`, the command ended so"),
    ("1", "`doctor` found something to look at; `status --free` found the lock held"),
    ("2", "`doctor` found something that endangers locks"),
    ("64", "called in a way that cannot work"),
    ("69", "no quorum: too few nodes answer, or may vote (restart delay)"),
    ("71", "the operating system refused something"),
    ("75", "held by another (`run --held-code` takes another number)"),
    ("76", "lost: the lock ended before the command did, which was stopped"),
    ("78", "the configuration cannot be used, or names no node"),
    ("126", "the command cannot be run"),
    ("127", "there is no such command"),
    ("128+n", "ended by signal n: the command with `run`, else the tool"),
];

/// Why the tool ends without having done what it was asked to.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// One word for machines.
    pub kind: &'static str,
    pub what: String,
    /// What to do about it.
    pub next: Option<String>,
}

impl Failure {
    pub fn new(code: u8, kind: &'static str, what: impl Into<String>) -> Self {
        Self { code, kind, what: what.into(), next: None }
    }

    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", what)
    }

    pub fn system(what: impl Into<String>) -> Self {
        Self::new(SYSTEM, "system", what)
    }

    /// With the next step.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    pub fn json(&self) -> Value {
        json!({ "error": self.kind, "code": self.code, "message": self.what, "next": self.next })
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(BROKEN_PIPE, "broken_pipe", ""),
            _ => Self::system(error.to_string()),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let what = error.to_string();
        match error {
            BuildError::NotConnected { connected, nodes, needed, within, trouble } => Self::new(
                NO_QUORUM,
                "no_quorum",
                format!("connected to {connected} of {nodes} nodes within {within:?}, {needed} are needed: {trouble}"),
            )
            .next("look after the nodes that are named; `redquorum doctor` checks each of them"),
            BuildError::TlsNotCompiled { .. } => Self::new(CONFIG, "config", what)
                .next("install the tool with TLS: cargo install redquorum --features cli,tls"),
            BuildError::DuplicateNode { .. } | BuildError::MalformedUrl { .. } | BuildError::NoNodes => {
                Self::new(CONFIG, "config", what).next("mend the list of nodes; `redquorum help nodes` says where it comes from")
            }
            BuildError::Invalid(_) | BuildError::TooManyNodes { .. } => Self::usage(what),
            _ => Self::system(what),
        }
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        let what = error.to_string();
        let (code, kind, next) = classify(&error);
        Self::new(code, kind, what).next(next)
    }
}

/// What stood in the way at last, and what to do about it.
fn classify(error: &AcquireError) -> (u8, &'static str, &'static str) {
    match error {
        AcquireError::TimedOut { last, .. } => classify(last),
        AcquireError::Held { .. } => {
            (HELD, "held", "wait longer with --wait; `redquorum status KEY` shows who has it and who waits")
        }
        AcquireError::NoQuorum { .. } => (
            NO_QUORUM,
            "no_quorum",
            "look after the nodes that are named; `redquorum doctor` checks each of them",
        ),
        AcquireError::NodesTooYoung { .. } => (
            NO_QUORUM,
            "too-young",
            "wait for the restart delay with --wait; where nodes were just set up and hold nothing, --no-restart-delay",
        ),
        AcquireError::TooSlow { .. } => {
            (NO_QUORUM, "too_late", "use a longer --ttl; `redquorum bench` measures these nodes")
        }
        AcquireError::TokensExhausted { .. } => {
            (NO_QUORUM, "tokens_exhausted", "go without --fenced, or repair the counter, KEY:redquorum:fence")
        }
        AcquireError::Invalid(_) => (USAGE, "usage", "see `redquorum help run`"),
        _ => (SYSTEM, "system", "try again"),
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Self {
        Self::new(LOST, "lost", error.to_string())
    }
}
