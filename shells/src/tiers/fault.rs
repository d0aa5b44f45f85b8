//! `fault_inject`: another tier, and what can go wrong with one. It loses what the peer's adapter
//! of this name loses, and beyond that it is late, hangs, fails, tears and flips bits.
//!
//! The one invariant: equal orders in equal turns meet equal faults, whatever else the machine
//! does. A fault follows from the seed and the object's name, or from the seed and how many orders
//! came before. What is to be wrong is decided when it is ordered; how it ends is altered on the
//! way back.

use super::files::Closing;
use super::files::status::TierStatus;
use super::mock::native;
use super::spec::FaultSpec;
use super::{Order, Tier};
use crate::arena::{Span, Window};
use blake2::digest::consts::U8;
use blake2::{Blake2b, Digest};
use kvtide_core::effect::Note;
use kvtide_core::event::{DeleteOutcome, Event, Found, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{AdapterId, Ticket};
use kvtide_core::time::Instant;
use mio::{Registry, Token};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;

pub struct FaultTier {
    inner: Box<Tier>,
    spec: FaultSpec,
    window: Window,
    /// Orders that have come.
    orders: u64,
    /// What is to become of orders that the inner tier has.
    marks: BTreeMap<Ticket, Mark>,
    /// Orders that never end.
    hung: u64,
    /// Loads of this turn, in their order.
    batch: Vec<Ticket>,
    /// Endings that are late, in the order in which they come.
    late: VecDeque<(Instant, Ending)>,
    now: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    is_lost: bool,
    is_torn: bool,
    /// The bit that is flipped.
    flipped: Option<u64>,
    span: Option<Span>,
}

/// An event that owns what it says.
#[derive(Clone, Debug)]
enum Ending {
    Probe(Ticket, Option<Vec<Option<Found>>>),
    Store(Ticket, StoreOutcome),
    Load(Ticket, LoadOutcome),
    Delete(Ticket, DeleteOutcome),
    Scrub(Ticket, Option<u32>),
}

/// What an order meets before it reaches the tier.
enum Fate {
    Goes,
    Hangs,
    Fails,
}

impl fmt::Debug for FaultTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FaultTier");
        shown.field("inner", &self.inner).field("spec", &self.spec).field("hung", &self.hung);
        shown.finish_non_exhaustive()
    }
}

impl FaultTier {
    pub fn new(inner: Tier, spec: FaultSpec, window: Window) -> FaultTier {
        FaultTier {
            inner: Box::new(inner),
            spec,
            window,
            orders: 0,
            marks: BTreeMap::new(),
            hung: 0,
            batch: Vec::new(),
            late: VecDeque::new(),
            now: Instant::ZERO,
        }
    }

    pub fn probe<'a>(&mut self, ticket: Ticket, names: impl Iterator<Item = ObjectName<'a>>) {
        match self.fate() {
            Fate::Goes => self.inner.probe(ticket, names),
            Fate::Hangs => self.hung += 1,
            Fate::Fails => self.ends(self.now, Ending::Probe(ticket, None)),
        }
    }

    pub fn store(&mut self, order: Order<'_>, span: Span) {
        match self.fate() {
            Fate::Goes => {
                let is_torn = self.happens(self.spec.torn_ppm);
                let written = if is_torn { span.part(0, span.bytes().div_ceil(2)) } else { span };
                self.inner.store(order, written);
            }
            Fate::Hangs => self.hung += 1,
            Fate::Fails => {
                let outcome = StoreOutcome::Failed(TierFault::Io);
                self.ends(order.now, Ending::Store(order.ticket, outcome));
            }
        }
    }

    pub fn load(&mut self, order: Order<'_>, span: Span) {
        self.batch.push(order.ticket);
        match self.fate() {
            Fate::Goes => {
                let is_torn = self.happens(self.spec.torn_ppm);
                let on_the_way = self.happens(self.spec.flip_ppm).then(|| self.roll());
                let mark = Mark {
                    is_lost: self.is_lost(order.name),
                    is_torn,
                    flipped: on_the_way.or(self.flipped_at_rest(order.name)),
                    span: Some(span),
                };
                self.marks.insert(order.ticket, mark);
                self.inner.load(order, span);
            }
            Fate::Hangs => self.hung += 1,
            Fate::Fails => {
                let outcome = LoadOutcome::Failed(TierFault::Io);
                self.ends(order.now, Ending::Load(order.ticket, outcome));
            }
        }
    }

    pub fn delete(&mut self, order: Order<'_>, quarantine: bool) {
        match self.fate() {
            Fate::Goes => self.inner.delete(order, quarantine),
            Fate::Hangs => self.hung += 1,
            Fate::Fails => {
                let outcome = DeleteOutcome::Failed(TierFault::Io);
                self.ends(order.now, Ending::Delete(order.ticket, outcome));
            }
        }
    }

    pub fn scrub(&mut self, order: Order<'_>, bytes: u64) {
        match self.fate() {
            Fate::Goes => {
                let mark = Mark { flipped: self.flipped_at_rest(order.name), ..Mark::default() };
                self.marks.insert(order.ticket, mark);
                self.inner.scrub(order, bytes);
            }
            Fate::Hangs => self.hung += 1,
            Fate::Fails => self.ends(order.now, Ending::Scrub(order.ticket, None)),
        }
    }

    /// What hangs does not hear.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.inner.cancel(ticket);
    }

    pub fn note(&mut self, name: &ObjectName<'_>, note: Note) {
        self.inner.note(name, note);
    }

    pub fn added(&mut self, adapter: AdapterId) {
        self.inner.added(adapter);
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.inner.register(registry, token)
    }

    pub fn grown(&mut self, usable: u64) {
        self.inner.grown(usable);
    }

    pub fn workers(&self) -> u32 {
        self.inner.workers()
    }

    pub fn limit_workers(&self, all: u32) {
        self.inner.limit_workers(all);
    }

    pub fn collect(&mut self, now: Instant, tell: &mut dyn FnMut(Event<'_>)) {
        self.now = now;
        let FaultTier { inner, marks, window, late, spec, .. } = self;
        let at = now + spec.latency;
        inner.collect(now, &mut |event| match ending(&event) {
            Some(ending) => late.push_back((at, altered(ending, marks, window))),
            // News of what lies there is no answer that somebody waits for.
            None => tell(event),
        });
        while self.late.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, ending)) = self.late.pop_front()
        {
            ending.tell(tell);
        }
    }

    /// Settles what is left out of this turn's loads, then lets the tier begin.
    pub fn submit(&mut self, now: Instant, budget: &mut u64) -> bool {
        for place in gaps(&self.spec, self.batch.len()) {
            if let Some(mark) = self.marks.get_mut(&self.batch[place]) {
                mark.is_lost = true;
            }
        }
        self.batch.clear();
        self.inner.submit(now, budget)
    }

    pub fn deadline(&self) -> Option<Instant> {
        let late = self.late.front().map(|(at, _)| *at);
        late.into_iter().chain(self.inner.deadline()).min()
    }

    pub fn is_idle(&self) -> bool {
        self.hung == 0 && self.late.is_empty() && self.inner.is_idle()
    }

    pub fn close(self) -> Option<Closing> {
        self.inner.close()
    }

    pub fn status(&self) -> TierStatus {
        let mut status = self.inner.status();
        status.orders += self.hung + self.late.len() as u64;
        status.reason = match &*status.reason {
            "" => "faults are injected".to_owned(),
            reason => format!("faults are injected; {reason}"),
        };
        status
    }

    fn ends(&mut self, now: Instant, ending: Ending) {
        self.late.push_back((now + self.spec.latency, ending));
    }

    fn fate(&mut self) -> Fate {
        if self.happens(self.spec.hang_ppm) {
            Fate::Hangs
        } else if self.happens(self.spec.error_ppm) {
            Fate::Fails
        } else {
            Fate::Goes
        }
    }

    fn happens(&mut self, ppm: u32) -> bool {
        // Counted either way, so that one rate does not move where another one strikes.
        self.roll() % MILLION < u64::from(ppm)
    }

    /// The next number of a sequence that only the seed decides (splitmix64).
    fn roll(&mut self) -> u64 {
        self.orders += 1;
        let mut mixed =
            (self.spec.seed as u64).wrapping_add(self.orders.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// The peer's rule, to the bit (spec/storage §6.3).
    fn is_lost(&self, name: &ObjectName<'_>) -> bool {
        if self.spec.lost_ppm == 0 {
            return false;
        }
        let ObjectName { model, rank, group, hash, salt } = name;
        let text = format!("{}:{hash}:{model}:{}:{group}:{salt}", self.spec.seed, rank.0);
        hash_of(&text) % MILLION < u64::from(self.spec.lost_ppm)
    }

    fn flipped_at_rest(&self, name: &ObjectName<'_>) -> Option<u64> {
        if self.spec.flip_ppm == 0 {
            return None;
        }
        let hash = hash_of(&format!("flip:{}:{}", self.spec.seed, native(name)));
        (hash % MILLION < u64::from(self.spec.flip_ppm)).then_some(hash / MILLION)
    }
}

impl Ending {
    fn tell(self, tell: &mut dyn FnMut(Event<'_>)) {
        match self {
            Ending::Probe(ticket, found) => {
                tell(Event::ProbeEnded { ticket, found: found.as_deref() });
            }
            Ending::Store(ticket, outcome) => tell(Event::StoreEnded { ticket, outcome }),
            Ending::Load(ticket, outcome) => tell(Event::LoadEnded { ticket, outcome }),
            Ending::Delete(ticket, outcome) => tell(Event::DeleteEnded { ticket, outcome }),
            Ending::Scrub(ticket, digest) => tell(Event::ScrubEnded { ticket, digest }),
        }
    }
}

/// The event as an ending, where it is one of an order.
fn ending(event: &Event<'_>) -> Option<Ending> {
    Some(match event {
        Event::ProbeEnded { ticket, found } => Ending::Probe(*ticket, found.map(<[_]>::to_vec)),
        Event::StoreEnded { ticket, outcome } => Ending::Store(*ticket, *outcome),
        Event::LoadEnded { ticket, outcome } => Ending::Load(*ticket, *outcome),
        Event::DeleteEnded { ticket, outcome } => Ending::Delete(*ticket, *outcome),
        Event::ScrubEnded { ticket, digest } => Ending::Scrub(*ticket, *digest),
        _ => return None,
    })
}

fn altered(ending: Ending, marks: &mut BTreeMap<Ticket, Mark>, window: &Window) -> Ending {
    match ending {
        Ending::Load(ticket, outcome) => {
            let mark = marks.remove(&ticket).unwrap_or_default();
            match (outcome, mark.span) {
                // As if it were not there: the peer clears the bit of the load and no more.
                (LoadOutcome::Loaded, _) if mark.is_lost => {
                    Ending::Load(ticket, LoadOutcome::Absent)
                }
                (LoadOutcome::Loaded, Some(span)) => {
                    let spoilt = spoil(window, span, mark);
                    let failed = LoadOutcome::Failed(TierFault::Io);
                    Ending::Load(ticket, spoilt.map_or(failed, |()| outcome))
                }
                _ => Ending::Load(ticket, outcome),
            }
        }
        Ending::Scrub(ticket, digest) => {
            let mark = marks.remove(&ticket).unwrap_or_default();
            let other = |digest: u32| if mark.flipped.is_some() { !digest } else { digest };
            Ending::Scrub(ticket, digest.map(other))
        }
        Ending::Probe(..) | Ending::Store(..) | Ending::Delete(..) => ending,
    }
}

/// The second half stays empty, or a bit is another one.
fn spoil(window: &Window, span: Span, mark: Mark) -> Option<()> {
    if mark.is_torn {
        let zeros = [0; 4096];
        let mut at = span.bytes() / 2;
        while at < span.bytes() {
            let part = span.part(at, zeros.len() as u64);
            window.copy_in(part, &zeros[..part.bytes() as usize]).ok()?;
            at += part.bytes();
        }
    }
    if let Some(bit) = mark.flipped.filter(|_| span.bytes() > 0) {
        let part = span.part(bit / 8 % span.bytes(), 1);
        let mut byte = [0];
        window.copy_out(part, &mut byte).ok()?;
        window.copy_in(part, &[byte[0] ^ 1 << (bit % 8)]).ok()?;
    }
    Some(())
}

/// Places in a batch of loads that fail.
fn gaps(spec: &FaultSpec, loads: usize) -> Vec<usize> {
    let Some(last) = loads.checked_sub(1) else { return Vec::new() };
    let from_tail = spec.gap_tails_ppm.iter().map(|ppm| rounded(MILLION - u64::from(*ppm), last));
    let from_head = spec.gap_indices.iter().map(|index| *index as usize);
    from_tail.chain(from_head).filter(|place| *place < loads).collect()
}

/// `ppm * last`, to the nearest whole, and of two to the even one, as Python rounds.
fn rounded(ppm: u64, last: usize) -> usize {
    let product = ppm * last as u64;
    let (whole, rest) = (product / MILLION, product % MILLION);
    let up = rest * 2 > MILLION || rest * 2 == MILLION && !whole.is_multiple_of(2);
    (whole + u64::from(up)) as usize
}

fn hash_of(text: &str) -> u64 {
    u64::from_be_bytes(Blake2b::<U8>::digest(text.as_bytes()).into())
}

const MILLION: u64 = 1_000_000;

#[cfg(test)]
mod tests;
