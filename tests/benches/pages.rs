//! What it costs to plan the copies of one chunk of paged KV cache.
//!
//!     cargo bench -p kvtide-tests --bench pages
//!
//! Prints nanoseconds of processor time per chunk (medians of the rounds); nothing is asserted.

use kvtide_core::names::Dtype;
use kvtide_core::pages::{Described, Group, Hint, Pages};
use kvtide_core::rng::Rng;
use std::hint::black_box;
use std::time::Duration;

const LAYERS: usize = 32;
const BLOCKS: u64 = 20_000;
const CHUNK_TOKENS: u32 = 256;
const ROUNDS: usize = 15;
const CHUNKS_PER_ROUND: usize = 20_000;

fn main() {
    // Blocks of 16 tokens, 8 heads of 128, K and V of a head together: 512 blocks per chunk.
    let slots_first = discover(&[BLOCKS, 16, 8, 256], Hint::Nhd);
    let heads_first = discover(&[BLOCKS, 8, 16, 256], Hint::Hnd);
    println!("chunk of 32 layers, 16 blocks      runs   ns per chunk");
    for (name, pages, neighbours) in [
        ("slots first, blocks anywhere", slots_first, false),
        ("slots first, neighbours", slots_first, true),
        ("heads first, blocks anywhere", heads_first, false),
    ] {
        let (runs, took) = plan(&pages, neighbours);
        println!("  {name:<30} {runs:>6} {:>14.0}", took.as_nanos() as f64);
    }
}

fn discover(shape: &[u64; 4], hint: Hint) -> Pages {
    let [_, one, two, width] = *shape;
    let stride = [one * two * width, two * width, width, 1];
    let dtype = Dtype::named("bfloat16").expect("torch has it");
    let tensor = Described { shape, stride: &stride, storage_offset: 0, dtype };
    let tensors = std::iter::repeat_n(tensor, LAYERS);
    let group = Group { tokens_per_block: 0, window_tokens: None };
    Pages::discover(tensors, Some(hint), group, CHUNK_TOKENS).expect("it is what vLLM has")
}

/// How many runs a chunk has, and what it takes to find them.
fn plan(pages: &Pages, neighbours: bool) -> (usize, Duration) {
    let mut rng = Rng::new(1);
    let count = u64::from(pages.blocks_per_object());
    let chunks: Vec<Vec<u32>> = (0..64)
        .map(|_| {
            let first = rng.below(BLOCKS - count);
            let id = |at| if neighbours { first + at } else { rng.below(BLOCKS) };
            (0..count).map(id).map(|block| block as u32).collect()
        })
        .collect();
    let mut runs = Vec::new();
    let mut took: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let started = now();
            for blocks in chunks.iter().cycle().take(CHUNKS_PER_ROUND) {
                runs.clear();
                pages.plan(black_box(blocks), 0, &mut runs).expect("all blocks are there");
                black_box(&runs);
            }
            (now() - started) / CHUNKS_PER_ROUND as u32
        })
        .collect();
    took.sort_unstable();
    (runs.len(), took[ROUNDS / 2])
}

fn now() -> Duration {
    let read = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(read.tv_sec as u64, read.tv_nsec as u32)
}
