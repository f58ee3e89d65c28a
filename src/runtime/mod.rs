//! The runtime: pumps that carry messages between the protocol and the nodes. It decides nothing.

pub(crate) mod acquire;
pub(crate) mod alarm;
pub(crate) mod attempt;
pub(crate) mod driver;
pub(crate) mod inspect;
pub(crate) mod janitor;
pub(crate) mod loss;
mod overdue;
pub(crate) mod renewal;
pub(crate) mod resume;
pub(crate) mod shared;
pub(crate) mod start;
mod waiting;
pub(crate) mod worst_round_trip;
