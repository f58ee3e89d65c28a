//! A pool of workers that book each invoice exactly once, although one of them dies over its work, and another one stands
//! still until its lock has long been somebody else's.
//!
//! ```text
//! cargo run --features testing --example invoices
//! ```
//!
//! The lock keeps two workers from doing the same work; that nothing is booked twice is the doing of the database, which
//! compares the fencing token in the step that writes. Where the effect is outside of it, such as a payment at a bank, the
//! other side has to compare something too: the token, or the invoice's number as an idempotency key.

mod common;

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redquorum::{AcquireError, FencingToken, Redlock};
use rusqlite::{Connection, params};
use tokio::time::sleep;

const INVOICES: i64 = 30;
const WORKERS: [(&str, Fate); 4] =
    [("ann", Fate::Lives), ("ben", Fate::Dies), ("cleo", Fate::StandsStill), ("dan", Fate::Lives)];

/// Long beside the work, which takes milliseconds; an invoice whose worker died lies about for no longer.
const TTL: Duration = Duration::from_millis(500);

/// What befalls a worker in the middle of its second invoice.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Lives,
    Dies,
    StandsStill,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let builder = common::builder().ttl(TTL);
    let books = Books::open()?;

    let mut workers = Vec::new();
    for (name, fate) in WORKERS {
        // Each has a client of its own, as it would have on a machine of its own.
        let redlock = builder.clone().build().await?;
        workers.push((name, tokio::spawn(work(name, redlock, books.clone(), fate))));
    }
    for (name, worker) in workers {
        if let Some(number) = worker.await?? {
            println!("invoice {number}, left by {name}, was booked by {}", books.booked_by(number)?);
        }
    }

    let once = books.booked_once()?;
    println!("{once} of {INVOICES} invoices are booked exactly once");
    if once == INVOICES { Ok(()) } else { Err("an invoice was left out or booked twice".into()) }
}

/// Books invoices until none is open. Returns the number of the one that it did not bring to an end, if there is one.
async fn work(
    name: &'static str,
    redlock: Redlock,
    books: Books,
    fate: Fate,
) -> Result<Option<i64>, Box<dyn Error + Send + Sync>> {
    let (mut begun, mut left) = (0, None);
    loop {
        let open = books.open_invoices()?;
        if open.is_empty() {
            redlock.close(Duration::from_secs(1)).await;
            return Ok(left);
        }
        for number in open {
            // Whoever is refused takes the next invoice, and looks at this one again in the next turn.
            let guard = match redlock.lock(format!("invoice:{number}")).fenced().without_waiting().await {
                Ok(guard) => guard,
                Err(error) if error.is_contention() => continue,
                // Nothing that time would mend.
                Err(error @ (AcquireError::Invalid(_) | AcquireError::Closed)) => return Err(error.into()),
                // Too few nodes, mostly: the invoice stays open, and will be booked later.
                Err(error) => {
                    println!("{name} cannot work at present: {error}");
                    sleep(TTL).await;
                    continue;
                }
            };
            let token = guard.fencing_token().ok_or("a fenced lock has a token")?;

            // The list is older than the lock: only what is read under the lock says whether there is work.
            if books.begin(number, token)? {
                begun += 1;
                sleep(Duration::from_millis(5)).await;
                if begun == 2 && fate == Fate::Dies {
                    println!("{name} dies over invoice {number}");
                    // A process that dies runs no destructor: nothing is released, and the lock ends with its TTL.
                    std::mem::forget(guard);
                    return Ok(Some(number));
                }
                if begun == 2 && fate == Fate::StandsStill {
                    println!("{name} stands still over invoice {number}");
                    sleep(4 * TTL).await;
                }
                if !books.book(number, token, name)? {
                    println!("{name} comes too late for invoice {number}, and books nothing");
                    left = Some(number);
                }
            }
            // Releases in the background. What is another's by now is not touched.
            drop(guard);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The database, which has the last word. `bookings` could hold one invoice twice; what keeps it from that is `book`.
#[derive(Clone)]
struct Books(Arc<Mutex<Connection>>);

impl Books {
    fn open() -> rusqlite::Result<Self> {
        let database = Connection::open_in_memory()?;
        database.execute_batch(
            "CREATE TABLE invoices (number INTEGER PRIMARY KEY, token INTEGER NOT NULL, booked INTEGER NOT NULL);
             CREATE TABLE bookings (invoice INTEGER NOT NULL, worker TEXT NOT NULL);",
        )?;
        for number in 1..=INVOICES {
            database.execute("INSERT INTO invoices VALUES (?1, 0, 0)", [number])?;
        }
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    fn open_invoices(&self) -> rusqlite::Result<Vec<i64>> {
        let database = self.0.lock().expect("no worker panics");
        let mut query = database.prepare("SELECT number FROM invoices WHERE NOT booked ORDER BY number")?;
        query.query_map([], |row| row.get(0))?.collect()
    }

    /// Leaves the holder's token at the invoice, from when on an earlier holder cannot book it any more. Returns whether it
    /// is open.
    fn begin(&self, number: i64, token: FencingToken) -> rusqlite::Result<bool> {
        let rows = self.0.lock().expect("no worker panics").execute(
            "UPDATE invoices SET token = ?2 WHERE number = ?1 AND token <= ?2 AND NOT booked",
            params![number, token.as_u64() as i64],
        )?;
        Ok(rows == 1)
    }

    /// Books the invoice, if nobody has begun with it since: all in one transaction. Returns whether it did.
    fn book(&self, number: i64, token: FencingToken, worker: &str) -> rusqlite::Result<bool> {
        let mut database = self.0.lock().expect("no worker panics");
        let transaction = database.transaction()?;
        let rows = transaction.execute(
            "UPDATE invoices SET booked = 1 WHERE number = ?1 AND token = ?2 AND NOT booked",
            params![number, token.as_u64() as i64],
        )?;
        if rows == 1 {
            transaction.execute("INSERT INTO bookings VALUES (?1, ?2)", params![number, worker])?;
        }
        transaction.commit()?;
        Ok(rows == 1)
    }

    fn booked_by(&self, number: i64) -> rusqlite::Result<String> {
        let database = self.0.lock().expect("no worker panics");
        database.query_row("SELECT worker FROM bookings WHERE invoice = ?1", [number], |row| row.get(0))
    }

    fn booked_once(&self) -> rusqlite::Result<i64> {
        let database = self.0.lock().expect("no worker panics");
        database.query_row(
            "SELECT count(*) FROM invoices WHERE (SELECT count(*) FROM bookings WHERE invoice = number) = 1",
            [],
            |row| row.get(0),
        )
    }
}
