//! Server-driven transfer: attaches engines' memory and copies between their blocks and L1, on
//! threads of its own, which sum blocks as well for whoever compares them.
//!
//! Invariant: every attachment and every copy ordered ends once. Memory that is let go stays open
//! for copies that are under way and for no longer. The copies of one engine run in order.

mod lane;
mod sums;

pub use sums::{BLOCKS_MAX as SUM_BLOCKS_MAX, SumFault, SumTeller, Summed, Wanted};

use crate::arena::{Arena, Window};
use crate::ending::Ending;
use kvtide_core::effect::{Outbox, PageCopy};
use kvtide_core::event::{AttachFault, Event};
use kvtide_core::front::paged::Source;
use kvtide_core::limits::{BLOCKS_IN_FLIGHT_MAX, INSTANCES_MAX, PAGE_COPIES_MAX};
use kvtide_core::names::{Attachment, Ticket};
use kvtide_core::pages::Pages;
use kvtide_gpu::host::pages::Segments;
use kvtide_lanes::lane::{Producer, lane};
use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use lane::{Attached, Copied, Copy, Order};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sums::Sum;

/// The reactor's end of it.
pub struct Pager {
    window: Window,
    lanes_wanted: usize,
    /// Started with the first engine: a server without one has no threads for it.
    lanes: Vec<Producer<Order>>,
    endings: Mailbox<Copied>,
    sender: Sender<Copied>,
    taken: Vec<Copied>,
    pending: usize,
    attached: HashMap<Attachment, Arc<Attached>>,
    /// Segments of all attachments.
    segments: usize,
    /// Each sum under way holds one of these.
    summing: Arc<()>,
}

impl Pager {
    /// `wake` is called when there is something to collect.
    pub fn new(window: Window, lanes: usize, wake: Arc<dyn Fn() + Send + Sync>) -> Pager {
        let (sender, endings) = mailbox(PAGE_COPIES_MAX, move || wake());
        Pager {
            window,
            lanes_wanted: lanes.clamp(1, LANES_MAX),
            lanes: Vec::new(),
            endings,
            sender,
            taken: Vec::new(),
            pending: 0,
            attached: HashMap::new(),
            segments: 0,
            summing: Arc::new(()),
        }
    }

    pub fn set_lanes(&mut self, lanes: usize) {
        self.lanes_wanted = lanes.clamp(1, LANES_MAX);
    }

    /// Opens what a registration brought.
    pub fn attach(
        &mut self,
        attachment: Attachment,
        sources: &[Source],
        pages: Pages,
    ) -> Result<(), AttachFault> {
        self.start().map_err(|_| AttachFault::Failed)?;
        if sources.len() != pages.tensors as usize {
            // What it brought is gone, with the connection.
            return Err(AttachFault::Failed);
        }
        let room = SEGMENTS_MAX - self.segments;
        let segments = Segments::open(sources, pages.tensor_bytes(), room)?;
        self.segments += segments.count();
        let attached = Attached { segments, pages, gone: AtomicBool::new(false) };
        self.attached.insert(attachment, Arc::new(attached));
        Ok(())
    }

    pub fn detach(&mut self, attachment: Attachment) {
        let attached = self.attached.remove(&attachment).expect("detached once, after its ending");
        self.segments -= attached.segments.count();
        attached.gone.store(true, Ordering::Relaxed);
    }

    /// Sums blocks of an engine. `tell` is called once, on a lane or here, unless the server ends.
    pub fn sum(&mut self, attachment: Option<Attachment>, wanted: Wanted, tell: SumTeller) {
        let attached = attachment
            .and_then(|attachment| Some((attachment, self.attached.get(&attachment)?.clone())));
        let Some((attachment, attached)) = attached else { return tell(Err(SumFault::Unknown)) };
        if let Err(fault) = wanted.check(&attached.pages) {
            return tell(Err(fault));
        }
        if Arc::strong_count(&self.summing) > sums::SUMS_MAX {
            return tell(Err(SumFault::Busy));
        }
        let at = self.lane_of(attachment);
        let sum = Sum::new(attached, wanted, tell, self.summing.clone());
        // Where a panic has ended the lane, `tell` is dropped, which says that there is no answer.
        drop(self.lanes[at].put(Order::Sum(Box::new(sum))));
    }

    fn lane_of(&self, attachment: Attachment) -> usize {
        attachment.0.index as usize % self.lanes.len()
    }

    pub fn copy(
        &mut self,
        (ticket, attachment, copy): (Ticket, Attachment, PageCopy),
        orders: &Outbox,
        arena: &Arena,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        let Some(attached) = self.attached.get(&attachment).cloned() else {
            // It was let go in the same turn.
            return tell(Event::CopyEnded { ticket, whole: false });
        };
        let objects = orders.slots(copy.slots).iter().map(|slot| {
            let place = slot.place.expect("what is copied has a place");
            (slot.chunk, arena.span(place).expect("the engine stays inside the arena"))
        });
        let order = Order::Copy(Copy {
            ticket,
            attached,
            direction: copy.direction,
            objects: objects.collect(),
            blocks: orders.blocks(copy.blocks).into(),
            skip_tokens: copy.skip_tokens,
        });
        let at = self.lane_of(attachment);
        match self.lanes[at].put(order) {
            Ok(()) => self.pending += 1,
            // Only a panic can have ended the lane.
            Err(_) => tell(Event::CopyEnded { ticket, whole: false }),
        }
    }

    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) {
        if self.pending == 0 {
            return;
        }
        // It is ours as long as we hold a sender.
        let _ = self.endings.take(&mut self.taken);
        self.pending -= self.taken.len();
        for Copied { ticket, whole } in self.taken.drain(..) {
            tell(Event::CopyEnded { ticket, whole });
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pending == 0
    }

    fn start(&mut self) -> io::Result<()> {
        while self.lanes.len() < self.lanes_wanted {
            let (producer, consumer) = lane(PAGE_COPIES_MAX + sums::SUMS_MAX);
            let (window, endings) = (self.window.clone(), self.sender.clone());
            let name = format!("copy-{}", self.lanes.len());
            // It ends when nobody can give it orders any more; there is nothing to wait for.
            Ending::spawn(&name, move || lane::work(consumer, endings, &window))?;
            self.lanes.push(producer);
        }
        Ok(())
    }
}

/// Orders with what they name, and what is attached with its descriptors.
pub fn memory_bytes_max() -> u64 {
    let queues =
        (LANES_MAX * size_of::<Order>() + size_of::<Copied>()) * (PAGE_COPIES_MAX + sums::SUMS_MAX);
    let named = BLOCKS_IN_FLIGHT_MAX * lane::BYTES_PER_BLOCK;
    let attached = SEGMENTS_MAX * 64 + INSTANCES_MAX * 2 * size_of::<Attached>();
    let sums = sums::SUMS_MAX * sums::SUM_BYTES_MAX + LANES_MAX * sums::BUFFER_BYTES_MAX;
    (queues + named + attached + sums) as u64 + LANES_MAX as u64 * lane::RUNS_BYTES_MAX
}

/// Threads that copy (`--copy-lanes`).
pub const LANES_MAX: usize = 8;
/// Shared memory segments of all engines: each takes a descriptor.
const SEGMENTS_MAX: usize = 16_384;
