//! Every ticket ends once, whatever fails, and what was opened for it is gone then.

use crate::engine::{Engine, bytes_of, pattern};
use crate::support::{Fake, Server, pinned, region, sink};
use kvtide_gpu::cuda::{
    Direction, Failed, Instance, InstanceSpec, Outcome, Refused, Run, StillInFlight, Work,
};
use std::time::Duration;

const BYTES: u64 = 64 << 10;
const RUN: Run = Run { region: 0, offset: 0, host: 0, bytes: 4096 };
const WORK: Work<'static> = Work { runs: &[RUN], rows: &[] };
const TWO: [Run; 2] = [RUN, Run { region: 0, offset: 8192, host: 4096, bytes: 4096 }];
const SPEC: InstanceSpec = InstanceSpec { events: 2, isolated: false };

fn engine(fake: &Fake) -> Engine {
    let mut engine = Engine::start(fake);
    engine.allocate(BYTES);
    engine
}

/// Asks until something ends on the second way.
fn poll(server: &mut Server) -> Vec<(u64, Outcome)> {
    let mut ended = Vec::new();
    for _ in 0..10_000 {
        server.instance().poll(&mut ended);
        if !ended.is_empty() {
            return ended;
        }
        let told = server.done.recv_timeout(Duration::from_millis(1));
        assert!(told.is_err(), "nothing is told in a broken context");
    }
    panic!("nothing ends");
}

#[test]
fn full_is_an_answer_and_an_ending_makes_room() {
    let fake = Fake::load("full");
    let engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    fake.set("stalled", 1);
    server.submit(Direction::Store, b"", &WORK);
    server.submit(Direction::Load, b"", &WORK);
    let third = server.instance().submit(9, Direction::Load, b"", &WORK);
    assert_eq!(third, Err(Refused::Full));
    let instance = server.instance.take().expect("open");
    let StillInFlight(instance) = instance.close().expect_err("two tickets are in flight");
    server.instance = Some(*instance);
    fake.set("stalled", 0);
    let (first, second) = (server.ended(), server.ended());
    assert_eq!([first.1, second.1], [Outcome::Copied; 2]);
    assert_eq!(server.instance().end(first.0), None, "a ticket ends once");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn the_events_go_round() {
    let fake = Fake::load("ring");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    let mut told = Vec::new();
    for round in 0..9 {
        engine.fill(0, 0, BYTES, round);
        let event = engine.record();
        let (ticket, submitted) = loop {
            // The ticket is told before its event is done, so the ring may be full for a moment.
            let ticket = 100 + round;
            match server.instance().submit(ticket, Direction::Store, &event, &WORK) {
                Ok(submitted) => break (ticket, submitted),
                Err(refused) => assert_eq!(refused, Refused::Full),
            }
        };
        assert_eq!(server.ended(), (ticket, Outcome::Copied));
        assert!(server.memory.read(0, 4096) == pattern(round, 4096));
        told.push(submitted.event.expect("an event"));
    }
    told.dedup();
    assert_eq!(told.len(), 9, "never the same twice in a row");
    assert_eq!(fake.calls("cuEventCreate"), 2, "made beforehand");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn an_error_of_the_context_fails_every_ticket() {
    let fake = Fake::load("sticky");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, InstanceSpec { events: 4, isolated: false });
    engine.fill(0, 0, BYTES, 1);
    let event = engine.record();
    fake.set("breaking", 700);
    let (first, _) = server.submit(Direction::Store, &event, &WORK);
    let (second, _) = server.submit(Direction::Load, &event, &WORK);
    let mut ended = poll(&mut server);
    ended.sort_by_key(|(ticket, _)| *ticket);
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(Failed { code: 700, .. }));
    assert_eq!(ended.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [first, second]);
    assert!(ended.iter().all(|(_, outcome)| failed(outcome)), "{ended:?}");
    let again = server.instance().submit(9, Direction::Store, b"", &WORK);
    assert!(matches!(again, Err(Refused::Broken(Failed { code: 700, .. }))), "{again:?}");
    assert_eq!(server.instance().end(first), None, "ended already");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn a_batch_that_fails_ends_its_ticket_as_failed() {
    let fake = Fake::load("batch");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.fill(0, 0, BYTES, 1);
    let event = engine.record();
    fake.set("batch_fails_at", 2);
    let work = Work { runs: &TWO, rows: &[] };
    let (ticket, submitted) = server.submit(Direction::Store, &event, &work);
    let failed = Failed { call: "cuMemcpyBatchAsync", code: 1 };
    assert_eq!(submitted.failed, Some(failed));
    assert!(submitted.event.is_some(), "the engine may wait for what was queued");
    assert_eq!(server.ended(), (ticket, Outcome::Failed(failed)));
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn a_ticket_that_nobody_will_name_is_found_by_asking() {
    let fake = Fake::load("silent");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.fill(0, 0, BYTES, 1);
    let event = engine.record();
    let failed = Failed { call: "cuLaunchHostFunc", code: 2 };
    // Found by its event, and by the whole stream where there is no event either.
    for recorded in [true, false] {
        fake.fail("cuLaunchHostFunc", 1, 2);
        if !recorded {
            fake.fail("cuEventRecord", 1, 2);
        }
        let (ticket, submitted) = server.submit(Direction::Store, &event, &WORK);
        assert_eq!(submitted.event.is_some(), recorded);
        assert_eq!(poll(&mut server), [(ticket, Outcome::Failed(failed))]);
    }
    assert!(server.memory.read(0, 4096) == pattern(1, 4096), "ended when the copy was done");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn a_producer_event_that_cannot_be_used_refuses_the_ticket() {
    let fake = Fake::load("producer");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.fill(0, 0, BYTES, 1);
    let event = engine.record();
    for (call, code) in [("cuIpcOpenEventHandle", 400), ("cuStreamWaitEvent", 1)] {
        fake.fail(call, 1, code);
        let answer = server.instance().submit(9, Direction::Store, &event, &WORK);
        assert_eq!(answer, Err(Refused::Failed(Failed { call, code })));
    }
    let answer = server.instance().submit(9, Direction::Store, &[7; 64], &WORK);
    assert!(matches!(answer, Err(Refused::Failed(_))), "no handle at all: {answer:?}");
    engine.ask("make number");
    let number = bytes_of(&engine.ask("number"));
    let answer = server.instance().submit(9, Direction::Store, &number, &WORK);
    assert_eq!(answer, Err(Refused::NoNumbers));
    // Nothing is lost by all that: both events are free.
    server.copy(Direction::Store, &event, &[RUN]);
    server.copy(Direction::Load, &event, &[RUN]);
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn an_engine_that_dies_leaves_no_ticket_behind() {
    let fake = Fake::load("killed");
    let mut engine = engine(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    engine.ask("set stalled 1");
    engine.fill(0, 0, BYTES, 1);
    let event = engine.record();
    let (ticket, _) = server.submit(Direction::Store, &event, &WORK);
    assert!(server.done.recv_timeout(Duration::from_millis(20)).is_err(), "waits for the engine");
    engine.kill();
    assert_eq!(server.ended(), (ticket, Outcome::Copied));
    server.close();
    drop((server, card));
    let left = std::fs::read_dir(&fake.directory).expect("the folder is there");
    let ours = format!("{}-", std::process::id());
    let names = left.map(|entry| entry.expect("an entry").file_name());
    let ours = names.filter(|name| name.to_string_lossy().starts_with(&ours)).count();
    assert_eq!((ours, fake.live(), fake.violations()), (0, 0, String::new()));
}

#[test]
fn an_instance_that_cannot_be_made_leaves_nothing() {
    let fake = Fake::load("half");
    let engine = engine(&fake);
    let card = fake.card();
    let memory = crate::support::Memory::new(1 << 16);
    let pinned = pinned(&card, &memory);
    let (sink, _done) = sink();
    let before = fake.live();
    let isolated = InstanceSpec { events: 3, isolated: true };
    let steps = [
        ("cuStreamCreate", 2, 2),
        ("cuEventCreate", 3, 2),
        ("cuIpcGetEventHandle", 1, 201),
        ("cuMemAlloc_v2", 1, 2),
        ("cuIpcGetMemHandle", 1, 1),
        ("cuMemsetD8Async", 1, 1),
    ];
    for (call, nth, code) in steps {
        fake.fail(call, nth, code);
        let regions = vec![region(&card, &engine.allocations[0].0, BYTES)];
        let opened = Instance::open(&card, &pinned, regions, &sink, isolated);
        assert_eq!(opened.map(|_| ()), Err(Failed { call, code }));
        assert_eq!(fake.live(), before, "after {call}");
    }
    drop((pinned, card));
    engine.finish();
    fake.finish();
}
