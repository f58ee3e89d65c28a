//! Where one reply ends and the next begins.
//!
//! Knows as much of the protocol (RESP2 and RESP3) as it takes to find the end of a top-level reply,
//! and nothing of what a reply says. Garbage never makes it panic or stall: an unknown type counts as
//! one line.

/// Finds the ends of top-level replies in a byte stream that arrives in arbitrary pieces, from
/// the beginning of the stream on.
///
/// No stack of nested arrays is kept: it is enough to count the values that the reply still owes.
#[derive(Debug, Default)]
pub struct ReplyFramer {
    /// Values still to come before the current top-level reply is whole; 0 between two replies.
    owed: u64,
    part: Part,
    line: Vec<u8>,
}

/// The piece of a value that the next byte belongs to.
#[derive(Debug, Default, Clone, Copy)]
enum Part {
    /// The type byte and what follows up to the line feed.
    #[default]
    Line,
    /// The rest of a string of known length, with its closing CRLF.
    Body(u64),
}

impl ReplyFramer {
    /// Whether the next byte begins a new top-level reply.
    pub fn between_replies(&self) -> bool {
        self.owed == 0
    }

    /// Takes bytes up to the end of the current reply, at most all of them, and says how many it took.
    pub fn advance(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            if self.owed == 0 {
                self.owed = 1;
            }
            taken += match self.part {
                Part::Line => self.advance_line(&bytes[taken..]),
                Part::Body(left) => self.advance_body(left, bytes.len() - taken),
            };
            if self.owed == 0 {
                break;
            }
        }
        taken
    }

    fn advance_line(&mut self, bytes: &[u8]) -> usize {
        // Numbers fit in the first 32 bytes; the rest of a long line, an error say, needs no keeping.
        let keep = |line: &mut Vec<u8>, part: &[u8]| {
            let room = 32_usize.saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
        };
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            keep(&mut self.line, bytes);
            return bytes.len();
        };
        keep(&mut self.line, &bytes[..end]);
        self.end_line();
        end + 1
    }

    fn end_line(&mut self) {
        let kind = self.line.first().copied().unwrap_or_default();
        // A null string or array has the length -1 and no content.
        let length = std::str::from_utf8(&self.line[1.min(self.line.len())..])
            .ok()
            .and_then(|digits| digits.trim_end().parse::<i64>().ok())
            .map_or(0, |length| length.max(0).unsigned_abs());
        let null = self.line.get(1) == Some(&b'-');
        self.line.clear();

        match kind {
            b'$' | b'=' | b'!' if !null => self.part = Part::Body(length.saturating_add(2)),
            b'*' | b'~' | b'>' => self.owe(length),
            b'%' => self.owe(length.saturating_mul(2)),
            // An attribute stands before the value that it describes, which is then still owed.
            b'|' => self.owe(length.saturating_mul(2).saturating_add(1)),
            _ => self.owe(0),
        }
    }

    fn advance_body(&mut self, left: u64, available: usize) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(available);
        let left = left - taken as u64;
        if left == 0 {
            self.part = Part::Line;
            self.owe(0);
        } else {
            self.part = Part::Body(left);
        }
        taken
    }

    /// One value is done, and it holds `more` values that follow.
    fn owe(&mut self, more: u64) {
        self.owed = (self.owed - 1).saturating_add(more);
    }
}
