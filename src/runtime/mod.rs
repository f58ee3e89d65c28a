//! The runtime: pumps that carry messages between the protocol and the nodes. It decides nothing.

pub(crate) mod acquire;
pub(crate) mod alarm;
pub(crate) mod driver;
pub(crate) mod janitor;
pub(crate) mod term;
