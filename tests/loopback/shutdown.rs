//! The server ends in order: who waits is answered, who knocks is refused.

use crate::harness::{Client, NIL, NOOP, PING, Script, Server, message};
use kvtide::reactor::{Note, Signal};
use kvtide_core::effect::Answer;
use kvtide_core::event::{Ask, Event};
use std::net::TcpStream;

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

#[test]
fn a_second_signal_ends_at_once_a_client_that_does_not_read() {
    let server = holding();
    let mut client = Client::open(server.address);
    client.stuff(&server, &message(&[&[1; 60_000], NOOP]));
    server.note(Note::Stop(Signal::Terminate));
    server.note(Note::Stop(Signal::Interrupt));
    assert_eq!(server.join(), Signal::Terminate);
}
