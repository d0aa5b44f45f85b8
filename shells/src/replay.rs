//! `kvtide replay`: runs a recording through the core again and says whether every effect and fact
//! is the same (docs/recording.md).
//!
//! The one invariant: it never says "the same" of anything that it has not compared: a recording
//! that begins in the midst of a run is shown, and said to be no more than that.

pub mod flags;

mod counts;
mod parts;
mod transcript;

use counts::Counts;
use flags::ReplayFlags;
use kvtide_core::config::Config;
use kvtide_core::recording::{Difference, Entry, Happened, Header, Malformed, Reader, Replay};
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
        fault: Malformed,
    },
    /// A part is missing.
    Torn {
        path: PathBuf,
        expected: u64,
        found: u64,
    },
}

impl Verdict {
    /// 0 means checked and the same, or shown where no more was possible.
    pub fn exit(&self) -> u8 {
        match self {
            Verdict::Same | Verdict::Shown | Verdict::Panicked { then: true, .. } => 0,
            Verdict::Different(_) | Verdict::Panicked { .. } | Verdict::Survived { .. } => 1,
            Verdict::Unreadable { .. } | Verdict::Torn { .. } => EXIT_UNREADABLE,
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
    let mut session = Session::new(&parts, flags);
    let verdict = session.play(&parts);
    let text = session.page(&verdict, &parts);
    // A reader that has gone away wants no more text.
    io::stdout().write_all(text.as_bytes()).ok();
    verdict.exit()
}

/// One replay from its first part to its last.
pub struct Session {
    /// None where the recording begins in the midst of a run.
    replay: Option<Replay>,
    counts: Counts,
    transcript: Transcript,
    tokens: bool,
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
    pub fn new(parts: &[Part], flags: &ReplayFlags) -> Session {
        let header = &parts[0].header;
        let replay = is_whole(parts).then(|| Replay::new(header.config.clone()));
        Session {
            replay,
            counts: Counts::default(),
            transcript: Transcript::new(flags),
            tokens: header.tokens,
            how_it_ended: HowItEnded::Open,
        }
    }

    /// Reads everything, or up to what ends it.
    pub fn play(&mut self, parts: &[Part]) -> Verdict {
        let mut frame_before = None;
        for part in parts {
            let path = || part.path.clone();
            let (_, mut reader) = match Reader::new(&part.bytes) {
                Ok(read) => read,
                Err(fault) => return Verdict::Unreadable { path: path(), fault },
            };
            loop {
                let entry = match reader.next_entry() {
                    Ok(Some(entry)) => entry,
                    Ok(None) => break,
                    Err(fault) => return Verdict::Unreadable { path: path(), fault },
                };
                if let Some(before) = frame_before.take()
                    && entry.frame != before + 1
                {
                    let (expected, found) = (before + 1, entry.frame);
                    return Verdict::Torn { path: path(), expected, found };
                }
                if let Some(verdict) = self.take(&entry) {
                    return verdict;
                }
            }
            frame_before = reader.frame();
        }
        if self.replay.is_some() { Verdict::Same } else { Verdict::Shown }
    }

    /// One entry. Some where it is the last one to be looked at.
    fn take(&mut self, entry: &Entry<'_>) -> Option<Verdict> {
        self.counts.add(entry);
        self.transcript.add(entry);
        match entry.happened {
            Happened::Gap => self.how_it_ended = HowItEnded::Gap,
            Happened::End => self.how_it_ended = HowItEnded::End,
            Happened::Event(_) | Happened::Finish | Happened::Tokens { .. } => {}
        }
        let is_event = matches!(entry.happened, Happened::Event(_) | Happened::Finish);
        let replay = self.replay.as_mut()?;
        let event = || transcript::line(entry);
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
        line(format_args!("written by kvtide {}; {}", header.writer, engine(&header.config)));
        if self.tokens {
            line(format_args!("holds token ids: whoever has it can read the prompts"));
        }
        let is_failure = !matches!(verdict, Verdict::Same | Verdict::Shown);
        let lines = self.transcript.lines(is_failure);
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
            Verdict::Shown => format!(
                "Read {events} events. They begin in the midst of a run, so nothing was checked: \
                 an engine cannot begin there.{ended}"
            ),
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
            Verdict::Unreadable { path, fault } => {
                format!("{}: {fault}\n{events} events before it were the same.", path.display())
            }
            Verdict::Torn { path, expected, found } => format!(
                "{}: frame {expected} should follow, and frame {found} does: a part is missing.",
                path.display()
            ),
        }
    }
}

/// Whether the first frame is the first that there ever was.
fn is_whole(parts: &[Part]) -> bool {
    let Ok((_, mut reader)) = Reader::new(&parts[0].bytes) else { return false };
    match reader.next_entry() {
        Ok(Some(entry)) => entry.frame == 0,
        // Nothing, or nothing that can be read: it will be told.
        Ok(None) | Err(_) => true,
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

/// Reads the header of a file.
fn header_of(bytes: &[u8]) -> Result<Header, Malformed> {
    Header::read(bytes).map(|(header, _)| header)
}
