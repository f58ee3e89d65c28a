//! The examples as a user starts them: each ends well, and says what it is there to show.

#![cfg(feature = "testing")]

mod common;

use common::example;

/// Runs an example; returns what it printed.
fn shown(name: &str) -> String {
    let output = example(name).env("ONCE", "1").output().expect("cargo runs");
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

/// A closing client ends work and waits, and leaves nothing open.
#[test]
fn shutdown_leaves_nothing_open() {
    shows("shutdown", &["nothing left open", "the one who waited: the client is closed"]);
}

/// Threads take turns without async, and work looks at its lock.
#[cfg(feature = "blocking")]
#[test]
fn blocking_needs_no_runtime() {
    let lines = ["as it should be: waited 1", "page 4 is written", "not done: the lock was held for as long"];
    shows("blocking", &lines);
}

/// What is counted is what the documentation names.
#[cfg(feature = "metrics")]
#[test]
fn prometheus_shows_metrics() {
    shows("prometheus", &["redquorum_acquires_total{", "redquorum_round_seconds_bucket{"]);
}
