//! `kvtide replay`: runs a recording through the core again and says whether every effect and fact
//! is the same (docs/recording.md).
//!
//! The one invariant: it never says "the same" of anything that it has not compared: a recording
//! that begins in the midst of a run is shown, and said to be no more than that.

pub mod flags;

mod counts;
mod parts;
mod transcript;

use crate::arena::machine::Machine;
use crate::arena::sizing::Bytes;
use counts::Counts;
use flags::ReplayFlags;
use kvtide_core::config::Config;
use kvtide_core::engine::memory::table_bytes;
use kvtide_core::recording::{Difference, Entry, Happened, Reader, Replay};
use parts::{Part, find_parts};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use transcript::Transcript;

/// What became of a recording.
#[derive(Debug)]
pub enum Verdict {
    /// Every event was decided as it was recorded.
    Same,
    /// It begins in the midst of a run, so nothing could be compared.
    Shown,
    Different(Box<Difference>),
    /// The core panicked at this event now, and did so then if `then` says so.
    Panicked {
        event: String,
        then: bool,
    },
    /// It ends within an event at which the core panicked then, but not now.
    Survived {
        event: String,
    },
    Unreadable {
        path: PathBuf,
        why: String,
    },
    /// A part is missing.
    Torn {
        path: PathBuf,
        expected: u64,
        found: u64,
    },
    /// The tables of the engine that it asks for would not fit into this machine.
    TooLarge {
        bytes: u64,
        machine: u64,
    },
}

impl Verdict {
    /// 0 means checked and the same, or shown where no more was possible.
    pub fn exit(&self) -> u8 {
        match self {
            Verdict::Same | Verdict::Shown | Verdict::Panicked { then: true, .. } => 0,
            Verdict::Different(_) | Verdict::Panicked { .. } | Verdict::Survived { .. } => 1,
            Verdict::Unreadable { .. } | Verdict::Torn { .. } | Verdict::TooLarge { .. } => {
                EXIT_UNREADABLE
            }
        }
    }
}

/// Runs the command; the exit status says how it went.
pub fn run(flags: &ReplayFlags) -> u8 {
    let parts = match find_parts(&flags.file) {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("{error}");
            return EXIT_UNREADABLE;
        }
    };
    let mut session = Session::new(&parts, flags, Machine::read().memory_bytes);
    let verdict = session.play(&parts);
    let text = session.page(&verdict, &parts);
    // A reader that has gone away wants no more text.
    io::stdout().write_all(text.as_bytes()).ok();
    verdict.exit()
}

/// One replay from its first part to its last.
pub struct Session {
    /// What the engine would begin with. None once the first entry has told whether it can.
    config: Option<Config>,
    /// Bytes that its tables may take.
    memory: u64,
    /// None where the recording begins in the midst of a run.
    replay: Option<Replay>,
    counts: Counts,
    transcript: Transcript,
    tokens: bool,
    /// The event that a panic ended, where it was not replayed.
    panicked: Option<String>,
    how_it_ended: HowItEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HowItEnded {
    /// Nothing says that it did: the server was killed, or still writes.
    Open,
    Gap,
    End,
}

impl Session {
    pub fn new(parts: &[Part], flags: &ReplayFlags, memory: u64) -> Session {
        let header = &parts[0].header;
        Session {
            config: Some(header.config.clone()),
            memory,
            replay: None,
            counts: Counts::default(),
            transcript: Transcript::new(flags),
            tokens: header.tokens,
            panicked: None,
            how_it_ended: HowItEnded::Open,
        }
    }

    /// Reads everything, or up to what ends it.
    pub fn play(&mut self, parts: &[Part]) -> Verdict {
        let mut frame_before: Option<u64> = None;
        for part in parts {
            let unreadable = |why: &dyn std::fmt::Display| Verdict::Unreadable {
                path: part.path.clone(),
                why: why.to_string(),
            };
            let bytes = match part.bytes() {
                Ok(bytes) => bytes,
                Err(error) => return unreadable(&error),
            };
            let (_, mut reader) = match Reader::new(&bytes) {
                Ok(read) => read,
                Err(fault) => return unreadable(&fault),
            };
            loop {
                let entry = match reader.next_entry() {
                    Ok(Some(entry)) => entry,
                    Ok(None) => break,
                    Err(fault) => return unreadable(&fault),
                };
                if let Some(before) = frame_before.take()
                    && before.checked_add(1) != Some(entry.frame)
                {
                    let (expected, found) = (before.saturating_add(1), entry.frame);
                    return Verdict::Torn { path: part.path.clone(), expected, found };
                }
                if let Some(verdict) = self.take(&entry) {
                    return verdict;
                }
            }
            // A part without a frame is followed by what follows the one before it.
            frame_before = reader.frame().or(frame_before);
        }
        let is_checked = self.replay.is_some() || self.config.is_some();
        if is_checked { Verdict::Same } else { Verdict::Shown }
    }

    /// At the first entry: an engine, where it is the first that there ever was.
    fn begin(&mut self, entry: &Entry<'_>) -> Option<Verdict> {
        let config = self.config.take()?;
        if entry.frame != 0 {
            return None;
        }
        let bytes = table_bytes(&config).iter().map(|(_, bytes)| bytes).sum();
        if bytes > self.memory {
            return Some(Verdict::TooLarge { bytes, machine: self.memory });
        }
        self.replay = Some(Replay::new(config));
        None
    }

    /// One entry. Some where it is the last one to be looked at.
    fn take(&mut self, entry: &Entry<'_>) -> Option<Verdict> {
        if let Some(verdict) = self.begin(entry) {
            return Some(verdict);
        }
        self.counts.add(entry);
        self.transcript.add(entry);
        match entry.happened {
            Happened::Gap => self.how_it_ended = HowItEnded::Gap,
            Happened::End => self.how_it_ended = HowItEnded::End,
            Happened::Event(_)
            | Happened::Scanned(_)
            | Happened::Finish
            | Happened::Tokens { .. } => {}
        }
        let is_event = entry.happened.is_event();
        let event = || transcript::line(entry);
        let Some(replay) = &mut self.replay else {
            if is_event {
                self.panicked = entry.outcome.is_none().then(event);
            }
            return None;
        };
        // What panicked then may panic now, and that is worth knowing.
        match catch_unwind(AssertUnwindSafe(|| replay.step(entry))) {
            Err(_) => Some(Verdict::Panicked { event: event(), then: entry.outcome.is_none() }),
            Ok(Err(difference)) => Some(Verdict::Different(difference)),
            Ok(Ok(())) if is_event && entry.outcome.is_none() => {
                Some(Verdict::Survived { event: event() })
            }
            Ok(Ok(())) => None,
        }
    }

    /// What is printed: what was read, the transcript, the counters, and last the verdict.
    pub fn page(&self, verdict: &Verdict, parts: &[Part]) -> String {
        let header = &parts[0].header;
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            text.write_fmt(words).expect("text takes all");
            text.push('\n');
        };
        let files: Vec<_> = parts.iter().map(|part| part.path.display().to_string()).collect();
        line(format_args!("recording {:016x}: {}", header.recording, files.join(", ")));
        // Whoever made the file has chosen this text.
        let writer = header.writer.escape_debug();
        line(format_args!("written by kvtide {writer}; {}", engine(&header.config)));
        if self.tokens {
            line(format_args!("holds token ids: whoever has it can read the prompts"));
        }
        let is_well = matches!(verdict, Verdict::Same | Verdict::Shown) && self.panicked.is_none();
        let lines = self.transcript.lines(!is_well);
        if !lines.is_empty() {
            line(format_args!(""));
            lines.iter().for_each(|shown| line(format_args!("{shown}")));
        }
        line(format_args!(""));
        self.counts
            .lines(self.replay.as_ref())
            .iter()
            .for_each(|told| line(format_args!("{told}")));
        line(format_args!(""));
        line(format_args!("{}", self.ending(verdict)));
        text
    }

    fn ending(&self, verdict: &Verdict) -> String {
        let events = self.counts.events();
        let ended = match self.how_it_ended {
            HowItEnded::End => "",
            HowItEnded::Gap => "\nRecording ended before the server did: the disk did not follow.",
            HowItEnded::Open => {
                "\nThere is no end mark: the server was killed, still writes, or this is a dump."
            }
        };
        match verdict {
            Verdict::Same => {
                format!("Replayed {events} events: every effect and fact is the same.{ended}")
            }
            Verdict::Shown => {
                let panicked = self.panicked.as_ref().map_or(String::new(), |event| {
                    format!("\nThe core panicked within the last event:\n{event}")
                });
                format!(
                    "Read {events} events. They begin in the midst of a run, so nothing was \
                     checked: an engine cannot begin there.{ended}{panicked}"
                )
            }
            Verdict::Different(difference) => format!("The first difference: {difference}"),
            Verdict::Panicked { event, then: true } => {
                format!("The core panics now as it did then, at:\n{event}")
            }
            Verdict::Panicked { event, then: false } => {
                format!("The core panics now, and did not then, at:\n{event}")
            }
            Verdict::Survived { event } => format!(
                "It ends within this event, at which the core panicked; now it does not:\n{event}"
            ),
            Verdict::Unreadable { path, why } => {
                let before = match self.replay {
                    Some(_) => "were the same",
                    None => "were read; none was checked",
                };
                format!("{}: {why}\n{events} events before it {before}.", path.display())
            }
            Verdict::Torn { path, expected, found } => format!(
                "{}: frame {expected} should follow, and frame {found} does: a part is missing.",
                path.display()
            ),
            Verdict::TooLarge { bytes, machine } => format!(
                "The tables of its engine would take {}, and this machine has {}: nothing was \
                 replayed.",
                Bytes(*bytes),
                Bytes(*machine)
            ),
        }
    }
}

fn engine(config: &Config) -> String {
    let Config { l1_bytes, l1_objects_max, chunk_size, policy, .. } = config;
    format!(
        "L1 of {l1_bytes} bytes, {l1_objects_max} objects, chunks of {chunk_size} tokens, \
         {policy:?}"
    )
}

/// Neither a difference nor a wrong command line.
const EXIT_UNREADABLE: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::config::Limits;
    use kvtide_core::event::Event;
    use kvtide_core::recording::{Frame, Header, Recorder, Secret};
    use kvtide_core::time::Instant;

    /// A header that asks for more than there is once had the machine swap, or the kernel end the
    /// process.
    #[test]
    fn an_engine_that_does_not_fit_is_refused() {
        let config = Config {
            l1_objects_max: 1 << 28,
            limits: Limits { sessions: 1 << 28, ..Limits::default() },
            ..Config::default()
        };
        let header = Header { recording: 1, tokens: false, writer: "any".to_owned(), config };
        let mut recorder = Recorder::new(Secret::new([7; 16]));
        recorder.begins(Instant(1), &Event::Tick);
        let frame = recorder.close().expect("it holds an event");
        let name = format!("kvtide-replay-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, file(&header, &[frame])).expect("the name is free");
        let parts = find_parts(&path).expect("it was just written");
        let flags = ReplayFlags { file: path.clone(), around: None, request: None, lines: 1 };
        let mut session = Session::new(&parts, &flags, 1 << 30);
        let verdict = session.play(&parts);
        std::fs::remove_file(&path).expect("it is ours");
        assert!(matches!(verdict, Verdict::TooLarge { machine, .. } if machine == 1 << 30));
        assert_eq!(verdict.exit(), EXIT_UNREADABLE);
        assert!(session.page(&verdict, &parts).contains("nothing was replayed"));
    }

    fn file(header: &Header, frames: &[Frame]) -> Vec<u8> {
        let mut file = header.bytes();
        for frame in frames {
            let (head, entries) = frame.bytes();
            file.extend_from_slice(&head);
            file.extend_from_slice(entries);
        }
        file
    }
}
