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
mod address;
#[cfg(feature = "runtime")]
mod handle;
#[cfg(feature = "testing")]
pub(crate) mod memory;
#[cfg(feature = "runtime")]
pub(crate) mod redis;
#[cfg(feature = "runtime")]
mod silence;
pub mod store;

#[cfg(feature = "runtime")]
pub(crate) use address::Address;
#[cfg(feature = "runtime")]
pub(crate) use handle::{Call, Inbox, Limits, Node, Outgoing, State, node};
