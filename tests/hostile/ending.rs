//! SIGTERM in the middle of everything: every request that came whole is answered once (P2,
//! design §7).

use crate::bystander::{Bystander, Prompt};
use crate::harness::{Client, NOOP, message};
use crate::running::{start, stranger, until};
use kvtide_core::wire::client::operation_frame;
use kvtide_core::wire::operation::Operation;
use kvtide_core::wire::zmtp::frame_header;
use rustix::process::Signal;
use std::io::{ErrorKind, Read, Write};

/// The answers that come until the stream ends.
fn answers(client: &mut Client) -> Vec<Vec<Vec<u8>>> {
    client.stream.set_nonblocking(false).expect("it is a socket");
    std::iter::from_fn(|| client.receive_or_end()).collect()
}

/// Everything before the body of a `commit_store`, and then half of the body.
fn half_commit(prompt: &Prompt) -> Vec<u8> {
    let key = prompt.key(Some(0));
    let commit = operation_frame(Operation::CommitStore);
    let mut bytes = message(&[b"half", &commit, &key, b"\x01", b""]);
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(&frame_header(false, 100_005));
    bytes.extend_from_slice(b"\xc6\x00\x01\x86\xa0");
    bytes.extend(vec![0x80; 50_000]);
    bytes
}

#[test]
fn p2_sigterm_answers_what_came_whole_once_and_ends_every_stream() {
    let mut server = start();
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    // One that asks much and does not read until the end.
    let mut slow = stranger(&server);
    let request = message(&[&[3; 60_000], NOOP]);
    slow.stream.set_nonblocking(true).expect("it is a socket");
    let (mut sent, mut full) = (0, 0);
    while full < 3 {
        match slow.stream.write(&request[sent % request.len()..]) {
            Ok(count) => (sent, full) = (sent + count, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bystander.client.expect_served();
                full += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    // One whose inline body stalls, behind requests that came whole.
    let mut stalled = stranger(&server);
    stalled.write(&[message(&[b"one", NOOP]), half_commit(&Prompt::new(5, 1))].concat());
    // One that was cut in its second request, and many with a burst each.
    let mut cut = stranger(&server);
    cut.write(&[message(&[b"one", NOOP]), message(&[b"two", NOOP])[..6].to_vec()].concat());
    let burst: Vec<u8> = (0..100_u8).flat_map(|uid| message(&[&[uid], NOOP])).collect();
    let mut many: Vec<Client> = (0..50).map(|_| stranger(&server)).collect();
    until(&mut server, |status| status["kvtide"]["reactor"]["requests"] == 1);
    many.iter_mut().for_each(|client| client.write(&burst));
    let segments = server.segments();
    assert_eq!(segments.len(), 1, "one pool is mapped");
    server.signal(Signal::TERM).expect("it runs");

    let reading = std::thread::spawn(move || answers(&mut slow).len());
    for client in &mut many {
        let uids: Vec<u8> = answers(client).iter().map(|answer| answer[0][0]).collect();
        assert_eq!(uids, Vec::from_iter(0..100));
    }
    let ok: &[u8] = b"\xa2OK";
    assert_eq!(answers(&mut cut), [[&b"one"[..], NOOP, ok]]);
    let commit = operation_frame(Operation::CommitStore);
    let wanted = [[&b"one"[..], NOOP, ok], [b"half", &commit, b"\xc2"]];
    assert_eq!(answers(&mut stalled), wanted, "a store that stalls is told that it failed");
    assert_eq!(reading.join().expect("it reads"), sent / request.len());
    assert!(answers(&mut bystander.client).is_empty(), "who asked nothing hears nothing");
    let stopped = server.ended(segments).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "{}", stopped.log);
    assert!(stopped.segments_left.is_empty(), "{:?}", stopped.segments_left);
}

/// Starts a server, sends half of an inline body, has the server find these signals at once, and
/// says what the client still gets: a server that ends in order cuts the body and says so.
fn told_of_half_a_store(signals: &[Signal]) -> Vec<u8> {
    let mut server = start();
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    let mut stalled = stranger(&server);
    stalled.write(&half_commit(&Prompt::new(5, 1)));
    until(&mut server, |status| status["kvtide"]["reactor"]["requests"] == 1);
    let segments = server.segments();
    // What is sent to a process that is stopped comes when it goes on, all of it.
    for signal in [&[Signal::STOP], signals, &[Signal::CONT]].concat() {
        server.signal(signal).expect("it runs");
    }
    let mut told = Vec::new();
    let ended = stalled.stream.read_to_end(&mut told);
    let reset = ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(ended.is_ok() || reset, "{ended:?}");
    let stopped = server.ended(segments).unwrap_or_else(|why| panic!("{why}"));
    assert!([130, 143].contains(&stopped.code), "{}: {}", stopped.code, stopped.log);
    assert!(stopped.segments_left.is_empty(), "{:?}", stopped.segments_left);
    told
}

#[test]
fn a_second_signal_ends_a_server_that_still_owes_answers() {
    let commit = operation_frame(Operation::CommitStore);
    let told = told_of_half_a_store(&[Signal::TERM]);
    assert_eq!(told, message(&[b"half", &commit, b"\xc2"]), "one signal leaves time to answer");
    assert_eq!(told_of_half_a_store(&[Signal::TERM, Signal::INT]), b"", "two do not");
}
