//! What a request asks for beside its key: one value behind every kind of request.

use std::time::Duration;

use crate::config::{Config, InvalidRequest, KeepAlive};
use crate::protocol::acquire::Wait;
use crate::protocol::lease::Terms;
use crate::protocol::quorum::Quorum;

/// What a request asks for, in place of what the client does by default.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) ttl: Option<Duration>,
    /// Only for a lock that is to be acquired.
    pub(super) wait: Option<Wait>,
    pub(super) fenced: bool,
    keeping: KeepAlive,
}

impl Options {
    /// What the client does by default.
    pub(super) fn of(config: &Config) -> Self {
        Self { ttl: None, wait: None, fenced: false, keeping: config.keeping }
    }

    /// Keeps the lock alive, up to the client's maximum if it has one.
    pub(super) fn keep_alive(&mut self) {
        self.keeping.alive = true;
    }

    /// Keeps the lock alive up to this time.
    pub(super) fn keep_at_most(&mut self, longest: Duration) {
        self.keeping = KeepAlive { alive: true, longest: Some(longest) };
    }

    /// Does not keep the lock alive. A maximum stays, for work under a lock, which keeps it alive after all.
    pub(super) fn do_not_keep(&mut self) {
        self.keeping.alive = false;
    }

    /// The terms of the lease, and whether it is kept alive.
    pub(super) fn terms(&self, config: &Config, quorum: Quorum) -> Result<(Terms, KeepAlive), InvalidRequest> {
        let keeping = self.keeping.in_force();
        let terms = config.terms(quorum, self.ttl.unwrap_or(config.ttl), keeping)?;
        Ok((terms, keeping))
    }
}
