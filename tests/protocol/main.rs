//! The protocol alone: every vote in every order, and whole histories under faults.

mod exhaustive;
mod simulation;
