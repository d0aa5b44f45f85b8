//! Memory of engines and of the host: opened once, counted, checked, and let go.

use crate::engine::Engine;
use crate::support::{ARENA_BYTES, Fake, Memory, SLICE_BYTES, region};
use kvtide_gpu::cuda::{CardFault, Failed, MemoryFault, Pinned, Region, RegionSource};
use kvtide_gpu::host::OutsideRegion;

const BYTES: u64 = 64 << 10;

#[test]
fn an_allocation_is_opened_once_and_closed_with_its_last_region() {
    let fake = Fake::load("once");
    let mut engine = Engine::start(&fake);
    let handles = [engine.allocate(BYTES), engine.allocate(BYTES)];
    let card = fake.card();
    let source = RegionSource { memory: &handles[0], offset: 0, bytes: 4096, counter: None };
    let layers: Vec<Region> = (0..3)
        .map(|layer| RegionSource { offset: layer * 4096, ..source })
        .map(|source| Region::open(&card, &source).expect("a layer"))
        .collect();
    let other = region(&card, &handles[1], BYTES);
    assert_eq!(fake.calls("cuIpcOpenMemHandle_v2"), 2, "once for each allocation");
    assert_eq!(layers.iter().map(Region::bytes).sum::<u64>(), 3 * 4096);
    let again = region(&fake.card(), &handles[1], 16);
    assert_eq!(fake.calls("cuIpcOpenMemHandle_v2"), 2, "one cache for the card");
    drop((layers, other));
    assert_eq!(fake.calls("cuIpcCloseMemHandle"), 1, "the second is still in use");
    drop(again);
    assert_eq!(fake.calls("cuIpcCloseMemHandle"), 2);
    drop(region(&card, &handles[0], BYTES));
    assert_eq!(fake.calls("cuIpcOpenMemHandle_v2"), 3, "opened anew");
    assert_eq!(fake.calls("cuDevicePrimaryCtxRetain"), 1);
    engine.finish();
    drop(card);
    fake.finish();
}

#[test]
fn a_storage_beyond_its_allocation_is_refused() {
    let fake = Fake::load("beyond");
    let mut engine = Engine::start(&fake);
    let memory = engine.allocate(BYTES);
    let card = fake.card();
    for (offset, bytes) in [(0, BYTES + 1), (BYTES, 1), (1, BYTES), (u64::MAX, 2)] {
        let source = RegionSource { memory: &memory, offset, bytes, counter: None };
        let outside = OutsideRegion { offset, bytes, region_bytes: BYTES };
        let opened = Region::open(&card, &source).map(|_| ());
        assert_eq!(opened, Err(MemoryFault::OutsideAllocation(outside)));
    }
    drop(region(&card, &memory, BYTES));
    engine.finish();
    drop(card);
    fake.finish();
}

#[test]
fn memory_that_cannot_be_opened_says_which_call_failed() {
    let fake = Fake::load("unopened");
    let mut engine = Engine::start(&fake);
    let memory = engine.allocate(BYTES);
    let card = fake.card();
    let source = RegionSource { memory: &memory, offset: 0, bytes: BYTES, counter: None };
    let call = "cuIpcOpenMemHandle_v2";
    for code in [205, 400, 1] {
        fake.fail(call, 1, code);
        let opened = Region::open(&card, &source).map(|_| ());
        assert_eq!(opened, Err(MemoryFault::Failed(Failed { call, code })));
    }
    let mut versioned = [3; 64];
    versioned[1] = b'c';
    versioned[2..].copy_from_slice(&memory[..62]);
    let opened = Region::open(&card, &RegionSource { memory: &versioned, ..source }).map(|_| ());
    assert_eq!(opened, Err(MemoryFault::Failed(Failed { call, code: 1 })), "not stripped");
    engine.kill();
    let after = Region::open(&card, &source).map(|_| ());
    assert!(after.is_ok(), "the fake's files outlive their process; a card's memory may not");
    drop(card);
    assert_eq!((fake.live(), fake.violations()), (0, String::new()));
}

#[test]
fn host_memory_is_registered_slice_by_slice() {
    let fake = Fake::load("slices");
    let card = fake.card();
    let memory = Memory::new(ARENA_BYTES as usize);
    let before = fake.live();
    // SAFETY: the memory outlives what is pinned.
    let pinned = unsafe { Pinned::new(&card, memory.base, SLICE_BYTES) };
    pinned.grow(4 * SLICE_BYTES).expect("four slices");
    assert_eq!((pinned.bytes(), fake.live() - before), (4 * SLICE_BYTES as u64, 4));
    let call = "cuMemHostRegister_v2";
    fake.fail(call, 2, 2);
    let grown = pinned.grow(6 * SLICE_BYTES);
    assert_eq!(grown, Err(Failed { call, code: 2 }));
    assert_eq!(pinned.bytes(), 5 * SLICE_BYTES as u64, "what was registered counts");
    pinned.grow(6 * SLICE_BYTES + 4096).expect("and on from there");
    assert_eq!(fake.live() - before, 7);
    // Memory that comes in smaller steps than slices: on from a slice that was not whole.
    pinned.grow(8 * SLICE_BYTES).expect("and on from there, too");
    assert_eq!((pinned.bytes(), fake.live() - before), (8 * SLICE_BYTES as u64, 9));
    drop(pinned);
    assert_eq!(fake.live(), before);
    drop(card);
    fake.finish();
}

#[test]
fn a_card_that_is_not_visible_is_named_with_those_that_are() {
    let fake = Fake::load("cards");
    fake.set("devices", 2);
    let driver = fake.driver();
    let seen: Vec<String> = driver.cards().iter().map(|card| card.uuid.clone()).collect();
    assert_eq!(seen[1], "fa4ec0da-2d6b-7674-6964-652d90000001");
    for uuid in ["fa4ec0da-2d6b-7674-6964-652d90000002", "GPU-fa4ec0da", "cpu"] {
        let fault = driver.card(uuid).map(|_| ()).expect_err("no such card");
        assert_eq!(fault, CardFault::NotVisible { uuid: uuid.to_string(), seen: seen.clone() });
        let text = fault.to_string();
        assert!(text.contains(uuid) && seen.iter().all(|seen| text.contains(seen)), "{text}");
    }
    let second = driver.card(&seen[1]).expect("the second card");
    assert_eq!(second.info().ordinal, 1);
    fake.fail("cuDevicePrimaryCtxRetain", 1, 2);
    let failed = Failed { call: "cuDevicePrimaryCtxRetain", code: 2 };
    let first = driver.card(&seen[0]).map(|_| ());
    assert_eq!(first, Err(CardFault::Failed(failed)));
    drop((second, driver));
    fake.finish();
}
