//! The demo: it ends well, and says what it shows.

use std::process::Output;

use harness::Cluster;

use crate::support::{bare, done};

const ACTS: [&str; 6] = [
    "1. Nobody else wants it",
    "2. A second client is refused, and told why",
    "3. One node hangs, and nothing is slower",
    "4. The replies of 2 nodes get lost, and nothing stays behind",
    "5. 3 nodes are down, and the error says so",
    "6. A worker outlives its lock",
];

/// Plays on these nodes, on nodes in memory if there are none.
fn demo(nodes: &[String]) -> Output {
    let mut command = bare(if nodes.is_empty() { &["demo"] } else { &["demo", "--real"] });
    command.env("REDQUORUM_NODES", nodes.join(" "));
    done(command)
}

#[track_caller]
fn assert_all_well(output: &Output) {
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    for act in ACTS {
        assert!(shown.contains(act), "{act:?} is missing from:\n{shown}");
    }
    assert!(shown.contains("All was as it should be"), "{shown}");
    assert!(!shown.contains('\x1b'), "no colours where nobody looks on:\n{shown}");
    let widest = shown.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(78), "{widest:?} columns");
}

/// Without any server, all six acts are as they should be.
#[test]
fn demo_ends_well_in_memory() {
    assert_all_well(&demo(&[]));
}

/// The same on real servers, with faults made by the demo's own proxies.
#[test]
fn demo_ends_well_on_servers() {
    let cluster = Cluster::start(5);
    assert_all_well(&demo(&cluster.urls()));
    for server in cluster.iter() {
        assert_eq!(server.keys(), [""; 0], "the demo leaves nothing behind");
    }
}

/// What cannot begin is told apart from what went wrong.
#[test]
fn demo_refuses_too_few_nodes() {
    let output = demo(&["redis://127.0.0.1:1".to_owned()]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("three nodes at least"), "{told}");
}
