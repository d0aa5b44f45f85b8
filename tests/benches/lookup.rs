//! What one lookup costs from its frames to the engine's answer, and what the hand-written key
//! reader saves: beside it, in the same run and alternating, the same key goes through the `rmp`
//! library into a vector of tokens that is hashed afterwards.
//!
//!     cargo bench -p kvtide-tests --bench lookup
//!
//! Prints microseconds (medians of the rounds) and ratios; nothing is asserted.

use kvtide_core::config::{Config, HashAlgorithm, Limits};
use kvtide_core::effect::Outbox;
use kvtide_core::engine::Engine;
use kvtide_core::event::{Ask, Event, Keys, Registration};
use kvtide_core::front::hash::ChunkHasher;
use kvtide_core::front::{Body, Front, Step};
use kvtide_core::names::{ChunkHash, Connection, Dtype, InstanceId, Layout, Reply};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
use kvtide_core::wire::client::{Key, operation_frame, uid_frame};
use kvtide_core::wire::operation::Operation;
use std::hint::black_box;
use std::time::Duration;

const CHUNK: usize = 256;
const ROUNDS: usize = 31;
const NOBODY: SlotName = SlotName { index: 0, generation: 0 };
const REPLY: Reply = Reply { connection: Connection(NOBODY), request: NOBODY };

fn main() {
    println!("chunks  by hand us  by rmp us  ratio  memo us  engine hit us");
    for chunks in [1, 16, 128, 512] {
        let tokens: Vec<u32> = (0..(chunks * CHUNK) as u32).map(|t| t * 7 % 150_000).collect();
        let frames = frames_of(&tokens);
        let (mut hand, mut library) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            hand.push(time(|| by_hand(&mut Front::new(&config()), &frames)));
            library.push(time(|| by_library(&frames[2])));
        }
        let mut front = Front::new(&config());
        by_hand(&mut front, &frames);
        let memo = (0..ROUNDS).map(|_| time(|| by_hand(&mut front, &frames))).collect();
        let hashes = by_library(&frames[2]);
        let (hand, library, memo) = (median(hand), median(library), median(memo));
        let engine = engine_hit(&hashes);
        let ratio = library / hand;
        println!(
            "{chunks:>6}  {hand:>10.1}  {library:>9.1}  {ratio:>5.2}  {memo:>7.1}  {engine:>13.1}"
        );
    }
}

fn config() -> Config {
    let limits = Limits { sessions: 64, waits: 64, ..Limits::default() };
    Config { l1_objects_max: 4096, limits, ..Config::default() }
}

fn frames_of(tokens: &[u32]) -> Vec<Vec<u8>> {
    let mut key = Vec::new();
    let end = tokens.len() as u64;
    Key {
        model: "org/model",
        world_size: 1,
        worker: None,
        tokens,
        start: 0,
        end,
        request: "request-1",
        salt: "",
        readers: 1,
    }
    .encode(&mut key);
    vec![uid_frame(1), operation_frame(Operation::Lookup), key, vec![1]]
}

/// What the reactor does: the front, with as much budget as it wants.
fn by_hand(front: &mut Front, frames: &[Vec<u8>]) -> usize {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut job = front.begin(Body::Here);
    let mut out = Outbox::default();
    let mut budget = usize::MAX;
    match front.step(&mut job, &frames, &mut budget, &mut out) {
        Step::Ask(Ask::Lookup { keys }) => black_box(keys.hashes.len()),
        other => panic!("a lookup becomes a lookup: {other:?}"),
    }
}

/// The same key through a general library: tokens first, hashes afterwards.
fn by_library(frame: &[u8]) -> Vec<ChunkHash> {
    let mut at = frame;
    let fields = rmp::decode::read_map_len(&mut at).expect("the key is a map");
    let mut text = [0; 256];
    let mut tokens = Vec::new();
    for _ in 0..fields {
        let name = rmp::decode::read_str(&mut at, &mut text).expect("fields have names");
        match name {
            "token_ids" => {
                let count = rmp::decode::read_array_len(&mut at).expect("tokens are an array");
                tokens.reserve(count as usize);
                for _ in 0..count {
                    tokens.push(rmp::decode::read_int::<u32, _>(&mut at).expect("an int"));
                }
                break;
            }
            "model_name" => {
                rmp::decode::read_str(&mut at, &mut text).expect("a text");
            }
            "worker_id" => rmp::decode::read_nil(&mut at).expect("nobody in particular"),
            _ => {
                rmp::decode::read_int::<u64, _>(&mut at).expect("an int");
            }
        }
    }
    let mut hasher = ChunkHasher::new(HashAlgorithm::Blake3, CHUNK as u32);
    let mut hashes = Vec::with_capacity(tokens.len() / CHUNK);
    hasher.feed(&tokens, |hash| hashes.push(hash));
    black_box(hashes)
}

/// A lookup that hits all chunks, its poll and its end, in the engine alone.
fn engine_hit(hashes: &[ChunkHash]) -> f64 {
    let mut engine = Engine::new(config());
    let mut out = Outbox::default();
    let instance = InstanceId(1);
    let dtype = Dtype::named("float16").expect("a known type");
    let layout = Layout { planes: 2, layers: 1, slots: 256, hidden: 8, dtype };
    let registration =
        Registration { instance, model: "org/model", world_size: 1, block_size: 16, layout };
    let keys = |worker| Keys {
        model: "org/model",
        salt: "",
        request: "request-1",
        world_size: 1,
        worker,
        readers: 1,
        first_chunk: 0,
        end_chunk: hashes.len() as u32,
        hashes,
    };
    let bytes = engine.config().l1_bytes;
    engine.handle(Instant::ZERO, Event::ArenaGrown { bytes }, &mut out);
    for ask in [
        Ask::Register(registration),
        Ask::PrepareStore { instance, keys: keys(Some(0)) },
        Ask::CommitStore { instance, keys: keys(Some(0)), inline_bytes: 0 },
    ] {
        engine.handle(Instant::ZERO, Event::Asked { reply: REPLY, ask }, &mut out);
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(time(|| {
            for ask in [
                Ask::Lookup { keys: keys(None) },
                Ask::QueryPrefetch { request: "request-1" },
                Ask::FreeLookupLocks { keys: keys(None) },
                Ask::EndSession { request: "request-1", hashes: &[] },
            ] {
                out.clear();
                engine.handle(Instant::ZERO, Event::Asked { reply: REPLY, ask }, &mut out);
            }
        }));
    }
    median(times)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let start = std::time::Instant::now();
    black_box(work());
    start.elapsed()
}

/// In microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
