//! Runs a recording again and compares. Its one invariant: the first event whose effects and facts
//! are not those that were recorded is named, and nothing after it is looked at.

use super::digest::Digest;
use super::outcome::{Outcome, Part};
use super::reader::{Entry, Happened};
use super::recorder::hashes_of;
use super::secret::Numbered;
use crate::config::Config;
use crate::effect::Outbox;
use crate::engine::Engine;
use crate::event::Event;
use crate::names::ChunkHash;
use crate::time::Instant;
use alloc::boxed::Box;
use core::fmt;

/// An engine that is told what another one was told.
#[derive(Clone, Debug)]
pub struct Replay {
    engine: Engine,
    out: Outbox,
    frame: Option<u64>,
    digest: Digest,
}

/// The first decision that is another one now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub number: u64,
    pub at: Instant,
    pub kind: &'static str,
    pub recorded: Outcome,
    pub now: Outcome,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { number, at, kind, recorded, now } = self;
        let (seconds, nanos) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
        writeln!(f, "event {number} at {seconds}.{nanos:09} s ({kind}) is decided otherwise now")?;
        writeln!(f, "  recorded: {recorded} [digest {:08x}]", recorded.digest())?;
        write!(f, "  now:      {now} [digest {:08x}]", now.digest())
    }
}

impl Replay {
    /// # Panics
    /// When the configuration breaks a rule that `Config::check` names.
    pub fn new(config: Config) -> Replay {
        let (engine, out) = (Engine::new(config), Outbox::default());
        Replay { engine, out, frame: None, digest: Digest::START }
    }

    /// Tells the engine of the next entry, which must not be left out. What it brought about stays
    /// in `out` until the next step.
    pub fn step(&mut self, entry: &Entry<'_>) -> Result<(), Box<Difference>> {
        if self.frame != Some(entry.frame) {
            (self.frame, self.digest) = (Some(entry.frame), Digest::START);
        }
        self.out.clear();
        let Replay { engine, out, .. } = self;
        let mut hashes: &[ChunkHash] = &[];
        match &entry.happened {
            Happened::Event(event) => {
                hashes = hashes_of(event);
                engine.handle(entry.at, event.clone(), out);
            }
            Happened::Finish => engine.finish(entry.at, out),
            scanned => {
                let told = |event: &Event<'_>| engine.handle(entry.at, event.clone(), out);
                if scanned.with_event(told).is_none() {
                    return Ok(());
                }
            }
        }
        let part = Part::since((0, 0), &self.out);
        let now = Outcome::of(&mut self.digest, &Numbered, hashes, &part);
        match &entry.outcome {
            Some(recorded) if *recorded != now => Err(Box::new(Difference {
                number: entry.number,
                at: entry.at,
                kind: entry.kind,
                recorded: recorded.clone(),
                now,
            })),
            _ => Ok(()),
        }
    }

    /// What the last event brought about.
    pub fn out(&self) -> &Outbox {
        &self.out
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}
