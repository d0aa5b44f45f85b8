//! Inline bodies of `commit_store`: streamed to their places, drained, or cut (design §7).

use crate::harness::{Client, NIL, PING, Script, Server, message};
use kvtide_core::effect::{Answer, Effect, Outbox, Slot, SlotRange};
use kvtide_core::event::{Ask, BodyOutcome, Event};
use kvtide_core::limits::LARGE_FRAME_BUDGET_BYTES;
use kvtide_core::names::{ArenaId, Dtype, Layout, Place, Reply};
use kvtide_core::wire::client::Key;
use kvtide_core::wire::zmtp::frame_header;

const COMMIT: &[u8] = b"\x11";
const INSTANCE: &[u8] = b"\x05";
/// What the script answers a store whose body came whole.
const STORED: &[u8] = b"\xc3";
const REFUSED: &[u8] = b"\xc2";

/// Two chunks, as a real torch pickles them.
const BODY: &[u8] = include_bytes!("../golden/pickle/bfloat16-2x1x64x300.pickle");

fn layout() -> Layout {
    let dtype = Dtype::named("bfloat16").expect("a torch type");
    Layout { planes: 2, layers: 1, slots: 64, hidden: 300, dtype }
}

/// The bytes that the sample holds.
fn pattern(chunk: u64) -> Vec<u8> {
    let bytes = layout().bytes().expect("a size");
    (0..bytes).map(|at| (at * 31 + chunk * 101 + 7) as u8).collect()
}

fn slots(out: &mut Outbox) -> SlotRange {
    let start = out.slots.len() as u32;
    for chunk in 0..2 {
        let bytes = layout().bytes().expect("a size");
        let offset = chunk as u64 * bytes * 2;
        let place = Place { arena: ArenaId(0), offset, bytes };
        out.slots.push(Slot { chunk, place: Some(place) });
    }
    SlotRange { start, end: out.slots.len() as u32 }
}

/// Takes bodies in, and sends the chunks back when pinged.
fn storing() -> Server<Script> {
    Server::with(Script::new(|script, event, out| match event {
        Event::Asked { reply, ask: Ask::CommitStore { inline_bytes: 1.., .. } } => {
            script.receiving.push(reply);
            let (ticket, slots, layout) = (script.ticket(), slots(out), layout());
            out.effects.push(Effect::Receive { reply, ticket, slots, layout });
        }
        Event::ReceiveEnded { outcome, .. } => {
            let reply = script.receiving.pop().expect("it was kept for its ending");
            out.answer(reply, Answer::Bool(outcome == BodyOutcome::Whole));
        }
        Event::Asked { reply, ask: Ask::Ping { .. } } => send_back(script, reply, out),
        Event::Asked { reply, .. } => out.answer(reply, Answer::Bool(true)),
        _ => {}
    }))
}

/// Wants nobody's body.
fn refusing() -> Server<Script> {
    Server::with(Script::new(|_, event, out| {
        if let Event::Asked { reply, .. } = event {
            out.answer(reply, Answer::Bool(false));
        }
    }))
}

fn send_back(script: &mut Script, reply: Reply, out: &mut Outbox) {
    let (ticket, slots, layout) = (script.ticket(), slots(out), layout());
    out.effects.push(Effect::Send { reply, ticket, slots, layout, with_slots: false });
}

fn key() -> Vec<u8> {
    let tokens: Vec<u32> = (0..32).collect();
    let key = Key {
        model: "m",
        world_size: 1,
        worker: Some(0),
        tokens: &tokens,
        start: 0,
        end: 32,
        request: "r",
        salt: "",
        readers: 1,
    };
    let mut frame = Vec::new();
    key.encode(&mut frame);
    frame
}

/// A `commit_store` whose last frame is `data`.
fn commit(uid: &[u8], data: &[u8]) -> Vec<u8> {
    message(&[uid, COMMIT, &key(), INSTANCE, data])
}

/// Everything before the body of a `commit_store` with so many bytes.
fn commit_head(body_bytes: u32) -> Vec<u8> {
    let mut bytes = message(&[b"u", COMMIT, &key(), INSTANCE, b""]);
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(&frame_header(false, body_bytes as u64 + 5));
    bytes.push(0xc6);
    bytes.extend_from_slice(&body_bytes.to_be_bytes());
    bytes
}

fn binary(body: &[u8]) -> Vec<u8> {
    [&[0xc6][..], &(body.len() as u32).to_be_bytes(), body].concat()
}

#[test]
fn an_inline_body_reaches_its_places_however_it_is_cut() {
    for part_bytes in [usize::MAX, 65_536, 1000, 7] {
        let server = storing();
        let mut client = Client::open(server.address);
        let stream = [commit(b"u", &binary(BODY)), message(&[b"p", PING, NIL])].concat();
        stream.chunks(part_bytes.min(stream.len())).for_each(|part| client.write(part));
        assert_eq!(client.receive(), [b"u", COMMIT, STORED]);
        let answer = client.receive();
        let sent = &answer[2];
        for chunk in 0..2 {
            let wanted = pattern(chunk);
            let found = sent.windows(wanted.len()).any(|window| window == wanted);
            assert!(found, "chunk {chunk}, in parts of {part_bytes}");
        }
        drop(client);
        server.expect_empty();
    }
}

#[test]
fn a_store_without_a_body_waits_for_nothing() {
    let server = storing();
    let mut client = Client::open(server.address);
    let stream: Vec<u8> = (0..200_u8).flat_map(|uid| commit(&[uid], b"\xc4\x00")).collect();
    client.write(&stream);
    for _ in 0..200 {
        assert_eq!(client.receive()[1..], [COMMIT, STORED]);
    }
}

#[test]
fn what_is_no_pickle_or_no_binary_is_refused_and_the_connection_kept() {
    let server = storing();
    let mut client = Client::open(server.address);
    let truncated = binary(&BODY[..BODY.len() - 1]);
    let trailing = [b"\xc4\x00", &BODY[..100]].concat();
    let bodies: [&[u8]; 9] = [
        b"\xc4\x0cnot a pickle",
        &truncated,
        b"",
        b"\xc4",
        b"\xc6\x00\x00",
        b"\xc4\x05ab",
        b"\xa4text",
        b"\xc0",
        &trailing,
    ];
    for body in bodies {
        client.write(&commit(b"u", body));
        assert_eq!(client.receive(), [b"u", COMMIT, REFUSED], "{:x?}", &body[..body.len().min(9)]);
    }
    let six = message(&[b"u", COMMIT, &key(), INSTANCE, &binary(BODY), b"\xc0"]);
    client.write(&six);
    assert_eq!(client.receive(), [b"u", COMMIT, REFUSED]);
    client.expect_served();
}

#[test]
fn a_body_that_nobody_wants_is_drained_whatever_its_size() {
    let server = refusing();
    let (mut client, mut bystander) = (Client::open(server.address), Client::open(server.address));
    let body_bytes = 70 << 20;
    client.write(&commit_head(body_bytes));
    assert_eq!(client.receive(), [b"u", COMMIT, REFUSED], "the answer does not wait for the body");
    let part = vec![7; 1 << 20];
    for _ in 0..body_bytes >> 20 {
        client.write(&part);
        bystander.expect_served();
    }
    client.expect_served();
    assert_eq!(server.status().large_frame_bytes_left, LARGE_FRAME_BUDGET_BYTES);
}

#[test]
fn f55_a_body_that_is_cut_is_ended_before_its_connection() {
    let server = storing();
    for cut in [0, 1, 700, BODY.len() - 1] {
        let mut client = Client::open(server.address);
        client.write(&commit_head(BODY.len() as u32));
        client.write(&BODY[..cut]);
        server.until(|status| status.requests == 1);
        drop(client);
        server.expect_empty();
    }
    let events = server.look(|script, _| script.events.clone());
    let events: Vec<String> = events.into_iter().filter(|event| event != "other").collect();
    // The last one lacks nothing but the end of its list.
    assert_eq!(events[..9], ["asked", "Cut 0", "ended"].repeat(3));
    assert_eq!(events[9..], ["asked", "Cut 2", "ended"]);
}

#[test]
fn p2_a_store_whose_body_stalls_is_answered_when_the_server_ends() {
    let server = storing();
    let mut client = Client::open(server.address);
    client.write(&commit_head(BODY.len() as u32));
    client.write(&BODY[..BODY.len() / 2]);
    server.until(|status| status.requests == 1);
    server.note(kvtide::reactor::Note::Stop(kvtide::reactor::Signal::Terminate));
    assert_eq!(client.receive(), [b"u", COMMIT, REFUSED]);
    client.expect_closed();
    server.join();
}

#[test]
fn a_body_under_way_is_finished_when_the_server_ends() {
    let server = storing();
    let mut client = Client::open(server.address);
    client.write(&commit_head(BODY.len() as u32));
    server.until(|status| status.requests == 1);
    server.note(kvtide::reactor::Note::Stop(kvtide::reactor::Signal::Terminate));
    server.until(|status| status.stopping);
    client.write(BODY);
    assert_eq!(client.receive(), [b"u", COMMIT, STORED]);
    server.join();
}
