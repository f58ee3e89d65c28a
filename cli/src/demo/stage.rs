//! What the demo shows: lines, colours on a terminal, and checks that count.

use std::fmt;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use redquorum::{Outcome, Report};

use crate::words::{fill, time};

/// Prints a line. Who does not read on, with the output in a pipe, has seen enough: that is no fault of the demo.
macro_rules! show {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
pub(super) use show;

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
        show!("\n{}", self.paint(Colour::Bold, &format!("{}. {title}", self.acts)));
    }

    /// Words, filled into lines.
    pub fn say(&self, text: impl fmt::Display) {
        for line in fill(&text.to_string(), WIDTH - 3) {
            show!("   {line}");
        }
    }

    /// Words that matter less.
    pub fn remark(&self, text: impl fmt::Display) {
        for line in fill(&text.to_string(), WIDTH - 3) {
            show!("   {}", self.paint(Colour::Dim, &line));
        }
    }

    /// What the library itself says, word for word.
    pub fn quote(&self, text: impl fmt::Display) {
        for line in fill(&text.to_string(), WIDTH - 5) {
            show!("   {} {}", self.paint(Colour::Yellow, "|"), line);
        }
    }

    /// Something that happened, and when.
    pub fn event(&self, at: Duration, text: impl fmt::Display) {
        let at = format!("{:>9}", time(at));
        for (index, line) in fill(&text.to_string(), WIDTH - 14).into_iter().enumerate() {
            let at = if index == 0 { at.as_str() } else { "         " };
            show!("   {}  {line}", self.paint(Colour::Cyan, at));
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
            show!("   {name} {}", format!("{outcome} {after}").trim_end());
        }
    }

    /// Something that must be so.
    pub fn check(&mut self, so: bool, text: impl fmt::Display) {
        let mark = if so { self.paint(Colour::Green, "ok") } else { self.paint(Colour::Red, "NO") };
        for (index, line) in fill(&text.to_string(), WIDTH - 6).into_iter().enumerate() {
            show!("   {} {line}", if index == 0 { mark.as_str() } else { "  " });
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
