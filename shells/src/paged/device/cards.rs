//! The driver, the cards in use, and the arena as each of them knows it.

use super::flights::{EVENTS, Flights};
use crate::arena::Window;
use crate::arena::sizing::Bytes;
use kvtide_core::event::AttachFault;
use kvtide_core::front::paged::DeviceSource;
use kvtide_core::limits::GROW_STEP_BYTES;
use kvtide_core::pages::Pages;
use kvtide_gpu::cuda::{
    self, Absent, Card, CardFault, Driver, Instance, InstanceSpec, Pinned, Region, RegionSource,
    Sink, TorchCounter,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

pub struct Cards {
    sink: Sink,
    /// Looked for with the first engine, and again while there is none.
    driver: Option<Driver>,
    /// By uuid.
    used: BTreeMap<String, (Card, Arc<Pinned>)>,
    /// Bytes of the arena that have memory behind them.
    usable: u64,
    /// Registering failed, which was told.
    refused: bool,
    parts: u64,
    /// Keeps the arena mapped for as long as a card may reach it. Last to go.
    window: Window,
}

impl Cards {
    pub fn new(window: Window, sink: Sink) -> Cards {
        let used = BTreeMap::new();
        Cards { sink, driver: None, used, usable: 0, refused: false, parts: 0, window }
    }

    /// What is to be registered for an access up to `end`.
    pub fn slices_to(&self, end: u64) -> u64 {
        end.next_multiple_of(GROW_STEP_BYTES).min(self.usable)
    }

    /// Another name for a part of an order, over all engines.
    pub fn next_part(&mut self) -> u64 {
        self.parts += 1;
        self.parts
    }

    pub fn grown(&mut self, bytes: u64) {
        self.usable = self.usable.max(bytes);
    }

    /// Opens what a registration brought. With the number that this process knows the card by.
    pub fn open(
        &mut self,
        sources: &[DeviceSource],
        pages: Pages,
    ) -> Result<(u32, Flights), AttachFault> {
        let uuid = &sources.first().ok_or(AttachFault::Failed)?.card;
        let (card, pinned) = self.card(uuid)?;
        let mut regions = Vec::with_capacity(sources.len());
        for source in sources {
            let end = source.offset_bytes.checked_add(pages.tensor_bytes());
            if end.is_none_or(|end| end > source.storage_bytes) {
                return Err(AttachFault::Short);
            }
            let counter = source.counter.as_ref();
            let region = Region::open(
                &card,
                &RegionSource {
                    memory: &source.memory,
                    offset: source.storage_offset,
                    bytes: source.storage_bytes,
                    counter: counter.map(|(name, index)| TorchCounter { name, index: *index }),
                },
            );
            regions.push(region.map_err(refused)?);
        }
        // Whether the engine speaks of events or of numbers shows with its first transfer.
        // It hears of an end by an answer, so nobody opens our events.
        let spec = InstanceSpec { isolated: true, events: EVENTS };
        let instance = Instance::open(&card, &pinned, regions, &self.sink, spec);
        let mut instance = instance.map_err(refused)?;
        // Usually one event for all tensors.
        let events = sources.iter().filter_map(|source| source.event.as_deref());
        for event in events.collect::<BTreeSet<_>>() {
            instance.wait_first(event).map_err(refused)?;
        }
        let starts = sources.iter().map(|source| source.offset_bytes).collect();
        Ok((card.info().ordinal, Flights::new(instance, pinned, pages, starts)))
    }

    fn card(&mut self, uuid: &str) -> Result<(Card, Arc<Pinned>), AttachFault> {
        if let Some(known) = self.used.get(uuid) {
            return Ok(known.clone());
        }
        let card = match self.driver()?.card(uuid) {
            Ok(card) => card,
            Err(fault @ CardFault::NotVisible { .. }) => {
                tracing::warn!("A registration is refused: {fault}");
                return Err(AttachFault::NoCard);
            }
            Err(fault) => return Err(refused(fault)),
        };
        let base = self.window.address(self.window.whole(0));
        // SAFETY: the window keeps the arena mapped and outlives this: fields go in their order,
        // and whoever else holds a share of it (flights) goes before. What a card copies to or from
        // is pinned for its ticket.
        let pinned = unsafe { Pinned::new(&card, base, GROW_STEP_BYTES as usize) };
        let used = (card, Arc::new(pinned));
        tracing::info!("Card {uuid} ({}) is in use", used.0.info().name);
        self.used.insert(uuid.to_owned(), used.clone());
        Ok(used)
    }

    fn driver(&mut self) -> Result<&Driver, AttachFault> {
        if self.driver.is_none() {
            match cuda::probe() {
                Ok(driver) => self.driver = Some(driver),
                Err(absent) => {
                    let absent: Absent = absent;
                    tracing::warn!("A registration is refused: {absent}");
                    return Err(AttachFault::NoDriver);
                }
            }
        }
        Ok(self.driver.as_ref().expect("found a line above"))
    }

    /// Registers a further slice of the arena with the cards. Whether there is more to do.
    pub fn pin_some(&mut self) -> bool {
        let whole = self.usable;
        for (card, pinned) in self.used.values() {
            let known = pinned.bytes();
            if known >= whole || self.refused {
                continue;
            }
            let next = (known + GROW_STEP_BYTES).min(whole);
            if let Err(failed) = pinned.grow(next as usize) {
                let (known, whole) = (Bytes(known), Bytes(whole));
                tracing::warn!(
                    "Only {known} of {whole} of L1 can be registered with the card: {failed}"
                );
                self.refused = true;
                return false;
            }
            if next == whole {
                let (name, whole) = (&card.info().name, Bytes(whole));
                tracing::info!("L1 is registered with {name}: {whole}");
            }
            return true;
        }
        false
    }
}

fn refused(why: impl Display) -> AttachFault {
    tracing::warn!("A registration is refused: {why}");
    AttachFault::Device
}
