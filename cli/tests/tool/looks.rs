//! `status` and `nodes`: what they show, to people and to machines.

use regex::Regex;
use serde_json::Value;

use crate::support::*;
use harness::Cluster;

#[track_caller]
fn json(output: &std::process::Output) -> Value {
    serde_json::from_str(&out(output)).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A lock is free, then held with a holder and a remaining time; both are told, and --free tells by the code.
#[test]
fn status_tells_free_from_held() {
    let cluster = Cluster::start(3);
    let free = done(tool(&cluster, &["status", "--free", "job"]));
    assert_eq!(code(&free), 0, "{free:?}");
    assert!(out(&free).contains("free"), "{}", out(&free));

    let holder = started(tool(&cluster, &["run", "job", "--", "sleep", "60"]));
    eventually("the lock is held", || cluster.iter().all(|server| server.exists("job")));
    let waiter = started(tool(&cluster, &["run", "job", "--", "true"]));
    eventually("it waits in the queue", || {
        cluster.iter().any(|server| server.exists("{job}:redquorum:line"))
    });

    let held = done(tool(&cluster, &["--json", "status", "job"]));
    assert_eq!(code(&held), 0);
    let value = json(&held);
    assert_eq!((&value["held"], &value["waiting"]), (&true.into(), &1.into()), "{value}");
    let left = value["remaining_ms"].as_f64().expect("a number");
    assert!(left > 1_000.0 && left <= 10_000.0, "{value}");
    assert_eq!(value["nodes"].as_array().map(Vec::len), Some(3));
    assert_eq!(code(&done(tool(&cluster, &["status", "--free", "job"]))), 1);
    let shown = out(&done(tool(&cluster, &["status", "job"])));
    assert!(shown.contains("held by") && shown.contains("1 waits"), "{shown}");

    holder.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(code(&waiter.end()), 0);
}

/// One server under two addresses has one vote: that is shown, with the restart delay and without, and makes a code where the
/// rest is no quorum.
#[test]
fn one_server_twice_is_shown() {
    let cluster = Cluster::start(2);
    let twice = vec![cluster[0].url(), format!("redis://localhost:{}", cluster[0].port())];
    let three = [twice.clone(), vec![cluster[1].url()]].concat();
    for guard in [&["--no-restart-delay"][..], &[]] {
        for (urls, enough) in [(&three, !guard.is_empty()), (&twice, false)] {
            let call = |args: &[&str]| {
                let mut command = bare(guard);
                command.args(args).env("REDQUORUM_NODES", urls.join(","));
                done(command)
            };
            let shown = call(&["nodes"]);
            let text = out(&shown).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains("none: same server"), "{text}");
            assert_eq!(code(&shown), if enough { 0 } else { 69 }, "{shown:?}");
            let refused = "n2 is the same server as n1";
            assert!(err(&shown).contains(refused), "{}", err(&shown));
            let value = json(&call(&["--json", "nodes"]));
            assert_eq!(value["nodes"][1]["vote"], "same_server", "{value:#}");
        }
    }
}

/// Servers tell for how many whole seconds they have been up, and no more is shown.
#[test]
fn uptimes_are_whole_seconds() {
    let cluster = Cluster::start(1);
    let shown = out(&done(tool(&cluster, &["nodes"])));
    let row = Regex::new(r"(?m)^n1 .* [0-9]+ s +[0-9.]+ (µs|ms)$").expect("a pattern");
    assert!(row.is_match(&shown), "{shown}");
}

/// Nodes that are away are shown with the others, and make a code where no quorum is left.
#[test]
fn nodes_that_are_away_are_shown() {
    let cluster = Cluster::start(3);
    let well = done(tool(&cluster, &["--json", "nodes"]));
    assert_eq!(code(&well), 0, "{well:?}");
    let value = json(&well);
    for node in value["nodes"].as_array().expect("nodes") {
        assert_eq!(
            (&node["state"], &node["vote"], &node["role"]),
            (&"up".into(), &"counts".into(), &"primary".into())
        );
        assert!(node["round_trip_ms"].as_f64().is_some_and(|time| time > 0.0), "{node}");
    }

    cluster[2].kill9();
    let one_less = done(tool(&cluster, &["nodes"]));
    assert_eq!(code(&one_less), 0);
    assert!(out(&one_less).contains("down") && out(&one_less).contains("counts"), "{}", out(&one_less));
    cluster[1].kill9();
    let few = done(tool(&cluster, &["--json", "nodes"]));
    assert_eq!(code(&few), 69);
    assert_eq!(json(&few)["voting"], 1);
    let failure: Value = serde_json::from_str(&err(&few)).expect("an error for machines");
    assert_eq!((&failure["error"], &failure["code"]), (&"no_quorum".into(), &69.into()));
    assert_eq!(code(&done(tool(&cluster, &["status", "job"]))), 69);
}
