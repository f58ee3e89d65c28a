//! `redquorum doctor`: what is wrong with the nodes, why it matters, and how to mend it.

mod faults;
mod of_nodes;
mod of_sets;
mod probe;

use std::time::Duration;

use redquorum::BuildError;
use serde_json::{Value, json};

use crate::args::{Common, Doctor};
use crate::exit::{self, Failure};
use crate::nodes::all_tried;
use crate::output::{Output, Tone, count, fill, width};
use crate::places::{Delay, Places};
use faults::{FAULTS, Fault, Hit, Level, Set};
use probe::Place;

/// The library's default.
const TTL: Duration = Duration::from_secs(10);

/// What was found wants to be looked at.
const WARNED: u8 = 1;
/// What was found endangers locks.
const ENDANGERED: u8 = 2;

pub async fn doctor(common: &Common, args: &Doctor, output: &Output) -> Result<u8, Failure> {
    if args.list {
        return list(output).map(|()| exit::OK);
    }
    let places = Places::find(common)?;
    let set = examine(&places, args).await?;
    let found: Vec<(&Fault, Hit)> =
        FAULTS.iter().flat_map(|fault| (fault.find)(&set).into_iter().map(move |hit| (fault, hit))).collect();
    match output.json {
        true => output.value(&value(&set, &found))?,
        false => show(output, &set, &found)?,
    }
    Ok(match found.iter().map(|(fault, _)| fault.level).max() {
        Some(Level::Danger) => ENDANGERED,
        Some(Level::Warning) => WARNED,
        Some(Level::Note) | None => exit::OK,
    })
}

async fn examine(places: &Places, args: &Doctor) -> Result<Set, Failure> {
    let ttl = args.ttl.or(places.ttl).unwrap_or(TTL);
    // The longest TTL is the restart delay, too, where that is not named.
    let places = &Places { ttl: Some(ttl), ..places.clone() };
    let looked = async {
        // What the library refuses outright is refused here too, but for what the doctor finds by itself.
        match places.builder().lazy().build().await {
            Err(BuildError::DuplicateNode { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(Failure::from(error)),
            Ok(_) => {}
        }
        let redlock = all_tried(places).await?;
        let seen = redlock.nodes();
        redlock.close(Duration::ZERO).await;
        Ok(seen)
    };
    let seen = looked.await?;
    let known: Vec<_> = places.urls.iter().filter_map(|url| Place::of(url)).collect();
    let facts = probe::all(&known, places, args.clocks).await;
    let derived = (ttl / 50).clamp(Duration::from_millis(10), Duration::from_millis(500));
    Ok(Set {
        places: known,
        facts,
        seen,
        ttl,
        reply_timeout: places.reply_timeout.unwrap_or(derived),
        delay_is_off: places.delay == Delay::Off,
    })
}

fn name(set: &Set, hit: &Hit) -> String {
    match hit.node.and_then(|index| Some((index, set.places.get(index)?))) {
        Some((index, place)) => format!("n{} {}", index + 1, place.name),
        None => "all nodes:".to_owned(),
    }
}

fn show(output: &Output, set: &Set, found: &[(&Fault, Hit)]) -> Result<(), Failure> {
    let width = usize::from(width()).clamp(40, 100);
    let mut explained = "";
    for (fault, hit) in found {
        let (tone, mark) = match fault.level {
            Level::Danger => (Tone::Bad, "danger "),
            Level::Warning => (Tone::Doubtful, "warning"),
            Level::Note => (Tone::Faint, "note   "),
        };
        let head = format!("{} {}", name(set, hit), hit.what);
        for (index, line) in fill(&head, width - 9).into_iter().enumerate() {
            match index {
                0 => output.line(format!(
                    "{} {}",
                    output.paint(tone, mark),
                    output.paint(Tone::Strong, &line)
                ))?,
                _ => output.line(format!("        {}", output.paint(Tone::Strong, &line)))?,
            }
        }
        // Several nodes may have the same fault: why that matters is said once.
        let why = if explained == fault.name { "" } else { fault.why };
        explained = fault.name;
        for (index, line) in fill(why, width - 14).into_iter().enumerate() {
            let label = if index == 0 { output.paint(Tone::Faint, "why: ") } else { "     ".to_owned() };
            output.line(format!("        {label} {line}"))?;
        }
        // A command stays in one piece, to be copied; it may be wider than the rest.
        for (index, line) in commands(&hit.mend, width - 15).into_iter().enumerate() {
            let label = if index == 0 { output.paint(Tone::Good, "mend:") } else { "     ".to_owned() };
            output.line(format!("        {label} {line}"))?;
        }
        output.line("")?;
    }
    let nodes = count(set.places.len(), "node");
    let of = |level: Level| found.iter().filter(|(fault, _)| fault.level == level).count();
    let (dangers, warnings) = (of(Level::Danger), of(Level::Warning));
    let verdict = match (dangers, warnings) {
        (0, 0) => output
            .paint(Tone::Good, &format!("{nodes}, {} kinds of fault looked for: all is well", FAULTS.len())),
        (0, warnings) => output.paint(Tone::Doubtful, &format!("{nodes}: {}", count(warnings, "warning"))),
        (dangers, warnings) => output.paint(
            Tone::Bad,
            &format!("{nodes}: {}, {}", count(dangers, "danger"), count(warnings, "warning")),
        ),
    };
    output.line(verdict)?;
    if set.delay_is_off {
        output
            .line(output.paint(Tone::Faint, "The restart delay was not looked at (--no-restart-delay)."))?;
    }
    Ok(())
}

/// What is wider than the page is broken as a shell lets one: with a backslash, so that it can be copied whole.
fn commands(text: &str, width: usize) -> Vec<String> {
    let is_command = ["redis-cli", "ssh", "sudo"].iter().any(|word| text.starts_with(word));
    let filled = fill(text, width);
    let last = filled.len().saturating_sub(1);
    let comment = filled.iter().position(|line| line.contains('#')).unwrap_or(usize::MAX);
    let line = |(index, line): (usize, String)| match is_command {
        true if index < last && index < comment => format!("{line} \\"),
        true if index > comment => format!("# {line}"),
        _ => line,
    };
    filled.into_iter().enumerate().map(line).collect()
}

fn value(set: &Set, found: &[(&Fault, Hit)]) -> Value {
    let finding = |(fault, hit): &(&Fault, Hit)| {
        json!({
            "fault": fault.name,
            "level": fault.level.name(),
            "node": hit.node.map(|index| index + 1),
            "address": hit.node.and_then(|index| set.places.get(index)).map(|place| &place.name),
            "what": hit.what,
            "why": fault.why,
            "mend": hit.mend,
        })
    };
    json!({
        "nodes": set.places.len(),
        "looked_for": FAULTS.len(),
        "findings": found.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn list(output: &Output) -> Result<(), Failure> {
    if output.json {
        let faults = FAULTS
            .iter()
            .map(|fault| json!({ "fault": fault.name, "level": fault.level.name(), "why": fault.why }));
        return output.value(&faults.collect());
    }
    let mut table = crate::table::Table::new(&["fault", "level", "why it matters"]);
    for fault in &FAULTS {
        table.row([fault.name, fault.level.name(), fault.why].map(crate::table::plain));
    }
    output.show(&table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe::{Clock, Facts};

    fn set(facts: Vec<Facts>) -> Set {
        let place = |index| Place::of(&format!("redis://node{index}")).expect("an address");
        Set {
            places: (0..facts.len()).map(place).collect(),
            facts,
            seen: Vec::new(),
            ttl: TTL,
            reply_timeout: Duration::from_millis(200),
            delay_is_off: false,
        }
    }

    fn told(fields: &[(&str, &str)]) -> Facts {
        let info = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Facts { info, speaks_resp3: true, ..Facts::default() }
    }

    fn names(set: &Set) -> Vec<&'static str> {
        FAULTS.iter().filter(|fault| !(fault.find)(set).is_empty()).map(|fault| fault.name).collect()
    }

    /// What no server at hand can show: versions that are too old, or differ.
    #[test]
    fn versions_are_judged() {
        let old = set(vec![
            told(&[("redis_version", "6.0.16")]),
            told(&[("redis_version", "6.2.1")]),
            told(&[("valkey_version", "7.2.5"), ("redis_version", "7.2.4")]),
        ]);
        assert_eq!(names(&old), ["old-version", "versions-differ"]);
        let new = || told(&[("redis_version", "8.0.0")]);
        assert_eq!(names(&set(vec![new(), new(), new()])), [""; 0]);
    }

    /// A clock is judged by what is certain: where an answer took long, its clock may be right.
    #[test]
    fn doubt_is_no_fault() {
        let clock = |ahead, gains, doubt, rate_doubt| Facts {
            clock: Some(Clock { ahead, gains, doubt, rate_doubt }),
            ..told(&[])
        };
        let well = || clock(0.0, 0.0, 100.0, 0.001);
        assert_eq!(
            names(&set(vec![well(), well(), clock(2e6, 0.02, 100.0, 0.001)])),
            ["clock-rate", "clock-offset"]
        );
        assert_eq!(names(&set(vec![well(), well(), clock(2e6, 0.02, 2e6, 0.02)])), [""; 0]);
        // Tokens are in danger by a quorum of clocks that are behind, and not by a client's that is ahead of all.
        let behind = |doubt| clock(-11e6, 0.0, doubt, 0.001);
        let found = names(&set(vec![well(), behind(100.0), behind(100.0)]));
        assert_eq!(found, ["fencing-clocks", "clock-offset", "client-clock"]);
        assert!(!names(&set(vec![well(), behind(100.0), behind(2e6)])).contains(&"fencing-clocks"));
        assert!(!names(&set(vec![well(), well(), behind(100.0)])).contains(&"fencing-clocks"));
        assert_eq!(names(&set(vec![behind(100.0), behind(100.0), behind(100.0)])), ["client-clock"]);
    }

    /// A command that is broken into lines is still one for the shell, and every name is one of its own.
    #[test]
    fn commands_can_be_copied() {
        let lines = commands(
            "redis-cli -h a -p 1 CONFIG SET x y && redis-cli CONFIG REWRITE   # or so, in words",
            30,
        );
        let whole =
            ["redis-cli -h a -p 1 CONFIG SET \\", "x y && redis-cli CONFIG \\", "REWRITE # or so, in words"];
        assert_eq!(lines, whole);
        let mut all: Vec<_> = FAULTS.iter().map(|fault| fault.name).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), FAULTS.len());
    }
}
