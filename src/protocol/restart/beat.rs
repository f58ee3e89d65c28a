//! What shows that a node did not go back to an older state: a count that every look raises.
//!
//! A node keeps one count for each of its runs, and no client raises that of a run which has ended. So the count of the run
//! before tells, after a restart, whether the node still has what was written at the last look. A single count would not
//! tell: other clients raise it after the restart, beyond what a client remembers.

use super::Id;

/// The count that a client remembers of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Beat {
    run: Option<Id>,
    count: u64,
}

/// What the counts say of a node's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It has what was written at the last look.
    AsSeen,
    /// It has an older state.
    Older,
    /// They do not tell.
    Unknown,
}

impl Beat {
    /// What the node kept of the count of the run that was known before, zero if there is none. `run` is the present run.
    pub(super) fn handle_kept(&mut self, run: Option<Id>, kept: Option<u64>) -> State {
        let state = match (self.run, kept) {
            (Some(_), Some(kept)) if kept < self.count => State::Older,
            (Some(_), Some(_)) => State::AsSeen,
            _ => State::Unknown,
        };
        if self.run != run {
            *self = Self::default();
        }
        state
    }

    /// The count of the present run, raised. Returns whether that shows an older state: counts only rise.
    pub(super) fn handle_raised(&mut self, run: Option<Id>, count: u64) -> bool {
        let older = run.is_some() && self.run == run && count <= self.count;
        *self = Self { run, count };
        older
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> Option<Id> {
        Some(Id::of(name.as_bytes()))
    }

    /// A count that is lower than remembered shows an older state, in the same run and after a restart; one that others
    /// raised since shows none.
    #[test]
    fn a_lower_count_is_an_older_state() {
        let mut beat = Beat::default();
        assert_eq!(beat.handle_kept(run("a"), Some(3)), State::Unknown);
        assert!(!beat.handle_raised(run("a"), 7));
        for (now, kept, state) in [
            ("a", Some(9), State::AsSeen),
            ("a", Some(7), State::AsSeen),
            ("a", Some(6), State::Older),
            ("a", None, State::Unknown),
            ("b", Some(7), State::AsSeen),
            ("b", Some(6), State::Older),
            ("b", Some(0), State::Older),
            ("b", None, State::Unknown),
        ] {
            assert_eq!(beat.clone().handle_kept(run(now), kept), state, "{now} {kept:?}");
        }
        for (now, raised, older) in [("a", 8, false), ("a", 7, true), ("a", 1, true), ("b", 1, false)] {
            assert_eq!(beat.clone().handle_raised(run(now), raised), older, "{now} {raised}");
        }
    }

    /// The count of one run says nothing of another.
    #[test]
    fn each_run_has_its_count() {
        let mut beat = Beat::default();
        beat.handle_raised(run("a"), 7);
        assert_eq!(beat.handle_kept(run("b"), Some(7)), State::AsSeen);
        assert_eq!(beat.handle_kept(run("b"), Some(0)), State::Unknown, "nothing was raised in this run");
        assert!(!beat.handle_raised(run("b"), 1) && beat.handle_raised(run("b"), 1));
    }
}
