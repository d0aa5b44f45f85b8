//! Log lines on standard error: the peer's form for people, JSON for machines. Times are UTC,
//! counted from the one reading of the wall clock at start.
//!
//! The one invariant: logging never waits. Lines go through `sink` to a thread that writes them;
//! texts that somebody else wrote are cut, and so is a line that is too long all the same.

mod json;
mod sink;
mod text;
mod time;

use crate::clock::Clock;
use json::Json;
use sink::Sink;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::Duration;
use text::Text;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    Text,
    Json,
}

/// The one log of this process.
static SINK: OnceLock<Sink> = OnceLock::new();

/// Sets logging up for the rest of the process; `level` is the text of `LMCACHE_LOG_LEVEL`.
pub fn start(clock: Clock, level: Option<&str>, form: Form) -> io::Result<()> {
    let sink = Sink::start(io::stderr(), |dropped| {
        tracing::warn!("{dropped} log lines were lost since the start: nobody read them in time");
    })?;
    let builder = tracing_subscriber::fmt()
        .with_max_level(level_of(level.unwrap_or_default()))
        .with_ansi(form == Form::Text && io::stderr().is_terminal())
        .with_writer(SINK.get_or_init(|| sink).clone());
    // A second start, as in tests within one process, keeps the first.
    match form {
        Form::Text => {
            let subscriber = builder.event_format(Text { clock }).finish();
            tracing::subscriber::set_global_default(subscriber).ok();
        }
        Form::Json => {
            let subscriber = builder.event_format(Json { clock }).finish();
            tracing::subscriber::set_global_default(subscriber).ok();
        }
    }
    // The usual words go to standard error directly, and would wait for its reader.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let panic = panic.to_string().replace('\n', " ");
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => tracing::error!("Thread {name} {panic}\n{trace}"),
            _ => tracing::error!("Thread {name} {panic}"),
        }
    }));
    Ok(())
}

/// Lines lost since start.
pub fn lines_dropped() -> u64 {
    SINK.get().map_or(0, Sink::dropped)
}

/// Before the process ends: waits for the lines that are on their way, at most about so long.
pub fn flush(patience: Duration) {
    if let Some(sink) = SINK.get() {
        sink.flush(patience);
    }
}

/// Bytes of lines that wait to be written or are being written, for `--print-memory`.
pub const MEMORY_BYTES_MAX: u64 = 2 * (sink::LINES_MAX * sink::LINE_BYTES_MAX) as u64;

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

fn name_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

fn file_of<'a>(meta: &Metadata<'a>) -> &'a str {
    meta.file().and_then(|file| file.rsplit('/').next()).unwrap_or_default()
}

/// A value of a line, not longer than a line can bear.
fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= VALUE_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let end = (0..=VALUE_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

/// Bytes of one value in a line.
const VALUE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
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

    fn logged(form: Form, ansi: bool, work: impl FnOnce()) -> String {
        let page = Page::default();
        let writing = page.clone();
        let builder = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::INFO)
            .with_ansi(ansi)
            .with_writer(move || writing.clone());
        let clock = Clock::start();
        match form {
            Form::Text => {
                let subscriber = builder.event_format(Text { clock }).finish();
                tracing::subscriber::with_default(subscriber, work);
            }
            Form::Json => {
                let subscriber = builder.event_format(Json { clock }).finish();
                tracing::subscriber::with_default(subscriber, work);
            }
        }
        let bytes = page.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("log lines are text")
    }

    #[test]
    fn a_line_has_the_peers_form_and_no_colour_off_a_terminal() {
        let text = logged(Form::Text, false, || {
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
        assert!(logged(Form::Text, true, || tracing::error!("x")).starts_with("\x1b[31m["));
    }

    #[test]
    fn json_is_one_object_a_line_whatever_the_text() {
        let text = logged(Form::Json, false, || {
            tracing::warn!(port = 5555, up = true, share = 0.5, who = "a\nb", "one\n\"two\"");
            tracing::info!("plain");
        });
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(
            (&lines[0]["level"], &lines[0]["message"]),
            (&json!("WARNING"), &json!("one\n\"two\""))
        );
        let fields = json!({ "port": 5555, "up": true, "share": 0.5, "who": "a\nb" });
        assert_eq!(lines[0]["fields"], fields);
        assert_eq!(lines[0]["target"], "kvtide::log::tests");
        assert!(lines[0]["ts"].as_str().is_some_and(|ts| ts.ends_with('Z')), "{text}");
        assert_eq!(lines[1].get("fields"), None);
    }

    #[test]
    fn a_value_has_a_bound_in_both_forms() {
        let long = "é".repeat(VALUE_BYTES_MAX);
        for form in [Form::Text, Form::Json] {
            let text = logged(form, false, || tracing::info!(name = &*long, "{long}"));
            assert!(text.len() < 2 * VALUE_BYTES_MAX + 512, "{}", text.len());
            assert!(text.contains('…'), "it says that there was more");
        }
    }

    #[test]
    fn levels_have_pythons_names_and_an_unknown_one_means_info() {
        assert_eq!(level_of("debug"), LevelFilter::DEBUG);
        assert_eq!(level_of("WARNING"), LevelFilter::WARN);
        assert_eq!(level_of("CRITICAL"), LevelFilter::ERROR);
        assert_eq!(level_of("chatty"), LevelFilter::INFO);
        assert_eq!(level_of(""), LevelFilter::INFO);
    }
}
