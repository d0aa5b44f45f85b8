//! Buffers of all connections together have a bound (P3), and small requests pass all the same.

use crate::harness::{Client, NOOP, Server, message};
use kvtide_core::limits::{
    BUFFER_BUDGET_BYTES, INPUT_BYTES_PER_TURN, MEDIUM_FRAME_BUDGET_BYTES, OUTPUT_BYTES_MAX,
    SMALL_FRAME_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX,
};
use std::io::Write;

/// `lookup`; its first payload is the key.
const LOOKUP: &[u8] = b"\x08";

/// The head of a lookup whose key has so many bytes.
fn lookup_head(bytes: u64) -> Vec<u8> {
    let mut head = message(&[b"\x01", LOOKUP]);
    head.truncate(3);
    head.extend_from_slice(b"\x01\x01\x08\x03");
    head.extend_from_slice(&bytes.to_be_bytes());
    head
}

#[test]
fn many_who_do_not_read_share_one_budget_of_answers() {
    let server = Server::start();
    let mut bystander = Client::open(server.address);
    let request = message(&[&[3; 60_000], NOOP]);
    let few = BUFFER_BUDGET_BYTES / 2 / OUTPUT_BYTES_MAX;
    let mut slow = Vec::new();
    let mut most = 0;
    for _ in 0..few + 4 {
        let mut client = Client::open(server.address);
        client.stuff(&server, &request);
        slow.push(client);
        bystander.expect_served();
        most = most.max(server.status().buffered_bytes);
    }
    // Each alone might leave twice as much; from half of the budget on, everybody is held.
    let late = slow.len() * 2 * (SMALL_MESSAGE_BYTES_MAX + 4 * INPUT_BYTES_PER_TURN);
    assert!(most > BUFFER_BUDGET_BYTES / 2, "{most}");
    assert!(most < BUFFER_BUDGET_BYTES / 2 + 2 * OUTPUT_BYTES_MAX + late, "{most}");
    // Who reads on is served on.
    let mut last = slow.pop().expect("there are some");
    for _ in 0..4 {
        assert_eq!(last.receive()[1..], [NOOP, b"\xa2OK"]);
    }
    drop((slow, last));
    bystander.expect_served();
    drop(bystander);
    server.expect_empty();
}

#[test]
fn medium_frames_wait_their_turn_and_small_and_large_ones_do_not() {
    let server = Server::start();
    let four = SMALL_FRAME_BYTES_MAX as u64 - 64;
    let holders = MEDIUM_FRAME_BUDGET_BYTES / four as usize;
    let mut clients = Vec::new();
    for _ in 0..holders {
        let mut client = Client::open(server.address);
        client.write(&lookup_head(four));
        clients.push(client);
    }
    let left = MEDIUM_FRAME_BUDGET_BYTES - holders * four as usize;
    server.until(|status| status.medium_frame_bytes_left == left);
    // Every further one waits: it is not read beyond what one look brought.
    let key = vec![0xc1; four as usize];
    let request = message(&[b"\x02", LOOKUP, &key, b"\x01"]);
    let mut waiting = Client::open(server.address);
    waiting.stream.set_nonblocking(true).expect("it is a socket");
    let mut sent = 0;
    // Sockets may hold all of it.
    while sent < request.len() {
        let Ok(count) = waiting.stream.write(&request[sent..]) else { break };
        sent += count;
    }
    let mut bystander = Client::open(server.address);
    bystander.expect_served();
    let mut large = Client::open(server.address);
    let larger = vec![0xc1; 5 << 20];
    assert_eq!(large.call(&[b"l", LOOKUP, &larger, b"\x01"]), [b"l", LOOKUP]);
    let small = vec![0xc1; SMALL_MESSAGE_BYTES_MAX - 8];
    assert_eq!(bystander.call(&[b"s", LOOKUP, &small, b"\x01"]), [b"s", LOOKUP]);
    assert_eq!(server.status().medium_frame_bytes_left, left);
    clients.pop();
    waiting.stream.set_nonblocking(false).expect("it is a socket");
    waiting.write(&request[sent..]);
    assert_eq!(waiting.receive(), [b"\x02", LOOKUP]);
    drop((clients, waiting, bystander, large));
    Client::open(server.address).expect_served();
    server.expect_empty();
}

#[test]
fn a_frame_of_exactly_64_mebibytes_is_answered() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    let key = vec![0xc1; 64 << 20];
    assert_eq!(client.call(&[&[7; 9], LOOKUP, &key, b"\x01"]), [&[7; 9], LOOKUP]);
    client.write(&lookup_head((64 << 20) + 1));
    client.expect_closed();
    drop(client);
    server.expect_empty();
}
