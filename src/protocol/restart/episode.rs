//! Which causes of standing aside are changes of their own. One flush or restart shows in several ways, one after the other: a
//! marker that is gone, then one that is young, and a count that went back.

use std::time::Duration;

use super::{Evidence, Standing};
use crate::protocol::time::Instant;

/// Causes that are noticed within so long are one change.
const ONE_CHANGE: Duration = Duration::from_secs(2);

/// The time for which a node stands aside, as it was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Episode {
    until: Instant,
    told: Instant,
}

impl Episode {
    /// Takes in why the node's grants count later than before, if they do, and what they are worth now. Says whether that is a
    /// change of its own.
    pub fn handle(&mut self, cause: Option<Evidence>, standing: Standing, now: Instant) -> bool {
        let stands_aside = now < self.until;
        self.until = match standing {
            Standing::CountsFrom(from) => from,
            Standing::Replica | Standing::SameAs(_) | Standing::Several => Instant::default(),
        };
        let Some(cause) = cause else { return false };
        let follows = matches!(
            cause,
            Evidence::MarkedLately | Evidence::Young | Evidence::Undated | Evidence::WentBack
        );
        if stands_aside && (follows || now.since(self.told) < ONE_CHANGE) {
            return false;
        }
        self.told = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default().after(Duration::from_secs(seconds))
    }

    /// What follows from a loss is no change of its own; a second loss is, and so is one after the node counted again.
    #[test]
    fn one_loss_is_one_change() {
        let mut episode = Episode::default();
        let mut is_change = |cause, from, now| episode.handle(cause, Standing::CountsFrom(from), at(now));
        assert!(!is_change(None, at(0), 1));
        assert!(is_change(Some(Evidence::MarkerLost), Instant::FAR_FUTURE, 10));
        assert!(!is_change(Some(Evidence::WentBack), Instant::FAR_FUTURE, 10));
        assert!(!is_change(Some(Evidence::MarkedLately), at(25), 15));
        assert!(!is_change(Some(Evidence::WentBack), at(25), 15));
        assert!(is_change(Some(Evidence::MarkerLost), at(27), 17), "a second flush");
        assert!(!is_change(None, at(27), 22));
        assert!(is_change(Some(Evidence::WentBack), at(40), 30), "it counted in between");
        assert!(!is_change(Some(Evidence::Restarted), at(41), 31), "the same restart");
        assert!(is_change(Some(Evidence::Young), at(60), 50));
    }
}
