//! What `redquorum demo` shows, without installing anything: `make demo`. The acts are the command line tool's own.
//!
//! ```text
//! make demo                                                five nodes in memory, no server needed
//! make demo NODES="redis://a:6379 redis://b:6379 …"        real ones, three at least
//! make demo NODES=compose                                  the five of docker-compose.yml
//! ```
//!
//! Ends with 0 where everything was as it should be, with 1 where it was not, and with 2 where it could not begin.

#[path = "../../src/bin/redquorum/demo/mod.rs"]
mod demo;
#[path = "../../src/bin/redquorum/words.rs"]
mod words;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(demo::play(&addresses()).await)
}

/// The addresses in `NODES`, separated by blanks or commas; none where it is not set.
fn addresses() -> Vec<String> {
    let given = std::env::var("NODES").unwrap_or_default();
    if given == "compose" {
        return (7101..=7105).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    }
    words::split(&given)
}
