//! Traces: the library's spans and events beneath those of a request, in OpenTelemetry.
//!
//! ```text
//! cargo run --features testing --example opentelemetry
//! ```
//!
//! The library speaks to `tracing` and knows nothing of OpenTelemetry. At the level `debug` it has a span `acquire` with the
//! key, and in it what each node answered and how it ended. What a service does under the lock, and its release, get spans
//! of its own.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use redquorum::{AcquireError, Redlock};
use tokio::time::sleep;
use tracing::{Instrument, Level, info_span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A service exports in batches to a collector, with `opentelemetry-otlp` in place of this list.
    let spans = Spans::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("invoices"));
    // One's own spans, and those of the library. Without its `DEBUG` there is no `acquire`.
    let wanted = Targets::new().with_default(Level::INFO).with_target("redquorum", Level::DEBUG);
    tracing_subscriber::registry().with(layer.with_filter(wanted)).init();

    let redlock = common::builder().build().await?;
    let first = request(&redlock).instrument(info_span!("first request"));
    let second = async {
        sleep(Duration::from_millis(20)).await;
        request(&redlock).instrument(info_span!("second request")).await
    };
    let (first, second) = tokio::join!(first, second);
    first?;
    if let Err(error) = second {
        println!("the second request is refused: {error}");
    }

    redlock.close(Duration::from_secs(1)).await;
    provider.shutdown()?;
    spans.print();
    Ok(())
}

/// Needs the lock for longer than another request would wait.
async fn request(redlock: &Redlock) -> Result<(), AcquireError> {
    let guard = redlock.lock("invoice:4711").wait(Duration::from_millis(50)).await?;
    sleep(Duration::from_millis(100)).instrument(info_span!("work under the lock")).await;
    let release = info_span!("release", key = "invoice:4711");
    if let Err(error) = guard.release().instrument(release).await {
        tracing::warn!(%error, "released too late, or not confirmed");
    }
    Ok(())
}

/// Keeps the spans that have ended.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().expect("nobody panics").extend(batch);
        Ok(())
    }
}

impl Spans {
    fn print(&self) {
        let mut spans = self.0.lock().expect("nobody panics").clone();
        spans.sort_by_key(|span| span.start_time);
        print_below(&spans, SpanId::INVALID, 0);
    }
}

fn print_below(spans: &[SpanData], parent: SpanId, depth: usize) {
    for span in spans.iter().filter(|span| span.parent_span_id == parent) {
        let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
        println!(
            "{:indent$}{}{}, {took:.1?}",
            "",
            span.name,
            told(&span.attributes, "key"),
            indent = 2 * depth
        );
        for event in span.events.iter() {
            println!(
                "{:indent$}· {}{}",
                "",
                event.name,
                told(&event.attributes, "node"),
                indent = 2 * depth + 2
            );
        }
        print_below(spans, span.span_context.span_id(), depth + 1);
    }
}

/// One of the fields of a span or an event, if it is there.
fn told(fields: &[KeyValue], name: &str) -> String {
    let field = fields.iter().find(|field| field.key.as_str() == name);
    field.map(|field| format!(" ({name} {})", field.value)).unwrap_or_default()
}
