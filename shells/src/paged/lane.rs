//! A thread that copies: plans the runs of each object and has the kernel carry them out.

use super::device::End;
use super::sums::{Sum, Sums};
use crate::arena::{Span, Window};
use kvtide_core::effect::Direction;
use kvtide_core::limits::RUNS_PER_OBJECT_MAX;
use kvtide_core::names::Ticket;
use kvtide_core::pages::{Pages, Run};
use kvtide_gpu::host::pages::{Object, Segments};
use kvtide_lanes::lane::Consumer;
use kvtide_lanes::mailbox::Sender;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An engine's memory.
pub struct Attached {
    pub segments: Segments,
    pub pages: Pages,
    /// Let go: whoever still sums it stops.
    pub gone: AtomicBool,
}

/// What a lane is given to do.
pub enum Work {
    Copy(Arc<Attached>, Order),
    Sum(Box<Sum>),
}

/// One `Effect::Copy`.
pub struct Order {
    pub ticket: Ticket,
    pub direction: Direction,
    /// Position within the range, and place.
    pub objects: Box<[(u32, Span)]>,
    /// The same number of them for every object.
    pub blocks: Box<[u32]>,
    pub skip_tokens: u64,
    /// Handle of the event at which the engine's blocks are ready; memory of the host always is.
    pub event: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub ticket: Ticket,
    pub whole: bool,
}

pub fn work(mut given: Consumer<Work>, endings: Sender<End>, window: &Window) {
    let (mut taken, mut runs, mut sums) = (Vec::new(), Vec::new(), Sums::default());
    loop {
        let more = match sums.is_empty() {
            true => given.wait(&mut taken),
            false => given.take(&mut taken),
        };
        for work in taken.drain(..) {
            let (attached, order) = match work {
                Work::Copy(attached, order) => (attached, order),
                Work::Sum(sum) => {
                    sums.add(sum);
                    continue;
                }
            };
            let whole = order.carry_out(&attached, window, &mut runs);
            // There is room for as many endings as can be in flight; a reactor that is gone wants
            // none.
            if endings.put(End::Copied(Copied { ticket: order.ticket, whole })).is_err() {
                return;
            }
        }
        if !more {
            return;
        }
        // A little of it, so that copies do not wait for sums.
        sums.go_on();
    }
}

impl Order {
    /// Whether all of it got where it belongs.
    fn carry_out(&self, attached: &Attached, window: &Window, runs: &mut Vec<Run>) -> bool {
        let pages = &attached.pages;
        let each = pages.blocks_per_object() as usize;
        let mut blocks = self.blocks.chunks_exact(each);
        for (chunk, span) in &self.objects {
            let Some(blocks) = blocks.next() else { return false };
            runs.clear();
            let skip = pages.blocks_skipped(self.skip_tokens, *chunk);
            if pages.plan(blocks, skip, runs).is_err() {
                return false;
            }
            let object = Object { start: window.address(*span), bytes: span.bytes() };
            // SAFETY: the window keeps the arena mapped. The engine has pinned these bytes for this
            // ticket, which ends after the copy: until then nobody is lent them for writing, and
            // what is being stored is shown to nobody.
            if let Err(fault) = unsafe { attached.segments.copy(self.direction, runs, object) } {
                tracing::warn!("A copy of an engine's blocks failed: {fault}");
                return false;
            }
        }
        true
    }
}

/// A block has an id, and at least one is named for every object.
pub const BYTES_PER_BLOCK: usize = size_of::<u32>() + size_of::<(u32, Span)>();
/// The longest plan, in a list that doubles.
pub const RUNS_BYTES_MAX: u64 = 2 * RUNS_PER_OBJECT_MAX * size_of::<Run>() as u64;
