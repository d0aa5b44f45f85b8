//! The arena allocator against a list of intervals.
//!
//! The model keeps every live extent in a plain list and searches by trying everything. It shares
//! no rule with the allocator but the length of a run, which is written down again below.

use kvtide_core::engine::space::{Extent, NoSpace, RunId, Space, Window};
use kvtide_core::rng::Rng;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const MIB: u64 = 1 << 20;
const ALIGN: u64 = 4096;
const ARENA: u64 = 24 * MIB;
/// Arenas below 512 MiB have superblocks of 1 MiB.
const BLOCK: u64 = MIB;
const SIZES: [u64; 9] = [1, 4096, 65_000, 300_000, 600_000, MIB, 5 * MIB / 2, 9 * MIB, ARENA];

#[derive(Clone, Copy, Debug)]
enum Op {
    Reserve { size: usize },
    ReserveAll { size: usize, count: u64 },
    Release { nth: usize },
    Hold { nth: usize },
    Unhold { nth: usize },
    Touch { nth: usize },
    Grow { bytes: u64 },
    EmptyWindow { size: usize },
    DrainWindow { size: usize },
    Undrain,
    Emptied,
    Age,
    ReserveZero,
    ReserveHuge { bytes: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let nth = 0..1000usize;
    let op = prop_oneof![
        12 => (0..SIZES.len()).prop_map(|size| Op::Reserve { size }),
        2 => (0..SIZES.len(), 0..40u64).prop_map(|(size, count)| Op::ReserveAll { size, count }),
        8 => nth.clone().prop_map(|nth| Op::Release { nth }),
        3 => nth.clone().prop_map(|nth| Op::Hold { nth }),
        2 => nth.clone().prop_map(|nth| Op::Unhold { nth }),
        4 => nth.prop_map(|nth| Op::Touch { nth }),
        2 => (0..2 * ARENA).prop_map(|bytes| Op::Grow { bytes }),
        2 => (0..SIZES.len()).prop_map(|size| Op::EmptyWindow { size }),
        1 => (0..SIZES.len()).prop_map(|size| Op::DrainWindow { size }),
        1 => Just(Op::Undrain),
        2 => Just(Op::Emptied),
        1 => Just(Op::Age),
        1 => Just(Op::ReserveZero),
        1 => prop_oneof![ARENA + 1..2 * ARENA, u64::MAX - 5000..=u64::MAX]
            .prop_map(|bytes| Op::ReserveHuge { bytes }),
    ];
    proptest::collection::vec(op, 1..200)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 256,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Live {
    extent: Extent,
    slot_bytes: u64,
    is_held: bool,
}

/// What is known of a run by its objects alone.
#[derive(Clone, Copy, Debug)]
struct Run {
    id: RunId,
    end_block: u64,
    stamp: u64,
    held: usize,
}

struct Model {
    live: Vec<Live>,
    /// Newest touch by run; a run that ended and came again starts at 0.
    stamps: Vec<(RunId, u64)>,
    published: u64,
    clock: u64,
    draining: Option<Drained>,
}

/// A window whose runs give nothing out, those that had an object when it began, and whose blocks
/// are kept for one size.
struct Drained {
    window: Window,
    runs: Vec<RunId>,
    slot_bytes: u64,
    /// Ticks that it is still kept, once it is empty.
    ticks_left: Option<u32>,
}

impl Drained {
    fn overlaps(&self, first: u64, end: u64) -> bool {
        let kept = self.window.first_block as u64;
        first < kept + self.window.blocks as u64 && end > kept
    }
}

fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGN) * ALIGN
}

/// Run length, from the sentence in the design: the fewest blocks, up to eight, with which an
/// arena full of the size wastes at most an eighth; the best of them where none does.
fn run_blocks(slot_bytes: u64) -> u64 {
    let blocks = ARENA / BLOCK;
    let least = slot_bytes.div_ceil(BLOCK);
    let used = |length: u64| blocks / length * (length * BLOCK / slot_bytes) * slot_bytes;
    let lengths = || least..=8.min(blocks);
    if least > 8 {
        return least;
    }
    let most = lengths().map(used).max().expect("there is one length at least");
    lengths()
        .find(|length| used(*length) * 8 >= ARENA * 7)
        .or_else(|| lengths().find(|length| used(*length) == most))
        .expect("the most is reached by one of them")
}

impl Model {
    fn new() -> Model {
        Model { live: Vec::new(), stamps: Vec::new(), published: 0, clock: 0, draining: None }
    }

    fn nth(&mut self, nth: usize) -> Option<&mut Live> {
        let count = self.live.len();
        self.live.get_mut(nth % count.max(1))
    }

    fn add(&mut self, space: &Space, extent: Extent) {
        let is_draining = self.is_draining(extent.run);
        assert!(!is_draining, "a draining run gave a slot out");
        let slot_bytes = space.slot_bytes(&extent);
        self.live.push(Live { extent, slot_bytes, is_held: false });
        if self.stamps.iter().any(|(run, _)| *run == extent.run) {
            return;
        }
        self.stamps.push((extent.run, 0));
        // A new run: the kept window opens to its own size and to nobody else.
        let Some(kept) = &self.draining else { return };
        if kept.slot_bytes == slot_bytes && kept.ticks_left.is_some() {
            self.draining = None;
            return;
        }
        let first = extent.run.0 as u64;
        let is_taken = kept.overlaps(first, first + run_blocks(slot_bytes));
        assert!(!is_taken, "a run of another size lies in what is kept");
    }

    fn is_draining(&self, run: RunId) -> bool {
        self.draining.as_ref().is_some_and(|drained| drained.runs.contains(&run))
    }

    fn drop_ended_runs(&mut self) {
        if let Some(drained) = &mut self.draining {
            let live = &self.live;
            drained.runs.retain(|run| live.iter().any(|one| one.extent.run == *run));
        }
        let live = &self.live;
        self.stamps.retain(|(run, _)| live.iter().any(|one| one.extent.run == *run));
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = self
            .stamps
            .iter()
            .map(|(id, stamp)| {
                let mine = || self.live.iter().filter(|one| one.extent.run == *id);
                let slot_bytes = mine().next().expect("a run has an object").slot_bytes;
                Run {
                    id: *id,
                    end_block: id.0 as u64 + run_blocks(slot_bytes),
                    stamp: *stamp,
                    held: mine().filter(|one| one.is_held).count(),
                }
            })
            .collect();
        runs.sort_by_key(|run| run.id);
        runs
    }

    /// Newest touch in a window, None where something in it is held or kept.
    fn window_stamp(&self, first: u64, blocks: u64) -> Option<u64> {
        if self.draining.as_ref().is_some_and(|kept| kept.overlaps(first, first + blocks)) {
            return None;
        }
        let runs = self.runs();
        let inside = || {
            runs.iter().filter(|run| (run.id.0 as u64) < first + blocks && run.end_block > first)
        };
        if inside().any(|run| run.held > 0) {
            return None;
        }
        Some(inside().map(|run| run.stamp).max().unwrap_or(0))
    }

    fn check(&self, space: &Space) {
        assert_eq!(space.audit(), Ok(()));
        assert_eq!(space.is_keeping(), self.draining.is_some());
        // I-15
        let used: u64 = self.live.iter().map(|one| one.slot_bytes).sum();
        assert_eq!(space.used_bytes(), used);
        assert_eq!(space.published_bytes(), self.published);
        assert_eq!(space.used_bytes() + space.free_bytes(), space.published_bytes());
        // I-17
        let mut ranges: Vec<(u64, u64)> = self
            .live
            .iter()
            .map(|one| (one.extent.offset, one.extent.offset + one.slot_bytes))
            .collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "extents overlap: {pair:?}");
        }
        for run in self.runs() {
            assert!(run.end_block * BLOCK <= self.published, "a run leaves the arena");
            let mut offsets: Vec<u64> = Vec::new();
            for one in self.live.iter().filter(|one| one.extent.run == run.id) {
                assert_eq!(one.extent.offset % ALIGN, 0);
                assert!(one.extent.offset >= run.id.0 as u64 * BLOCK, "before its run");
                assert!(one.extent.offset + one.slot_bytes <= run.end_block * BLOCK, "after it");
                offsets.push(one.extent.offset);
            }
            offsets.sort_unstable();
            assert_eq!(space.occupied(run.id).collect::<Vec<_>>(), offsets);
        }
        for pair in self.runs().windows(2) {
            assert!(pair[0].end_block <= pair[1].id.0 as u64, "runs overlap");
        }
    }

    fn step(&mut self, space: &mut Space, op: Op) {
        match op {
            Op::Reserve { size } => self.reserve(space, SIZES[size]),
            Op::ReserveAll { size, count } => self.reserve_all(space, SIZES[size], count),
            Op::Release { nth } => {
                if let Some(one) = self.nth(nth).copied().filter(|one| !one.is_held) {
                    self.live.retain(|other| other.extent.offset != one.extent.offset);
                    space.release(one.extent);
                    self.drop_ended_runs();
                }
            }
            Op::Hold { nth } => {
                if let Some(one) = self.nth(nth).filter(|one| !one.is_held) {
                    one.is_held = true;
                    space.hold(&one.extent);
                }
            }
            Op::Unhold { nth } => {
                if let Some(one) = self.nth(nth).filter(|one| one.is_held) {
                    one.is_held = false;
                    space.unhold(&one.extent);
                }
            }
            Op::Touch { nth } => {
                self.clock += 1;
                let clock = self.clock;
                if let Some(extent) = self.nth(nth).map(|one| one.extent) {
                    space.touch(&extent, clock);
                    let mut stamps = self.stamps.iter_mut();
                    let of_run = stamps.find(|(run, _)| *run == extent.run);
                    of_run.expect("a live extent has a run").1 = clock;
                }
            }
            Op::Grow { bytes } => {
                self.published = self.published.max((bytes / BLOCK * BLOCK).min(ARENA));
                assert_eq!(space.grow(bytes), self.published);
            }
            Op::EmptyWindow { size } => self.empty_window(space, SIZES[size]),
            Op::DrainWindow { size } => self.drain_window(space, SIZES[size]),
            Op::Undrain => self.undrain(space),
            Op::Emptied => self.emptied(space),
            Op::Age => self.age(space),
            Op::ReserveZero => self.refused(space, 0, NoSpace::ZeroSize),
            Op::ReserveHuge { bytes } => self.refused(space, bytes, NoSpace::TooLarge),
        }
    }

    /// A caller's error changes nothing and offers nothing to evict (F22).
    fn refused(&self, space: &mut Space, bytes: u64, why: NoSpace) {
        let before = space.clone();
        assert_eq!(space.reserve(bytes), Err(why));
        assert_eq!(space.reserve_all(bytes, 1, &mut Vec::new()), Err(why));
        assert!(!space.can_fit_ever(bytes));
        assert!(!space.has_room(bytes));
        assert_eq!(space.coldest_window(bytes), None);
        assert_eq!(space.coldest_run(bytes), None);
        assert!(*space == before, "a refused size left a trace");
    }

    fn reserve(&mut self, space: &mut Space, bytes: u64) {
        let before = space.clone();
        let is_room_expected = space.has_room(bytes);
        match space.reserve(bytes) {
            Ok(extent) => {
                assert!(is_room_expected);
                assert_eq!(extent.bytes, bytes);
                assert_eq!(space.slot_bytes(&extent), aligned(bytes));
                self.add(space, extent);
            }
            Err(why) => {
                assert_eq!(why, NoSpace::ClassFull);
                assert!(!is_room_expected);
                assert!(*space == before, "a failed reservation left a trace");
            }
        }
    }

    fn reserve_all(&mut self, space: &mut Space, bytes: u64, count: u64) {
        let before = space.clone();
        let room = space.room(bytes).expect("the size fits");
        let mut extents = Vec::new();
        match space.reserve_all(bytes, count, &mut extents) {
            Ok(()) => {
                assert!(room >= count);
                assert_eq!(extents.len() as u64, count);
                extents.into_iter().for_each(|extent| self.add(space, extent));
            }
            Err(why) => {
                assert_eq!(why, NoSpace::ClassFull);
                assert!(room < count);
                assert!(extents.is_empty());
                assert!(*space == before, "a failed batch left a trace");
            }
        }
    }

    /// From now on the window's runs only shrink.
    fn drain_window(&mut self, space: &mut Space, bytes: u64) {
        if self.draining.is_some() {
            return;
        }
        let Some(window) = space.coldest_window(bytes) else { return };
        let runs: Vec<RunId> = space.runs_in(window).collect();
        let used = runs.iter().map(|run| space.occupied(*run).count()).sum::<usize>();
        assert_eq!(space.used_in(window), used);
        space.drain(window, bytes);
        assert_eq!(space.next_draining(window).map(|(run, _)| run), runs.first().copied());
        let slot_bytes = aligned(bytes);
        self.draining = Some(Drained { window, runs, slot_bytes, ticks_left: None });
    }

    fn emptied(&mut self, space: &mut Space) {
        let Some(kept) = &mut self.draining else { return };
        if kept.runs.is_empty() && kept.ticks_left.is_none() {
            assert_eq!(space.next_draining(kept.window), None);
            space.is_emptied();
            kept.ticks_left = Some(2);
        }
    }

    fn age(&mut self, space: &mut Space) {
        space.age_kept();
        let Some(Drained { ticks_left: Some(ticks), .. }) = &mut self.draining else { return };
        *ticks -= 1;
        if *ticks == 0 {
            self.draining = None;
        }
    }

    fn undrain(&mut self, space: &mut Space) {
        if let Some(Drained { window, .. }) = self.draining.take() {
            space.undrain(window);
            assert_eq!(space.next_draining(window), None);
        }
    }

    /// Evicts what the window names, which must be the coldest there is, and nothing else.
    fn empty_window(&mut self, space: &mut Space, bytes: u64) {
        let blocks = run_blocks(aligned(bytes));
        let windows = (self.published / BLOCK + 1).saturating_sub(blocks);
        let best =
            (0..windows).filter_map(|first| Some((self.window_stamp(first, blocks)?, first))).min();
        let found = space.coldest_window(bytes);
        let seen = found.map(|window| (window.stamp, window.first_block as u64));
        assert_eq!(seen, best);
        let Some(window) = found else { return };
        let offsets: Vec<u64> = space.occupied_in(window).collect();
        for offset in offsets {
            let at = self.live.iter().position(|one| one.extent.offset == offset);
            let one = self.live.swap_remove(at.expect("only live extents are named"));
            assert!(!one.is_held, "a held object would have to go");
            space.release(one.extent);
        }
        self.drop_ended_runs();
        let extent = space.reserve(bytes).expect("an emptied window makes room");
        self.add(space, extent);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn i15_i16_i17_f22_space_equals_a_list_of_intervals(ops in ops()) {
        let mut space = Space::new(ARENA, ALIGN);
        let mut model = Model::new();
        for op in ops {
            model.step(&mut space, op);
            model.check(&space);
        }
        model.undrain(&mut space);
        // F22: when all is given back, all of it is one piece again.
        for one in std::mem::take(&mut model.live) {
            if one.is_held {
                space.unhold(&one.extent);
            }
            space.release(one.extent);
        }
        prop_assert_eq!(space.audit(), Ok(()));
        prop_assert_eq!(space.used_bytes(), 0);
        prop_assert_eq!(space.waste_bytes(), 0);
        prop_assert_eq!(space.classes(), 0);
        space.grow(ARENA);
        let whole = space.reserve(ARENA);
        prop_assert_eq!(whole.map(|extent| (extent.offset, extent.bytes)), Ok((0, ARENA)));
    }

    /// The coldest run of a size is the one with an evictable object and the oldest newest touch.
    #[test]
    fn i35_coldest_run_never_has_held_objects_only(ops in ops()) {
        let mut space = Space::new(ARENA, ALIGN);
        space.grow(ARENA);
        let mut model = Model::new();
        model.published = ARENA;
        for op in ops {
            model.step(&mut space, op);
            for bytes in SIZES {
                let of_size = |one: &&Live| one.slot_bytes == aligned(bytes);
                let coldest = model
                    .runs()
                    .into_iter()
                    .filter(|run| {
                        let mut mine = model.live.iter().filter(of_size);
                        let gives = |one: &Live| one.extent.run == run.id && !one.is_held;
                        !model.is_draining(run.id) && mine.any(gives)
                    })
                    .min_by_key(|run| (run.stamp, run.id));
                prop_assert_eq!(space.coldest_run(bytes), coldest.map(|run| run.id));
            }
        }
    }

    /// With one size, every slot that is not taken can be had, whatever was done before.
    #[test]
    fn f23_one_size_never_fragments(
        bytes in 1..ARENA,
        steps in proptest::collection::vec((0..3u8, 0..1000usize, 0..ARENA), 1..300),
    ) {
        let mut space = Space::new(ARENA, ALIGN);
        let mut live: Vec<Extent> = Vec::new();
        let blocks = run_blocks(aligned(bytes));
        let slots = blocks * BLOCK / aligned(bytes);
        for (what, nth, grow) in steps {
            match what {
                0 if !live.is_empty() => space.release(live.swap_remove(nth % live.len())),
                1 => { space.grow(grow); }
                _ => live.extend(space.reserve(bytes)),
            }
            let all = space.published_bytes() / BLOCK / blocks * slots;
            prop_assert_eq!(space.room(bytes), Ok(all - live.len() as u64));
            prop_assert_eq!(space.has_room(bytes), all > live.len() as u64);
        }
    }
}

/// Large restores failed after long churn because no contiguous range was left. A class of equal
/// slots has no such thing as a range that is too short: after a million operations each free slot
/// can still be had.
#[test]
fn f23_a_million_operations_leave_every_free_slot_usable() {
    let bytes = 600_000;
    let mut space = Space::new(ARENA, ALIGN);
    space.grow(ARENA);
    let slots = space.room(bytes).expect("the size fits");
    assert!(slots * aligned(bytes) >= ARENA / 8 * 7, "an eighth at most is lost");
    let mut rng = Rng::new(23);
    let mut live: Vec<Extent> = Vec::new();
    for _ in 0..1_000_000 {
        let need = 1 + rng.below(8);
        if rng.chance_ppm(500_000) {
            let is_enough = need <= slots - live.len() as u64;
            assert_eq!(space.reserve_all(bytes, need, &mut live).is_ok(), is_enough);
        } else {
            for _ in 0..need.min(live.len() as u64) {
                let nth = rng.below(live.len() as u64) as usize;
                space.release(live.swap_remove(nth));
            }
        }
    }
    assert_eq!(space.audit(), Ok(()));
}

/// A size class lives as long as an object of its size: the table cannot be used up by sizes that
/// came and went.
#[test]
fn i15_a_class_without_objects_gives_its_entry_back() {
    let arena = 4 << 30;
    let mut space = Space::new(arena, ALIGN);
    space.grow(arena);
    let mut extents: Vec<Extent> = (1..=256u64)
        .map(|pages| space.reserve(pages * ALIGN).expect("a block is free for each class"))
        .collect();
    // 256 blocks and 256 classes: both are used up, and the table is what is reported, because
    // evicting for a block would not help.
    let before = space.clone();
    assert_eq!(space.reserve(300 * ALIGN), Err(NoSpace::ClassTable));
    assert_eq!(space.room(300 * ALIGN), Err(NoSpace::ClassTable));
    assert!(space == before, "a failed reservation left a trace");
    space.release(extents.swap_remove(100));
    assert!(space.has_room(300 * ALIGN));
    assert!(space.reserve(300 * ALIGN).is_ok());
    assert_eq!(space.audit(), Ok(()));
}

/// Objects of 80 MiB in blocks of 64 MiB: three share a run of four.
#[test]
fn large_objects_waste_little() {
    let arena = 32 << 30;
    let mut space = Space::new(arena, ALIGN);
    space.grow(arena);
    let mut extents = Vec::new();
    let room = space.room(80 * MIB).expect("the size fits");
    space.reserve_all(80 * MIB, room, &mut extents).expect("room was counted");
    assert!(!space.has_room(80 * MIB));
    assert!(space.used_bytes() >= arena / 16 * 15);
    assert_eq!(space.audit(), Ok(()));
    extents.into_iter().for_each(|extent| space.release(extent));
    assert_eq!(space.free_bytes(), arena);
}

#[test]
fn tables_of_half_a_tebibyte_take_some_megabytes() {
    let space = Space::new(512 << 30, ALIGN);
    assert_eq!(space.superblock_bytes(), 64 << 20);
    assert!(space.memory_bytes() < 20 << 20, "{}", space.memory_bytes());
}
