//! The longest turn of the engine in events that are about a hundred thousand things at once.
//!
//!     cargo bench -p kvtide-tests --bench turns
//!
//! Prints milliseconds; the aim is at most 5 for any turn (design §2). Nothing is asserted.

use kvtide_core::config::{Config, Limits};
use kvtide_core::effect::Outbox;
use kvtide_core::engine::{Alarm, Engine};
use kvtide_core::event::{Ask, Event, Keys, Registration};
use kvtide_core::names::{ChunkHash, Connection, Dtype, InstanceId, Layout, Reply};
use kvtide_core::rng::Rng;
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};

const CHUNKS: usize = 4000;
const BATCHES: usize = 25;
const INSTANCE: InstanceId = InstanceId(1);
const NOBODY: SlotName = SlotName { index: 0, generation: 0 };
const CONNECTION: Connection = Connection(NOBODY);
const REPLY: Reply = Reply { connection: CONNECTION, request: NOBODY };

fn main() {
    let scenes: [(&str, Play); 8] = [
        ("stores of 4000 chunks", Scene::store),
        ("lookups of 4000 chunks", Scene::look_up),
        ("stores that evict 4000 chunks", Scene::store_over),
        ("clear of 100 000 objects", Scene::clear),
        ("forced clear of 100 000 leases", Scene::clear_leased),
        ("100 000 leases run out at once", Scene::expire),
        ("unregister with 100 000 slots", Scene::unregister),
        ("end of stream with 100 000 slots", Scene::end_stream),
    ];
    println!("longest turn, ms   turns   scene");
    for (name, scene) in scenes {
        // The best of three: what the machine does beside this is not the engine's.
        let runs = (0..3).map(|_| {
            let mut run = Scene::new();
            scene(&mut run);
            (run.longest, run.turns)
        });
        let (longest, turns) = runs.min().expect("three runs");
        println!("{:>16.2}   {turns:>5}   {name}", longest.as_secs_f64() * 1e3);
    }
}

type Play = fn(&mut Scene);

struct Scene {
    engine: Engine,
    out: Outbox,
    now: Instant,
    prompts: Vec<Vec<ChunkHash>>,
    longest: Duration,
    turns: u64,
}

impl Scene {
    fn new() -> Scene {
        let config = Config {
            l1_bytes: 64 << 20,
            l1_align_bytes: 512,
            l1_objects_max: 1 << 20,
            watermark_ppm: 1_000_000,
            limits: Limits { lent_ppm: 1_000_000, ..Limits::default() },
            ..Config::default()
        };
        let bytes = config.l1_bytes;
        let mut rng = Rng::new(3);
        let prompts = (0..BATCHES + 10)
            .map(|_| (0..CHUNKS).map(|_| ChunkHash(random(&mut rng))).collect())
            .collect();
        let mut scene = Scene {
            engine: Engine::new(config),
            out: Outbox::default(),
            now: Instant::ZERO,
            prompts,
            longest: Duration::ZERO,
            turns: 0,
        };
        scene.handle(Event::ArenaGrown { bytes });
        let dtype = Dtype::named("float16").expect("a known type");
        let layout = Layout { planes: 1, layers: 1, slots: 16, hidden: 16, dtype };
        let registration =
            Registration { instance: INSTANCE, model: "m", world_size: 1, block_size: 16, layout };
        scene.ask(Ask::Register(registration));
        scene
    }

    fn handle(&mut self, event: Event<'_>) {
        self.out.clear();
        let start = now();
        self.engine.handle(self.now, event, &mut self.out);
        self.longest = self.longest.max(now() - start);
        self.turns += 1;
    }

    fn ask(&mut self, ask: Ask<'_>) {
        self.handle(Event::Asked { reply: REPLY, ask });
    }

    /// Forgets what came before the event that a scene is about.
    fn begin(&mut self) {
        (self.longest, self.turns) = (Duration::ZERO, 0);
    }

    fn settle(&mut self) {
        while matches!(self.engine.deadline(), Some((_, Alarm::Work))) {
            self.handle(Event::Tick);
        }
    }

    fn prepare(&mut self, batches: std::ops::Range<usize>, commit: bool) {
        for batch in batches {
            let prompt = self.prompts[batch].clone();
            let keys = keys(&prompt, "store", Some(0));
            self.ask(Ask::PrepareStore { instance: INSTANCE, keys });
            if commit {
                self.ask(Ask::CommitStore { instance: INSTANCE, keys, inline_bytes: 0 });
            }
        }
    }

    /// Once before, so that the tables' memory is there: a page that is touched first costs more
    /// than what is written into it.
    fn store(&mut self) {
        self.prepare(0..BATCHES, true);
        self.ask(Ask::Clear { force: false });
        self.settle();
        self.begin();
        self.prepare(0..BATCHES, true);
    }

    fn look_up(&mut self) {
        self.store();
        self.begin();
        for batch in 0..BATCHES {
            let prompt = self.prompts[batch].clone();
            let request = format!("r{batch}");
            self.ask(Ask::Lookup { keys: keys(&prompt, &request, None) });
            self.settle();
        }
        assert_eq!(self.engine.status().lease_units as usize, CHUNKS * BATCHES);
    }

    fn store_over(&mut self) {
        self.store();
        self.prepare(0..BATCHES + 10, true);
        self.begin();
        self.prepare(0..BATCHES, true);
        assert!(self.engine.status().evicted_objects > 0, "the pool is full");
    }

    fn clear(&mut self) {
        self.store();
        self.begin();
        self.ask(Ask::Clear { force: false });
        self.settle();
        assert_eq!(self.engine.status().objects, 0);
    }

    fn clear_leased(&mut self) {
        self.look_up();
        self.begin();
        self.ask(Ask::Clear { force: true });
        self.settle();
        assert_eq!(self.engine.status().objects, 0);
    }

    fn expire(&mut self) {
        self.look_up();
        self.begin();
        self.now = Instant::from_secs(3600);
        self.handle(Event::Tick);
        self.settle();
        assert_eq!(self.engine.status().lease_units, 0);
    }

    fn unregister(&mut self) {
        self.store();
        self.ask(Ask::Clear { force: false });
        self.settle();
        self.prepare(0..BATCHES, false);
        self.begin();
        self.ask(Ask::Unregister { instance: INSTANCE });
        self.settle();
        assert_eq!(self.engine.status().staged_objects, 0);
    }

    fn end_stream(&mut self) {
        self.store();
        self.ask(Ask::Clear { force: false });
        self.settle();
        self.prepare(0..BATCHES, false);
        self.begin();
        self.handle(Event::ConnectionEnded { connection: CONNECTION });
        self.settle();
        assert_eq!(self.engine.status().objects, 0);
    }
}

fn keys<'a>(prompt: &'a [ChunkHash], request: &'a str, worker: Option<u32>) -> Keys<'a> {
    Keys {
        model: "m",
        salt: "",
        request,
        world_size: 1,
        worker,
        readers: 1,
        first_chunk: 0,
        end_chunk: prompt.len() as u32,
        hashes: prompt,
    }
}

fn random(rng: &mut Rng) -> [u8; 32] {
    let mut bytes = [0; 32];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes
}

/// Processor time of this thread: what else the machine does is not the engine's.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
