//! An engine and a server, as they meet: the engine works, records, the server copies behind that,
//! and the engine goes on behind the server's event. All bytes are compared.

use crate::engine::{Engine, pattern};
use crate::support::{Fake, Server};
use kvtide_gpu::cuda::{Direction, EventHandle, InstanceSpec, Run};

const LAYERS: u64 = 4;
const BLOCKS: u64 = 16;
const BLOCK: u64 = 4096;
const LAYER: u64 = BLOCKS * BLOCK;

const SPEC: InstanceSpec = InstanceSpec { events: 8, isolated: false };

/// Where a block of a layer lies in the arena: blocks of all layers side by side.
fn host(layer: u64, block: u64) -> u64 {
    (block * LAYERS + layer) * BLOCK
}

/// Runs for some blocks of every layer, whose layers lie in two allocations.
fn runs(blocks: impl Iterator<Item = u64> + Clone) -> Vec<Run> {
    let layers = (0..LAYERS).flat_map(|layer| blocks.clone().map(move |block| (layer, block)));
    let run = |(layer, block): (u64, u64)| Run {
        region: (layer / 2) as u32,
        offset: (layer % 2) * LAYER + block * BLOCK,
        host: host(layer, block),
        bytes: BLOCK,
    };
    layers.map(run).collect()
}

fn engine(fake: &Fake) -> Engine {
    let mut engine = Engine::start(fake);
    engine.allocate(2 * LAYER);
    engine.allocate(2 * LAYER);
    engine
}

#[test]
fn what_is_stored_comes_back_and_neighbours_stay() {
    let fake = Fake::load("round");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    for round in 0..6 {
        let seeds = [round * 10 + 1, round * 10 + 2];
        for (allocation, seed) in seeds.into_iter().enumerate() {
            engine.fill(allocation, 0, 2 * LAYER, seed);
        }
        let filled = engine.record();
        let stored = server.copy(Direction::Store, &filled, &runs(0..BLOCKS));
        for layer in 0..LAYERS {
            let whole = pattern(seeds[layer as usize / 2], 2 * LAYER);
            for block in 0..BLOCKS {
                let from = ((layer % 2) * LAYER + block * BLOCK) as usize;
                let found = server.memory.read(host(layer, block), BLOCK);
                assert!(found == whole[from..][..BLOCK as usize], "layer {layer}, block {block}");
            }
        }
        // The engine writes over everything, but not before it was stored.
        engine.wait(stored.as_bytes());
        let after = [round * 10 + 3, round * 10 + 4];
        for (allocation, seed) in after.into_iter().enumerate() {
            engine.fill(allocation, 0, 2 * LAYER, seed);
        }
        let overwritten = engine.record();
        let skipped = 3;
        let loaded = server.copy(Direction::Load, &overwritten, &runs(skipped..BLOCKS));
        engine.wait(loaded.as_bytes());
        for allocation in 0..2 {
            let mut expected = pattern(after[allocation], 2 * LAYER);
            let stored = pattern(seeds[allocation], 2 * LAYER);
            for layer in 0..2 {
                let back =
                    (layer * LAYER + skipped * BLOCK) as usize..((layer + 1) * LAYER) as usize;
                expected[back.clone()].copy_from_slice(&stored[back]);
            }
            let found = engine.read(allocation, 0, 2 * LAYER);
            assert!(found == expected, "allocation {allocation} in round {round}");
        }
    }
    let batches = fake.driver().has_batch();
    assert_eq!(fake.calls("cuMemcpyBatchAsync") > 0, batches, "many runs are one call");
    assert_eq!(fake.calls("cuMemcpyDtoHAsync_v2") > 0, !batches, "or else one each");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn a_server_that_does_not_wait_for_the_engine_is_found_out() {
    let fake = Fake::load("hasty-server");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.ask("set stalled 1");
    engine.fill(0, 0, 2 * LAYER, 1);
    server.copy(Direction::Store, b"", &runs(0..1));
    assert!(server.memory.read(0, BLOCK) != pattern(1, BLOCK), "the harness sees the mistake");
    engine.ask("set stalled 0");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn an_engine_that_does_not_wait_for_the_server_is_found_out() {
    let fake = Fake::load("hasty-engine");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.fill(0, 0, 2 * LAYER, 1);
    let filled = engine.record();
    fake.set("stalled", 1);
    let work = runs(0..1);
    let work = kvtide_gpu::cuda::Work { runs: &work, rows: &[] };
    let (ticket, _) = server.submit(Direction::Store, &filled, &work);
    engine.fill(0, 0, 2 * LAYER, 2);
    engine.read(0, 0, BLOCK);
    fake.set("stalled", 0);
    assert_eq!(server.ended().0, ticket);
    assert!(server.memory.read(0, BLOCK) != pattern(1, BLOCK), "the harness sees the mistake");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn the_engine_sees_the_event_pending_and_then_done() {
    let fake = Fake::load("pending");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.fill(0, 0, 2 * LAYER, 1);
    let filled = engine.record();
    fake.set("stalled", 1);
    let work = runs(0..1);
    let work = kvtide_gpu::cuda::Work { runs: &work, rows: &[] };
    let (ticket, submitted) = server.submit(Direction::Store, &filled, &work);
    let Some(EventHandle::Shared(event)) = submitted.event else { panic!("{submitted:?}") };
    let query = format!("query {}", crate::engine::hex(&event));
    assert_eq!(engine.ask(&query), "600", "not done yet");
    fake.set("stalled", 0);
    assert_eq!(server.ended().0, ticket);
    engine.wait(&event);
    engine.read(0, 0, 8);
    assert_eq!(engine.ask(&query), "0", "done");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn what_comes_with_the_memory_is_waited_for_first() {
    let fake = Fake::load("first");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.ask("set delay_us 20000");
    engine.fill(0, 0, 2 * LAYER, 1);
    let filled = engine.record();
    engine.ask("set delay_us 300");
    server.instance().wait_first(&filled).expect("an event of the engine");
    server.copy(Direction::Store, b"", &runs(0..1));
    assert!(server.memory.read(0, BLOCK) == pattern(1, BLOCK));
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn an_isolated_engine_waits_for_numbers_in_memory() {
    let fake = Fake::load("isolated");
    let mut engine = engine(&fake);
    let card = fake.card();
    let spec = InstanceSpec { events: 4, isolated: true };
    let mut server = Server::open(&card, &engine, spec);
    engine.ask("make number");
    for round in 0..10 {
        engine.fill(0, 0, 2 * LAYER, round);
        let number = crate::engine::bytes_of(&engine.ask("number"));
        let stored = server.copy(Direction::Store, &number, &runs(0..1));
        assert!(server.memory.read(0, BLOCK) == pattern(round, BLOCK));
        assert!(matches!(stored, EventHandle::Isolated(_)), "answered in the form of the request");
        engine.wait(stored.as_bytes());
        engine.fill(0, 0, 2 * LAYER, 1000 + round);
        engine.read(0, 0, 8);
    }
    engine.ask("close");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn what_one_process_must_not_do_to_the_other_is_reported() {
    let fake = Fake::load("between");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.fill(0, 0, 2 * LAYER, 1);
    let filled = engine.record();
    fake.set("stalled", 1);
    let work = runs(0..1);
    let work = kvtide_gpu::cuda::Work { runs: &work, rows: &[] };
    let (ticket, submitted) = server.submit(Direction::Store, &filled, &work);
    let event = submitted.event.expect("an event");
    let hasty = engine.ask(&format!("hasty {}", crate::engine::hex(event.as_bytes())));
    assert_eq!(hasty, "an opened event is destroyed while a wait for it is queued");
    fake.set("stalled", 0);
    assert_eq!(server.ended().0, ticket);
    engine.wait(event.as_bytes());
    assert_eq!(engine.ask("free 0"), "exported memory is freed while it is open elsewhere");
    let (_, late) = server.submit(Direction::Store, b"", &work);
    assert_eq!((late.failed, server.done.recv().is_ok()), (None, true));
    assert!(fake.violations().contains("memory is used after its exporter freed it"));
    server.instance().end(2);
    server.close();
    assert_eq!(engine.ask("late"), "an event is used after its exporter destroyed it");
    engine.finish();
    drop((server, card));
    assert_eq!(fake.live(), 0);
}
