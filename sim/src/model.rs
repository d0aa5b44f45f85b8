//! The independent model: what storage §5, §8 and wire §2.3 promise, written down as plainly as
//! possible. It knows nothing of the engine; it is told what was asked, answered and announced, and
//! says which sentence of the specs an answer breaks.
//!
//! Work that takes several turns, and deadlines that may be up to a tick late, leave moments in
//! which two answers are right. The model keeps three values for that (`Sure`) and is exact again
//! as soon as the engine has no unfinished work.

mod clients;
mod sessions;
mod stores;
mod transfers;

use crate::calls::Range;
use kvtide_core::names::{ChunkHash, Connection, InstanceId, Layout, Reply, Ticket};
use kvtide_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub use clients::Instance;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sure {
    No,
    Maybe,
    Yes,
}

/// Why a committed object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    ForRoom,
    Cleared,
    Forced,
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
    pub removed: Vec<(Key, Removed)>,
    /// Instances that ended, and whether by silence.
    pub instances_ended: Vec<(InstanceId, bool)>,
    /// Slots that were asked for and refused.
    pub refused: Vec<Key>,
    /// A release named nothing (F01).
    pub no_such_hold: bool,
    /// Objects that count as retrieved.
    pub retrieved: usize,
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
    /// Tables are so small that any request may meet a full one.
    pub tables_may_fill: bool,
}

/// Layouts in use, each with a running number of when it was registered last.
type Registered = Vec<(Layout, u64)>;

pub struct Model {
    rules: Rules,
    now: Instant,
    /// Every deadline up to here has been acted upon.
    settled: Instant,
    /// The engine has unfinished work.
    is_working: bool,
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
    told: BTreeSet<InstanceId>,
}

impl Model {
    pub fn new(rules: Rules) -> Model {
        Model {
            rules,
            now: Instant::ZERO,
            settled: Instant::ZERO,
            is_working: false,
            objects: Vec::new(),
            index: BTreeMap::new(),
            copies: BTreeMap::new(),
            copies_made: 0,
            sessions: BTreeMap::new(),
            sessions_made: 0,
            instances: BTreeMap::new(),
            layouts: BTreeMap::new(),
            registrations: 0,
            told: BTreeSet::new(),
        }
    }

    /// Time has come this far; `is_working` says whether the event just handled left work over.
    pub fn at(&mut self, now: Instant, is_working: bool) {
        self.now = now;
        self.is_working = is_working;
    }

    /// Takes in what went away. Before the answers of the same event are judged.
    pub fn hear(&mut self, news: &News) -> Verdict {
        let (surely_held, _) = self.held();
        for (key, why) in &news.removed {
            self.removed(key, *why, &surely_held)?;
        }
        for (key, why) in &news.aborted {
            self.aborted(key, *why)?;
        }
        for (instance, by_silence) in &news.instances_ended {
            self.instance_ended(*instance, *by_silence)?;
        }
        Ok(())
    }

    fn removed(
        &mut self,
        key: &Key,
        why: Removed,
        surely_held: &BTreeSet<ObjectNumber>,
    ) -> Verdict {
        let number = self.index.remove(key).ok_or("I-49: removed what was not there")?;
        let object = &mut self.objects[number.0 as usize];
        check(object.state == State::Resident, "I-49: removed what was never committed")?;
        match why {
            Removed::Forced => check(object.forced, "I-1: a forced clear that nobody asked for")?,
            Removed::Cleared => check(
                object.readable != Sure::Yes,
                "I-1: cleared what was held, or what came after the clear",
            )?,
            Removed::ForRoom => {
                let held = surely_held.contains(&number) && !object.forced;
                check(!held, "I-35: evicted under a live lease or copy")?;
            }
        }
        object.state = State::Gone;
        self.no_longer_present(number);
        Ok(())
    }

    fn aborted(&mut self, key: &Key, why: Aborted) -> Verdict {
        let number = self.index.remove(key).ok_or("I-49: aborted what was not reserved")?;
        let object = &mut self.objects[number.0 as usize];
        check(object.state == State::Staged, "I-49: aborted what was committed")?;
        match why {
            Aborted::WriteTtl => {
                let due = object.reserved_at + self.rules.write_ttl;
                check(self.now >= due, "I-44: the write TTL passed early")?;
            }
            Aborted::Forced => check(object.forced, "a forced clear that nobody asked for")?,
            Aborted::StreamEnded | Aborted::InstanceEnded | Aborted::Body => {}
        }
        object.state = State::Gone;
        Ok(())
    }

    /// `clear`: everything unheld is absent from now on; with `force`, everything.
    pub fn clear(&mut self, force: bool) {
        let (surely, maybe) = self.held();
        let numbers: Vec<ObjectNumber> = self.index.values().copied().collect();
        for number in numbers {
            let object = &mut self.objects[number.0 as usize];
            object.forced |= force;
            if object.state != State::Resident {
                continue;
            }
            let left = match (force, surely.contains(&number), maybe.contains(&number)) {
                (true, _, _) => Sure::No,
                (false, true, _) => Sure::Yes,
                (false, false, true) => Sure::Maybe,
                (false, false, false) => Sure::No,
            };
            object.readable = object.readable.min(left);
            if object.readable != Sure::Yes {
                self.no_longer_present(number);
            }
        }
    }

    /// All deadlines up to `settled` were acted upon. Where no work is left over either, whatever
    /// was uncertain has been decided; where something should have ended by now, it must have.
    pub fn settle(&mut self, settled: Option<Instant>) -> Verdict {
        self.settled = self.settled.max(settled.unwrap_or_default());
        if self.is_working {
            return Ok(());
        }
        self.decide_lookups();
        for number in self.index.values() {
            let object = &mut self.objects[number.0 as usize];
            match object.state {
                State::Resident => {
                    check(object.readable != Sure::No, "I-49: cleared, swept and never told")?;
                    object.readable = Sure::Yes;
                }
                State::Staged => {
                    let writing = self.copies.values().any(|copy| copy.names(*number));
                    check(writing, "I-11: a reservation outlived its writer")?;
                    let due = object.reserved_at + self.rules.write_ttl;
                    check(due > self.settled, "I-44: the write TTL passed and nothing happened")?;
                    check(!object.forced, "I-49: cleared by force, swept and never told")?;
                }
                State::Gone => unreachable!("the index holds what is there"),
            }
        }
        self.settle_given_up()?;
        self.settle_instances()
    }

    /// Objects that surely cannot go now, and objects of which that is possible.
    fn held(&self) -> (BTreeSet<ObjectNumber>, BTreeSet<ObjectNumber>) {
        let mut surely = BTreeSet::new();
        let mut maybe = BTreeSet::new();
        for copy in self.copies.values() {
            surely.extend(copy.objects.iter().map(|(_, number)| *number));
        }
        for session in self.sessions.values() {
            session.add_held(self, &mut surely, &mut maybe);
        }
        if self.is_working {
            // A lookup under way holds some of what it asks for, and what was given back a moment
            // ago may still be on its way.
            maybe.extend(self.index.values().copied());
        }
        (surely, maybe)
    }

    /// Whether somebody may still read or write this object's memory.
    pub fn is_in_use(&self, number: ObjectNumber) -> bool {
        let object = &self.objects[number.0 as usize];
        object.state != State::Gone || self.copies.values().any(|copy| copy.names(number))
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
    /// Positions within the range.
    Slots(Vec<u32>),
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
