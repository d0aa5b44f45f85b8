//! Storing one object: a temporary file is written, cut to length where it was written rounded, and
//! renamed into place whole.
//!
//! ```text
//! open temporary -> write ... -> [cut] -> [sync] -> rename -> close
//! ```
//!
//! Invariant: nothing ever has an object's name but all of its bytes (I-29), and what has it
//! already keeps it.

use super::engine::{Chain, How, Step};
use super::folders::Folder;
use super::job::{Came, Ending, Rules, is_aligned, next_part};
use super::memory::{BLOCK_BYTES, Blocks, Memory};
use crate::arena::{Span, Window};
use kvtide_core::event::StoreOutcome;
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::Arc;

#[derive(Debug)]
pub struct Store {
    span: Span,
    name: Arc<CStr>,
    temporary: Arc<CStr>,
    direct: bool,
    written: u64,
    is_open: bool,
    /// The file system takes no direct writes of this file after all: it is begun anew.
    begins_anew: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Writing,
    /// There is one under this name: how large is it?
    Present,
    /// It has ended; the temporary file goes, if there is one.
    Leaving {
        removes: bool,
    },
    Over,
}

impl Store {
    pub fn new(span: Span, name: Arc<CStr>, temporary: Arc<CStr>, rules: &Rules) -> Store {
        let is_whole = span.bytes().is_multiple_of(BLOCK_BYTES);
        let direct = rules.direct && is_aligned(span) && (is_whole || rules.can_truncate);
        let (written, is_open, begins_anew) = (0, false, false);
        let stage = Stage::Writing;
        Store { span, name, temporary, direct, written, is_open, begins_anew, stage }
    }

    pub fn bytes_left(&self) -> u64 {
        match self.stage {
            Stage::Writing => self.span.bytes() - self.written,
            _ => 0,
        }
    }

    pub fn next(&mut self, rules: &Rules, window: &Window, bytes: u64) -> Option<Chain> {
        let temporary = || (Folder::Temporary, self.temporary.clone());
        let remove = || Step::Remove { folder: Folder::Temporary, name: self.temporary.clone() };
        match self.stage {
            Stage::Writing => Some(self.write(rules, window, bytes, temporary())),
            Stage::Present => {
                let (folder, name) = (Folder::Base, self.name.clone());
                let look = Step::Look { folder, name, seen: Box::default() };
                Some(Chain::loose(vec![look, remove(), Step::Close]))
            }
            Stage::Leaving { removes } => {
                let mut steps = Vec::new();
                steps.extend(self.is_open.then_some(Step::Close));
                steps.extend(removes.then(remove));
                self.stage = Stage::Over;
                (!steps.is_empty()).then(|| Chain::loose(steps))
            }
            Stage::Over => None,
        }
    }

    fn write(
        &self,
        rules: &Rules,
        window: &Window,
        mut bytes: u64,
        temporary: (Folder, Arc<CStr>),
    ) -> Chain {
        let mut steps = Vec::with_capacity(8);
        let direct = self.direct;
        if self.begins_anew {
            let (folder, name) = temporary.clone();
            steps.extend([Step::Close, Step::Remove { folder, name }]);
        }
        if !self.is_open || self.begins_anew {
            let (folder, name) = temporary.clone();
            steps.push(Step::Open { folder, name, how: How::Create { direct } });
        }
        let (body, mut at) = (self.body(), self.written);
        while at < body && bytes > 0 {
            let part = next_part(self.span, at, body, bytes);
            steps.push(Step::Write { from: Memory::Arena(part), offset: at, direct });
            at += part.bytes();
            bytes = bytes.saturating_sub(part.bytes());
        }
        if at < body {
            return Chain::of(steps);
        }
        let all = self.span.bytes();
        if at < all {
            steps.push(Step::Write { from: self.tail(window), offset: body, direct });
        }
        if body < all {
            steps.push(Step::Truncate { bytes: all });
        }
        if rules.sync {
            steps.push(Step::Sync);
        }
        let (to, replace) = ((Folder::Base, self.name.clone()), !rules.keeps_existing);
        steps.extend([Step::Rename { from: temporary, to, replace }, Step::Close]);
        Chain::of(steps)
    }

    /// What is written straight from the arena; the rest is less than a block.
    fn body(&self) -> u64 {
        let all = self.span.bytes();
        if self.direct { all - all % BLOCK_BYTES } else { all }
    }

    /// The last bytes, in a block of their own whose rest is zeros: a neighbour's bytes are nobody
    /// else's, not even for as long as the file is not cut.
    fn tail(&self, window: &Window) -> Memory {
        let rest = self.span.part(self.body(), BLOCK_BYTES);
        let mut blocks = Blocks::new(BLOCK_BYTES);
        let copied = window.copy_out(rest, &mut blocks.bytes_mut()[..rest.bytes() as usize]);
        if copied.is_err() {
            // The segment was cut short, which ends the server; the digest is of other bytes.
            blocks.bytes_mut().fill(0);
        }
        Memory::Blocks(blocks, BLOCK_BYTES as usize)
    }

    pub fn took(&mut self, chain: &Chain) -> Came {
        match self.stage {
            Stage::Writing => self.took_writing(chain),
            Stage::Present => self.took_present(chain),
            Stage::Leaving { .. } | Stage::Over => Came::On,
        }
    }

    fn took_writing(&mut self, chain: &Chain) -> Came {
        let mut stored = None;
        for (step, outcome) in chain.steps.iter().zip(&chain.outcomes) {
            match (step, *outcome) {
                (Step::Open { .. }, Ok(_)) => (self.is_open, self.begins_anew) = (true, false),
                (Step::Write { from, offset, .. }, Ok(bytes)) => {
                    if u64::from(bytes) < from.bytes() {
                        return self.fell_short(*offset, bytes.into());
                    }
                    self.written = (offset + u64::from(bytes)).min(self.span.bytes());
                }
                (Step::Rename { .. }, Ok(_)) => stored = Some(StoreOutcome::Stored),
                (Step::Rename { .. }, Err(Errno::EXIST)) => {
                    self.stage = Stage::Present;
                    return Came::On;
                }
                (Step::Close, Ok(_)) => self.is_open = false,
                // The object has its name; whether its file could be closed changes nothing.
                (_, Err(_)) if stored.is_some() => {}
                (_, Ok(_)) => {}
                (Step::Open { .. } | Step::Write { .. }, Err(Errno::INVAL)) if self.direct => {
                    self.begins_anew = self.is_open;
                    (self.direct, self.written) = (false, 0);
                    return Came::On;
                }
                (_, Err(error)) => return Came::Failed(error),
            }
        }
        match stored {
            Some(outcome) => {
                self.stage = Stage::Leaving { removes: false };
                Came::Ended(Ending::Stored(outcome))
            }
            None => Came::On,
        }
    }

    /// A write took less than it was given. Direct writes go on at a whole block only.
    fn fell_short(&mut self, offset: u64, bytes: u64) -> Came {
        let bytes = if self.direct { bytes - bytes % BLOCK_BYTES } else { bytes };
        if bytes == 0 {
            // A device that takes nothing says why with the next try, or never.
            return Came::Failed(Errno::IO);
        }
        self.written = offset + bytes;
        Came::On
    }

    fn took_present(&mut self, chain: &Chain) -> Came {
        self.stage = Stage::Over;
        let (Some(Step::Look { seen, .. }), Some(outcome)) =
            (chain.steps.first(), chain.outcomes.first())
        else {
            return Came::Failed(Errno::IO);
        };
        match (outcome, seen.file_bytes()) {
            (Ok(_), Some(bytes)) => Came::Ended(Ending::Stored(StoreOutcome::Present { bytes })),
            (Ok(_), None) => Came::Failed(Errno::ISDIR),
            // Somebody took it away just now: the engine may try again.
            (Err(_), _) => Came::Failed(Errno::IO),
        }
    }

    /// It ends without having been stored.
    pub fn leave(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Leaving { removes: true };
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. } | Stage::Over)
    }
}
