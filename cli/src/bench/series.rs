//! Measured times, and what is told of them.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::output::millis;

/// The percentiles that are told.
pub const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

/// The times of one thing, in the order in which they were measured.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    /// When, from the start of the part, and how long.
    pub points: Vec<(Duration, Duration)>,
    histogram: Option<Histogram<u64>>,
    /// How often there was nothing to measure: no answer in time.
    pub missing: u64,
}

impl Series {
    pub fn new(name: impl Into<String>) -> Self {
        // Three digits of up to an hour in nanoseconds; an error would say that these numbers are not possible.
        Self {
            name: name.into(),
            points: Vec::new(),
            histogram: Histogram::new_with_bounds(1, 3_600_000_000_000, 3).ok(),
            missing: 0,
        }
    }

    pub fn add(&mut self, at: Duration, took: Duration) {
        self.points.push((at, took));
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    pub fn len(&self) -> usize {
        self.points.len()
    }

    pub fn percentile(&self, percentile: f64) -> Duration {
        let value = self.histogram.as_ref().map_or(0, |histogram| histogram.value_at_percentile(percentile));
        // A histogram rounds up.
        Duration::from_nanos(value).min(self.most())
    }

    pub fn least(&self) -> Duration {
        self.points.iter().map(|(_, took)| *took).min().unwrap_or_default()
    }

    pub fn most(&self) -> Duration {
        self.points.iter().map(|(_, took)| *took).max().unwrap_or_default()
    }

    fn mean(&self) -> Duration {
        let all: Duration = self.points.iter().map(|(_, took)| *took).sum();
        u32::try_from(self.len()).ok().filter(|count| *count > 0).map_or(Duration::ZERO, |count| all / count)
    }

    pub fn value(&self) -> Value {
        let mut value = json!({
            "name": self.name,
            "count": self.len(),
            "missing": self.missing,
            "min_ms": millis(self.least()),
            "max_ms": millis(self.most()),
            "mean_ms": millis(self.mean()),
        });
        if let Some(fields) = value.as_object_mut() {
            for (name, percentile) in PERCENTILES {
                fields.insert(
                    format!("{}_ms", name.replace('.', "_")),
                    millis(self.percentile(percentile)).into(),
                );
            }
        }
        value
    }
}
