//! `mock`: a tier in the memory of this process that is as slow as the device it stands for. It
//! serves trials and tests: what it holds is gone with the process.
//!
//! The one invariant: an order ends when all bytes ordered before it, and its own, have had the
//! time that the bandwidth gives them. Nobody sleeps for that: `deadline` says when to look.

use super::Order;
use super::files::status::TierStatus;
use super::spec::MockSpec;
use crate::arena::{Span, Window};
use crc32fast::Hasher;
use kvtide_core::effect::Note;
use kvtide_core::event::{DeleteOutcome, Event, Found, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::format::names::ObjectName;
use kvtide_core::limits::DISK_BYTES_PER_TURN;
use kvtide_core::names::{AdapterId, Ticket};
use kvtide_core::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

pub struct MockTier {
    window: Window,
    bytes_per_second: u64,
    capacity_bytes: u64,
    /// By native name.
    objects: BTreeMap<String, Box<[u8]>>,
    used_bytes: u64,
    /// Of stores that are on their way.
    promised_bytes: u64,
    orders: VecDeque<Pending>,
    /// When the last byte that was ordered will have passed.
    busy_until: Instant,
    /// What it has been told last of the time.
    now: Instant,
    joined: Option<AdapterId>,
    moved_bytes: u64,
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    at: Instant,
    task: Task,
    is_cancelled: bool,
}

#[derive(Debug)]
enum Task {
    Probe(Vec<String>),
    Store { name: String, span: Span, promised: u64 },
    Load { name: String, span: Span },
    Delete { name: String },
    Scrub { name: String },
}

impl fmt::Debug for MockTier {
    /// Without its payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MockTier");
        shown.field("objects", &self.objects.len()).field("orders", &self.orders);
        shown.finish_non_exhaustive()
    }
}

impl MockTier {
    pub fn new(spec: MockSpec, capacity_bytes: u64, window: Window) -> MockTier {
        MockTier {
            window,
            bytes_per_second: spec.bytes_per_second.max(1),
            capacity_bytes,
            objects: BTreeMap::new(),
            used_bytes: 0,
            promised_bytes: 0,
            orders: VecDeque::new(),
            busy_until: Instant::ZERO,
            now: Instant::ZERO,
            joined: None,
            moved_bytes: 0,
        }
    }

    pub fn probe<'a>(&mut self, ticket: Ticket, names: impl Iterator<Item = ObjectName<'a>>) {
        let names = names.map(|name| native(&name)).collect();
        self.queue(ticket, self.now, 0, Task::Probe(names));
    }

    pub fn store(&mut self, order: Order<'_>, span: Span) {
        let (name, bytes) = (native(order.name), span.bytes());
        let held = self.used_bytes + self.promised_bytes;
        // What is full says so at once, and takes no time of those who are served.
        let fits = held.checked_add(bytes).is_some_and(|all| all <= self.capacity_bytes);
        let promised = if fits { bytes } else { 0 };
        self.promised_bytes += promised;
        let task = Task::Store { name, span, promised };
        self.queue(order.ticket, order.now, promised, task);
    }

    pub fn load(&mut self, order: Order<'_>, span: Span) {
        let name = native(order.name);
        let bytes = self.objects.get(&name).map_or(0, |object| object.len() as u64);
        self.queue(order.ticket, order.now, bytes, Task::Load { name, span });
    }

    /// Nobody looks into memory that was put aside: it goes as well.
    pub fn delete(&mut self, order: Order<'_>, _quarantine: bool) {
        let name = native(order.name);
        self.queue(order.ticket, order.now, 0, Task::Delete { name });
    }

    pub fn scrub(&mut self, order: Order<'_>, bytes: u64) {
        let name = native(order.name);
        self.queue(order.ticket, order.now, bytes, Task::Scrub { name });
    }

    /// It ends with the next look, without an effect. The time that was meant for it passes.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(order) = self.orders.iter_mut().find(|order| order.ticket == ticket) {
            order.is_cancelled = true;
        }
    }

    /// It keeps no index.
    pub fn note(&mut self, _name: &ObjectName<'_>, _note: Note) {}

    /// Nothing lies in it when it joins.
    pub fn added(&mut self, adapter: AdapterId) {
        self.joined = Some(adapter);
    }

    pub fn collect(&mut self, now: Instant, tell: &mut dyn FnMut(Event<'_>)) {
        self.now = now;
        if let Some(adapter) = self.joined.take() {
            tell(Event::AdapterScanEnded { adapter });
        }
        let mut budget = DISK_BYTES_PER_TURN;
        for place in (0..self.orders.len()).rev() {
            if self.orders[place].is_cancelled
                && let Some(order) = self.orders.remove(place)
            {
                self.cancelled(order, tell);
            }
        }
        while budget > 0
            && self.orders.front().is_some_and(|order| order.at <= now)
            && let Some(order) = self.orders.pop_front()
        {
            let before = self.moved_bytes;
            self.end(order, tell);
            budget = budget.saturating_sub(self.moved_bytes - before);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        if self.joined.is_some() || self.orders.iter().any(|order| order.is_cancelled) {
            return Some(self.now);
        }
        self.orders.front().map(|order| order.at)
    }

    pub fn is_idle(&self) -> bool {
        self.orders.is_empty()
    }

    pub fn status(&self) -> TierStatus {
        TierStatus {
            engine: "memory",
            reason: "a mock has no device".to_owned(),
            orders: self.orders.len() as u64,
            buffered_bytes: self.moved_bytes,
            ..TierStatus::default()
        }
    }

    fn queue(&mut self, ticket: Ticket, now: Instant, bytes: u64, task: Task) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.busy_until = self.busy_until.max(now) + took;
        self.orders.push_back(Pending { ticket, at: self.busy_until, task, is_cancelled: false });
    }

    fn cancelled(&mut self, order: Pending, tell: &mut dyn FnMut(Event<'_>)) {
        let ticket = order.ticket;
        let fault = TierFault::Cancelled;
        tell(match order.task {
            Task::Probe(_) => Event::ProbeEnded { ticket, found: None },
            Task::Store { promised, .. } => {
                self.promised_bytes -= promised;
                Event::StoreEnded { ticket, outcome: StoreOutcome::Failed(fault) }
            }
            Task::Load { .. } => Event::LoadEnded { ticket, outcome: LoadOutcome::Failed(fault) },
            Task::Delete { .. } => {
                Event::DeleteEnded { ticket, outcome: DeleteOutcome::Failed(fault) }
            }
            Task::Scrub { .. } => Event::ScrubEnded { ticket, digest: None },
        });
    }

    fn end(&mut self, order: Pending, tell: &mut dyn FnMut(Event<'_>)) {
        let ticket = order.ticket;
        match order.task {
            Task::Probe(names) => {
                let bytes =
                    |name| self.objects.get(name).map(|object| Found::of(object.len() as u64));
                let found: Vec<Option<Found>> = names.iter().map(bytes).collect();
                tell(Event::ProbeEnded { ticket, found: Some(&found) });
            }
            Task::Store { name, span, promised } => {
                self.promised_bytes -= promised;
                let outcome = self.put(name, span, promised);
                tell(Event::StoreEnded { ticket, outcome });
            }
            Task::Load { name, span } => {
                let outcome = self.copy(&name, span);
                tell(Event::LoadEnded { ticket, outcome });
            }
            Task::Delete { name } => {
                let outcome = match self.objects.remove(&name) {
                    Some(object) => {
                        self.used_bytes -= object.len() as u64;
                        DeleteOutcome::Deleted
                    }
                    None => DeleteOutcome::Absent,
                };
                tell(Event::DeleteEnded { ticket, outcome });
            }
            Task::Scrub { name } => {
                let digest = self.objects.get(&name).map(|object| {
                    let mut hasher = Hasher::new();
                    hasher.update(name.as_bytes());
                    hasher.update(object);
                    hasher.finalize()
                });
                tell(Event::ScrubEnded { ticket, digest });
            }
        }
    }

    fn put(&mut self, name: String, span: Span, promised: u64) -> StoreOutcome {
        if let Some(object) = self.objects.get(&name) {
            return StoreOutcome::Present { bytes: object.len() as u64 };
        }
        if promised != span.bytes() {
            return StoreOutcome::Failed(TierFault::NoSpace);
        }
        let mut object = vec![0; span.bytes() as usize].into_boxed_slice();
        if self.window.copy_out(span, &mut object).is_err() {
            return StoreOutcome::Failed(TierFault::Io);
        }
        self.used_bytes += span.bytes();
        self.moved_bytes += span.bytes();
        self.objects.insert(name, object);
        StoreOutcome::Stored
    }

    fn copy(&mut self, name: &str, span: Span) -> LoadOutcome {
        let Some(object) = self.objects.get(name) else { return LoadOutcome::Absent };
        if object.len() as u64 != span.bytes() {
            return LoadOutcome::OtherSize { bytes: object.len() as u64 };
        }
        self.moved_bytes += span.bytes();
        match self.window.copy_in(span, object) {
            Ok(()) => LoadOutcome::Loaded,
            Err(_) => LoadOutcome::Failed(TierFault::Io),
        }
    }
}

/// The rules of keys leave none without a native name.
pub(super) fn native(name: &ObjectName<'_>) -> String {
    name.native().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Tier;
    use crate::tiers::bench::{Bench, Ended, OBJECT_BYTES, collect, name, order, ticket};

    /// A page takes a millisecond.
    const SPEC: MockSpec = MockSpec { bytes_per_second: 1000 * OBJECT_BYTES };

    fn mock(bench: &Bench, objects: u64) -> Tier {
        let tier = MockTier::new(SPEC, objects * OBJECT_BYTES, bench.window.clone());
        Tier::Mock(Box::new(tier))
    }

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn bytes_take_their_time_one_order_after_the_other_and_nobody_sleeps() {
        let bench = Bench::new();
        let mut tier = mock(&bench, 8);
        (0..3).for_each(|number| bench.fill(number, number as u8 + 1));
        for number in 0..3 {
            let span = bench.span(number.into());
            order(number.into(), &name(number), at(10), |order| tier.store(order, span));
        }
        assert_eq!(collect(&mut tier, at(10)), []);
        assert_eq!(tier.deadline(), Some(at(11)));
        let stored = |number| Ended::Store(number, StoreOutcome::Stored);
        assert_eq!(collect(&mut tier, at(12)), [stored(0), stored(1)]);
        assert_eq!((tier.deadline(), tier.is_idle()), (Some(at(13)), false));
        assert_eq!(collect(&mut tier, at(13)), [stored(2)]);
        assert_eq!((tier.deadline(), tier.is_idle()), (None, true));
        // What was stored is what was there then, not what is there now.
        bench.fill(0, 99);
        order(7, &name(0), at(20), |order| tier.load(order, bench.span(5)));
        assert_eq!(collect(&mut tier, at(20)), []);
        assert_eq!(collect(&mut tier, at(21)), [Ended::Load(7, LoadOutcome::Loaded)]);
        assert_eq!(bench.bytes(5), vec![1; OBJECT_BYTES as usize]);
    }

    #[test]
    fn what_is_full_says_so_at_once_and_what_is_there_stays() {
        let bench = Bench::new();
        let mut tier = mock(&bench, 1);
        bench.fill(0, 1);
        order(1, &name(1), at(0), |order| tier.store(order, bench.span(0)));
        // The room is promised, though not taken yet.
        order(2, &name(2), at(0), |order| tier.store(order, bench.span(0)));
        let full = Ended::Store(2, StoreOutcome::Failed(TierFault::NoSpace));
        let ended = collect(&mut tier, at(1));
        assert_eq!(ended, [Ended::Store(1, StoreOutcome::Stored), full]);
        order(3, &name(1), at(2), |order| tier.store(order, bench.span(0)));
        let present = StoreOutcome::Present { bytes: OBJECT_BYTES };
        assert_eq!(collect(&mut tier, at(3)), [Ended::Store(3, present)]);
        order(4, &name(1), at(4), |order| tier.delete(order, false));
        order(5, &name(1), at(4), |order| tier.delete(order, true));
        let ended = collect(&mut tier, at(4));
        let deleted = Ended::Delete(4, DeleteOutcome::Deleted);
        assert_eq!(ended, [deleted, Ended::Delete(5, DeleteOutcome::Absent)]);
        order(6, &name(2), at(5), |order| tier.store(order, bench.span(0)));
        assert_eq!(collect(&mut tier, at(6)), [Ended::Store(6, StoreOutcome::Stored)]);
    }

    #[test]
    fn probes_tell_sizes_and_loads_of_other_sizes_fail() {
        let bench = Bench::new();
        let mut tier = mock(&bench, 8);
        tier.added(AdapterId(3));
        assert_eq!(collect(&mut tier, at(0)), [Ended::Scan(AdapterId(3))]);
        order(1, &name(1), at(0), |order| tier.store(order, bench.span(0).part(0, 100)));
        assert_eq!(collect(&mut tier, at(1)).len(), 1);
        tier.probe(ticket(2), [name(1), name(2)].into_iter());
        assert_eq!(
            collect(&mut tier, at(1)),
            [Ended::Probe(2, Some(vec![Some(Found::of(100)), None]))]
        );
        order(3, &name(1), at(1), |order| tier.load(order, bench.span(1)));
        order(4, &name(2), at(1), |order| tier.load(order, bench.span(1)));
        let other = Ended::Load(3, LoadOutcome::OtherSize { bytes: 100 });
        assert_eq!(collect(&mut tier, at(2)), [other, Ended::Load(4, LoadOutcome::Absent)]);
        order(5, &name(1), at(2), |order| tier.scrub(order, 100));
        order(6, &name(2), at(2), |order| tier.scrub(order, 100));
        let ended = collect(&mut tier, at(9));
        assert!(
            matches!(ended[..], [Ended::Scrub(5, Some(_)), Ended::Scrub(6, None)]),
            "{ended:?}"
        );
    }

    #[test]
    fn what_is_cancelled_ends_once_without_an_effect() {
        let bench = Bench::new();
        let mut tier = mock(&bench, 1);
        order(1, &name(1), at(0), |order| tier.store(order, bench.span(0)));
        tier.cancel(ticket(1));
        tier.cancel(ticket(9));
        assert_eq!(tier.deadline(), Some(at(0)), "at once");
        let ended = Ended::Store(1, StoreOutcome::Failed(TierFault::Cancelled));
        assert_eq!(collect(&mut tier, at(0)), [ended]);
        assert_eq!(collect(&mut tier, at(5)), []);
        order(2, &name(2), at(5), |order| tier.store(order, bench.span(0)));
        assert_eq!(
            collect(&mut tier, at(9)),
            [Ended::Store(2, StoreOutcome::Stored)],
            "room is back"
        );
    }
}
