//! Requests and streams that are wrong in every way that we could think of.

use crate::bystander::{Bystander, MODEL, Prompt, registration};
use crate::harness::{Client, NIL, NOOP, PING, message, opening};
use crate::running::{closed, expect_unharmed, start, stranger, until};
use kvtide_core::rng::Rng;
use kvtide_core::wire::client::{append_request, operation_frame};
use kvtide_core::wire::msgpack::Writer;
use kvtide_core::wire::operation::Operation;
use kvtide_tests::server::Server;

const BYSTANDER: i64 = 1;
const FALSE: &[u8] = b"\xc2";
const ZERO: &[u8] = b"\x00";
/// A `prepare_store` that is refused: a context without slots.
const NO_CONTEXT: &[u8] = b"\x81\xa7context\x80";
/// A `prepare_retrieve` that misses.
const MISS: &[u8] = b"\x83\xa7success\xc2\xa4data\xc4\x00\xa7context\x80";

/// A client of the tests' own beside one that behaves.
fn scene() -> (Server, Bystander, Client) {
    let server = start();
    let mut bystander = Bystander::join(server.request, BYSTANDER);
    bystander.round();
    let client = stranger(&server);
    (server, bystander, client)
}

/// The frame of one value.
fn frame(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut frame = Vec::new();
    write(&mut Writer::new(&mut frame));
    frame
}

fn int(value: i64) -> Vec<u8> {
    frame(|writer| writer.i64(value))
}

fn text(value: &str) -> Vec<u8> {
    frame(|writer| writer.str(value))
}

/// A key whose fields can be anything.
struct Key<'a> {
    world_size: i64,
    token: &'a dyn Fn(&mut Writer<'_>),
    salt: &'a str,
    request: &'a str,
}

impl Key<'_> {
    fn good() -> Key<'static> {
        Key { world_size: 1, token: &|writer| writer.u64(3), salt: "", request: "bad" }
    }

    fn frame(&self) -> Vec<u8> {
        frame(|w| {
            w.map(10);
            w.str("model_name");
            w.str(MODEL);
            w.str("world_size");
            w.i64(self.world_size);
            w.str("worker_id");
            w.u64(0);
            w.str("token_ids");
            w.array(256);
            (0..256).for_each(|_| (self.token)(w));
            w.str("start");
            w.u64(0);
            w.str("end");
            w.u64(256);
            w.str("request_id");
            w.str(self.request);
            w.str("cache_salt");
            w.str(self.salt);
            w.str("request_configs");
            w.nil();
            w.str("num_kv_readers");
            w.u64(1);
        })
    }
}

/// Asks and expects one value.
fn expect(client: &mut Client, what: &str, frames: &[&[u8]], value: &[u8]) {
    let all = [&[&b"uid"[..]], frames].concat();
    let answer = client.call(&all);
    assert_eq!(answer, [&b"uid"[..], frames[0], value], "{what}");
}

/// Asks and expects the two frames of an answer without a value.
fn expect_echo(client: &mut Client, what: &str, frames: &[&[u8]]) {
    let all = [&[&b"uid"[..]], frames].concat();
    assert_eq!(client.call(&all), [&b"uid"[..], frames[0]], "{what}");
}

fn is_registration(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::RegisterKvCache
            | Operation::RegisterQCache
            | Operation::RegisterRope
            | Operation::RegisterEngineDriven
    )
}

/// Reads the one answer to a request of this operation, of whatever value, and sees by a second
/// request that it was one.
fn expect_one_answer(client: &mut Client, operation: Operation, frames: &[&[u8]], what: &str) {
    let name = operation.name();
    let answer = client.call(frames);
    assert_eq!(answer[0], frames[0], "{name} {what}");
    if answer[1] != frames[1] {
        let reason = String::from_utf8_lossy(&answer[1]).into_owned();
        assert!(is_registration(operation) && reason.contains("refused: "), "{name} {what}");
    }
    if operation == Operation::SubscribeKvEvents && answer.len() == 3 {
        assert_eq!(client.receive(), [frames[0], frames[1]], "the stream ends");
    }
    client.expect_served();
}

#[test]
fn f55_every_operation_answers_any_number_and_any_types_of_payloads_once() {
    let (server, mut bystander, mut client) = scene();
    let wrong: [&[u8]; 12] = [
        b"",
        b"\xc1",
        b"\xc0",
        b"\xff",
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xa1x",
        b"\xc4\x01x",
        b"\x90",
        b"\x80",
        b"\xdd\xff\xff\xff\xff",
        b"\x81\xc0\xc0",
    ];
    for operation in Operation::ALL {
        let name = operation_frame(*operation);
        let count = operation.payload_count();
        // Without its payload a clear is one of an older client, and would clear.
        let least = (*operation == Operation::Clear) as usize;
        for given in (least..count + 3).filter(|given| *given != count) {
            let frames = [&[&b"u"[..], &name], &vec![&b"\x00"[..]; given][..]].concat();
            expect_one_answer(&mut client, *operation, &frames, &format!("with {given} payloads"));
        }
        for payload in wrong {
            // Numbers and nil are taken for a bool, as the peer takes them: that would clear.
            let number = matches!(payload.first(), Some(0xc0 | 0xcb | 0xcf | 0xff));
            if *operation == Operation::Clear && number {
                continue;
            }
            let frames = [&[&b"u"[..], &name], &vec![payload; count][..]].concat();
            expect_one_answer(&mut client, *operation, &frames, &format!("of {payload:x?}"));
        }
        bystander.client.expect_served();
    }
    drop(client);
    expect_unharmed(server, bystander);
}

#[test]
fn unknown_operations_are_echoed() {
    let (server, bystander, mut client) = scene();
    let unknown: [&[u8]; 14] = [
        b"",
        b"\x00",
        b"\x0b",
        b"\x22",
        b"\xff",
        b"\xcd\xff\xff",
        b"\xcf\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\xa6nosuch",
        b"\xa4NOOP",
        b"\xc3",
        b"\xc0",
        b"\xc1",
        b"\xca\x3f\x80\x00\x00",
        b"\x91\x18",
    ];
    for operation in unknown {
        expect_echo(&mut client, &format!("{operation:x?}"), &[operation, b"\x00", b"\xc1"]);
    }
    client.expect_served();
    drop(client);
    expect_unharmed(server, bystander);
}

#[test]
fn keys_that_cannot_be_are_answered_with_the_negative_value() {
    let (server, bystander, mut client) = scene();
    let lookup = operation_frame(Operation::Lookup);
    let wait = operation_frame(Operation::WaitPrefetchStatus);
    let prepare_store = operation_frame(Operation::PrepareStore);
    let prepare_retrieve = operation_frame(Operation::PrepareRetrieve);
    let commit_store = operation_frame(Operation::CommitStore);
    let huge = |writer: &mut Writer<'_>| writer.u64(u64::MAX);
    let negative = |writer: &mut Writer<'_>| writer.i64(-1);
    let fraction = |writer: &mut Writer<'_>| writer.f64(1.5);
    let long = "s".repeat(129);
    let mut keys: Vec<(String, Key<'_>)> = vec![
        ("token 2^64-1".into(), Key { token: &huge, ..Key::good() }),
        ("token 2^32".into(), Key { token: &|writer| writer.u64(1 << 32), ..Key::good() }),
        ("token -1".into(), Key { token: &negative, ..Key::good() }),
        ("token 1.5".into(), Key { token: &fraction, ..Key::good() }),
        ("world of 256".into(), Key { world_size: 256, ..Key::good() }),
        ("world of 2^62".into(), Key { world_size: 1 << 62, ..Key::good() }),
        ("world of 0".into(), Key { world_size: 0, ..Key::good() }),
        ("world of -1".into(), Key { world_size: -1, ..Key::good() }),
        ("salt of 129".into(), Key { salt: &long, ..Key::good() }),
    ];
    for salt in ["a@b", "a/b", "a\0b"] {
        keys.push((format!("salt {salt:?}"), Key { salt, ..Key::good() }));
    }
    let own = int(BYSTANDER);
    for (what, key) in keys {
        let key = key.frame();
        expect_echo(&mut client, &what, &[&lookup, &key, b"\x01"]);
        let five = frame(|writer| writer.f64(5.0));
        expect(&mut client, &what, &[&wait, &text("bad"), &five], ZERO);
        expect(&mut client, &what, &[&prepare_store, &key, &own], NO_CONTEXT);
        expect(&mut client, &what, &[&prepare_retrieve, &key, &own], MISS);
        expect(&mut client, &what, &[&commit_store, &key, &own, b"\xc4\x00"], FALSE);
    }
    drop(client);
    expect_unharmed(server, bystander);
}

#[test]
fn odd_waits_are_answered_at_once() {
    let (server, bystander, mut client) = scene();
    let wait = operation_frame(Operation::WaitPrefetchStatus);
    let times = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, -0.0, 5e-324];
    for time in times {
        let time = frame(|writer| writer.f64(time));
        expect(&mut client, &format!("{time:x?}"), &[&wait, &text("nobody"), &time], ZERO);
    }
    for time in [&b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"\xff", b"\xa11", b"\xc0"] {
        expect(&mut client, &format!("{time:x?}"), &[&wait, &text("nobody"), time], ZERO);
    }
    drop(client);
    expect_unharmed(server, bystander);
}

#[test]
fn a_world_of_256_is_refused_with_the_reason() {
    let (server, bystander, mut client) = scene();
    let register = operation_frame(Operation::RegisterEngineDriven);
    let payload = frame(|w| {
        w.map(8);
        w.str("instance_id");
        w.u64(2);
        w.str("model_name");
        w.str(MODEL);
        w.str("world_size");
        w.u64(256);
        w.str("block_size");
        w.u64(16);
        w.str("num_layers");
        w.u64(2);
        w.str("hidden_dim_size");
        w.u64(32);
        w.str("dtype_str");
        w.str("float16");
        w.str("use_mla");
        w.bool(false);
    });
    let reason = text("refused: world_size does not lie in 1..=255");
    assert_eq!(client.call(&[b"u", &register, &payload]), [&b"u"[..], &reason]);
    client.expect_served();
    drop(client);
    expect_unharmed(server, bystander);
}

#[test]
fn transfers_without_registration_or_prepare_and_second_commits_are_refused() {
    let (server, mut bystander, mut client) = scene();
    let key = Key::good().frame();
    let unknown = int(987_654_321);
    let prepare_store = operation_frame(Operation::PrepareStore);
    let prepare_retrieve = operation_frame(Operation::PrepareRetrieve);
    let commit_store = operation_frame(Operation::CommitStore);
    let commit_retrieve = operation_frame(Operation::CommitRetrieve);
    let nobody = "an instance that is not registered";
    expect(&mut client, nobody, &[&prepare_store, &key, &unknown], NO_CONTEXT);
    expect(&mut client, nobody, &[&prepare_retrieve, &key, &unknown], MISS);
    expect(&mut client, nobody, &[&commit_store, &key, &unknown, b"\xc4\x00"], FALSE);
    expect(&mut client, nobody, &[&commit_retrieve, &key, &unknown], FALSE);
    expect(&mut client, "told so once", &[PING, &unknown], FALSE);
    expect(&mut client, "told so once", &[PING, &unknown], b"\xc3");
    let own = int(BYSTANDER);
    expect(&mut client, "nothing was prepared", &[&commit_store, &key, &own, b"\xc4\x00"], FALSE);
    let prompt = Prompt::new(77, 1);
    let slots = bystander.prepare_store(&prompt);
    bystander.write(slots[0], &prompt.bytes(0));
    let theirs = prompt.key(Some(0));
    // Another connection than the one that prepared, and then the same once too often.
    assert!(bystander.commit_store(&prompt));
    expect(&mut client, "committed", &[&commit_store, &theirs, &own, b"\xc4\x00"], FALSE);
    assert!(!bystander.commit_store(&prompt), "a second commit stores nothing");
    bystander.expect_cached(&prompt.renamed("twice"));
    drop(client);
    expect_unharmed(server, bystander);
}

#[test]
fn f55_random_bytes_and_cut_streams_harm_nobody() {
    let (mut server, mut bystander, client) = scene();
    drop(client);
    let mut rng = Rng::new(63);
    let mut request = Vec::new();
    append_request(1, &registration(3), &mut request);
    let whole = [opening(), message(&[b"u", NOOP]), request, message(&[b"p", PING, NIL])].concat();
    for number in 0..400_u64 {
        let mut client = Client::connect(server.request);
        let length = rng.below(3000) as usize;
        let garbage: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
        let cut = rng.below(whole.len() as u64 + 1) as usize;
        let bytes = match number % 4 {
            0 => garbage,
            1 => [opening(), garbage].concat(),
            2 => whole[..cut].to_vec(),
            _ => [&whole[..cut], &garbage].concat(),
        };
        // The server may have closed it in the middle.
        std::io::Write::write_all(&mut client.stream, &bytes).ok();
        if number % 50 == 0 {
            bystander.client.expect_served();
        }
    }
    // Somebody may have registered by chance of a cut.
    bystander.round();
    until(&mut server, |status| status["kvtide"]["reactor"]["connections"] == 1);
    expect_unharmed(server, bystander);
}

#[test]
fn lengths_beyond_reason_close_their_connection() {
    let (mut server, mut bystander, client) = scene();
    drop(client);
    let lengths = [1 << 63, u64::MAX, (1 << 63) - 1, (64 << 20) + 1, 1 << 40];
    for length in lengths {
        for frames in [&b""[..], b"\x01\x01u\x01\x01\x08"] {
            let mut client = stranger(&server);
            client.write(&[frames, b"\x02", &u64::to_be_bytes(length)].concat());
            client.expect_closed();
            bystander.client.expect_served();
        }
    }
    let status = until(&mut server, |status| {
        let reactor = &status["kvtide"]["reactor"]["closed_by_us"];
        let count = |why: &str| reactor[why].as_u64().unwrap_or(0);
        count("protocol") + count("frame_too_large") + count("envelope_too_large") == 10
    });
    assert_eq!(closed(&status, "protocol"), 4, "lengths over 2^63 - 1 are no ZMTP");
    expect_unharmed(server, bystander);
}
