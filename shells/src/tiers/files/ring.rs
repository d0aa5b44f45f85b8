//! One io_uring for one tier: chains of steps become linked entries, completions become outcomes.
//!
//! The ring lives in the reactor's poll, with cooperative task work: deferred work would never wake
//! it. Invariants: every completion is consumed before it is looked at, so that none can block
//! those behind it (F45); a chain is submitted whole; all memory that the kernel was given stays
//! until its completion, or for good where the ring is given up before.

use super::STEPS_MAX;
use super::engine::{Chain, How, Moved, Outcome, Step};
use super::folders::{Folder, Folders};
use super::memory::{BLOCK_BYTES, Blocks, Memory};
pub use super::no_ring::NoRing;
use crate::arena::{Span, Window};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{DestinationSlot, Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use kvtide_core::limits::GROW_STEP_BYTES;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

pub struct Ring {
    ring: IoUring,
    window: Window,
    folders: Arc<Folders>,
    /// By place: what is under way on its file.
    flights: Vec<Option<Flight>>,
    /// Of the next chain, so that a completion cannot be taken for another's.
    generation: u32,
    /// Entries that were pushed and have not completed.
    in_flight: usize,
    /// What is read only to see whether it is there.
    sink: Blocks,
    buffers: Buffers,
    can_truncate: bool,
    moved: Moved,
}

/// How far the arena is registered.
#[derive(Clone, Copy, Debug)]
struct Buffers {
    /// Steps that are, from the first on.
    registered: usize,
    /// Why no more of them will be.
    refused: Option<Errno>,
}

#[derive(Debug)]
struct Flight {
    generation: u32,
    chain: Chain,
    outcomes: Vec<Option<Outcome>>,
    left: usize,
    /// Steps that move bytes of registered memory, a bit each.
    registered: u64,
}

impl Ring {
    /// A ring for so many chains at once.
    pub fn open(places: usize, window: Window, folders: Arc<Folders>) -> Result<Ring, NoRing> {
        let ring = Ring::set_up(places)?;
        let submitter = ring.submitter();
        if !ring.params().is_feature_linked_file() || !ring.params().is_feature_nodrop() {
            return Err(NoRing::Lacks("files that are opened in a chain"));
        }
        let mut known = Probe::new();
        submitter.register_probe(&mut known).map_err(|error| NoRing::Setup(errno(&error)))?;
        for (code, what) in [
            (opcode::OpenAt::CODE, "open"),
            (opcode::Statx::CODE, "statx"),
            (opcode::RenameAt::CODE, "rename"),
            (opcode::UnlinkAt::CODE, "unlink"),
            (opcode::AsyncCancel::CODE, "cancel"),
        ] {
            if !known.is_supported(code) {
                return Err(NoRing::Lacks(what));
            }
        }
        let places_u32 = places as u32;
        let files = submitter.register_files_sparse(places_u32);
        files.map_err(|error| NoRing::Setup(errno(&error)))?;
        let steps = window.mapped_bytes().div_ceil(GROW_STEP_BYTES);
        let refused = match u32::try_from(steps) {
            Ok(steps) => submitter.register_buffers_sparse(steps).err().map(|error| errno(&error)),
            Err(_) => Some(Errno::INVAL),
        };
        Ok(Ring {
            ring,
            window,
            folders,
            flights: (0..places).map(|_| None).collect(),
            generation: 0,
            in_flight: 0,
            sink: Blocks::new(BLOCK_BYTES),
            buffers: Buffers { registered: 0, refused },
            can_truncate: known.is_supported(opcode::Ftruncate::CODE),
            moved: Moved::default(),
        })
    }

    /// As large as its chains want it, or as memory allows (F44).
    fn set_up(places: usize) -> Result<IoUring, NoRing> {
        let wanted = (places * STEPS_PER_PLACE).next_power_of_two() as u32;
        let mut entries = wanted.max(ENTRIES_MIN);
        loop {
            let built = IoUring::builder()
                .setup_coop_taskrun()
                .setup_submit_all()
                .setup_clamp()
                .dontfork()
                .build(entries);
            match built.map_err(|error| errno(&error)) {
                Ok(ring) => return Ok(ring),
                Err(Errno::NOMEM) if entries > ENTRIES_MIN => entries /= 2,
                // Cooperative task work and submitting all came last.
                Err(Errno::INVAL) => return Err(NoRing::Lacks("cooperative task work")),
                Err(error) => return Err(NoRing::Setup(error)),
            }
        }
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.ring.as_raw_fd()), token, Interest::READABLE)
    }

    /// So many threads of the system may wait for devices on behalf of this thread's rings.
    pub fn limit_workers(&self, threads: u32) {
        // A kernel that does not know limits has the one it was built with.
        self.ring.submitter().register_iowq_max_workers(&mut [threads, threads]).ok();
    }

    /// Registers one more step of the arena, of which `usable` bytes have memory behind them. True
    /// where there is another one for the next turn.
    pub fn register_step(&mut self, usable: u64) -> Result<bool, Errno> {
        let end = |step: usize| {
            let end = (step as u64 + 1) * GROW_STEP_BYTES;
            end.min(self.window.mapped_bytes())
        };
        let step = self.buffers.registered;
        let start = step as u64 * GROW_STEP_BYTES;
        if self.buffers.refused.is_some() || start >= end(step) || end(step) > usable {
            return Ok(false);
        }
        let whole = self.window.whole(usable).part(start, end(step) - start);
        let vector = libc::iovec {
            iov_base: self.window.address(whole).as_ptr().cast(),
            iov_len: whole.bytes() as usize,
        };
        let submitter = self.ring.submitter();
        // SAFETY: the step lies in the arena's mapping, of which this ring holds a share for as
        // long as it, or anything that it has begun, lives.
        let registered = unsafe { submitter.register_buffers_update(step as u32, &[vector], None) };
        if let Err(error) = registered {
            let error = errno(&error);
            self.buffers.refused = Some(error);
            return Err(error);
        }
        self.buffers.registered += 1;
        Ok(end(step) < usable)
    }

    /// Whether so many bytes of the arena are all registered.
    pub fn has_registered(&self, usable: u64) -> bool {
        let bytes = self.buffers.registered as u64 * GROW_STEP_BYTES;
        bytes >= usable.min(self.window.mapped_bytes()) && self.buffers.refused.is_none()
    }

    pub fn refused_buffers(&self) -> Option<Errno> {
        self.buffers.refused
    }

    pub fn can_truncate(&self) -> bool {
        self.can_truncate
    }

    pub fn moved(&self) -> Moved {
        self.moved
    }

    pub fn forget_moved(&mut self) {
        self.moved = Moved::default();
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Hands over what waits where the queue has no room otherwise. The kernel may refuse that for
    /// want of memory; then there is none.
    pub fn has_room(&mut self, steps: usize) -> bool {
        if self.in_flight + steps > self.ring.params().cq_entries() as usize {
            return false;
        }
        if !self.has_queue_for(steps) {
            self.flush();
        }
        self.has_queue_for(steps)
    }

    fn has_queue_for(&mut self, steps: usize) -> bool {
        let queue = self.ring.submission();
        queue.capacity() - queue.len() >= steps
    }

    pub fn begin(&mut self, place: usize, chain: Chain) {
        assert!(self.flights[place].is_none(), "a place has one chain at a time");
        let steps = chain.steps.len();
        assert!(self.has_room(steps), "who begins a chain has asked for room");
        self.generation = self.generation.wrapping_add(1);
        let outcomes = vec![None; steps];
        let generation = self.generation;
        let flight = Flight { generation, chain, outcomes, left: steps, registered: 0 };
        // The memory of its steps is in boxes and behind counted references, so it stays where it
        // is while the flight moves into its place.
        let flight = self.flights[place].insert(flight);
        let mut entries: Vec<Entry> = Vec::with_capacity(steps);
        let context =
            Context { window: &self.window, folders: &self.folders, buffers: self.buffers, place };
        for (at, step) in flight.chain.steps.iter_mut().enumerate() {
            let link = match step {
                _ if flight.chain.is_loose || at + 1 == steps => Flags::empty(),
                Step::Read { may_end: true, .. } => Flags::IO_HARDLINK,
                _ => Flags::IO_LINK,
            };
            let (entry, is_registered) = context.entry(step, &mut self.sink);
            let entry = entry.flags(link);
            flight.registered |= u64::from(is_registered) << at;
            entries.push(entry.user_data(user_data(generation, place, at)));
        }
        // SAFETY: all memory that the entries name is of the arena, which the ring's window keeps
        // mapped and the chain's ticket keeps from others, of the flight, which stays until its
        // last completion, or the sink's.
        let pushed = unsafe { self.ring.submission().push_multiple(&entries) };
        pushed.expect("there is room in the queue");
        self.in_flight += steps;
    }

    pub fn cancel(&mut self, place: usize) {
        self.flush();
        let Some(flight) = &self.flights[place] else { return };
        let generation = flight.generation;
        let open: Vec<usize> =
            (0..flight.outcomes.len()).filter(|at| flight.outcomes[*at].is_none()).collect();
        for at in open {
            if !self.has_queue_for(1) {
                self.flush();
            }
            if !self.has_queue_for(1) {
                // The kernel takes nothing just now; what runs goes on to its end.
                return;
            }
            let entry = opcode::AsyncCancel::new(user_data(generation, place, at)).build();
            // SAFETY: the entry names no memory.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(CANCELLATION)) };
            pushed.expect("there is room in the queue");
        }
        self.flush();
    }

    /// False where the kernel took less than there is, for want of memory: it is tried again.
    pub fn flush(&mut self) -> bool {
        let queue = self.ring.submission();
        // Completions for which there was no room are brought only by asking for them. Answers to
        // cancellations can make them so many.
        if queue.is_empty() && !queue.cq_overflow() {
            return true;
        }
        drop(queue);
        // Whatever is wrong with one entry is told by its completion; an error here means that
        // nothing was taken.
        let taken = self.ring.submit();
        taken.is_ok() && self.ring.submission().is_empty()
    }

    pub fn collect(&mut self, back: &mut Vec<(usize, Chain)>) {
        // Beyond what the queue holds the kernel keeps them, and the next look brings those.
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            if entry.user_data() != CANCELLATION {
                self.complete(entry.user_data(), entry.result(), back);
            }
        }
    }

    fn complete(&mut self, name: u64, result: i32, back: &mut Vec<(usize, Chain)>) {
        self.in_flight -= 1;
        let (generation, place, at) = parts(name);
        let flight = self.flights[place].as_mut();
        let flight = flight.expect("a flight stays until its last completion");
        assert!(flight.generation == generation, "a place has one chain at a time");
        let outcome = match u32::try_from(result) {
            Ok(value) => Ok(value),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        assert!(flight.outcomes[at].replace(outcome).is_none(), "a step completes once");
        match (&flight.chain.steps[at], outcome) {
            (Step::Read { into: Memory::Sink, .. }, _) => {}
            (Step::Read { direct, .. } | Step::Write { direct, .. }, Ok(bytes)) => {
                self.moved.add(bytes, *direct, flight.registered >> at & 1 == 1);
            }
            _ => {}
        }
        flight.left -= 1;
        if flight.left == 0 {
            let Flight { mut chain, outcomes, .. } =
                self.flights[place].take().expect("it was just there");
            let outcomes = outcomes.into_iter().map(|outcome| outcome.expect("none is left"));
            chain.outcomes = outcomes.collect();
            back.push((place, chain));
        }
    }

    pub fn wait(&mut self, at_most: Duration) {
        let time = Timespec::from(at_most);
        let args = SubmitArgs::new().timespec(&time);
        // Whoever waits looks again, whether or not there is something.
        self.ring.submitter().submit_with_args(1, &args).ok();
    }
}

impl Buffers {
    /// Under which number all of a span is registered.
    fn of(self, span: Span) -> Option<u16> {
        let first = span.offset() / GROW_STEP_BYTES;
        let last = (span.offset() + span.bytes().max(1) - 1) / GROW_STEP_BYTES;
        let known = first == last && first < self.registered as u64;
        known.then_some(first).and_then(|step| u16::try_from(step).ok())
    }
}

/// What turns a step into an entry.
struct Context<'a> {
    window: &'a Window,
    folders: &'a Folders,
    buffers: Buffers,
    place: usize,
}

impl Context<'_> {
    /// And whether it moves bytes of registered memory.
    fn entry(&self, step: &mut Step, sink: &mut Blocks) -> (Entry, bool) {
        let file = Fixed(self.place as u32);
        let folder = |folder: Folder| Fd(self.folders.raw(folder));
        let entry = match step {
            Step::Open { folder: at, name, how } => {
                let slot = DestinationSlot::try_from_slot_target(self.place as u32);
                let slot = slot.expect("places are fewer than the kernel's files");
                opcode::OpenAt::new(folder(*at), name.as_ptr())
                    .file_index(Some(slot))
                    .flags(how.flags())
                    .mode(FILE_MODE)
                    .build()
            }
            Step::Read { into, offset, .. } => {
                let (start, bytes, buffer) = self.memory(into, sink);
                return match buffer {
                    Some(buffer) => {
                        let read = opcode::ReadFixed::new(file, start, bytes, buffer);
                        (read.offset(*offset).build(), true)
                    }
                    None => (opcode::Read::new(file, start, bytes).offset(*offset).build(), false),
                };
            }
            Step::Write { from, offset, .. } => {
                let (start, bytes, buffer) = self.memory(from, sink);
                return match buffer {
                    Some(buffer) => {
                        let write = opcode::WriteFixed::new(file, start, bytes, buffer);
                        (write.offset(*offset).build(), true)
                    }
                    None => (opcode::Write::new(file, start, bytes).offset(*offset).build(), false),
                };
            }
            Step::Truncate { bytes } => opcode::Ftruncate::new(file, *bytes).build(),
            Step::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Step::Rename { from, to, replace } => {
                let flags = if *replace { 0 } else { libc::RENAME_NOREPLACE };
                let (old, new) = (folder(from.0), folder(to.0));
                let (from, to) = (from.1.as_ptr(), to.1.as_ptr());
                opcode::RenameAt::new(old, from, new, to).flags(flags).build()
            }
            Step::Remove { folder: at, name } => {
                opcode::UnlinkAt::new(folder(*at), name.as_ptr()).build()
            }
            Step::Look { folder: at, name, seen } => {
                let seen = (&raw mut seen.0).cast();
                opcode::Statx::new(folder(*at), name.as_ptr(), seen)
                    .flags(libc::AT_SYMLINK_NOFOLLOW)
                    .mask(libc::STATX_TYPE | libc::STATX_SIZE)
                    .build()
            }
            Step::Close => opcode::Close::new(file).build(),
        };
        (entry, false)
    }

    fn memory(&self, memory: &mut Memory, sink: &mut Blocks) -> (*mut u8, u32, Option<u16>) {
        let bytes = u32::try_from(memory.bytes()).expect("transfers are of a few MiB");
        match memory {
            Memory::Arena(span) => {
                (self.window.address(*span).as_ptr(), bytes, self.buffers.of(*span))
            }
            Memory::Blocks(blocks, _) => (blocks.bytes_mut().as_mut_ptr(), bytes, None),
            Memory::Sink => (sink.bytes_mut().as_mut_ptr(), bytes, None),
        }
    }
}

impl How {
    /// What lies under the name may be a link, which is not followed: only files are objects.
    /// Without `O_CLOEXEC`: files of a ring are nobody's descriptors.
    pub(super) fn flags(self) -> i32 {
        let (mode, direct) = match self {
            How::Read { direct } => (libc::O_RDONLY | libc::O_NOFOLLOW, direct),
            How::Create { direct } => (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, direct),
        };
        mode | if direct { libc::O_DIRECT } else { 0 }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // A device does not answer. The kernel may still be at work on these bytes, so they
            // stay for as long as the process does.
            let flights = std::mem::take(&mut self.flights);
            let sink = std::mem::replace(&mut self.sink, Blocks::new(0));
            std::mem::forget((flights, sink, self.window.clone(), self.folders.clone()));
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.in_flight)
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}

/// A completion's name: which chain, at which place, which of its steps.
fn user_data(generation: u32, place: usize, at: usize) -> u64 {
    assert!(at < 64 && place < 1 << 16, "a chain has few steps and a tier few places");
    u64::from(generation) << 32 | (place as u64) << 8 | at as u64
}

fn parts(name: u64) -> (u32, usize, usize) {
    ((name >> 32) as u32, (name >> 8 & 0xffff) as usize, (name & 0xff) as usize)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Bits 24 to 31 are never set in a name.
const CANCELLATION: u64 = u64::MAX;
/// Entries that one place wants at once, about: open, two transfers, cut, sync, rename, close.
const STEPS_PER_PLACE: usize = 8;
/// The smallest ring that is worth having: the longest chain fits into it.
const ENTRIES_MIN: u32 = 64;
const _: () = assert!(STEPS_MAX <= ENTRIES_MIN as usize, "no chain waits for ever");
pub(super) const FILE_MODE: libc::mode_t = 0o644;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    /// Broke: where the kernel took nothing, for want of memory, the queue ran full and the next
    /// chain ended the server. Guards: there is no room then, and there is no more to it.
    #[test]
    fn a_kernel_that_takes_nothing_leaves_no_room() {
        let folder = std::env::temp_dir().join(format!("kvtide-ring-{}", std::process::id()));
        let folders = Arc::new(Folders::open(&folder, None).expect("a folder can be made"));
        let (arena, _grower) = Arena::private(1 << 20).expect("a megabyte can be mapped");
        let window = arena.window().expect("private memory has no file");
        let places = 64;
        let Ok(mut ring) = Ring::open(places, window, folders) else { return };
        // No ring is behind this any more, so nothing that is handed over is taken.
        let null = std::fs::File::open("/dev/null").expect("it is there");
        // SAFETY: the descriptor is the ring's own, which nobody but this ring uses.
        let replaced = unsafe { libc::dup2(null.as_raw_fd(), ring.ring.as_raw_fd()) };
        assert_eq!(replaced, ring.ring.as_raw_fd());
        let look =
            || Step::Look { folder: Folder::Base, name: c"nothing".into(), seen: Box::default() };
        let mut begun = 0;
        while begun < places && ring.has_room(STEPS_MAX) {
            ring.begin(begun, Chain::loose((0..STEPS_MAX).map(|_| look()).collect()));
            begun += 1;
        }
        assert!((1..places).contains(&begun), "{begun}");
        assert!(!ring.flush());
        ring.cancel(0);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn names_of_completions_read_back() {
        for name in [(0, 0, 0), (u32::MAX, 65_535, 63), (7, 31, 3)] {
            let data = user_data(name.0, name.1, name.2);
            assert_eq!(parts(data), name);
            assert_ne!(data, CANCELLATION);
        }
    }
}
