//! What is counted and measured beside other tests: memory, commands, what is left. Full sizes are ignored by default, and run by `make soak`.

mod figures;
mod keeping_costs;
mod memory;
mod turns;
