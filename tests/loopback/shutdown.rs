//! The server ends in order: who waits is answered, who knocks is refused.

use crate::harness::{Client, NIL, NOOP, PING, Script, Server, message};
use kvtide::reactor::{Desk, Note, Signal};
use kvtide_core::effect::{Answer, Outbox};
use kvtide_core::event::{Ask, Event};
use kvtide_core::limits::{MEDIUM_FRAME_BUDGET_BYTES, SMALL_FRAME_BYTES_MAX};
use kvtide_core::time::Instant;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `lookup`; its first payload is the key.
const LOOKUP: &[u8] = b"\x08";

/// Keeps every question of nobody in particular, answers others.
fn holding() -> Server<Script> {
    Server::with(Script::new(|script, event, out| match event {
        Event::Asked { reply, ask: Ask::Ping { instance: None } } => script.held.push(reply),
        Event::Asked { reply, .. } => out.answer(reply, Answer::None),
        _ => {}
    }))
}

#[test]
fn p2_who_waits_is_answered_when_the_server_ends() {
    let server = holding();
    let mut clients = [0; 3].map(|_| Client::open(server.address));
    for client in &mut clients {
        client.send(&[b"w", PING, NIL]);
    }
    server.until(|status| status.requests == 3);
    let address = server.address;
    assert_eq!(server.stop(Signal::Terminate), Signal::Terminate);
    for client in &mut clients {
        assert_eq!(client.receive(), [&b"w"[..], PING, b"\x00"]);
        client.expect_closed();
    }
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn answers_on_their_way_are_written_before_the_end() {
    let server = holding();
    let mut client = Client::open(server.address);
    let uid = [1; 60_000];
    for _ in 0..40 {
        client.send(&[&uid, NOOP]);
    }
    server.until(|status| status.counters.messages == 40);
    let reading = std::thread::spawn(move || {
        for _ in 0..40 {
            assert_eq!(client.receive()[0], uid);
        }
    });
    server.stop(Signal::Interrupt);
    reading.join().expect("every answer came");
}

/// Answers nothing, whatever it is told, and counts how often it is told that the server ends:
/// once in every turn of the end.
struct Mute(Arc<AtomicU32>);

impl Desk for Mute {
    fn handle(&mut self, _now: Instant, _event: Event<'_>, _out: &mut Outbox) {}

    fn next_tick(&self) -> Option<Instant> {
        None
    }

    fn retell(&mut self, _out: &mut Outbox) {}

    fn finish(&mut self, _now: Instant, _out: &mut Outbox) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_second_signal_ends_at_once_a_server_that_owes_an_answer() {
    for (signals, at_once) in [(1, false), (2, true)] {
        let turns = Arc::new(AtomicU32::new(0));
        let server = Server::with(Mute(turns.clone()));
        let mut client = Client::open(server.address);
        client.send(&[b"w", PING, NIL]);
        server.until(|status| status.requests == 1);
        server.stop_in_one_turn(&[Signal::Terminate, Signal::Interrupt][..signals]);
        client.expect_closed();
        assert_eq!(server.join(), Signal::Terminate, "the first says how");
        let turns = turns.load(Ordering::Relaxed);
        assert_eq!(turns == 1, at_once, "{signals} signals, {turns} turns");
    }
}

/// Reads to the end of the stream.
fn uids(client: &mut Client) -> Vec<Vec<u8>> {
    let mut uids = Vec::new();
    while let Some(answer) = client.receive_or_end() {
        uids.push(answer.into_iter().next().expect("a message has frames"));
    }
    uids
}

#[test]
fn p2_what_came_whole_before_the_end_is_answered_once_and_then_the_stream_ends() {
    let server = holding();
    // One who left answers unread: some requests wait in the server's queue, some in the sockets.
    let mut slow = Client::open(server.address);
    let sent = slow.stuff(&server, &message(&[&[1; 60_000], NOOP]));
    // One whose last request is cut, and one who waits.
    let (mut cut, mut waiting) = (Client::open(server.address), Client::open(server.address));
    let three = [message(&[b"a", NOOP]), message(&[b"b", NOOP]), message(&[b"c", PING, NIL])];
    let three = three.concat();
    cut.write(&three[..three.len() - 1]);
    waiting.write(&three);
    server.until(|status| status.requests == 1);
    server.note(Note::Stop(Signal::Terminate));
    let whole = sent / message(&[&[1; 60_000], NOOP]).len();
    assert_eq!(uids(&mut slow), vec![vec![1; 60_000]; whole]);
    assert_eq!(uids(&mut cut), [b"a", b"b"]);
    assert_eq!(uids(&mut waiting), [b"a", b"b", b"c"]);
    assert_eq!(server.join(), Signal::Terminate);
}

#[test]
fn p2_a_request_that_waits_for_its_budget_is_answered_when_who_holds_it_has_stopped() {
    let server = holding();
    let lookup = message(&[b"l", LOOKUP]);
    let four = SMALL_FRAME_BYTES_MAX as u64 - 64;
    let head = [&lookup[..3], b"\x01\x01\x08\x03", &four.to_be_bytes()].concat();
    let holders = MEDIUM_FRAME_BUDGET_BYTES / four as usize;
    let mut clients: Vec<Client> = (0..holders).map(|_| Client::open(server.address)).collect();
    clients.iter_mut().for_each(|client| client.write(&head));
    let left = MEDIUM_FRAME_BUDGET_BYTES - holders * four as usize;
    server.until(|status| status.medium_frame_bytes_left == left);
    let mut waiting = Client::open(server.address);
    waiting.write(&message(&[b"w", LOOKUP, &vec![0xc1; left + 1], b"\x01"]));
    // Served after it, so the server has seen that its request has begun.
    Client::open(server.address).expect_served();
    server.note(Note::Stop(Signal::Terminate));
    assert_eq!(waiting.receive_or_end().as_deref(), Some(&[b"w".to_vec(), LOOKUP.to_vec()][..]));
    waiting.expect_closed();
    clients.iter_mut().for_each(Client::expect_closed);
    assert_eq!(server.join(), Signal::Terminate);
}

#[test]
fn who_asks_while_the_server_ends_is_answered_or_sees_the_end() {
    let server = holding();
    let (mut owed, mut late) = (Client::open(server.address), Client::open(server.address));
    // Keeps the server from ending before its time is up.
    owed.stuff(&server, &message(&[&[1; 60_000], NOOP]));
    server.note(Note::Stop(Signal::Terminate));
    server.until(|status| status.stopping);
    late.write(&message(&[b"l", PING, NIL]));
    let answers = uids(&mut late);
    assert!(answers.is_empty() || answers == [b"l"], "{answers:?}");
    // Nobody takes it any more, and nobody chokes on it.
    late.stream.write_all(&message(&[b"m", NOOP])).ok();
    drop(late);
    server.join();
}
