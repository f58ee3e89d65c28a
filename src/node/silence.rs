//! How long a node may owe an answer.

use std::time::Duration;

/// The limits of silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct SilenceLimits {
    /// An answer owed for longer makes the node suspect.
    pub(super) suspect: Duration,
    /// An answer owed for longer ends the connection.
    pub(super) replace: Duration,
}

impl SilenceLimits {
    /// Three reply timeouts are no hiccup any more, unless they are very short; after four, and not under a second, the
    /// connection is given up, since everything on it would wait for a server that may be gone.
    pub(super) fn after(reply_timeout: Duration) -> Self {
        let suspect = reply_timeout.saturating_mul(3).max(Duration::from_millis(100));
        let replace = reply_timeout.saturating_mul(4).max(Duration::from_secs(1));
        Self { suspect, replace }
    }
}
