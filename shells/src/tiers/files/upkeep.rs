//! The smaller jobs: asking for names, taking objects away, reading them again to check them.
//!
//! Invariant: none of them touches the arena.

use super::engine::{Chain, How, Step};
use super::folders::Folder;
use super::job::{Came, Ending, Rules, closing};
use super::memory::{BLOCK_BYTES, Blocks, Memory};
use crate::tiers::digest::keyed;
use crc32fast::Hasher;
use kvtide_core::event::{DeleteOutcome, Found};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::Arc;

/// Which of these names are there, and how large.
#[derive(Debug)]
pub struct Probe {
    /// None where no file can have the key's name.
    names: Vec<Option<Arc<CStr>>>,
    found: Vec<Option<Found>>,
    is_over: bool,
}

impl Probe {
    pub fn new(names: Vec<Option<Arc<CStr>>>) -> Probe {
        Probe { names, found: Vec::new(), is_over: false }
    }

    pub fn next(&mut self) -> Option<Chain> {
        if self.is_over {
            return None;
        }
        let next = self.names.iter().skip(self.found.len()).take(LOOKS_AT_ONCE);
        let looks = next.map(|name| Step::Look {
            folder: Folder::Base,
            // Looked for under a name that no file has.
            name: name.clone().unwrap_or_else(|| c".kvtide/-".into()),
            seen: Box::default(),
        });
        Some(Chain::loose(looks.collect()))
    }

    pub fn took(&mut self, chain: &Chain) -> Came {
        for (step, outcome) in chain.steps.iter().zip(&chain.outcomes) {
            let Step::Look { seen, .. } = step else { continue };
            match *outcome {
                Ok(_) => self.found.push(seen.file_bytes().map(Found::of)),
                Err(Errno::NOENT) => self.found.push(None),
                Err(error) => return Came::Failed(error),
            }
        }
        if self.found.len() < self.names.len() {
            return Came::On;
        }
        self.is_over = true;
        Came::Ended(Ending::Probed(Some(std::mem::take(&mut self.found))))
    }

    pub fn leave(&mut self) {
        self.is_over = true;
    }

    pub fn has_ended(&self) -> bool {
        self.is_over
    }
}

/// Taking an object away, or out of the way.
#[derive(Debug)]
pub struct Delete {
    name: Arc<CStr>,
    quarantine: bool,
    is_over: bool,
}

impl Delete {
    pub fn new(name: Arc<CStr>, quarantine: bool) -> Delete {
        Delete { name, quarantine, is_over: false }
    }

    pub fn next(&mut self) -> Option<Chain> {
        if self.is_over {
            return None;
        }
        let name = self.name.clone();
        let step = match self.quarantine {
            false => Step::Remove { folder: Folder::Base, name },
            true => Step::Rename {
                from: (Folder::Base, name.clone()),
                to: (Folder::Quarantine, name),
                replace: true,
            },
        };
        Some(Chain::of(vec![step]))
    }

    pub fn took(&mut self, chain: &Chain) -> Came {
        let outcome = match chain.outcomes.first() {
            Some(Ok(_)) => DeleteOutcome::Deleted,
            Some(Err(Errno::NOENT)) => DeleteOutcome::Absent,
            Some(Err(error)) => return Came::Failed(*error),
            None => return Came::Failed(Errno::IO),
        };
        self.is_over = true;
        Came::Ended(Ending::Deleted(outcome))
    }

    pub fn leave(&mut self) {
        self.is_over = true;
    }

    pub fn has_ended(&self) -> bool {
        self.is_over
    }
}

/// The digest of an object at rest, piece by piece through memory of its own.
#[derive(Debug)]
pub struct Scrub {
    name: Arc<CStr>,
    bytes: u64,
    read: u64,
    hasher: Hasher,
    /// With the chain, while one is on its way.
    scratch: Option<Blocks>,
    direct: bool,
    is_open: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reading,
    Leaving,
    Over,
}

impl Scrub {
    /// `native` is what the digest is keyed with.
    pub fn new(name: Arc<CStr>, native: &str, bytes: u64, rules: &Rules) -> Scrub {
        Scrub {
            name,
            bytes,
            read: 0,
            hasher: keyed(native),
            scratch: None,
            direct: rules.direct,
            is_open: false,
            stage: Stage::Reading,
        }
    }

    pub fn bytes_left(&self) -> u64 {
        match self.stage {
            Stage::Reading => SCRUB_PIECE_BYTES.min(self.bytes - self.read),
            _ => 0,
        }
    }

    pub fn next(&mut self, _rules: &Rules) -> Option<Chain> {
        match self.stage {
            Stage::Reading => {}
            Stage::Leaving => {
                self.stage = Stage::Over;
                return self.is_open.then(closing);
            }
            Stage::Over => return None,
        }
        let mut steps = Vec::with_capacity(2);
        let direct = self.direct;
        if !self.is_open {
            let (folder, name) = (Folder::Base, self.name.clone());
            steps.push(Step::Open { folder, name, how: How::Read { direct } });
        }
        let scratch = self.scratch.take().unwrap_or_else(|| Blocks::new(SCRUB_PIECE_BYTES));
        let piece = SCRUB_PIECE_BYTES.min((self.bytes - self.read).next_multiple_of(BLOCK_BYTES));
        let into = Memory::Blocks(scratch, piece.max(BLOCK_BYTES) as usize);
        steps.push(Step::Read { into, offset: self.read, direct, may_end: true });
        Some(Chain::of(steps))
    }

    pub fn took(&mut self, chain: Chain) -> Came {
        if self.stage != Stage::Reading {
            return Came::On;
        }
        for (step, outcome) in chain.steps.into_iter().zip(chain.outcomes) {
            match (step, outcome) {
                (Step::Open { .. }, Ok(_)) => self.is_open = true,
                (Step::Open { .. }, Err(Errno::INVAL)) if self.direct => {
                    self.direct = false;
                    return Came::On;
                }
                (Step::Read { into: Memory::Blocks(scratch, _), .. }, Ok(bytes)) => {
                    let bytes = u64::from(bytes).min(self.bytes - self.read);
                    self.hasher.update(&scratch.bytes()[..bytes as usize]);
                    self.read += bytes;
                    self.scratch = Some(scratch);
                    let is_cut = bytes == 0 || (self.direct && bytes % BLOCK_BYTES != 0);
                    // A file that is shorter than it was has another digest.
                    if self.read == self.bytes || is_cut {
                        let digest = std::mem::take(&mut self.hasher).finalize();
                        self.stage = Stage::Leaving;
                        return Came::Ended(Ending::Scrubbed(Some(digest)));
                    }
                }
                (_, Ok(_)) => {}
                (_, Err(error)) => return Came::Failed(error),
            }
        }
        Came::On
    }

    pub fn leave(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Leaving;
        }
    }

    pub fn has_ended(&self) -> bool {
        self.stage != Stage::Reading
    }
}

/// Names asked for at once by one probe: they keep as many of the system's threads busy where the
/// directory has to be read.
const LOOKS_AT_ONCE: usize = 32;
/// Bytes that a scrub reads at a time; the reactor digests them itself, in some tens of
/// microseconds.
pub const SCRUB_PIECE_BYTES: u64 = 256 << 10;
