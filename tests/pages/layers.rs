//! The layers of the library: each imports only from those before it, and none from the face that is not the face.
//!
//! Reads the sources. What a file names by `crate::…` is what it depends on, in code and not in comments; tests inside the
//! library may look at everything.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers, the lowest first. Those in one row do not know each other.
const LAYERS: &[&[&str]] = &[
    &["protocol"],
    &["clock", "meter", "config"],
    &["registry"],
    &["node"],
    &["runtime"],
    &["client"],
    &["blocking", "testing"],
];

/// Files that are tests as a whole, by their names.
const TESTS: &[&str] = &["tests.rs", "fuzz.rs"];

/// The row of a layer. What stands at the root of the crate under a name of its own is the face's.
fn row(layer: &str) -> Option<usize> {
    let layer = if layer.starts_with(char::is_uppercase) { "client" } else { layer };
    LAYERS.iter().position(|row| row.contains(&layer))
}

/// All Rust files below a folder, with their layer.
fn files(folder: &Path, layer: Option<&str>) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let layer = layer.unwrap_or(&name);
        if path.is_dir() {
            found.extend(files(&path, Some(layer)));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), layer.to_owned()));
        }
    }
    found
}

/// The names right after `crate::` in the code of a file, with their lines.
fn imports(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim).enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let tests_follow = lines.peek().is_some_and(|(_, next)| next.starts_with("mod "));
        if line.starts_with("#[cfg(") && line.contains("test)") && tests_follow
            || line.starts_with("#[cfg(all(test") && tests_follow
        {
            break;
        }
        if line.starts_with("//") {
            continue;
        }
        for part in line.split("crate::").skip(1) {
            let end = part.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(part.len());
            found.push((number + 1, &part[..end]));
        }
    }
    found
}

/// Law: imports go downwards only.
#[test]
fn each_layer_imports_only_from_those_before_it() {
    let root = harness::top().join("src");
    let (mut judged, mut upward) = (0, Vec::new());
    for (path, layer) in files(&root, None) {
        let is_test = path.file_name().is_some_and(|name| TESTS.iter().any(|test| name == *test));
        let (Some(own), false) = (row(&layer), is_test) else { continue };
        let text = fs::read_to_string(&path).expect("a source");
        for (line, name) in imports(&text) {
            judged += 1;
            let place = format!("{}:{line}", path.strip_prefix(&root).unwrap_or(&path).display());
            match row(name) {
                Some(other) if other < own || name == layer => {}
                // A type at the root is the face's, which names its own so.
                Some(other) if other == own && name.starts_with(char::is_uppercase) => {}
                Some(_) => upward.push(format!("{place}: {layer} imports {name}")),
                None => upward.push(format!("{place}: {name} is in no layer")),
            }
        }
    }
    assert!(judged > 300, "only {judged} imports found");
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

/// Law: every folder and file of the library has its layer.
#[test]
fn each_part_has_its_layer() {
    let root = harness::top().join("src");
    let known = |name: &str| row(name).is_some() || ["lib", "docs", "bin"].contains(&name);
    for (path, layer) in files(&root, None) {
        assert!(known(&layer), "{} is in no layer", path.display());
    }
}

/// What the reader of imports has to see, and what not.
#[test]
fn imports_are_read() {
    let text = "//! [`crate::client`]\nuse crate::node::{self, Node};\nlet x = crate::meter::a(crate::Lost);\n\
                // crate::blocking\n#[cfg(feature = \"testing\")]\nuse crate::registry::X;\n#[cfg(test)]\nmod tests {\n\
                use crate::client::Y;\n";
    assert_eq!(imports(text), [(2, "node"), (3, "meter"), (3, "Lost"), (6, "registry")]);
}
