//! A web service that locks what each request works on: refusals as HTTP statuses, and an orderly end.
//!
//! ```text
//! cargo run --features testing --example axum
//! ```
//!
//! It sends itself a few requests and ends; with `SERVE=127.0.0.1:8080` it serves that address until Ctrl-C.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use redquorum::{AcquireError, Redlock, WithLockError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How long a request may wait for its lock. Short: whoever asked is waiting, too, and can ask again.
const WAIT: Duration = Duration::from_millis(200);

const WORK: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = common::builder().build().await?;
    // One client for all requests, as a clone each: they share its connections.
    let app = Router::new().route("/invoices/{number}", post(book)).with_state(redlock.clone());

    let address = std::env::var("SERVE").ok();
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let bound = listener.local_addr()?;
    println!("http://{bound}/invoices/4711 takes POST requests");

    let (end, ending) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        let _ = ending.await;
    });
    let server = tokio::spawn(server.into_future());
    let asking = match address {
        Some(_) => tokio::signal::ctrl_c().await.map(|()| Vec::new())?,
        None => ask(bound).await?,
    };

    // Both at once: the server takes no new requests and brings those to an end that are there; the client ends those that
    // wait for a lock, and gives the others time to release theirs.
    let _ = end.send(());
    let (served, clean) = tokio::join!(server, redlock.close(Duration::from_secs(5)));
    served??;
    for answer in asking {
        answer.await?;
    }
    println!("{}", if clean { "ended, with nothing left open" } else { "ended, not all is settled" });
    Ok(())
}

/// Works on one invoice, as the only one who does.
///
/// Should whoever asked go away, axum drops this future, and with it the work and the lock.
async fn book(State(redlock): State<Redlock>, Path(number): Path<u64>) -> Result<String, Refusal> {
    let work = async |_: &_| {
        sleep(WORK).await;
        format!("invoice {number} is booked")
    };
    Ok(redlock.lock(format!("invoice:{number}")).wait(WAIT).with(work).await?)
}

/// What is answered where the lock was not had, or not for long enough.
struct Refusal(WithLockError);

impl From<WithLockError> for Refusal {
    fn from(error: WithLockError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, retry_after) = match &self.0 {
            WithLockError::Acquire(error) => status(error),
            // Begun and dropped half-way. What it has done by then may be there: the work has to bear being done again.
            WithLockError::Lost { .. } => (StatusCode::CONFLICT, None),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        // What the nodes answered is for the log; who asked learns that it was not his fault.
        eprintln!("{status}: {}", self.0);
        let reason = status.canonical_reason().unwrap_or_default();
        match retry_after {
            // Whole seconds, rounded up.
            Some(after) => {
                let seconds = after.as_millis().div_ceil(1000).to_string();
                (status, [(RETRY_AFTER, seconds)], reason).into_response()
            }
            None => (status, reason).into_response(),
        }
    }
}

/// The status for a lock that was not acquired, and when to ask again.
fn status(error: &AcquireError) -> (StatusCode, Option<Duration>) {
    const SOON: Option<Duration> = Some(Duration::from_secs(1));
    match error {
        AcquireError::TimedOut { last, .. } => status(last),
        // Somebody works on it, and will be done before long. The rest of the key's life, which the report has, would say
        // when it is free should he have died.
        AcquireError::Held { .. } => (StatusCode::LOCKED, SOON),
        // Nodes that may have forgotten a lock do not vote for a while, and it is known how long.
        AcquireError::NodesTooYoung { remaining, .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, remaining.or(SOON))
        }
        AcquireError::NoQuorum { .. } | AcquireError::TooSlow { .. } | AcquireError::Closed => {
            (StatusCode::SERVICE_UNAVAILABLE, SOON)
        }
        AcquireError::Invalid(_) => (StatusCode::BAD_REQUEST, None),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
    }
}

/// What others would do with the service. Returns two requests that are still under way, one of which waits for its lock.
async fn ask(address: SocketAddr) -> Result<Vec<JoinHandle<()>>, Box<dyn std::error::Error>> {
    println!("one: {}", request(address, 1).await?);
    let (first, second) = tokio::join!(request(address, 2), request(address, 2));
    println!("two at once for the same invoice: {} and {}", first?, second?);

    let mut asking = Vec::new();
    for name in ["one who works when the service ends", "one who waits then"] {
        asking.push(tokio::spawn(async move {
            match request(address, 3).await {
                Ok(answer) => println!("{name}: {answer}"),
                Err(error) => println!("{name}: {error}"),
            }
        }));
        sleep(WAIT / 4).await;
    }
    Ok(asking)
}

/// The status that a POST request gets, and when to ask again. A client of HTTP would do.
async fn request(address: SocketAddr, invoice: u64) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /invoices/{invoice} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let wanted = |line: &&str| line.starts_with("HTTP/") || line.starts_with("retry-after");
    Ok(answer.lines().filter(wanted).collect::<Vec<_>>().join(", "))
}
