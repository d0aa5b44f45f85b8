//! Copies: everything is checked when they are submitted, and the memory they touch is held until
//! they are done.

use crate::abi::{self, Copy2d, CopyAttributes, KIND_DEVICE, KIND_HOST, list, put, take};
use crate::gate::entries;
use crate::mem::{Place, Side};
use crate::stream::{self, Op, Segment};
use crate::world::{self, World};

fn segment(
    world: &mut World,
    (from, from_side): (u64, Side),
    (to, to_side): (u64, Side),
    bytes: usize,
) -> Result<Segment, u32> {
    if bytes == 0 {
        return Err(abi::INVALID_VALUE);
    }
    let from = world.place(from, bytes as u64, from_side)?;
    let to = world.place(to, bytes as u64, to_side)?;
    Ok(Segment { from, to, bytes })
}

fn copy(from: (u64, Side), to: (u64, Side), bytes: usize, stream: usize) -> Result<(), u32> {
    let mut world = world::lock();
    let queue = stream::of(&mut world, stream)?;
    let segment = segment(&mut world, from, to, bytes)?;
    queue.push(&mut world, Op::Copy(vec![segment]));
    Ok(())
}

/// One side of a two-dimensional copy: kind, both addresses, offset of the first byte and pitch.
type Plane = (u32, usize, u64, (usize, usize), usize);

/// Where that side begins, in memory that holds all of its rows: not each of them in some.
fn place(world: &mut World, plan: &Copy2d, plane: Plane) -> Result<Place, u32> {
    let (kind, host, device, (x, y), pitch) = plane;
    let (base, side) = match kind {
        KIND_HOST => (host as u64, Side::Host),
        KIND_DEVICE => (device, Side::Device),
        _ => return Err(abi::INVALID_VALUE),
    };
    // A row with its offset fits its pitch, and pitches are at most what attribute 11 says.
    if x > PITCH_MAX || pitch > PITCH_MAX || plan.width.max(plan.height).max(y) > PITCH_MAX {
        return Err(abi::INVALID_VALUE);
    }
    if plan.width == 0 || plan.height == 0 || x + plan.width > pitch {
        return Err(abi::INVALID_VALUE);
    }
    let start = base.checked_add((y * pitch + x) as u64).ok_or(abi::INVALID_VALUE)?;
    world.place(start, ((plan.height - 1) * pitch + plan.width) as u64, side)
}

const PITCH_MAX: usize = (1 << 31) - 1;

fn overlap(ranges: &mut [(u64, u64)]) -> bool {
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
}

/// The table of attributes: as many as indexes, the first for the first entry, then ascending and
/// within the batch; the order of access to sources is one of three.
fn check_attributes(attributes: &[CopyAttributes], indexes: &[usize], count: usize) -> bool {
    let orders = attributes.iter().all(|each| (1..=3).contains(&each.source_access_order));
    let ascending = indexes.windows(2).all(|pair| pair[0] < pair[1]);
    let within = indexes.len() <= count && indexes.iter().all(|index| *index < count);
    orders && ascending && within && indexes.first() == Some(&0)
}

entries! {
    Context cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: usize) {
        copy((from, Side::Device), (to as u64, Side::Host), bytes, stream)
    }

    Context cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: usize) {
        copy((from as u64, Side::Host), (to, Side::Device), bytes, stream)
    }

    Context cuMemcpy2DAsync_v2(plan: *const Copy2d, stream: usize) {
        let c = take(plan)?;
        let from = (c.source_kind, c.source_host, c.source_device);
        let to = (c.target_kind, c.target_host, c.target_device);
        let from = (from.0, from.1, from.2, (c.source_x, c.source_y), c.source_pitch);
        let to = (to.0, to.1, to.2, (c.target_x, c.target_y), c.target_pitch);
        let mut world = world::lock();
        let queue = stream::of(&mut world, stream)?;
        let (from, to) = (place(&mut world, &c, from)?, place(&mut world, &c, to)?);
        let row = |row| Segment {
            from: from.at(row * c.source_pitch),
            to: to.at(row * c.target_pitch),
            bytes: c.width,
        };
        queue.push(&mut world, Op::Copy((0..c.height).map(row).collect()));
        Ok(())
    }

    /// The form of 12.8, which names the entry that failed, or the largest number where none did.
    /// The entries have no order among themselves, so they run in one that is drawn.
    Context cuMemcpyBatchAsync(
        to: *const u64,
        from: *const u64,
        bytes: *const usize,
        count: usize,
        attributes: *const CopyAttributes,
        indexes: *const usize,
        attribute_count: usize,
        failed_at: *mut usize,
        stream: usize,
    ) {
        put(failed_at, usize::MAX)?;
        let mut world = world::lock();
        if stream == 0 {
            world.violation("a batch in the null stream".to_string());
            return Err(abi::INVALID_VALUE);
        }
        let queue = stream::of(&mut world, stream)?;
        let (to, from, bytes) = (list(to, count)?, list(from, count)?, list(bytes, count)?);
        let attributes = list(attributes, attribute_count)?;
        if !check_attributes(&attributes, &list(indexes, attribute_count)?, count) {
            return Err(abi::INVALID_VALUE);
        }
        let fails_at = std::mem::take(&mut world.settings.batch_fails_at);
        let mut segments = Vec::with_capacity(count);
        for at in 0..count {
            let ordered = fails_at == at as u64 + 1;
            let entry = (from[at], Side::Either);
            let made = segment(&mut world, entry, (to[at], Side::Either), bytes[at]);
            match made.and_then(|made| if ordered { Err(abi::INVALID_VALUE) } else { Ok(made) }) {
                Ok(made) => segments.push(made),
                Err(code) => {
                    put(failed_at, at)?;
                    return Err(code);
                }
            }
        }
        let mut targets: Vec<_> = to.iter().zip(&bytes).map(|(to, n)| (*to, *n as u64)).collect();
        let twice = overlap(&mut targets);
        if twice {
            world.violation("entries of a batch write the same bytes".to_string());
        }
        let reads = |at: usize| {
            let end = from[at] + bytes[at] as u64;
            let before = targets.partition_point(|(start, _)| *start < end);
            before > 0 && targets[before - 1].0 + targets[before - 1].1 > from[at]
        };
        if (0..count).any(reads) {
            world.violation("an entry of a batch reads what another writes".to_string());
        }
        for at in (1..segments.len()).rev() {
            let other = world.random() as usize % (at + 1);
            segments.swap(at, other);
        }
        queue.push(&mut world, Op::Copy(segments));
        Ok(())
    }
}
