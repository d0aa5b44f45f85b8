//! A directory with one file per object (`fs`, `fs_native`).
//!
//! Orders wait in three queues and are carried out at a bounded number of places, each with one
//! file: loads first, then stores, then what has time; yet each kind has a place as long as it has
//! work. Invariant: an order ends exactly once, and its bytes belong to it until then.

pub mod status;

mod catalog;
mod engine;
mod folders;
mod job;
mod load;
mod memory;
mod no_ring;
mod open;
mod ring;
mod store;
mod threads;
mod upkeep;

use super::{Order, Terms};
use crate::arena::sizing::Bytes;
use crate::arena::{Span, Window};
use catalog::Catalog;
pub use catalog::Closing;
use engine::{Chain, Engine};
pub use folders::OWN;
use folders::{Folders, Temporaries, file_name};
use job::{Class, Ending, Job, Rules, Work, fault};
use kvtide_core::effect::Note;
use kvtide_core::event::{DeleteOutcome, Event, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::format::names::ObjectName;
use kvtide_core::limits::DISK_BYTES_PER_TURN;
use kvtide_core::names::{AdapterId, Ticket};
use load::Load;
use memory::BLOCK_BYTES;
use mio::{Registry, Token};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use status::TierStatus;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use store::Store;
pub use upkeep::SCRUB_PIECE_BYTES;
use upkeep::{Delete, Probe, Scrub};

#[derive(Debug)]
pub struct FileTier {
    engine: Engine,
    rules: Rules,
    window: Window,
    folders: Arc<Folders>,
    temporaries: Temporaries,
    catalog: Catalog,
    /// By class, not begun.
    queues: [VecDeque<Job>; 3],
    places: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Places whose job has its next chain to begin.
    resume: VecDeque<usize>,
    /// Places by class.
    running: [usize; 3],
    /// Ended, and not told yet.
    ended: Vec<(Ticket, Ending)>,
    back: Vec<(usize, Chain)>,
    /// Orders that have not ended.
    orders: u64,
    /// Bytes of the arena that have memory behind them.
    usable: u64,
    /// The look through the folder has found more than was told in this turn.
    has_more_found: bool,
    reasons: Vec<String>,
}

/// How much a tier can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub capacity_bytes: u64,
    /// Bytes at rest are whole multiples of this.
    pub charge_bytes: u32,
}

/// Whether a job's next chain was begun.
enum Begun {
    Yes,
    /// It is over, and its place free.
    Over,
    /// Not before chains have come back.
    NoRoom,
    /// Not in this turn.
    NoBudget,
}

impl FileTier {
    fn of(
        engine: Engine,
        (rules, places): (Rules, usize),
        folders: Arc<Folders>,
        terms: &Terms,
        (catalog, temporaries): (Catalog, Temporaries),
    ) -> FileTier {
        FileTier {
            engine,
            rules,
            window: terms.window.clone(),
            folders,
            temporaries,
            catalog,
            queues: Default::default(),
            places: (0..places).map(|_| None).collect(),
            free: (0..places).rev().collect(),
            resume: VecDeque::new(),
            running: [0; 3],
            ended: Vec::new(),
            back: Vec::new(),
            orders: 0,
            usable: 0,
            has_more_found: false,
            reasons: Vec::new(),
        }
    }

    fn with_reasons(mut self, reasons: Vec<String>) -> FileTier {
        self.reasons = reasons;
        self
    }

    pub fn probe<'a>(&mut self, ticket: Ticket, names: impl Iterator<Item = ObjectName<'a>>) {
        let objects: Vec<_> = names.collect();
        // What can have no file is not there.
        let names: Vec<_> = objects.iter().map(|name| file_name(name).ok()).collect();
        self.orders += 1;
        if names.is_empty() {
            self.ended.push((ticket, Ending::Probed(Some(Vec::new()))));
            return;
        }
        self.catalog.ask(ticket, &objects);
        self.queue(Job::new(ticket, Work::Probe(Probe::new(names))));
    }

    pub fn store(&mut self, order: Order<'_>, span: Span) {
        self.orders += 1;
        match file_name(order.name) {
            Ok(name) => {
                let temporary = self.temporaries.name(&name);
                let store = Store::new(span, name, temporary, &self.rules);
                self.queue(Job::new(order.ticket, Work::Store(store)));
            }
            Err(error) => {
                let failed = StoreOutcome::Failed(fault(error));
                self.ended.push((order.ticket, Ending::Stored(failed)));
            }
        }
    }

    pub fn load(&mut self, order: Order<'_>, span: Span) {
        self.orders += 1;
        match file_name(order.name) {
            Ok(name) => {
                let load = Load::new(span, name, &self.rules);
                self.queue(Job::new(order.ticket, Work::Load(load)));
            }
            Err(_) => self.ended.push((order.ticket, Ending::Loaded(LoadOutcome::Absent))),
        }
    }

    pub fn delete(&mut self, order: Order<'_>, quarantine: bool) {
        self.orders += 1;
        let quarantine = quarantine && self.folders.has_quarantine();
        match file_name(order.name) {
            Ok(name) => {
                let delete = Delete::new(name, quarantine);
                if quarantine {
                    self.catalog.quarantined();
                }
                self.queue(Job::new(order.ticket, Work::Delete(delete)));
            }
            Err(_) => self.ended.push((order.ticket, Ending::Deleted(DeleteOutcome::Absent))),
        }
    }

    pub fn scrub(&mut self, order: Order<'_>, bytes: u64) {
        self.orders += 1;
        let native = order.name.native();
        match (file_name(order.name), native) {
            (Ok(name), Ok(native)) => {
                let scrub = Scrub::new(name, &native, bytes, &self.rules);
                self.queue(Job::new(order.ticket, Work::Scrub(scrub)));
            }
            _ => self.ended.push((order.ticket, Ending::Scrubbed(None))),
        }
    }

    fn queue(&mut self, job: Job) {
        self.queues[job.class() as usize].push_back(job);
    }

    /// Nobody waits for this ticket any more, if it is one of these.
    pub fn cancel(&mut self, ticket: Ticket) {
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|job| job.ticket == ticket) {
                let mut job = queue.remove(at).expect("it was just found there");
                let ending = job.give_up(TierFault::Cancelled);
                self.ended.push((ticket, ending.expect("what was not begun has left nothing")));
                return;
            }
        }
        if self.catalog.cancel(ticket) {
            self.ended.push((ticket, Ending::Probed(None)));
            return;
        }
        let is_it = |job: &Option<Job>| job.as_ref().is_some_and(|job| job.ticket == ticket);
        let Some(place) = self.places.iter().position(is_it) else { return };
        let job = self.places[place].as_mut().expect("it was just found there");
        if job.has_ended() {
            return;
        }
        job.is_cancelled = true;
        if self.resume.contains(&place) {
            let ending = job.give_up(TierFault::Cancelled);
            self.ended.extend(ending.map(|ending| (ticket, ending)));
        } else {
            self.engine.cancel(place);
        }
    }

    pub fn note(&mut self, name: &ObjectName<'_>, note: Note) {
        self.catalog.note(name, note);
    }

    pub fn added(&mut self, adapter: AdapterId) {
        self.catalog.start_scan(adapter);
        // What woke the poll for it may have come before.
        self.has_more_found = true;
    }

    /// The first `usable` bytes of the arena have memory behind them.
    pub fn grown(&mut self, usable: u64) {
        self.usable = self.usable.max(usable);
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.engine.register(registry, token)
    }

    /// Threads of the system that may wait for the device at once.
    pub fn workers(&self) -> u32 {
        self.places.len() as u32
    }

    /// All rings of a thread share its threads of the system.
    pub fn limit_workers(&self, all: u32) {
        if let Engine::Ring(ring) = &self.engine {
            ring.limit_workers(all);
        }
    }

    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) {
        self.has_more_found = self.catalog.collect(tell);
        self.engine.collect(&mut self.back);
        for (place, chain) in self.back.drain(..) {
            let job = self.places[place].as_mut().expect("a chain comes back to its job");
            if let Some(ending) = job.took(chain, &self.window) {
                self.ended.push((job.ticket, ending));
            }
            self.resume.push_back(place);
        }
        for (ticket, found) in self.catalog.answered() {
            self.orders -= 1;
            Ending::Probed(Some(found)).tell(ticket, tell);
        }
        for (ticket, ending) in self.ended.drain(..) {
            let ending = match ending {
                Ending::Probed(found) => self.catalog.looked(ticket, found).map(Ending::Probed),
                ending => Some(ending),
            };
            if let Some(ending) = ending {
                self.orders -= 1;
                ending.tell(ticket, tell);
            }
        }
    }

    /// Begins with what waits, as far as places and budget go. True where the next turn could go
    /// on.
    pub fn submit(&mut self, budget: &mut u64) -> bool {
        let mut is_eager = self.register_next();
        while let Some(place) = self.next_place() {
            match self.begin(place, budget) {
                Begun::Yes | Begun::Over => {}
                Begun::NoRoom => {
                    self.resume.push_front(place);
                    break;
                }
                Begun::NoBudget => {
                    self.resume.push_front(place);
                    is_eager = true;
                    break;
                }
            }
        }
        let is_flushed = self.engine.flush();
        is_eager || !is_flushed || self.has_more_found || !self.ended.is_empty()
    }

    /// Whose turn it is: a job that was begun goes on before another begins.
    fn next_place(&mut self) -> Option<usize> {
        if let Some(place) = self.resume.pop_front() {
            return Some(place);
        }
        let class = self.next_class()?;
        let place = self.free.pop()?;
        let job = self.queues[class as usize].pop_front().expect("its class was chosen for it");
        self.running[class as usize] += 1;
        self.places[place] = Some(job);
        Some(place)
    }

    fn next_class(&self) -> Option<Class> {
        let waits = |class: &Class| !self.queues[*class as usize].is_empty();
        let waiting = || Class::ALL.into_iter().filter(waits);
        let idle = waiting().find(|class| self.running[*class as usize] == 0);
        // Some places are left to those whom somebody waits for.
        let others = self.running[Class::Store as usize] + self.running[Class::Upkeep as usize];
        let is_crowded = others + self.places.len() / LOAD_SHARE >= self.places.len();
        idle.or_else(|| waiting().find(|class| *class == Class::Load || !is_crowded))
    }

    fn begin(&mut self, place: usize, budget: &mut u64) -> Begun {
        if !self.engine.has_room(STEPS_MAX) {
            return Begun::NoRoom;
        }
        let job = self.places[place].as_mut().expect("it has a next chain to begin");
        let bytes = job.next_bytes().min(DISK_BYTES_PER_TURN);
        if bytes > *budget {
            return Begun::NoBudget;
        }
        let Some(chain) = job.next(&self.rules, &self.window, bytes) else {
            self.running[job.class() as usize] -= 1;
            self.places[place] = None;
            self.free.push(place);
            return Begun::Over;
        };
        debug_assert!(chain.steps.len() <= STEPS_MAX, "{chain:?}");
        *budget -= bytes;
        self.engine.begin(place, chain);
        Begun::Yes
    }

    /// One step of the arena a turn, as pinning it takes a while. True where there are more.
    fn register_next(&mut self) -> bool {
        let Engine::Ring(ring) = &mut self.engine else { return false };
        match ring.register_step(self.usable) {
            Ok(more) => more,
            Err(error) => {
                let reason = unregistered(error, self.window.mapped_bytes());
                tracing::warn!("L2: {reason}");
                self.reasons.push(reason);
                false
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.orders == 0 && self.resume.is_empty() && self.engine.is_idle()
    }

    /// A device that does not answer is not waited for.
    pub fn close(self) -> Option<Closing> {
        self.catalog.close()
    }

    pub fn status(&self) -> TierStatus {
        let moved = self.engine.moved();
        let all = moved.registered_direct_bytes + moved.direct_bytes + moved.buffered_bytes;
        let (engine, registered, thread_bytes) = match &self.engine {
            Engine::Ring(ring) => ("io_uring", ring.has_registered(self.usable), 0),
            Engine::Threads(_) => ("threads", false, all),
        };
        TierStatus {
            engine,
            direct: self.rules.direct,
            registered,
            queue_depth: self.places.len() as u32,
            reason: self.reasons.join("; "),
            orders: self.orders,
            registered_direct_bytes: moved.registered_direct_bytes,
            direct_bytes: moved.direct_bytes,
            buffered_bytes: moved.buffered_bytes,
            thread_bytes,
        }
    }
}

/// Why the arena is not registered, with what there is and what it takes (F44).
fn unregistered(error: Errno, needed: u64) -> String {
    let needed = Bytes(needed);
    match (error, getrlimit(Resource::Memlock).current) {
        (Errno::NOMEM | Errno::PERM, allowed) => format!(
            "L1 cannot be registered with io_uring: that locks {needed} and {} are allowed; raise \
             it (ulimit -l, LimitMEMLOCK=, --ulimit memlock=); transfers work without",
            allowed.map_or("no more".to_owned(), |bytes| format!("{} KiB", bytes / 1024)),
        ),
        _ => format!("L1 cannot be registered with io_uring ({error}); transfers work without"),
    }
}

/// An order with its two names and what its chain takes while it is on its way: steps, outcomes,
/// and blocks of its own for what is no whole block.
pub const ORDER_BYTES_MAX: usize = size_of::<Job>() + (4 << 10) + 2 * BLOCK_BYTES as usize;
/// More steps than any chain has.
const STEPS_MAX: usize = 32;
/// The part of the places that only loads and probes take.
const LOAD_SHARE: usize = 4;
