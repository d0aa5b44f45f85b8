//! The runs of one object. Its one invariant: the first layer's stretches are found and merged
//! once; every other layer and plane repeats them elsewhere.

use crate::pages::{BlockFault, Format, Pages, Run, Shape};
use alloc::vec::Vec;

pub(super) fn plan(
    pages: &Pages,
    blocks: &[u32],
    skip: u32,
    runs: &mut Vec<Run>,
) -> Result<(), BlockFault> {
    let wanted = pages.blocks_per_object();
    if blocks.len() != wanted as usize {
        return Err(BlockFault::Count { given: blocks.len(), wanted });
    }
    if let Some(position) = blocks.iter().position(|&block| block >= pages.blocks) {
        return Err(BlockFault::Outside { position: position as u32 });
    }
    let from = runs.len();
    push_blocks(pages, blocks, skip, runs);
    let to = runs.len();
    let grid = Grid::of(pages);
    runs.reserve((to - from) * (grid.count as usize - 1));
    for at in 1..grid.count {
        let (tensor, page, object) = grid.place(at);
        for each in from..to {
            let run = runs[each];
            runs.push(Run { tensor, page: run.page + page, object: run.object + object, ..run });
        }
    }
    Ok(())
}

/// Plane 0 of layer 0. Blocks that follow one another on both sides become one run, within a plane
/// only: more would be found for models of one layer alone.
fn push_blocks(pages: &Pages, blocks: &[u32], skip: u32, runs: &mut Vec<Run>) {
    let bytes = pages.block_bytes();
    let shape = shape(pages);
    let merges = shape == Shape::Flat;
    let mut last: Option<Run> = None;
    for (position, &block) in blocks.iter().enumerate().skip(skip as usize) {
        let page = u64::from(block) * pages.block_stride_bytes;
        match &mut last {
            Some(run) if merges && run.page + run.bytes == page => run.bytes += bytes,
            _ => {
                runs.extend(last);
                last = Some(Run { tensor: 0, page, object: position as u64 * bytes, bytes, shape });
            }
        }
    }
    runs.extend(last);
}

/// With one head, or one slot, both orders are the same.
fn shape(pages: &Pages) -> Shape {
    let (heads, slots) = (pages.heads, pages.slots_per_block);
    if !pages.format.heads_first() || heads == 1 || slots == 1 {
        return Shape::Flat;
    }
    let row = u64::from(pages.width) * pages.dtype.bytes();
    Shape::Heads { heads, slots, row_bytes: row as u32 }
}

/// Where the planes and layers lie, plane by plane as in the object.
struct Grid {
    count: u32,
    layers: u32,
    cross_layer: bool,
    page_of_plane: u64,
    page_of_layer: u64,
    object_of_layer: u64,
}

impl Grid {
    fn of(pages: &Pages) -> Grid {
        let block = pages.block_bytes();
        let cross_layer = pages.format == Format::CrossLayer;
        let plane_blocks = if pages.format.planes_first() { pages.blocks } else { 1 };
        Grid {
            count: u32::from(pages.planes) * pages.layers,
            layers: pages.layers,
            cross_layer,
            page_of_plane: u64::from(plane_blocks) * block,
            page_of_layer: if cross_layer { 2 * block } else { 0 },
            object_of_layer: u64::from(pages.blocks_per_object()) * block,
        }
    }

    /// The tensor, and the bytes from the same place in plane 0 of layer 0.
    fn place(&self, at: u32) -> (u32, u64, u64) {
        let (plane, layer) = (at / self.layers, at % self.layers);
        let page = u64::from(plane) * self.page_of_plane + u64::from(layer) * self.page_of_layer;
        let tensor = if self.cross_layer { 0 } else { layer };
        (tensor, page, u64::from(at) * self.object_of_layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Dtype;

    /// Two layers of 10 blocks; a block has 2 slots of 3 heads of 4 bytes: 24 bytes.
    fn pages(format: Format) -> Pages {
        let planes = match format {
            Format::PackedSlot | Format::PackedHead | Format::Latent | Format::Indexer => 1,
            _ => 2,
        };
        let block_stride_bytes = match format {
            Format::CrossLayer => 96,
            Format::BlockPlaneSlot | Format::BlockPlaneHead => 48,
            _ => 24,
        };
        Pages {
            format,
            layers: 2,
            tensors: if format == Format::CrossLayer { 1 } else { 2 },
            blocks: 10,
            slots_per_block: 2,
            tokens_per_block: 2,
            heads: 3,
            width: 4,
            planes,
            dtype: Dtype::named("uint8").unwrap(),
            block_stride_bytes,
            chunk_tokens: 6,
            object_slots: 6,
        }
    }

    fn planned(pages: Pages, blocks: &[u32], skip: u32) -> Vec<(u32, u64, u64, u64)> {
        let mut runs = Vec::new();
        pages.plan(blocks, skip, &mut runs).unwrap();
        runs.iter().map(|run| (run.tensor, run.page, run.object, run.bytes)).collect()
    }

    #[test]
    fn planes_in_front_lie_a_whole_cache_apart() {
        let runs = planned(pages(Format::PlaneBlockSlot), &[4, 5, 2], 0);
        let keys = [(0, 96, 0, 48), (0, 48, 48, 24), (1, 96, 72, 48), (1, 48, 120, 24)];
        let values = keys.map(|(tensor, page, at, bytes)| (tensor, page + 240, at + 144, bytes));
        assert_eq!(runs, [keys, values].concat());
    }

    #[test]
    fn planes_within_a_block_are_never_neighbours() {
        let runs = planned(pages(Format::BlockPlaneSlot), &[4, 5, 6], 2);
        assert_eq!(
            runs,
            [(0, 288, 48, 24), (1, 288, 120, 24), (0, 312, 192, 24), (1, 312, 264, 24)]
        );
    }

    #[test]
    fn one_tensor_has_all_layers_of_a_block() {
        let runs = planned(pages(Format::CrossLayer), &[1, 2, 3], 2);
        assert_eq!(
            runs,
            [(0, 288, 48, 24), (0, 336, 120, 24), (0, 312, 192, 24), (0, 360, 264, 24)]
        );
    }

    #[test]
    fn padding_between_blocks_parts_them() {
        let padded = Pages { block_stride_bytes: 30, ..pages(Format::PackedSlot) };
        assert_eq!(planned(padded, &[4, 5, 6], 1).len(), 4);
        assert_eq!(planned(pages(Format::PackedSlot), &[4, 5, 6], 1).len(), 2);
    }

    #[test]
    fn heads_in_front_are_turned_unless_there_is_one() {
        let mut runs = Vec::new();
        let many = pages(Format::PackedHead);
        many.plan(&[4, 5, 6], 0, &mut runs).unwrap();
        let shape = Shape::Heads { heads: 3, slots: 2, row_bytes: 4 };
        assert!(runs.len() == 6 && runs.iter().all(|run| run.shape == shape));
        let one = Pages { heads: 1, block_stride_bytes: 8, ..many };
        assert_eq!(planned(one, &[4, 5, 6], 0), [(0, 32, 0, 24), (1, 32, 24, 24)]);
    }

    #[test]
    fn runs_are_appended_and_skipping_all_appends_none() {
        let pages = pages(Format::Latent);
        let mut runs = Vec::new();
        pages.plan(&[1, 3, 5], 0, &mut runs).unwrap();
        let before = runs.clone();
        pages.plan(&[1, 3, 5], 3, &mut runs).unwrap();
        assert_eq!(pages.plan(&[1, 10, 5], 3, &mut runs), Err(BlockFault::Outside { position: 1 }));
        let count = BlockFault::Count { given: 2, wanted: 3 };
        assert_eq!(pages.plan(&[1, 3], 0, &mut runs), Err(count));
        assert_eq!(runs, before);
    }
}
