//! Client copies: memory lent to clients, and what is being sent to or received from them.
//!
//! The invariant: a slot that a client may still read or write stays pinned until that client's
//! commit, its body or the end of its connection, whatever else happens (design P1). A write TTL,
//! an unregistered or reaped instance and a forced clear only *condemn* a reservation: its key is
//! free for others, its memory is not. A commit that comes after that publishes nothing, but gives
//! the memory back. So what writers hold in all is bounded
//! (`Config::lent_bytes_max`): clients that stop for good do not take more of L1 than that.
//!
//! What an end concerns may be more than one turn can visit. It counts from the event on all the
//! same: no commit finds a copy whose connection has ended, and none publishes for a registration
//! that has (`endings`).

mod audit;
mod commits;
mod endings;
mod paged;
mod retrieve;
mod store;

pub use commits::Committer;
use paged::Paged;
pub use paged::{BLOCKS_PER_CELL, Blocks};

use crate::config::{Config, Limits};
use crate::effect::{Slot, SlotRange};
use crate::engine::alarms::{Alarm, Timer};
use crate::engine::memory::{map_bytes, slots_bytes};
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{Abort, Fact};
use crate::limits::COPIES_PER_NAME_MAX;
use crate::names::{ArenaId, Place};
use crate::names::{ChunkHash, Connection, InstanceId, Layout, ObjectId, Reply, ScopeId, Ticket};
use crate::slots::{SlotName, Slots};
use crate::time::Instant;
use crate::{Map, SeededHash, map_with_capacity};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use smallvec::SmallVec;

/// What a commit names: the key without its request id (spec/transfer §1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingKey {
    pub kind: Kind,
    pub instance: InstanceId,
    /// Hash of the request id, for retrieves: no commit ends another request's read.
    pub reader: u64,
    pub scope: ScopeId,
    pub first_chunk: u32,
    pub end_chunk: u32,
    pub last: Option<ChunkHash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Store,
    Retrieve,
}

/// How a copy's objects are let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Reservations are given up.
    Abort(Abort),
    /// Readers are done.
    Unpin,
    /// A reader's connection ended before it said that it was done.
    Unread,
}

/// Who waits for the end of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Slots in a client's hands: ends by commit or end of stream, never named outside.
    ClientCopy(SlotName),
    Send(SlotName),
    Receive(SlotName),
    /// Bytes on their way between an engine's blocks and L1.
    Paged(SlotName),
}

#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub key: PendingKey,
    pub connection: Connection,
    registration: SlotName,
    /// Hash of the request id: whose copy it is.
    request: u64,
    pub objects: Vec<ObjectId>,
    /// Objects that it was admitted with, for readers.
    reads: usize,
    /// Position of each object within the range, for stores.
    pub chunks: Vec<u32>,
    /// Given up, and why; the first `taken_back` of its keys are free already.
    condemned: Option<Abort>,
    taken_back: usize,
    /// The client has said that it has read its slots, or was sent all of the bytes.
    was_read: bool,
    /// A commit has come for one of several copies under this name.
    committed: bool,
    /// It is being let go.
    is_ending: bool,
    /// Some chunk of the range found no room.
    short: bool,
    /// What its slots take, for stores whose slots were lent.
    lent_bytes: u64,
    /// What its `Effect::Copy` is about.
    paged: Option<Paged>,
    started: Instant,
    timer: Option<Timer>,
    pub lent: Option<Ticket>,
    pub stream: Option<Ticket>,
    reply: Option<Reply>,
    at_connection: u32,
    at_registration: u32,
}

/// Copies of one connection or registration, and whether that has ended.
#[derive(Clone, Debug, Default)]
struct Owned {
    names: Vec<SlotName>,
    ended: Option<Abort>,
    /// The instance of an ended registration had been seen to write to its slots.
    wrote_slots: bool,
}

impl Owner {
    fn sending(&self) -> Option<SlotName> {
        if let Owner::Send(name) = self { Some(*name) } else { None }
    }

    fn copying(&self) -> Option<SlotName> {
        if let Owner::Paged(name) = self { Some(*name) } else { None }
    }

    fn receiving(&self) -> Option<SlotName> {
        if let Owner::Receive(name) = self { Some(*name) } else { None }
    }
}

/// Which instance asks, as its registration says.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub instance: InstanceId,
    pub registration: SlotName,
    pub connection: Connection,
    pub reply: Reply,
    /// Hash of the request id.
    pub request: u64,
    pub layout: Layout,
    pub bytes: u64,
    pub scope: ScopeId,
    /// The row of this worker.
    pub row: u32,
    /// Slots are offered, payload is offered.
    pub offers: (bool, bool),
}

#[derive(Clone, Debug)]
pub struct Copies {
    pub(crate) copies: Slots<Copy>,
    pub(crate) tickets: Slots<Owner>,
    pending: Map<PendingKey, SmallVec<[SlotName; 2]>>,
    by_connection: Map<Connection, Owned>,
    by_registration: Map<SlotName, Owned>,
    /// Connections and registrations that have ended and still have copies.
    ended: usize,
    /// Objects that readers pin, each as often as it is read.
    pub(crate) reads: usize,
    /// Bytes of L1 that writers hold, staged or condemned.
    pub lent_bytes: u64,
    /// Server-driven copies in flight, and the block ids that they name.
    paged: usize,
    blocks: usize,
    pub stale_endings: u64,
    /// What the event at hand has made readable, the last chunk of each store first. The desk takes
    /// it on to lower tiers.
    pub(super) published: Vec<ObjectId>,
    hash: SeededHash,
    #[cfg(feature = "planted")]
    planted: u32,
}

impl Copies {
    pub fn new(limits: &Limits, seed: u64) -> Copies {
        Copies {
            copies: Slots::with_limit(limits.tickets),
            tickets: Slots::with_limit(2 * limits.tickets),
            pending: map_with_capacity(limits.tickets, seed ^ 4),
            // Those that have ended are in it while they have copies.
            by_connection: map_with_capacity(limits.tickets, seed ^ 5),
            by_registration: map_with_capacity(limits.tickets, seed ^ 6),
            ended: 0,
            reads: 0,
            lent_bytes: 0,
            paged: 0,
            blocks: 0,
            stale_endings: 0,
            published: Vec::new(),
            hash: SeededHash::new(seed ^ 11),
            #[cfg(feature = "planted")]
            planted: 0,
        }
    }

    #[cfg(feature = "planted")]
    pub(crate) fn plant(&mut self, number: u32) {
        self.planted = number;
    }

    /// All copies at their bounds.
    pub(crate) fn table_bytes(config: &Config) -> u64 {
        let limits = &config.limits;
        let cell = size_of::<ObjectId>() + size_of::<u32>();
        // What readers pin is listed once a reader; an object has one writer, whose lists double.
        let cells = (limits.lease_cells + 2 * config.l1_objects_max) * cell;
        // Lists of a connection and of a registration, and the names under one key.
        let names = (2 * SPARE_NAMES + COPIES_PER_NAME_MAX) * limits.tickets;
        slots_bytes::<Copy>(limits.tickets)
            + slots_bytes::<Owner>(2 * limits.tickets)
            + map_bytes::<PendingKey, SmallVec<[SlotName; 2]>>(limits.tickets)
            + map_bytes::<Connection, Owned>(limits.tickets)
            + map_bytes::<SlotName, Owned>(limits.tickets)
            + (cells + names * size_of::<SlotName>()) as u64
    }

    /// What a request id is remembered by. Two ids of one hash are taken for one request, whose
    /// copies cannot be told apart, and that is safe.
    pub fn request_hash(&self, request: &str) -> u64 {
        self.hash.hash_one(request)
    }

    fn admit_store(&mut self, turn: &mut Turn, copy: Copy) -> SlotName {
        let name = self.admit(copy);
        let at = turn.now + turn.config.write_ttl;
        let timer = turn.alarms.arm(at, Alarm::WriteExpiry, name);
        self.copies.find_mut(name).expect("admitted above").timer = Some(timer);
        name
    }

    fn admit(&mut self, mut copy: Copy) -> SlotName {
        let (connection, key) = (copy.connection, copy.key);
        let of_connection = self.by_connection.entry(connection).or_default();
        copy.at_connection = of_connection.names.len() as u32;
        let of_registration = self.by_registration.entry(copy.registration).or_default();
        copy.at_registration = of_registration.names.len() as u32;
        let name = self.copies.insert(copy).expect("the caller has looked for room");
        of_connection.names.push(name);
        of_registration.names.push(name);
        self.pending.entry(key).or_default().push(name);
        name
    }

    fn remove(&mut self, turn: &mut Turn, name: SlotName) {
        self.unlist(name);
        let copy = self.copies.remove(name).expect("removed once");
        assert!(copy.objects.is_empty(), "a copy ends after its pins");
        let owned = || self.by_registration.get(&copy.registration);
        let is_reaped = || owned().is_some_and(|owned| owned.ended == Some(Abort::Reaped));
        if !(planted!(self, 33) && is_reaped()) {
            self.reads -= copy.reads;
        }
        self.lent_bytes -= copy.lent_bytes;
        if let Some(timer) = copy.timer {
            turn.alarms.cancel(timer);
        }
        for ticket in [copy.lent, copy.stream].into_iter().flatten() {
            self.tickets.remove(ticket.0);
        }
        let (at_connection, at_registration) = (copy.at_connection, copy.at_registration);
        let taken = take_at(&mut self.by_connection, copy.connection, at_connection);
        self.ended -= taken.was_last_of_ended as usize;
        if let Some(moved) = taken.moved.and_then(|moved| self.copies.find_mut(moved)) {
            moved.at_connection = at_connection;
        }
        let taken = take_at(&mut self.by_registration, copy.registration, at_registration);
        self.ended -= taken.was_last_of_ended as usize;
        if let Some(moved) = taken.moved.and_then(|moved| self.copies.find_mut(moved)) {
            moved.at_registration = at_registration;
        }
    }

    /// Takes a copy off the list of those that a commit can name.
    fn unlist(&mut self, name: SlotName) {
        let key = self.copies.find(name).expect("unlisted while it exists").key;
        if let Some(names) = self.pending.get_mut(&key) {
            names.retain(|other| *other != name);
            if names.is_empty() {
                self.pending.remove(&key);
            }
        }
    }

    fn issue(&mut self, owner: Owner) -> Ticket {
        Ticket(self.tickets.insert(owner).expect("two tickets per copy have room"))
    }

    /// Ends a ticket whose owner is the copy that `copy_of` finds in it. One that has ended before,
    /// or is of another kind than its ending, changes nothing and is counted.
    fn end_ticket(
        &mut self,
        turn: &mut Turn,
        ticket: Ticket,
        copy_of: fn(&Owner) -> Option<SlotName>,
    ) -> Option<SlotName> {
        let copy = self.tickets.find(ticket.0).and_then(copy_of);
        if copy.is_none() {
            self.stale_endings += 1;
            turn.out.tell(Fact::StaleEnding);
            return None;
        }
        self.tickets.remove(ticket.0);
        copy
    }

    /// Whatever has this ticket's place now.
    fn successor(&self, ticket: Ticket, is_it: fn(&Owner) -> bool) -> Ticket {
        let found = self.tickets.at(ticket.0.index).filter(|(_, owner)| is_it(owner));
        found.map_or(ticket, |(name, _)| Ticket(name))
    }

    fn end_lent(&mut self, name: SlotName) {
        let copy = self.copies.find_mut(name).expect("called while it exists");
        if let Some(ticket) = copy.lent.take() {
            self.tickets.remove(ticket.0);
        }
    }

    fn list_slots(&self, turn: &mut Turn, copy: &Copy) -> SlotRange {
        let start = turn.out.slots.len() as u32;
        for (id, chunk) in copy.objects.iter().zip(&copy.chunks) {
            let place = place_of(turn, *id);
            turn.out.slots.push(Slot { chunk: *chunk, place });
        }
        SlotRange { start, end: turn.out.slots.len() as u32 }
    }

    pub fn in_flight(&self) -> usize {
        self.tickets.len()
    }
}

impl Asker {
    pub fn committer(&self) -> Committer {
        Committer { request: self.request, connection: self.connection }
    }
}

fn pending_key(kind: Kind, asker: &Asker, keys: &Keys) -> PendingKey {
    let chunks = keys.chunks();
    PendingKey {
        kind,
        instance: asker.instance,
        reader: if kind == Kind::Retrieve { asker.request } else { 0 },
        scope: asker.scope,
        first_chunk: chunks.start,
        end_chunk: chunks.end,
        last: last_hash(keys),
    }
}

fn last_hash(keys: &Keys) -> Option<ChunkHash> {
    keys.chunks().last().map(|last| keys.hashes[last as usize])
}

fn new_copy(turn: &Turn, asker: &Asker, key: PendingKey) -> Copy {
    Copy {
        key,
        connection: asker.connection,
        registration: asker.registration,
        request: asker.request,
        objects: Vec::new(),
        reads: 0,
        chunks: Vec::new(),
        condemned: None,
        taken_back: 0,
        was_read: false,
        committed: false,
        is_ending: false,
        short: false,
        lent_bytes: 0,
        paged: None,
        started: turn.now,
        timer: None,
        lent: None,
        stream: None,
        reply: None,
        at_connection: 0,
        at_registration: 0,
    }
}

fn place_of(turn: &Turn, id: ObjectId) -> Option<Place> {
    let extent = &turn.l1.objects.find(id.0)?.extent;
    Some(Place { arena: ArenaId(0), offset: extent.offset, bytes: extent.bytes })
}

/// What came of taking one copy off its owner's list.
struct Taken {
    /// The copy that stands in its place now.
    moved: Option<SlotName>,
    was_last_of_ended: bool,
}

/// Takes entry `at` out of a list by moving the last one there.
fn take_at<K: Eq + core::hash::Hash>(lists: &mut Map<K, Owned>, key: K, at: u32) -> Taken {
    let list = lists.get_mut(&key).expect("every copy is listed");
    list.names.swap_remove(at as usize);
    let moved = list.names.get(at as usize).copied();
    if list.names.capacity() > SPARE_NAMES.max(4 * list.names.len()) {
        list.names.shrink_to(2 * list.names.len());
    }
    let is_last = list.names.is_empty();
    let was_last_of_ended = is_last && list.ended.is_some();
    if is_last {
        lists.remove(&key);
    }
    Taken { moved, was_last_of_ended }
}

/// Places of a list of copies per copy in it: lists grow by doubling and shrink below a quarter.
const SPARE_NAMES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    // A list that had once been long kept its memory while it had a single copy: one after another,
    // every connection could have had such a list.
    #[test]
    fn p3_lists_of_copies_give_back_what_they_have_grown_to() {
        let name = |index| SlotName { index, generation: 0 };
        let mut lists = map_with_capacity(4, 1);
        let list: &mut Owned = lists.entry(7).or_default();
        list.names.extend((0..10_000).map(name));
        for left in (1..10_000u32).rev() {
            assert!(take_at(&mut lists, 7, left).moved.is_none());
            let names = &lists[&7].names;
            assert_eq!(names.len(), left as usize);
            assert!(
                names.capacity() <= SPARE_NAMES * names.len(),
                "{} for {left}",
                names.capacity()
            );
        }
    }
}
