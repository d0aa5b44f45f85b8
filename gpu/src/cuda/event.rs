//! Events across processes: those of engines, to be waited for, and ours, which tell an engine that
//! its copies are done.
//!
//! Ours are made beforehand, exported once, and recorded again in turn. An engine opens what it was
//! told after we have gone on, so an event must outlive its last use by far; recorded again it can
//! only make a late waiter wait longer.

use super::driver::{Calls, IpcEvent, IpcMemory, characters};
use super::memory::Import;
use super::stream::{Stream, done};
use super::{Card, Failed, Refused};

/// What an engine gets to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventHandle {
    /// The handle of an event.
    Shared([u8; 64]),
    /// Version, memory handle, offset and number, big-endian: done when the number is reached.
    Isolated([u8; 81]),
}

impl EventHandle {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            EventHandle::Shared(bytes) => bytes,
            EventHandle::Isolated(bytes) => bytes,
        }
    }
}

/// How a peer names its event, by length. An engine gets back what it uses itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventForm<'a> {
    /// Nothing was queued that would have to be waited for.
    None,
    Shared(&'a [u8; 64]),
    Isolated {
        memory: &'a [u8; 64],
        offset: u64,
        number: u64,
    },
}

impl<'a> EventForm<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<EventForm<'a>, Refused> {
        let word = |from: usize| {
            let word = bytes[from..from + 8].try_into();
            u64::from_be_bytes(word.expect("eight bytes of eighty-one"))
        };
        match bytes.len() {
            0 => Ok(EventForm::None),
            64 => Ok(EventForm::Shared(bytes.try_into().expect("sixty-four bytes"))),
            81 if bytes[0] == ISOLATED_VERSION => Ok(EventForm::Isolated {
                memory: bytes[1..65].try_into().expect("sixty-four bytes of eighty-one"),
                offset: word(65),
                number: word(73),
            }),
            length => Err(Refused::EventForm { bytes: length }),
        }
    }
}

/// What a stream waits for. Held until the wait is over for sure: destroying an opened event before
/// that is nowhere allowed.
pub enum Waited {
    Event(Card, usize),
    Number { _import: Import, address: u64, number: u64 },
}

impl Waited {
    pub fn open(card: &Card, form: EventForm<'_>) -> Result<Option<Waited>, Refused> {
        match form {
            EventForm::None => Ok(None),
            EventForm::Shared(handle) => {
                let raw = IpcEvent { reserved: characters(handle) };
                let mut event = 0;
                // SAFETY: the argument is a place for one handle; the driver checks the other.
                unsafe { card.bind()?.event_open(&mut event, raw) }?;
                Ok(Some(Waited::Event(card.clone(), event)))
            }
            EventForm::Isolated { memory, offset, number } => {
                let import = Import::open(card, memory)?;
                let address = import.at(offset, 8).map_err(Refused::OutsideRegion)?;
                Ok(Some(Waited::Number { _import: import, address, number }))
            }
        }
    }

    /// Has the stream wait for what is recorded now. Until that is over this value must live.
    pub fn hold_up(&self, calls: &Calls, stream: &Stream) -> Result<(), Failed> {
        match self {
            // SAFETY: stream and event are open, and the event stays so until the wait is over.
            Waited::Event(_, event) => unsafe { calls.stream_wait(stream.handle(), *event, 0) },
            // SAFETY: eight bytes of memory that stays open until the wait is over.
            Waited::Number { address, number, .. } => unsafe {
                calls.value_wait(stream.handle(), *address, *number, AT_LEAST)
            },
        }
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        let Waited::Event(card, event) = self else { return };
        let Ok(calls) = card.bind() else { return };
        // SAFETY: opened once by `queue`; its owner drops it when the wait is over.
        let _ = unsafe { calls.event_destroy(*event) };
    }
}

struct Slot {
    event: usize,
    exported: [u8; 64],
    busy: bool,
    recorded: bool,
}

/// The events of one instance.
pub struct Ring {
    card: Card,
    slots: Vec<Slot>,
    next: usize,
    numbers: Option<Numbers>,
}

impl Ring {
    pub fn create(card: &Card, events: usize) -> Result<Ring, Failed> {
        let calls = card.bind()?;
        let slots = Vec::with_capacity(events);
        let mut ring = Ring { card: card.clone(), slots, next: 0, numbers: None };
        for _ in 0..events {
            let mut slot = Slot { event: 0, exported: [0; 64], busy: false, recorded: false };
            // SAFETY: the argument is a place for one handle.
            unsafe { calls.event_create(&mut slot.event, DISABLE_TIMING | INTERPROCESS) }?;
            let event = slot.event;
            ring.slots.push(slot);
            let mut exported = IpcEvent { reserved: [0; 64] };
            // SAFETY: the event was just made for other processes; the other is a place for its
            // handle.
            unsafe { calls.event_export(&mut exported, event) }?;
            let last = ring.slots.last_mut().expect("pushed a few lines above");
            last.exported = exported.reserved.map(|byte| byte as u8);
        }
        Ok(ring)
    }

    /// Makes the memory for numbers, which engines in isolation wait for in place of events.
    pub fn with_numbers(&mut self, stream: &Stream) -> Result<(), Failed> {
        self.numbers = Some(Numbers::create(&self.card, stream, self.slots.len())?);
        Ok(())
    }

    pub fn has_numbers(&self) -> bool {
        self.numbers.is_some()
    }

    /// A slot that nobody uses and whose last record is done, the longest unused first. None where
    /// all are taken: full is an answer.
    pub fn claim(&mut self, calls: &Calls) -> Result<Option<usize>, Failed> {
        for _ in 0..self.slots.len() {
            let at = self.next;
            self.next = (at + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if slot.busy || !self.done(calls, at)? {
                continue;
            }
            self.slots[at].busy = true;
            return Ok(Some(at));
        }
        Ok(None)
    }

    pub fn release(&mut self, slot: usize) {
        self.slots[slot].busy = false;
    }

    /// Whether the last record of a slot is done.
    pub fn done(&self, calls: &Calls, slot: usize) -> Result<bool, Failed> {
        let slot = &self.slots[slot];
        if !slot.recorded {
            return Ok(true);
        }
        // SAFETY: the event lives as long as the ring.
        done(unsafe { calls.event_query(slot.event) })
    }

    /// Records the end of what was queued, and says how the engine is told of it.
    pub fn record(
        &mut self,
        calls: &Calls,
        slot: usize,
        stream: &Stream,
        isolated: bool,
    ) -> Result<EventHandle, Failed> {
        let told = match &mut self.numbers {
            Some(numbers) if isolated => numbers.write(calls, slot, stream)?,
            _ => EventHandle::Shared(self.slots[slot].exported),
        };
        let slot = &mut self.slots[slot];
        // SAFETY: stream and event are ours, alive, and of one context.
        unsafe { calls.event_record(slot.event, stream.handle()) }?;
        slot.recorded = true;
        Ok(told)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Ok(calls) = self.card.bind() else { return };
        for slot in &self.slots {
            // SAFETY: made by `create`, destroyed once; the instance ends before its ring does.
            let _ = unsafe { calls.event_destroy(slot.event) };
        }
    }
}

/// Device memory with a number for each slot; every use of a slot writes one that is higher.
struct Numbers {
    card: Card,
    address: u64,
    exported: [u8; 64],
    written: Vec<u64>,
}

impl Numbers {
    fn create(card: &Card, stream: &Stream, slots: usize) -> Result<Numbers, Failed> {
        let calls = card.bind()?;
        let (bytes, mut address) = (slots * 8, 0);
        // SAFETY: the argument is a place for one pointer.
        unsafe { calls.memory_allocate(&mut address, bytes) }?;
        let written = vec![0; slots];
        let mut made = Numbers { card: card.clone(), address, exported: [0; 64], written };
        let mut exported = IpcMemory { reserved: [0; 64] };
        // SAFETY: the address is the base of our allocation; the other is a place for its handle.
        unsafe { calls.memory_export(&mut exported, address) }?;
        made.exported = exported.reserved.map(|byte| byte as u8);
        // Fresh memory holds anything, and a number that is too high would let everybody pass.
        // SAFETY: the whole allocation, and nobody else knows it yet.
        unsafe { calls.memory_set(address, 0, bytes, stream.handle()) }?;
        stream.synchronize(calls)?;
        Ok(made)
    }

    fn write(
        &mut self,
        calls: &Calls,
        slot: usize,
        stream: &Stream,
    ) -> Result<EventHandle, Failed> {
        let (offset, number) = (slot as u64 * 8, self.written[slot] + 1);
        // SAFETY: eight aligned bytes of our own allocation.
        unsafe { calls.value_write(stream.handle(), self.address + offset, number, 0) }?;
        self.written[slot] = number;
        let mut bytes = [ISOLATED_VERSION; 81];
        bytes[1..65].copy_from_slice(&self.exported);
        bytes[65..73].copy_from_slice(&offset.to_be_bytes());
        bytes[73..].copy_from_slice(&number.to_be_bytes());
        Ok(EventHandle::Isolated(bytes))
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        let Ok(calls) = self.card.bind() else { return };
        // SAFETY: the base of our allocation, freed once, after the streams that wrote to it.
        let _ = unsafe { calls.memory_free(self.address) };
    }
}

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const AT_LEAST: u32 = 0;
const ISOLATED_VERSION: u8 = 1;
