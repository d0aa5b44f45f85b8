//! Copies between segments of an engine and objects, through the kernel alone.

use kvtide_core::effect::Direction;
use kvtide_core::event::AttachFault;
use kvtide_core::front::paged::Source;
use kvtide_core::names::Dtype;
use kvtide_core::pages::{Described, Group, Hint, Pages, Run};
use kvtide_gpu::host::pages::{CopyFault, Object, Segments};
use rustix::fs::{Mode, ftruncate};
use rustix::shm;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A segment as the client makes them, gone with its owner.
struct Segment {
    name: String,
    file: OwnedFd,
}

impl Segment {
    fn new(bytes: &[u8]) -> Segment {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("/lmcache_kv_{}_{count}", std::process::id());
        let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
        let file = shm::open(&*name, flags, Mode::RUSR | Mode::WUSR).expect("the name is free");
        let written = rustix::io::pwrite(&file, bytes, 0).expect("a segment takes bytes");
        assert_eq!(written, bytes.len());
        Segment { name, file }
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(format!("/dev/shm{}", self.name)).expect("the segment is there")
    }

    fn source(&self, segment_bytes: usize, offset_bytes: u64) -> Source {
        let segment_bytes = segment_bytes as u64;
        Source { segment: self.name.clone(), segment_bytes, offset_bytes }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        shm::unlink(&*self.name).ok();
    }
}

/// Two layers `[NB 6, NH 2, BS 4, C 8]` of u8, chunks of two blocks.
fn pages(hint: Hint) -> Pages {
    let shape = match hint {
        Hint::Hnd => [6, 2, 4, 8],
        _ => [6, 4, 2, 8],
    };
    let stride = [64, shape[2] * shape[3], shape[3], 1];
    let dtype = Dtype::named("uint8").expect("a torch type");
    let described = || Described { shape: &shape, stride: &stride, storage_offset: 0, dtype };
    let group = Group { tokens_per_block: 0, window_tokens: None };
    let tensors = [described(), described()].into_iter();
    Pages::discover(tensors, Some(hint), group, 8).expect("it is served")
}

fn plan(pages: &Pages, blocks: &[u32], skip: u32) -> Vec<Run> {
    let mut runs = Vec::new();
    pages.plan(blocks, skip, &mut runs).expect("the blocks are there");
    runs
}

fn copy(
    segments: &Segments,
    direction: Direction,
    runs: &[Run],
    object: &mut [u8],
) -> Result<(), CopyFault> {
    let bytes = object.len() as u64;
    let start = NonNull::new(object.as_mut_ptr()).expect("a slice has an address");
    // SAFETY: the slice is borrowed mutably until the copy returns.
    unsafe { segments.copy(direction, runs, Object { start, bytes }) }
}

/// Layers in one segment, 100 bytes from its start, and in another.
fn attached(pages: &Pages) -> (Segment, Segment, Segments) {
    let bytes = |seed: u8| (0..484u32).map(|at| (at * 7) as u8 ^ seed).collect::<Vec<u8>>();
    let (one, other) = (Segment::new(&bytes(1)), Segment::new(&bytes(2)));
    let sources = [one.source(484, 100), other.source(484, 0)];
    let segments = Segments::open(&sources, pages.tensor_bytes(), 2).expect("both are there");
    assert_eq!(segments.count(), 2);
    (one, other, segments)
}

#[test]
fn an_object_holds_every_slot_of_its_blocks_in_order_and_goes_back_where_it_was() {
    for hint in [Hint::Nhd, Hint::Hnd] {
        let pages = pages(hint);
        let (one, other, segments) = attached(&pages);
        let (before_one, before_other) = (one.bytes(), other.bytes());
        let blocks = [4, 1];
        let mut object = vec![0xAA; 256];
        copy(&segments, Direction::Store, &plan(&pages, &blocks, 0), &mut object)
            .expect("all of it is there");
        for (layer, segment) in [(0, &before_one[100..]), (1, &before_other[..])] {
            for token in 0..8 {
                let (block, slot) = (blocks[token / 4] as usize, token % 4);
                for head in 0..2 {
                    let within = if hint == Hint::Hnd { head * 4 + slot } else { slot * 2 + head };
                    let page = &segment[block * 64 + within * 8..][..8];
                    let at = ((layer * 8 + token) * 2 + head) * 8;
                    assert_eq!(&object[at..at + 8], page, "{hint:?} {layer} {token} {head}");
                }
            }
        }
        // Into other blocks, the first of them left out.
        let runs = plan(&pages, &[0, 5], 1);
        copy(&segments, Direction::Retrieve, &runs, &mut object).expect("there is room");
        for (segment, before, start) in [(&one, before_one, 100), (&other, before_other, 0)] {
            let after = segment.bytes();
            let block = |bytes: &[u8], at: usize| bytes[start + at * 64..][..64].to_vec();
            assert_eq!(block(&after, 5), block(&before, 1), "{hint:?}");
            let mut untouched = after.clone();
            untouched[start + 5 * 64..][..64].copy_from_slice(&block(&before, 5));
            assert_eq!(untouched, before, "{hint:?}");
        }
    }
}

/// An access through a mapping would be SIGBUS, and a write behind the end would make it grow.
#[test]
fn a_segment_that_is_cut_short_is_a_failed_copy_in_both_directions() {
    let pages = pages(Hint::Hnd);
    let (_one, other, segments) = attached(&pages);
    ftruncate(&other.file, 200).expect("it is ours");
    let runs = plan(&pages, &[4, 1], 0);
    let mut object = vec![0; 256];
    let stored = copy(&segments, Direction::Store, &runs, &mut object);
    assert_eq!(stored, Err(CopyFault::Cut));
    let retrieved = copy(&segments, Direction::Retrieve, &runs, &mut object);
    assert_eq!(retrieved, Err(CopyFault::Cut));
    assert_eq!(other.bytes().len(), 200, "it has not grown again");
}

#[test]
fn a_run_that_would_leave_its_tensor_or_its_object_touches_nothing() {
    let pages = pages(Hint::Nhd);
    let (one, _other, segments) = attached(&pages);
    let before = one.bytes();
    let [run, ..] = plan(&pages, &[4, 1], 0)[..] else { panic!("there are runs") };
    let mut object = vec![0; 256];
    let wrong = [
        Run { tensor: 2, ..run },
        Run { page: pages.tensor_bytes(), ..run },
        Run { page: u64::MAX, ..run },
        Run { object: 255, ..run },
    ];
    for run in wrong {
        for direction in [Direction::Store, Direction::Retrieve] {
            let copied = copy(&segments, direction, &[run], &mut object);
            assert_eq!(copied, Err(CopyFault::Outside), "{run:?}");
        }
    }
    assert_eq!(object, vec![0; 256]);
    assert_eq!(one.bytes(), before);
}

#[test]
fn what_cannot_be_attached_is_refused_with_its_reason() {
    let bytes = pages(Hint::Nhd).tensor_bytes();
    let segment = Segment::new(&vec![0; 384]);
    let open = |source: Source, room| Segments::open(&[source], bytes, room).map(|_| ()).err();
    assert_eq!(open(segment.source(384, 0), 1), None);
    assert_eq!(open(segment.source(384, 1), 1), Some(AttachFault::Short));
    assert_eq!(open(segment.source(385, 0), 1), Some(AttachFault::Short));
    assert_eq!(open(segment.source(384, u64::MAX), 1), Some(AttachFault::Short));
    assert_eq!(open(segment.source(384, 0), 0), Some(AttachFault::Full));
    let named = |name: &str| Source { segment: name.into(), segment_bytes: 384, offset_bytes: 0 };
    assert_eq!(open(named("/lmcache_kv_0_none"), 1), Some(AttachFault::Absent));
    // Nobody has the server open what engines do not make.
    for name in ["/lmcache_l1_pool_x", "/lmcache_kv_/../x", "/etc/passwd", "", "/"] {
        assert_eq!(open(named(name), 1), Some(AttachFault::Denied), "{name}");
    }
}
