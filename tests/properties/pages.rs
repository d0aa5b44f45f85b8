//! Plans of paged KV caches against a walk over every element.
//!
//! The walk knows the strides of each axis and nothing of formats, blocks or runs. Both move
//! numbers in place of bytes, all different, so that a byte in the wrong place cannot pass.

use kvtide_core::names::Dtype;
use kvtide_core::pages::{
    BlockFault, Described, Format, Group, Hint, Pages, PagesFault, Run, Shape,
};
use kvtide_core::rng::Rng;

/// What an index of a cache consists of, in the order of `Cache::sizes` and `Cache::strides`.
const AXES: [Axis; 6] =
    [Axis::Plane, Axis::Layer, Axis::Block, Axis::Slot, Axis::Head, Axis::Element];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Plane,
    Layer,
    Block,
    Slot,
    Head,
    Element,
}

use Axis::{Block, Element, Head, Layer, Plane, Slot};

/// The axes of one tensor as they lie in memory, and the hints that go with it.
fn order(format: u8) -> (&'static [Axis], &'static [Option<Hint>]) {
    const SLOTS: &[Option<Hint>] = &[Some(Hint::Nhd), Some(Hint::Blnhc)];
    const HEADS: &[Option<Hint>] = &[Some(Hint::Hnd), Some(Hint::Blhnc), None];
    const ANY: &[Option<Hint>] = &[Some(Hint::Nhd), Some(Hint::Hnd), Some(Hint::Blnhc), None];
    match format {
        0 => (&[Block, Layer, Plane, Slot, Head, Element], &[Some(Hint::Nhd), None]),
        1 => (&[Plane, Block, Slot, Head, Element], SLOTS),
        2 => (&[Block, Plane, Slot, Head, Element], SLOTS),
        3 => (&[Block, Slot, Element], ANY),
        6 => (&[Plane, Block, Head, Slot, Element], HEADS),
        7 => (&[Block, Plane, Head, Slot, Element], HEADS),
        12 => (&[Block, Head, Slot, Element], HEADS),
        13 => (&[Block, Slot, Head, Element], SLOTS),
        14 => (&[Block, Slot, Element], ANY),
        _ => unreachable!("no such format"),
    }
}

const FORMATS: [u8; 9] = [0, 1, 2, 3, 6, 7, 12, 13, 14];

/// A cache as an engine would have it.
#[derive(Clone, Debug)]
struct Cache {
    format: u8,
    hint: Option<Hint>,
    dtype: Dtype,
    /// By `AXES`.
    sizes: [usize; 6],
    /// Elements, by `AXES`. That of layers counts within one storage.
    strides: [usize; 6],
    shape: Vec<u64>,
    stride: Vec<u64>,
    /// Elements from the start of its storage to each tensor.
    offsets: Vec<usize>,
    /// Whether all tensors lie in one storage.
    shared: bool,
    storage_elements: usize,
    group: Group,
    tokens_per_block: usize,
    chunk_tokens: usize,
}

impl Cache {
    fn random(rng: &mut Rng) -> Cache {
        let format = FORMATS[rng.below(9) as usize];
        Cache::of(format, rng)
    }

    fn of(format: u8, rng: &mut Rng) -> Cache {
        let (axes, hints) = order(format);
        let hint = hints[rng.below(hints.len() as u64) as usize];
        let indexer = format == 14;
        let dtypes = ["uint8", "float8_e4m3fn", "bfloat16", "float32"];
        let dtype = if indexer { "uint8" } else { dtypes[rng.below(4) as usize] };
        let mut size = |name: Axis, most: u64| match name {
            Plane if !axes.contains(&Plane) => 1,
            Plane => 2,
            Head if !axes.contains(&Head) => 1,
            Element if indexer => 132,
            // Two blocks would pass for two planes, or for a format that is not served.
            Block if matches!(format, 0 | 2 | 7) => [1, 3, 4, 7][rng.below(4) as usize],
            _ => 1 + rng.below(most) as usize,
        };
        let sizes = [
            size(Plane, 2),
            size(Layer, 3),
            size(Block, 9),
            size(Slot, 4),
            size(Head, 3),
            size(Element, 5),
        ];
        let [_, layers, blocks, slots, ..] = sizes;
        let (strides, storage, gap) = strides(format, axes, sizes, rng);
        let shared = gap > 0 || rng.below(4) == 0;
        let first = rng.below(5) as usize;
        let tensors = if format == 0 { 1 } else { layers };
        let between = if gap > 0 { gap } else { storage };
        let offsets = (0..tensors).map(|at| first + if shared { at * between } else { 0 });
        let offsets: Vec<usize> = offsets.collect();
        let storage_elements = offsets[tensors - 1] + storage + rng.below(5) as usize;
        let compressed = 1 + rng.below(2) as usize;
        let tokens_per_block = slots * compressed;
        let per_chunk = 1 + rng.below(6) as usize;
        let chunk_tokens = per_chunk * tokens_per_block;
        let window_tokens = match rng.below(5) {
            0 => Some(0),
            1 => Some(chunk_tokens + rng.below(3) as usize),
            2 | 3 => Some((1 + rng.below(per_chunk as u64) as usize) * tokens_per_block),
            _ => None,
        };
        let window_tokens = window_tokens.map(|tokens| tokens as u32);
        let unsaid = compressed == 1 && rng.below(2) == 0;
        let group = Group {
            tokens_per_block: if unsaid { 0 } else { tokens_per_block as u32 },
            window_tokens,
        };
        let mut logical: Vec<Axis> = axes.to_vec();
        // Engines name slots and heads in an order of their own; the strides tell.
        let places = [Slot, Head].map(|each| logical.iter().position(|axis| *axis == each));
        if let ([Some(slot), Some(head)], true) = (places, swaps(format, &sizes, rng)) {
            logical.swap(slot, head);
        }
        let pick =
            |from: &[usize; 6]| logical.iter().map(|axis| from[place(*axis)] as u64).collect();
        let (shape, stride) = (pick(&sizes), pick(&strides));
        let dtype = Dtype::named(dtype).expect("torch has it");
        assert!(blocks > 0);
        Cache {
            format,
            hint,
            dtype,
            sizes,
            strides,
            shape,
            stride,
            offsets,
            shared,
            storage_elements,
            group,
            tokens_per_block,
            chunk_tokens,
        }
    }

    fn described(&self) -> impl Iterator<Item = Described<'_>> {
        self.offsets.iter().map(|offset| Described {
            shape: &self.shape,
            stride: &self.stride,
            storage_offset: *offset as u64,
            dtype: self.dtype,
        })
    }

    fn discover(&self) -> Pages {
        let found =
            Pages::discover(self.described(), self.hint, self.group, self.chunk_tokens as u32);
        found.unwrap_or_else(|fault| panic!("{fault:?}: {self:?}"))
    }

    fn element_bytes(&self) -> usize {
        self.dtype.bytes() as usize
    }

    /// Of a chunk, and of the part of it that is copied.
    fn blocks(&self) -> (usize, usize) {
        let window = self.group.window_tokens.unwrap_or(0) as usize;
        let kept =
            if window > 0 && window < self.chunk_tokens { window } else { self.chunk_tokens };
        (self.chunk_tokens / self.tokens_per_block, kept / self.tokens_per_block)
    }

    /// Where the first byte of an element lies: storage and byte.
    fn address(&self, at: [usize; 6]) -> (usize, usize) {
        let layer = at[place(Layer)];
        let tensor = if self.format == 0 { 0 } else { layer };
        let steps = AXES.iter().filter(|axis| self.format == 0 || **axis != Layer);
        let within: usize = steps.map(|axis| at[place(*axis)] * self.strides[place(*axis)]).sum();
        let storage = if self.shared { 0 } else { tensor };
        (storage, (self.offsets[tensor] + within) * self.element_bytes())
    }

    /// Every byte of one object: where it lies in the cache and where in the object. `blocks` are
    /// walked in order, and those at positions below `skip` are not.
    fn walk(&self, blocks: &[u32], skip: usize, mut visit: impl FnMut((usize, usize), usize)) {
        let [planes, layers, _, slots, heads, width] = self.sizes;
        let object_slots = blocks.len() * slots;
        for plane in 0..planes {
            for layer in 0..layers {
                for slot in skip * slots..object_slots {
                    let block = blocks[slot / slots] as usize;
                    for head in 0..heads {
                        for element in 0..width {
                            let at = [plane, layer, block, slot % slots, head, element];
                            let (storage, from) = self.address(at);
                            let index = (plane * layers + layer) * object_slots + slot;
                            let index = (index * heads + head) * width + element;
                            for byte in 0..self.element_bytes() {
                                let object = index * self.element_bytes() + byte;
                                visit((storage, from + byte), object);
                            }
                        }
                    }
                }
            }
        }
    }

    fn memory(&self) -> Vec<Vec<u32>> {
        let storages = if self.shared { 1 } else { self.offsets.len() };
        let bytes = self.storage_elements * self.element_bytes();
        let storage = |number: usize| (0..bytes).map(move |at| (number * bytes + at) as u32 + 1);
        (0..storages).map(|number| storage(number).collect()).collect()
    }

    fn object(&self, blocks: usize) -> Vec<u32> {
        let [planes, layers, _, slots, heads, width] = self.sizes;
        let bytes = planes * layers * blocks * slots * heads * width * self.element_bytes();
        (0..bytes).map(|at| 0x8000_0000 + at as u32).collect()
    }
}

fn place(axis: Axis) -> usize {
    AXES.iter().position(|each| *each == axis).expect("each has one")
}

/// Strides by `AXES`, elements of one tensor, and what lies between the layers of a storage in
/// which blocks come first (0: nothing of the kind).
fn strides(
    format: u8,
    axes: &[Axis],
    sizes: [usize; 6],
    rng: &mut Rng,
) -> ([usize; 6], usize, usize) {
    let mut strides = [0; 6];
    let mut inner = 1;
    for axis in axes.iter().skip(1).rev() {
        strides[place(*axis)] = inner;
        inner *= sizes[place(*axis)];
    }
    let padded = matches!(format, 3 | 12 | 13 | 14);
    let (gap, outer) = match rng.below(3) {
        0 if padded => (inner, inner * sizes[place(Layer)]),
        1 if padded => (0, inner + rng.below(20) as usize),
        _ => (0, inner),
    };
    strides[place(axes[0])] = outer;
    let last = (sizes[place(axes[0])] - 1) * outer;
    (strides, last + inner, gap)
}

/// With one head or one slot, an axis of size 1 may tie with others, and then the order in which
/// they are named decides.
fn swaps(format: u8, sizes: &[usize; 6], rng: &mut Rng) -> bool {
    let [.., slots, heads, _] = *sizes;
    format != 0 && slots > 1 && heads > 1 && rng.below(2) == 0
}

/// Ids at random, and often neighbours.
fn random_blocks(cache: &Cache, rng: &mut Rng) -> Vec<u32> {
    let blocks = cache.sizes[place(Block)] as u64;
    let (_, count) = cache.blocks();
    let mut ids: Vec<u32> = Vec::new();
    for _ in 0..count {
        let next = ids.last().map(|last| last + 1).filter(|next| u64::from(*next) < blocks);
        let drawn = rng.below(blocks) as u32;
        ids.push(next.filter(|_| rng.below(3) > 0).unwrap_or(drawn));
    }
    ids
}

/// Carries out runs on numbers in place of bytes.
fn execute(cache: &Cache, runs: &[Run], memory: &mut [Vec<u32>], object: &mut [u32], store: bool) {
    for run in runs {
        let tensor = run.tensor as usize;
        let base = cache.offsets[tensor] * cache.element_bytes() + run.page as usize;
        let storage = &mut memory[if cache.shared { 0 } else { tensor }];
        for at in 0..run.bytes as usize {
            let across = match run.shape {
                Shape::Flat => at,
                Shape::Heads { heads, slots, row_bytes } => {
                    let [heads, slots, row] = [heads, slots, row_bytes].map(|each| each as usize);
                    assert_eq!(run.bytes as usize, heads * slots * row);
                    let (line, column) = (at / row, at % row);
                    let (head, slot) = (line / slots, line % slots);
                    (slot * heads + head) * row + column
                }
            };
            let (page, object) =
                (&mut storage[base + at], &mut object[run.object as usize + across]);
            if store { *object = *page } else { *page = *object }
        }
    }
}

#[test]
fn what_is_discovered_is_what_was_built() {
    let mut rng = Rng::new(1);
    for _ in 0..8_000 {
        let cache = Cache::random(&mut rng);
        let pages = cache.discover();
        let [planes, layers, blocks, slots, heads, width] = cache.sizes;
        assert_eq!(pages.format.number(), cache.format, "{cache:?}");
        let found = [pages.layers, pages.blocks, pages.slots_per_block, pages.heads, pages.width];
        assert_eq!(found, [layers, blocks, slots, heads, width].map(|each| each as u32));
        assert_eq!(pages.planes as usize, planes);
        assert_eq!(pages.tensors as usize, cache.offsets.len());
        assert_eq!(pages.tokens_per_block as usize, cache.tokens_per_block);
        let (chunk, kept) = cache.blocks();
        assert_eq!(pages.blocks_per_chunk() as usize, chunk);
        assert_eq!(pages.blocks_per_object() as usize, kept);
        assert_eq!(pages.layout().bytes(), Some(cache.object(kept).len() as u64));
        let last = cache.sizes.map(|size| size - 1);
        let end = cache.address(last).1 + cache.element_bytes();
        let start = cache.offsets[cache.offsets.len() - 1] * cache.element_bytes();
        assert_eq!(pages.tensor_bytes(), (end - start) as u64, "{cache:?}");
    }
}

#[test]
fn runs_move_what_a_walk_over_elements_moves() {
    let mut rng = Rng::new(2);
    for _ in 0..8_000 {
        let cache = Cache::random(&mut rng);
        let pages = cache.discover();
        let blocks = random_blocks(&cache, &mut rng);
        let skip = if rng.below(2) == 0 { 0 } else { rng.below(blocks.len() as u64 + 2) };
        let mut runs = Vec::new();
        pages.plan(&blocks, skip as u32, &mut runs).expect("all blocks are there");
        let skip = (skip as usize).min(blocks.len());
        assert!(runs.len() as u64 <= pages.runs_max());
        for store in [true, false] {
            let (mut memory, mut object) = (cache.memory(), cache.object(blocks.len()));
            let (mut walked, mut filled) = (memory.clone(), object.clone());
            cache.walk(&blocks, skip, |(storage, page), object| {
                let (page, object) = (&mut walked[storage][page], &mut filled[object]);
                if store { *object = *page } else { *page = *object }
            });
            execute(&cache, &runs, &mut memory, &mut object, store);
            assert_eq!((memory, object), (walked, filled), "{store} {blocks:?} {cache:?}");
        }
        assert_minimal(&cache, &pages, &runs, &blocks[skip..]);
    }
}

/// As many runs as a plane of a layer has stretches of neighbours.
fn assert_minimal(cache: &Cache, pages: &Pages, runs: &[Run], blocks: &[u32]) {
    let [planes, layers, _, slots, heads, width] = cache.sizes;
    let bytes = (slots * heads * width) as u64;
    let turned = matches!(cache.format, 6 | 7 | 12) && heads > 1 && slots > 1;
    let together = !turned && cache.strides[place(Block)] as u64 == bytes;
    let broken = |pair: &&[u32]| !together || pair[0] + 1 != pair[1];
    let stretches = match blocks.len() {
        0 => 0,
        _ => 1 + blocks.windows(2).filter(broken).count(),
    };
    assert_eq!(runs.len(), stretches * planes * layers, "{blocks:?} {cache:?}");
    let each = bytes * cache.element_bytes() as u64;
    assert_eq!(pages.block_bytes(), each);
    let total: u64 = runs.iter().map(|run| run.bytes).sum();
    assert_eq!(total, each * (blocks.len() * planes * layers) as u64);
    for run in runs {
        assert!(run.page + run.bytes <= pages.tensor_bytes());
        assert_eq!(run.shape != Shape::Flat, turned);
    }
}

#[test]
fn a_chunk_of_neighbours_is_one_run_for_each_plane_of_a_layer() {
    let mut rng = Rng::new(3);
    let mut seen = 0;
    for _ in 0..5_000 {
        let cache = Cache::of([1, 13][rng.below(2) as usize], &mut rng);
        let [planes, layers, blocks, slots, heads, width] = cache.sizes;
        let (_, count) = cache.blocks();
        if cache.strides[place(Block)] != slots * heads * width || count > blocks {
            continue;
        }
        let first = rng.below((blocks - count + 1) as u64) as u32;
        let ids: Vec<u32> = (first..).take(count).collect();
        let mut runs = Vec::new();
        cache.discover().plan(&ids, 0, &mut runs).expect("all blocks are there");
        assert_eq!(runs.len(), planes * layers);
        seen += 1;
    }
    assert!(seen > 1_000, "{seen}");
}

#[test]
fn blocks_are_skipped_that_lie_within_the_skipped_tokens() {
    let mut rng = Rng::new(4);
    for _ in 0..8_000 {
        let cache = Cache::random(&mut rng);
        let pages = cache.discover();
        let (per_chunk, per_object) = cache.blocks();
        let chunks = 1 + rng.below(4) as usize;
        let skip = rng.below((chunks * cache.chunk_tokens) as u64 + 3) as usize;
        let mut total = 0;
        for chunk in 0..chunks {
            let ends = (per_chunk - per_object..per_chunk)
                .map(|block| chunk * cache.chunk_tokens + (block + 1) * cache.tokens_per_block);
            let skipped = ends.filter(|end| *end <= skip).count();
            let told = pages.blocks_skipped(skip as u64, chunk as u32);
            assert_eq!(told as usize, skipped, "{skip} {chunk} {cache:?}");
            total += skipped;
        }
        // As the peer counts over all chunks at once.
        let blocks = (skip / cache.tokens_per_block).min(chunks * per_chunk);
        let rest = (blocks % per_chunk).saturating_sub(per_chunk - per_object);
        assert_eq!(total, blocks / per_chunk * per_object + rest);
    }
    let far = Cache::random(&mut rng).discover();
    assert_eq!(far.blocks_skipped(u64::MAX, u32::MAX), far.blocks_per_object());
}

#[test]
fn ids_that_name_no_block_plan_nothing() {
    let mut rng = Rng::new(5);
    for _ in 0..2_000 {
        let cache = Cache::random(&mut rng);
        let pages = cache.discover();
        let mut blocks = random_blocks(&cache, &mut rng);
        let position = rng.below(blocks.len() as u64) as usize;
        blocks[position] = pages.blocks + (rng.next_u64() as u32) % (u32::MAX - pages.blocks);
        let mut runs = Vec::new();
        let fault = BlockFault::Outside { position: position as u32 };
        assert_eq!(pages.plan(&blocks, 0, &mut runs), Err(fault));
        blocks.push(0);
        let fault = BlockFault::Count { given: blocks.len(), wanted: pages.blocks_per_object() };
        assert_eq!(pages.plan(&blocks, 0, &mut runs), Err(fault));
        assert_eq!(runs, []);
    }
}

/// A number that is likely to be near some edge.
fn odd_number(rng: &mut Rng) -> u64 {
    let small = [0, 1, 1, 2, 2, 3, 4, 8, 16, 132, 1 << 16, 1 << 32];
    match rng.below(16) {
        0 => rng.next_u64(),
        1 => u64::MAX >> rng.below(64),
        at => small[at as usize % small.len()].max(rng.below(2)),
    }
}

/// What an engine would never send, and what it sends with something changed.
fn odd_tensor(rng: &mut Rng) -> (Vec<u64>, Vec<u64>) {
    if rng.below(3) == 0 {
        let mut list = |rank: u64| -> Vec<u64> { (0..rank).map(|_| odd_number(rng)).collect() };
        return (list(5), list(5));
    }
    let rank = 1 + rng.below(8) as usize;
    let mut shape: Vec<u64> = (0..rank).map(|_| odd_number(rng)).collect();
    let mut stride = vec![1u64; rank];
    for axis in (0..rank - 1).rev() {
        stride[axis] = stride[axis + 1].wrapping_mul(shape[axis + 1]);
    }
    match rng.below(6) {
        0 => stride[0] = stride[0].wrapping_add(odd_number(rng)),
        1 => stride[rng.below(rank as u64) as usize] = odd_number(rng),
        2 => shape[rng.below(rank as u64) as usize] = odd_number(rng),
        3 => drop(stride.pop()),
        _ => {}
    }
    if rng.below(2) == 0 && stride.len() == rank {
        let (one, two) = (rng.below(rank as u64) as usize, rng.below(rank as u64) as usize);
        shape.swap(one, two);
        stride.swap(one, two);
    }
    (shape, stride)
}

#[test]
fn whatever_is_described_is_refused_or_fits() {
    let mut rng = Rng::new(6);
    let hints = [None, Some(Hint::Nhd), Some(Hint::Hnd), Some(Hint::Blhnc), Some(Hint::Blnhc)];
    let (mut accepted, mut planned) = (0, 0);
    for _ in 0..200_000 {
        let (shape, stride) = odd_tensor(&mut rng);
        let dtype = ["uint8", "bfloat16", "float32", "complex128"][rng.below(4) as usize];
        let dtype = Dtype::named(dtype).expect("torch has it");
        let offset = if rng.below(8) == 0 { odd_number(&mut rng) } else { 0 };
        let tensor = Described { shape: &shape, stride: &stride, storage_offset: offset, dtype };
        let hint = hints[rng.below(5) as usize];
        let tokens_per_block = if rng.below(2) == 0 { 0 } else { odd_number(&mut rng) as u32 };
        let window_tokens = (rng.below(3) == 0).then(|| odd_number(&mut rng) as u32);
        let group = Group { tokens_per_block, window_tokens };
        let chunk_tokens = [256, 256, 16, 0, u32::MAX, 132 * 96][rng.below(6) as usize];
        let tensors = std::iter::repeat_n(tensor, rng.below(4) as usize);
        let pages = match Pages::discover(tensors, hint, group, chunk_tokens) {
            Ok(pages) => pages,
            Err(fault) => {
                assert!(fault.text().contains(' '));
                continue;
            }
        };
        accepted += 1;
        assert!(shape.iter().all(|size| *size > 0));
        let steps = shape.iter().zip(&stride);
        let last: u128 = steps.map(|(size, stride)| (*size as u128 - 1) * *stride as u128).sum();
        assert_eq!(pages.tensor_bytes() as u128, (last + 1) * dtype.bytes() as u128);
        assert!((offset as u128 + last + 1) * dtype.bytes() as u128 <= u64::MAX as u128);
        let object_bytes = pages.layout().bytes().expect("it fits");
        if pages.runs_max() > 2_000 {
            continue;
        }
        planned += 1;
        let ids = (0..pages.blocks_per_object()).map(|_| match rng.below(3) {
            0 => pages.blocks - 1,
            _ => rng.below(pages.blocks.into()) as u32,
        });
        let mut runs = Vec::new();
        pages.plan(&ids.collect::<Vec<u32>>(), 0, &mut runs).expect("all blocks are there");
        for run in runs {
            assert!(run.tensor < pages.tensors);
            assert!(run.page.checked_add(run.bytes).is_some_and(|end| end <= pages.tensor_bytes()));
            assert!(run.object.checked_add(run.bytes).is_some_and(|end| end <= object_bytes));
        }
    }
    assert!(accepted > 2_000, "{accepted}");
    assert!(planned > 1_000, "{planned}");
}

/// One plane of `[NB, BS, 1, 132]` that engines describe in either order of slots and heads.
#[test]
fn an_indexer_is_told_by_its_rows() {
    let dtype = Dtype::named("uint8").expect("torch has it");
    let group = Group { tokens_per_block: 0, window_tokens: None };
    let discover = |shape: &[u64], stride: &[u64], hint| {
        let tensor = Described { shape, stride, storage_offset: 0, dtype };
        Pages::discover([tensor].into_iter(), Some(hint), group, 256)
    };
    let slots = discover(&[9, 64, 1, 132], &[64 * 132, 132, 132, 1], Hint::Nhd);
    let heads = discover(&[9, 1, 64, 132], &[64 * 132, 64 * 132, 132, 1], Hint::Hnd);
    assert_eq!(slots, heads);
    assert_eq!(slots.map(|pages| pages.format), Ok(Format::Indexer));
    let other = discover(&[2, 9, 64, 1, 1, 132], &[76032, 8448, 132, 132, 132, 1], Hint::Nhd);
    assert_eq!(other, Err(PagesFault::SingletonAxis));
}
