//! MD5 over blocks of an engine's cache, for whoever compares what a retrieve has brought with what
//! was stored (`POST /cache/checksums`, spec/http-cli §2.3).
//!
//! Invariant: whoever asks is told once, for a sum that is taken on either comes to its end or is
//! dropped with its lane. A lane does a little of it between its copies, reads through descriptors
//! only, and stops when the engine's memory is let go.

use super::lane::Attached;
use kvtide_core::names::Dtype;
use kvtide_core::pages::{Format, Pages};
use kvtide_gpu::host::pages::CopyFault;
use md5::{Digest, Md5};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is to be summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// An id that no block has is here as `u32::MAX`.
    pub blocks: Vec<u32>,
    /// Of blocks.
    pub chunk_size: i64,
    /// One sum for each layer of a chunk, instead of one for all of them.
    pub layerwise: bool,
}

/// Chunk by chunk; with `layers`, layer by layer within each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summed {
    pub sums: Vec<[u8; 16]>,
    pub chunks: usize,
    pub layers: Option<usize>,
    pub wanted: Wanted,
}

/// Why there are no sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumFault {
    /// No such instance, or none whose memory the server knows; also one that has just left.
    Unknown,
    /// Its memory is a card's.
    Card,
    NoBlocks,
    ChunkSize,
    /// The peer sums no blocks of it.
    Format(Format),
    /// An id names no block.
    Outside,
    /// More bytes than are read for one request.
    Bytes,
    /// More sums than are told at once.
    Sums,
    /// As many sums are under way as may be.
    Busy,
    Memory(CopyFault),
}

pub type SumTeller = Box<dyn FnOnce(Result<Summed, SumFault>) + Send>;

impl Wanted {
    /// The rules in the peer's order.
    pub(super) fn check(&self, pages: &Pages) -> Result<(), SumFault> {
        if self.blocks.is_empty() {
            return Err(SumFault::NoBlocks);
        }
        if self.chunk_size <= 0 {
            return Err(SumFault::ChunkSize);
        }
        // The peer's list of formats; the packed ones are not on it.
        let Some((_, stretch)) = pages.stretch(0, 0) else {
            return Err(SumFault::Format(pages.format));
        };
        if matches!(pages.format, Format::PackedHead | Format::PackedSlot) {
            return Err(SumFault::Format(pages.format));
        }
        if self.blocks.iter().any(|&block| block >= pages.blocks) {
            return Err(SumFault::Outside);
        }
        let block = u128::from(stretch) * u128::from(pages.stretches()) * u128::from(pages.layers);
        if block * self.blocks.len() as u128 > BYTES_MAX {
            return Err(SumFault::Bytes);
        }
        let each = if self.layerwise { pages.layers as usize } else { 1 };
        match self.chunks().saturating_mul(each) > DIGESTS_MAX {
            true => Err(SumFault::Sums),
            false => Ok(()),
        }
    }

    fn chunk(&self) -> usize {
        usize::try_from(self.chunk_size).unwrap_or(usize::MAX).min(self.blocks.len())
    }

    fn chunks(&self) -> usize {
        self.blocks.len().div_ceil(self.chunk())
    }
}

/// A request that is being worked at.
pub struct Sum {
    attached: Arc<Attached>,
    wanted: Wanted,
    tell: SumTeller,
    /// Counted while it is there.
    _place: Arc<()>,
    at: Cursor,
    digest: Md5,
    sums: Vec<[u8; 16]>,
}

/// The next byte: layers of a chunk one after the other, planes of a layer likewise where they do
/// not lie together, blocks of a plane in the order in which they were named.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    chunk: usize,
    layer: u32,
    plane: u8,
    /// Within the chunk.
    block: usize,
    /// Within the stretch.
    byte: u64,
}

/// What one lane reads into.
#[derive(Default)]
struct Buffer {
    read: Vec<u8>,
    wide: Vec<u8>,
}

impl Sum {
    /// `wanted` was checked against the memory's pages.
    pub fn new(attached: Arc<Attached>, wanted: Wanted, tell: SumTeller, place: Arc<()>) -> Sum {
        Sum {
            attached,
            wanted,
            tell,
            _place: place,
            at: Cursor::default(),
            digest: Md5::new(),
            sums: Vec::new(),
        }
    }

    /// Takes in a buffer's worth at most. Whether that was the end.
    fn step(&mut self, buffer: &mut Buffer) -> Result<bool, SumFault> {
        let Attached { segments, pages, gone } = &*self.attached;
        if gone.load(Ordering::Relaxed) {
            return Err(SumFault::Unknown);
        }
        let at = &mut self.at;
        let each = self.wanted.chunk();
        let blocks = self.wanted.blocks.chunks(each).nth(at.chunk).expect("there is a next byte");
        let stretch = |block: u32| pages.stretch(at.plane, block).expect("its format was checked");
        let (start, bytes) = stretch(blocks[at.block]);
        let from = start + at.byte;
        let mut left = bytes - at.byte;
        // Neighbours are read together.
        for &next in &blocks[at.block + 1..] {
            if left >= BUFFER_BYTES as u64 || stretch(next).0 != from + left {
                break;
            }
            left += bytes;
        }
        let taken = left.min(BUFFER_BYTES as u64);
        buffer.read.resize(taken as usize, 0);
        segments.read(at.layer, from, &mut buffer.read).map_err(SumFault::Memory)?;
        self.digest.update(buffer.content(pages.dtype));

        let end = at.byte + taken;
        at.block += (end / bytes) as usize;
        at.byte = end % bytes;
        if at.block < blocks.len() {
            return Ok(false);
        }
        (at.block, at.plane) = (0, at.plane + 1);
        if at.plane < pages.stretches() {
            return Ok(false);
        }
        (at.plane, at.layer) = (0, at.layer + 1);
        let is_last = at.layer == pages.layers;
        if is_last || self.wanted.layerwise {
            self.sums.push(mem::take(&mut self.digest).finalize().into());
        }
        if is_last {
            (at.layer, at.chunk) = (0, at.chunk + 1);
        }
        Ok(at.chunk == self.wanted.chunks())
    }

    fn end(self, outcome: Result<(), SumFault>) {
        let layers = self.wanted.layerwise.then_some(self.attached.pages.layers as usize);
        let Sum { tell, sums, wanted, .. } = self;
        tell(outcome.map(|()| Summed { sums, chunks: wanted.chunks(), layers, wanted }));
    }
}

impl Buffer {
    /// The peer sums `bfloat16` as the `float32` that it widens it to: NumPy does not know it.
    fn content(&mut self, dtype: Dtype) -> &[u8] {
        if dtype.name() != "bfloat16" {
            return &self.read;
        }
        self.wide.clear();
        let (halves, _) = self.read.as_chunks::<2>();
        self.wide.extend(halves.iter().flat_map(|&[low, high]| [0, 0, low, high]));
        &self.wide
    }
}

/// The sums of one lane, in the order in which they came.
#[derive(Default)]
pub struct Sums {
    waiting: VecDeque<Box<Sum>>,
    buffer: Buffer,
}

impl Sums {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn add(&mut self, sum: Box<Sum>) {
        self.waiting.push_back(sum);
    }

    /// Works at the first one for about a millisecond.
    pub fn go_on(&mut self) {
        let Some(first) = self.waiting.front_mut() else { return };
        let mut outcome = Ok(false);
        for _ in 0..STEPS_PER_TURN {
            outcome = first.step(&mut self.buffer);
            if outcome != Ok(false) {
                break;
            }
        }
        if outcome == Ok(false) {
            return;
        }
        if let Some(first) = self.waiting.pop_front() {
            first.end(outcome.map(drop));
        }
        if self.waiting.is_empty() {
            self.buffer = Buffer::default();
        }
    }
}

/// Requests that are being worked at, by all lanes.
pub const SUMS_MAX: usize = 8;
/// What is read for one of them: some seconds' work.
const BYTES_MAX: u128 = 4 << 30;
/// What is told in one answer.
pub const DIGESTS_MAX: usize = 64 << 10;
/// Ids of one request, as many as its body has room for.
pub const BLOCKS_MAX: usize = 32 << 10;
/// Lists double as they grow.
pub const SUM_BYTES_MAX: usize =
    size_of::<Sum>() + 2 * (BLOCKS_MAX * size_of::<u32>() + DIGESTS_MAX * 16);
/// Read at once. Even, so that no element of two bytes is torn.
const BUFFER_BYTES: usize = 128 << 10;
/// Of a lane, with what it is widened to.
pub const BUFFER_BYTES_MAX: usize = 2 * (BUFFER_BYTES + 2 * BUFFER_BYTES);
/// Buffers between two looks for copies.
const STEPS_PER_TURN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::front::paged::Source;
    use kvtide_core::pages::{Described, Group, Hint};
    use kvtide_gpu::host::pages::Segments;
    use rustix::fs::{Mode, ftruncate};
    use rustix::shm;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::sync::mpsc;

    /// Two layers in one segment.
    struct Cache {
        name: String,
        file: OwnedFd,
        bytes: Vec<u8>,
        pages: Pages,
    }

    impl Cache {
        fn new(shape: &[u64], hint: Hint, dtype: &str) -> Cache {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let mut stride = vec![1; shape.len()];
            for at in (1..shape.len()).rev() {
                stride[at - 1] = stride[at] * shape[at];
            }
            let dtype = Dtype::named(dtype).expect("it is a type");
            let tensor = Described { shape, stride: &stride, storage_offset: 0, dtype };
            let group = Group { tokens_per_block: 0, window_tokens: None };
            let pages = Pages::discover([tensor; 2].into_iter(), Some(hint), group, 16);
            let pages = pages.expect("it is a layout");
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("lmcache_kv_sums_{}_{count}", std::process::id());
            let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
            let file = shm::open(&*name, flags, Mode::RUSR | Mode::WUSR).expect("a free name");
            let bytes: Vec<u8> =
                (0..2 * pages.tensor_bytes()).map(|at| (at % 251 + at / 9973) as u8).collect();
            let written = rustix::io::pwrite(&file, &bytes, 0).expect("a segment takes bytes");
            assert_eq!(written, bytes.len());
            Cache { name, file, bytes, pages }
        }

        fn attached(&self) -> Arc<Attached> {
            let bytes = self.pages.tensor_bytes();
            let source = |offset_bytes| Source {
                segment: self.name.clone(),
                segment_bytes: 2 * bytes,
                offset_bytes,
            };
            let segments = Segments::open(&[source(0), source(bytes)], bytes, 9);
            let (segments, pages) = (segments.expect("it is there"), self.pages);
            Arc::new(Attached { segments, pages, gone: AtomicBool::new(false) })
        }

        fn sum_of(&self, attached: &Arc<Attached>, wanted: &Wanted) -> Result<Summed, SumFault> {
            wanted.check(&self.pages)?;
            let (tell, heard) = mpsc::channel();
            let tell = Box::new(move |outcome| tell.send(outcome).expect("somebody hears it"));
            let mut sums = Sums::default();
            let sum = Sum::new(attached.clone(), wanted.clone(), tell, Arc::new(()));
            sums.add(Box::new(sum));
            while !sums.is_empty() {
                sums.go_on();
            }
            heard.recv().expect("it is told once")
        }

        fn sums(&self, wanted: &Wanted) -> Result<Vec<[u8; 16]>, SumFault> {
            self.sum_of(&self.attached(), wanted).map(|summed| summed.sums)
        }

        /// The bytes of these stretches of a layer, as they lie there.
        fn stretches(&self, layer: usize, stretches: &[(usize, usize)]) -> Vec<u8> {
            let layer = &self.bytes[layer * self.pages.tensor_bytes() as usize..];
            stretches.iter().flat_map(|&(at, bytes)| layer[at..][..bytes].to_vec()).collect()
        }
    }

    impl Drop for Cache {
        fn drop(&mut self) {
            shm::unlink(&*self.name).ok();
        }
    }

    fn wanted(blocks: &[u32], chunk_size: i64, layerwise: bool) -> Wanted {
        Wanted { blocks: blocks.to_vec(), chunk_size, layerwise }
    }

    fn md5(parts: &[Vec<u8>]) -> [u8; 16] {
        Md5::digest(parts.concat()).into()
    }

    #[test]
    fn a_plane_of_all_blocks_of_a_chunk_comes_before_the_next_plane() {
        // A plane has 5 blocks of 4 slots of 2 heads of 3 bytes: 24 bytes.
        let cache = Cache::new(&[2, 5, 4, 2, 3], Hint::Nhd, "uint8");
        let blocks = [(72, 24), (0, 24), (120 + 72, 24), (120, 24)];
        let last = [(24, 24), (144, 24)];
        let layer = |at, stretches: &[_]| cache.stretches(at, stretches);
        let (one, two) =
            ([layer(0, &blocks), layer(1, &blocks)], [layer(0, &last), layer(1, &last)]);
        assert_eq!(cache.sums(&wanted(&[3, 0, 1], 2, false)), Ok(vec![md5(&one), md5(&two)]));
        let each = [&one[..], &two].concat().into_iter().map(|part| md5(&[part])).collect();
        assert_eq!(cache.sums(&wanted(&[3, 0, 1], 2, true)), Ok(each));
    }

    #[test]
    fn a_block_with_both_planes_comes_whole() {
        let cache = Cache::new(&[5, 2, 4, 2, 3], Hint::Nhd, "uint8");
        let blocks = [(144, 48), (192, 48), (0, 48)];
        let parts = [0, 1].map(|layer| cache.stretches(layer, &blocks));
        assert_eq!(cache.sums(&wanted(&[3, 4, 0], i64::MAX, false)), Ok(vec![md5(&parts)]));
    }

    #[test]
    fn halves_are_widened_as_the_peer_does_before_it_sums_them() {
        let cache = Cache::new(&[5, 4, 3], Hint::Nhd, "bfloat16");
        let wide = |layer| -> Vec<u8> {
            let narrow = cache.stretches(layer, &[(24, 24)]);
            narrow.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]).collect()
        };
        let sums = cache.sums(&wanted(&[1], 1, false));
        assert_eq!(sums, Ok(vec![md5(&[wide(0), wide(1)])]));
    }

    #[test]
    fn blocks_larger_than_the_buffer_are_read_piece_by_piece() {
        let cache = Cache::new(&[3, 4, 1 << 15], Hint::Nhd, "bfloat16");
        let block = 1 << 18;
        assert!(block > BUFFER_BYTES);
        for blocks in [&[2, 0, 1][..], &[0, 1, 2]] {
            let stretches: Vec<_> = blocks.iter().map(|&at| (at as usize * block, block)).collect();
            let parts = [0, 1].map(|layer| {
                let narrow = cache.stretches(layer, &stretches);
                narrow.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]).collect::<Vec<_>>()
            });
            assert_eq!(cache.sums(&wanted(blocks, 3, false)), Ok(vec![md5(&parts)]));
        }
    }

    #[test]
    fn what_the_peer_refuses_is_refused_in_its_order() {
        let fused = Cache::new(&[5, 4, 2, 3], Hint::Nhd, "uint8");
        assert_eq!(fused.sums(&wanted(&[], 0, false)), Err(SumFault::NoBlocks));
        assert_eq!(fused.sums(&wanted(&[9], 0, false)), Err(SumFault::ChunkSize));
        let refused = Err(SumFault::Format(Format::PackedSlot));
        assert_eq!(fused.sums(&wanted(&[9], 1, false)), refused);
        let cache = Cache::new(&[5, 4, 3], Hint::Nhd, "uint8");
        assert_eq!(cache.sums(&wanted(&[0, 5], 1, false)), Err(SumFault::Outside));
        assert_eq!(cache.sums(&wanted(&[u32::MAX], 1, false)), Err(SumFault::Outside));
    }

    #[test]
    fn one_request_has_bounds() {
        let mut pages = Cache::new(&[5, 4, 3], Hint::Nhd, "uint8").pages;
        let many = wanted(&[0; 1000], 1, true);
        (pages.layers, pages.tensors) = (65, 65);
        assert_eq!(many.check(&pages), Ok(()));
        (pages.layers, pages.tensors) = (66, 66);
        assert_eq!(many.check(&pages), Err(SumFault::Sums));
        (pages.blocks, pages.width, pages.block_stride_bytes) = (1, 1 << 20, 1 << 22);
        let most = (BYTES_MAX / (66 << 22)) as usize;
        assert_eq!(wanted(&vec![0; most], 1 << 20, true).check(&pages), Ok(()));
        let more = wanted(&vec![0; most + 1], 1 << 20, true);
        assert_eq!(more.check(&pages), Err(SumFault::Bytes));
    }

    #[test]
    fn an_engine_that_leaves_or_cuts_its_memory_ends_the_sum() {
        let cache = Cache::new(&[5, 4, 3], Hint::Nhd, "uint8");
        let attached = cache.attached();
        let all = wanted(&[0, 1, 2, 3, 4], 1, false);
        ftruncate(&cache.file, 30).expect("it is ours");
        let cut = Err(SumFault::Memory(CopyFault::Cut));
        assert_eq!(cache.sum_of(&attached, &all), cut);
        attached.gone.store(true, Ordering::Relaxed);
        assert_eq!(cache.sum_of(&attached, &all), Err(SumFault::Unknown));
    }
}
