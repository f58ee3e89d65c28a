//! One server each: the door through which calls go, and the two kinds of task that serve them.
//!
//! A `Node` is a door: it admits a call, or refuses it at once, and says on which connection it will go. Behind the
//! door one task per node owns every admitted call until it is answered, whatever becomes of the caller: a dropped
//! future changes nothing on the wire. The task is either the Redis one (`redis`) or the in-memory one
//! (`memory`); nothing above can tell them apart.
//!
//! An answer goes to the caller's `Mailbox`. The answer to a release is also held against the debt that travels with
//! it, and what is not settled goes to the janitor: no caller has to stay alive for that.

#[cfg(feature = "runtime")]
mod contended_keys;
#[cfg(feature = "runtime")]
mod handle;
#[cfg(feature = "runtime")]
mod mailbox;
#[cfg(feature = "testing")]
pub(crate) mod memory;
#[cfg(feature = "runtime")]
mod node_table;
#[cfg(feature = "runtime")]
pub(crate) mod redis;
#[cfg(feature = "runtime")]
mod silence;
pub mod store;
#[cfg(feature = "runtime")]
mod wakeups;

#[cfg(feature = "runtime")]
pub(crate) use contended_keys::ContendedKeys;
#[cfg(feature = "runtime")]
pub(crate) use handle::{Call, Debts, Inbox, Limits, Node, Notice, State, node};
#[cfg(feature = "runtime")]
pub(crate) use mailbox::{Delivery, Mailbox, News, Outgoing};
#[cfg(feature = "runtime")]
pub(crate) use node_table::{Adoption, Facts, NodeTable};
#[cfg(feature = "runtime")]
pub(crate) use wakeups::{Registered, Seat, Wakeups};
