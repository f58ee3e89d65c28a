//! What compares times, and so is a program of its own, in which one test runs at a time: nothing else may take the processor
//! meanwhile. Full sizes are ignored by default, and run by `make soak`.

mod fencing_cost;
mod latency;

/// Held by each test while it runs.
static MACHINE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
