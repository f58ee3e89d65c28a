//! Measures redquorum beside the *floor*, and beside other clients, on real servers.
//!
//! Knows servers, clients, clocks and figures. It uses the public face of the library alone, as a service would (but for
//! `protocol.rs`, which times the protocol by itself), and takes no library's word for how long something took or who
//! held a lock.
//!
//! The floor is what the `redis` crate itself costs: see [`floor`]. Whatever is compared is measured in turn, in the same
//! process, on the same servers, round after round; a figure is the median over the rounds, a ratio the median of the
//! ratios within each round. So a busy moment of the machine meets both sides.

pub mod bars;
pub mod contention;
pub mod document;
pub mod floor;
#[cfg(feature = "peers")]
pub mod leftovers;
pub mod locker;
pub mod machine;
pub mod measure;
pub mod nodes;
pub mod ours;
#[cfg(feature = "peers")]
pub mod peers;
pub mod plot;
pub mod results;
pub mod settings;
pub mod table;

/// How a program of these ends: with what went wrong on the standard error, if anything did. Being slow is not wrong.
pub fn ended(program: &str, result: Result<(), String>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
