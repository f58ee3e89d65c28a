//! The wait queue of a key: which node keeps it, what one waiter does there, and how those of one client go together.

pub mod group;
pub mod contended_keys;
pub mod rank;
pub mod signal;
pub mod waiter;
