//! Simulation of the runtime: the public face on in-memory nodes, under tokio's paused clock.
//!
//! The protocol simulation shows that the decisions are right; this shows that the pumps around them lose nothing: every
//! await is cancelled in turn, guards are dropped everywhere, clients are closed at any time. No real socket is used under
//! a paused clock, so minutes of it pass in milliseconds; two tests in `closing` use a server and the real one.

mod cancel;
mod closing;
mod drops;
mod executors;
mod fencing;
mod guard;
mod histories;
mod keep;
mod line;
mod loss;
mod parts;
mod scope;
mod support;
