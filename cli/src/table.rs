//! Tables as wide as the terminal at most: cells that do not fit are filled into several lines.
//!
//! A page of code in place of a crate, since colours must not count for the width, and nothing else is needed.

use crate::output::{Output, Tone, fill};

/// Between two columns.
const GAP: usize = 2;

/// A column is not made narrower than this.
const NARROWEST: usize = 8;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<Cell>>,
}

/// A text and what it means.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

/// A text of this tone.
pub fn cell(tone: Tone, text: impl Into<String>) -> Cell {
    Cell { text: text.into(), tone }
}

/// A text.
pub fn plain(text: impl Into<String>) -> Cell {
    cell(Tone::Plain, text)
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|name| cell(Tone::Strong, *name)).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, none of them wider than `width` where that can be.
    pub fn lines(&self, width: usize, output: &Output) -> Vec<String> {
        let widths = self.widths(width);
        let mut lines = Vec::new();
        for row in &self.rows {
            let filled: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| broken(&cell.text, *width)).collect();
            for index in 0..filled.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::new();
                let mut blanks = 0;
                for ((texts, cell), width) in filled.iter().zip(row).zip(&widths) {
                    let text = texts.get(index).map_or("", String::as_str);
                    if !text.is_empty() {
                        line.extend(std::iter::repeat_n(' ', blanks));
                        line += &output.paint(cell.tone, text);
                        blanks = 0;
                    }
                    blanks += width - text.chars().count().min(*width) + GAP;
                }
                lines.push(line);
            }
        }
        lines
    }

    /// What each column wants, less what the widest must give for all to fit.
    fn widths(&self, width: usize) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wanted = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<_> = (0..columns).map(wanted).collect();
        let available = width.saturating_sub(GAP * columns.saturating_sub(1));
        while widths.iter().sum::<usize>() > available {
            let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > NARROWEST) else { break };
            *widest -= 1;
        }
        widths
    }
}

/// Lines of at most `width` characters: between words where possible, within words that are longer.
fn broken(text: &str, width: usize) -> Vec<String> {
    let pieces = |line: String| {
        let characters: Vec<_> = line.chars().collect();
        characters.chunks(width.max(1)).map(|piece| piece.iter().collect()).collect::<Vec<String>>()
    };
    fill(text, width).into_iter().flat_map(pieces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colours;

    fn lines(width: usize, colours: Colours) -> Vec<String> {
        let mut table = Table::new(&["node", "state"]);
        table.row([plain("10.0.0.1:6379"), cell(Tone::Bad, "down: connection refused by whoever is there")]);
        table.lines(width, &Output::new(false, colours))
    }

    /// What fits stands in one line; what does not is filled, and nothing is lost.
    #[test]
    fn cells_are_filled_into_the_width() {
        assert_eq!(lines(80, Colours::Never).len(), 2);
        let narrow = lines(30, Colours::Never);
        assert!(narrow.iter().all(|line| line.chars().count() <= 30), "{narrow:?}");
        assert!(narrow.len() > 3 && narrow.concat().contains("refused"), "{narrow:?}");
    }

    /// Colours do not change the layout.
    #[test]
    fn colours_take_no_room() {
        let coloured = lines(30, Colours::Always);
        assert_eq!(coloured.len(), lines(30, Colours::Never).len());
        assert!(coloured.concat().contains("\x1b[31m"), "{coloured:?}");
    }
}
