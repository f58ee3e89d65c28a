//! What all commands have in common: help, configuration, output to pipes and to 80 columns, secrets.

use std::process::Stdio;

use crate::support::*;
use harness::{Cluster, Server};

const COMMANDS: [&str; 9] =
    ["run", "status", "nodes", "doctor", "bench", "watch", "demo", "completions", "man"];

/// Each command has help, which fits into 80 columns where nobody tells of more, and goes to standard output.
#[test]
fn every_command_has_help() {
    let overview = done(bare(&["--help"]));
    assert_eq!(code(&overview), 0);
    for command in COMMANDS {
        assert!(out(&overview).contains(command), "{command}");
        let help = done(bare(&[command, "--help"]));
        assert_eq!(code(&help), 0);
        assert!(out(&help).contains("Usage: redquorum"), "{}", out(&help));
    }
    assert!(out(&overview).contains("Examples:") && out(&overview).contains("Exit codes:"));
    assert!(!out(&overview).contains("guardian"), "that one is not for people");
}

/// Completions for the usual shells, and a manual with every command.
#[test]
fn completions_and_manual_are_there() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = done(bare(&["completions", shell]));
        assert!(code(&output) == 0 && out(&output).contains("doctor"), "{shell}");
    }
    let manual = out(&done(bare(&["man"])));
    assert!(
        COMMANDS.iter().all(|command| manual.contains(&format!("REDQUORUM {}", command.to_uppercase()))),
        "{manual}"
    );
}

/// An error shows a command's usage as its help does: nothing that was given, in a flag or in the environment, looks as if it
/// were required.
#[test]
fn errors_show_the_usage_of_the_help() {
    let usage = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("Usage: "));
        line.unwrap_or_else(|| panic!("no usage: {text}")).to_owned()
    };
    for (command, wrong) in [
        ("run", &["run"][..]),
        ("run", &["run", "job"]),
        ("run", &["run", "--restart-delay", "5s", "--no-restart-delay", "job", "--", "true"]),
        ("status", &["status"]),
        ("status", &["--prefix", "app:", "--nodes", "redis://a", "status"]),
        ("nodes", &["--json", "nodes", "job"]),
        ("completions", &["completions"]),
    ] {
        let called = |args: &[&str]| {
            let mut command = bare(args);
            let set = [("NODES", "redis://a"), ("CONFIG", "/nonexistent"), ("PREFIX", "app:")];
            done({
                command.envs(set.map(|(name, value)| (format!("REDQUORUM_{name}"), value)));
                command
            })
        };
        let (help, refused) = (called(&[command, "--help"]), called(wrong));
        assert_eq!(code(&refused), 64, "{wrong:?}");
        assert_eq!(usage(&err(&refused)), usage(&out(&help)), "{wrong:?}: {}", err(&refused));
    }
}

/// Errors that send somebody to a command's help for the order of places send him where it stands, at the top.
#[test]
fn help_has_what_errors_say_it_has() {
    let cluster = Cluster::start(1);
    let twice = format!("{0},{0}", cluster[0].url());
    for url in [twice.as_str(), "redis://[bad"] {
        let mut command = bare(&["nodes"]);
        command.env("REDQUORUM_NODES", url);
        let refused = done(command);
        assert_eq!(code(&refused), 78);
        assert!(err(&refused).contains("`redquorum help nodes`"), "{}", err(&refused));
    }
    for args in [&["help", "nodes"][..], &["nodes", "--help"]] {
        let help = out(&done(bare(args)));
        let top: Vec<_> = help.lines().take_while(|line| !line.starts_with("Usage:")).collect();
        let top = top.join("\n");
        for words in
            ["in this order", "1. --nodes", "2. REDQUORUM_NODES", "redquorum/config.toml", "nodes = ["]
        {
            assert!(top.contains(words), "{words}: {help}");
        }
    }
}

/// Flags are stronger than the environment, which is stronger than a file; a file that is wrong is named, with its line and
/// without its contents.
#[test]
fn nodes_come_from_flags_environment_or_a_file() {
    let (cluster, traces) = (Cluster::start(1), Traces::new());
    let url = cluster[0].url();
    let file = traces.path("config.toml");
    let with_file = |text: &str| {
        std::fs::write(&file, text).expect("write a file");
        let mut command = bare(&["--json", "nodes"]);
        command.env("REDQUORUM_CONFIG", &file);
        command
    };

    let good = format!("nodes = [\"{url}\"]\nno-restart-delay = true\n");
    assert_eq!(code(&done(with_file(&good))), 0);
    let mut environment = with_file(&good);
    environment.env("REDQUORUM_NODES", "redis://127.0.0.1:1");
    assert_eq!(code(&done(environment)), 69);
    let mut flag = with_file(&good);
    flag.env("REDQUORUM_NODES", "redis://127.0.0.1:1").args(["--nodes", &url]);
    assert_eq!(code(&done(flag)), 0);

    let wrong = done(with_file("nodes = [\"redis://:hunter2@a\"]\nttl = 5\n"));
    assert_eq!(code(&wrong), 78);
    let told = err(&wrong);
    assert!(told.contains("config.toml") && told.contains("line 2") && !told.contains("hunter2"), "{told}");
    let mut missing = bare(&["nodes"]);
    missing.env("REDQUORUM_CONFIG", traces.path("none"));
    assert_eq!(code(&done(missing)), 78);

    let home = traces.path("home");
    std::fs::create_dir_all(home.join("redquorum")).expect("make a directory");
    std::fs::write(home.join("redquorum/config.toml"), &good).expect("write a file");
    let mut users = bare(&["nodes"]);
    users.env("XDG_CONFIG_HOME", &home);
    assert_eq!(code(&done(users)), 0);
}

/// No password shows, whatever goes wrong.
#[test]
fn passwords_never_show() {
    let server = Server::builder().args(["--requirepass", "s3cret/word"]).start();
    let right = server.url_with(None, Some("s3cret/word"), 0);
    let wrong = server.url_with(None, Some("hunter2"), 0);
    for (url, args) in [
        (right.as_str(), &["nodes"][..]),
        (&right, &["--json", "status", "job"]),
        (&right, &["--json", "doctor", "--clocks", "10ms"]),
        (&wrong, &["nodes"]),
        (&wrong, &["doctor", "--clocks", "10ms"]),
        (&wrong, &["-vv", "run", "--wait", "0", "job", "--", "true"]),
        (&right, &["-vvv", "run", "job", "--", "true"]),
        (&wrong, &["-vvv", "status", "job"]),
        (&right, &["-vvv", "bench", "--count", "10"]),
        ("redis://:hunter2@[bad", &["nodes"]),
        ("redis://:hunter2@[bad", &["--help"]),
        ("rediss://:hunter2@host", &["doctor"]),
    ] {
        let mut command = bare(&["--no-restart-delay"]);
        let output = done({
            command.args(args).env("REDQUORUM_NODES", url);
            command
        });
        let told = out(&output) + &err(&output);
        for secret in ["hunter2", "s3cret"] {
            assert!(!told.contains(secret), "{args:?}: {told}");
        }
    }
}

/// In a pipe there are no colours; on request there are; a reader that goes away is no panic.
#[test]
fn pipes_get_plain_text() {
    let cluster = Cluster::start(3);
    assert!(!out(&done(tool(&cluster, &["nodes"]))).contains('\x1b'));
    assert!(out(&done(tool(&cluster, &["--color", "always", "nodes"]))).contains('\x1b'));
    for args in
        [&["nodes"][..], &["status", "job"], &["--json", "nodes"], &["man"], &["demo"], &["doctor", "--list"]]
    {
        let mut command = tool(&cluster, args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the tool runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let told = err(&output);
        assert!(!told.contains("panicked"), "{args:?}: {told}");
        assert!([0, 141].contains(&code(&output)), "{args:?}: {output:?}");
    }
}

/// Nothing is wider than 80 columns, with addresses and troubles of usual length.
#[test]
fn everything_fits_into_80_columns() {
    let cluster = Cluster::start(3);
    cluster[2].kill9();
    let holder = started(tool(&cluster, &["run", "job", "--", "sleep", "60"]));
    eventually("the lock is held", || cluster[0].exists("job") && cluster[1].exists("job"));
    for args in [&["nodes"][..], &["status", "job"], &["doctor", "--clocks", "10ms"], &["doctor", "--list"]] {
        let shown = out(&done(tool(&cluster, args)));
        let widest = shown.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
        assert!(widest.chars().count() <= 80, "{args:?}: {widest:?}");
        assert!(!shown.is_empty(), "{args:?}");
    }
    drop(holder);
}
