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

#[cfg(test)]
mod tests {
    use super::*;

    /// A node is suspect for some time before its connection is given up, however short or long the reply timeout is.
    #[test]
    fn nodes_are_suspect_first() {
        for (timeout, suspect, replace) in [(1, 100, 1_000), (100, 300, 1_000), (500, 1_500, 2_000)] {
            let silence = SilenceLimits::after(Duration::from_millis(timeout));
            assert_eq!(silence.suspect, Duration::from_millis(suspect), "{timeout} ms");
            assert_eq!(silence.replace, Duration::from_millis(replace), "{timeout} ms");
        }
        assert_eq!(SilenceLimits::after(Duration::MAX).suspect, Duration::MAX);
    }
}
