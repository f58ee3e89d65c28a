//! `docs/cli.md` and the README, word for word: what they call works, and prints what the page says, numbers and names of
//! nodes, holders and servers aside.

use std::process::{Command, Output};

use nix::sys::signal::Signal;
use regex::Regex;

use crate::support::*;
use harness::{Cluster, Server};

const PAGE: &str = include_str!("../../../docs/cli.md");
const README: &str = include_str!("../../../README.md");

/// The block of a page in this language that has these words.
#[track_caller]
fn block(page: &'static str, language: &str, words: &str) -> &'static str {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let mut found =
        blocks.filter_map(|block| block.strip_prefix(language)).filter(|block| block.contains(words));
    let block = found.next().unwrap_or_else(|| panic!("no block has {words:?}"));
    assert!(found.next().is_none(), "two blocks have {words:?}");
    block
}

/// What a console shows: the calls, and what they print.
fn console(words: &str) -> (String, String) {
    let lines = || block(PAGE, "console\n", &format!("$ {words}")).lines();
    let calls = lines().filter_map(|line| line.strip_prefix("$ "));
    let printed = lines().filter(|line| !line.starts_with("$ "));
    (calls.map(|call| format!("{call}\n")).collect(), printed.map(|line| format!("{line}\n")).collect())
}

/// The text with whatever differs from run to run put alike.
fn alike(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, word) in [
        (r"\\\n", " "),
        (r"(?m)^([0-9]+)$", "exit code ($1)"),
        (r"127\.0\.0\.1:[0-9]+", "NODE"),
        (r"-p [0-9]+", "-p PORT"),
        (r"[0-9A-F]{16}…", "HOLDER"),
        (r"(Redis|Valkey) [0-9.]+", "SERVER"),
        (r"[0-9]+(\.[0-9]+)? ?(µs|ms|s|min)\b", "TIME"),
        // Which of them answered before it was decided; and servers before 7.0 do not name the holder.
        (r"held by (HOLDER|another) in TIME|not waited for", "ANSWER"),
        (r", [0-9] pending of", " of"),
        (r"([^0-9.(])[0-9]+(\.[0-9]+)?\b", "${1}NUMBER"),
        (r"\s+", " "),
    ] {
        text = Regex::new(pattern).expect("a pattern").replace_all(&text, word).into_owned();
    }
    text
}

#[track_caller]
fn assert_alike(printed: &str, page: &str) {
    assert_eq!(alike(printed), alike(page), "printed:\n{printed}\nthe page:\n{page}");
}

/// Five nodes, and a home whose configuration names them.
struct Place {
    cluster: Cluster,
    traces: Traces,
}

impl Place {
    fn new() -> Self {
        Self::with(Cluster::start(5))
    }

    fn with(cluster: Cluster) -> Self {
        let place = Self { cluster, traces: Traces::new() };
        let nodes = place.cluster.urls().join("\", \"");
        place.write(
            ".config/redquorum/config.toml",
            &format!("nodes = [\"{nodes}\"]\nno-restart-delay = true\n"),
        );
        place.write("report.sh", "#!/bin/sh\necho report\n");
        assert_eq!(code(&place.shell("chmod +x report.sh")), 0);
        place
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.traces.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("make a folder");
        std::fs::write(path, text).expect("write a file");
    }

    fn calls(&self, calls: &str) -> Command {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_redquorum"));
        let path = std::env::var("PATH").expect("a path");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("exec 2>&1\n{calls}")])
            .env("PATH", format!("{}:{path}", program.parent().expect("a folder").display()))
            .env("HOME", self.traces.dir())
            .current_dir(self.traces.dir());
        for name in ["REDQUORUM_NODES", "REDQUORUM_CONFIG", "XDG_CONFIG_HOME", "RUST_LOG", "COLUMNS"] {
            shell.env_remove(name);
        }
        shell
    }

    /// What a shell makes of these calls, in the home.
    fn shell(&self, calls: &str) -> Output {
        done(self.calls(calls))
    }

    /// Has the lock of the page held by somebody, for as long as what is returned is kept.
    fn held(&self) -> Running {
        let holder = started(tool(&self.cluster, &["run", "nightly-report", "--", "sleep", "600"]));
        eventually("the lock is held", || self.cluster.iter().all(|node| node.exists("nightly-report")));
        holder
    }
}

/// A command under a lock finds its key and token; where the lock is another's, that is said, with a code.
#[test]
fn run_is_as_the_page_says() {
    let place = Place::new();
    let (calls, printed) = console("redquorum run");
    let (first, second) = calls.split_once('\n').expect("two calls");
    let fenced = place.shell(first);
    let holder = place.held();
    let refused = place.shell(second);
    assert_alike(&(out(&fenced) + &out(&refused)), &printed);
    holder.signal(Signal::SIGTERM);
}

/// Who has a lock, and who waits.
#[test]
fn status_is_as_the_page_says() {
    let place = Place::new();
    let holder = place.held();
    let waiter = started(tool(&place.cluster, &["run", "nightly-report", "--", "true"]));
    let line = "{nightly-report}:redquorum:line";
    eventually("it waits in the queue", || place.cluster.iter().any(|node| node.exists(line)));
    let (calls, printed) = console("redquorum status");
    assert_alike(&out(&place.shell(&calls)), &printed);
    holder.signal(Signal::SIGTERM);
    assert_eq!(code(&waiter.end()), 0);
}

/// How the nodes are.
#[test]
fn nodes_are_as_the_page_says() {
    let place = Place::new();
    let (calls, printed) = console("redquorum nodes");
    assert_alike(&out(&place.shell(&calls)), &printed);
}

/// What is wrong with two of them.
#[test]
fn doctor_is_as_the_page_says() {
    let place =
        Place::with(Cluster::start_with(5, |_| Server::builder().aof().args(["--aof-load-truncated", "no"])));
    for (node, name, value) in
        [(1, "maxmemory", "1gb"), (1, "maxmemory-policy", "allkeys-lru"), (2, "appendfsync", "everysec")]
    {
        place.cluster[node].command(&["CONFIG", "SET", name, value]);
    }
    let (calls, printed) = console("redquorum doctor");
    let shown = out(&place.shell(&calls));
    // What only those read who switch the guard off.
    assert_alike(&shown.replace("The restart delay was not looked at (--no-restart-delay).\n", ""), &printed);
}

/// How fast they are, also drawn, as the README calls it.
#[test]
fn bench_is_as_the_page_says() {
    let place = Place::new();
    let (calls, printed) = console("redquorum bench");
    assert_eq!(calls, "redquorum bench\n");
    let mut drawn =
        block(README, "sh\n", "redquorum run").lines().filter(|call| call.starts_with("redquorum bench "));
    let output = place.shell(drawn.next().expect("a call"));
    let shown = out(&output);
    // What follows only those read who have it drawn, or whose machine was too busy to measure all.
    let end = shown.lines().position(|line| line.starts_with("fairness")).expect("the last figure");
    let figures: String = shown.lines().take(end + 1).map(|line| format!("{line}\n")).collect();
    assert_alike(&figures, &printed);
    assert!(place.traces.read("bench.html").starts_with("<!doctype html>"));
}

/// Every call of the README, with nodes that are there. They keep nothing on disk, which the doctor minds; and one call needs a
/// terminal, and says so.
#[test]
fn calls_of_the_readme_work() {
    let place = Place::new();
    let calls = block(README, "sh\n", "redquorum run");
    let nodes = place.cluster.urls().join(",");
    let mut seen = 0;
    // How fast they are is measured once.
    let elsewhere =
        |call: &str| call.is_empty() || call.starts_with("cargo ") || call.starts_with("redquorum bench ");
    for call in calls.lines().filter(|call| !elsewhere(call)) {
        if let Some(export) = call.strip_prefix("export REDQUORUM_NODES=") {
            assert_eq!(code(&place.shell(&format!("redquorum --nodes {export} --help"))), 0);
            continue;
        }
        let output = place.shell(&format!("export REDQUORUM_NODES={nodes}\n{call}"));
        let expected = match call {
            call if call.contains("doctor") => 1,
            call if call.contains("watch") => 64,
            _ => 0,
        };
        assert_eq!(code(&output), expected, "{call}: {}", out(&output));
        seen += 1;
    }
    assert_eq!(seen, 4, "{calls}");
}

/// What the page calls to install its help writes it.
#[test]
fn help_is_written_where_the_page_says() {
    let place = Place::new();
    let calls = block(PAGE, "sh\n", "completions");
    let calls: String =
        calls.lines().filter(|line| !line.starts_with("cargo ")).map(|line| format!("{line}\n")).collect();
    let output = place.shell(&format!("set -e\n{calls}"));
    assert_eq!(code(&output), 0, "{}", out(&output));
    assert!(place.traces.read(".local/share/bash-completion/completions/redquorum").contains("_redquorum"));
    assert!(place.traces.read("redquorum.1").starts_with(".ie"));
}

/// The configuration of the page is one that the tool reads.
#[test]
fn the_configuration_of_the_page_is_read() {
    let place = Place::new();
    let file = block(PAGE, "toml\n", "nodes =");
    place.write("page.toml", file);
    let given = format!("nodes = [\"{}\"]", place.cluster.urls().join("\", \""));
    let nodes = Regex::new("(?m)^nodes = .*$").expect("a pattern").replace(file, given.as_str()).into_owned();
    place.write("mine.toml", &nodes);
    let output = place.shell("redquorum --config mine.toml --no-restart-delay status job");
    assert_eq!(code(&output), 0, "{}", out(&output));
    assert!(out(&output).contains("\"job\""), "{}", out(&output));
}
