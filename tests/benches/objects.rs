//! What a request costs the engine with ten million resident objects, beside ten thousand, and what
//! an object's metadata takes. Places are synthetic: the engine never touches payload.
//!
//!     cargo bench -p kvtide-tests --bench objects [-- OBJECTS]
//!
//! Prints nanoseconds per request (medians of the rounds, the two sizes alternating) and bytes;
//! nothing is asserted.

use kvtide_core::config::{Config, Limits};
use kvtide_core::effect::Outbox;
use kvtide_core::engine::Engine;
use kvtide_core::engine::memory::table_bytes;
use kvtide_core::event::{Ask, Event, Keys, Registration};
use kvtide_core::names::{ChunkHash, Connection, Dtype, InstanceId, Layout, Reply};
use kvtide_core::rng::Rng;
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNKS: usize = 16;
const OBJECT_BYTES: u64 = 512;
const INSTANCE: InstanceId = InstanceId(1);
const NOBODY: SlotName = SlotName { index: 0, generation: 0 };
const REPLY: Reply = Reply { connection: Connection(NOBODY), request: NOBODY };
const ROUNDS: usize = 15;
const REQUESTS_PER_ROUND: usize = 2000;

/// Counts what is allocated and not given back.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; the counter changes nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        ALLOCATED.fetch_add(block.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(block) }
    }

    unsafe fn alloc_zeroed(&self, block: Block) -> *mut u8 {
        ALLOCATED.fetch_add(block.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc_zeroed(block) }
    }

    unsafe fn dealloc(&self, at: *mut u8, block: Block) {
        ALLOCATED.fetch_sub(block.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let wanted = std::env::args().find_map(|word| word.parse().ok());
    let many: usize = wanted.unwrap_or(10_000_000);
    print_metadata(many);
    let mut few = Full::new(10_000);
    let mut full = Full::new(many);
    println!(
        "objects   chunks of a prompt   lookup, wait, free, end   prepare and commit (evicts)"
    );
    for prompts in [Prompts::Neighbours, Prompts::Scattered] {
        let (mut lookups, mut stores) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..ROUNDS {
            for (at, one) in [&mut few, &mut full].into_iter().enumerate() {
                lookups[at].push(one.lookups(prompts));
                stores[at].push(one.stores());
            }
        }
        let lookups = lookups.map(median);
        let stores = stores.map(median);
        for (at, objects) in [10_000, many].into_iter().enumerate() {
            let (lookup, store) = (lookups[at], stores[at]);
            println!("{objects:>8}   {prompts:?}   {lookup:>8.0} ns   {store:>8.0} ns");
        }
        let more = [lookups[1] - lookups[0], stores[1] - stores[0]];
        let ratio = [lookups[1] / lookups[0], stores[1] / stores[0]];
        println!("   ratio {:.2} and {:.2}", ratio[0], ratio[1]);
        println!("   more by {:.0} ns and {:.0} ns", more[0], more[1]);
    }
}

/// What the tables say that they take, and what the allocator says.
fn print_metadata(many: usize) {
    for objects in [1_000_000, many] {
        let listed = |objects| -> u64 {
            let of_objects = ["objects", "eviction policy", "arena"];
            let tables = table_bytes(&config(objects));
            let mine = tables.iter().filter(|(name, _)| of_objects.contains(name));
            mine.map(|(_, bytes)| bytes).sum()
        };
        let per_object = listed(objects) as f64 / objects as f64;
        println!("{objects:>8} objects: {per_object:.1} bytes each, by the list of tables");
    }
    let taken = |objects: usize| {
        let before = ALLOCATED.load(Ordering::Relaxed);
        let full = Full::new(objects);
        let taken = ALLOCATED.load(Ordering::Relaxed) - before;
        // The hashes are this program's own.
        let hashes = full.hashes.capacity() * size_of::<ChunkHash>();
        drop(full);
        taken - hashes as u64
    };
    let (small, large) = (taken(10_000), taken(1_000_000));
    let per_object = (large - small) as f64 / 990_000.0;
    println!(" 1000000 objects: {per_object:.1} bytes each, by the allocator");
}

fn config(objects: usize) -> Config {
    let limits = Limits::default();
    let bytes = (objects as u64 * OBJECT_BYTES).next_multiple_of(64 << 20);
    Config {
        l1_bytes: bytes,
        l1_align_bytes: OBJECT_BYTES,
        l1_objects_max: objects,
        watermark_ppm: 1_000_000,
        write_ttl: Duration::from_secs(1 << 30),
        limits,
        ..Config::default()
    }
}

/// Which objects a prompt's chunks are.
#[derive(Clone, Copy, Debug)]
enum Prompts {
    /// Stored one after the other, as prompts are.
    Neighbours,
    /// Anywhere: the worst that can be asked.
    Scattered,
}

/// An engine whose object table is full.
struct Full {
    engine: Engine,
    out: Outbox,
    hashes: Vec<ChunkHash>,
    rng: Rng,
    now: Instant,
}

impl Full {
    fn new(objects: usize) -> Full {
        let mut full = Full {
            engine: Engine::new(config(objects)),
            out: Outbox::default(),
            hashes: Vec::with_capacity(objects),
            rng: Rng::new(7),
            now: Instant::ZERO,
        };
        let bytes = full.engine.config().l1_bytes;
        full.engine.handle(full.now, Event::ArenaGrown { bytes }, &mut full.out);
        let dtype = Dtype::named("float16").expect("a known type");
        let layout = Layout { planes: 1, layers: 1, slots: 16, hidden: 16, dtype };
        let registration =
            Registration { instance: INSTANCE, model: "m", world_size: 1, block_size: 16, layout };
        full.ask(Ask::Register(registration));
        let hashes: Vec<ChunkHash> = (0..objects).map(|_| hash(&mut full.rng)).collect();
        for prompt in hashes.chunks(CHUNKS) {
            full.store(prompt);
        }
        assert_eq!(full.engine.status().objects as usize, objects, "the table is full");
        full.hashes = hashes;
        full
    }

    fn ask(&mut self, ask: Ask<'_>) {
        self.out.clear();
        self.engine.handle(self.now, Event::Asked { reply: REPLY, ask }, &mut self.out);
        black_box(&self.out);
    }

    fn store(&mut self, prompt: &[ChunkHash]) {
        let keys = keys(prompt, Some(0));
        self.ask(Ask::PrepareStore { instance: INSTANCE, keys });
        self.ask(Ask::CommitStore { instance: INSTANCE, keys, inline_bytes: 0 });
    }

    /// Nanoseconds per request that hits all of its chunks.
    fn lookups(&mut self, prompts: Prompts) -> f64 {
        let count = self.hashes.len() as u64;
        let asked: Vec<ChunkHash> = (0..REQUESTS_PER_ROUND)
            .flat_map(|_| {
                let at = self.rng.below(count / CHUNKS as u64) * CHUNKS as u64;
                let place = |chunk: u64| match prompts {
                    Prompts::Neighbours => at + chunk,
                    Prompts::Scattered => self.rng.below(count),
                };
                let places: Vec<u64> = (0..CHUNKS as u64).map(place).collect();
                places.into_iter().map(|place| self.hashes[place as usize]).collect::<Vec<_>>()
            })
            .collect();
        let start = now();
        for prompt in asked.chunks(CHUNKS) {
            let keys = keys(prompt, None);
            self.ask(Ask::Lookup { keys });
            self.ask(Ask::WaitPrefetch { request: "r", wait: Duration::from_secs(1) });
            self.ask(Ask::FreeLookupLocks { keys });
            self.ask(Ask::EndSession { request: "r", hashes: &[] });
        }
        (now() - start).as_nanos() as f64 / REQUESTS_PER_ROUND as f64
    }

    /// Nanoseconds per store of new chunks, each of which evicts one. They are looked up later, in
    /// place of those that go: the order of eviction is that of the last use.
    fn stores(&mut self) -> f64 {
        let asked: Vec<ChunkHash> =
            (0..STORES_PER_ROUND * CHUNKS).map(|_| hash(&mut self.rng)).collect();
        let before = self.engine.status().evicted_objects;
        let start = now();
        for prompt in asked.chunks(CHUNKS) {
            self.store(prompt);
        }
        let took = (now() - start).as_nanos() as f64 / STORES_PER_ROUND as f64;
        assert_eq!(self.engine.status().evicted_objects - before, asked.len() as u64);
        self.replace_evicted(&asked);
        took
    }

    /// Takes the hashes of evicted objects out of those that are asked for.
    fn replace_evicted(&mut self, stored: &[ChunkHash]) {
        let at = self.rng.below((self.hashes.len() - stored.len()) as u64 / CHUNKS as u64);
        let at = at as usize * CHUNKS;
        self.hashes[at..at + stored.len()].copy_from_slice(stored);
    }
}

const STORES_PER_ROUND: usize = 50;

fn keys(prompt: &[ChunkHash], worker: Option<u32>) -> Keys<'_> {
    Keys {
        model: "m",
        salt: "",
        request: "r",
        world_size: 1,
        worker,
        readers: 1,
        first_chunk: 0,
        end_chunk: prompt.len() as u32,
        hashes: prompt,
    }
}

fn hash(rng: &mut Rng) -> ChunkHash {
    let mut bytes = [0; 32];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    ChunkHash(bytes)
}

/// Processor time of this thread: what else the machine does is not the engine's.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
