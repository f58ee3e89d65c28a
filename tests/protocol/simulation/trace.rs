//! What happened, line by line: who, when in true time, what, on which node, on which connection.
//!
//! Off while seeds are tried by the thousand; a failing seed is run once more with it on.

use super::clock::TrueTime;

/// The lines of one history.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    on: bool,
    lines: Vec<String>,
}

impl Trace {
    pub fn new(on: bool) -> Self {
        Self { on, lines: Vec::new() }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    pub fn push(&mut self, now: TrueTime, line: String) {
        self.lines.push(format!("{:>6}.{:06} ms  {line}", now / 1_000_000, now % 1_000_000));
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The last `count` lines, which is where a violation is.
    pub fn tail(&self, count: usize) -> String {
        let from = self.lines.len().saturating_sub(count);
        let mut text = String::new();
        if from > 0 {
            text.push_str(&format!("({from} earlier lines left out)\n"));
        }
        for line in &self.lines[from..] {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// Notes a queue, which is formatted only where the trace is on.
macro_rules! note {
    ($world:expr, $($line:tt)*) => {
        if $world.trace.is_on() {
            let line = format!($($line)*);
            $world.trace.push($world.now, line);
        }
    };
}
pub(crate) use note;
