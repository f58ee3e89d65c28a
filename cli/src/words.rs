//! Words and numbers for people.

use std::time::Duration;

/// A time, as exact as anybody wants to know it.
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() * 1_000.0 {
        millis if millis < 0.0995 => format!("{:.0} µs", millis * 1_000.0),
        millis if millis < 9.95 => format!("{millis:.2} ms"),
        millis if millis < 950.0 => format!("{millis:.0} ms"),
        millis if millis < 120_000.0 => format!("{:.1} s", millis / 1_000.0),
        millis if millis < 7_200_000.0 => format!("{:.0} min", millis / 60_000.0),
        millis if millis < 172_800_000.0 => format!("{:.0} h", millis / 3_600_000.0),
        millis => format!("{:.0} d", millis / 86_400_000.0),
    }
}

/// Breaks a text into lines of at most `width` characters, between words.
pub fn fill(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// "1 node", "2 nodes".
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("{number} {noun}") } else { format!("{number} {noun}s") }
}

/// Addresses stand between commas or blanks. A comma inside a password is written `%2C`.
pub fn split(given: &str) -> Vec<String> {
    given.split([',', ' ', '\n', '\t']).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time is shown with the digits that matter.
    #[test]
    fn times_are_readable() {
        let shown = |micros| time(Duration::from_micros(micros));
        assert_eq!(shown(42), "42 µs");
        assert_eq!(shown(1_234), "1.23 ms");
        assert_eq!(shown(56_789), "57 ms");
        assert_eq!(shown(9_898_000), "9.9 s");
        assert_eq!(shown(600_000_000), "10 min");
        assert_eq!(shown(7 * 86_400_000_000), "7 d");
    }

    /// No line is longer than asked, unless one word is.
    #[test]
    fn words_are_filled_into_lines() {
        assert_eq!(fill("a quorum of nodes", 8), ["a quorum", "of nodes"]);
        assert_eq!(fill("", 8), [""; 0]);
    }
}
