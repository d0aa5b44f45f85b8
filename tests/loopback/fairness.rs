//! One client's excess is its own problem.

use crate::harness::{Client, NIL, NOOP, PING, Script, Server, message};
use kvtide::reactor::{Desk, SLOTS_PER_TURN};
use kvtide_core::effect::{Answer, Outbox, Slot, SlotRange};
use kvtide_core::event::{Ask, Event};
use kvtide_core::limits::{
    LARGE_FRAME_BUDGET_BYTES, OUTPUT_BYTES_MAX, REQUEST_CHUNKS_MAX, REQUESTS_MAX,
    REQUESTS_PER_CONNECTION_MAX,
};
use kvtide_core::names::{ArenaId, Dtype, Layout, Place};
use kvtide_core::time::Instant;
use std::io::Write;

/// `lookup`; its first payload is the key.
const LOOKUP: &[u8] = b"\x08";

#[test]
fn a_client_that_does_not_read_is_no_longer_read_and_nobody_else_suffers() {
    let server = Server::start();
    let (mut slow, mut bystander) = (Client::open(server.address), Client::open(server.address));
    let uid = [3; 60_000];
    let request = message(&[&uid, NOOP]);
    let sent = slow.stuff(&server, &request);
    assert!(sent > OUTPUT_BYTES_MAX, "the queue may be as long as the bound");
    bystander.expect_served();
    let (whole, part) = (sent / request.len(), sent % request.len());
    for _ in 0..whole {
        assert_eq!(slow.receive(), [&uid[..], NOOP, b"\xa2OK"]);
    }
    if part > 0 {
        slow.write(&request[part..]);
        assert_eq!(slow.receive()[0], uid);
    }
    slow.expect_served();
}

#[test]
fn a_key_of_five_megabytes_delays_nobody() {
    let server = Server::start();
    let (mut large, mut bystander) = (Client::open(server.address), Client::open(server.address));
    let key = vec![0xc1; 5 << 20];
    let request = message(&[b"\x01", LOOKUP, &key, b"\x01"]);
    for part in request.chunks(300_000) {
        large.write(part);
        assert_eq!(bystander.call(&[b"p", PING, NIL]), [&b"p"[..], PING, b"\xc3"]);
    }
    assert_eq!(large.receive(), [b"\x01", LOOKUP]);
    large.expect_served();
    assert_eq!(server.status().large_frame_bytes_left, LARGE_FRAME_BUDGET_BYTES);
}

#[test]
fn large_frames_wait_their_turn_and_small_requests_do_not() {
    let server = Server::start();
    let sixty = 60_u64 << 20;
    let head = [&message(&[b"\x01", LOOKUP])[..3], b"\x01\x01\x08\x03", &sixty.to_be_bytes()];
    let head = head.concat();
    let mut holders = [0; 2].map(|_| Client::open(server.address));
    for holder in &mut holders {
        holder.write(&head);
    }
    let left = LARGE_FRAME_BUDGET_BYTES - 2 * sixty as usize;
    server.until(|status| status.large_frame_bytes_left == left);
    let mut waiting = Client::open(server.address);
    let key = vec![0xc1; sixty as usize];
    waiting.stream.set_nonblocking(true).expect("it is a socket");
    let request = message(&[b"\x02", LOOKUP, &key, b"\x01"]);
    let mut sent = 0;
    while let Ok(count) = waiting.stream.write(&request[sent..]) {
        sent += count;
        assert!(sent < request.len(), "what waits is not read");
    }
    let mut bystander = Client::open(server.address);
    bystander.expect_served();
    assert_eq!(server.status().large_frame_bytes_left, left);
    drop(holders);
    waiting.stream.set_nonblocking(false).expect("it is a socket");
    waiting.write(&request[sent..]);
    assert_eq!(waiting.receive(), [b"\x02", LOOKUP]);
    waiting.expect_served();
    drop((waiting, bystander));
    server.expect_empty();
}

#[test]
fn requests_without_an_answer_are_bounded_and_all_are_answered_in_the_end() {
    let server = Server::with(Script::new(|script, event, out| match event {
        Event::Asked { reply, ask: Ask::Ping { instance: None } } => script.held.push(reply),
        Event::Asked { reply, ask: Ask::Ping { .. } } => {
            script.held.drain(..).for_each(|held| out.answer(held, Answer::Bool(true)));
            out.answer(reply, Answer::Bool(false));
        }
        _ => {}
    }));
    let (mut asker, mut releaser) = (Client::open(server.address), Client::open(server.address));
    let asked = REQUESTS_PER_CONNECTION_MAX + 1000;
    let mut stream = Vec::new();
    for number in 0..asked as u32 {
        stream.extend(message(&[&number.to_be_bytes(), PING, NIL]));
    }
    asker.write(&stream);
    server.until(|status| status.requests == REQUESTS_PER_CONNECTION_MAX && status.ready == 0);
    let (mut answered, mut released) = (0, 0);
    while answered < asked {
        if answered == released {
            let round = (asked - released).min(REQUESTS_PER_CONNECTION_MAX);
            server.until(|status| status.requests == round);
            assert_eq!(releaser.call(&[b"r", PING, b"\x05"]), [&b"r"[..], PING, b"\xc2"]);
            released += round;
        }
        assert_eq!(asker.receive()[1..], [PING, b"\xc3"]);
        answered += 1;
    }
    assert_eq!(server.status().requests, 0);
}

/// Orders as many slots as a request may name, and keeps the most that were ordered at once.
#[derive(Default)]
struct Lavish {
    most: usize,
}

impl Desk for Lavish {
    fn handle(&mut self, _now: Instant, event: Event<'_>, out: &mut Outbox) {
        let Event::Asked { reply, .. } = event else { return };
        let dtype = Dtype::named("uint8").expect("a torch type");
        let layout = Layout { planes: 1, layers: 1, slots: 16, hidden: 4, dtype };
        let start = out.slots.len() as u32;
        out.slots.extend((0..REQUEST_CHUNKS_MAX as u32).map(|chunk| Slot {
            chunk,
            place: Some(Place { arena: ArenaId(0), offset: 0, bytes: 64 }),
        }));
        let slots = SlotRange { start, end: out.slots.len() as u32 };
        out.answer(reply, Answer::StoreSlots { slots, layout });
        self.most = self.most.max(out.slots.len());
    }

    fn next_tick(&self) -> Option<Instant> {
        None
    }

    fn retell(&mut self, _out: &mut Outbox) {}

    fn finish(&mut self, _now: Instant, _out: &mut Outbox) {}
}

#[test]
fn p3_small_requests_with_large_answers_fill_a_turn_and_no_more() {
    let server = Server::with(Lavish::default());
    let mut clients = [0; 4].map(|_| Client::open(server.address));
    // One write each: all of it is there in one turn.
    let pings = message(&[b"u", PING, NIL]).repeat(40);
    clients.iter_mut().for_each(|client| client.write(&pings));
    for client in &mut clients {
        for _ in 0..40 {
            assert!(client.receive()[2].len() > 32 * REQUEST_CHUNKS_MAX);
        }
    }
    let most = server.look(|lavish, _| lavish.most);
    assert!(most >= SLOTS_PER_TURN, "{most}");
    assert!(most < SLOTS_PER_TURN + REQUEST_CHUNKS_MAX, "{most}");
}

#[test]
fn a_full_request_table_is_no_ones_end() {
    let server = Server::with(Script::new(|script, event, _| {
        if let Event::Asked { reply, .. } = event {
            script.held.push(reply);
        }
    }));
    let each = REQUESTS_PER_CONNECTION_MAX;
    let pings = message(&[b"u", PING, NIL]).repeat(each);
    let mut holders = Vec::new();
    for _ in 0..REQUESTS_MAX / each {
        let mut holder = Client::open(server.address);
        holder.write(&pings);
        holders.push(holder);
    }
    server.until(|status| status.requests == REQUESTS_MAX);
    let mut late = Client::open(server.address);
    late.write(&message(&[b"u", PING, NIL]).repeat(10));
    // What the engine need not be asked is answered all the same.
    Client::open(server.address).expect_served();
    drop(holders.pop());
    server.until(|status| status.requests == REQUESTS_MAX - each + 10);
    drop((holders, late));
    Client::open(server.address).expect_served();
    server.expect_empty();
}
