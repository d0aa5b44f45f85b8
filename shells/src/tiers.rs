//! The lower tiers of this server: carries out what the engine orders of them, and tells what came
//! of it.
//!
//! A tier is a variant of [`Tier`] with a file of its own below here. The one invariant: every
//! order with a ticket ends in exactly one event, told by `carry_out` at once or by `collect`
//! later, and until then the bytes of its place are the tier's. Nothing here waits for a device.

#[cfg(test)]
mod bench;
pub mod digest;
pub mod fault;
pub mod files;
pub mod index;
pub mod mock;
pub mod spec;
mod tier;

pub use tier::Tier;

use crate::arena::{Arena, Span, Window};
use crate::clock::Clock;
use digest::Digester;
use fault::FaultTier;
use files::status::TierStatus;
use files::{Closing, FileTier};
use kvtide_core::config::AdapterSetup;
use kvtide_core::effect::{Effect, Outbox};
use kvtide_core::event::{DeleteOutcome, Event, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::format::names::ObjectName;
use kvtide_core::limits::{ADAPTERS_MAX, DISK_BYTES_PER_TURN, FLIGHTS_MAX, SCRUBS_MAX};
use kvtide_core::names::{AdapterId, L2Key, Ticket};
use kvtide_core::time::{Duration, Instant};
use mio::{Registry, Token};
use mock::MockTier;
use spec::AdapterSpec;
use std::fmt;
use std::io;
use std::sync::Arc;

/// What a tier needs of the server it belongs to.
#[derive(Clone)]
pub struct Terms {
    pub window: Window,
    /// Called on any thread when there is something to collect.
    pub wake: Arc<dyn Fn() + Send + Sync>,
    /// Tells this server's temporary files and its index from those of others: a random UUID.
    pub server: String,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("server", &self.server).finish_non_exhaustive()
    }
}

/// What a store, load, delete or scrub is about.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    pub ticket: Ticket,
    pub name: &'a ObjectName<'a>,
    pub now: Instant,
}

/// A tier that is open and has not joined the roster yet.
#[derive(Debug)]
pub struct Opened {
    pub tier: Tier,
    pub spec: AdapterSpec,
    /// What came of `spec.capacity_bytes`.
    pub capacity_bytes: u64,
    /// Bytes at rest are whole multiples of this.
    pub charge_bytes: u32,
    /// It has what it was given until it is told to delete it.
    pub keeps_data: bool,
}

impl Opened {
    /// What the engine is told of it.
    pub fn setup(&self) -> AdapterSetup<'_> {
        let Opened { spec, capacity_bytes, charge_bytes, keeps_data, .. } = self;
        spec.setup(*capacity_bytes, *charge_bytes, *keeps_data)
    }
}

/// Opens what an operator asked for. May wait for the device: never called on the reactor's thread
/// while it serves.
pub fn open(spec: AdapterSpec, terms: &Terms) -> io::Result<Opened> {
    match &spec.kind {
        spec::Kind::Files(files) => {
            let (tier, room) = FileTier::open(files, &spec, terms)?;
            Ok(Opened {
                tier: Tier::Files(Box::new(tier)),
                capacity_bytes: room.capacity_bytes,
                charge_bytes: room.charge_bytes,
                keeps_data: true,
                spec,
            })
        }
        spec::Kind::Mock(mock) => {
            // The size is a part of what the operator has to say of it.
            let capacity_bytes = spec.capacity_bytes.unwrap_or_default();
            let tier = MockTier::new(*mock, capacity_bytes, terms.window.clone());
            let tier = Tier::Mock(Box::new(tier));
            Ok(Opened { tier, capacity_bytes, charge_bytes: 1, keeps_data: true, spec })
        }
        spec::Kind::Faulty(fault) => {
            let fault = (**fault).clone();
            let inner = open(fault.inner.clone(), terms)?;
            let tier = FaultTier::new(inner.tier, fault, terms.window.clone());
            // Both may have a bound.
            let bound = spec.capacity_bytes.unwrap_or(inner.capacity_bytes);
            let capacity_bytes = inner.capacity_bytes.min(bound);
            Ok(Opened { tier: Tier::Faulty(Box::new(tier)), spec, capacity_bytes, ..inner })
        }
    }
}

/// All lower tiers of a server, each at the place that the roster gave it.
pub struct Tiers {
    list: Vec<Option<Tier>>,
    terms: Terms,
    /// Started with the first tier: a server without one has no thread for it.
    digester: Option<Digester>,
    /// Bytes of the arena that have memory behind them.
    usable: u64,
    /// Whose turn it is to begin before the others.
    first: usize,
    /// Something is left that can begin in the next turn.
    is_eager: bool,
    /// Of tiers that have left.
    closing: Vec<Closing>,
    /// How long the end waits for indexes, all of them together.
    patience: Duration,
}

/// The way back to the engine, for names and for endings.
pub trait Engine {
    fn l2_name(&self, key: &L2Key) -> ObjectName<'_>;
    fn tell(&mut self, event: Event<'_>);
}

impl Tiers {
    pub fn new(terms: Terms) -> Tiers {
        Tiers {
            list: Vec::new(),
            terms,
            digester: None,
            usable: 0,
            first: 0,
            is_eager: false,
            closing: Vec::new(),
            patience: CLOSE_TIME,
        }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Gives a tier its place behind all others and tells the engine. `token` is what the poll
    /// names it by. None where the roster is full.
    pub fn add(
        &mut self,
        mut opened: Opened,
        (registry, token): (&Registry, Token),
        engine: &mut impl Engine,
    ) -> io::Result<Option<AdapterId>> {
        if self.list.len() == ADAPTERS_MAX {
            self.closing.extend(opened.tier.close());
            return Ok(None);
        }
        if self.digester.is_none() {
            let Terms { window, wake, .. } = self.terms.clone();
            self.digester = Some(Digester::start(window, wake)?);
        }
        let adapter = AdapterId(self.list.len() as u16);
        opened.tier.register(registry, token)?;
        engine.tell(Event::AdapterAdded { adapter, setup: opened.setup() });
        opened.tier.grown(self.usable);
        opened.tier.added(adapter);
        self.list.push(Some(opened.tier));
        // So that a device which hangs takes no thread away from the others.
        let all = self.list.iter().flatten().map(Tier::workers).sum();
        self.list.iter().flatten().for_each(|tier| tier.limit_workers(all));
        // What lies in it is told with the next turn.
        self.is_eager = true;
        Ok(Some(adapter))
    }

    /// The first `usable` bytes of the arena have memory behind them.
    pub fn grown(&mut self, usable: u64) {
        self.usable = usable;
        self.list.iter_mut().flatten().for_each(|tier| tier.grown(usable));
    }

    /// Carries out what is ordered of a lower tier; other effects are none of its business.
    pub fn carry_out(
        &mut self,
        now: Instant,
        effect: Effect,
        orders: &Outbox,
        arena: &Arena,
        engine: &mut impl Engine,
    ) {
        let span = |place| arena.span(place).expect(IN_ARENA);
        match effect {
            Effect::Probe { ticket, adapter, keys } => match self.tier(adapter) {
                Some(tier) => {
                    let keys = orders.l2_keys(keys).iter();
                    tier.probe(ticket, keys.map(|key| engine.l2_name(key)));
                }
                None => engine.tell(Event::ProbeEnded { ticket, found: None }),
            },
            Effect::StoreObject { ticket, adapter, key, place } => match self.tier(adapter) {
                Some(tier) => {
                    tier.store(Order { ticket, name: &engine.l2_name(&key), now }, span(place));
                }
                None => {
                    let outcome = StoreOutcome::Failed(TierFault::Cancelled);
                    engine.tell(Event::StoreEnded { ticket, outcome });
                }
            },
            Effect::LoadObject { ticket, adapter, key, place } => match self.tier(adapter) {
                Some(tier) => {
                    tier.load(Order { ticket, name: &engine.l2_name(&key), now }, span(place));
                }
                None => {
                    let outcome = LoadOutcome::Failed(TierFault::Cancelled);
                    engine.tell(Event::LoadEnded { ticket, outcome });
                }
            },
            Effect::Digest { ticket, key, place } => {
                self.digest(ticket, &key, span(place), engine);
            }
            Effect::Cancel { ticket } => {
                self.list.iter_mut().flatten().for_each(|tier| tier.cancel(ticket));
            }
            Effect::DeleteObject { .. }
            | Effect::Scrub { .. }
            | Effect::Note { .. }
            | Effect::AdapterClosed { .. } => self.keep_up(now, effect, engine),
            Effect::Answer { .. }
            | Effect::Send { .. }
            | Effect::Receive { .. }
            | Effect::Attach { .. }
            | Effect::Detach { .. }
            | Effect::Copy { .. }
            | Effect::OperatorAnswer { .. } => {}
        }
    }

    /// What is ordered of a tier and moves no payload.
    fn keep_up(&mut self, now: Instant, effect: Effect, engine: &mut impl Engine) {
        match effect {
            Effect::DeleteObject { ticket, adapter, key, quarantine } => match self.tier(adapter) {
                Some(tier) => {
                    tier.delete(Order { ticket, name: &engine.l2_name(&key), now }, quarantine);
                }
                None => {
                    let outcome = DeleteOutcome::Failed(TierFault::Cancelled);
                    engine.tell(Event::DeleteEnded { ticket, outcome });
                }
            },
            Effect::Scrub { ticket, adapter, key, bytes } => match self.tier(adapter) {
                Some(tier) => {
                    tier.scrub(Order { ticket, name: &engine.l2_name(&key), now }, bytes);
                }
                None => engine.tell(Event::ScrubEnded { ticket, digest: None }),
            },
            Effect::Note { adapter, key, note } => {
                if let Some(tier) = self.tier(adapter) {
                    tier.note(&engine.l2_name(&key), note);
                }
            }
            Effect::AdapterClosed { adapter } => {
                let place = self.list.get_mut(usize::from(adapter.0));
                if let Some(tier) = place.and_then(Option::take) {
                    self.closing.extend(tier.close());
                }
            }
            _ => unreachable!("the others are dealt with above"),
        }
    }

    fn digest(&mut self, ticket: Ticket, key: &L2Key, span: Span, engine: &mut impl Engine) {
        // The rules of keys leave none without a native name.
        let name = engine.l2_name(key).native().unwrap_or_default();
        let digester = self.digester.as_mut();
        let digester = digester.expect("digests are wanted of what goes to or from a tier");
        digester.order(ticket, name, span, &mut |event| engine.tell(event));
    }

    /// Tells every ending that is known.
    pub fn collect(&mut self, now: Instant, tell: &mut dyn FnMut(Event<'_>)) {
        for tier in self.list.iter_mut().flatten() {
            tier.collect(now, tell);
        }
        if let Some(digester) = &mut self.digester {
            digester.collect(tell);
        }
    }

    /// Begins with what was ordered, once a turn. Tiers share the turn's budget, and each of them
    /// is the first to take from it in turn.
    pub fn submit(&mut self, now: Instant) {
        self.is_eager = false;
        let mut budget = DISK_BYTES_PER_TURN;
        let count = self.list.len();
        self.first = (self.first + 1) % count.max(1);
        for at in 0..count {
            if let Some(tier) = &mut self.list[(self.first + at) % count] {
                self.is_eager |= tier.submit(now, &mut budget);
            }
        }
    }

    /// Whether the next turn can begin something that this one had no budget for.
    pub fn is_eager(&self) -> bool {
        self.is_eager
    }

    /// When to look although nobody wakes.
    pub fn deadline(&self) -> Option<Instant> {
        self.list.iter().flatten().filter_map(Tier::deadline).min()
    }

    /// Nothing is on its way to or from any tier.
    pub fn is_idle(&self) -> bool {
        self.digester.as_ref().is_none_or(Digester::is_idle)
            && self.list.iter().flatten().all(Tier::is_idle)
    }

    /// By adapter; None for those that have left.
    pub fn status(&self) -> Vec<Option<TierStatus>> {
        self.list.iter().map(|tier| tier.as_ref().map(Tier::status)).collect()
    }

    /// The end is to come at once: no index is waited for.
    pub fn hurry(&mut self) {
        self.patience = Duration::ZERO;
    }

    fn tier(&mut self, adapter: AdapterId) -> Option<&mut Tier> {
        self.list.get_mut(usize::from(adapter.0))?.as_mut()
    }
}

impl Drop for Tiers {
    /// All of them are let go before one is waited for, so that several slow ones take no longer
    /// than one.
    fn drop(&mut self) {
        let tiers = self.list.drain(..).flatten();
        self.closing.extend(tiers.filter_map(Tier::close));
        let clock = Clock::start();
        let until = clock.now() + self.patience;
        for closing in self.closing.drain(..) {
            closing.within(until.since(clock.now().min(until)));
        }
    }
}

/// Most bytes that orders of lower tiers can take, for `--print-memory`. However many tiers there
/// are, the engine has only so many effects in flight.
pub fn table_bytes() -> [(&'static str, u64); 2] {
    let order = files::ORDER_BYTES_MAX as u64;
    [("orders of lower tiers", FLIGHTS_MAX as u64 * order), ("digests", digest::memory_bytes_max())]
}

/// What one lower tier takes beside that while it is there.
pub fn tier_bytes(spec: &AdapterSpec) -> u64 {
    match &spec.kind {
        spec::Kind::Files(_) => {
            let scrubs = u64::from(SCRUBS_MAX) * files::SCRUB_PIECE_BYTES;
            index::memory_bytes_max(spec.objects_max as usize) + scrubs
        }
        // What it holds is memory of this process.
        spec::Kind::Mock(_) => spec.capacity_bytes.unwrap_or_default(),
        spec::Kind::Faulty(fault) => tier_bytes(&fault.inner),
    }
}

/// How long the end of the server waits for indexes.
const CLOSE_TIME: Duration = Duration::from_secs(5);
const IN_ARENA: &str = "the engine places objects within what it was told is usable";
