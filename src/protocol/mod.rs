//! The protocol, pure: every decision of the lock, and nothing else.
//!
//! Plain values that are mutated: `handle_*` takes in what happened (a reply, a timeout, a command), `poll_*` gives
//! out what follows (send this to that node, this happened, wake me then). Whoever drives them follows one rule:
//! **mutate once, then drain**. No clock, no I/O, no task and no dependency beyond `std`: with
//! `--no-default-features` this module is the whole crate, which is how its independence is checked.
//!
//! Public for the project's own simulation, which is another crate. It is no part of the stable interface.

pub mod acquire;
pub mod answer;
pub mod backoff;
pub mod fencing;
pub mod in_doubt;
pub mod lease;
pub mod message;
mod per_node;
pub mod quorum;
pub mod reconnect;
pub mod renewal;
pub mod restart;
pub mod round;
pub mod time;
pub mod validity;
pub mod wait_queue;
