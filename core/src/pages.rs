//! How an engine's paged KV cache lies in memory, and which stretches of it make up an object
//! (server-driven transfer, spec/transfer §3.6, §5.4-5.7).
//!
//! Its one invariant: every byte that a plan names lies within `tensor_bytes` of its tensor and
//! within the object of `layout`. Payload is not seen here; a run is four numbers.

mod discover;
mod plan;

use crate::names::{Dtype, Layout};
use alloc::vec::Vec;

/// One tensor as the engine describes it; strides and offset count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described<'a> {
    pub shape: &'a [u64],
    pub stride: &'a [u64],
    pub storage_offset: u64,
    pub dtype: Dtype,
}

/// `layout_hints["kv_layout"]`: the order of heads (H), blocks (B), layers (L), slots (N) and the
/// content of a head (C, or D), outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    Nhd,
    Hnd,
    Blhnc,
    Blnhc,
}

/// What the engine says of its one kernel group (spec/transfer §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// 0 stands for the tensor's own block size.
    pub tokens_per_block: u32,
    /// A window of whole chunks, or of nothing, cuts no object.
    pub window_tokens: Option<u32>,
}

/// Where a tensor has its blocks (NB), planes (2), layers (NL), slots (BS), heads (NH) and the
/// elements of a head (spec/transfer §3.6). The peer knows more; these are what vLLM has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `[NB, NL, 2, BS, NH, HS]`, one tensor for all layers.
    CrossLayer,
    /// `[2, NB, BS, NH, HS]`
    PlaneBlockSlot,
    /// `[NB, 2, BS, NH, HS]`
    BlockPlaneSlot,
    /// `[NB, BS, HS]`: one latent for K and V.
    Latent,
    /// `[2, NB, NH, BS, HS]`
    PlaneBlockHead,
    /// `[NB, 2, NH, BS, HS]`
    BlockPlaneHead,
    /// `[NB, NH, BS, C]`: K and V of a head packed in C.
    PackedHead,
    /// `[NB, BS, NH, C]`
    PackedSlot,
    /// `[NB, BS, 132]` of u8: all values of a block, then all of its scales. The page is taken as
    /// it is, which is what the peer does for memory of the host, but not on a card.
    Indexer,
}

/// Geometry of one kernel group: the same for all of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages {
    pub format: Format,
    /// Not tensors: a cross-layer cache has one tensor.
    pub layers: u32,
    pub tensors: u32,
    pub blocks: u32,
    pub slots_per_block: u32,
    pub tokens_per_block: u32,
    pub heads: u32,
    /// Elements of one head; where K and V are packed, of both.
    pub width: u32,
    /// 1 or 2.
    pub planes: u8,
    pub dtype: Dtype,
    /// From one block to the next of the same plane. May span other layers, or padding.
    pub block_stride_bytes: u64,
    pub chunk_tokens: u32,
    /// Per chunk; a window shorter than a chunk cuts them.
    pub object_slots: u32,
}

/// The rule that a registration broke. The text ends up in the engine's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesFault {
    NoTensor,
    TensorsDiffer,
    RankMismatch,
    Rank,
    Empty,
    NoPlaneAxis,
    InteriorPadding,
    BlockPadding,
    Overlap,
    /// Format 8.
    CrossLayerHeadsFirst,
    CrossLayerTensors,
    /// Format 15.
    SingletonAxis,
    TooLarge,
    TokensPerBlock,
    Chunk,
    Window,
}

/// Why the ids of an object's blocks cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFault {
    Count {
        given: usize,
        wanted: u32,
    },
    /// The id at `position` names no block of the cache.
    Outside {
        position: u32,
    },
}

/// A contiguous stretch of one tensor, and where its bytes belong in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub tensor: u32,
    /// Bytes from the tensor's first element.
    pub page: u64,
    /// Bytes from the object's start.
    pub object: u64,
    pub bytes: u64,
    pub shape: Shape,
}

/// How the bytes of a run are ordered on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The same order on both sides.
    Flat,
    /// The page holds `[heads][slots][row]`, the object `[slots][heads][row]`.
    Heads { heads: u32, slots: u32, row_bytes: u32 },
}

impl Hint {
    pub fn named(name: &str) -> Option<Hint> {
        match name {
            "NHD" => Some(Hint::Nhd),
            "HND" => Some(Hint::Hnd),
            "BLHNC" => Some(Hint::Blhnc),
            "BLNHC" => Some(Hint::Blnhc),
            _ => None,
        }
    }

    fn heads_first(self) -> bool {
        matches!(self, Hint::Hnd | Hint::Blhnc)
    }
}

impl Format {
    /// The peer's number for it, for logs and tests: it is never on the wire.
    pub fn number(self) -> u8 {
        match self {
            Format::CrossLayer => 0,
            Format::PlaneBlockSlot => 1,
            Format::BlockPlaneSlot => 2,
            Format::Latent => 3,
            Format::PlaneBlockHead => 6,
            Format::BlockPlaneHead => 7,
            Format::PackedHead => 12,
            Format::PackedSlot => 13,
            Format::Indexer => 14,
        }
    }

    pub fn heads_first(self) -> bool {
        matches!(self, Format::PlaneBlockHead | Format::BlockPlaneHead | Format::PackedHead)
    }

    /// Whether a whole plane lies in front of the next one.
    fn planes_first(self) -> bool {
        matches!(self, Format::PlaneBlockSlot | Format::PlaneBlockHead)
    }

    /// The formats in which more than a block may lie between one block and the next.
    fn allows_padding(self) -> bool {
        use Format::{Indexer, Latent, PackedHead, PackedSlot};
        matches!(self, Latent | PackedHead | PackedSlot | Indexer)
    }
}

impl Pages {
    /// Reads the geometry out of the tensors of one kernel group (spec/transfer §3.6), in the order
    /// of their layers. Without a hint heads come first: descriptors of host memory come from a
    /// process on the CPU backend, for which the peer assumes that.
    pub fn discover<'a>(
        tensors: impl Iterator<Item = Described<'a>>,
        hint: Option<Hint>,
        group: Group,
        chunk_tokens: u32,
    ) -> Result<Pages, PagesFault> {
        discover::discover(tensors, hint, group, chunk_tokens)
    }

    /// Of one object.
    pub fn layout(&self) -> Layout {
        Layout {
            planes: self.planes,
            layers: self.layers,
            slots: self.object_slots,
            hidden: self.heads * self.width,
            dtype: self.dtype,
        }
    }

    /// How many ids a request gives for each chunk.
    pub fn blocks_per_chunk(&self) -> u32 {
        self.chunk_tokens / self.tokens_per_block
    }

    /// How many of them, the last ones, are copied.
    pub fn blocks_per_object(&self) -> u32 {
        self.object_slots / self.slots_per_block
    }

    /// How many of the blocks of object `chunk` must not be written, because somebody else may be
    /// reading them: those that lie as a whole within the first `skip_tokens` of the range. What a
    /// window leaves out of a chunk counts first (spec/transfer §5.5.6).
    pub fn blocks_skipped(&self, skip_tokens: u64, chunk: u32) -> u32 {
        let before = u64::from(chunk) * u64::from(self.chunk_tokens);
        let tokens = skip_tokens.saturating_sub(before).min(self.chunk_tokens.into());
        let blocks = (tokens / u64::from(self.tokens_per_block)) as u32;
        blocks.saturating_sub(self.blocks_per_chunk() - self.blocks_per_object())
    }

    /// From the first element of a tensor to the end of its last: what a mapping must hold.
    pub fn tensor_bytes(&self) -> u64 {
        let block = self.block_bytes();
        let blocks = u64::from(self.blocks);
        match self.format {
            format if format.planes_first() => 2 * blocks * block,
            Format::CrossLayer | Format::BlockPlaneSlot | Format::BlockPlaneHead => {
                blocks * self.block_stride_bytes
            }
            _ => (blocks - 1) * self.block_stride_bytes + block,
        }
    }

    /// Of one plane of one layer.
    pub fn block_bytes(&self) -> u64 {
        let elements = u64::from(self.slots_per_block) * u64::from(self.heads * self.width);
        elements * self.dtype.bytes()
    }

    /// Where a block of one layer begins in its tensor, and how many bytes of it lie there: all of
    /// it, or one plane where all of a plane lies in front of the next. None for a tensor of all
    /// layers, which has no such stretch.
    pub fn stretch(&self, plane: u8, block: u32) -> Option<(u64, u64)> {
        let (block, bytes) = (u64::from(block), self.block_bytes());
        match self.format {
            Format::CrossLayer => None,
            format if format.planes_first() => {
                let before = u64::from(plane) * u64::from(self.blocks);
                Some(((before + block) * bytes, bytes))
            }
            _ => Some((block * self.block_stride_bytes, u64::from(self.planes) * bytes)),
        }
    }

    /// How many stretches a block of one layer has.
    pub fn stretches(&self) -> u8 {
        if self.format.planes_first() { self.planes } else { 1 }
    }

    /// No plan of one object has more runs than this. They cost memory that the object's bytes do
    /// not bound, so whoever accepts a registration looks at it.
    pub fn runs_max(&self) -> u64 {
        let each = u64::from(self.layers) * u64::from(self.planes);
        each.saturating_mul(self.blocks_per_object().into())
    }

    /// Appends the runs of one object, whose blocks have the ids `blocks`, in order of planes,
    /// layers and blocks. The first `skip` blocks are left out. A fault appends nothing.
    ///
    /// An id that comes twice is written twice, and the later one holds.
    pub fn plan(&self, blocks: &[u32], skip: u32, runs: &mut Vec<Run>) -> Result<(), BlockFault> {
        plan::plan(self, blocks, skip, runs)
    }
}

impl PagesFault {
    pub fn text(self) -> &'static str {
        match self {
            PagesFault::NoTensor => "kv_caches holds no tensor",
            PagesFault::TensorsDiffer => {
                "tensors in kv_caches differ in dtype, shape or stride within one group"
            }
            PagesFault::RankMismatch => "shape and stride of a tensor in kv_caches differ in rank",
            PagesFault::Rank => "the shape of a tensor in kv_caches has a rank that is not served",
            PagesFault::Empty => "the shape of a tensor in kv_caches holds a zero",
            PagesFault::NoPlaneAxis => {
                "the shape of a tensor in kv_caches has no axis of size 2 where K and V belong"
            }
            PagesFault::InteriorPadding => {
                "the stride of a tensor in kv_caches leaves gaps inside a block"
            }
            PagesFault::BlockPadding => {
                "the stride of a tensor in kv_caches leaves gaps that its layout may not have"
            }
            PagesFault::Overlap => "the stride of a tensor in kv_caches makes elements overlap",
            PagesFault::CrossLayerHeadsFirst => {
                "kv_layout says that heads come first, which is not served for one tensor of all \
                 layers"
            }
            PagesFault::CrossLayerTensors => {
                "kv_caches holds more than one tensor of six axes; such a tensor has all layers"
            }
            PagesFault::SingletonAxis => {
                "the shape of a tensor in kv_caches has an axis of size 1 between heads and slots, \
                 which is not served"
            }
            PagesFault::TooLarge => "shape or stride of a tensor in kv_caches is out of range",
            PagesFault::TokensPerBlock => {
                "tokens_per_block is not a multiple of the block size of kv_caches"
            }
            PagesFault::Chunk => "the server's chunk size is not a multiple of tokens_per_block",
            PagesFault::Window => {
                "sw_size_tokens is shorter than a chunk and not a multiple of tokens_per_block"
            }
        }
    }
}

impl BlockFault {
    pub fn text(self) -> &'static str {
        match self {
            BlockFault::Count { .. } => "block_ids has not as many ids as the object has blocks",
            BlockFault::Outside { .. } => "block_ids names a block that kv_caches does not have",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight layers of 100 blocks of 16 slots, 4 heads of 64 elements each.
    fn pages() -> Pages {
        Pages {
            format: Format::PackedSlot,
            layers: 8,
            tensors: 8,
            blocks: 100,
            slots_per_block: 16,
            tokens_per_block: 16,
            heads: 4,
            width: 64,
            planes: 1,
            dtype: Dtype::named("bfloat16").unwrap(),
            block_stride_bytes: 8192,
            chunk_tokens: 256,
            object_slots: 256,
        }
    }

    #[test]
    fn hints_that_are_not_known_are_none() {
        assert_eq!(Hint::named("BLHNC"), Some(Hint::Blhnc));
        // Translated by the client, and never sent.
        assert_eq!(Hint::named("LBHNC"), None);
        assert_eq!(Hint::named("nhd"), None);
    }

    #[test]
    fn an_object_has_every_layer_of_a_chunk() {
        let pages = pages();
        assert_eq!(pages.layout().bytes(), Some(8 * 256 * 4 * 64 * 2));
        assert_eq!(pages.blocks_per_chunk(), 16);
        assert_eq!(pages.blocks_per_object(), 16);
        assert_eq!(pages.runs_max(), 128);
    }

    #[test]
    fn a_window_shorter_than_a_chunk_keeps_its_last_blocks() {
        let pages = Pages { object_slots: 64, ..pages() };
        assert_eq!((pages.blocks_per_chunk(), pages.blocks_per_object()), (16, 4));
        // The twelve blocks in front of the window are not copied anyway.
        assert_eq!(pages.blocks_skipped(12 * 16, 0), 0);
        assert_eq!(pages.blocks_skipped(13 * 16, 0), 1);
        assert_eq!(pages.blocks_skipped(256, 0), 4);
        assert_eq!(pages.blocks_skipped(256, 1), 0);
    }

    #[test]
    fn compressed_slots_are_counted_in_tokens_when_they_are_skipped() {
        let pages = Pages { tokens_per_block: 64, object_slots: 64, ..pages() };
        assert_eq!((pages.blocks_per_chunk(), pages.blocks_per_object()), (4, 4));
        assert_eq!(pages.blocks_skipped(63, 0), 0);
        assert_eq!(pages.blocks_skipped(64, 0), 1);
        assert_eq!(pages.blocks_skipped(256 + 130, 1), 2);
    }

    #[test]
    fn a_block_lies_in_one_stretch_or_in_one_of_each_plane() {
        assert_eq!((pages().stretches(), pages().stretch(0, 3)), (1, Some((3 * 8192, 8192))));
        let first = Pages { format: Format::PlaneBlockHead, planes: 2, ..pages() };
        assert_eq!((first.stretches(), first.stretch(1, 3)), (2, Some((103 * 8192, 8192))));
        let block_stride_bytes = 2 * 8192;
        let inner = Pages { format: Format::BlockPlaneHead, block_stride_bytes, ..first };
        assert_eq!((inner.stretches(), inner.stretch(0, 3)), (1, Some((6 * 8192, 2 * 8192))));
        let cross = Pages { format: Format::CrossLayer, ..inner };
        assert_eq!(cross.stretch(0, 3), None);
    }

    #[test]
    fn a_mapping_need_not_hold_the_padding_behind_the_last_block() {
        assert_eq!(pages().tensor_bytes(), 100 * 8192);
        let between_layers = Pages { block_stride_bytes: 8 * 8192, ..pages() };
        assert_eq!(between_layers.tensor_bytes(), 99 * 8 * 8192 + 8192);
        let split = Pages { format: Format::PlaneBlockSlot, planes: 2, ..pages() };
        assert_eq!(split.tensor_bytes(), 2 * 100 * 8192);
    }
}
