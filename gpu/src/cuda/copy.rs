//! Copies between an engine's storages and pinned memory: what is asked for is checked, cut at the
//! borders of slices and merged, and then given to the driver in as few calls as it offers.

use super::driver::{Calls, Copy2d, CopyAttributes};
use super::memory::{Pinned, Region};
use super::stream::Stream;
use super::{Failed, NOT_SUPPORTED, Refused};
use cudarc::driver::sys;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the card to host memory.
    Store,
    /// From host memory to the card.
    Load,
}

/// Bytes that lie together on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which region of the instance.
    pub region: u32,
    pub offset: u64,
    /// From the start of pinned memory.
    pub host: u64,
    pub bytes: u64,
}

/// Rows at equal distances on both sides: one head of a head-major page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub region: u32,
    pub offset: u64,
    pub host: u64,
    pub row_bytes: u64,
    pub rows: u64,
    /// From the start of one row to the start of the next.
    pub device_pitch: u64,
    pub host_pitch: u64,
}

/// What one ticket copies. Runs come first; in each list a later entry overwrites an earlier one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work<'a> {
    pub runs: &'a [Run],
    pub rows: &'a [Rows],
}

impl Rows {
    fn row(&self, row: u64) -> Run {
        let Rows { region, offset, host, row_bytes: bytes, .. } = *self;
        let (offset, host) = (offset + row * self.device_pitch, host + row * self.host_pitch);
        Run { region, offset, host, bytes }
    }

    /// The whole extent on each side, as runs of one row that is as long as all of them.
    fn extent_bytes(&self, pitch: u64) -> Option<u64> {
        let last = self.rows.checked_sub(1)?.checked_mul(pitch)?;
        last.checked_add(self.row_bytes)
    }
}

/// One contiguous copy, by addresses that were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    region: u32,
    device: u64,
    host: u64,
    bytes: u64,
}

/// Plans and submits. Its lists are kept from one ticket to the next.
pub struct Copier {
    spans: Vec<Span>,
    planes: Vec<(Span, Rows)>,
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
    sorted: Vec<(u64, u64)>,
    batch: bool,
}

impl Copier {
    pub fn new(batch: bool) -> Copier {
        let (spans, planes, sorted) = (Vec::new(), Vec::new(), Vec::new());
        let (to, from, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Copier { spans, planes, to, from, bytes, sorted, batch }
    }

    /// Checks everything before anything is submitted.
    pub fn plan(
        &mut self,
        regions: &[Region],
        pinned: &Pinned,
        work: &Work<'_>,
    ) -> Result<(), Refused> {
        self.spans.clear();
        self.planes.clear();
        for run in work.runs {
            let (device, _) = locate(regions, pinned, run)?;
            self.add_run(regions, pinned, run, device);
        }
        for rows in work.rows {
            self.add_rows(regions, pinned, rows)?;
        }
        Ok(())
    }

    /// Cuts at the borders of slices, and appends to the span before where both sides go on.
    fn add_run(&mut self, regions: &[Region], pinned: &Pinned, run: &Run, device: u64) {
        let mut done = 0;
        while done < run.bytes {
            let offset = run.host + done;
            let slice = pinned.slice_of(offset);
            let bytes = (slice.end - offset).min(run.bytes - done);
            let host = pinned.at(offset, bytes).expect("located as a whole");
            let span = Span { region: run.region, device: device + done, host, bytes };
            done += bytes;
            let begins_slice = slice.start == offset;
            match self.spans.last_mut() {
                Some(last) if !begins_slice && follows(regions, last, &span) => last.bytes += bytes,
                _ => self.spans.push(span),
            }
        }
    }

    /// Rows that lie in one slice together are one call; a row that crosses a border is cut.
    fn add_rows(
        &mut self,
        regions: &[Region],
        pinned: &Pinned,
        rows: &Rows,
    ) -> Result<(), Refused> {
        if rows.rows == 0 || rows.row_bytes == 0 {
            return Ok(());
        }
        let pitches = rows.device_pitch.min(rows.host_pitch);
        let device_bytes = rows.extent_bytes(rows.device_pitch);
        let host_bytes = rows.extent_bytes(rows.host_pitch);
        let (Some(device_bytes), Some(host_bytes)) = (device_bytes, host_bytes) else {
            return Err(Refused::Pitch);
        };
        if pitches < rows.row_bytes {
            return Err(Refused::Pitch);
        }
        let Rows { region, offset, host, .. } = *rows;
        region_of(regions, region)?.at(offset, device_bytes).map_err(Refused::OutsideRegion)?;
        pinned.at(host, host_bytes).map_err(Refused::OutsidePinned)?;
        let mut row = 0;
        while row < rows.rows {
            let first = rows.row(row);
            let (device, host) = locate(regions, pinned, &first)?;
            let left = pinned.slice_of(first.host).end - first.host;
            if left < rows.row_bytes {
                self.add_cut_row(regions, pinned, &first, device);
                row += 1;
                continue;
            }
            let fitting = (left - rows.row_bytes) / rows.host_pitch + 1;
            let count = fitting.min(rows.rows - row);
            let span = Span { region, device, host, bytes: rows.row_bytes };
            self.planes.push((span, Rows { rows: count, ..*rows }));
            row += count;
        }
        Ok(())
    }

    /// A row that is cut, as planes of one row each: they keep their place among the others.
    fn add_cut_row(&mut self, regions: &[Region], pinned: &Pinned, run: &Run, device: u64) {
        let spans = self.spans.len();
        self.add_run(regions, pinned, run, device);
        for span in self.spans.split_off(spans) {
            let rows = Rows {
                region: span.region,
                offset: run.offset,
                host: run.host,
                row_bytes: span.bytes,
                rows: 1,
                device_pitch: span.bytes,
                host_pitch: span.bytes,
            };
            self.planes.push((span, rows));
        }
    }

    /// Submits what was planned. After an error part of it may be queued.
    pub fn submit(
        &mut self,
        calls: &Calls,
        stream: &Stream,
        direction: Direction,
    ) -> Result<(), Failed> {
        let whole = self.batch && self.spans.len() > 1 && !self.writes_twice(direction);
        if !(whole && self.submit_batches(calls, stream, direction)?) {
            for span in &self.spans {
                submit_span(calls, stream, direction, span)?;
            }
        }
        for (span, rows) in &self.planes {
            submit_rows(calls, stream, direction, span, rows)?;
        }
        Ok(())
    }

    /// Entries of a batch have no order, so two that write the same bytes (an engine may name one
    /// block twice) must not meet in one.
    fn writes_twice(&mut self, direction: Direction) -> bool {
        let target = |span: &Span| match direction {
            Direction::Store => (span.host, span.bytes),
            Direction::Load => (span.device, span.bytes),
        };
        let meets = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1 > pair[1].0;
        self.sorted.clear();
        self.sorted.extend(self.spans.iter().map(target));
        self.sorted.sort_unstable();
        self.sorted.windows(2).any(meets)
    }

    /// False where the driver has the call but does not serve it; nothing is queued then.
    fn submit_batches(
        &mut self,
        calls: &Calls,
        stream: &Stream,
        direction: Direction,
    ) -> Result<bool, Failed> {
        // Sources are read in the order of the stream: the producer's event stands before them.
        let nowhere = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let attributes = CopyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        for (at, spans) in self.spans.chunks(BATCH_ENTRIES_MAX).enumerate() {
            let (to, from) = match direction {
                Direction::Store => (&mut self.to, &mut self.from),
                Direction::Load => (&mut self.from, &mut self.to),
            };
            to.clear();
            to.extend(spans.iter().map(|span| span.host));
            from.clear();
            from.extend(spans.iter().map(|span| span.device));
            self.bytes.clear();
            self.bytes.extend(spans.iter().map(|span| span.bytes as usize));
            let (index, mut failed_at) = (0_usize, usize::MAX);
            // SAFETY: the three lists have one length, the one attribute holds from entry 0 on,
            // and every span was checked against memory that is open until its ticket ends.
            let queued = unsafe {
                calls.copy_batch(
                    self.to.as_ptr(),
                    self.from.as_ptr(),
                    self.bytes.as_ptr(),
                    spans.len(),
                    &attributes,
                    &index,
                    1,
                    &mut failed_at,
                    stream.handle(),
                )
            };
            match queued {
                Err(failed) if failed.code == NOT_SUPPORTED && at == 0 => {
                    self.batch = false;
                    return Ok(false);
                }
                queued => queued?,
            }
        }
        Ok(true)
    }
}

fn region_of(regions: &[Region], index: u32) -> Result<&Region, Refused> {
    regions.get(index as usize).ok_or(Refused::NoRegion { index })
}

fn locate(regions: &[Region], pinned: &Pinned, run: &Run) -> Result<(u64, u64), Refused> {
    let region = region_of(regions, run.region)?;
    let device = region.at(run.offset, run.bytes).map_err(Refused::OutsideRegion)?;
    let host = pinned.at(run.host, run.bytes).map_err(Refused::OutsidePinned)?;
    Ok((device, host))
}

fn follows(regions: &[Region], last: &Span, span: &Span) -> bool {
    let region = |span: &Span| &regions[span.region as usize];
    last.device + last.bytes == span.device
        && last.host + last.bytes == span.host
        && region(last).same_allocation(region(span))
}

fn submit_span(
    calls: &Calls,
    stream: &Stream,
    direction: Direction,
    span: &Span,
) -> Result<(), Failed> {
    let (host, bytes) = (span.host as usize, span.bytes as usize);
    match direction {
        // SAFETY: both ranges were checked, and their memory stays open until the ticket ends.
        Direction::Store => unsafe {
            calls.copy_to_host(host, span.device, bytes, stream.handle())
        },
        // SAFETY: both ranges were checked, and their memory stays open until the ticket ends.
        Direction::Load => unsafe {
            calls.copy_to_device(span.device, host, bytes, stream.handle())
        },
    }
}

fn submit_rows(
    calls: &Calls,
    stream: &Stream,
    direction: Direction,
    span: &Span,
    rows: &Rows,
) -> Result<(), Failed> {
    use sys::CUmemorytype_enum::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
    let host = std::ptr::with_exposed_provenance_mut(span.host as usize);
    // Both sides carry both addresses; the kinds say which of them counts.
    let (from, to, from_pitch, to_pitch) = match direction {
        Direction::Store => {
            (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, rows.device_pitch, rows.host_pitch)
        }
        Direction::Load => {
            (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, rows.host_pitch, rows.device_pitch)
        }
    };
    let plan = Copy2d {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from,
        srcHost: host,
        srcDevice: span.device,
        srcArray: std::ptr::null_mut(),
        srcPitch: from_pitch as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to,
        dstHost: host,
        dstDevice: span.device,
        dstArray: std::ptr::null_mut(),
        dstPitch: to_pitch as usize,
        WidthInBytes: span.bytes as usize,
        Height: rows.rows as usize,
    };
    // SAFETY: the extents of both sides were checked, and their memory stays open until the
    // ticket ends.
    unsafe { calls.copy_rows(&plan, stream.handle()) }
}

/// Entries of one call. A chunk of a large model has 512.
const BATCH_ENTRIES_MAX: usize = 4096;
