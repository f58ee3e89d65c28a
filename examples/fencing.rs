//! A storage that refuses the late write of a holder that lost its lock while it stood still.
//!
//! ```text
//! cargo run --features testing --example fencing
//! ```

mod common;

use std::time::Duration;

use redquorum::FencingToken;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::time::sleep;

const TTL: Duration = Duration::from_millis(500);

/// The resource: a table whose rows remember the greatest token that wrote them, and take no write with a smaller one.
///
/// Any database with a conditional write does it like this; so does a file server or a service with a store of its own.
struct Storage(Connection);

/// What became of a write.
enum Written {
    Yes,
    /// A later holder has written already, with this token.
    TooLate(i64),
}

impl Storage {
    fn open() -> rusqlite::Result<Self> {
        let database = Connection::open_in_memory()?;
        database.execute_batch(
            "CREATE TABLE reports (name TEXT PRIMARY KEY, body TEXT NOT NULL, token INTEGER NOT NULL)",
        )?;
        Ok(Self(database))
    }

    /// Compares and writes in one statement: between two, another write could come. The same token may come again, since
    /// one holder may write more than once.
    fn write(&self, name: &str, body: &str, token: FencingToken) -> rusqlite::Result<Written> {
        // Tokens are below 2^53: they fit SQL's signed integers.
        let token = token.as_u64() as i64;
        let rows = self.0.execute(
            "INSERT INTO reports (name, body, token) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET body = excluded.body, token = excluded.token
             WHERE reports.token <= excluded.token",
            params![name, body, token],
        )?;
        if rows == 1 {
            return Ok(Written::Yes);
        }
        let greatest =
            self.0.query_row("SELECT token FROM reports WHERE name = ?1", [name], |row| row.get(0))?;
        Ok(Written::TooLate(greatest))
    }

    fn read(&self, name: &str) -> rusqlite::Result<Option<String>> {
        self.0.query_row("SELECT body FROM reports WHERE name = ?1", [name], |row| row.get(0)).optional()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = common::builder().ttl(TTL).build().await?;
    let storage = Storage::open()?;

    let slow = redlock.lock("report").fenced().await?;
    let first = slow.fencing_token().ok_or("a fenced lock has a token")?;
    println!(
        "the first holder has token {first}, looks at its lock ({:?} left), and is paused",
        slow.remaining()
    );

    // The machine swaps, a collector runs, a virtual machine is moved: nobody in that process can notice. Its lock runs out,
    // and somebody else gets it.
    sleep(2 * TTL).await;
    let quick = redlock.lock("report").fenced().await?;
    let second = quick.fencing_token().ok_or("a fenced lock has a token")?;
    match storage.write("report", "four pages", second)? {
        Written::Yes => println!("the second holder has token {second}, and wrote \"four pages\""),
        Written::TooLate(greatest) => return Err(format!("{second} came after {greatest}").into()),
    }
    quick.release().await?;

    // The first holder goes on where it was, with the write that it was about to make.
    match storage.write("report", "two pages, out of date", first)? {
        Written::TooLate(greatest) => println!("the first holder's write is refused: {first} < {greatest}"),
        Written::Yes => return Err("a late write went through".into()),
    }
    println!("the report still says \"{}\"", storage.read("report")?.unwrap_or_default());

    drop(slow);
    redlock.close(Duration::from_secs(1)).await;
    Ok(())
}
