//! The public face on real servers, with faults that are made between or in them.

mod access;
mod blocking;
mod dns;
mod equivalence;
mod fencing;
mod guard;
mod harness_itself;
mod input;
mod keeping;
mod keys;
mod languages;
mod line;
mod mixed;
mod outcomes;
mod quorum;
mod replies;
mod secrets;
mod servers;
mod tls;
mod transport;
mod validity;
mod waiting;
mod wall_clock;
