//! The command line tool as a user runs it: the built program, against real servers.
//!
//! Servers here were just started and hold nothing, so every call says `--no-restart-delay`, as such a user would.

mod demo;
mod doctor;
mod face;
mod looks;
mod loss;
mod page;
mod run;
mod shows;
mod support;
