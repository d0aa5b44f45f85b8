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
    let merges = shape == Shape::Flat && pages.block_stride_bytes == bytes;
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
