//! Metrics, as Prometheus reads them: a worker that takes a lock again and again, and an endpoint that shows how it goes.
//!
//! ```sh
//! cargo run --features testing,metrics --example prometheus       # then: curl http://127.0.0.1:9464/metrics
//! ```
//!
//! With `ONCE=1` it prints them once and ends.

mod common;

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// From a round trip within a data centre to the longest TTL.
const BUCKETS: [f64; 12] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First of all: what is counted before a recorder is there is lost.
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    let redlock = common::builder().build().await?;
    let once = std::env::var_os("ONCE").is_some();

    // A client that is gone has no node that is up: this one is there as long as its metrics are asked for.
    let client = redlock.clone();
    let worker = tokio::spawn(async move {
        for round in 0u64.. {
            if once && round == 20 {
                break;
            }
            let guard = redlock.acquire("report").await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Whatever a release did not confirm goes on in the background.
            let _ = guard.release().await;
        }
        Ok::<_, redquorum::AcquireError>(())
    });
    if once {
        worker.await??;
        println!("{}", metrics.render());
        client.close(Duration::from_secs(1)).await;
        return Ok(());
    }

    let listener = TcpListener::bind("127.0.0.1:9464").await?;
    println!("http://{}/metrics", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream, metrics.clone()));
    }
}

/// The least that a scraper takes for HTTP; a service has a server of its own for it.
async fn answer(mut stream: TcpStream, metrics: PrometheusHandle) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let _ = stream.read(&mut request).await?;
    let body = metrics.render();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
    let response = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(response.as_bytes()).await
}
