//! Figures as tables, for a terminal and for a document.

use std::fmt;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table as Drawn};

use crate::bars::Bar;
use crate::results::{Allocations, Contention, FLOOR, Leftover, OURS, RUNTIMES, Row, Run, ratio};

/// Heads and cells; the first column is left-aligned.
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new<const N: usize>(heads: [&str; N]) -> Self {
        Self { heads: heads.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    fn push<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.to_vec());
    }

    /// As a document has it.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<String> = (0..self.heads.len()).map(|_| "---".to_owned()).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.heads) + &line(&rule) + &rows
    }
}

/// As a terminal shows it.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut drawn = Drawn::new();
        drawn.load_style(UTF8_FULL_CONDENSED).set_header(&self.heads).add_rows(&self.rows);
        for column in drawn.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        drawn.fmt(f)
    }
}

/// What was to be reached, and what was.
pub fn bars(bars: &[Bar]) -> Table {
    let mut table = Table::new(["figure, N = 5", "measured", "bar", "reached"]);
    for bar in bars {
        let reached = match bar.reached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
        table.push([bar.figure.clone(), bar.measured.clone(), bar.bar.clone(), reached.to_owned()]);
    }
    table
}

/// What a cycle costs: all rows that `shown` lets pass, each beside the floor of the same nodes and tasks.
pub fn cycles(run: &Run, shown: impl Fn(&Row) -> bool) -> Table {
    let mut table = Table::new([
        "runtime, nodes, tasks",
        "client",
        "acquire µs: p50 / p99 / p99.9 / max",
        "release µs: p50 / p99 / p99.9 / max",
        "cycle µs: p50 / p99 / p99.9 / max",
        "cycles/s",
        "CPU µs",
        "p50 to the floor",
        "rate to the floor",
    ]);
    for row in run.rows.iter().filter(|row| shown(row)) {
        let floor = floor_of(run, row).filter(|floor| !std::ptr::eq(*floor, row));
        let to_floor = |of: fn(&crate::results::Round) -> f64| {
            floor.map_or(String::new(), |floor| format!("{:.2}", ratio(row, floor, of)))
        };
        let mut cells = [
            format!("{}, {}, {}", row.runtime, row.nodes, row.tasks),
            client(row),
            latency(row.acquire.p50, row.acquire.p99, row.acquire.p999, row.acquire.max),
            latency(row.release.p50, row.release.p99, row.release.p999, row.release.max),
            latency(row.cycle.p50, row.cycle.p99, row.cycle.p999, row.cycle.max),
            count(row.rate),
            format!("{:.0}", row.cpu),
            to_floor(|round| round.cycle.p50),
            to_floor(|round| round.rate),
        ];
        if row.cycles == 0 {
            for cell in &mut cells[2..] {
                *cell = "none".to_owned();
            }
        }
        table.push(cells);
    }
    table
}

/// The measure of a row: the floor in the same situation, or where nothing is wrong.
fn floor_of<'a>(run: &'a Run, row: &Row) -> Option<&'a Row> {
    let floor = |situation: &str| run.row(FLOOR, situation, &row.runtime, row.nodes, row.tasks);
    floor(&row.situation).or_else(|| floor(crate::bars::ALL_HEALTHY))
}

fn client(row: &Row) -> String {
    let situation = match row.situation.as_str() {
        crate::bars::HEALTHY => String::new(),
        other => format!(", {other}"),
    };
    let trouble = match (row.stuck, row.failures) {
        (true, _) => ": does not end".to_owned(),
        (false, 0) => String::new(),
        (false, failures) => format!(": {failures} of {} failed", failures + row.cycles),
    };
    format!("{}{situation}{trouble}", row.who)
}

/// The median and the rate beside the floor, for every N and number of tasks.
pub fn ratios(run: &Run) -> Table {
    let mut table = Table::new([
        "runtime, tasks",
        "p50 to the floor, N = 1 / 3 / 5 / 7",
        "cycles/s to the floor, N = 1 / 3 / 5 / 7",
        "CPU to the floor, N = 1 / 3 / 5 / 7",
    ]);
    for runtime in RUNTIMES {
        for tasks in crate::bars::TASKS {
            let over_nodes = |of: fn(&crate::results::Round) -> f64| {
                let ratios = crate::bars::NODES.map(|nodes| {
                    let row = |who| run.row(who, crate::bars::HEALTHY, runtime, nodes, tasks);
                    row(OURS)
                        .zip(row(FLOOR))
                        .map_or("".into(), |(ours, floor)| format!("{:.2}", ratio(ours, floor, of)))
                });
                ratios.join(" / ")
            };
            table.push([
                format!("{runtime}, {tasks}"),
                over_nodes(|round| round.cycle.p50),
                over_nodes(|round| round.rate),
                over_nodes(|round| round.cpu),
            ]);
        }
    }
    table
}

/// Processes that contend.
pub fn contention(contentions: &[Contention]) -> Table {
    let mut table = Table::new([
        "client",
        "processes × tasks",
        "hold",
        "per second",
        "gap p50",
        "gap p99",
        "wait p50",
        "wait p99",
        "longest",
        "Jain, tasks",
        "Jain, processes",
        "commands each",
        "two at once",
    ]);
    for contention in contentions {
        let of = |of: fn(&crate::results::Turns) -> f64| contention.median(of);
        table.push([
            contention.who.clone(),
            format!("{} × {}", contention.processes, contention.tasks),
            tick(contention.hold as f64),
            count(of(|turns| turns.rate)),
            time(of(|turns| turns.gap_p50)),
            time(of(|turns| turns.gap_p99)),
            time(of(|turns| turns.wait_p50) * 1e3),
            time(of(|turns| turns.wait_p99) * 1e3),
            time(of(|turns| turns.longest) * 1e3),
            format!("{:.3}", of(|turns| turns.jain)),
            format!("{:.3}", of(|turns| turns.jain_processes)),
            format!("{:.1}", of(|turns| turns.commands)),
            contention.rounds.iter().map(|turns| turns.overlaps).sum::<u64>().to_string(),
        ]);
    }
    table
}

/// Keys that stayed behind.
pub fn leftovers(leftovers: &[Leftover]) -> Table {
    let mut table = Table::new(["client", "after", "attempts", "keys left"]);
    for leftover in leftovers {
        let (attempts, keys) = match leftover.attempts {
            0 => ("not possible".to_owned(), String::new()),
            attempts => (attempts.to_string(), leftover.keys.to_string()),
        };
        table.push([leftover.who.clone(), leftover.after.clone(), attempts, keys]);
    }
    table
}

/// What a cycle allocates.
pub fn allocations(counted: &Allocations) -> Table {
    let mut table =
        Table::new(["heap allocations for a cycle, N = 5", "count", "beyond the `redis` crate alone"]);
    let mut row = |what: &str, count: f64| {
        table.push([what.to_owned(), format!("{count:.1}"), format!("{:.1}", count - counted.redis)]);
    };
    row("the `redis` crate alone: ten commands, one after the other", counted.redis);
    row("the floor", counted.floor);
    row("redquorum", counted.ours);
    row("redquorum, fenced", counted.fenced);
    table
}

fn latency(p50: f64, p99: f64, p999: f64, max: f64) -> String {
    [p50, p99, p999, max].map(|micros| format!("{micros:.0}")).join(" / ")
}

/// Microseconds, with the unit that fits. Nothing is measured to take no time.
pub fn time(micros: f64) -> String {
    let (number, unit) = match micros {
        nothing if !nothing.is_finite() || nothing <= 0.0 => return "none".to_owned(),
        short if short < 999.5 => return format!("{short:.0} µs"),
        middle if middle < 999_500.0 => (middle / 1e3, "ms"),
        long => (long / 1e6, "s"),
    };
    match number {
        small if small < 9.95 => format!("{small:.2} {unit}"),
        middle if middle < 99.5 => format!("{middle:.1} {unit}"),
        large => format!("{large:.0} {unit}"),
    }
}

/// A round number of microseconds, for an axis.
pub fn tick(micros: f64) -> String {
    let round = |number: f64| (number * 1e6).round() / 1e6;
    match micros {
        0.0 => "0".to_owned(),
        short if short < 1e3 => format!("{} µs", round(short)),
        middle if middle < 1e6 => format!("{} ms", round(middle / 1e3)),
        long => format!("{} s", round(long / 1e6)),
    }
}

/// A whole number with its thousands apart.
pub fn count(number: f64) -> String {
    if !number.is_finite() {
        return "none".to_owned();
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}
