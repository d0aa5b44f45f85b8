//! The independent model: what storage §5, §8 and wire §2.3 promise, written down as plainly as
//! possible. It knows nothing of the engine; it is told what was asked, answered and announced, and
//! says which sentence of the specs an answer breaks.
//!
//! Work that takes several turns, and deadlines that may be up to a tick late, leave moments in
//! which two answers are right. The model keeps three values for that (`Sure`), for the very
//! sessions, copies and objects that such work may be about (`holds`), and is exact again as soon
//! as the engine has no unfinished work.
//!
//! Of the core it uses the vocabulary: events, names, and time, in which promises are given.

mod aborts;
mod attachments;
mod below;
mod clients;
mod holds;
mod order;
mod orders;
mod paged;
mod reads;
mod releases;
mod room;
mod sessions;
mod stored;
mod stores;
mod transfers;

use crate::{calls::Range, orders::Name};
use kvtide_core::names::{ChunkHash, Connection, InstanceId, KvRank, Layout, Place, Reply, Ticket};
use kvtide_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

pub use attachments::{Due, Says};
pub use below::{Serving, StoreEnd, TierNews};
pub use clients::{Instance, Rejected};
pub use paged::{Began, Filled, Ordered};
pub use room::Arena;
pub use sessions::Session;
pub use transfers::{Copy, Kind};

/// What an answer or an announcement broke.
pub type Verdict = Result<(), String>;

/// One reservation, from its first byte to its last reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectNumber(pub u64);

/// Everything of a key but its hash (I-48).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    pub model: Rc<str>,
    pub salt: Rc<str>,
    pub world_size: u32,
    pub rank: u32,
    pub layout: Layout,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub scope: Rc<Scope>,
    pub hash: ChunkHash,
}

impl Key {
    /// What it is called at rest.
    pub fn name(&self) -> Name {
        let Scope { model, salt, world_size, rank, .. } = &*self.scope;
        let rank = KvRank::of(*world_size, *rank).expect("a rank of its world");
        Name { model: model.clone(), salt: salt.clone(), rank, group: 0, hash: self.hash }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sure {
    No,
    Maybe,
    Yes,
}

/// Why a committed object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// First of all in the order of eviction.
    InOrder,
    /// For the sake of an object that lies where it lay.
    ForRoom,
    Cleared,
    Forced,
    /// It was loaded, and nobody holds it any more.
    Temporary,
    /// A lower tier has it.
    Demoted,
}

/// Why a slot was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Held,
    Growing,
    Table,
    Classes,
    Lent,
    Busy,
    /// Behind the first that was refused.
    Trimmed,
}

/// Why a retrieve missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    NotFound,
    NotLeased,
    OtherKey,
}

/// Why a reservation is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    WriteTtl,
    StreamEnded,
    InstanceEnded,
    Forced,
    Body,
}

/// What was announced during one event.
#[derive(Clone, Debug, Default)]
pub struct News {
    pub reserved: Vec<Key>,
    pub committed: Vec<Key>,
    pub aborted: Vec<(Key, Aborted)>,
    /// What was used or removed, in the order of that.
    pub uses: Vec<(Key, Use)>,
    /// Instances that ended, and whether by silence.
    pub instances_ended: Vec<(InstanceId, bool)>,
    /// Slots that were asked for and refused.
    pub refused: Vec<(Key, Refused)>,
    pub missed: Option<Missed>,
    /// A release named nothing (F01).
    pub no_such_hold: bool,
    /// A table was full, and the request came to nothing.
    pub table_full: bool,
    /// Objects that count as retrieved.
    pub retrieved: usize,
    /// The watermark was looked at: bytes in use, and whether they had reached it.
    pub watermark: Option<(u64, bool)>,
    /// What lower tiers have done, in the order of that.
    pub below: Vec<TierNews>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Touched,
    Removed(Removed),
    /// A place was reserved for a load, which came to a good end, or was given up.
    Reserved,
    Published,
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Staged,
    Resident,
    Gone,
}

#[derive(Clone, Debug)]
struct Object {
    key: Key,
    state: State,
    /// For resident ones: whether a lookup finds it.
    readable: Sure,
    /// A forced clear came after its reservation.
    forced: bool,
    reserved_at: Instant,
    /// Where its bytes lie.
    place: Place,
    /// When it was used last, in numbers of uses.
    used: u64,
    /// A lease of an earlier object under its key may still be told of as a use.
    is_heir: bool,
    /// It was loaded, and leaves with its last lease.
    temporary: Sure,
}

/// Times and sizes that the promises depend on.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub read_ttl: Duration,
    pub write_ttl: Duration,
    pub session_ttl: Duration,
    pub linger: Duration,
    /// Zero: never.
    pub reap_after: Duration,
    pub registration_grace: Duration,
    /// Clients map the pool.
    pub is_shared: bool,
    /// What writers may have in their hands at once.
    pub lent_bytes_max: u64,
    /// Usage at which the tick begins to evict.
    pub watermark_bytes: u64,
    /// The order of eviction is that of last use, or none is known here.
    pub is_lru: bool,
    pub evicts: bool,
    pub arena: Arena,
    pub objects_max: usize,
    /// Sizes of tables.
    pub sessions: usize,
    pub lease_cells: usize,
    pub instances: usize,
    pub told: usize,
    pub copies: usize,
    /// What was loaded stays.
    pub retains: bool,
    /// What lower tiers have leaves L1.
    pub skips_l1: bool,
    /// Few lookups can go on below L1 at once.
    pub few_loads: bool,
    /// The block that engines name where they have none.
    pub null_block: Option<u32>,
}

/// How the blocks of an engine's memory make up chunks and objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub blocks: u32,
    pub per_chunk: u32,
    /// The last ones of each chunk.
    pub per_object: u32,
    pub tokens_per_block: u32,
}

/// What the event itself says is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Over {
    pub connection: Option<Connection>,
    /// A body, and the chunks of it that came whole.
    pub body: Option<(Ticket, u32)>,
}

/// How the event just handled has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// It left work over, its own or older.
    pub is_working: bool,
    /// It used up its units: what it began may not be finished. Otherwise it is.
    pub is_spent: bool,
}

/// Layouts in use, each with a running number of when it was registered last.
type Registered = Vec<(Layout, u64)>;

pub struct Model {
    rules: Rules,
    now: Instant,
    /// Every deadline up to here has been acted upon.
    settled: Instant,
    turn: Turn,
    /// How the event before that had ended.
    before: Turn,
    holds: holds::Leaving,
    /// Connections that have ended.
    ended: BTreeSet<Connection>,
    /// Bytes of the arena that can be used.
    grown: u64,
    uses: u64,
    /// What forced clears took while somebody may have been promised it.
    taken: BTreeSet<Key>,
    /// A pass of the tick has begun and ended with this event.
    is_passing: bool,
    /// What lower tiers kept in L1 when the pass began.
    passed_over: BTreeSet<ObjectNumber>,
    /// A stretch of the arena may be kept for somebody who was put off, for so many looks at the
    /// watermark.
    kept_for: u32,
    objects: Vec<Object>,
    /// Staged and resident objects by key.
    index: BTreeMap<Key, ObjectNumber>,
    copies: BTreeMap<u64, Copy>,
    copies_made: u64,
    sessions: BTreeMap<Rc<str>, Session>,
    sessions_made: u64,
    instances: BTreeMap<InstanceId, Instance>,
    layouts: BTreeMap<(Rc<str>, u32), Registered>,
    registrations: u64,
    /// Instances that ended by silence and have not come back.
    reaped: BTreeSet<InstanceId>,
    /// Oldest first.
    told: VecDeque<InstanceId>,
    /// Requests whose session is surely unknown by now, and whether they were ended.
    past: BTreeMap<Rc<str>, bool>,
    attachments: attachments::Attachments,
    below: below::Below,
}

impl Model {
    pub fn new(rules: Rules) -> Model {
        Model {
            rules,
            now: Instant::ZERO,
            settled: Instant::ZERO,
            turn: Turn::default(),
            before: Turn::default(),
            holds: holds::Leaving::default(),
            ended: BTreeSet::new(),
            grown: 0,
            uses: 0,
            taken: BTreeSet::new(),
            is_passing: false,
            passed_over: BTreeSet::new(),
            kept_for: 0,
            objects: Vec::new(),
            index: BTreeMap::new(),
            copies: BTreeMap::new(),
            copies_made: 0,
            sessions: BTreeMap::new(),
            sessions_made: 0,
            instances: BTreeMap::new(),
            layouts: BTreeMap::new(),
            registrations: 0,
            reaped: BTreeSet::new(),
            told: VecDeque::new(),
            past: BTreeMap::new(),
            attachments: attachments::Attachments::default(),
            below: below::Below::default(),
        }
    }

    /// Time has come this far, and so the event just handled has ended.
    pub fn at(&mut self, now: Instant, turn: Turn) {
        self.now = now;
        self.next_event();
        self.before = std::mem::replace(&mut self.turn, turn);
    }

    /// The first bytes of the arena can be used.
    pub fn grow(&mut self, bytes: u64) {
        self.grown = self.grown.max(bytes);
    }

    pub fn has_grown_to(&self, end: u64) -> bool {
        end <= self.grown
    }

    /// Takes in what went away. Before the answers of the same event are judged. `asked` is the
    /// range that the event is about: a store keeps what is there of it.
    pub fn hear(&mut self, news: &News, asked: Option<&Range>, over: Over) -> Verdict {
        self.ended.extend(over.connection);
        self.hear_tiers(&news.below)?;
        self.hear_stores_owed(news)?;
        self.hear_watermark(news)?;
        // A load may take the key of what has just been given up, or of what a clear has taken.
        let is_reserved =
            |key: &Key| news.uses.iter().any(|(of, what)| (of, what) == (key, &Use::Reserved));
        let is_early = |(key, why): &&(Key, Aborted)| *why == Aborted::Forced || is_reserved(key);
        for (key, why) in news.aborted.iter().filter(is_early) {
            self.aborted(key, *why, news, over)?;
        }
        self.hear_uses(news, asked)?;
        for (key, why) in news.aborted.iter().filter(|aborted| !is_early(aborted)) {
            self.aborted(key, *why, news, over)?;
        }
        for (instance, by_silence) in &news.instances_ended {
            self.instance_ended(*instance, *by_silence)?;
        }
        Ok(())
    }

    fn removed(&mut self, key: &Key, why: Removed, held: &BTreeSet<ObjectNumber>) -> Verdict {
        let number = self.index.remove(key).ok_or("I-49: removed what was not there")?;
        let object = &mut self.objects[number.0 as usize];
        check(object.state == State::Resident, "I-49: removed what was never committed")?;
        match why {
            Removed::Forced => check(object.forced, "I-1: a forced clear that nobody asked for")?,
            Removed::Cleared => check(
                object.readable != Sure::Yes,
                "I-1: cleared what was held, or what came after the clear",
            )?,
            Removed::Temporary => {
                check(object.temporary != Sure::No, "I-9: what was stored left as if loaded")?;
                let held = held.contains(&number) && !object.forced;
                check(!held, "I-1: a loaded object left under a live lease or copy")?;
            }
            Removed::Demoted => {
                let held = held.contains(&number) && !object.forced;
                check(!held, "I-1: a stored object left under a live lease or copy")?;
                self.check_demoted(number)?;
            }
            Removed::ForRoom | Removed::InOrder => {
                let held = held.contains(&number) && !object.forced;
                check(!held, "I-35: evicted under a live lease or copy")?;
                check(self.rules.evicts, "I-35: evicted, and the policy evicts nothing")?;
            }
        }
        self.objects[number.0 as usize].state = State::Gone;
        self.no_longer_present(number);
        Ok(())
    }

    /// Whether somebody may still read or write this object's memory.
    pub fn is_in_use(&self, number: ObjectNumber) -> bool {
        let object = &self.objects[number.0 as usize];
        object.state != State::Gone
            || self.copies.values().any(|copy| copy.names(number))
            || self.below.in_flight().any(|object| object == number)
    }

    /// The object under a key, written or not.
    pub fn number(&self, key: &Key) -> Option<ObjectNumber> {
        self.index.get(key).copied()
    }

    pub fn layout(&self, number: ObjectNumber) -> Layout {
        self.object(number).key.scope.layout
    }

    pub fn is_resident(&self, number: ObjectNumber) -> bool {
        self.objects[number.0 as usize].state == State::Resident
    }

    /// Committed objects, by key.
    pub fn residents(&self) -> impl Iterator<Item = (&Key, ObjectNumber)> {
        self.index
            .iter()
            .filter(|(_, number)| self.is_resident(**number))
            .map(|(key, number)| (key, *number))
    }

    /// What was used longest ago, of all that nobody holds.
    pub fn coldest(&self) -> Option<&Key> {
        let (_, held) = self.held();
        let free = self.residents().filter(|(_, number)| !held.contains(number));
        free.min_by_key(|(_, number)| self.object(*number).used).map(|(key, _)| key)
    }

    pub fn staged(&self) -> usize {
        let staged =
            |number: &&ObjectNumber| self.objects[number.0 as usize].state == State::Staged;
        self.index.values().filter(staged).count()
    }

    pub fn copies(&self) -> impl Iterator<Item = &Copy> {
        self.copies.values()
    }

    pub fn session(&self, request: &str) -> Option<&Session> {
        self.sessions.get(request)
    }

    pub fn instances(&self) -> impl Iterator<Item = (&InstanceId, &Instance)> {
        self.instances.iter()
    }

    fn object(&self, number: ObjectNumber) -> &Object {
        &self.objects[number.0 as usize]
    }

    /// Whether a lookup would find this key now.
    fn presence(&self, key: &Key) -> (Sure, Option<ObjectNumber>) {
        let Some(number) = self.index.get(key) else { return (Sure::No, None) };
        let object = self.object(*number);
        if object.state == State::Resident {
            (object.readable, Some(*number))
        } else {
            (Sure::No, None)
        }
    }
}

/// A transfer's request, with who sent it.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    pub connection: Connection,
    pub reply: Reply,
    pub instance: InstanceId,
    pub range: &'a Range,
}

/// What came of `prepare_store`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    NoContext,
    /// Positions within the range, and where their bytes go.
    Slots(Vec<(u32, Place)>),
}

/// What came of `prepare_retrieve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    Miss,
    /// Objects in the order of the range; whether their places were told; the ticket under which
    /// their bytes are sent.
    Hit {
        objects: Vec<ObjectNumber>,
        with_slots: bool,
        ticket: Option<Ticket>,
    },
}

pub(crate) fn check(holds: bool, rule: &str) -> Verdict {
    if holds { Ok(()) } else { Err(rule.into()) }
}
