//! Which format a group of tensors has. Its one invariant: what passes has sizes of at least one,
//! and nothing that is computed of it later leaves 64 bits.

use crate::names::Dtype;
use crate::pages::{Described, Format, Group, Hint, Pages, PagesFault};

pub(super) fn discover<'a>(
    mut tensors: impl Iterator<Item = Described<'a>>,
    hint: Option<Hint>,
    group: Group,
    chunk_tokens: u32,
) -> Result<Pages, PagesFault> {
    let first = tensors.next().ok_or(PagesFault::NoTensor)?;
    let axes = Axes::sorted(&first)?;
    let mut count = 1u32;
    let mut offset_max = first.storage_offset;
    for tensor in tensors {
        let alike = tensor.shape == first.shape && tensor.stride == first.stride;
        if !alike || tensor.dtype != first.dtype {
            return Err(PagesFault::TensorsDiffer);
        }
        count = count.checked_add(1).ok_or(PagesFault::TooLarge)?;
        offset_max = offset_max.max(tensor.storage_offset);
    }
    let end = axes.span.checked_add(offset_max);
    let end_bytes = end.and_then(|end| end.checked_mul(first.dtype.bytes()));
    end_bytes.ok_or(PagesFault::TooLarge)?;
    let form = axes.form(hint, count, first.dtype)?;
    if axes.block_stride > axes.inner && !form.format.allows_padding() {
        return Err(PagesFault::BlockPadding);
    }
    form.check(&axes, first.dtype, group, chunk_tokens)
}

/// A tensor whose axes lie in memory in the order in which they are listed.
struct Axes {
    shape: [u64; RANK_MAX],
    rank: usize,
    /// From one index of the first axis to the next.
    block_stride: u64,
    /// Elements of all other axes, which lie without gaps.
    inner: u64,
    /// Elements from the first one to the end of the last one.
    span: u64,
}

impl Axes {
    /// Undoes whatever permutation the engine has applied: by stride, the widest first. Of axes
    /// with the same stride, those of size 1 go innermost; with one head, `[NB, 1, BS, C]` in the
    /// memory order of NHD becomes `[NB, BS, 1, C]`.
    fn sorted(tensor: &Described<'_>) -> Result<Axes, PagesFault> {
        let rank = tensor.shape.len();
        if rank != tensor.stride.len() {
            return Err(PagesFault::RankMismatch);
        }
        if !RANKS.contains(&rank) {
            return Err(PagesFault::Rank);
        }
        if tensor.shape.contains(&0) {
            return Err(PagesFault::Empty);
        }
        let mut axes = [(0, 0); RANK_MAX];
        for (axis, pair) in axes.iter_mut().zip(tensor.shape.iter().zip(tensor.stride)) {
            *axis = (*pair.0, *pair.1);
        }
        // Stable: axes that agree in both keep their order.
        axes[..rank].sort_by_key(|&(size, stride)| core::cmp::Reverse((stride, size != 1)));
        let mut inner = 1u64;
        for &(size, stride) in axes[1..rank].iter().rev() {
            if stride != inner {
                let overlaps = stride < inner && size > 1;
                return Err(if overlaps {
                    PagesFault::Overlap
                } else {
                    PagesFault::InteriorPadding
                });
            }
            inner = inner.checked_mul(size).ok_or(PagesFault::TooLarge)?;
        }
        let (outer, block_stride) = axes[0];
        if block_stride < inner {
            return Err(PagesFault::Overlap);
        }
        let last = (outer - 1).checked_mul(block_stride).ok_or(PagesFault::TooLarge)?;
        let span = last.checked_add(inner).ok_or(PagesFault::TooLarge)?;
        Ok(Axes { shape: axes.map(|(size, _)| size), rank, block_stride, inner, span })
    }

    /// Tells formats apart in the peer's order, and repeats what it mistakes: `shape[0]` is asked
    /// for planes before `shape[1]`, so two blocks of `[NB, 2, ..]` pass for two planes.
    fn form(&self, hint: Option<Hint>, tensors: u32, dtype: Dtype) -> Result<Form, PagesFault> {
        let heads_first = hint.unwrap_or(HINT_OF_HOST_MEMORY).heads_first();
        let layers = u64::from(tensors);
        let form = |format, planes, blocks, [slots, heads, width]: [u64; 3]| Form {
            format,
            layers,
            tensors,
            planes,
            blocks,
            slots,
            heads,
            width,
        };
        let indexer = dtype.name() == INDEXER_DTYPE;
        match (self.rank, self.shape) {
            (4, [blocks, heads, slots, width, ..]) if heads_first => {
                if heads == 1 && width == INDEXER_WIDTH && indexer {
                    return Ok(form(Format::Indexer, 1, blocks, [slots, 1, width]));
                }
                Ok(form(Format::PackedHead, 1, blocks, [slots, heads, width]))
            }
            (4, [blocks, slots, heads, width, ..]) => {
                if heads == 1 && width == INDEXER_WIDTH && indexer {
                    return Ok(form(Format::Indexer, 1, blocks, [slots, 1, width]));
                }
                Ok(form(Format::PackedSlot, 1, blocks, [slots, heads, width]))
            }
            (6, shape) if shape[0] == 2 && shape[3] == 1 => Err(PagesFault::SingletonAxis),
            (6, _) if tensors > 1 => Err(PagesFault::CrossLayerTensors),
            // The peer does not ask the hint here and would mix up slots and heads.
            (6, _) if hint.is_some_and(Hint::heads_first) => Err(PagesFault::CrossLayerHeadsFirst),
            (6, [blocks, layers, 2, inner @ ..]) => {
                Ok(Form { layers, ..form(Format::CrossLayer, 2, blocks, inner) })
            }
            (5, [2, blocks, heads, slots, width, _]) if heads_first => {
                Ok(form(Format::PlaneBlockHead, 2, blocks, [slots, heads, width]))
            }
            (5, [2, blocks, inner @ .., _]) => Ok(form(Format::PlaneBlockSlot, 2, blocks, inner)),
            (5, [blocks, 2, heads, slots, width, _]) if heads_first => {
                Ok(form(Format::BlockPlaneHead, 2, blocks, [slots, heads, width]))
            }
            (5, [blocks, 2, inner @ .., _]) => Ok(form(Format::BlockPlaneSlot, 2, blocks, inner)),
            (3, [blocks, slots, width, ..]) => {
                let blocked = width == INDEXER_WIDTH && indexer;
                let format = if blocked { Format::Indexer } else { Format::Latent };
                Ok(form(format, 1, blocks, [slots, 1, width]))
            }
            _ => Err(PagesFault::NoPlaneAxis),
        }
    }
}

/// What the shape says, before it is known to fit.
struct Form {
    format: Format,
    layers: u64,
    tensors: u32,
    planes: u8,
    blocks: u64,
    slots: u64,
    heads: u64,
    width: u64,
}

impl Form {
    fn check(
        &self,
        axes: &Axes,
        dtype: Dtype,
        group: Group,
        chunk_tokens: u32,
    ) -> Result<Pages, PagesFault> {
        let slots_per_block = count(self.slots)?;
        let tokens_per_block = match group.tokens_per_block {
            0 => slots_per_block,
            given => given,
        };
        if !tokens_per_block.is_multiple_of(slots_per_block) {
            return Err(PagesFault::TokensPerBlock);
        }
        if chunk_tokens == 0 || !chunk_tokens.is_multiple_of(tokens_per_block) {
            return Err(PagesFault::Chunk);
        }
        let cut = |window: &u32| (1..chunk_tokens).contains(window);
        let kept_tokens = group.window_tokens.filter(cut).unwrap_or(chunk_tokens);
        if !kept_tokens.is_multiple_of(tokens_per_block) {
            return Err(PagesFault::Window);
        }
        // A row of heads is told in 32 bits, and so is what one token takes.
        let hidden = self.heads.checked_mul(self.width).ok_or(PagesFault::TooLarge)?;
        count(hidden.checked_mul(dtype.bytes()).ok_or(PagesFault::TooLarge)?)?;
        let block = self.slots * hidden;
        let block_stride = if self.format.planes_first() { block } else { axes.block_stride };
        // With a single block, the stride may be wider than the tensor.
        let block_stride_bytes = block_stride.checked_mul(dtype.bytes());
        count(self.layers.checked_mul(self.planes.into()).ok_or(PagesFault::TooLarge)?)?;
        let pages = Pages {
            format: self.format,
            layers: count(self.layers)?,
            tensors: self.tensors,
            blocks: count(self.blocks)?,
            slots_per_block,
            tokens_per_block,
            heads: count(self.heads)?,
            width: count(self.width)?,
            planes: self.planes,
            dtype,
            block_stride_bytes: block_stride_bytes.ok_or(PagesFault::TooLarge)?,
            chunk_tokens,
            object_slots: kept_tokens / tokens_per_block * slots_per_block,
        };
        pages.layout().bytes().ok_or(PagesFault::TooLarge)?;
        Ok(pages)
    }
}

fn count(number: u64) -> Result<u32, PagesFault> {
    u32::try_from(number).map_err(|_| PagesFault::TooLarge)
}

const RANKS: core::ops::RangeInclusive<usize> = 3..=RANK_MAX;
const RANK_MAX: usize = 6;
const HINT_OF_HOST_MEMORY: Hint = Hint::Hnd;
/// 128 values of fp8 and a scale of four bytes.
const INDEXER_WIDTH: u64 = 132;
const INDEXER_DTYPE: &str = "uint8";
