//! What the demo shows: lines, colours on a terminal, and checks that count.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use redquorum::{Outcome, Report};

/// Lines are filled up to here: a terminal of 80 columns shows them whole.
const WIDTH: usize = 78;

/// Where the demo is shown. Remembers whether all was as it should be.
pub struct Stage {
    colours: bool,
    acts: usize,
    failed: Vec<String>,
}

#[derive(Clone, Copy)]
pub enum Colour {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

impl Stage {
    pub fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let capable = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let colours = wanted && capable && std::io::stdout().is_terminal();
        Self { colours, acts: 0, failed: Vec::new() }
    }

    /// What was not as it should be.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }

    /// Begins an act.
    pub fn act(&mut self, title: &str) {
        self.acts += 1;
        println!("\n{}", self.paint(Colour::Bold, &format!("{}. {title}", self.acts)));
    }

    /// Words, filled into lines.
    pub fn say(&self, text: impl fmt::Display) {
        for line in fill(&text.to_string(), WIDTH - 3) {
            println!("   {line}");
        }
    }

    /// Words that matter less.
    pub fn remark(&self, text: impl fmt::Display) {
        for line in fill(&text.to_string(), WIDTH - 3) {
            println!("   {}", self.paint(Colour::Dim, &line));
        }
    }

    /// What the library itself says, word for word.
    pub fn quote(&self, text: impl fmt::Display) {
        for line in fill(&text.to_string(), WIDTH - 5) {
            println!("   {} {}", self.paint(Colour::Yellow, "|"), line);
        }
    }

    /// Something that happened, and when.
    pub fn event(&self, at: Duration, text: impl fmt::Display) {
        let at = format!("{:>9}", time(at));
        for (index, line) in fill(&text.to_string(), WIDTH - 14).into_iter().enumerate() {
            let at = if index == 0 { at.as_str() } else { "         " };
            println!("   {}  {line}", self.paint(Colour::Cyan, at));
        }
    }

    /// What each node answered.
    pub fn votes(&self, report: &Report) {
        for (index, node) in report.nodes().iter().enumerate() {
            let colour = match node.outcome {
                Outcome::Granted => Colour::Green,
                Outcome::Held { .. } | Outcome::NotOurs => Colour::Yellow,
                Outcome::Pending => Colour::Dim,
                _ => Colour::Red,
            };
            let (name, outcome) = (format!("n{:<2}", index + 1), node.outcome.to_string());
            let outcome = self.paint(colour, &format!("{outcome:<16}"));
            let after = match node.outcome {
                Outcome::Pending | Outcome::NotSent(_) => String::new(),
                _ => format!("after {}", time(node.elapsed)),
            };
            println!("   {name} {}", format!("{outcome} {after}").trim_end());
        }
    }

    /// Something that must be so.
    pub fn check(&mut self, so: bool, text: impl fmt::Display) {
        let mark = if so { self.paint(Colour::Green, "ok") } else { self.paint(Colour::Red, "NO") };
        for (index, line) in fill(&text.to_string(), WIDTH - 6).into_iter().enumerate() {
            println!("   {} {line}", if index == 0 { mark.as_str() } else { "  " });
        }
        if !so {
            self.failed.push(format!("act {}: {text}", self.acts));
        }
    }

    pub fn paint(&self, colour: Colour, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{}m{text}\x1b[0m", colour as u8),
            false => text.to_owned(),
        }
    }
}

/// A time, as exact as anybody wants to know it.
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() * 1_000.0 {
        millis if millis < 10.0 => format!("{millis:.1} ms"),
        millis if millis < 950.0 => format!("{millis:.0} ms"),
        millis => format!("{:.2} s", millis / 1_000.0),
    }
}

/// "1 node", "2 nodes".
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("{number} {noun}") } else { format!("{number} {noun}s") }
}

/// Breaks a text into lines of at most `width` characters, between words.
fn fill(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
