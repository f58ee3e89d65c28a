//! Simulation of the runtime: the public face on in-memory nodes, under tokio's paused clock.
//!
//! The protocol simulation shows that the decisions are right; this shows that the pumps around them lose nothing: every
//! await is cancelled in turn, guards are dropped everywhere, clients are closed at any time. No real socket is used, so
//! minutes of the clock pass in milliseconds.

mod cancel;
mod drops;
mod histories;
mod loss;
mod support;
