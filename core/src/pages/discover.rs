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
        let order = |[outer, inner, width]: [u64; 3]| match heads_first {
            true => [inner, outer, width],
            false => [outer, inner, width],
        };
        let choose = |heads, slots| if heads_first { heads } else { slots };
        let indexer = |width| width == INDEXER_WIDTH && dtype.name() == INDEXER_DTYPE;
        let (layers, format, planes, blocks, inner) = match (self.rank, self.shape) {
            (4, [blocks, one, two, width, ..]) => {
                let inner = order([one, two, width]);
                let packed = choose(Format::PackedHead, Format::PackedSlot);
                let format = if inner[1] == 1 && indexer(width) { Format::Indexer } else { packed };
                (None, format, 1, blocks, inner)
            }
            (6, shape) if shape[0] == 2 && shape[3] == 1 => return Err(PagesFault::SingletonAxis),
            (6, _) if tensors > 1 => return Err(PagesFault::CrossLayerTensors),
            // The peer's rule does not ask the hint, and would mix up slots and heads.
            (6, _) if hint.is_some_and(Hint::heads_first) => {
                return Err(PagesFault::CrossLayerHeadsFirst);
            }
            (6, [blocks, layers, 2, inner @ ..]) => {
                (Some(layers), Format::CrossLayer, 2, blocks, inner)
            }
            (5, [2, blocks, inner @ .., _]) => {
                let format = choose(Format::PlaneBlockHead, Format::PlaneBlockSlot);
                (None, format, 2, blocks, order(inner))
            }
            (5, [blocks, 2, inner @ .., _]) => {
                let format = choose(Format::BlockPlaneHead, Format::BlockPlaneSlot);
                (None, format, 2, blocks, order(inner))
            }
            (3, [blocks, slots, width, ..]) => {
                let format = if indexer(width) { Format::Indexer } else { Format::Latent };
                (None, format, 1, blocks, [slots, 1, width])
            }
            _ => return Err(PagesFault::NoPlaneAxis),
        };
        let [slots, heads, width] = inner;
        let layers = layers.unwrap_or(tensors.into());
        Ok(Form { format, layers, tensors, planes, blocks, slots, heads, width })
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

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Group = Group { tokens_per_block: 0, window_tokens: None };

    fn tensor<'a>(shape: &'a [u64], stride: &'a [u64], dtype: &str) -> Described<'a> {
        Described { shape, stride, storage_offset: 0, dtype: Dtype::named(dtype).unwrap() }
    }

    /// Two layers of it, in chunks of 256.
    fn two(shape: &[u64], stride: &[u64], hint: Option<Hint>) -> Result<Pages, PagesFault> {
        Pages::discover([tensor(shape, stride, "bfloat16"); 2].into_iter(), hint, PLAIN, 256)
    }

    /// Format, blocks, slots, heads, width.
    fn sizes(found: Result<Pages, PagesFault>) -> Result<(u8, [u32; 4]), PagesFault> {
        found.map(|pages| {
            let sizes = [pages.blocks, pages.slots_per_block, pages.heads, pages.width];
            (pages.format.number(), sizes)
        })
    }

    #[test]
    fn without_a_hint_heads_come_first() {
        let (shape, stride) = ([9, 8, 16, 64], [8192, 1024, 64, 1]);
        assert_eq!(sizes(two(&shape, &stride, None)), Ok((12, [9, 16, 8, 64])));
        assert_eq!(sizes(two(&shape, &stride, Some(Hint::Nhd))), Ok((13, [9, 8, 16, 64])));
        let (shape, stride) = ([2, 9, 8, 16, 64], [73728, 8192, 1024, 64, 1]);
        assert_eq!(sizes(two(&shape, &stride, None)), Ok((6, [9, 16, 8, 64])));
        assert_eq!(sizes(two(&shape, &stride, Some(Hint::Blnhc))), Ok((1, [9, 8, 16, 64])));
    }

    /// vLLM names axes `[B, H, N, C]` whatever their order in memory.
    #[test]
    fn strides_tell_the_order_in_memory() {
        let found = two(&[9, 8, 16, 64], &[8192, 64, 512, 1], Some(Hint::Nhd));
        assert_eq!(sizes(found), Ok((13, [9, 16, 8, 64])));
    }

    #[test]
    fn an_axis_of_size_one_goes_innermost_where_strides_tie() {
        let (shape, stride) = ([9, 1, 16, 64], [1024, 64, 64, 1]);
        assert_eq!(sizes(two(&shape, &stride, Some(Hint::Blnhc))), Ok((13, [9, 16, 1, 64])));
        // The peer's trap: the wrong hint makes 16 heads of one slot of the same axes.
        assert_eq!(sizes(two(&shape, &stride, Some(Hint::Hnd))), Ok((12, [9, 1, 16, 64])));
    }

    #[test]
    fn two_blocks_pass_for_two_planes() {
        let stride = [2 * 8192, 8192, 512, 64, 1];
        let nhd = Some(Hint::Nhd);
        assert_eq!(sizes(two(&[3, 2, 16, 8, 64], &stride, nhd)), Ok((2, [3, 16, 8, 64])));
        assert_eq!(sizes(two(&[2, 2, 16, 8, 64], &stride, nhd)), Ok((1, [2, 16, 8, 64])));
        let stride = [3 * 8192, 8192, 512, 64, 1];
        assert_eq!(two(&[3, 3, 16, 8, 64], &stride, nhd), Err(PagesFault::NoPlaneAxis));
    }

    #[test]
    fn only_blocks_may_be_padded_and_only_in_front() {
        let nhd = Some(Hint::Nhd);
        let padded = two(&[9, 16, 8, 64], &[9000, 512, 64, 1], nhd).unwrap();
        assert_eq!((padded.block_stride_bytes, padded.tensor_bytes()), (18000, 8 * 18000 + 16384));
        let split = two(&[9, 2, 16, 8, 64], &[20000, 8192, 512, 64, 1], nhd);
        assert_eq!(split, Err(PagesFault::BlockPadding));
        let inside = two(&[9, 16, 8, 64], &[9000, 520, 65, 1], nhd);
        assert_eq!(inside, Err(PagesFault::InteriorPadding));
        assert_eq!(two(&[9, 16, 64], &[512, 64, 1], nhd), Err(PagesFault::Overlap));
        assert_eq!(two(&[9, 16, 8, 64], &[8192, 512, 0, 1], nhd), Err(PagesFault::Overlap));
    }

    #[test]
    fn rows_of_132_bytes_are_an_indexer() {
        let one = |shape: &[u64], stride: &[u64], dtype| {
            Pages::discover([tensor(shape, stride, dtype)].into_iter(), None, PLAIN, 256)
        };
        let (shape, stride) = ([9, 64, 132], [9000, 132, 1]);
        assert_eq!(sizes(one(&shape, &stride, "uint8")), Ok((14, [9, 64, 1, 132])));
        assert_eq!(sizes(one(&shape, &stride, "int8")), Ok((3, [9, 64, 1, 132])));
    }

    #[test]
    fn one_tensor_of_six_axes_has_all_layers() {
        let (shape, stride) = ([9, 4, 2, 16, 8, 64], [65536, 16384, 8192, 512, 64, 1]);
        let one =
            |hint| Pages::discover([tensor(&shape, &stride, "int8")].into_iter(), hint, PLAIN, 256);
        let pages = one(None).unwrap();
        assert_eq!((pages.format, pages.layers, pages.tensors), (Format::CrossLayer, 4, 1));
        assert_eq!(pages.layout().bytes(), Some(2 * 4 * 256 * 512));
        assert_eq!(one(Some(Hint::Hnd)), Err(PagesFault::CrossLayerHeadsFirst));
        assert_eq!(two(&shape, &stride, None), Err(PagesFault::CrossLayerTensors));
    }

    #[test]
    fn blocks_chunks_and_windows_fit_one_another() {
        let group = |tokens_per_block, window_tokens| {
            let tensors = [tensor(&[9, 16, 64], &[1024, 64, 1], "bfloat16")];
            let group = Group { tokens_per_block, window_tokens };
            Pages::discover(tensors.into_iter(), None, group, 256).map(|pages| pages.object_slots)
        };
        assert_eq!(group(0, None), Ok(256));
        assert_eq!(group(64, None), Ok(64));
        assert_eq!(group(64, Some(128)), Ok(32));
        assert_eq!(group(64, Some(256)), Ok(64));
        assert_eq!(group(64, Some(1000)), Ok(64));
        assert_eq!(group(24, None), Err(PagesFault::TokensPerBlock));
        assert_eq!(group(48, None), Err(PagesFault::Chunk));
        assert_eq!(group(64, Some(100)), Err(PagesFault::Window));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        assert_eq!(two(&[0, 16, 64], &[1024, 64, 1], None), Err(PagesFault::Empty));
        assert_eq!(two(&[9, 16, 64], &[1024, 64], None), Err(PagesFault::RankMismatch));
        assert_eq!(two(&[16, 64], &[64, 1], None), Err(PagesFault::Rank));
        let wide = [1 << 33, 64, 1];
        assert_eq!(two(&[1 << 31, 16, 64], &wide, None), Err(PagesFault::TooLarge));
        assert_eq!(two(&[1 << 32, 16, 64], &[1024, 64, 1], None), Err(PagesFault::TooLarge));
        // A stride that nothing follows, a row, and an object.
        assert_eq!(two(&[1, 16, 64], &[1 << 63, 64, 1], None), Err(PagesFault::TooLarge));
        let row = [1 << 33, 1 << 33, 1 << 13, 1];
        assert_eq!(
            two(&[1, 1, 1 << 20, 1 << 13], &row, Some(Hint::Nhd)),
            Err(PagesFault::TooLarge)
        );
        let (shape, stride) = ([1, 1, (1 << 31) - 1], [(1 << 31) - 1, (1 << 31) - 1, 1]);
        let tensors = [tensor(&shape, &stride, "bfloat16"); 3];
        let object = Pages::discover(tensors.into_iter(), None, PLAIN, u32::MAX);
        assert_eq!(object, Err(PagesFault::TooLarge));
        let none = Pages::discover([].into_iter(), None, PLAIN, 256);
        assert_eq!(none, Err(PagesFault::NoTensor));
        let late = Described {
            storage_offset: u64::MAX / 2,
            ..tensor(&[9, 16, 64], &[1024, 64, 1], "int16")
        };
        let found = Pages::discover([late].into_iter(), None, PLAIN, 256);
        assert_eq!(found, Err(PagesFault::TooLarge));
    }

    #[test]
    fn layers_of_one_group_are_alike() {
        let (one, other) = ([1024, 64, 1], [2048, 64, 1]);
        let tensors = [tensor(&[9, 16, 64], &one, "int8"), tensor(&[9, 16, 64], &other, "int8")];
        let found = Pages::discover(tensors.into_iter(), None, PLAIN, 256);
        assert_eq!(found, Err(PagesFault::TensorsDiffer));
    }
}
