//! Server-driven transfer: attaches engines' memory and copies between their blocks and L1, on
//! threads of its own: lanes for memory of the host, which sum blocks as well for whoever compares
//! them, and one thread for cards.
//!
//! Invariant: every attachment and every copy ordered ends once. Memory that is let go stays open
//! for copies that are under way and for no longer. The copies of one engine begin in order.

mod device;
mod lane;
mod sums;

pub use sums::{BLOCKS_MAX as SUM_BLOCKS_MAX, SumFault, SumTeller, Summed, Wanted};

use crate::arena::{Arena, Window};
use crate::ending::Ending;
use device::{Attaching, End, Told};
use kvtide_core::effect::{Outbox, PageCopy};
use kvtide_core::event::{AttachFault, Event};
use kvtide_core::front::paged::{Memory, Source};
use kvtide_core::limits::{BLOCKS_IN_FLIGHT_MAX, INSTANCES_MAX, PAGE_COPIES_MAX};
use kvtide_core::names::{Attachment, Device, Ticket};
use kvtide_core::pages::Pages;
use kvtide_gpu::host::pages::Segments;
use kvtide_lanes::lane::{Producer, lane};
use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use lane::{Attached, Copied, Order, Work};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sums::Sum;

/// The reactor's end of it.
pub struct Pager {
    window: Window,
    lanes_wanted: usize,
    /// Started with the first engine: a server without one has no threads for it.
    lanes: Vec<Producer<Work>>,
    /// Started with the first engine on a card.
    device: Option<(Sender<Told>, Ending)>,
    endings: Mailbox<End>,
    sender: Sender<End>,
    taken: Vec<End>,
    /// Endings to come.
    pending: usize,
    attached: BTreeMap<Attachment, Place>,
    /// Segments of all attachments.
    segments: usize,
    /// Bytes of the arena that have memory behind them.
    usable: u64,
    /// Each sum under way holds one of these.
    summing: Arc<()>,
}

/// Where an engine's memory is.
enum Place {
    Host(Arc<Attached>),
    Card,
}

impl Pager {
    /// `wake` is called when there is something to collect.
    pub fn new(window: Window, lanes: usize, wake: Arc<dyn Fn() + Send + Sync>) -> Pager {
        let (sender, endings) = mailbox(ENDINGS_MAX, move || wake());
        Pager {
            window,
            lanes_wanted: lanes.clamp(1, LANES_MAX),
            lanes: Vec::new(),
            device: None,
            endings,
            sender,
            taken: Vec::new(),
            pending: 0,
            attached: BTreeMap::new(),
            segments: 0,
            usable: 0,
            summing: Arc::new(()),
        }
    }

    pub fn set_lanes(&mut self, lanes: usize) {
        self.lanes_wanted = lanes.clamp(1, LANES_MAX);
    }

    /// The first `usable` bytes of the arena have memory behind them.
    pub fn grown(&mut self, usable: u64) {
        self.usable = usable;
        if let Some((device, _)) = &self.device {
            device.put(Told::Grown { bytes: usable }).ok();
        }
    }

    /// Opens what a registration brought, now or later.
    pub fn attach(
        &mut self,
        attachment: Attachment,
        memory: Option<Memory>,
        pages: Pages,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        let failed = match memory {
            Some(Memory::Segments(sources)) => {
                let outcome = self.open(attachment, &sources, pages);
                return tell(Event::AttachEnded { attachment, outcome });
            }
            Some(Memory::Device(sources)) if sources.len() == pages.tensors as usize => {
                let told = self.start_device().is_ok_and(|device| {
                    let attaching = Attaching { attachment, sources, pages };
                    device.put(Told::Attach(Box::new(attaching))).is_ok()
                });
                if told {
                    self.pending += 1;
                    self.attached.insert(attachment, Place::Card);
                    return;
                }
                AttachFault::Failed
            }
            // What it brought is gone, with the connection.
            _ => AttachFault::Failed,
        };
        tell(Event::AttachEnded { attachment, outcome: Err(failed) });
    }

    fn open(
        &mut self,
        attachment: Attachment,
        sources: &[Source],
        pages: Pages,
    ) -> Result<Device, AttachFault> {
        self.start_lanes().map_err(|_| AttachFault::Failed)?;
        if sources.len() != pages.tensors as usize {
            return Err(AttachFault::Failed);
        }
        let room = SEGMENTS_MAX - self.segments;
        let segments = Segments::open(sources, pages.tensor_bytes(), room)?;
        self.segments += segments.count();
        let attached = Attached { segments, pages, gone: AtomicBool::new(false) };
        self.attached.insert(attachment, Place::Host(Arc::new(attached)));
        Ok(Device::Host)
    }

    pub fn detach(&mut self, attachment: Attachment) {
        match self.attached.remove(&attachment).expect("detached once, after its ending") {
            Place::Host(attached) => {
                self.segments -= attached.segments.count();
                attached.gone.store(true, Ordering::Relaxed);
            }
            Place::Card => {
                let (device, _) = self.device.as_ref().expect("it has attached this");
                device.put(Told::Detach { attachment }).ok();
            }
        }
    }

    /// Sums blocks of an engine. `tell` is called once, on a lane or here, unless the server ends.
    pub fn sum(&mut self, attachment: Option<Attachment>, wanted: Wanted, tell: SumTeller) {
        let place = attachment.and_then(|name| Some((name, self.attached.get(&name)?)));
        let (attachment, attached) = match place {
            Some((attachment, Place::Host(attached))) => (attachment, attached.clone()),
            Some((_, Place::Card)) => return tell(Err(SumFault::Card)),
            None => return tell(Err(SumFault::Unknown)),
        };
        if let Err(fault) = wanted.check(&attached.pages) {
            return tell(Err(fault));
        }
        if Arc::strong_count(&self.summing) > sums::SUMS_MAX {
            return tell(Err(SumFault::Busy));
        }
        let at = self.lane_of(attachment);
        let sum = Sum::new(attached, wanted, tell, self.summing.clone());
        // Where a panic has ended the lane, `tell` is dropped, which says that there is no answer.
        drop(self.lanes[at].put(Work::Sum(Box::new(sum))));
    }

    fn lane_of(&self, attachment: Attachment) -> usize {
        attachment.0.index as usize % self.lanes.len()
    }

    pub fn copy(
        &mut self,
        (ticket, attachment, copy): (Ticket, Attachment, PageCopy),
        event: &[u8],
        orders: &Outbox,
        arena: &Arena,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        let objects = orders.slots(copy.slots).iter().map(|slot| {
            let place = slot.place.expect("what is copied has a place");
            (slot.chunk, arena.span(place).expect("the engine stays inside the arena"))
        });
        let order = Order {
            ticket,
            direction: copy.direction,
            objects: objects.collect(),
            blocks: orders.blocks(copy.blocks).into(),
            skip_tokens: copy.skip_tokens,
            event: event.into(),
        };
        let is_ordered = match self.attached.get(&attachment) {
            Some(Place::Host(attached)) => {
                let (at, attached) = (self.lane_of(attachment), attached.clone());
                self.lanes[at].put(Work::Copy(attached, order)).is_ok()
            }
            Some(Place::Card) => self.device.as_ref().is_some_and(|(device, _)| {
                device.put(Told::Copy { attachment, order: Box::new(order) }).is_ok()
            }),
            // It was let go in the same turn.
            None => false,
        };
        if is_ordered {
            self.pending += 1;
        } else {
            // Or only a panic can have ended the thread.
            tell(Event::CopyEnded { ticket, whole: false });
        }
    }

    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) {
        if self.pending == 0 {
            return;
        }
        // It is ours as long as we hold a sender.
        let _ = self.endings.take(&mut self.taken);
        self.pending -= self.taken.len();
        for end in self.taken.drain(..) {
            match end {
                End::Copied(Copied { ticket, whole }) => tell(Event::CopyEnded { ticket, whole }),
                End::Attached { attachment, outcome } => {
                    if outcome.is_err() {
                        self.attached.remove(&attachment);
                    }
                    tell(Event::AttachEnded { attachment, outcome });
                }
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pending == 0
    }

    fn start_lanes(&mut self) -> io::Result<()> {
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

    fn start_device(&mut self) -> io::Result<&Sender<Told>> {
        if self.device.is_none() {
            let ends = self.sender.clone();
            // There is room for as many endings as can be in flight.
            let tell = Box::new(move |end| drop(ends.put(end)));
            let (device, ending) = device::start(self.window.clone(), tell)?;
            device.put(Told::Grown { bytes: self.usable }).ok();
            self.device = Some((device, ending));
        }
        Ok(&self.device.as_ref().expect("started above").0)
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // A process that ends while a thread of it is inside the driver may crash there. A driver
        // that hangs is no reason not to end.
        if let Some((device, ending)) = &self.device {
            device.put(Told::End).ok();
            ending.within(END_TIME);
        }
    }
}

/// Orders with what they name, and what is attached with its descriptors.
pub fn memory_bytes_max() -> u64 {
    let queues = LANES_MAX * size_of::<Work>() * (PAGE_COPIES_MAX + sums::SUMS_MAX);
    let sums = sums::SUMS_MAX * sums::SUM_BYTES_MAX + LANES_MAX * sums::BUFFER_BYTES_MAX;
    let endings = 2 * size_of::<End>() * ENDINGS_MAX;
    let named = BLOCKS_IN_FLIGHT_MAX * lane::BYTES_PER_BLOCK;
    let attached = SEGMENTS_MAX * 64 + INSTANCES_MAX * 2 * size_of::<Attached>();
    (queues + sums + endings + named + attached) as u64
        + LANES_MAX as u64 * lane::RUNS_BYTES_MAX
        + device::MEMORY_BYTES_MAX
}

/// Threads that copy memory of the host (`--copy-lanes`).
pub const LANES_MAX: usize = 8;
/// Shared memory segments of all engines: each takes a descriptor.
const SEGMENTS_MAX: usize = 16_384;
const ENDINGS_MAX: usize = PAGE_COPIES_MAX + INSTANCES_MAX;
/// What letting go of cards may take at the end.
const END_TIME: Duration = Duration::from_secs(2);
