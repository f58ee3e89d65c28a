//! Every small change of a Lua script is noticed: the scripts are held against [`Store`](redquorum::node::store::Store) over
//! many histories on a real server, and a changed script must fail in one of them.
//!
//! Changed scripts are run as they are, so nothing is compiled for them. `make mutants-lua` runs all of them, and the normal
//! tests a tenth.

#![cfg(unix)]

mod bench;
mod changes;
mod equivalent;
mod history;
mod lives;
mod rights;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{fs, thread};

use bench::{Bench, Digests};
use changes::{Change, changes};
use equivalent::EQUIVALENT;
use harness::Server;
use history::History;

/// Enough that every change is noticed that can be.
const HISTORIES: u64 = 600;

/// The histories for this server and others of its version.
fn histories(server: &Server) -> Vec<History> {
    let compares = server.version().at_least((7, 0), (7, 2));
    (0..HISTORIES).map(|seed| history::draw(seed, compares)).collect()
}

/// One file of the scripts.
struct File {
    name: String,
    text: String,
}

fn files() -> Vec<File> {
    let folder = harness::top().join("src/node/scripts");
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

fn load(bench: &mut Bench, scripts: &BTreeSet<Vec<u8>>) -> Digests {
    let each = scripts.iter().map(|script| {
        let text = std::str::from_utf8(script).expect("scripts are text");
        (script.clone(), bench.load(text).expect("scripts are Lua"))
    });
    each.collect()
}

/// Law: what scripts answer and leave on a server is what `Store` says, in every history.
#[test]
fn scripts_do_what_the_store_does() {
    let server = Server::start();
    let mut bench = Bench::new(&server);
    let histories = histories(&server);
    let scripts = scripts(&histories);
    for File { name, text } in files() {
        let used = scripts.iter().any(|script| String::from_utf8_lossy(script).contains(&text));
        assert!(used, "{name} is in no script that a history runs");
    }
    let digests = load(&mut bench, &scripts);

    for (seed, history) in histories.iter().enumerate() {
        if let Err(why) = bench.play(history, &digests) {
            panic!("history {seed}: {why}");
        }
    }
}

/// Changes that no test noticed once: they are always among those that are tried.
const KNOWN: [(&str, &str); 1] = [
    // A client that hangs is never skipped.
    ("hand_over.lua", "if look and now - tonumber(string.sub(look, 2)) <= 3000000 then"),
];

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

/// Makes one in `every` changes of the scripts, and fails if a test misses one that is not [`EQUIVALENT`].
fn notice(every: usize) {
    let started = Instant::now();
    let histories = histories(&Server::start());
    let scripts = scripts(&histories);
    let files = files();
    let mut all = Vec::new();
    for File { name, text } in &files {
        all.extend(changes(text).into_iter().map(|change| (name.clone(), change)));
    }
    for (name, to) in KNOWN {
        let is_there = all.iter().any(|(file, change)| file == name && change.to == to);
        assert!(is_there, "{name} has no change any more that makes it {to}");
    }
    for entry in &EQUIVALENT {
        assert!(
            all.iter().any(|(_, change)| entry.is(change)),
            "no change is left for which this holds: {}",
            entry.why
        );
    }
    let mut number = 0;
    all.retain(|(file, change)| {
        number += 1;
        number % every == 0 || KNOWN.iter().any(|(name, to)| file == name && change.to == *to)
    });

    let fates = fates(&histories, &scripts, &files, &all);
    let made = || all.iter().zip(&fates);
    let noticed = fates.iter().filter_map(|fate| match fate {
        Fate::Noticed { history } => Some(*history),
        Fate::NoLua | Fate::Missed => None,
    });
    let (latest, noticed) = (noticed.clone().max(), noticed.count());
    let no_lua = fates.iter().filter(|fate| matches!(fate, Fate::NoLua)).count();
    let missed = made().filter(|(_, fate)| matches!(fate, Fate::Missed)).map(|(change, _)| change);
    let (equal, missed): (Vec<_>, Vec<_>) =
        missed.partition(|(_, change)| EQUIVALENT.iter().any(|entry| entry.is(change)));
    println!(
        "{} changes: {noticed} noticed (the last in history {}), {no_lua} are no Lua, {} change nothing, {} missed; {:.0?}",
        all.len(),
        latest.unwrap_or_default(),
        equal.len(),
        missed.len(),
        started.elapsed()
    );
    for (file, Change { line, from, to, .. }) in &missed {
        println!("{file}:{line}\n    {from}\n    {to}");
    }
    assert!(missed.is_empty(), "{} small changes of scripts are noticed by no test", missed.len());
    for entry in EQUIVALENT.iter().filter(|_| every == 1) {
        assert!(
            equal.iter().any(|(_, change)| entry.is(change)),
            "a test notices what should change nothing: {}",
            entry.why
        );
    }
}

/// What became of a changed script.
enum Fate {
    /// It is no Lua.
    NoLua,
    /// It did something else than the store in this history.
    Noticed {
        history: usize,
    },
    Missed,
}

/// Tries changes, with a server for each processor.
fn fates(
    histories: &[History],
    scripts: &BTreeSet<Vec<u8>>,
    files: &[File],
    all: &[(String, Change)],
) -> Vec<Fate> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let server = Server::start();
        let mut bench = Bench::new(&server);
        let as_they_are = load(&mut bench, scripts);
        loop {
            let index = next.fetch_add(1, Ordering::SeqCst);
            let Some((name, change)) = all.get(index) else { return };
            let file = files.iter().find(|file| file.name == *name).expect("the file of a change");
            let fate = fate(&mut bench, histories, &as_they_are, &file.text, &change.text);
            found.lock().expect("no panic of another thread").push((index, fate));
        }
    };
    let workers = thread::available_parallelism().map_or(2, usize::from).min(8);
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().expect("no panic of a thread");
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, fate)| fate).collect()
}

/// Puts `to` in place of the file `from` in all scripts, and plays the histories until one is not as it has to be.
fn fate(bench: &mut Bench, histories: &[History], as_they_are: &Digests, from: &str, to: &str) -> Fate {
    let mut digests = as_they_are.clone();
    let mut changed = BTreeSet::new();
    for (script, digest) in &mut digests {
        let text = std::str::from_utf8(script).expect("scripts are text");
        if text.contains(from) {
            let Some(other) = bench.load(&text.replacen(from, to, 1)) else { return Fate::NoLua };
            *digest = other;
            changed.insert(script.clone());
        }
    }
    let mut concerned = histories.iter().enumerate().filter(|(_, it)| !it.scripts.is_disjoint(&changed));
    let noticed = concerned.find(|(_, history)| bench.play(history, &digests).is_err());
    noticed.map_or(Fate::Missed, |(history, _)| Fate::Noticed { history })
}
