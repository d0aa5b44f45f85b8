//! A folder of its own, an arena, and the shell of lower tiers between them; the test is the
//! engine.

use kvtide::arena::{Arena, Grower, L1, SegmentOptions};
use kvtide::tiers::files::status::TierStatus;
use kvtide::tiers::spec::{AdapterSpec, FilesSpec, Kind};
use kvtide::tiers::{Engine, Terms, Tiers, open};
use kvtide_core::effect::{Effect, L2KeyRange, Note, Outbox};
use kvtide_core::event::{DeleteOutcome, Event, Found, LoadOutcome, StoreOutcome};
use kvtide_core::format::names::{HashBytes, ObjectName};
use kvtide_core::names::{AdapterId, ChunkHash, KvRank, L2Key, Place, ScopeId, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
use mio::{Events, Poll, Token, Waker};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Far longer than anything takes: who waits so long was not woken.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Bed {
    pub folder: Folder,
    pub arena: Arena,
    pub tiers: Tiers,
    poll: Poll,
    pub heard: Heard,
    issued: u32,
}

/// Another number each time.
fn count() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// A folder that goes with its test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let name = format!("kvtide-disks-{}-{}-{test}", std::process::id(), count());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// What the shell has told.
#[derive(Default)]
pub struct Heard {
    endings: BTreeMap<Ticket, Told>,
    pub scans_ended: Vec<AdapterId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Probed(Option<Vec<Option<Found>>>),
    Stored(StoreOutcome),
    Loaded(LoadOutcome),
    Deleted(DeleteOutcome),
    Digested(u32),
    Scrubbed(Option<u32>),
}

impl Engine for Heard {
    fn l2_name(&self, key: &L2Key) -> ObjectName<'_> {
        name_of(key)
    }

    fn tell(&mut self, event: Event<'_>) {
        let (ticket, told) = match event {
            Event::ProbeEnded { ticket, found } => (ticket, Told::Probed(found.map(<[_]>::to_vec))),
            Event::StoreEnded { ticket, outcome } => (ticket, Told::Stored(outcome)),
            Event::LoadEnded { ticket, outcome } => (ticket, Told::Loaded(outcome)),
            Event::DeleteEnded { ticket, outcome } => (ticket, Told::Deleted(outcome)),
            Event::DigestEnded { ticket, digest } => (ticket, Told::Digested(digest)),
            Event::ScrubEnded { ticket, digest } => (ticket, Told::Scrubbed(digest)),
            Event::AdapterScanEnded { adapter } => return self.scans_ended.push(adapter),
            Event::AdapterAdded { .. } | Event::AdapterScanned { .. } => return,
            other => panic!("nothing else is told: {other:?}"),
        };
        let before = self.endings.insert(ticket, told);
        assert_eq!(before, None, "a ticket ends once");
    }
}

pub fn key(number: u8) -> L2Key {
    L2Key { hash: ChunkHash([number; 32]), scope: ScopeId(0) }
}

pub fn name_of(key: &L2Key) -> ObjectName<'static> {
    ObjectName {
        model: Cow::Borrowed("org/model"),
        rank: KvRank(0x0100_0100),
        group: 0,
        hash: HashBytes::from(key.hash),
        salt: "",
    }
}

pub fn files(spec: &mut AdapterSpec) -> &mut FilesSpec {
    match &mut spec.kind {
        Kind::Files(files) => files,
        #[allow(unreachable_patterns)]
        other => panic!("a tier of files was asked for: {other:?}"),
    }
}

/// A spec for a folder. Everything is said that a test might rely on.
pub fn spec(folder: &Path, direct: bool, without_ring: bool) -> AdapterSpec {
    let mut spec = AdapterSpec::files(folder.to_path_buf());
    spec.queue_depth = 16;
    let of_files = files(&mut spec);
    (of_files.use_odirect, of_files.without_ring) = (direct, without_ring);
    spec
}

impl Bed {
    pub fn new(test: &str, direct: bool, without_ring: bool) -> Bed {
        let folder = Folder::new(test);
        let spec = spec(&folder.0, direct, without_ring);
        Bed::with(folder, spec, 24 << 20)
    }

    pub fn with(folder: Folder, spec: AdapterSpec, arena_bytes: u64) -> Bed {
        let (arena, grower) = Arena::private(arena_bytes).expect("memory can be mapped");
        Bed::over(folder, spec, arena, grower)
    }

    /// The same in memory that clients can map.
    pub fn shared(test: &str, arena_bytes: u64) -> Bed {
        let folder = Folder::new(test);
        let spec = spec(&folder.0, true, false);
        let name = format!("test_{}_disks_{test}", std::process::id());
        let options = SegmentOptions { name: Some(name), mode: 0o600, group: None };
        let (arena, grower) = Arena::shared(&options, arena_bytes).expect("there is room");
        Bed::over(folder, spec, arena, grower)
    }

    fn over(folder: Folder, spec: AdapterSpec, mut arena: Arena, mut grower: Grower) -> Bed {
        grower.run(|growth| {
            arena.grown_to(growth.usable());
            ControlFlow::Continue(())
        });
        let poll = Poll::new().expect("a poll can be made");
        let waker = Waker::new(poll.registry(), Token(0)).expect("a waker can be made");
        let terms = Terms {
            window: arena.window().expect("a window can be had"),
            wake: Arc::new(move || waker.wake().expect("the poll is there")),
            server: format!("{:08x}-89ab-cdef-0123-456789abcdef", count()),
        };
        let mut tiers = Tiers::new(terms);
        tiers.grown(arena.usable_bytes());
        let opened = open(spec, tiers.terms()).expect("the folder can be opened");
        let mut heard = Heard::default();
        let registry = (poll.registry(), Token(1));
        let added = tiers.add(opened, registry, &mut heard).expect("it can be registered");
        assert_eq!(added, Some(AdapterId(0)));
        let mut bed = Bed { folder, arena, tiers, poll, heard, issued: 0 };
        // Until all of the arena is registered, a step a turn.
        while bed.tiers.is_eager() {
            bed.turn();
        }
        bed
    }

    pub fn path(&self, key: &L2Key) -> PathBuf {
        self.folder.0.join(name_of(key).file().expect("the key has a name"))
    }

    pub fn place(&self, offset: u64, bytes: u64) -> Place {
        Place { arena: L1, offset, bytes }
    }

    pub fn fill(&mut self, place: Place, seed: u8) {
        self.arena.copy_in(place, 0, &pattern(place.bytes, seed)).expect("the place is usable");
    }

    pub fn bytes(&self, place: Place) -> &[u8] {
        self.arena.slice(place).expect("the place is usable")
    }

    pub fn store(&mut self, key: L2Key, place: Place) -> Ticket {
        self.order(|ticket| Effect::StoreObject { ticket, adapter: AdapterId(0), key, place })
    }

    pub fn load(&mut self, key: L2Key, place: Place) -> Ticket {
        self.order(|ticket| Effect::LoadObject { ticket, adapter: AdapterId(0), key, place })
    }

    pub fn delete(&mut self, key: L2Key, quarantine: bool) -> Ticket {
        let adapter = AdapterId(0);
        self.order(|ticket| Effect::DeleteObject { ticket, adapter, key, quarantine })
    }

    pub fn digest(&mut self, key: L2Key, place: Place) -> Ticket {
        self.order(|ticket| Effect::Digest { ticket, key, place })
    }

    pub fn scrub(&mut self, key: L2Key, bytes: u64) -> Ticket {
        self.order(|ticket| Effect::Scrub { ticket, adapter: AdapterId(0), key, bytes })
    }

    pub fn note(&mut self, key: L2Key, note: Note) {
        self.order(|_| Effect::Note { adapter: AdapterId(0), key, note });
    }

    pub fn probe(&mut self, keys: &[L2Key]) -> Ticket {
        let orders = Outbox { l2_keys: keys.to_vec(), ..Outbox::default() };
        let keys = L2KeyRange { start: 0, end: keys.len() as u32 };
        self.order_of(&orders, |ticket| Effect::Probe { ticket, adapter: AdapterId(0), keys })
    }

    pub fn cancel(&mut self, ticket: Ticket) {
        self.order(|_| Effect::Cancel { ticket });
    }

    fn order(&mut self, effect: impl FnOnce(Ticket) -> Effect) -> Ticket {
        self.order_of(&Outbox::default(), effect)
    }

    fn order_of(&mut self, orders: &Outbox, effect: impl FnOnce(Ticket) -> Effect) -> Ticket {
        let ticket = Ticket(SlotName { index: self.issued, generation: 0 });
        self.issued += 1;
        let Bed { tiers, arena, heard, .. } = self;
        tiers.carry_out(Instant::ZERO, effect(ticket), orders, arena, heard);
        ticket
    }

    /// One turn, as the reactor's.
    pub fn turn(&mut self) {
        let heard = &mut self.heard;
        self.tiers.collect(Instant::ZERO, &mut |event| heard.tell(event));
        self.tiers.submit(Instant::ZERO);
    }

    /// Sleeps until something wakes the poll, unless the next turn has something to do anyway.
    pub fn wait(&mut self) {
        let at_most = if self.tiers.is_eager() { Duration::ZERO } else { PATIENCE };
        let mut events = Events::with_capacity(16);
        match self.poll.poll(&mut events, Some(at_most)) {
            Ok(()) => {
                let is_woken = !events.is_empty() || at_most.is_zero();
                assert!(is_woken, "nothing has woken the poll: {:?}", self.status());
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Interrupted),
        }
    }

    /// Turns and sleeps until this ticket has ended.
    pub fn end(&mut self, ticket: Ticket) -> Told {
        self.turn();
        loop {
            if let Some(told) = self.heard.endings.get(&ticket) {
                return told.clone();
            }
            self.wait();
            self.turn();
        }
    }

    pub fn has_ended(&self, ticket: Ticket) -> bool {
        self.heard.endings.contains_key(&ticket)
    }

    /// Until nothing is on its way any more.
    pub fn settle(&mut self) {
        self.turn();
        while !self.tiers.is_idle() {
            self.wait();
            self.turn();
        }
    }

    pub fn status(&self) -> TierStatus {
        self.tiers.status()[0].clone().expect("the tier is there")
    }

    /// Names in the folder, ours apart.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder.0).expect("the folder is there");
        let names = entries.map(|entry| entry.expect("it can be read").file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }
}

/// Bytes of which no two blocks are the same.
pub fn pattern(bytes: u64, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) << 32 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut made = vec![0; bytes.next_multiple_of(8) as usize];
    for word in made.chunks_exact_mut(8) {
        word.copy_from_slice(&next().to_le_bytes());
    }
    made.truncate(bytes as usize);
    made
}

/// Whether this thread may lock as much memory as it likes.
pub fn may_lock_memory() -> bool {
    let sets = rustix::thread::capabilities(None).expect("they can be asked for");
    sets.effective.contains(rustix::thread::CapabilitySet::IPC_LOCK)
}
