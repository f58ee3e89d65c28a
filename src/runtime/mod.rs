//! The runtime: pumps that carry messages between the protocol and the nodes. It decides nothing.

pub(crate) mod acquire;
pub(crate) mod alarm;
pub(crate) mod driver;
mod guard;
pub(crate) mod in_line;
pub(crate) mod inspect;
pub(crate) mod janitor;
pub(crate) mod keeper;
pub(crate) mod pace;
pub(crate) mod resume;
pub(crate) mod shared;
pub(crate) mod term;
