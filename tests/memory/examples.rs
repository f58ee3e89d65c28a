//! The examples as a user starts them: each ends well, and says what it is there to show.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The folder with the programs of all examples.
///
/// Cargo names them to no test, and they may be older than their sources, so it is asked to build them: as it does when all
/// tests of the workspace run, so that nothing is built twice there.
fn programs() -> &'static Path {
    static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
        // target/debug/deps/memory-0123456789abcdef
        let this = std::env::current_exe().expect("this program");
        let built = this.ancestors().nth(2).expect("a folder for this kind of build");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--all-features", "--examples"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        // What cargo tells this test about its package would look to build scripts like a change, and have them run anew.
        for (name, _) in std::env::vars_os() {
            let told = name.to_string_lossy();
            if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&name);
            }
        }
        cargo.env("CARGO_TARGET_DIR", built.parent().expect("a target folder")).current_dir(harness::top());
        assert!(cargo.status().expect("cargo runs").success(), "the examples are not built");
        built.join("examples")
    });
    &PROGRAMS
}

/// Runs an example; returns what it printed.
fn shown(name: &str) -> String {
    let output = Command::new(programs().join(name)).env("ONCE", "1").output().expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    shown
}

#[track_caller]
fn shows(name: &str, lines: &[&str]) {
    let shown = shown(name);
    for line in lines {
        assert!(shown.contains(line), "{line:?} is missing from:\n{shown}");
    }
}

/// A lock is held, refused to others, and free again.
#[test]
fn basic_shows_a_lock() {
    shows("basic", &["held for another 9.", "is held by another", "held again, by the votes of: "]);
}

/// Work outlasts its TTL under a kept lock, and ends with the longest hold.
#[test]
fn worker_outlasts_its_ttl() {
    shows("worker", &["step 4, held for", "done: four pages", "dropped the work that hung", "done in time"]);
}

/// The database refuses the write of a holder that came before the last one.
#[test]
fn fencing_refuses_the_late_write() {
    shows("fencing", &["the first holder's write is refused", "the report still says \"four pages\""]);
}

/// Each invoice is booked once, those of a worker that died and of one that stood still by others.
#[test]
fn invoices_are_booked_exactly_once() {
    let lines = [
        "ben dies over invoice",
        "cleo comes too late for invoice",
        "left by ben, was booked by",
        "left by cleo, was booked by",
        "30 of 30 invoices are booked exactly once",
    ];
    shows("invoices", &lines);
}

/// A leader that stood still is refused by what it leads, steps down, and others have led meanwhile.
#[test]
fn leader_steps_down_when_its_lock_is_lost() {
    let lines = [
        "ann's write is refused",
        "ann steps down: the lock expired",
        "ben has led long enough",
        "ann has led long enough",
        "the journal: ann, ann, ben, ",
    ];
    shows("leader", &lines);
}

/// Each tick runs on one machine, and on another one where the first is down.
#[test]
fn cron_runs_each_tick_once() {
    shows("cron", &["tick 2 ran on three", "4 of 4 ticks ran once"]);
}

/// A closing client ends work and waits, and leaves nothing open.
#[test]
fn shutdown_leaves_nothing_open() {
    shows("shutdown", &["nothing left open", "the one who waited: the client is closed"]);
}

/// A request is served, refused or put off, each by its status, and the service ends in an orderly way.
#[test]
fn axum_answers_with_statuses() {
    let lines = [
        "one: HTTP/1.1 200 OK",
        "HTTP/1.1 423 Locked, retry-after: 1",
        "one who waits then: HTTP/1.1 503 Service Unavailable, retry-after: 1",
        "one who works when the service ends: HTTP/1.1 200 OK",
        "ended, with nothing left open",
    ];
    shows("axum", &lines);
}

/// The spans of the library are beneath those of the request, with what the nodes answered.
#[test]
fn opentelemetry_shows_acquires_in_requests() {
    let lines = [
        "first request, ",
        "\n  acquire (key invoice:4711), ",
        "\n    · vote (node n",
        "\n    · acquired",
        "\n  release (key invoice:4711), ",
        "\nsecond request, ",
        "\n    · not acquired",
    ];
    shows("opentelemetry", &lines);
}

/// Threads take turns without async, and work looks at its lock.
#[test]
fn blocking_needs_no_runtime() {
    let lines = ["as it should be: waited 1", "page 4 is written", "not done: the lock was held for as long"];
    shows("blocking", &lines);
}

/// What is counted is what the documentation names.
#[test]
fn prometheus_shows_metrics() {
    let lines = [
        "redquorum_acquires_total{",
        "redquorum_round_seconds_bucket{",
        "redquorum_node_up{node=\"memory-1\"} 1",
    ];
    shows("prometheus", &lines);
}
