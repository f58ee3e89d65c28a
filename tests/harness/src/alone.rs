//! Tests that need a process to themselves, since they look at what a process has only once, such as its memory.

use std::env;
use std::process::Command;

/// Set in such a process, to the name of the test.
const INSIDE: &str = "REDQUORUM_TEST_ALONE";

/// Whether the test is alone in its process. If not, it runs once more in such a process, and panics here if it fails there.
///
/// `name` is the test's whole name, with its modules.
#[track_caller]
pub fn alone(name: &str) -> bool {
    if env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        return true;
    }
    let inside = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", name, "--include-ignored", "--nocapture"])
        .env(INSIDE, name)
        .output()
        .expect("run this program again");
    let (out, err) = (String::from_utf8_lossy(&inside.stdout), String::from_utf8_lossy(&inside.stderr));
    // What it measured, without what would be taken for this run's own results.
    let of_the_run =
        |line: &&str| line.starts_with("test ") || line.starts_with("running ") || line.is_empty();
    out.lines().filter(|line| !of_the_run(line)).for_each(|line| println!("{line}"));
    assert!(inside.status.success(), "failed in a process of its own:\n{out}\n{err}");
    assert!(out.contains("test result: ok. 1 passed"), "there is no test {name}:\n{out}");
    false
}
