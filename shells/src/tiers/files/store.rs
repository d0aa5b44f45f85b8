//! Storing one object: a temporary file is written, cut to length where it was written rounded, and
//! renamed into place whole. Its ending is told when nothing is left of it but the object: a store
//! that failed for want of room gives back what it took before another is tried.
//!
//! ```text
//! open temporary -> write ... -> [cut] -> [sync] -> rename -> close
//! ```
//!
//! Invariant: nothing ever has an object's name but all of its bytes (I-29), and what has it
//! already keeps it.

use super::engine::{Chain, How, Outcome, Step};
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
    /// There may be a temporary file.
    is_begun: bool,
    /// The file system takes no direct writes of this file after all: it is begun anew.
    begins_anew: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Writing,
    /// There is one under this name: how large is it?
    Present,
    /// What came of it stands; the temporary file goes, if there is one.
    Leaving {
        removes: bool,
        /// It got its name without all of its bytes.
        withdraws: bool,
    },
    Over,
}

impl Store {
    pub fn new(span: Span, name: Arc<CStr>, temporary: Arc<CStr>, rules: &Rules) -> Store {
        let is_whole = span.bytes().is_multiple_of(BLOCK_BYTES);
        let direct = rules.direct && is_aligned(span) && (is_whole || rules.can_truncate);
        Store {
            span,
            name,
            temporary,
            direct,
            written: 0,
            is_open: false,
            is_begun: false,
            begins_anew: false,
            stage: Stage::Writing,
        }
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
            Stage::Writing => {
                self.is_begun = true;
                Some(self.write(rules, window, bytes, temporary()))
            }
            Stage::Present => {
                let (folder, name) = (Folder::Base, self.name.clone());
                let look = Step::Look { folder, name, seen: Box::default() };
                Some(Chain::loose(vec![look, remove(), Step::Close]))
            }
            Stage::Leaving { removes, withdraws } => {
                let mut steps = Vec::new();
                let (folder, name) = (Folder::Base, self.name.clone());
                steps.extend(withdraws.then_some(Step::Remove { folder, name }));
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
        if was_cut_in_two(chain) {
            self.stage = Stage::Leaving { removes: true, withdraws: true };
            return Came::Failed(Errno::IO);
        }
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
                self.stage = Stage::Leaving { removes: false, withdraws: false };
                Came::Ended(Ending::Stored(outcome))
            }
            None => Came::On,
        }
    }

    /// A write took less than it was given. Direct writes go on at a whole block only.
    fn fell_short(&mut self, offset: u64, bytes: u64) -> Came {
        let bytes = if self.direct { bytes - bytes % BLOCK_BYTES } else { bytes };
        if bytes == 0 {
            // A device that takes nothing, or less than can be gone on from, says why with the next
            // try: most often it is full.
            return Came::Failed(Errno::AGAIN);
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
            // Somebody took it away just now, which is no fault of the device: once more.
            (Err(Errno::NOENT), _) => {
                (self.stage, self.written, self.is_open) = (Stage::Writing, 0, false);
                Came::Failed(Errno::AGAIN)
            }
            (Err(_), _) => Came::Failed(Errno::IO),
        }
    }

    /// It ends without having been stored.
    pub fn leave(&mut self) {
        if !self.has_ended() {
            self.stage = Stage::Leaving { removes: self.is_begun, withdraws: false };
        }
    }

    /// Whether there is something to clear away, with one chain more.
    pub fn has_leftovers(&self) -> bool {
        match self.stage {
            Stage::Leaving { removes, withdraws } => removes || withdraws || self.is_open,
            _ => false,
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. } | Stage::Over)
    }
}

/// Whether a file got its name although a step before that failed or fell short. A kernel that runs
/// out of memory may take a part of a chain and the rest as another one (I-29).
fn was_cut_in_two(chain: &Chain) -> bool {
    let is_whole = |(step, outcome): (&Step, &Outcome)| match (step, outcome) {
        (Step::Write { from, .. }, Ok(bytes)) => u64::from(*bytes) == from.bytes(),
        (_, outcome) => outcome.is_ok(),
    };
    let is_rename = |step: &Step| matches!(step, Step::Rename { .. });
    let Some(at) = chain.steps.iter().position(is_rename) else { return false };
    let mut before = chain.steps.iter().zip(&chain.outcomes).take(at);
    chain.outcomes[at].is_ok() && !before.all(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::bench::{Bench, OBJECT_BYTES, ticket};
    use crate::tiers::files::job::{Job, Work};
    use kvtide_core::event::TierFault;

    const RULES: Rules = Rules {
        direct: true,
        can_truncate: true,
        keeps_existing: true,
        sync: false,
        read_ahead: None,
    };
    const ALL: u32 = OBJECT_BYTES as u32;
    const CUT: Outcome = Err(Errno::CANCELED);

    struct Trial {
        bench: Bench,
        job: Job,
    }

    impl Trial {
        fn new() -> Trial {
            let bench = Bench::new();
            let store = Store::new(bench.span(0), c"name".into(), c"temporary".into(), &RULES);
            Trial { job: Job::new(ticket(0), Work::Store(store)), bench }
        }

        fn next(&mut self) -> Chain {
            let chain = self.job.next(&RULES, &self.bench.window, OBJECT_BYTES);
            chain.expect("it is not over")
        }

        fn took(&mut self, outcomes: &[Outcome]) -> Option<Ending> {
            let chain = self.next();
            self.came(chain, outcomes)
        }

        fn came(&mut self, mut chain: Chain, outcomes: &[Outcome]) -> Option<Ending> {
            assert_eq!(chain.steps.len(), outcomes.len(), "{chain:?}");
            chain.outcomes = outcomes.to_vec();
            self.job.took(chain, &self.bench.window)
        }
    }

    /// What it left is cleared away, and only then it is told.
    const CLEARED: [Outcome; 2] = [Ok(0), Ok(0)];

    fn failed(why: TierFault) -> Option<Ending> {
        Some(Ending::Stored(StoreOutcome::Failed(why)))
    }

    /// Broke: a device whose last blocks are smaller than ours counted as broken when it was full.
    /// Guards: it is asked again, and says so.
    #[test]
    fn a_device_with_room_for_less_than_a_block_is_full_and_not_broken() {
        let mut trial = Trial::new();
        assert_eq!(trial.took(&[Ok(0), Ok(1024), CUT, CUT]), None);
        assert_eq!(trial.took(&[Err(Errno::NOSPC), CUT, CUT]), None);
        assert_eq!(trial.took(&CLEARED), failed(TierFault::NoSpace));
        let mut trial = Trial::new();
        assert_eq!(trial.took(&[Ok(0), Ok(0), CUT, CUT]), None);
        while !trial.job.has_ended() {
            assert_eq!(trial.took(&[Ok(0), CUT, CUT]), None, "it is not asked for ever");
        }
        assert_eq!(trial.took(&CLEARED), failed(TierFault::Io));
    }

    /// A kernel without memory may take half of a chain; the rest of it then stands for itself.
    #[test]
    fn i29_what_got_its_name_without_its_bytes_loses_it() {
        for written in [Err(Errno::IO), Ok(512)] {
            let mut trial = Trial::new();
            assert_eq!(trial.took(&[Ok(0), written, Ok(0), Ok(0)]), None);
            let removes = |step: &Step| match step {
                Step::Remove { folder, name } => *folder == Folder::Base && **name == *c"name",
                _ => false,
            };
            let next = trial.next();
            assert!(next.steps.iter().any(removes), "{next:?}");
            assert_eq!(trial.came(next, &CLEARED), failed(TierFault::Io));
        }
    }

    #[test]
    fn what_was_there_and_is_gone_again_is_stored() {
        let mut trial = Trial::new();
        assert_eq!(trial.took(&[Ok(0), Ok(ALL), Err(Errno::EXIST), CUT]), None);
        assert_eq!(trial.took(&[Err(Errno::NOENT), Ok(0), Ok(0)]), None);
        let stored = Some(Ending::Stored(StoreOutcome::Stored));
        assert_eq!(trial.took(&[Ok(0), Ok(ALL), Ok(0), Ok(0)]), stored);
    }

    /// Broke: the failure was told before the temporary file was gone, and the next store met the
    /// disk that this one had filled. Guards: told once, after what was left is cleared; a
    /// cancellation meanwhile changes nothing, and what was not begun has nothing to clear.
    #[test]
    fn a_store_is_told_once_and_after_what_it_left_is_gone() {
        let mut trial = Trial::new();
        assert_eq!(trial.took(&[Ok(0), Err(Errno::NOSPC), CUT, CUT]), None);
        assert!(trial.job.has_ended(), "what came of it stands");
        trial.job.is_cancelled = true;
        assert_eq!(trial.took(&[Ok(0), Err(Errno::IO)]), failed(TierFault::NoSpace));
        assert!(trial.job.next(&RULES, &trial.bench.window, OBJECT_BYTES).is_none());

        let stored = Some(Ending::Stored(StoreOutcome::Stored));
        let mut trial = Trial::new();
        assert_eq!(trial.took(&[Ok(0), Ok(ALL), Ok(0), CUT]), None);
        assert_eq!(trial.took(&[Ok(0)]), stored, "its file is closed");

        let mut trial = Trial::new();
        assert_eq!(trial.job.give_up(TierFault::Cancelled), failed(TierFault::Cancelled));
        let mut trial = Trial::new();
        assert_eq!(trial.took(&[Ok(0), Ok(512), CUT, CUT]), None);
        assert_eq!(trial.job.give_up(TierFault::Cancelled), None);
        assert_eq!(trial.took(&CLEARED), failed(TierFault::Cancelled));
    }
}
