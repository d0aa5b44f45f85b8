//! The inline body of a `commit_store` on its way from the socket to its places: a pickle of
//! tensors, read as it comes and never kept (design §7). Invariant: bytes go only to the places
//! that the engine reserved, and only within their length.

use crate::arena::{Arena, CopyFault};
use kvtide_core::effect::Slot;
use kvtide_core::event::{BodyOutcome, Event};
use kvtide_core::format::pickle::PickleReader;
use kvtide_core::names::{Layout, Place, Ticket};

#[derive(Debug)]
pub struct Body {
    ticket: Ticket,
    reader: PickleReader,
    /// One per tensor; None where its bytes are skipped.
    places: Vec<Option<Place>>,
    /// Memory did not take some of it.
    is_lost: bool,
}

impl Body {
    pub fn new(ticket: Ticket, slots: &[Slot], layout: Layout) -> Body {
        let places: Vec<Option<Place>> = slots.iter().map(|slot| slot.place).collect();
        let reader = PickleReader::new(layout, places.len() as u32);
        Body { ticket, reader, places, is_lost: false }
    }

    /// Memory that it holds.
    pub fn buffer_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<Place>>()
    }

    /// Takes in the next part, whatever its size.
    pub fn feed(&mut self, part: &[u8], arena: &mut Arena) {
        let (places, is_lost) = (&self.places, &mut self.is_lost);
        self.reader.feed(part, |span| {
            let place = places.get(span.chunk as usize).copied().flatten();
            let Some(place) = place else { return };
            match arena.copy_in(place, span.offset, span.bytes) {
                Ok(()) => {}
                // The reader stays within the layout, whose size the place has.
                Err(CopyFault::Outside(outside)) => unreachable!("a chunk fits: {outside}"),
                Err(CopyFault::Lost(_)) => *is_lost = true,
            }
        });
    }

    /// The frame has ended.
    pub fn ended(self) -> Event<'static> {
        let (complete, outcome) = match self.is_lost {
            true => (0, BodyOutcome::Short),
            false => self.reader.end(),
        };
        Event::ReceiveEnded { ticket: self.ticket, complete, outcome }
    }

    /// The connection has ended first.
    pub fn cut(self) -> Event<'static> {
        let complete = if self.is_lost { 0 } else { self.reader.end().0 };
        Event::ReceiveEnded { ticket: self.ticket, complete, outcome: BodyOutcome::Cut }
    }
}
