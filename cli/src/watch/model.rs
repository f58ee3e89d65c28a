//! What `watch` knows: the last look at nodes and locks, and what has changed since the one before.

use std::collections::VecDeque;
use std::time::Duration;

use redquorum::{Inspection, NodeStatus};

use crate::nodes::{state, vote};
use crate::output::{Tone, time};
use crate::status;

/// Older events are forgotten.
const EVENTS: usize = 200;

/// Everything that is shown.
#[derive(Default)]
pub struct Model {
    pub nodes: Vec<NodeStatus>,
    pub locks: Vec<Lock>,
    /// The newest first.
    pub events: VecDeque<Event>,
}

/// A lock as it was at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub key: String,
    pub holder: Option<String>,
    pub remaining: Option<Duration>,
    pub waiting: u32,
    pub answered: usize,
    pub nodes: usize,
}

/// Something that has changed.
pub struct Event {
    /// Since the beginning.
    pub at: Duration,
    pub tone: Tone,
    pub text: String,
}

impl Lock {
    pub fn of(key: &str, found: &Inspection) -> Self {
        Self {
            key: key.to_owned(),
            holder: found.holder().map(str::to_owned),
            remaining: status::remaining(found),
            waiting: found.waiting(),
            answered: found.nodes().iter().filter(|node| node.state.is_ok()).count(),
            nodes: found.nodes().len(),
        }
    }

    /// Whether enough nodes answered for the rest to be known.
    pub fn is_known(&self) -> bool {
        2 * self.answered > self.nodes
    }
}

impl Model {
    /// Takes a new look in, and notes what has changed.
    pub fn look(&mut self, at: Duration, nodes: Vec<NodeStatus>, locks: Vec<Lock>) {
        let mut events = Vec::new();
        for (index, (before, after)) in self.nodes.iter().zip(&nodes).enumerate() {
            let mut note =
                |tone, what: String| events.push((tone, format!("n{} {}: {what}", index + 1, after.address)));
            if before.health != after.health {
                let (text, tone) = state(after);
                note(tone, text);
            }
            // What is left of a guard changes all the time, and is no event.
            if std::mem::discriminant(&before.vote) != std::mem::discriminant(&after.vote) {
                let (text, tone) = vote(after);
                note(tone, format!("vote {text}"));
            }
            if before.run_id != after.run_id && before.run_id.is_some() && after.run_id.is_some() {
                note(Tone::Doubtful, "was restarted".to_owned());
            }
        }
        for (before, after) in self.locks.iter().zip(&locks) {
            events.extend(
                changes(before, after).map(|(tone, text)| (tone, format!("\"{}\" {text}", after.key))),
            );
        }
        for (tone, text) in events {
            self.events.push_front(Event { at, tone, text });
        }
        self.events.truncate(EVENTS);
        (self.nodes, self.locks) = (nodes, locks);
    }
}

fn changes(before: &Lock, after: &Lock) -> impl Iterator<Item = (Tone, String)> {
    let known = match (before.is_known(), after.is_known()) {
        (true, false) => Some((Tone::Bad, format!("{} of {} nodes answer", after.answered, after.nodes))),
        (false, true) => Some((Tone::Good, "enough nodes answer again".to_owned())),
        _ => None,
    };
    let both = before.is_known() && after.is_known();
    let holder = (both && before.holder != after.holder).then(|| match (&before.holder, &after.holder) {
        (_, None) => (Tone::Plain, "is free".to_owned()),
        (None, Some(holder)) => (Tone::Good, format!("is held by {holder}")),
        (Some(last), Some(holder)) => (Tone::Good, format!("went from {last} to {holder}")),
    });
    // An extension: more is left than before, though time went by.
    let longer = |(before, after): (Duration, Duration)| after > before + Duration::from_millis(100);
    let extended = (both && before.holder == after.holder)
        .then(|| before.remaining.zip(after.remaining).filter(|pair| longer(*pair)))
        .flatten()
        .map(|(_, left)| (Tone::Faint, format!("was extended, {} left", time(left))));
    let waiting = (both && before.waiting != after.waiting)
        .then(|| (Tone::Plain, format!("has {} in line", after.waiting)));
    known.into_iter().chain(holder).chain(extended).chain(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(holder: Option<&str>, left: u64, waiting: u32, answered: usize) -> Lock {
        let remaining = holder.map(|_| Duration::from_millis(left));
        Lock { key: "job".into(), holder: holder.map(str::to_owned), remaining, waiting, answered, nodes: 3 }
    }

    fn texts(before: &Lock, after: &Lock) -> Vec<String> {
        changes(before, after).map(|(_, text)| text).collect()
    }

    /// What changes between two looks is an event; time going by is none.
    #[test]
    fn changes_are_events() {
        let held = lock(Some("a"), 5_000, 0, 3);
        assert_eq!(texts(&held, &lock(Some("a"), 4_500, 0, 3)), [""; 0]);
        assert_eq!(
            texts(&held, &lock(Some("a"), 9_000, 1, 3)),
            ["was extended, 9.0 s left", "has 1 in line"]
        );
        assert_eq!(texts(&held, &lock(Some("b"), 9_000, 0, 3)), ["went from a to b"]);
        assert_eq!(texts(&held, &lock(None, 0, 0, 3)), ["is free"]);
        assert_eq!(
            texts(&held, &lock(None, 0, 0, 1)),
            ["1 of 3 nodes answer"],
            "and whether it is free is not known"
        );
    }
}
