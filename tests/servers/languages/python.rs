//! Clients of other languages, each in a process of its own that is driven line by line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tokio::task::block_in_place;

/// Where `scripts/languages.sh` puts the packages.
pub fn packages() -> Option<PathBuf> {
    let named = std::env::var_os("REDQUORUM_LANGUAGES").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| harness::top().join("target/languages"));
    let there = ["redis", "pottery"].iter().all(|package| folder.join(package).is_dir());
    there.then_some(folder)
}

/// One lock of a Python client.
///
/// A process of the standard library, driven from a thread that may wait: tokio's listens for the signal of its end, which
/// would interrupt the harness where it asks a server.
pub struct Python {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Python {
    /// Starts it: `kind` as `client.py` names them.
    pub async fn start(packages: &Path, kind: &str, key: &str, ttl: Duration, urls: &[String]) -> Self {
        let script = harness::top().join("tests/servers/languages/client.py");
        let mut command = Command::new("python3");
        command.arg("-B").arg(script).args([kind, key, &ttl.as_millis().to_string()]).args(urls);
        command.env("PYTHONPATH", packages).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start python3");
        let commands = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut python = Self { child, commands, answers };
        assert_eq!(block_in_place(|| python.answer()), "ready", "the client of {kind}");
        python
    }

    /// Waits for the lock in the client's own way, no longer than this.
    pub async fn acquire(&mut self, wait: Duration) -> bool {
        self.ask(&format!("acquire {}", wait.as_secs_f64())).await == "held"
    }

    /// Whether it was still this client's.
    pub async fn release(&mut self) -> bool {
        self.ask("release").await == "released"
    }

    /// Whether it was still this client's.
    pub async fn extend(&mut self) -> bool {
        self.ask("extend").await == "extended"
    }

    async fn ask(&mut self, command: &str) -> String {
        let line = format!("{command}\n");
        block_in_place(|| {
            self.commands.write_all(line.as_bytes()).expect("the client runs");
            self.answer()
        })
    }

    fn answer(&mut self) -> String {
        self.answers.next().expect("the client has not ended").expect("the client runs")
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
