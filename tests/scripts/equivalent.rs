//! The changes that change nothing: no test can notice them.

use crate::changes::Change;

/// A change that makes no difference, wherever it is made.
pub struct Equivalent {
    /// A part of a line, and what may stand in its place.
    from: &'static str,
    to: &'static [&'static str],
    /// Why it makes no difference.
    pub why: &'static str,
}

pub const EQUIVALENT: [Equivalent; 11] = [
    Equivalent {
        from: "left >= tonumber(ttl)",
        to: &["left > tonumber(ttl)"],
        why: "a life that is as long as it has to be is given the same end once more",
    },
    Equivalent {
        from: "if done == 0 and redis.pcall('GET', key) then",
        to: &["if redis.pcall('GET', key) then"],
        why: "a life that took is confirmed by 1 already",
    },
    Equivalent { from: ", 1, ", to: &[", 0, "], why: "Lua takes the start 0 of a part of a text for 1" },
    Equivalent { from: "for i = 1, n", to: &["for i = 0, n"], why: "an answer at 0 is not sent" },
    Equivalent { from: ", 1, -34)", to: &[", 1, -33)"], why: "a blank behind a number is no part of it" },
    Equivalent { from: "next > now", to: &["next >= now"], why: "zero is added to the life" },
    Equivalent {
        from: "if not member then break end",
        to: &[""],
        why: "the next line fails without a member, which ends the hand-over as well",
    },
    Equivalent {
        from: "local heard = 1",
        to: &["local heard = 2", "local heard = 1000"],
        why: "any number above zero says that the client will hear of it",
    },
    Equivalent { from: "local number = 0", to: &["local number = -1"], why: "no token is below 1" },
    Equivalent {
        from: "queue, 0, 0, 'WITHSCORES'",
        to: &["queue, 0, 1, 'WITHSCORES'", "queue, 0, -1, 'WITHSCORES'"],
        why: "only the first of the list is read",
    },
    Equivalent {
        from: "return refusal(KEYS[1], ARGV[1])",
        to: &[
            "return refusal(KEYS[1], ARGV[0])",
            "return refusal(KEYS[1], ARGV[2])",
            "return refusal(KEYS[1], ARGV[1000])",
        ],
        why: "the key was read before and does not carry the owner",
    },
];

impl Equivalent {
    pub fn is(&self, change: &Change) -> bool {
        let made = |to: &&str| {
            change.from.match_indices(self.from).any(|(at, part)| {
                [&change.from[..at], to, &change.from[at + part.len()..]].concat() == change.to
            })
        };
        self.to.iter().any(made)
    }
}
