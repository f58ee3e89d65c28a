//! The pages that people read, against what is there: links, files, commands and the names of tests.
//!
//! What the command line tool prints on its page is held against the tool in `cli/tests/tool/page.rs`.

mod layers;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use harness::top;
use regex::Regex;

/// A page, by its path from the top, and its text.
struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    /// Its text without blocks of code.
    fn prose(&self) -> String {
        let mut code = false;
        let lines = self.text.lines().filter(|line| {
            let fence = line.starts_with("```");
            code ^= fence;
            !code && !fence
        });
        lines.flat_map(|line| [line, "\n"]).collect()
    }

    /// What its headings are called in links, as the forges do it.
    fn anchors(&self) -> BTreeSet<String> {
        let prose = self.prose();
        let headings = prose.lines().filter_map(|line| {
            let heading = line.trim_start_matches('#');
            (heading.len() < line.len()).then_some(heading.trim())
        });
        headings.map(anchor).collect()
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Every page of the project.
fn pages() -> Vec<Page> {
    let mut paths: Vec<_> = files("docs", &["md"]);
    paths.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from));
    let pages: Vec<_> = paths
        .into_iter()
        .map(|path| Page { text: fs::read_to_string(top().join(&path)).expect("a page"), path })
        .collect();
    assert!(pages.len() > 10, "{} pages", pages.len());
    pages
}

/// All files below a folder with one of these extensions, by their paths from the top.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top().join(folder)).expect("a folder") {
        let path = entry.expect("an entry").path();
        let path = path.strip_prefix(top()).expect("below the top").to_owned();
        if top().join(&path).is_dir() {
            found.extend(files(path.to_str().expect("a path"), extensions));
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
            found.push(path);
        }
    }
    found
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern")
}

/// What a pattern finds on the pages, with where; and that it finds something at all.
fn found(pattern: &str, text: impl Fn(&Page) -> String) -> Vec<(PathBuf, String)> {
    let pattern = regex(pattern);
    let of = |page: &Page| {
        let text = text(page);
        let all: Vec<_> =
            pattern.captures_iter(&text).map(|found| (page.path.clone(), found[1].to_owned())).collect();
        all
    };
    let found: Vec<_> = pages().iter().flat_map(of).collect();
    assert!(!found.is_empty(), "nothing on the pages is like {pattern}");
    found
}

#[track_caller]
fn none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Asserts that what was found on the pages is right, and tells where it is not.
#[track_caller]
fn all(found: Vec<(PathBuf, String)>, is_right: impl Fn(&str) -> bool) {
    let wrong = found.into_iter().filter(|(_, name)| !is_right(name));
    none(wrong.map(|(path, name)| format!("{}: {name}", path.display())).collect());
}

/// Every link within the project leads to a file that is there, and to a heading in it.
#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let links = found(r"(?m)(?:\]\(|^\[[^\]]+\]: )([^)\s]+)", Page::prose);
    let mut wrong = Vec::new();
    for (path, link) in links.into_iter().filter(|(_, link)| !link.contains("://")) {
        let (file, heading) = link.split_once('#').map_or((&*link, None), |(file, to)| (file, Some(to)));
        let target = if file.is_empty() {
            path.clone()
        } else {
            path.parent().expect("a folder").join(file).components().fold(PathBuf::new(), |at, part| {
                if part.as_os_str() == ".." {
                    at.parent().expect("below the top").into()
                } else {
                    at.join(part)
                }
            })
        };
        if !top().join(&target).exists() {
            wrong.push(format!("{}: {link}: no file {}", path.display(), target.display()));
        } else if let Some(heading) = heading {
            let page = pages.iter().find(|page| page.path == target);
            if !page.is_some_and(|page| page.anchors().contains(heading)) {
                wrong.push(format!("{}: {link}: no heading #{heading}", path.display()));
            }
        }
    }
    none(wrong);
}

/// A link by a name has that name's target on the same page.
#[test]
fn names_of_links_are_given() {
    let name = regex(r"\[[^\]\[]+\]\[([^\]]+)\]");
    let mut wrong = Vec::new();
    for page in pages() {
        for found in name.captures_iter(&page.prose()) {
            if !page.text.contains(&format!("\n[{}]: ", &found[1])) {
                wrong.push(format!("{}: {}", page.path.display(), &found[0]));
            }
        }
    }
    none(wrong);
}

/// Links between the pages that rustdoc shows lead somewhere there as well: each goes by a name that `src/docs.rs` knows.
#[test]
fn rustdoc_knows_the_links_between_pages() {
    let known = fs::read_to_string(top().join("src/docs.rs")).expect("the module");
    let links = found(r"(?m)^\[([^\]]+)\]: [a-z]+\.md", |page| page.text.clone());
    all(links, |name| known.contains(&format!("/// [{name}]: crate::docs::")));
    let mut wrong = Vec::new();
    let inline = regex(r"\]\([a-z]+\.md");
    for page in pages().iter().filter(|page| page.path.starts_with("docs")) {
        wrong.extend(
            inline.find_iter(&page.prose()).map(|link| format!("{}: {}", page.path.display(), link.as_str())),
        );
    }
    none(wrong);
}

/// A table has no gap: whatever follows an empty line is none of its rows.
#[test]
fn tables_are_whole() {
    let mut wrong = Vec::new();
    for page in pages() {
        let prose = page.prose();
        let lines: Vec<_> = prose.lines().collect();
        for (at, line) in lines
            .iter()
            .enumerate()
            .filter(|(at, line)| line.starts_with('|') && (*at == 0 || !lines[at - 1].starts_with('|')))
        {
            if !lines.get(at + 1).is_some_and(|rule| rule.starts_with("| ---")) {
                wrong.push(format!("{}: begins a table without a head: {line}", page.path.display()));
            }
        }
    }
    none(wrong);
}

/// Every `make` command has its target.
#[test]
fn targets_exist() {
    let makefile = fs::read_to_string(top().join("Makefile")).expect("the Makefile");
    let named = found(r"(?:`|(?m:^))(?:[A-Z]+=\S+ )*make ([a-z][a-z-]*)", |page| page.text.clone());
    all(named, |target| makefile.contains(&format!("\n{target}: ")));
}

/// Every file and folder of the project that a page names is there.
#[test]
fn files_exist() {
    let named =
        found(r"`((?:src|cli|tests|docs|benches|examples|scripts|\.ci)/[^`\s*]*)`", |page| page.text.clone());
    // But the sources of clients in other languages.
    all(named, |file| file.ends_with(".ts") || top().join(file).exists());
}

/// Every program of tests, example, package and feature that a command names is there.
#[test]
fn commands_name_what_is_there() {
    let packages = ["", "cli", "tests", "tests/protocol", "tests/harness"]
        .map(|folder| top().join(folder).join("Cargo.toml"));
    let manifests = packages.map(|manifest| fs::read_to_string(manifest).expect("a manifest"));
    let text = |page: &Page| page.text.clone();
    for option in ["--test", "--example", "-p"] {
        // A command may go on in the next line.
        let named = found(&format!(r"cargo [^`]*?{option}\s([a-z_-]+)"), text);
        all(named, |name| {
            manifests.iter().any(|manifest| manifest.contains(&format!("\nname = \"{name}\"\n")))
        });
    }
    let named = found(r"(?:cargo (?:run|test|install|build|check) |`)[^\n`]*--features ([a-z,]+)", text);
    all(named, |list| list.split(',').all(|feature| manifests[0].contains(&format!("\n{feature} = ["))));
}

/// A name with as many underscores as those of tests have is the name of something in the sources.
#[test]
fn tests_exist() {
    let extensions = ["rs", "lua", "sh", "toml", "yml", "py"];
    let folders = ["src", "cli", "tests", "benches", "examples", "scripts"];
    let sources: Vec<_> = folders.iter().flat_map(|folder| files(folder, &extensions)).collect();
    let word = regex("[a-z0-9_]+");
    let known: BTreeSet<String> = sources
        .iter()
        .filter(|path| !path.ends_with("tests/pages/main.rs"))
        .map(|path| fs::read_to_string(top().join(path)).expect("a source"))
        .flat_map(|text| word.find_iter(&text).map(|word| word.as_str().to_owned()).collect::<Vec<_>>())
        .collect();
    let mut named = found(r"(?:^|[^a-zA-Z0-9_.:])([a-z][a-z0-9]*(?:_[a-z0-9]+){2,})\b", Page::prose);
    // It has the calls of other clients.
    named.retain(|(path, _)| !path.ends_with("migrating.md"));
    all(named, |name| known.contains(name));
}
