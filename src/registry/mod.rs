//! What one client knows beside its nodes: shared by all of them, and by all who call them.
//!
//! | part | what it knows |
//! | --- | --- |
//! | [`NodeTable`] | the nodes together: which of them are one server, and what their grants are worth |
//! | [`ContendedKeys`] | which keys were contended of late |
//! | [`Wakeups`] | who waits, and to whom a wake-up goes |
//! | [`Debts`] | the way of open outcomes to the task that settles them |
//! | [`Mailbox`] | where the answers to one caller go |
//!
//! Nothing here decides: what there is to decide about waiting is in [`wait_queue`](crate::protocol::wait_queue), and here
//! stands behind a lock.

mod contended_keys;
mod debts;
mod mailbox;
mod node_table;
mod wakeups;

pub(crate) use contended_keys::ContendedKeys;
pub(crate) use debts::{Debts, Notice};
pub(crate) use mailbox::{Mailbox, News};
pub(crate) use node_table::{Adoption, Facts, NodeTable, ScriptUse};
pub(crate) use wakeups::{Listening, Seat, Wakeups};
