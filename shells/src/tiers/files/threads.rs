//! Worker threads that take the steps of chains where there is no ring to be had.
//!
//! Each worker has a lane of its own and one chain at a time, so that one which hangs in a device
//! holds nobody else up. Invariant: a file is with its place or with the worker that has its chain.

use super::engine::{Chain, How, Moved, Outcome, Step};
use super::folders::{Folder, Folders};
use super::memory::{BLOCK_BYTES, Blocks, Memory, Seen};
use super::ring::FILE_MODE;
use crate::arena::Window;
use crate::ending::Ending;
use kvtide_lanes::lane::{Consumer, Producer, lane};
use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, StatxFlags, fdatasync, ftruncate, openat, renameat,
    renameat_with, statx, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub struct Threads {
    workers: Vec<Producer<Errand>>,
    /// Workers that have nothing to do.
    idle: Vec<usize>,
    endings: Mailbox<Errand>,
    taken: Vec<Errand>,
    /// By place, while nobody works with it.
    files: Vec<Option<OwnedFd>>,
    bell: Arc<Bell>,
    moved: Moved,
}

/// A chain on its way to a worker and back.
struct Errand {
    worker: usize,
    place: usize,
    chain: Chain,
    file: Option<OwnedFd>,
    moved: Moved,
}

/// For who waits without a poll.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Threads {
    pub fn start(
        workers: usize,
        places: usize,
        window: &Window,
        folders: &Arc<Folders>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> io::Result<Threads> {
        let bell = Arc::new(Bell::default());
        let rings = bell.clone();
        let (sender, endings) = mailbox(workers, move || {
            rings.ring();
            wake();
        });
        let mut lanes = Vec::with_capacity(workers);
        for worker in 0..workers {
            // One errand at a time: the lane is never full.
            let (producer, errands) = lane(1);
            let hand = Hand {
                window: window.clone(),
                folders: folders.clone(),
                scratch: Blocks::new(BLOCK_BYTES),
            };
            let sender = sender.clone();
            Ending::spawn(&format!("disk-{worker}"), move || hand.work(errands, &sender))?;
            lanes.push(producer);
        }
        Ok(Threads {
            workers: lanes,
            idle: (0..workers).collect(),
            endings,
            taken: Vec::new(),
            files: (0..places).map(|_| None).collect(),
            bell,
            moved: Moved::default(),
        })
    }

    pub fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    pub fn begin(&mut self, place: usize, chain: Chain) {
        let worker = self.idle.pop().expect("who begins a chain has asked for room");
        let file = self.files[place].take();
        let errand = Errand { worker, place, chain, file, moved: Moved::default() };
        if let Err(refused) = self.workers[worker].put(errand) {
            // Only a worker that panicked takes none; its place in the list is not filled again.
            let mut errand = refused.into_value();
            errand.chain.outcomes = vec![Err(Errno::IO); errand.chain.steps.len()];
            self.taken.push(errand);
        }
    }

    pub fn collect(&mut self, back: &mut Vec<(usize, Chain)>) {
        let mut came = Vec::new();
        // Workers live as long as their lanes, which are here.
        let _ = self.endings.take(&mut came);
        for errand in &came {
            self.idle.push(errand.worker);
        }
        for errand in self.taken.drain(..).chain(came) {
            let Errand { place, chain, file, moved, .. } = errand;
            self.files[place] = file;
            self.moved.registered_direct_bytes += moved.registered_direct_bytes;
            self.moved.direct_bytes += moved.direct_bytes;
            self.moved.buffered_bytes += moved.buffered_bytes;
            back.push((place, chain));
        }
    }

    pub fn wait(&mut self, at_most: Duration) {
        self.bell.wait(at_most);
    }

    pub fn moved(&self) -> Moved {
        self.moved
    }

    pub fn forget_moved(&mut self) {
        self.moved = Moved::default();
    }

    pub fn is_idle(&self) -> bool {
        self.idle.len() == self.workers.len() && self.taken.is_empty()
    }
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.heard.notify_one();
    }

    fn wait(&self, at_most: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.heard.wait_timeout_while(rung, at_most, |rung| !*rung);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}

/// What a worker needs.
struct Hand {
    window: Window,
    folders: Arc<Folders>,
    scratch: Blocks,
}

impl Hand {
    fn work(mut self, mut errands: Consumer<Errand>, endings: &Sender<Errand>) {
        let mut taken = Vec::new();
        while errands.wait(&mut taken) {
            for mut errand in taken.drain(..) {
                self.run(&mut errand);
                // There is room for one of each worker; a tier that is gone wants none.
                if endings.put(errand).is_err() {
                    return;
                }
            }
        }
    }

    fn run(&mut self, errand: &mut Errand) {
        let Errand { chain, file, moved, .. } = errand;
        let mut is_cut = false;
        for step in &mut chain.steps {
            if is_cut {
                chain.outcomes.push(Err(Errno::CANCELED));
                continue;
            }
            let outcome = self.take(step, file);
            let is_whole = match (&*step, outcome) {
                (Step::Read { may_end: true, .. }, _) => true,
                (Step::Read { into: memory, .. } | Step::Write { from: memory, .. }, Ok(bytes)) => {
                    u64::from(bytes) == memory.bytes()
                }
                (_, outcome) => outcome.is_ok(),
            };
            match &*step {
                Step::Read { into: Memory::Sink, .. } => {}
                Step::Read { direct, .. } | Step::Write { direct, .. } => {
                    moved.add(outcome.unwrap_or(0), *direct, false);
                }
                _ => {}
            }
            is_cut = !is_whole && !chain.is_loose;
            chain.outcomes.push(outcome);
        }
    }

    fn take(&mut self, step: &mut Step, file: &mut Option<OwnedFd>) -> Outcome {
        let folder = |folder: Folder| self.folders.descriptor(folder);
        match step {
            Step::Open { folder: at, name, how } => {
                *file = Some(open(folder(*at), name, *how)?);
                Ok(0)
            }
            Step::Read { into, offset, .. } => {
                let file = file.as_ref().ok_or(Errno::BADF)?;
                let to = self.room(into);
                let read = retry_on_intr(|| pread(file, &mut *to, *offset))?;
                Ok(read as u32)
            }
            Step::Write { from, offset, .. } => {
                let file = file.as_ref().ok_or(Errno::BADF)?;
                let from = self.bytes(from);
                let written = retry_on_intr(|| pwrite(file, from, *offset))?;
                Ok(written as u32)
            }
            Step::Truncate { bytes } => {
                let file = file.as_ref().ok_or(Errno::BADF)?;
                ftruncate(file, *bytes).map(|()| 0)
            }
            Step::Sync => fdatasync(file.as_ref().ok_or(Errno::BADF)?).map(|()| 0),
            Step::Rename { from, to, replace } => {
                let (old, new) = (folder(from.0), folder(to.0));
                let renamed = match replace {
                    true => renameat(old, &*from.1, new, &*to.1),
                    false => renameat_with(old, &*from.1, new, &*to.1, RenameFlags::NOREPLACE),
                };
                renamed.map(|()| 0)
            }
            Step::Remove { folder: at, name } => {
                unlinkat(folder(*at), &**name, AtFlags::empty()).map(|()| 0)
            }
            Step::Look { folder: at, name, seen } => look(folder(*at), name, seen),
            Step::Close => {
                drop(file.take());
                Ok(0)
            }
        }
    }

    /// What is written to a file. Others may read it meanwhile: clients, and the digest.
    fn bytes<'a>(&'a self, memory: &'a Memory) -> &'a [u8] {
        match memory {
            Memory::Arena(span) => {
                let (start, bytes) = (self.window.address(*span), span.bytes() as usize);
                // SAFETY: the window keeps the arena mapped, and the ticket of this chain, which
                // has not ended, keeps everybody from writing to these bytes. They go to the
                // kernel only.
                unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) }
            }
            Memory::Blocks(blocks, bytes) => &blocks.bytes()[..*bytes],
            Memory::Sink => self.scratch.bytes(),
        }
    }

    /// Where a file is read to. Nobody else has it.
    fn room<'a>(&'a mut self, memory: &'a mut Memory) -> &'a mut [u8] {
        match memory {
            Memory::Arena(span) => {
                let (start, bytes) = (self.window.address(*span), span.bytes() as usize);
                // SAFETY: the window keeps the arena mapped, and the ticket of this chain, which
                // has not ended, keeps everybody else from these bytes: what is loaded is shown to
                // nobody before. They go to the kernel only.
                unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }
            }
            Memory::Blocks(blocks, bytes) => &mut blocks.bytes_mut()[..*bytes],
            Memory::Sink => self.scratch.bytes_mut(),
        }
    }
}

fn open(folder: BorrowedFd<'_>, name: &CStr, how: How) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(how.flags() as u32) | OFlags::CLOEXEC;
    retry_on_intr(|| openat(folder, name, flags, Mode::from_raw_mode(FILE_MODE)))
}

fn look(folder: BorrowedFd<'_>, name: &CStr, seen: &mut Seen) -> Outcome {
    let found =
        statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE | StatxFlags::SIZE)?;
    *seen = Seen::of(found.stx_mode, found.stx_size);
    Ok(0)
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("idle", &self.idle).finish_non_exhaustive()
    }
}
