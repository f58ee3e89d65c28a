//! How the tests call the tool, and wait for what it does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use harness::Cluster;

/// How long anything may take that only has to happen.
pub const SOON: Duration = Duration::from_secs(20);

/// The tool, with these nodes, no configuration of whoever runs the tests, and no restart delay.
pub fn tool(cluster: &Cluster, args: &[&str]) -> Command {
    let mut command = bare(&["--no-restart-delay"]);
    command.args(args).env("REDQUORUM_NODES", cluster.urls().join(","));
    command
}

/// The tool without nodes.
pub fn bare(args: &[&str]) -> Command {
    // As from a shell's prompt: the tool leaves ignored what its starter ignores, and whoever runs the tests in the background
    // may ignore signals that these tests send.
    let program = env!("CARGO_BIN_EXE_redquorum");
    let mut command = Command::new(if cfg!(target_os = "linux") { "env" } else { program });
    if cfg!(target_os = "linux") {
        command.args(["--default-signal", program]);
    }
    for name in ["REDQUORUM_NODES", "REDQUORUM_CONFIG", "REDQUORUM_PREFIX", "RUST_LOG", "NO_COLOR", "COLUMNS"]
    {
        command.env_remove(name);
    }
    command.args(args).env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    command
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it to its end.
#[track_caller]
pub fn done(mut command: Command) -> Output {
    command.output().expect("the tool runs")
}

/// Starts it, with its output kept.
pub fn started(mut command: Command) -> Running {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool runs");
    Running { child: Some(child) }
}

/// A tool that runs; killed when the test ends before it.
pub struct Running {
    child: Option<Child>,
}

impl Running {
    pub fn pid(&self) -> Pid {
        let id = self.child.as_ref().expect("it runs").id();
        Pid::from_raw(i32::try_from(id).expect("a process id"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("send a signal");
    }

    /// Its output, when it has ended.
    pub fn end(mut self) -> Output {
        self.child.take().expect("it runs").wait_with_output().expect("wait for the tool")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !so() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The events that `run --json` told on standard error, in order.
pub fn events(output: &Output) -> Vec<Value> {
    err(output).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The first event of a name.
#[track_caller]
pub fn event(output: &Output, name: &str) -> Value {
    let found = events(output).into_iter().find(|event| event["event"] == name);
    found.unwrap_or_else(|| panic!("no event {name:?}: {}", err(output)))
}

/// A directory for what commands leave behind.
pub struct Traces {
    dir: TempDir,
}

impl Traces {
    pub fn new() -> Self {
        Self { dir: TempDir::with_prefix("redquorum-cli-").expect("a directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What is in a file; nothing where there is none yet.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}
