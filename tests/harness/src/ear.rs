//! A subscriber that keeps all that is said.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Everything that is said, at every level.
#[derive(Clone, Default)]
pub struct Ear(Arc<Mutex<String>>);

impl Ear {
    /// Adds a line.
    pub fn note(&self, text: impl fmt::Display) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(heard, "{text}").expect("write to a string");
    }

    /// All lines so far.
    pub fn heard(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").expect("write to a string");
    }
}

impl Subscriber for Ear {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        self.note(fields.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut fields = Fields(String::new());
        values.record(&mut fields);
        self.note(fields.0);
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut fields);
        self.note(fields.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
