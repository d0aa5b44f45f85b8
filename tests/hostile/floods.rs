//! Very many of something, or something that never goes on.

use crate::bystander::Bystander;
use crate::harness::{Client, NOOP, message};
use crate::running::{
    closed, expect_unharmed, raise_own_descriptors, reactor, start, stranger, total, until,
};
use kvtide_core::limits::{
    BUFFER_BUDGET_BYTES, LARGE_FRAME_BUDGET_BYTES, MEDIUM_FRAME_BUDGET_BYTES, OUTPUT_BYTES_MAX,
    SMALL_MESSAGE_BYTES_MAX,
};
use kvtide_core::wire::zmtp::GREETING;
use kvtide_tests::server::Server;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;

/// What the allocator may hold on to beside what is accounted.
const ALLOWANCE_BYTES: u64 = 64 << 20;

fn scene() -> (Server, Bystander) {
    let server = start();
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    (server, bystander)
}

/// Writes as much as is taken at once.
fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).expect("it is a socket");
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // Closed by the server, which may be what is to happen.
            Err(_) => break,
        }
    }
    sent
}

/// A lookup whose key has so many bytes, without them.
fn lookup_head(bytes: u64) -> Vec<u8> {
    [&b"\x01\x01u\x01\x01\x08\x03"[..], &bytes.to_be_bytes()].concat()
}

#[test]
fn ten_thousand_connects_that_close_at_once_leave_no_trace() {
    let (mut server, mut bystander) = scene();
    let before = server.log();
    let known = total(&until(&mut server, |_| true), "accepted");
    for number in 0..10_000 {
        drop(TcpStream::connect(server.request).expect("the server listens"));
        if number % 1000 == 0 {
            bystander.client.expect_served();
        }
    }
    let all = known + 10_000;
    let status = until(&mut server, |status| {
        total(status, "accepted") == all && reactor(status, "connections") == 1
    });
    for (name, count) in [("turned_away_full", 0), ("turned_away_descriptors", 0)] {
        assert_eq!(total(&status, name), count, "{name}");
    }
    let reasons = status["kvtide"]["reactor"]["closed_by_us"].as_object().expect("an object");
    assert!(reasons.values().all(|count| count == 0), "{reasons:?}");
    assert_eq!(status["kvtide"]["stale_endings"], 0);
    assert_eq!(server.log(), before, "probes are not worth a line");
    expect_unharmed(server, bystander);
}

#[test]
fn a_greeting_or_a_handshake_and_then_silence_hold_nothing() {
    let (server, mut bystander) = scene();
    let mut silent = Vec::new();
    for number in 0..300_usize {
        let mut client = Client::connect(server.request);
        match number % 3 {
            0 => {}
            1 => client.write(&GREETING),
            _ => client = stranger(&server),
        }
        silent.push(client);
    }
    bystander.round();
    let status = server.status().expect("the server answers");
    assert_eq!(reactor(&status, "connections"), 301);
    assert_eq!(reactor(&status, "buffered_bytes"), 0, "who is silent holds no buffer");
    drop(silent);
    expect_unharmed(server, bystander);
}

/// Lookups of keys of so many bytes, of which some are sent, on many connections at once. Returns
/// what the server has in memory more than before, at most, and how many connections it closed to
/// have room for others.
fn half_sent(connections: usize, key_bytes: usize, sent: usize) -> (u64, u64) {
    raise_own_descriptors(connections as u64 + 100);
    let (mut server, mut bystander) = scene();
    let before = server.resident_bytes();
    let half = vec![0xc1; sent];
    let mut halves = Vec::new();
    let mut most = 0;
    for number in 0..connections {
        let mut client = stranger(&server);
        client.write(&lookup_head(key_bytes as u64));
        write_some(&mut client.stream, &half);
        halves.push(client);
        if number % 100 == 0 {
            bystander.client.expect_served();
            most = most.max(server.resident_bytes());
        }
    }
    bystander.round();
    most = most.max(server.resident_bytes());
    let status = until(&mut server, |_| true);
    assert!(reactor(&status, "buffered_bytes") <= BUFFER_BUDGET_BYTES as u64);
    drop(halves);
    expect_unharmed(server, bystander);
    (most.saturating_sub(before), closed(&status, "buffers_full"))
}

#[test]
fn a_thousand_half_sent_frames_of_100_megabytes_are_closed() {
    let (mut server, mut bystander) = scene();
    let before = server.resident_bytes();
    for number in 0..1000 {
        let mut client = stranger(&server);
        client.write(&lookup_head(100_000_000));
        client.expect_closed();
        if number % 100 == 0 {
            bystander.client.expect_served();
        }
    }
    let status = until(&mut server, |status| reactor(status, "connections") == 1);
    assert_eq!(closed(&status, "frame_too_large"), 1000);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < ALLOWANCE_BYTES, "{grown}");
    expect_unharmed(server, bystander);
}

#[test]
fn a_thousand_half_sent_frames_of_60_megabytes_share_their_budget() {
    let (grown, _) = half_sent(1000, 60_000_000, 30_000_000);
    assert!(grown < LARGE_FRAME_BUDGET_BYTES as u64 + ALLOWANCE_BYTES + unread(1000), "{grown}");
}

#[test]
fn a_thousand_half_sent_frames_of_nearly_4_mebibytes_share_their_budget() {
    let (grown, _) = half_sent(1000, (4 << 20) - 1, 2 << 20);
    assert!(grown < MEDIUM_FRAME_BUDGET_BYTES as u64 + ALLOWANCE_BYTES + unread(1000), "{grown}");
}

/// What connections that wait have read and not decoded.
fn unread(connections: u64) -> u64 {
    connections * SMALL_MESSAGE_BYTES_MAX as u64
}

#[test]
fn five_thousand_small_requests_that_do_not_end_stay_within_the_budget_of_buffers() {
    let key_bytes = SMALL_MESSAGE_BYTES_MAX - 100;
    let (grown, closed) = half_sent(5000, key_bytes, key_bytes - 1);
    assert!(grown < BUFFER_BUDGET_BYTES as u64 + ALLOWANCE_BYTES, "{grown}");
    assert!(closed > 0, "there are more than the budget has room for");
    assert!(closed < 2500, "no more are closed than has to be: {closed}");
}

#[test]
fn many_who_stop_reading_share_the_budget_of_answers() {
    let (mut server, mut bystander) = scene();
    let before = server.resident_bytes();
    let request = message(&[&[3; 60_000], NOOP]);
    let much = request.repeat(40);
    let mut slow = Vec::new();
    let mut most = 0;
    for _ in 0..60 {
        let mut client = stranger(&server);
        // Until the server takes no more of it: its queue is full, then the sockets at both ends.
        let (mut sent, mut taken) = (0, None);
        loop {
            let count = write_some(&mut client.stream, &much[sent % request.len()..]);
            sent += count;
            let now = total(&until(&mut server, |_| true), "input_bytes");
            if count == 0 && taken == Some(now) {
                break;
            }
            taken = Some(now);
        }
        bystander.client.expect_served();
        most = most.max(server.resident_bytes());
        slow.push(client);
    }
    bystander.round();
    let status = until(&mut server, |_| true);
    let buffered = reactor(&status, "buffered_bytes");
    assert!(buffered > BUFFER_BUDGET_BYTES as u64 / 2, "they are many enough: {buffered}");
    assert!(buffered <= BUFFER_BUDGET_BYTES as u64, "{buffered}");
    // A queue that grows is copied once, so that one of them stands twice for a moment.
    let most_allowed = (BUFFER_BUDGET_BYTES + 2 * OUTPUT_BYTES_MAX) as u64 + ALLOWANCE_BYTES;
    assert!(most.saturating_sub(before) < most_allowed, "{most} after {before}");
    drop(slow);
    expect_unharmed(server, bystander);
}
