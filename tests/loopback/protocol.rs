//! Requests of every shape are answered, once and byte for byte.

use crate::harness::{Client, NIL, NOOP, PING, Server, config, message, opening};
use kvtide::reactor::Signal;
use kvtide_core::engine::Engine;
use kvtide_core::wire::zmtp::{self, GREETING, PingContext, READY_ROUTER};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

#[test]
fn a_stream_delivered_byte_by_byte_is_understood() {
    let server = Server::start();
    let mut client = Client::connect(server.address);
    let stream = [opening(), message(&[b"\x05", NOOP]), message(&[b"\x06", PING, NIL])].concat();
    stream.iter().for_each(|byte| client.write(&[*byte]));
    assert_eq!(client.receive(), [&b"\x05"[..], NOOP, b"\xa2OK"]);
    assert_eq!(client.receive(), [&b"\x06"[..], PING, b"\xc3"]);
}

#[test]
fn uid_and_operation_come_back_byte_for_byte() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    for uid in [&b""[..], b"\xc1\xff", &[b'x'; 4096], &[7; 64 << 10]] {
        for operation in [NOOP, b"\xcc\x18", b"\xa4noop"] {
            assert_eq!(client.call(&[uid, operation]), [uid, operation, b"\xa2OK"]);
        }
        assert_eq!(client.call(&[uid, PING, NIL]), [uid, PING, b"\xc3"]);
    }
    // Nothing that we know: both frames, and no value.
    for operation in [&b""[..], b"\xc1", b"\x0b", b"\xc3", b"\xa6nosuch", &[9; 1000]] {
        assert_eq!(client.call(&[b"u", operation, b"payload"]), [b"u", operation]);
    }
}

#[test]
fn four_hundred_requests_in_one_go_get_one_answer_each() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    let mut stream = Vec::new();
    for number in 0..400_u16 {
        let uid = number.to_be_bytes();
        let frames: &[&[u8]] = if number % 2 == 0 { &[&uid, NOOP] } else { &[&uid, PING, NIL] };
        stream.extend(message(frames));
    }
    client.write(&stream);
    let mut uids = BTreeSet::new();
    for _ in 0..400 {
        let answer = client.receive();
        let number = u16::from_be_bytes(answer[0][..].try_into().expect("two bytes"));
        let value = if number % 2 == 0 { &b"\xa2OK"[..] } else { b"\xc3" };
        assert_eq!(answer[2], value);
        assert!(uids.insert(number), "{number} was answered twice");
    }
    client.expect_served();
}

#[test]
fn a_message_of_one_frame_is_counted_and_the_connection_kept() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    for frame in [&b"x"[..], b"", &[1; 60_000]] {
        client.send(&[frame]);
        client.expect_served();
    }
    assert_eq!(server.status().counters.messages, 6);
}

#[test]
fn a_message_of_two_hundred_frames_is_consumed_and_refused() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    let frames = [&[b"\x01", NOOP][..], &[&b"\x00"[..]; 200]].concat();
    assert_eq!(client.call(&frames), [&b"\x01"[..], NOOP]);
    let frames = [&[b"\x02", PING][..], &[&[5; 3000][..]; 5000]].concat();
    assert_eq!(client.call(&frames), [&b"\x02"[..], PING, b"\xc2"]);
    client.expect_served();
}

#[test]
fn a_ping_is_answered_between_frames_of_a_message() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    let ping = zmtp::ping(0, PingContext::new(b"ctx"));
    client.write(&ping);
    let mut pong = [0; 10];
    client.stream.read_exact(&mut pong).expect("the server answers");
    assert_eq!(&pong, b"\x04\x08\x04PONGctx");
}

#[test]
fn strangers_are_closed_and_clients_are_not() {
    let server = Server::start();
    let mut bystander = Client::open(server.address);
    let too_large = [&opening()[..], b"\x02\x00\x00\x00\x00\x04\x00\x00\x01"].concat();
    let long_uid = [&opening()[..], b"\x03\x00\x00\x00\x00\x00\x01\x00\x01"].concat();
    let no_ready = [&opening()[..64], b"\x00\x01x"].concat();
    let garbage: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &too_large, &long_uid, &no_ready];
    for bytes in garbage {
        let mut stranger = Client::connect(server.address);
        stranger.write(bytes);
        stranger.expect_closed();
        bystander.expect_served();
    }
    // Our side is closed, theirs was not: only then the engine hears of the end.
    let status = server.until(|status| status.connections == 1);
    assert_eq!(status.counters.ended, 4);
    drop(bystander);
    server.expect_empty();
}

#[test]
fn a_unix_socket_serves_as_well() {
    let (server, path) = Server::at_path(Engine::new(config()), "serves");
    let mut stream = UnixStream::connect(&path).expect("it is bound");
    stream.write_all(&[opening(), message(&[b"\x07", NOOP])].concat()).expect("it is read");
    let answer = message(&[b"\x07", NOOP, b"\xa2OK"]);
    let before = GREETING.len() + READY_ROUTER.len();
    let mut bytes = vec![0; before + answer.len()];
    stream.read_exact(&mut bytes).expect("the server answers");
    assert_eq!(bytes[before..], answer);
    assert_eq!(server.stop(Signal::Interrupt), Signal::Interrupt);
    assert!(!path.exists(), "the server takes its file along");
}
