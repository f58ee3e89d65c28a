//! Doubts and debts: what is not known about one owner on one node, and the duty to clear it.
//!
//! A [`Doubt`] is kept with the lease while it lives. Undo and release turn it into a [`Debt`], which travels with the
//! command; if the answer settles it, nothing more happens, and otherwise the [`Ledger`] repeats the command.
//! Upholds rules 3 and 4.

mod debt;
mod doubt;
mod ledger;
#[cfg(test)]
mod tests;

pub use debt::{Debt, LONGEST_SILENCE, MARGIN};
pub use doubt::Doubt;
pub use ledger::{Balance, DebtId, Ledger, MAX_DEBTS_PER_NODE, MAX_IN_FLIGHT, Settled, Settlement};
