//! What is counted and measured, under which names: through the facade of the `metrics` crate, with the feature of that
//! name. Without it, everything here is empty and costs nothing.
//!
//! The names are part of the interface; `docs/operations.md` has them all in one table.

#[cfg(feature = "metrics")]
pub(crate) use on::*;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::*;

#[cfg(feature = "metrics")]
mod on {
    use std::sync::Arc;
    use std::time::Duration;

    use ::metrics::{counter, gauge, histogram};

    use crate::client::error::AcquireError;
    use crate::protocol::lease::{End, Event, Lease, NotExtended, Released};
    use crate::protocol::message::Reply;
    use crate::protocol::time::Instant;
    use crate::runtime::janitor::Balance;

    /// One acquire, from the call on.
    #[derive(Debug)]
    pub(crate) struct Acquire(Instant);

    impl Acquire {
        pub(crate) fn begin(now: impl FnOnce() -> Instant) -> Self {
            Self(now())
        }

        /// It has ended: with a lease, or why not.
        pub(crate) fn end(self, ended: Result<&Lease, &AcquireError>, now: impl FnOnce() -> Instant) {
            let outcome = ended.map_or_else(cause, |_| "held");
            counter!("redquorum_acquires_total", "outcome" => outcome).increment(1);
            histogram!("redquorum_acquire_seconds", "outcome" => outcome).record(now().since(self.0));
            if let Ok(lease) = ended {
                let waited = lease.round().started().since(self.0);
                histogram!("redquorum_wait_seconds").record(waited);
            }
        }
    }

    /// What stood in the way, at the last attempt.
    fn cause(error: &AcquireError) -> &'static str {
        match error {
            AcquireError::Held { .. } => "contended",
            AcquireError::NoQuorum { .. } => "no_quorum",
            AcquireError::NodesTooYoung { .. } => "too_young",
            AcquireError::TooSlow { .. } => "too_late",
            AcquireError::TokensExhausted { .. } => "tokens_exhausted",
            AcquireError::TimedOut { last, .. } => cause(last),
            AcquireError::Closed => "closed",
            AcquireError::NoRandomness(_) => "no_randomness",
            // Refused before it is counted.
            AcquireError::Invalid(_) => "invalid",
        }
    }

    /// A node answered a call, or its outcome is not known.
    pub(crate) fn answered(node: &Arc<str>, operation: &'static str, reply: &Reply) {
        if let Reply::Each(replies) = reply {
            return replies.iter().for_each(|reply| answered(node, "extend", reply));
        }
        let outcome = match reply {
            // What a grant is worth is weighed later.
            Reply::Granted | Reply::Fenced(_) | Reply::Uncounted(_) | Reply::HandedOver | Reply::Voted => {
                "granted"
            }
            Reply::CounterExhausted => "tokens_exhausted",
            Reply::Held(_) => "held",
            Reply::Absent | Reply::NotOurs => "not_ours",
            Reply::Queued(_) | Reply::QueueFull | Reply::Found(_) | Reply::Each(_) => "told",
            Reply::Refused(_) => "refused",
            Reply::NotSent(_) => "not_sent",
            Reply::Unknown(_) => "unknown",
        };
        let node = node.clone();
        let operation = match operation {
            "hand over" => "hand_over",
            "extend all" => "extend_all",
            operation => operation,
        };
        counter!("redquorum_node_answers_total", "node" => node, "operation" => operation, "outcome" => outcome)
            .increment(1);
    }

    /// A node took so long to answer.
    pub(crate) fn round_trip(node: &Arc<str>, took: Duration) {
        histogram!("redquorum_node_seconds", "node" => node.clone()).record(took);
    }

    /// A node takes calls, or takes none.
    pub(crate) fn node_up(node: &Arc<str>, up: bool) {
        gauge!("redquorum_node_up", "node" => node.clone()).set(if up { 1.0 } else { 0.0 });
    }

    /// A node's grants do not count for a while.
    pub(crate) fn too_young(node: &Arc<str>) {
        counter!("redquorum_node_too_young_total", "node" => node.clone()).increment(1);
    }

    /// The debts of a client have changed.
    pub(crate) fn debts(before: Balance, now: Balance) {
        gauge!("redquorum_pending_cleanups").increment(now.open as f64 - before.open as f64);
        let dropped = now.settled.dropped.saturating_sub(before.settled.dropped);
        if dropped > 0 {
            counter!("redquorum_cleanups_dropped_total").increment(dropped);
        }
    }

    /// A place in the queue, from 1.
    pub(crate) fn stands(place: u32) {
        histogram!("redquorum_queue_place").record(f64::from(place));
    }

    /// One acquire that waits in the queue, for as long as this lives.
    #[derive(Debug)]
    pub(crate) struct Waiting(());

    impl Waiting {
        pub(crate) fn new() -> Self {
            gauge!("redquorum_waiters").increment(1.0);
            Self(())
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            gauge!("redquorum_waiters").decrement(1.0);
        }
    }

    /// One lease's life: watched from outside, told by nobody.
    #[derive(Debug, Default)]
    pub(crate) struct Hold {
        began: Option<Instant>,
        ended: Option<Instant>,
    }

    impl Hold {
        /// Looks at the lease after it changed.
        pub(crate) fn see(&mut self, lease: &Lease, now: impl FnOnce() -> Instant) {
            match (self.began, self.ended, lease.validity(), lease.end()) {
                (None, _, Some(_), _) => {
                    let now = now();
                    self.began = Some(now);
                    gauge!("redquorum_locks_held").increment(1.0);
                    histogram!("redquorum_round_seconds").record(now.since(lease.round().started()));
                }
                (Some(began), None, _, Some(end)) => {
                    let now = now();
                    self.ended = Some(now);
                    gauge!("redquorum_locks_held").decrement(1.0);
                    histogram!("redquorum_hold_seconds").record(now.since(began));
                    let lost = match end {
                        End::Lost => "forgotten",
                        End::Expired => "expired",
                        End::TakenOver => "taken_over",
                        End::MaxHoldReached => "max_hold_reached",
                        End::Released | End::NotAcquired | End::HandedOn => return,
                    };
                    counter!("redquorum_locks_lost_total", "reason" => lost).increment(1);
                }
                _ => {}
            }
        }

        /// What happened to the lease.
        pub(crate) fn happened(&self, event: Event, now: impl FnOnce() -> Instant) {
            let extended = |outcome: &'static str| {
                counter!("redquorum_extends_total", "outcome" => outcome).increment(1);
            };
            match event {
                Event::Extended(_) => extended("extended"),
                Event::NotExtended(NotExtended::Unconfirmed) => extended("unconfirmed"),
                Event::NotExtended(NotExtended::Lost | NotExtended::Expired) => extended("lost"),
                Event::Released(released) => {
                    let outcome = match released {
                        Released::Confirmed => "released",
                        Released::Gone => "expired",
                        Released::TakenOver => "taken_over",
                        Released::Unconfirmed => "unconfirmed",
                    };
                    counter!("redquorum_releases_total", "outcome" => outcome).increment(1);
                    if let Some(ended) = self.ended {
                        histogram!("redquorum_release_seconds").record(now().since(ended));
                    }
                }
                Event::Held(_) | Event::Failed(_) => {}
            }
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod off {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::client::error::AcquireError;
    use crate::protocol::lease::{Event, Lease};
    use crate::protocol::message::Reply;
    use crate::protocol::time::Instant;
    use crate::runtime::janitor::Balance;

    #[derive(Debug)]
    pub(crate) struct Acquire(());

    impl Acquire {
        #[inline(always)]
        pub(crate) fn begin(_: impl FnOnce() -> Instant) -> Self {
            Self(())
        }

        #[inline(always)]
        pub(crate) fn end(self, _: Result<&Lease, &AcquireError>, _: impl FnOnce() -> Instant) {}
    }

    #[inline(always)]
    pub(crate) fn answered(_: &Arc<str>, _: &'static str, _: &Reply) {}

    #[inline(always)]
    pub(crate) fn round_trip(_: &Arc<str>, _: Duration) {}

    #[inline(always)]
    pub(crate) fn node_up(_: &Arc<str>, _: bool) {}

    #[inline(always)]
    pub(crate) fn too_young(_: &Arc<str>) {}

    #[inline(always)]
    pub(crate) fn debts(_: Balance, _: Balance) {}

    #[inline(always)]
    pub(crate) fn stands(_: u32) {}

    #[derive(Debug)]
    pub(crate) struct Waiting(());

    impl Waiting {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self(())
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Hold(());

    impl Hold {
        #[inline(always)]
        pub(crate) fn see(&mut self, _: &Lease, _: impl FnOnce() -> Instant) {}

        #[inline(always)]
        pub(crate) fn happened(&self, _: Event, _: impl FnOnce() -> Instant) {}
    }
}
