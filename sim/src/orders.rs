//! What the engine orders from its lower tiers, and what they are asked to hold, in a form that
//! owns everything and names objects as they are named at rest: what is at rest outlives the ids
//! of one server.

use crate::memory::Tag;
use crate::model::ObjectNumber;
use kvtide_core::event::{
    self, AdapterSetup, DeleteOutcome, LoadOutcome, PolicyKind, Scanned, StoreOutcome,
};
use kvtide_core::names::{AdapterId, ChunkHash, KvRank, Place, Seal, Ticket};
use kvtide_core::time::Duration;
use std::fmt;
use std::rc::Rc;

/// What an object is called at rest: everything of a key but its layout.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub model: Rc<str>,
    pub salt: Rc<str>,
    pub rank: KvRank,
    pub group: u16,
    pub hash: ChunkHash,
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:x}/{:?}", self.model, self.salt, self.rank.0 >> 16, self.hash)
    }
}

/// An owned `AdapterSetup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub name: String,
    pub is_shared: bool,
    pub keeps_data: bool,
    pub capacity_bytes: u64,
    pub objects_max: u32,
    pub charge_bytes: u32,
    pub policy: PolicyKind,
    pub watermark_ppm: u64,
    pub ratio_ppm: u64,
    pub stores_max: u32,
    pub loads_max: u32,
    pub probe_deadline: Duration,
    pub load_deadline: Duration,
    pub store_deadline: Duration,
    pub on_second_touch: bool,
    pub write_bytes_per_second: u64,
    pub write_bytes_per_day: u64,
    pub scrub_bytes_per_second: u64,
    pub verify: bool,
}

impl Setup {
    pub fn lent(&self) -> AdapterSetup<'_> {
        AdapterSetup {
            name: &self.name,
            is_shared: self.is_shared,
            keeps_data: self.keeps_data,
            capacity_bytes: self.capacity_bytes,
            objects_max: self.objects_max,
            charge_bytes: self.charge_bytes,
            policy: self.policy,
            watermark_ppm: self.watermark_ppm,
            ratio_ppm: self.ratio_ppm,
            stores_max: self.stores_max,
            loads_max: self.loads_max,
            probe_deadline: self.probe_deadline,
            load_deadline: self.load_deadline,
            store_deadline: self.store_deadline,
            on_second_touch: self.on_second_touch,
            write_bytes_per_second: self.write_bytes_per_second,
            write_bytes_per_day: self.write_bytes_per_day,
            scrub_bytes_per_second: self.scrub_bytes_per_second,
            verify: self.verify,
        }
    }

    /// What an object of this size takes at rest.
    pub fn charge(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(u64::from(self.charge_bytes.max(1)))
    }
}

/// One object that a scan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub name: Name,
    pub bytes: u64,
    pub seal: Option<Seal>,
}

impl Found {
    pub fn lent(&self) -> Scanned<'_> {
        Scanned {
            model: &self.name.model,
            salt: &self.name.salt,
            rank: self.name.rank,
            group: self.name.group,
            hash: self.name.hash,
            bytes: self.bytes,
            seal: self.seal,
        }
    }
}

/// An effect that is about a lower tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    Probe { ticket: Ticket, adapter: AdapterId, names: Vec<Name> },
    Store { ticket: Ticket, adapter: AdapterId, name: Name, what: Lies },
    Load { ticket: Ticket, adapter: AdapterId, name: Name, what: Lies },
    Delete { ticket: Ticket, adapter: AdapterId, name: Name, quarantine: bool },
    Digest { ticket: Ticket, name: Name, what: Lies },
    Scrub { ticket: Ticket, adapter: AdapterId, name: Name, bytes: u64 },
    Cancel { ticket: Ticket },
    Note { adapter: AdapterId, name: Name, note: Noted },
    Closed { adapter: AdapterId },
}

/// A line for an index at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    Stored { bytes: u64, seal: Option<Seal> },
    Used,
    Removed,
}

/// How something that was ordered from a lower tier has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Probe(Option<Rc<[Option<event::Found>]>>),
    Store(StoreOutcome),
    Load(LoadOutcome),
    Delete(DeleteOutcome),
    Digest(u32),
    Scrub(Option<u32>),
}

/// An object of L1 and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lies {
    pub place: Place,
    pub object: ObjectNumber,
}

impl Order {
    /// What its ending will name, where it has one.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Order::Probe { ticket, .. }
            | Order::Store { ticket, .. }
            | Order::Load { ticket, .. }
            | Order::Delete { ticket, .. }
            | Order::Digest { ticket, .. }
            | Order::Scrub { ticket, .. } => Some(*ticket),
            Order::Cancel { .. } | Order::Note { .. } | Order::Closed { .. } => None,
        }
    }

    /// The adapter that has to do it.
    pub fn adapter(&self) -> Option<AdapterId> {
        match self {
            Order::Probe { adapter, .. }
            | Order::Store { adapter, .. }
            | Order::Load { adapter, .. }
            | Order::Delete { adapter, .. }
            | Order::Scrub { adapter, .. }
            | Order::Note { adapter, .. }
            | Order::Closed { adapter } => Some(*adapter),
            Order::Digest { .. } | Order::Cancel { .. } => None,
        }
    }
}

/// The simulation's digest: any function of the name and of whose bytes they are. Two objects of
/// one name have the same digest only where their bytes are the same.
pub fn digest(name: &Name, content: impl IntoIterator<Item = Option<Tag>>) -> u32 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |word: u64| {
        sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        sum ^= sum >> 29;
    };
    name.model.bytes().chain([b'@']).chain(name.salt.bytes()).for_each(|byte| mix(byte.into()));
    mix(name.rank.0.into());
    mix(name.group.into());
    name.hash.0.iter().for_each(|byte| mix((*byte).into()));
    for tag in content {
        mix(tag.map_or(u64::MAX, |tag| tag.0));
    }
    (sum ^ (sum >> 32)) as u32
}
