//! Loading one object: its file is read whole, and read on to see that nothing follows.
//!
//! ```text
//! open -> read ... -> [read the last part of a block] -> read what follows -> close
//! ```
//!
//! Invariant: an object is loaded only from a file of exactly its size, or of that rounded up to
//! whole blocks, as `fs_native` writes them.

use super::engine::{Chain, How, Step};
use super::folders::Folder;
use super::job::{Came, Ending, Rules, closing, is_aligned, next_part};
use super::memory::{BLOCK_BYTES, Blocks, Memory};
use crate::arena::{Span, Window};
use kvtide_core::event::LoadOutcome;
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::Arc;

#[derive(Debug)]
pub struct Load {
    span: Span,
    name: Arc<CStr>,
    direct: bool,
    read: u64,
    is_open: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reading,
    /// It is larger than it should be: how large?
    Measuring,
    Leaving,
    Over,
}

impl Load {
    pub fn new(span: Span, name: Arc<CStr>, rules: &Rules) -> Load {
        let direct = rules.direct && is_aligned(span);
        Load { span, name, direct, read: 0, is_open: false, stage: Stage::Reading }
    }

    pub fn bytes_left(&self) -> u64 {
        match self.stage {
            Stage::Reading => self.span.bytes() - self.read,
            _ => 0,
        }
    }

    pub fn next(&mut self, rules: &Rules, bytes: u64) -> Option<Chain> {
        match self.stage {
            Stage::Reading => Some(self.read_on(rules, bytes)),
            Stage::Measuring => {
                let (folder, name) = (Folder::Base, self.name.clone());
                let look = Step::Look { folder, name, seen: Box::default() };
                Some(Chain::loose(vec![look]))
            }
            Stage::Leaving => {
                self.stage = Stage::Over;
                self.is_open.then(closing)
            }
            Stage::Over => None,
        }
    }

    fn read_on(&self, rules: &Rules, mut bytes: u64) -> Chain {
        let mut steps = Vec::with_capacity(6);
        let direct = self.direct;
        if !self.is_open {
            let (folder, name) = (Folder::Base, self.name.clone());
            steps.push(Step::Open { folder, name, how: How::Read { direct } });
        }
        let (body, mut at) = (self.body(), self.read);
        while at < body && bytes > 0 {
            let ahead = rules.read_ahead.filter(|_| at == 0 && !direct);
            let part = next_part(self.span, at, body, ahead.unwrap_or(bytes).min(bytes));
            let (into, may_end) = (Memory::Arena(part), false);
            steps.push(Step::Read { into, offset: at, direct, may_end });
            at += part.bytes();
            bytes = bytes.saturating_sub(part.bytes());
        }
        if at < body {
            return Chain::of(steps);
        }
        let mut end = body;
        if body < self.span.bytes() {
            let into = Memory::Blocks(Blocks::new(BLOCK_BYTES), BLOCK_BYTES as usize);
            steps.push(Step::Read { into, offset: body, direct, may_end: true });
            end += BLOCK_BYTES;
        }
        steps.push(Step::Read { into: Memory::Sink, offset: end, direct, may_end: true });
        steps.push(Step::Close);
        Chain::of(steps)
    }

    /// What is read straight into the arena. A last part of a block would run into the neighbour.
    fn body(&self) -> u64 {
        let all = self.span.bytes();
        if self.direct { all - all % BLOCK_BYTES } else { all }
    }

    pub fn took(&mut self, chain: &Chain, window: &Window) -> Came {
        match self.stage {
            Stage::Reading => self.took_reading(chain, window),
            Stage::Measuring => self.took_measure(chain),
            Stage::Leaving | Stage::Over => Came::On,
        }
    }

    fn took_reading(&mut self, chain: &Chain, window: &Window) -> Came {
        let mut ended = None;
        // Taken even where the reads before it failed.
        let ends = chain.steps.last().zip(chain.outcomes.last());
        let is_closed = matches!(ends, Some((Step::Close, Ok(_))));
        self.is_open &= !is_closed;
        for (step, outcome) in chain.steps.iter().zip(&chain.outcomes) {
            match (step, *outcome) {
                (Step::Open { .. }, Ok(_)) => self.is_open = !is_closed,
                // A link is no object's file.
                (Step::Open { .. }, Err(Errno::NOENT | Errno::LOOP)) => {
                    return self.ends(LoadOutcome::Absent);
                }
                (Step::Read { into, offset, .. }, Ok(bytes)) if ended.is_none() => {
                    match self.took_bytes(into, *offset, bytes.into(), window) {
                        Ok(outcome) => ended = outcome,
                        Err(came) => return came,
                    }
                }
                (_, Ok(_)) => {}
                // What came before it says all there is to say.
                (_, Err(_)) if ended.is_some() => {}
                (Step::Open { .. } | Step::Read { .. }, Err(Errno::INVAL)) if self.direct => {
                    self.direct = false;
                    return if self.is_open { Came::Failed(Errno::INVAL) } else { Came::On };
                }
                (_, Err(error)) => return Came::Failed(error),
            }
        }
        match ended {
            Some(outcome) => self.ends(outcome),
            None => Came::On,
        }
    }

    /// One read has come to so many bytes: the ending where that settles it, or what to do instead
    /// of looking at the rest of the chain.
    fn took_bytes(
        &mut self,
        into: &Memory,
        offset: u64,
        bytes: u64,
        window: &Window,
    ) -> Result<Option<LoadOutcome>, Came> {
        let other = |bytes| Ok(Some(LoadOutcome::OtherSize { bytes }));
        let all = self.span.bytes();
        let padding = all.next_multiple_of(BLOCK_BYTES) - all;
        match into {
            Memory::Arena(part) => {
                self.read = offset + bytes;
                let is_end = bytes == 0 || (self.direct && !bytes.is_multiple_of(BLOCK_BYTES));
                match bytes < part.bytes() {
                    true if is_end => other(offset + bytes),
                    true => Err(Came::On),
                    false => Ok(None),
                }
            }
            Memory::Blocks(blocks, _) => {
                let tail = all - offset;
                if bytes != tail && bytes != BLOCK_BYTES {
                    return other(offset + bytes);
                }
                let rest = self.span.part(offset, tail);
                let copied = window.copy_in(rest, &blocks.bytes()[..tail as usize]);
                copied.map(|()| None).map_err(Came::Failed)
            }
            Memory::Sink => match bytes {
                0 => Ok(Some(LoadOutcome::Loaded)),
                _ if !self.direct && padding > 0 && bytes == padding => {
                    Ok(Some(LoadOutcome::Loaded))
                }
                BLOCK_BYTES => {
                    self.stage = Stage::Measuring;
                    Ok(None)
                }
                _ => other(offset + bytes),
            },
        }
    }

    fn took_measure(&mut self, chain: &Chain) -> Came {
        let (Some(Step::Look { seen, .. }), Some(outcome)) =
            (chain.steps.first(), chain.outcomes.first())
        else {
            return Came::Failed(Errno::IO);
        };
        match (*outcome, seen.file_bytes()) {
            (Ok(_), Some(bytes)) => self.ends(LoadOutcome::OtherSize { bytes }),
            (Err(Errno::NOENT), _) => self.ends(LoadOutcome::Absent),
            (Ok(_), None) => Came::Failed(Errno::ISDIR),
            (Err(error), _) => Came::Failed(error),
        }
    }

    fn ends(&mut self, outcome: LoadOutcome) -> Came {
        self.stage = Stage::Leaving;
        Came::Ended(Ending::Loaded(outcome))
    }

    /// It ends without having been loaded.
    pub fn leave(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Leaving;
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::bench::{Bench, OBJECT_BYTES};

    /// Broke: a read that was interrupted was tried again on a file that its chain had closed, and
    /// ended as a fault of the device. Guards: what is closed is opened again.
    #[test]
    fn what_is_tried_again_opens_what_was_closed() {
        let bench = Bench::new();
        let rules = Rules {
            direct: true,
            can_truncate: true,
            keeps_existing: true,
            sync: false,
            read_ahead: None,
        };
        let mut load = Load::new(bench.span(0), c"x".into(), &rules);
        let mut chain = load.next(&rules, OBJECT_BYTES).expect("it has begun");
        let all = OBJECT_BYTES as u32;
        chain.outcomes = vec![Ok(0), Ok(all), Err(Errno::INTR), Ok(0)];
        assert_eq!(chain.steps.len(), chain.outcomes.len(), "{chain:?}");
        assert_eq!(load.took(&chain, &bench.window), Came::Failed(Errno::INTR));
        let again = load.next(&rules, OBJECT_BYTES).expect("it goes on");
        assert!(matches!(again.steps[0], Step::Open { .. }), "{again:?}");
    }
}
