//! The programs of `examples/`, for the tests that run them.

use std::process::Command;

/// An example of the package, as a user starts it.
pub fn example(name: &str) -> Command {
    // Cargo names the programs of examples to no test, so it is asked to run it. Where all features are on, cargo has built it
    // with them already; else examples need these at most, and with the same ones for each nothing is built twice.
    const FEATURES: &[&str] = match cfg!(feature = "blocking") {
        true if cfg!(all(feature = "tls", feature = "metrics", feature = "serde")) => {
            &["--profile", "test", "--all-features"]
        }
        true => &["--features", "testing,blocking"],
        false if cfg!(all(feature = "tls", feature = "metrics")) => {
            &["--features", "testing,tls,metrics,serde"]
        }
        false => &["--features", "testing"],
    };
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo tells this test about its package would look to build scripts like a change, and have them run anew.
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.args(["run", "--quiet"]).args(FEATURES).args(["--example", name]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}
