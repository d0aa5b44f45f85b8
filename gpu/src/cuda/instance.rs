//! One engine worker's share: its storages, a stream for each direction, the events that tell it
//! when copies are done, and the tickets that are in flight.
//!
//! A ticket ends once, in one of two ways. The usual: a host function behind its copies names it
//! to the sink, and whoever listens calls [`Instance::end`]. After an error that ends the whole
//! context the driver calls no host function any more, so [`Instance::poll`] asks after the oldest
//! event of each direction, and an error fails everything that is in flight.

use super::copy::{Copier, Direction, Work};
use super::event::{EventForm, EventHandle, Ring, Waited};
use super::memory::{Pinned, Region};
use super::stream::{Note, Stream};
use super::{Card, Failed};
use crate::host::OutsideRegion;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Where a ticket is named when its copies are done. Called on a thread of the driver: it must
/// neither block nor ask the driver for anything.
pub type Sink = Arc<dyn Fn(u64) + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceSpec {
    /// Tickets in flight at once, and how long an engine may take to open what it was told.
    pub events: usize,
    /// Whether the engine shares memory but no events.
    pub isolated: bool,
}

impl Default for InstanceSpec {
    fn default() -> InstanceSpec {
        InstanceSpec { events: EVENTS, isolated: false }
    }
}

/// Why nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many tickets are in flight as there are events.
    Full,
    NoRegion {
        index: u32,
    },
    OutsideRegion(OutsideRegion),
    OutsidePinned(OutsideRegion),
    /// Rows that overlap, or that leave the address space.
    Pitch,
    EventForm {
        bytes: usize,
    },
    /// A number that does not lie at eight bytes.
    Unaligned {
        offset: u64,
    },
    /// The engine speaks of numbers in memory, and this instance or this driver has none.
    NoNumbers,
    Failed(Failed),
    /// An earlier error ended the context.
    Broken(Failed),
}

impl From<Failed> for Refused {
    fn from(failed: Failed) -> Refused {
        Refused::Failed(failed)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full => write!(f, "too many copies are in flight"),
            Refused::NoRegion { index } => write!(f, "there is no region {index}"),
            Refused::OutsideRegion(outside) => write!(f, "outside the engine's memory: {outside}"),
            Refused::OutsidePinned(outside) => write!(f, "outside of host memory: {outside}"),
            Refused::Pitch => write!(f, "rows overlap or have no end"),
            Refused::EventForm { bytes } => write!(f, "no event has a handle of {bytes} bytes"),
            Refused::Unaligned { offset } => write!(f, "a number at {offset} is not aligned"),
            Refused::NoNumbers => write!(f, "isolated events are not served here"),
            Refused::Failed(failed) => write!(f, "nothing was queued: {failed}"),
            Refused::Broken(failed) => write!(f, "the card's context is lost: {failed}"),
        }
    }
}

impl std::error::Error for Refused {}

/// A ticket that is in flight now, whatever else is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// For the engine to wait for; nothing where it could not be recorded.
    pub event: Option<EventHandle>,
    /// Not everything could be queued. The ticket ends as failed, when what was queued is done.
    pub failed: Option<Failed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Copied,
    Failed(Failed),
}

struct Flight {
    ticket: u64,
    waited: Option<Waited>,
    failed: Option<Failed>,
    /// A host function will name it.
    told: bool,
    recorded: bool,
}

impl Flight {
    fn outcome(&self) -> Outcome {
        self.failed.map_or(Outcome::Copied, Outcome::Failed)
    }
}

/// Fields end in this order: streams before what their work touches.
struct Parts {
    streams: [Stream; 2],
    first: Vec<Waited>,
    ring: Ring,
    notes: ManuallyDrop<Box<[Note]>>,
    regions: Vec<Region>,
    pinned: Arc<Pinned>,
}

pub struct Instance {
    card: Card,
    parts: ManuallyDrop<Parts>,
    copier: Copier,
    flights: Vec<Option<Flight>>,
    /// Slots by age, for each direction.
    queues: [VecDeque<usize>; 2],
    slots: BTreeMap<u64, usize>,
    broken: Option<Failed>,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance with {} tickets in flight", self.slots.len())
    }
}

/// An instance that cannot be closed yet.
#[derive(Debug)]
pub struct StillInFlight(pub Box<Instance>);

impl Instance {
    pub fn open(
        card: &Card,
        pinned: &Arc<Pinned>,
        regions: Vec<Region>,
        sink: &Sink,
        spec: InstanceSpec,
    ) -> Result<Instance, Failed> {
        assert!(spec.events > 0, "an instance has events");
        assert!(regions.iter().all(|region| region.is_on(card)), "one instance is on one card");
        let streams = [Stream::create(card)?, Stream::create(card)?];
        let mut ring = Ring::create(card, spec.events)?;
        if spec.isolated && card.calls().has_values() {
            ring.with_numbers(&streams[0])?;
        }
        let notes = ManuallyDrop::new((0..spec.events).map(|_| Note::new(sink)).collect());
        let pinned = Arc::clone(pinned);
        let parts = Parts { streams, first: Vec::new(), ring, notes, regions, pinned };
        Ok(Instance {
            card: card.clone(),
            parts: ManuallyDrop::new(parts),
            copier: Copier::new(card.calls().has_batch()),
            flights: (0..spec.events).map(|_| None).collect(),
            queues: Default::default(),
            slots: BTreeMap::new(),
            broken: None,
        })
    }

    /// Everything that is queued from now on waits for that event, too: the one that came with the
    /// engine's memory.
    pub fn wait_first(&mut self, event: &[u8]) -> Result<(), Refused> {
        let Some(waited) = Waited::open(&self.card, EventForm::read(event)?)? else {
            return Ok(());
        };
        self.parts.first.push(waited);
        let waited = self.parts.first.last().expect("pushed a line above");
        for stream in &self.parts.streams {
            waited.hold_up(self.card.calls(), stream)?;
        }
        Ok(())
    }

    /// Queues copies behind the engine's event. `Ok` means that the ticket is in flight and will
    /// end, `Err` that no memory will be touched for it.
    pub fn submit(
        &mut self,
        ticket: u64,
        direction: Direction,
        producer: &[u8],
        work: &Work<'_>,
    ) -> Result<Submitted, Refused> {
        assert!(!self.slots.contains_key(&ticket), "a ticket is in flight once");
        if let Some(failed) = self.broken {
            return Err(Refused::Broken(failed));
        }
        let form = EventForm::read(producer)?;
        let isolated = matches!(form, EventForm::Isolated { .. });
        let Parts { streams, ring, notes, regions, pinned, .. } = &mut *self.parts;
        if isolated && !ring.has_numbers() {
            return Err(Refused::NoNumbers);
        }
        self.copier.plan(regions, pinned, work)?;
        let calls = self.card.bind()?;
        let Some(slot) = ring.claim(calls)? else { return Err(Refused::Full) };
        let stream = &streams[direction as usize];
        let waited = Waited::open(&self.card, form).and_then(|waited| {
            waited.as_ref().map_or(Ok(()), |waited| waited.hold_up(calls, stream))?;
            Ok(waited)
        });
        let waited = match waited {
            Ok(waited) => waited,
            Err(refused) => {
                ring.release(slot);
                return Err(refused);
            }
        };
        // From here on the ticket is in flight, because something may touch its memory.
        notes[slot].name(ticket);
        let copied = self.copier.submit(calls, stream, direction);
        // Told before recorded: whoever hears of the event finds that we heard of it first.
        let told = stream.tell(calls, &notes[slot]);
        let recorded = ring.record(calls, slot, stream, isolated);
        let failed = copied.err().or(told.err());
        let event = recorded.ok();
        let (told, recorded) = (told.is_ok(), event.is_some());
        self.flights[slot] = Some(Flight { ticket, waited, failed, told, recorded });
        self.queues[direction as usize].push_back(slot);
        self.slots.insert(ticket, slot);
        Ok(Submitted { event, failed })
    }

    /// The sink named this ticket. None for one that has ended already.
    pub fn end(&mut self, ticket: u64) -> Option<Outcome> {
        let slot = self.slots.remove(&ticket)?;
        let mut flight = self.flights[slot].take().expect("a ticket has a flight");
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|each| *each == slot) {
                queue.remove(at);
            }
        }
        self.parts.ring.release(slot);
        drop(flight.waited.take());
        Some(flight.outcome())
    }

    /// The other way to an ending; to be called now and then while tickets are in flight.
    pub fn poll(&mut self, ended: &mut Vec<(u64, Outcome)>) {
        if self.slots.is_empty() {
            return;
        }
        match self.silent_endings() {
            Ok(silent) => {
                let endings = silent.into_iter().map(|ticket| (ticket, self.end(ticket)));
                ended.extend(endings.filter_map(|(ticket, outcome)| Some((ticket, outcome?))));
            }
            Err(failed) => {
                self.broken = Some(failed);
                let tickets: Vec<u64> = self.slots.keys().copied().collect();
                for ticket in tickets {
                    self.end(ticket);
                    ended.push((ticket, Outcome::Failed(failed)));
                }
            }
        }
    }

    /// Tickets that are done and that no host function will name. An error is that of the context.
    fn silent_endings(&self) -> Result<Vec<u64>, Failed> {
        let calls = self.card.bind()?;
        let mut silent = Vec::new();
        for (queue, stream) in self.queues.iter().zip(&self.parts.streams) {
            let flights = || {
                let flight = |slot: &usize| Some((*slot, self.flights[*slot].as_ref()?));
                queue.iter().filter_map(flight)
            };
            // By its own event, or, where that was not recorded, when the whole stream is done.
            let done = |(slot, flight): (usize, &Flight)| {
                if flight.recorded { self.parts.ring.done(calls, slot) } else { stream.idle(calls) }
            };
            // Whether the oldest is done does not matter here; an error of the context does.
            flights().next().map_or(Ok(true), done)?;
            for (slot, flight) in flights().filter(|(_, flight)| !flight.told) {
                if done((slot, flight))? {
                    silent.push(flight.ticket);
                }
            }
        }
        Ok(silent)
    }

    pub fn in_flight(&self) -> usize {
        self.slots.len()
    }

    /// Whether letting go of it waits for nothing: no ticket is in flight and the streams have come
    /// to their end, or the context is lost and they never will.
    pub fn is_idle(&self) -> bool {
        let streams_idle = || {
            let calls = self.card.bind()?;
            let [store, load] = self.parts.streams.each_ref().map(|each| each.idle(calls));
            Ok::<bool, Failed>(store? && load?)
        };
        self.slots.is_empty() && (self.broken.is_some() || streams_idle().unwrap_or(true))
    }

    /// The error that ended the context, once [`Instance::poll`] has met it.
    pub fn broken(&self) -> Option<Failed> {
        self.broken
    }

    /// Lets go of everything; not on a thread that must not wait. Tickets have to end first.
    pub fn close(self) -> Result<(), StillInFlight> {
        if self.slots.is_empty() { Ok(()) } else { Err(StillInFlight(Box::new(self))) }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // What is in flight still writes to memory that nobody may have back: better kept.
        if !self.slots.is_empty() {
            return;
        }
        let synchronized = self.card.bind().and_then(|calls| {
            let [store, load] = self.parts.streams.each_ref().map(|each| each.synchronize(calls));
            store.and(load)
        });
        // In a broken context a host function may be at work, unseen; its note stays.
        if synchronized.is_ok() && self.broken.is_none() {
            // SAFETY: nothing is left in the streams that could look at a note, and this value
            // is gone after this.
            unsafe { ManuallyDrop::drop(&mut self.parts.notes) };
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.parts) };
    }
}

/// As many as the peer keeps.
const EVENTS: usize = 2048;
