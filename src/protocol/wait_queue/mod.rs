//! The wait queue of a key: which node keeps it, and what one waiter does there.

pub mod rank;
pub mod waiter;
