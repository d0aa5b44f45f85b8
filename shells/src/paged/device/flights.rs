//! What is in flight for one engine: orders, cut into parts that the driver takes at once.

use super::cards::Cards;
use super::{End, Tell};
use crate::paged::lane::{Copied, Order};
use kvtide_core::effect::Direction;
use kvtide_core::names::Ticket;
use kvtide_core::pages::{Pages, Run, Shape};
use kvtide_gpu::cuda::{self, Instance, Outcome, Pinned, Refused, Rows, Work};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

pub struct Flights {
    instance: Instance,
    pinned: Arc<Pinned>,
    pages: Pages,
    /// Where each tensor begins within its storage.
    starts: Vec<u64>,
    orders: BTreeMap<Ticket, Pending>,
    /// Whose order a part is of.
    parts: BTreeMap<u64, Ticket>,
    /// Orders with something to be queued, the oldest first.
    waiting: VecDeque<Ticket>,
    plan: Plan,
}

struct Pending {
    order: Order,
    /// Objects that have been given to the driver.
    queued: usize,
    /// Parts that are in flight.
    flying: usize,
    /// One was queued behind the engine's event, and those after it lie behind that one.
    behind_event: bool,
    failed: bool,
}

/// Lists that are kept from one part to the next.
#[derive(Default)]
struct Plan {
    runs: Vec<Run>,
    flat: Vec<cuda::Run>,
    rows: Vec<Rows>,
}

impl Flights {
    pub fn new(instance: Instance, pinned: Arc<Pinned>, pages: Pages, starts: Vec<u64>) -> Flights {
        Flights {
            instance,
            pinned,
            pages,
            starts,
            orders: BTreeMap::new(),
            parts: BTreeMap::new(),
            waiting: VecDeque::new(),
            plan: Plan::default(),
        }
    }

    /// Orders that have not ended.
    pub fn in_flight(&self) -> usize {
        self.orders.len()
    }

    /// Whether it can be let go without waiting for anything.
    pub fn is_idle(&self) -> bool {
        self.orders.is_empty() && self.instance.is_idle()
    }

    pub fn begin(&mut self, order: Order, cards: &mut Cards, tell: &Tell) {
        let ticket = order.ticket;
        self.waiting.push_back(ticket);
        let pending = Pending { order, queued: 0, flying: 0, behind_event: false, failed: false };
        self.orders.insert(ticket, pending);
        self.go_on(cards, tell);
    }

    /// The copies of a part are done. False where it is not of this engine.
    pub fn done(&mut self, part: u64, cards: &mut Cards, tell: &Tell) -> bool {
        if !self.parts.contains_key(&part) {
            return false;
        }
        if let Some(outcome) = self.instance.end(part) {
            self.ended(part, outcome, tell);
        }
        self.go_on(cards, tell);
        true
    }

    /// Looks for parts that nobody will call back for.
    pub fn look_around(&mut self, cards: &mut Cards, tell: &Tell) {
        if self.orders.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        self.instance.poll(&mut ended);
        for (part, outcome) in ended {
            self.ended(part, outcome, tell);
        }
        self.go_on(cards, tell);
    }

    fn ended(&mut self, part: u64, outcome: Outcome, tell: &Tell) {
        let ticket = self.parts.remove(&part).expect("a part ends once");
        let pending = self.orders.get_mut(&ticket).expect("an order ends after its parts");
        pending.flying -= 1;
        if let Outcome::Failed(failed) = outcome {
            tracing::warn!("A copy of an engine's blocks failed: {failed}");
            pending.failed = true;
        }
        self.settle(ticket, tell);
    }

    /// Ends an order that has nothing in flight and nothing left to do.
    fn settle(&mut self, ticket: Ticket, tell: &Tell) {
        let pending = self.orders.get(&ticket).expect("settled while it exists");
        let is_through = pending.failed || pending.queued == pending.order.objects.len();
        if pending.flying == 0 && is_through {
            let whole = !pending.failed;
            self.orders.remove(&ticket);
            self.waiting.retain(|waiting| *waiting != ticket);
            tell(End::Copied(Copied { ticket, whole }));
        }
    }

    /// Queues what the driver takes. An engine's orders are queued in the order they came.
    fn go_on(&mut self, cards: &mut Cards, tell: &Tell) {
        while let Some(ticket) = self.waiting.front().copied() {
            if self.parts.len() == PARTS_MAX {
                return;
            }
            let pending = self.orders.get(&ticket).expect("an order that waits exists");
            if pending.failed || pending.queued == pending.order.objects.len() {
                self.waiting.pop_front();
                self.settle(ticket, tell);
                continue;
            }
            match self.queue_part(ticket, cards) {
                Ok(()) => {}
                // What is in flight makes room by its end.
                Err(Refused::Full) if !self.parts.is_empty() => return,
                Err(refused) => {
                    tracing::warn!("A copy of an engine's blocks is refused: {refused}");
                    self.orders.get_mut(&ticket).expect("found above").failed = true;
                }
            }
        }
    }

    /// Queues the next objects of an order, as many as make one part.
    fn queue_part(&mut self, ticket: Ticket, cards: &mut Cards) -> Result<(), Refused> {
        let pending = self.orders.get_mut(&ticket).expect("called while it exists");
        let order = &pending.order;
        let objects = self.plan.fill(&self.pages, &self.starts, order, pending.queued);
        let objects = objects.ok_or(Refused::NoRegion { index: 0 })?;
        let end =
            objects.clone().map(|at| order.objects[at].1).map(|span| span.offset() + span.bytes());
        let end = end.max().unwrap_or_default();
        // What is not registered yet is, now that it is wanted.
        if end > self.pinned.bytes() {
            let wanted = cards.slices_to(end);
            self.pinned.grow(wanted as usize)?;
        }
        let part = cards.next_part();
        let work = Work { runs: &self.plan.flat, rows: &self.plan.rows };
        if work.runs.is_empty() && work.rows.is_empty() {
            // All of it is there already.
            pending.queued = objects.end;
            return Ok(());
        }
        let direction = match order.direction {
            Direction::Store => cuda::Direction::Store,
            Direction::Retrieve => cuda::Direction::Load,
        };
        let event: &[u8] = if pending.behind_event { &[] } else { &order.event };
        self.instance.submit(part, direction, event, &work)?;
        pending.behind_event = true;
        pending.queued = objects.end;
        pending.flying += 1;
        self.parts.insert(part, ticket);
        Ok(())
    }
}

impl Plan {
    /// Plans the objects from `from` on, as many as make one part. None where a block is not there.
    fn fill(
        &mut self,
        pages: &Pages,
        starts: &[u64],
        order: &Order,
        from: usize,
    ) -> Option<Range<usize>> {
        self.flat.clear();
        self.rows.clear();
        let each = pages.blocks_per_object() as usize;
        let heads = if pages.format.heads_first() { pages.heads as usize } else { 1 };
        let copies_max = pages.runs_max() as usize * heads;
        let mut end = from;
        while end < order.objects.len() {
            let copies = self.flat.len() + self.rows.len();
            if end > from && copies + copies_max > COPIES_PER_PART {
                break;
            }
            let (chunk, span) = order.objects[end];
            let blocks = order.blocks.get(end * each..(end + 1) * each)?;
            self.runs.clear();
            let skip = pages.blocks_skipped(order.skip_tokens, chunk);
            pages.plan(blocks, skip, &mut self.runs).ok()?;
            for run in &self.runs {
                let offset = starts.get(run.tensor as usize)? + run.page;
                let (region, host, bytes) = (run.tensor, span.offset() + run.object, run.bytes);
                match run.shape {
                    Shape::Flat => self.flat.push(cuda::Run { region, offset, host, bytes }),
                    Shape::Heads { heads, slots, row_bytes } => {
                        let (row_bytes, rows) = (u64::from(row_bytes), u64::from(slots));
                        self.rows.extend((0..u64::from(heads)).map(|head| Rows {
                            region,
                            offset: offset + head * rows * row_bytes,
                            host: host + head * row_bytes,
                            row_bytes,
                            rows,
                            device_pitch: row_bytes,
                            host_pitch: u64::from(heads) * row_bytes,
                        }));
                    }
                }
            }
            end += 1;
        }
        Some(from..end)
    }
}

/// Parts of one engine that are in flight: while some are copied, others wait behind them.
pub const PARTS_MAX: usize = 8;
/// Events of one engine: for every part in flight, and for the last one of each direction, which is
/// told of a moment before its event is recorded.
pub const EVENTS: usize = PARTS_MAX + 2;
/// Copies that are given to the driver at once, or else those of one object.
const COPIES_PER_PART: usize = 4096;
