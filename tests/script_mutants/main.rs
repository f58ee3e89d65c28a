//! Every small change of a Lua script is noticed: the scripts are held against [`Store`](redquorum::node::store::Store) over
//! many histories on a real server, and a changed script must fail in one of them.
//!
//! Changed scripts are run as they are, so nothing is compiled for them. `make mutants-lua` runs all of them, and the normal
//! tests a tenth.

#![cfg(unix)]

mod bench;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod history;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{fs, thread};

use bench::{Bench, Digests};
use changes::{Change, changes};
use common::Server;
use history::History;

/// Enough that every change is noticed that can be.
const HISTORIES: u64 = 600;

fn histories() -> Vec<History> {
    (0..HISTORIES).map(history::draw).collect()
}

/// One file of the scripts.
struct File {
    name: String,
    text: String,
}

fn files() -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node/scripts");
    let mut files: Vec<File> = fs::read_dir(folder)
        .expect("the folder of the scripts")
        .map(|entry| {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            File { name, text: fs::read_to_string(path).expect("a script") }
        })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

/// The scripts as clients run them, each made of one file or several.
fn scripts(histories: &[History]) -> BTreeSet<Vec<u8>> {
    histories.iter().flat_map(|history| history.scripts.iter().cloned()).collect()
}

fn load(bench: &mut Bench, scripts: &BTreeSet<Vec<u8>>, change: impl Fn(&str) -> String) -> Option<Digests> {
    let each = scripts.iter().map(|script| {
        let text = std::str::from_utf8(script).expect("scripts are text");
        Some((script.clone(), bench.load(&change(text))?))
    });
    each.collect()
}

/// Law: what scripts answer and leave on a server is what `Store` says, in every history.
#[test]
fn scripts_do_what_the_store_does() {
    let server = Server::start();
    let mut bench = Bench::new(&server);
    let histories = histories();
    let scripts = scripts(&histories);
    for File { name, text } in files() {
        let used = scripts.iter().any(|script| String::from_utf8_lossy(script).contains(&text));
        assert!(used, "{name} is in no script that a history runs");
    }
    let digests = load(&mut bench, &scripts, str::to_owned).expect("scripts that are Lua");

    for (seed, history) in histories.iter().enumerate() {
        if let Err(why) = bench.play(history, &digests) {
            panic!("history {seed}: {why}");
        }
    }
}
/// A tenth of what [`every_change_is_noticed`] does.
#[test]
fn a_tenth_of_all_changes_is_noticed() {
    notice(10);
}

/// Law: no small change of a script goes unnoticed, but for those that change nothing.
#[test]
#[ignore = "some minutes"]
fn every_change_is_noticed() {
    notice(1);
}

/// Changes the scripts, each time at one of `every` places, and fails where that is not noticed.
fn notice(every: usize) {
    let started = Instant::now();
    let histories = histories();
    let scripts = scripts(&histories);
    let files = files();
    let all = files.iter().flat_map(|file| changes(&file.text).into_iter().map(move |change| (file, change)));
    let all: Vec<_> = all.step_by(every).collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let server = Server::start();
                let mut bench = Bench::new(&server);
                let as_they_are = load(&mut bench, &scripts, str::to_owned).expect("scripts that are Lua");
                while let Some((file, change)) = all.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let fate = judge(&mut bench, &histories, &as_they_are, file, change);
                    found.lock().expect("no panic").push((file.name.clone(), change.line, change, fate));
                }
            });
        }
    });
    let found = found.into_inner().expect("no panic");
    let count = |fate: fn(&Fate) -> bool| found.iter().filter(|(.., it)| fate(it)).count();
    let noticed = count(|fate| matches!(fate, Fate::Noticed { .. }));
    let no_lua = count(|fate| matches!(fate, Fate::NoLua));
    let latest = found
        .iter()
        .filter_map(|(.., fate)| match fate {
            Fate::Noticed { history } => Some(*history),
            _ => None,
        })
        .max();
    println!(
        "{} changes: {noticed} noticed (the last in history {latest:?}), {no_lua} are no Lua, {} not noticed; {:?}",
        found.len(),
        found.len() - noticed - no_lua,
        started.elapsed()
    );
    let mut missed: Vec<_> = found.iter().filter(|(.., fate)| matches!(fate, Fate::Missed)).collect();
    missed.sort_by_key(|(name, line, ..)| (name.clone(), *line));
    for (name, line, change, _) in missed {
        println!("{name}:{line}\n    {}\n    {}", change.from, change.to);
    }
}

enum Fate {
    NoLua,
    Noticed { history: usize },
    Missed,
}

fn judge(
    bench: &mut Bench,
    histories: &[History],
    as_they_are: &Digests,
    file: &File,
    change: &Change,
) -> Fate {
    let mut digests = as_they_are.clone();
    let mut changed = BTreeSet::new();
    for (script, digest) in &mut digests {
        let text = std::str::from_utf8(script).expect("scripts are text");
        if text.contains(&file.text) {
            let Some(other) = bench.load(&text.replacen(&file.text, &change.text, 1)) else {
                return Fate::NoLua;
            };
            *digest = other;
            changed.insert(script.clone());
        }
    }
    for (seed, history) in histories.iter().enumerate() {
        if !history.scripts.is_disjoint(&changed) && bench.play(history, &digests).is_err() {
            return Fate::Noticed { history: seed };
        }
    }
    Fate::Missed
}
