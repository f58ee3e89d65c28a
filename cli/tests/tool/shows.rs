//! `bench`, `demo` and `watch`: they run to their end, and show what they should.

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::Value;

use crate::support::*;
use harness::Cluster;

/// A benchmark measures each node, the quorum, contention and one slow node, and leaves nothing behind.
#[test]
fn bench_measures_and_draws() {
    let (cluster, traces) = (Cluster::start(3), Traces::new());
    let page = traces.path("bench.html");
    let args = ["--json", "bench", "--count", "40", "--contenders", "2", "--slow", "30ms", "--html"];
    let output = done(tool(&cluster, &[&args[..], &[page.to_str().expect("a path")]].concat()));
    assert_eq!(code(&output), 0, "{output:?}");
    let value: Value = serde_json::from_str(&out(&output)).expect("JSON");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number: {value}"));

    let one = &value["one_client"];
    assert_eq!((&one["failed"], &one["quorum"]["count"]), (&0.into(), &40.into()), "{value:#}");
    assert!(
        number(&one["quorum"]["p50_ms"]) > 0.0
            && number(&one["quorum"]["p99_ms"]) >= number(&one["quorum"]["p50_ms"])
    );
    let slowed = &value["one_node_slowed"];
    assert!(number(&slowed["nodes"][2]["p50_ms"]) >= 30.0, "{value:#}");
    assert!(number(&slowed["quorum"]["p50_ms"]) < 30.0, "nobody waits for one slow node: {value:#}");
    let contended = &value["contended"];
    assert_eq!((&contended["shares"], &contended["failed"]), (&serde_json::json!([20, 20]), &0.into()));
    assert!(number(&contended["hand_over"]["p50_ms"]) > 0.0);

    let drawn = std::fs::read_to_string(&page).expect("the page");
    assert!(drawn.starts_with("<!doctype html>") && drawn.matches("<svg").count() >= 8);
    for outside in ["src=", "href=", "http://", "https://", "url(", "@import"] {
        assert!(!drawn.contains(outside), "the page needs nothing else: {outside}");
    }
    for server in cluster.iter() {
        eventually("no lock is left", || !server.keys().iter().any(|key| key.contains("bench")));
    }

    let shown = done(tool(&cluster, &["bench", "--count", "20"]));
    assert!(out(&shown).contains("hand-over") && out(&shown).contains("n3 slowed by 50 ms"), "{shown:?}");
    assert!(out(&shown).lines().all(|line| line.chars().count() <= 80), "{}", out(&shown));
}

/// One slow node holds the benchmark up no more than the locks, and each of its answers is measured.
#[test]
fn one_slow_node_does_not_hold_up_bench() {
    let cluster = Cluster::start(3);
    let began = Instant::now();
    let output = done(tool(&cluster, &["--json", "bench", "--count", "300", "--contenders", "2"]));
    let took = began.elapsed();
    assert_eq!(code(&output), 0, "{output:?}");

    // Waited for one after the other, the answers alone would take fifteen seconds.
    assert!(took < Duration::from_secs(10), "{took:?}");
    let value: Value = serde_json::from_str(&out(&output)).expect("JSON");
    let slowed = &value["one_node_slowed"];
    assert_eq!(slowed["quorum"]["count"], 300, "{value:#}");
    let slow = &slowed["nodes"][2];
    assert!(slow["count"].as_u64() >= Some(290), "{value:#}");
    assert!(slow["min_ms"].as_f64() >= Some(50.0), "{value:#}");
    assert!(slowed["quorum"]["p90_ms"].as_f64() < Some(50.0), "{value:#}");
}

/// Where every lock needs the slow node, that part ends after some seconds, and tells how many locks it measured.
#[test]
fn bench_ends_where_each_lock_needs_the_slow_node() {
    let cluster = Cluster::start(2);
    let began = Instant::now();
    let output = done(tool(&cluster, &["bench", "--count", "300", "--contenders", "2"]));
    let took = began.elapsed();
    assert_eq!(code(&output), 0, "{output:?}");

    assert!(took < Duration::from_secs(15), "{took:?}");
    let told = Regex::new("n2 slowed by 50 ms: ([0-9]+) locks in [0-9.]+ s, not 300").expect("a pattern");
    let shown = out(&output);
    let count = told.captures(&shown).and_then(|found| found[1].parse::<u32>().ok());
    assert!(count.is_some_and(|count| (10..300).contains(&count)), "{shown}");
}

/// Also a node that is slower than a round waits has its times; one that is away has none, and that is said.
#[test]
fn bench_shows_each_node_or_says_why_not() {
    let cluster = Cluster::start(3);
    let bench = |cluster: &Cluster, slow: &str| {
        let args = ["bench", "--count", "10", "--contenders", "2", "--slow", slow];
        let output = done(tool(cluster, &args));
        assert_eq!(code(&output), 0, "{output:?}");
        out(&output)
    };

    let shown = bench(&cluster, "300ms");
    let slow = Regex::new(r"(?m)^n3 127\.0\.0\.1:[0-9]+ +[0-9]{3} ms").expect("a pattern");
    assert!(slow.is_match(&shown) && !shown.contains("in time"), "{shown}");

    cluster[0].kill9();
    let shown = bench(&cluster, "10ms");
    for part in ["one client", "n3 slowed by 10 ms"] {
        assert!(shown.contains(&format!("{part}: n1 voted in time for 0 of 10 locks")), "{shown}");
    }
}

/// The demo shows its acts, on nodes in memory and on real ones.
#[test]
fn demo_ends_well() {
    let in_memory = done(bare(&["demo"]));
    assert_eq!(code(&in_memory), 0, "{in_memory:?}");
    assert!(out(&in_memory).contains("6. A worker outlives its lock"));
    let cluster = Cluster::start(3);
    let real = done(tool(&cluster, &["demo", "--real"]));
    assert_eq!(code(&real), 0, "{real:?}");
    assert!(out(&real).contains("behind a proxy"));
}

/// A terminal of 80 columns, by tmux; ended with the test.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// `None` where there is no tmux.
    fn open(mut command: Command) -> Option<Self> {
        let socket = format!("redquorum-{}-{}", std::process::id(), thread_name());
        let args = command
            .get_args()
            .map(|arg| format!("'{}'", arg.to_string_lossy()))
            .collect::<Vec<_>>()
            .join(" ");
        let program = command.get_program().to_string_lossy();
        let line = format!("{program} {args}; echo ended $?; sleep 60");
        let set = command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let variables: Vec<_> = set.collect();
        command = Command::new("tmux");
        command.args(["-L", &socket, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", &line]);
        let status = command.env_remove("TMUX").envs(variables).status().ok()?;
        status.success().then_some(Self { socket })
    }

    fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux").args(["-L", &self.socket]).args(args).output().expect("tmux runs")
    }

    fn screen(&self) -> String {
        out(&self.tmux(&["capture-pane", "-p"]))
    }

    /// Waits until the screen has this text.
    #[track_caller]
    fn shows(&self, text: &str) {
        let deadline = Instant::now() + SOON;
        while !self.screen().contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} on the screen:\n{}", self.screen());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn type_in(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn thread_name() -> String {
    thread::current().name().unwrap_or("test").replace("::", "-")
}

/// In a terminal, what happens to nodes and locks shows; a key ends it, and the terminal is as before.
#[test]
fn watch_shows_what_happens() {
    let cluster = Cluster::start(3);
    let Some(terminal) = Terminal::open(tool(&cluster, &["watch", "--every", "50ms", "job"])) else {
        println!("skipped: no tmux");
        return;
    };
    terminal.shows("3 of 3 vote");
    assert!(terminal.screen().contains("free"), "{}", terminal.screen());
    let holder = started(tool(&cluster, &["run", "job", "--", "sleep", "60"]));
    terminal.shows("is held by");
    cluster[2].kill9();
    terminal.shows("2 of 3 vote");
    cluster[2].restart();
    terminal.shows("3 of 3 vote");
    assert!(terminal.screen().lines().all(|line| line.chars().count() <= 80));

    terminal.type_in("q");
    terminal.shows("ended 0");
    drop(holder);

    let piped = done(tool(&cluster, &["watch", "job"]));
    assert_eq!(code(&piped), 64);
    assert!(err(&piped).contains("status"), "{}", err(&piped));
}

/// On a terminal, Ctrl-C goes to the command, which has the terminal to itself, and gives it back.
#[test]
fn the_terminal_is_lent_to_the_command() {
    let cluster = Cluster::start(3);
    let script = "trap \"echo caught; exit 9\" INT; echo ready; read line; echo read $line; while :; do sleep 0.01; done";
    let Some(terminal) = Terminal::open(tool(&cluster, &["run", "job", "--", "sh", "-c", script])) else {
        println!("skipped: no tmux");
        return;
    };
    terminal.shows("ready");
    terminal.type_in("word");
    terminal.type_in("Enter");
    terminal.shows("read word");
    terminal.type_in("C-c");
    terminal.shows("ended 9");
    assert!(terminal.screen().contains("caught"));
}
