//! Log lines on standard error, in the peer's form: `[time] LMCache LEVEL: message
//! (file:line:module)` (spec/http-cli §4.1). Colour only on a terminal. Times are UTC, counted from
//! the one reading of the wall clock at start.

use crate::clock::Clock;
use std::fmt;
use std::io::{self, IsTerminal};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Sets logging up for the rest of the process; `level` is the text of `LMCACHE_LOG_LEVEL`.
pub fn start(clock: Clock, level: Option<&str>) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level_of(level.unwrap_or_default()))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .event_format(Lines { clock })
        .finish();
    // A second start, as in tests within one process, keeps the first.
    tracing::subscriber::set_global_default(subscriber).ok();
}

/// An unknown name silently means INFO (spec/http-cli §1.1).
fn level_of(name: &str) -> LevelFilter {
    match name.to_ascii_uppercase().as_str() {
        "DEBUG" => LevelFilter::DEBUG,
        "WARNING" | "WARN" => LevelFilter::WARN,
        // Nothing of ours is worse than an error, and an error at that level is still worth a line.
        "ERROR" | "CRITICAL" | "FATAL" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    }
}

struct Lines {
    clock: Clock,
}

impl<S, N> FormatEvent<S, N> for Lines
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
        let time = WallTime(self.clock.wall_nanos());
        write!(writer, "{begin}[{time}] LMCache {}:{end} ", name_of(*meta.level()))?;
        event.record(&mut Fields { writer: &mut writer, empty: true });
        let file = meta.file().and_then(|file| file.rsplit('/').next()).unwrap_or_default();
        writeln!(writer, " ({file}:{}:{})", meta.line().unwrap_or_default(), meta.target())
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
        if field.name() == "message" {
            write!(self.writer, "{space}{value:?}").ok();
        } else {
            write!(self.writer, "{space}{}={value:?}", field.name()).ok();
        }
    }
}

fn name_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
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

/// Nanoseconds since 1970 as `2026-11-30 06:31:04,884`.
struct WallTime(u64);

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0 / 1_000_000;
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let (days, seconds) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date_of(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02},{millis:03}")
    }
}

/// The Gregorian date of a day since 1970. Years are counted from March, so that the leap day is
/// the last of its year and months have a closed form; 400 years are one era of 146097 days.
fn date_of(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no writer panics").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(ansi: bool, work: impl FnOnce()) -> String {
        let page = Page::default();
        let writing = page.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::INFO)
            .with_ansi(ansi)
            .with_writer(move || writing.clone())
            .event_format(Lines { clock: Clock::start() })
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = page.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("log lines are text")
    }

    #[test]
    fn a_line_has_the_peers_form_and_no_colour_off_a_terminal() {
        let text = logged(false, || {
            tracing::warn!(port = 5555, "LMCache zmq cache server is running on {}", "h:5555");
            tracing::debug!("nobody asked for this");
        });
        let (time, rest) = text.split_once("] ").expect("a line begins with its time");
        assert_eq!(time.len(), "[2026-11-30 06:31:04,884".len());
        let expected =
            "LMCache WARNING: LMCache zmq cache server is running on h:5555 port=5555 (log.rs:";
        assert!(rest.starts_with(expected), "{rest}");
        assert!(rest.ends_with(":kvtide::log::tests)\n"), "{rest}");
        assert!(!text.contains('\x1b'));
        assert!(logged(true, || tracing::error!("x")).starts_with("\x1b[31m["));
    }

    #[test]
    fn levels_have_pythons_names_and_an_unknown_one_means_info() {
        assert_eq!(level_of("debug"), LevelFilter::DEBUG);
        assert_eq!(level_of("WARNING"), LevelFilter::WARN);
        assert_eq!(level_of("CRITICAL"), LevelFilter::ERROR);
        assert_eq!(level_of("chatty"), LevelFilter::INFO);
        assert_eq!(level_of(""), LevelFilter::INFO);
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        let shown = |seconds: u64| WallTime(seconds * 1_000_000_000 + 7_000_000).to_string();
        assert_eq!(shown(0), "1970-01-01 00:00:00,007");
        assert_eq!(shown(951_782_399), "2000-02-28 23:59:59,007");
        assert_eq!(shown(951_782_400), "2000-02-29 00:00:00,007");
        assert_eq!(shown(1_709_251_200), "2024-03-01 00:00:00,007");
        assert_eq!(shown(4_107_542_400), "2100-03-01 00:00:00,007");
        assert_eq!(shown(1_796_007_464), "2026-11-30 02:57:44,007");
    }
}
