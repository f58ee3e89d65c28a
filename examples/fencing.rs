//! A storage that refuses the late write of a holder that lost its lock while it stood still.
//!
//! ```text
//! cargo run --features testing --example fencing
//! ```

mod common;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use redquorum::FencingToken;
use tokio::time::sleep;

const TTL: Duration = Duration::from_millis(500);

/// Stands for the resource: a database, a file server, a service with a store of its own. Beside each row it remembers the
/// greatest token that wrote it, and takes no write with a smaller one. In SQL:
///
/// ```sql
/// UPDATE reports SET body = :body, token = :token WHERE name = :name AND token <= :token
/// ```
///
/// and no row updated means: too late.
#[derive(Default)]
struct Storage {
    rows: Mutex<HashMap<String, Row>>,
}

#[derive(Default)]
struct Row {
    body: String,
    token: u64,
}

/// A later holder has written already.
#[derive(Debug)]
struct TooLate {
    greatest: u64,
}

impl Storage {
    /// Compares and writes in one step: between the two, another write could come.
    fn write(&self, name: &str, body: &str, token: FencingToken) -> Result<(), TooLate> {
        let mut rows = self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let row = rows.entry(name.to_owned()).or_default();
        if row.token > token.as_u64() {
            return Err(TooLate { greatest: row.token });
        }
        *row = Row { body: body.to_owned(), token: token.as_u64() };
        Ok(())
    }

    fn read(&self, name: &str) -> String {
        let rows = self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        rows.get(name).map_or_else(String::new, |row| row.body.clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = common::builder().ttl(TTL).build().await?;
    let storage = Storage::default();

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
    storage.write("report", "four pages", second).map_err(|late| format!("{late:?}"))?;
    println!("the second holder has token {second}, and wrote \"{}\"", storage.read("report"));
    quick.release().await?;

    // The first holder goes on where it was, with the write that it was about to make.
    match storage.write("report", "two pages, out of date", first) {
        Err(TooLate { greatest }) => println!("the first holder's write is refused: {first} < {greatest}"),
        Ok(()) => return Err("a late write went through".into()),
    }
    println!("the report still says \"{}\"", storage.read("report"));

    drop(slow);
    redlock.close(Duration::from_secs(1)).await;
    Ok(())
}
