//! What goes to standard output and standard error, and how: for people or for machines, with colours or without.
//!
//! Knows the terminal. A reader that has gone is a [`Failure`] of its own, and never a panic.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde_json::Value;

use crate::exit::Failure;
use crate::table::Table;
pub use crate::words::{count, fill, time};

/// What is used where nobody tells how wide a line may be.
const WIDTH: u16 = 80;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colours {
    fn on(self, is_terminal: bool) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                is_terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }
}

/// The way to whoever called the tool.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// For machines: one JSON value on standard output, errors as JSON on standard error.
    pub json: bool,
    colours: Colours,
}

/// What a piece of text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        let colour = |colour: AnsiColor| colour.on_default();
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().bold(),
            Self::Faint => Style::new().dimmed(),
            Self::Good => colour(AnsiColor::Green),
            Self::Doubtful => colour(AnsiColor::Yellow),
            Self::Bad => colour(AnsiColor::Red),
        }
    }
}

impl Output {
    pub fn new(json: bool, colours: Colours) -> Self {
        Self { json, colours }
    }

    /// Writes a text and a line's end to standard output.
    pub fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.raw(format!("{}\n", text.as_ref()).as_bytes())
    }

    /// Writes bytes to standard output.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Writes a value to standard output.
    pub fn value(&self, value: &Value) -> Result<(), Failure> {
        self.line(format!("{value:#}"))
    }

    /// Says something beside the output: on standard error, which `run` shares with its command. Who has closed that does
    /// not want to hear it.
    pub fn remark(&self, event: &'static str, text: &str, more: Value) {
        let _ = match self.json {
            true => {
                let mut value = serde_json::json!({ "event": event, "message": text });
                if let (Some(fields), Value::Object(more)) = (value.as_object_mut(), more) {
                    fields.extend(more);
                }
                writeln!(io::stderr(), "{value}")
            }
            false => writeln!(io::stderr(), "{} {text}", self.paint_error(Tone::Faint, "redquorum:")),
        };
    }

    /// Says why the tool ends.
    pub fn failure(&self, failure: &Failure) {
        if failure.what.is_empty() {
            return;
        }
        let _ = match self.json {
            true => writeln!(io::stderr(), "{}", failure.json()),
            false => {
                let mut text = format!("{} {}", self.paint_error(Tone::Bad, "redquorum:"), failure.what);
                if let Some(next) = &failure.next {
                    text += &format!("\n{} {next}", self.paint_error(Tone::Strong, "  next:"));
                }
                writeln!(io::stderr(), "{text}")
            }
        };
    }

    /// A text in colour for standard output, where colours are wanted.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        painted(self.colours.on(io::stdout().is_terminal()), tone, text)
    }

    fn paint_error(&self, tone: Tone, text: &str) -> String {
        painted(self.colours.on(io::stderr().is_terminal()), tone, text)
    }

    /// Shows a table, as wide as the terminal at most.
    pub fn show(&self, table: &Table) -> Result<(), Failure> {
        table.lines(usize::from(width()), self).into_iter().try_for_each(|line| self.line(line))
    }
}

fn painted(on: bool, tone: Tone, text: &str) -> String {
    let style = tone.style();
    if on && tone != Tone::Plain { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// How wide a line may be: what the terminal says, or else `COLUMNS`, or else 80.
pub fn width() -> u16 {
    #[cfg(unix)]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout())
        && size.ws_col > 0
    {
        return size.ws_col;
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

/// A time for machines.
pub fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}
