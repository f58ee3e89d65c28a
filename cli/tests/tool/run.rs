//! `run`: what the command gets, what becomes of its end, and Ctrl-C at each stage.

use std::io::Write as _;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::support::*;
use harness::{Cluster, Server};

/// What a command finds in its environment, it can hand on; what it writes and reads passes through; its code is the tool's.
#[test]
fn a_command_runs_as_without_the_tool() {
    let cluster = Cluster::start(3);
    let script =
        "cat; echo $REDQUORUM_KEY $REDQUORUM_TTL_MS $REDQUORUM_FENCING_TOKEN; echo oops >&2; exit 42";
    let mut command = tool(&cluster, &["run", "--fenced", "--ttl", "5s", "job", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the tool runs");
    child.stdin.take().expect("a pipe").write_all(b"through\n").expect("it reads");

    let output = child.wait_with_output().expect("it ends");

    assert_eq!(code(&output), 42, "{output:?}");
    let (first, second) = (out(&output), err(&output));
    let words: Vec<_> = first.split_whitespace().collect();
    assert_eq!(words[..3], ["through", "job", "5000"]);
    assert!(words[3].parse::<u64>().is_ok_and(|token| token > 0), "{first}");
    assert_eq!(second, "oops\n", "the tool itself has nothing to say");
    for server in cluster.iter() {
        eventually("the lock is released", || !server.exists("job"));
    }
}

/// A token that comes from another lock is not taken for this one's.
#[test]
fn a_foreign_token_does_not_leak_in() {
    let cluster = Cluster::start(1);
    let mut command = tool(&cluster, &["run", "job", "--", "sh", "-c", "echo [$REDQUORUM_FENCING_TOKEN]"]);
    command.env("REDQUORUM_FENCING_TOKEN", "4711");
    assert_eq!(out(&done(command)), "[]\n");
}

/// Each way to end has its code: a signal, a command that is not there, or cannot be run, a lock that is held, too few
/// nodes, a wrong call, no nodes.
#[test]
fn every_end_has_its_code() {
    let cluster = Cluster::start(3);
    let run = |args: &[&str]| done(tool(&cluster, &[&["run"], args].concat()));

    assert_eq!(code(&run(&["job", "--", "true"])), 0);
    assert_eq!(code(&run(&["job", "--", "sh", "-c", "kill -TERM $$"])), 128 + 15);
    assert_eq!(code(&run(&["job", "--", "redquorum-no-such-command"])), 127);
    assert_eq!(code(&run(&["job", "--", "/dev/null"])), 126);
    assert_eq!(code(&run(&["job"])), 64);
    assert_eq!(code(&run(&["--ttl", "soon", "job", "--", "true"])), 64);
    assert_eq!(code(&run(&["--ttl", "1s", "--grace", "900ms", "job", "--", "true"])), 64);
    assert_eq!(code(&run(&["--signal", "NONE", "job", "--", "true"])), 64);
    assert_eq!(code(&run(&["", "--", "true"])), 64);
    let none = done(bare(&["run", "job", "--", "true"]));
    assert_eq!(code(&none), 78);
    assert!(err(&none).contains("REDQUORUM_NODES"), "{}", err(&none));

    for server in cluster.iter() {
        server.command(&["SET", "job", "somebody"]);
    }
    let held = run(&["--wait", "0", "job", "--", "true"]);
    assert_eq!(code(&held), 75);
    assert!(err(&held).contains("held by") && err(&held).contains("next:"), "{}", err(&held));
    assert_eq!(code(&run(&["--wait", "100ms", "-E", "9", "job", "--", "true"])), 9);

    cluster[0].kill9();
    cluster[1].kill9();
    let few = run(&["--wait", "0", "job", "--", "true"]);
    assert_eq!(code(&few), 69);
    let told = err(&few);
    assert!(told.contains(&cluster[0].port().to_string()) && told.contains("doctor"), "{told}");
}

/// A fresh node may have lost its memory: with the restart delay on, it does not vote, and the error says what to do.
#[test]
fn guarded_nodes_are_no_quorum() {
    let cluster = Cluster::start(1);
    let mut command = bare(&["run", "--wait", "0", "job", "--", "true"]);
    command.env("REDQUORUM_NODES", cluster.urls().join(","));
    let output = done(command);
    assert_eq!(code(&output), 69);
    assert!(err(&output).contains("--no-restart-delay"), "{}", err(&output));
}

/// A signal that the tool gets reaches the whole group, and the command's answer to it is the tool's end.
#[test]
fn signals_reach_the_whole_group() {
    let (cluster, traces) = (Cluster::start(3), Traces::new());
    let script = "trap 'echo command >> $0; wait; exit 7' USR1; \
                  sh -c 'trap \"echo child >> $0; exit\" USR1; echo up >> $0; while :; do sleep 0.01; done' $0 & \
                  while :; do sleep 0.01; done";
    let trace = traces.path("trace");
    let trace = trace.to_str().expect("a path");
    let running = started(tool(&cluster, &["run", "job", "--", "sh", "-c", script, trace]));
    eventually("the child is up", || traces.read("trace").contains("up"));

    running.signal(Signal::SIGUSR1);

    assert_eq!(code(&running.end()), 7);
    let told = traces.read("trace");
    assert!(told.contains("child") && told.contains("command"), "{told}");
}

/// Ctrl-C while waiting: nothing has run, nothing stays in line.
#[test]
fn ctrl_c_while_waiting_ends_the_wait() {
    let cluster = Cluster::start(3);
    let mut holder = started(tool(&cluster, &["run", "job", "--", "sleep", "60"]));
    eventually("the lock is held", || cluster.iter().all(|server| server.exists("job")));
    let waiter = started(tool(&cluster, &["--json", "run", "--wait", "forever", "job", "--", "true"]));
    eventually("it waits in the queue", || {
        cluster.iter().any(|server| server.exists("{job}:redquorum:line"))
    });

    waiter.signal(Signal::SIGINT);
    let output = waiter.end();

    assert_eq!(code(&output), 130, "{output:?}");
    eventually("nobody is in line", || !cluster.iter().any(|server| server.exists("{job}:redquorum:line")));
    holder.signal(Signal::SIGINT);
    holder = started(tool(&cluster, &["run", "job", "--", "true"]));
    assert_eq!(code(&holder.end()), 0);
}

/// Ctrl-C while the command runs: it is the command's to decide, and the lock is released after it.
#[test]
fn ctrl_c_while_holding_ends_the_command() {
    let (cluster, traces) = (Cluster::start(3), Traces::new());
    let script = "trap 'echo cleaned >> $0; exit 5' INT; echo up >> $0; while :; do sleep 0.01; done";
    let trace = traces.path("trace");
    let running =
        started(tool(&cluster, &["run", "job", "--", "sh", "-c", script, trace.to_str().expect("a path")]));
    eventually("the command is up", || traces.read("trace").contains("up"));

    running.signal(Signal::SIGINT);

    assert_eq!(code(&running.end()), 5);
    assert!(traces.read("trace").contains("cleaned"));
    for server in cluster.iter() {
        eventually("the lock is released", || !server.exists("job"));
    }
}

/// Ctrl-C while the release is waited for: the command has ended, and its code stands.
#[test]
fn ctrl_c_while_releasing_keeps_the_code() {
    let (cluster, traces) = (Cluster::start(3), Traces::new());
    let (go, trace) = (traces.path("go"), traces.path("trace"));
    let script = "echo up >> $1; while [ -e $1 -a ! -e $0 ]; do sleep 0.01; done; echo ending >> $1; exit 3";
    let args = [go.to_str().expect("a path"), trace.to_str().expect("a path")];
    let running = started(tool(
        &cluster,
        &["run", "--ttl", "60s", "--reply-timeout", "5s", "job", "--", "sh", "-c", script, args[0], args[1]],
    ));
    eventually("the command is up", || traces.read("trace").contains("up"));
    cluster.iter().for_each(Server::freeze);
    std::fs::write(&go, "").expect("write a file");
    eventually("the command ends", || traces.read("trace").contains("ending"));
    // It waits for answers that do not come; signals go to it until it has noticed that its command is gone.
    let pid = running.pid();
    let asking = std::thread::spawn(move || {
        for _ in 0..200 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            if nix::sys::signal::kill(pid, Signal::SIGINT).is_err() {
                return;
            }
        }
    });

    let output = running.end();

    cluster.iter().for_each(Server::thaw);
    asking.join().expect("no panic");
    assert_eq!(code(&output), 3, "{output:?}");
}

/// What the command leaves behind is said, and with --wait-for-all the lock is kept for it.
#[test]
fn the_lock_can_be_kept_for_what_is_left() {
    let (cluster, traces) = (Cluster::start(3), Traces::new());
    let (go, trace) = (traces.path("go"), traces.path("trace"));
    let script = "(setsid sh -c 'echo up >> $1; while [ -e $1 -a ! -e $0 ]; do sleep 0.01; done' $0 $1 >/dev/null 2>&1 &); exit 4";
    let args = [go.to_str().expect("a path"), trace.to_str().expect("a path")];
    let left = started(tool(&cluster, &["run", "one", "--", "sh", "-c", script, args[0], args[1]]));
    let output = left.end();
    assert_eq!(code(&output), 4);
    assert!(err(&output).contains("--wait-for-all"), "{}", err(&output));

    std::fs::write(&trace, "").expect("write a file");
    let kept = started(tool(
        &cluster,
        &["run", "--wait-for-all", "two", "--", "sh", "-c", script, args[0], args[1]],
    ));
    eventually("the daemon is up", || traces.read("trace").contains("up"));
    // The command itself has long ended then.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(cluster.iter().all(|server| server.exists("two")));
    std::fs::write(&go, "").expect("write a file");
    assert_eq!(code(&kept.end()), 4);
}

/// A command that outlives the longest hold is stopped.
#[test]
fn the_longest_hold_stops_the_command() {
    let cluster = Cluster::start(3);
    let output = done(tool(
        &cluster,
        &[
            "--json",
            "run",
            "--ttl",
            "1s",
            "--max-hold",
            "2s",
            "job",
            "--",
            "sh",
            "-c",
            "trap '' TERM; while :; do sleep 0.1; done",
        ],
    ));
    assert_eq!(code(&output), 76, "{output:?}");
    let left = event(&output, "gone")["validity_left_ms"].as_f64().expect("a number");
    assert!(left > 0.0, "{output:?}");
}
