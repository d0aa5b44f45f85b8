//! Lines for people, in the peer's form: `[time] LMCache LEVEL: message (file:line:module)`
//! (spec/http-cli §4.1). Colour only on a terminal.

use super::time::PeerTime;
use super::{cut, file_of, name_of};
use crate::clock::Clock;
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

pub(super) struct Text {
    pub clock: Clock,
}

impl<S, N> FormatEvent<S, N> for Text
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
        let (begin, end) = if writer.has_ansi_escapes() {
            (colour_of(*meta.level()), "\x1b[0m")
        } else {
            ("", "")
        };
        let time = PeerTime(self.clock.wall_nanos());
        write!(writer, "{begin}[{time}] LMCache {}:{end} ", name_of(*meta.level()))?;
        event.record(&mut Fields { writer: &mut writer, empty: true });
        writeln!(
            writer,
            " ({}:{}:{})",
            file_of(meta),
            meta.line().unwrap_or_default(),
            meta.target()
        )
    }
}

/// The message as it is, every other field as `name=value`. A line that cannot be written is lost,
/// as there is nowhere left to say so.
struct Fields<'a, 'w> {
    writer: &'a mut Writer<'w>,
    empty: bool,
}

impl Visit for Fields<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if self.empty { "" } else { " " };
        self.empty = false;
        let value = format!("{value:?}");
        let value = cut(&value);
        if field.name() == "message" {
            write!(self.writer, "{space}{value}").ok();
        } else {
            write!(self.writer, "{space}{}={value}", field.name()).ok();
        }
    }
}

fn colour_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG | Level::TRACE => "\x1b[36m",
    }
}
