//! Effects whose connection is slow, leaving or gone are ended once, and before the connection.

use crate::harness::{Client, NIL, NOOP, PING, Script, Server, message, opening};
use kvtide_core::effect::{Answer, Effect, Outbox, Slot, SlotRange};
use kvtide_core::event::{Ask, Event};
use kvtide_core::names::{ArenaId, Dtype, InstanceId, Layout, Place, Reply};
use std::io::Write;

/// 256 KiB a chunk.
fn layout() -> Layout {
    let dtype = Dtype::named("float16").expect("a torch type");
    Layout { planes: 2, layers: 4, slots: 16, hidden: 1024, dtype }
}

fn chunk_bytes() -> u64 {
    layout().bytes().expect("it has some")
}

/// Orders `chunks` chunks from the arena's start as the answer to `reply`.
fn send(script: &mut Script, reply: Reply, chunks: u32, out: &mut Outbox) {
    let start = out.slots.len() as u32;
    for chunk in 0..chunks {
        let offset = chunk as u64 * chunk_bytes();
        let place = Place { arena: ArenaId(0), offset, bytes: chunk_bytes() };
        out.slots.push(Slot { chunk, place: Some(place) });
    }
    let slots = SlotRange { start, end: out.slots.len() as u32 };
    let (ticket, layout) = (script.ticket(), layout());
    out.effects.push(Effect::Send { reply, ticket, slots, layout, with_slots: false });
}

/// A ping of `n` is answered with `n` chunks; one of nobody is kept, one of -1 sends two chunks to
/// everybody who was kept.
fn sending() -> Server<Script> {
    Server::with(sending_script())
}

fn sending_script() -> Script {
    Script::new(|script, event, out| match event {
        Event::Asked { reply, ask: Ask::Ping { instance: None } } => script.held.push(reply),
        Event::Asked { reply, ask: Ask::Ping { instance: Some(InstanceId(-1)) } } => {
            for held in std::mem::take(&mut script.held) {
                send(script, held, 2, out);
            }
            out.answer(reply, Answer::Bool(true));
        }
        Event::Asked { reply, ask: Ask::Ping { instance: Some(InstanceId(chunks)) } } => {
            send(script, reply, chunks as u32, out);
        }
        _ => {}
    })
}

fn events(server: &Server<Script>) -> Vec<String> {
    let events = server.look(|script, _| script.events.clone());
    events.into_iter().filter(|event| event != "other").collect()
}

#[test]
fn payload_leaves_the_arena_whole_and_is_ended_once() {
    let server = sending();
    let mut client = Client::open(server.address);
    for chunks in 1..=8_u8 {
        let answer = client.call(&[b"u", PING, &[chunks]]);
        assert_eq!(answer[..2], [&b"u"[..], PING]);
        let payload_bytes = chunks as u64 * chunk_bytes();
        assert!(answer[2].len() as u64 > payload_bytes, "{} bytes", answer[2].len());
        assert!((answer[2].len() as u64) < payload_bytes + 4096, "{} bytes", answer[2].len());
    }
    client.expect_served();
    let wanted: Vec<String> =
        (1..=8).flat_map(|ticket| ["asked".to_owned(), format!("sent {ticket}")]).collect();
    assert_eq!(events(&server), wanted);
}

#[test]
fn p4_payload_for_a_client_that_left_is_ended_before_its_connection() {
    let server = sending();
    let mut client = Client::open(server.address);
    let asked = 20_usize;
    for _ in 0..asked {
        client.send(&[b"u", PING, b"\x08"]);
    }
    server.until(|status| status.counters.messages > 4);
    drop(client);
    server.expect_empty();
    let events = events(&server);
    let count = |wanted: &str| events.iter().filter(|event| event.starts_with(wanted)).count();
    assert_eq!(events.last().map(String::as_str), Some("ended"));
    assert_eq!((count("ended"), count("sent")), (1, count("asked")));
    let mut tickets: Vec<&String> =
        events.iter().filter(|event| event.starts_with("sent")).collect();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), count("sent"), "each ticket ends once");
}

#[test]
fn payload_for_a_client_that_does_not_read_delays_nobody_and_is_bounded() {
    let server = sending();
    let (mut slow, mut bystander) = (Client::open(server.address), Client::open(server.address));
    slow.stuff(&server, &message(&[b"u", PING, b"\x08"]));
    bystander.expect_served();
    let pinned = server.look(|script, _| {
        let sent = script.events.iter().filter(|event| event.starts_with("sent")).count();
        script.issued as usize - sent
    });
    // Two megabytes each: the bound, and what one turn may add to it.
    assert!(pinned <= 4 + kvtide_core::limits::MESSAGES_PER_TURN, "{pinned} answers are pinned");
    drop((slow, bystander));
    server.expect_empty();
}

#[test]
fn payload_for_a_connection_that_is_gone_is_ended_at_once() {
    let server = sending();
    let mut leaver = Client::open(server.address);
    leaver.send(&[b"u", PING, NIL]);
    server.until(|status| status.requests == 1);
    drop(leaver);
    server.until(|status| status.connections == 0);
    let mut other = Client::open(server.address);
    assert_eq!(other.call(&[b"o", PING, b"\xff"]), [&b"o"[..], PING, b"\xc3"]);
    other.expect_served();
    assert_eq!(events(&server), ["asked", "ended", "asked", "sent 1"]);
    assert_eq!(server.status().counters.answers_dropped, 1);
}

#[test]
fn a_client_that_is_held_and_leaves_is_noticed() {
    let server = sending();
    let mut client = Client::open(server.address);
    let held = kvtide_core::limits::REQUESTS_PER_CONNECTION_MAX;
    let stream: Vec<u8> = (0..held + 50).flat_map(|_| message(&[b"u", PING, NIL])).collect();
    client.write(&stream);
    server.until(|status| status.requests == held && status.ready == 0);
    drop(client);
    server.expect_empty();
    assert_eq!(events(&server).last().map(String::as_str), Some("ended"));
}

#[test]
fn what_a_client_said_before_it_left_is_still_heard() {
    let (server, path) = Server::at_path(sending_script(), "heard");
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it is bound");
    let mut bytes = opening();
    for _ in 0..3 {
        bytes.extend(message(&[b"u", PING, b"\x08"]));
    }
    bytes.extend(message(&[b"u", NOOP]));
    stream.write_all(&bytes).expect("it is read");
    // The answers do not fit the socket, so the next write of the server finds nobody.
    server.until(|status| status.counters.messages == 4);
    stream.write_all(&message(&[b"last", PING, NIL])).expect("it is read");
    drop(stream);
    server.expect_empty();
    let asked = events(&server).iter().filter(|event| *event == "asked").count();
    assert_eq!(asked, 4);
}
