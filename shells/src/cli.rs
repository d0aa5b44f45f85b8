//! The command line: the peer's flags with the peer's habits (spec/http-cli §1), and what they come
//! to.
//!
//! The one invariant: whatever a flag says is acted on, refused by name, or warned of by name; no
//! flag is silently something else. Exit statuses are the peer's: 2 for what clap refuses, 1 for a
//! configuration that cannot be, 3 for one that this machine cannot serve.

pub mod adapters;
pub mod coordinator;
pub mod document;
pub mod flags;
pub mod others;
pub mod settings;
pub mod values;

mod prefix;
mod unserved;

pub use settings::{Settings, Start};

use crate::bench::flags::BenchFlags;
use crate::replay::flags::ReplayFlags;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use flags::ServerFlags;
use std::ffi::OsString;
use std::fmt;

#[derive(Clone, Debug, Parser)]
#[command(
    name = "kvtide",
    about = "A KV-cache server for LLM inference: drop-in for `lmcache server`",
    version = crate::version::KVTIDE,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (serves clients of lmcache 0.5.6)"),
    infer_long_args = true,
    args_override_self = true,
)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Debug, Subcommand)]
enum Task {
    /// Keep KV for engines; without flags on port 5555, sized to this container
    #[command(
        infer_long_args = true,
        args_override_self = true,
        term_width = 100,
        allow_negative_numbers = true
    )]
    Server(Box<ServerFlags>),
    /// Measure servers of this protocol, two of them in turn
    #[command(infer_long_args = true, term_width = 100)]
    Bench(Box<BenchFlags>),
    /// Run a recording (`server --record`) or a dump again and compare every decision
    #[command(infer_long_args = true, term_width = 100)]
    Replay(ReplayFlags),
    /// The yardstick of `bench --floor`, which starts it
    #[command(name = crate::bench::floor::VERB, hide = true)]
    BenchFloor { chunk_tokens: u32 },
}

/// What was asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Serve. `warnings` are to be logged once logging is set up.
    Serve { flags: Box<ServerFlags>, warnings: Vec<String> },
    /// Measure.
    Bench(Box<BenchFlags>),
    /// Replay a recording.
    Replay(ReplayFlags),
    /// Be the yardstick of a measurement.
    BenchFloor { chunk_tokens: u32 },
    /// Print this and exit: help, a version, a complaint.
    Print { text: String, to_stdout: bool, exit: u8 },
}

/// A configuration that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    pub exit: u8,
    /// Begins with the flag that is wrong.
    pub message: String,
}

impl ConfigFault {
    /// A value that parses but breaks a rule.
    fn value(message: impl Into<String>) -> ConfigFault {
        ConfigFault { exit: EXIT_CONFIG, message: message.into() }
    }
}

impl fmt::Display for ConfigFault {
    /// Scripts look for the peer's wording at the beginning of the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exit == EXIT_CONFIG {
            f.write_str("ValueError: ")?;
        }
        f.write_str(&self.message)
    }
}

/// A configuration that cannot be.
pub const EXIT_CONFIG: u8 = 1;
/// A command line that cannot be.
pub const EXIT_USAGE: u8 = 2;
/// A start that this machine does not allow.
pub const EXIT_STARTUP: u8 = 3;

/// The whole command line as clap knows it.
pub fn command() -> Command {
    Line::command()
}

/// Reads a command line, program name first.
pub fn parse(args: Vec<OsString>) -> Result<Asked, ConfigFault> {
    let command = command();
    // The peer prints its help and fails where no command is given.
    if args.len() < 2 {
        let text = command.clone().render_help().to_string();
        return Ok(Asked::Print { text, to_stdout: true, exit: 1 });
    }
    let args = match prefix::expand(&command, args) {
        Ok(args) => args,
        Err(ambiguous) => {
            let text = format!("{ambiguous}\n\nFor more information, try '--help'.\n");
            return Ok(Asked::Print { text, to_stdout: false, exit: EXIT_USAGE });
        }
    };
    let matches = match command.try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return Ok(complaint(&error)),
    };
    let line = match Line::from_arg_matches(&matches) {
        Ok(line) => line,
        Err(error) => return Ok(complaint(&error)),
    };
    match line.task {
        Task::Server(flags) => {
            let server = matches.subcommand_matches("server").expect("this command was parsed");
            let warnings = unserved::judge(server)?;
            Ok(Asked::Serve { flags, warnings })
        }
        Task::Bench(flags) => Ok(Asked::Bench(flags)),
        Task::Replay(flags) => Ok(Asked::Replay(flags)),
        Task::BenchFloor { chunk_tokens } => Ok(Asked::BenchFloor { chunk_tokens }),
    }
}

fn complaint(error: &clap::Error) -> Asked {
    Asked::Print {
        text: error.render().to_string(),
        to_stdout: !error.use_stderr(),
        exit: u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked, ConfigFault> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    fn served(line: &str) -> ServerFlags {
        match parsed(line) {
            Ok(Asked::Serve { flags, .. }) => *flags,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn exit_of(line: &str) -> (u8, bool, String) {
        match parsed(line) {
            Ok(Asked::Print { text, to_stdout, exit }) => (exit, to_stdout, text),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn clap_finds_nothing_to_complain_about_in_our_declarations() {
        command().debug_assert();
    }

    #[test]
    fn without_flags_it_serves_on_the_peers_ports() {
        let flags = served("kvtide server");
        assert_eq!((&*flags.request.host, flags.request.port), ("localhost", 5555));
        assert_eq!((&*flags.http.http_host, flags.http.http_port), ("127.0.0.1", 8080));
        assert_eq!(flags.memory.l1_size_gb, None);
        assert_eq!(flags.memory.eviction_policy, values::Policy::Lru);
        assert_eq!(flags.request.supported_transfer_mode, values::Transfer::Auto);
    }

    #[test]
    fn both_spellings_work_prefixes_work_and_the_last_one_wins() {
        let flags =
            served("kvtide server --port 1 --port=2 --l1-size 1 --chunk-size=16 --http-po 7");
        assert_eq!(flags.request.port, 2);
        assert_eq!(flags.memory.l1_size_gb, Some(values::Gibibytes(1 << 30)));
        assert_eq!((flags.request.chunk_size, flags.http.http_port), (16, 7));
        let flags = served("kvtide server --l1-use-lazy --no-l1-use-lazy");
        assert!(flags.memory.no_l1_use_lazy && !flags.memory.l1_use_lazy);
        let flags = served("kvtide server --no-isolated-ipc --isolated-ipc");
        assert!(flags.memory.isolated_ipc && !flags.memory.no_isolated_ipc);
    }

    #[test]
    fn the_operators_line_parses_whole() {
        let flags = served(
            "kvtide server --host 0.0.0.0 --port 5555 --l1-size-gb 60 --chunk-size 256 \
             --max-workers 4 --hash-algorithm blake3 --eviction-policy LRU \
             --eviction-trigger-watermark 0.8 --eviction-ratio 0.2 --prometheus-port 9090 \
             --http-host 0.0.0.0 --http-port 8080 --disable-prometheus --null-block-id -1",
        );
        assert_eq!(flags.http.prometheus_port, Some(9090));
        assert!(flags.observe.disable_metrics);
        assert_eq!(flags.others.null_block_id, -1);
    }

    #[test]
    fn what_cannot_be_parsed_ends_in_2_and_names_the_flag() {
        for line in [
            "--nonsense",
            "--eviction-policy FIFO",
            "--l1-size-gb big",
            "--l1-size-gb -1",
            "--chunk-size 0",
            "--hash-algorithm builtin",
            "--eviction-trigger-watermark 7",
            "--eviction-trigger-watermark -3",
            "--port 70000",
            "--l1-align-bytes 48",
        ] {
            let (exit, to_stdout, text) = exit_of(&format!("kvtide server {line}"));
            assert_eq!((exit, to_stdout), (2, false), "{line}");
            let flag = line.split_whitespace().next().expect("a line begins with its flag");
            assert!(text.contains(flag), "{line}: {text}");
        }
    }

    #[test]
    fn help_and_version_are_no_errors_but_no_command_is() {
        assert_eq!(exit_of("kvtide").0, 1);
        assert!(exit_of("kvtide").1, "the help goes to standard output");
        let (exit, to_stdout, text) = exit_of("kvtide --version");
        assert_eq!((exit, to_stdout), (0, true));
        assert!(text.contains(crate::version::KVTIDE) && text.contains("0.5.6"), "{text}");
        assert_eq!(exit_of("kvtide server --help").0, 0);
        assert_eq!(exit_of("kvtide frobnicate").0, 2);
    }

    #[test]
    fn faults_read_like_the_peers() {
        let fault = parsed("kvtide server --l1-manager {}").expect_err("there is one L1");
        assert!(fault.to_string().starts_with("ValueError: --l1-manager"), "{fault}");
    }
}
