//! The runtime: pumps that carry messages between the protocol and the nodes. It decides nothing.

pub(crate) mod acquire;
pub(crate) mod alarm;
pub(crate) mod attempt;
pub(crate) mod driver;
mod waiting;
pub(crate) mod inspect;
pub(crate) mod janitor;
pub(crate) mod renewal;
pub(crate) mod worst_round_trip;
pub(crate) mod resume;
pub(crate) mod shared;
pub(crate) mod start;
pub(crate) mod loss;
