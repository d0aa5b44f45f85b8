//! What tests of tiers share: memory to move bytes of, names, and the endings that come.

use super::{Order, Tier};
use crate::arena::{Arena, Grower, Growth, Span, Window};
use kvtide_core::event::{DeleteOutcome, Event, Found, LoadOutcome, StoreOutcome};
use kvtide_core::format::names::{HashBytes, ObjectName};
use kvtide_core::names::{AdapterId, ArenaId, ChunkHash, KvRank, Place, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
use std::borrow::Cow;

/// An event that owns what it says.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    Scan(AdapterId),
    Probe(u32, Option<Vec<Option<Found>>>),
    Store(u32, StoreOutcome),
    Load(u32, LoadOutcome),
    Delete(u32, DeleteOutcome),
    Scrub(u32, Option<u32>),
}

pub struct Bench {
    pub window: Window,
    arena: Arena,
    _grower: Grower,
}

impl Bench {
    pub fn new() -> Bench {
        let (mut arena, mut grower) = Arena::private(BYTES).expect("a megabyte can be mapped");
        assert_eq!(grower.step(), Growth::Whole { usable: BYTES });
        arena.grown_to(BYTES);
        let window = arena.window().expect("private memory has no file to share");
        Bench { window, arena, _grower: grower }
    }

    /// The place of an object: 4 KiB each, so that there are 256.
    pub fn span(&self, number: u64) -> Span {
        let place = Place { arena: ArenaId(0), offset: number * OBJECT_BYTES, bytes: OBJECT_BYTES };
        self.arena.span(place).expect("it lies within the megabyte")
    }

    pub fn fill(&self, number: u64, byte: u8) {
        let bytes = [byte; OBJECT_BYTES as usize];
        self.window.copy_in(self.span(number), &bytes).expect("private memory can be written");
    }

    pub fn bytes(&self, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; OBJECT_BYTES as usize];
        self.window.copy_out(self.span(number), &mut bytes).expect("and read");
        bytes
    }
}

pub fn name(number: u8) -> ObjectName<'static> {
    ObjectName {
        model: Cow::Borrowed("llama"),
        rank: KvRank::of(1, 0).expect("a world of one"),
        group: 0,
        hash: HashBytes::from(ChunkHash([number; 32])),
        salt: "",
    }
}

pub fn ticket(number: u32) -> Ticket {
    Ticket(SlotName { index: number, generation: 0 })
}

pub fn order(number: u32, name: &ObjectName<'static>, now: Instant, give: impl FnOnce(Order<'_>)) {
    give(Order { ticket: ticket(number), name, now });
}

pub fn collect(tier: &mut Tier, now: Instant) -> Vec<Ended> {
    let mut ended = Vec::new();
    tier.collect(now, &mut |event| {
        ended.push(match event {
            Event::AdapterScanEnded { adapter } => Ended::Scan(adapter),
            Event::ProbeEnded { ticket, found } => {
                Ended::Probe(ticket.0.index, found.map(<[_]>::to_vec))
            }
            Event::StoreEnded { ticket, outcome } => Ended::Store(ticket.0.index, outcome),
            Event::LoadEnded { ticket, outcome } => Ended::Load(ticket.0.index, outcome),
            Event::DeleteEnded { ticket, outcome } => Ended::Delete(ticket.0.index, outcome),
            Event::ScrubEnded { ticket, digest } => Ended::Scrub(ticket.0.index, digest),
            other => panic!("no tier tells {other:?}"),
        });
    });
    ended
}

pub const OBJECT_BYTES: u64 = 4096;
const BYTES: u64 = 1 << 20;
