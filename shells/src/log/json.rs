//! Lines for machines (`--log-format json`): one object a line, with `ts`, `level`, `message`,
//! `fields` where there are some, and where in the source it was said.

use super::time::IsoTime;
use super::{cut, file_of, name_of};
use crate::clock::Clock;
use serde_json::{Map, Value, json};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

pub(super) struct Json {
    pub clock: Clock,
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let meta = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = json!({
            "ts": IsoTime(self.clock.wall_nanos()).to_string(),
            "level": name_of(*meta.level()),
            "message": fields.message,
            "target": meta.target(),
            "file": file_of(meta),
            "line": meta.line(),
        });
        if !fields.others.is_empty() {
            line["fields"] = Value::Object(fields.others);
        }
        writeln!(writer, "{line}")
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        let text = cut(&text).to_string();
        if field.name() == "message" {
            self.message = text;
        } else {
            self.add(field, Value::String(text));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::String(cut(value).to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, json!(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, json!(value));
    }
}
