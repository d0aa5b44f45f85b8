//! What the front makes of each kind of message: one row per request that a client or a stranger
//! may send (spec/wire §2.3, design §6).

use kvtide_core::config::{Config, TransferModes};
use kvtide_core::effect::{Answer, Outbox, Refusal};
use kvtide_core::event::Ask;
use kvtide_core::fact::{Fact, RequestFault};
use kvtide_core::front::{Body, Front, Step};
use kvtide_core::limits::REQUEST_CHUNKS_MAX;
use kvtide_core::names::InstanceId;
use kvtide_core::wire::client::Key;
use kvtide_core::wire::msgpack::Writer;
use kvtide_core::wire::operation::Operation;

const CHUNK: u32 = 4;
const TOKENS: &[u32] = &[3, 300, 70_000, 4, 5, 6, 7, 8, 9];

fn config() -> Config {
    Config { chunk_size: CHUNK, ..Config::default() }
}

fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Writer::new(&mut out));
    out
}

fn key() -> Key<'static> {
    Key {
        model: "org/m",
        world_size: 1,
        worker: Some(0),
        tokens: TOKENS,
        start: 0,
        end: 8,
        request: "r",
        salt: "",
        readers: 1,
    }
}

fn frame(key: &Key<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode(&mut out);
    out
}

/// One message from a client of its own: what came of it, and the fault if there was one.
fn send(operation: &[u8], payloads: &[&[u8]]) -> (String, Option<RequestFault>) {
    send_to(&mut Front::new(&config()), Body::Here, operation, payloads)
}

fn send_to(
    front: &mut Front,
    body: Body,
    operation: &[u8],
    payloads: &[&[u8]],
) -> (String, Option<RequestFault>) {
    let mut out = Outbox::default();
    let mut frames: Vec<&[u8]> = vec![b"uid", operation];
    frames.extend(payloads);
    let mut job = front.begin(body);
    let mut budget = usize::MAX;
    let step = match front.step(&mut job, &frames, &mut budget, &mut out) {
        Step::Answer(answer) => format!("{answer:?}"),
        Step::Ask(ask) => asked(&ask),
        other => format!("{other:?}"),
    };
    let fault = match out.facts.as_slice() {
        [] => None,
        [Fact::RequestFaulted { fault, .. }] => Some(*fault),
        other => panic!("{other:?}"),
    };
    (step, fault)
}

/// The variant, and the chunks where there are some.
fn asked(ask: &Ask<'_>) -> String {
    let name: String = format!("{ask:?}").chars().take_while(char::is_ascii_alphanumeric).collect();
    match ask {
        Ask::Lookup { keys } | Ask::FreeLookupLocks { keys } => {
            assert_eq!((keys.worker, keys.hashes.len()), (None, keys.end_chunk as usize));
            format!("{name} {:?}", keys.chunks())
        }
        Ask::PrepareStore { keys, .. }
        | Ask::PrepareRetrieve { keys, .. }
        | Ask::CommitRetrieve { keys, .. } => {
            assert_eq!((keys.worker, keys.hashes.len()), (Some(0), keys.end_chunk as usize));
            format!("{name} {:?}", keys.chunks())
        }
        Ask::CommitStore { keys, inline_bytes, .. } => {
            format!("{name} {:?} {inline_bytes}", keys.chunks())
        }
        Ask::Store { keys, blocks, .. } => format!("{name} {:?} {blocks:?}", keys.chunks()),
        Ask::Retrieve { keys, blocks, skip_tokens, .. } => {
            format!("{name} {:?} {blocks:?} {skip_tokens}", keys.chunks())
        }
        Ask::RegisterRefused { reason, .. } => format!("{name} {}", reason.label()),
        _ => name,
    }
}

fn id(operation: Operation) -> Vec<u8> {
    match operation.legacy_id() {
        Some(id) => vec![id],
        None => written(|writer| writer.str(operation.name())),
    }
}

fn keyed(operation: Operation, key: &Key<'_>) -> (String, Option<RequestFault>) {
    let (frame, instance) = (frame(key), [7]);
    let mut payloads: Vec<&[u8]> = vec![&frame, &instance];
    if operation == Operation::CommitStore {
        payloads.push(b"\xc4\x00");
    }
    send(&id(operation), &payloads)
}

fn ok(text: &str) -> (String, Option<RequestFault>) {
    (text.to_owned(), None)
}

fn no(answer: Answer, fault: RequestFault) -> (String, Option<RequestFault>) {
    (format!("{answer:?}"), Some(fault))
}

#[test]
fn small_requests_are_answered_or_asked() {
    assert_eq!(send(&[21], &[]), ok("Count(4)"));
    assert_eq!(send(&[24], &[]), ok("Text(\"OK\")"));
    assert_eq!(send(b"\xa4noop", &[]), ok("Text(\"OK\")"));
    assert_eq!(send(&[32], &[]), ok("NoTexts"));
    assert_eq!(send(&[22], &[b"\xc0"]), ok("Ping"));
    assert_eq!(send(&[9], &[b"\xa1r"]), ok("QueryPrefetch"));
    assert_eq!(send(&[10], &[b"\xa1r", &[5]]), ok("WaitPrefetch"));
    assert_eq!(send(&[13], &[b"\xa1r"]), ok("EndSession"));
    assert_eq!(send(&[15], &[&[7]]), ok("Unregister"));
    assert_eq!(send(&[20], &[b"\xc2"]), ok("Clear"));
    assert_eq!(send(&[23], &[&[7], b"\xa1m", b"\x90"]), ok("BlocksAllocated"));
    assert_eq!(send(&[2], &[&[7]]), ok("Unregister"));
    for unregister in [4, 26] {
        assert_eq!(send(&[unregister], &[&[7]]), ok("None"));
    }
}

#[test]
fn ranges_are_rounded_for_the_scheduler_and_exact_for_workers() {
    let tokens: Vec<u32> = (0..18).collect();
    let with = |start, end| Key { start, end, tokens: &tokens, ..key() };
    assert_eq!(keyed(Operation::Lookup, &with(8, 10)), ok("Lookup 0..2"));
    assert_eq!(keyed(Operation::Lookup, &with(0, 99)), ok("Lookup 0..4"));
    assert_eq!(keyed(Operation::Lookup, &with(0, 0)), ok("Lookup 0..0"));
    assert_eq!(keyed(Operation::FreeLookupLocks, &with(3, 15)), ok("FreeLookupLocks 1..3"));
    for operation in
        [Operation::PrepareStore, Operation::PrepareRetrieve, Operation::CommitRetrieve]
    {
        let name = format!("{operation:?}");
        assert_eq!(keyed(operation, &with(4, 16)), ok(&format!("{name} 1..4")));
        assert_eq!(keyed(operation, &with(0, 0)), ok(&format!("{name} 0..0")));
        assert_eq!(keyed(operation, &with(8, 4)), ok(&format!("{name} 1..1")));
    }
    assert_eq!(keyed(Operation::CommitStore, &with(4, 16)), ok("CommitStore 1..4 0"));
}

#[test]
fn workers_that_ask_for_the_impossible_get_the_negative_answer() {
    let bad = [
        (Key { worker: None, ..key() }, RequestFault::NoWorker),
        (Key { end: 5, ..key() }, RequestFault::Misaligned),
        (Key { end: 12, ..key() }, RequestFault::Misaligned),
        (Key { start: 1, ..key() }, RequestFault::Misaligned),
        (Key { worker: Some(1), ..key() }, RequestFault::BadKey),
        (Key { salt: "a@b", ..key() }, RequestFault::BadKey),
        (Key { model: "", ..key() }, RequestFault::BadKey),
    ];
    for (key, fault) in bad {
        assert_eq!(keyed(Operation::PrepareStore, &key), no(Answer::NoContext, fault));
        assert_eq!(keyed(Operation::PrepareRetrieve, &key), no(Answer::RetrieveMiss, fault));
        assert_eq!(keyed(Operation::CommitStore, &key), no(Answer::Bool(false), fault));
        assert_eq!(keyed(Operation::CommitRetrieve, &key), no(Answer::Bool(false), fault));
    }
}

#[test]
fn lookups_for_any_world_are_answered() {
    for world_size in [0, 77, 256, u32::MAX] {
        let key = Key { world_size, worker: None, ..key() };
        assert_eq!(keyed(Operation::Lookup, &key), ok("Lookup 0..2"), "{world_size}");
    }
    let nobody = no(Answer::None, RequestFault::BadKey);
    assert_eq!(keyed(Operation::Lookup, &Key { readers: 0, ..key() }), nobody);
    assert_eq!(keyed(Operation::FreeLookupLocks, &Key { readers: 0, ..key() }), nobody);
    let huge = Key { readers: u32::MAX, ..key() };
    assert_eq!(keyed(Operation::Lookup, &huge), ok("Lookup 0..2"));
}

#[test]
fn prefixes_over_the_limit_are_clipped_and_transfers_refused() {
    let tokens = vec![7; (REQUEST_CHUNKS_MAX + 1) * CHUNK as usize];
    let key = Key { tokens: &tokens, end: tokens.len() as u64, ..key() };
    assert_eq!(keyed(Operation::Lookup, &key), ok(&format!("Lookup 0..{REQUEST_CHUNKS_MAX}")));
    let refused = no(Answer::NoContext, RequestFault::TableFull);
    assert_eq!(keyed(Operation::PrepareStore, &key), refused);
    let last = Key { end: (REQUEST_CHUNKS_MAX as u32 * CHUNK) as u64, ..key };
    let all = format!("PrepareStore 0..{REQUEST_CHUNKS_MAX}");
    assert_eq!(keyed(Operation::PrepareStore, &last), ok(&all));
}

#[test]
fn the_body_of_a_store_is_here_or_announced() {
    let frame = frame(&key());
    let store = id(Operation::CommitStore);
    let here = send(&store, &[&frame, &[7], b"\xc4\x03abc"]);
    assert_eq!(here, ok("CommitStore 0..2 3"));
    let announced = Body::Announced { bytes: 5 << 30 };
    let mut front = Front::new(&config());
    let later = send_to(&mut front, announced, &store, &[&frame, &[7]]);
    assert_eq!(later, ok(&format!("CommitStore 0..2 {}", 5_u64 << 30)));
    let text = send(&store, &[&frame, &[7], b"\xa4text"]);
    assert_eq!(text, no(Answer::Bool(false), RequestFault::Malformed));
    let three = send_to(&mut front, announced, &store, &[&frame, &[7], b"\xc4\x00"]);
    assert_eq!(three, no(Answer::Bool(false), RequestFault::PayloadCount));
    let other = send_to(&mut front, announced, &id(Operation::Lookup), &[&frame, &[7]]);
    assert_eq!(other, no(Answer::None, RequestFault::Malformed));
}

#[test]
fn nothing_to_answer_is_silent_and_nobodys_operation_is_echoed() {
    let mut front = Front::new(&config());
    let mut out = Outbox::default();
    let frames: [&[&[u8]]; 2] = [&[], &[b"x"]];
    for frames in frames {
        let mut job = front.begin(Body::Here);
        let step = front.step(&mut job, frames, &mut 100, &mut out);
        assert!(matches!(step, Step::Silent));
    }
    assert_eq!(out.facts.len(), 2);
    assert_eq!(send(b"", &[b"ack"]), ok("Silent"));
    assert_eq!(send(b"", &[b"cancel"]), ok("Silent"));
    let unknown = no(Answer::None, RequestFault::UnknownOperation);
    for operation in [&b""[..], &[0], &[11], &[34], b"\xc1", b"\x18\x00", b"\xc3", b"\xa4NOOP"] {
        assert_eq!(send(operation, &[b"other"]), unknown, "{operation:?}");
    }
}

#[test]
fn requests_that_do_not_decode_get_the_negative_value_of_their_type() {
    let fault = RequestFault::PayloadCount;
    assert_eq!(send(&[24], &[&[1]]), no(Answer::None, fault));
    assert_eq!(send(&[22], &[]), no(Answer::Bool(false), fault));
    assert_eq!(send(&[17], &[b"\x80", &[1]]), no(Answer::Bool(false), fault));
    let fault = RequestFault::Malformed;
    assert_eq!(send(&[22], &[b"\xc3"]), no(Answer::Bool(false), fault));
    assert_eq!(send(&[10], &[b"\xa1r", b"\xa11"]), no(Answer::Count(0), fault));
    assert_eq!(send(&[13], &[&[5]]), no(Answer::None, fault));
    for key in [&b"\xff"[..], b"\x05", b"\x80", b"\x92\x01\x02", b""] {
        assert_eq!(send(&[8], &[key, &[1]]), no(Answer::None, fault), "{key:?}");
        assert_eq!(send(&[18], &[key, &[1]]), no(Answer::RetrieveMiss, fault), "{key:?}");
    }
    let long = written(|writer| writer.str(&"r".repeat(1 << 20)));
    assert_eq!(send(&[9], &[&long]).0, "Count(0)");
    let id = written(|writer| writer.str(&"r".repeat(1025)));
    assert_eq!(send(&[9], &[&id]), no(Answer::Count(0), RequestFault::BadKey));
}

#[test]
fn block_ids_are_one_list_and_skips_are_no_debts() {
    let key = frame(&key());
    let event: &[u8] = b"\xc4\x00";
    let store = |blocks: &[u8]| send(&[6], &[&key, &[7], blocks, event]);
    let retrieve = |blocks: &[u8], skip: &[u8]| send(&[7], &[&key, &[7], blocks, event, skip]);
    let range = keyed(Operation::PrepareStore, &self::key()).0.replace("PrepareStore ", "");
    assert_eq!(store(b"\x91\x92\x01\x05"), ok(&format!("Store {range} [1, 5]")));
    assert_eq!(store(b"\x91\x90"), ok(&format!("Store {range} []")));
    assert_eq!(retrieve(b"\x91\x91\x03", &[6]), ok(&format!("Retrieve {range} [3] 6")));
    let bad = no(Answer::EventFlag(false), RequestFault::BadBlocks);
    // No group, several, and ids that name no place: negative, or of more than 32 bits.
    for blocks in [&b"\x90"[..], b"\x92\x91\x01\x91\x01", b"\x91\x91\xff"] {
        assert_eq!(store(blocks), bad, "{blocks:?}");
    }
    assert_eq!(store(b"\x91\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00"), bad);
    let malformed = no(Answer::EventFlag(false), RequestFault::Malformed);
    assert_eq!(store(b"\x91\x01"), malformed);
    assert_eq!(retrieve(b"\x91\x91\x03", b"\xff"), malformed);
    let many = written(|writer| {
        writer.array(1);
        writer.array(262_145);
        (0..262_145).for_each(|_| writer.u64(1));
    });
    assert_eq!(store(&many), bad);
}

#[test]
fn unserved_operations_have_their_own_no() {
    let key = frame(&key());
    let fault = RequestFault::NotServed;
    let store: [&[u8]; 4] = [&key, &[7], b"\x91\x91\x01", b"\xc4\x00"];
    assert_eq!(send(&[5], &store), no(Answer::EventFlag(false), fault));
    assert_eq!(send(&[28], &[&key, &[1]]), no(Answer::BlendMiss, fault));
    assert_eq!(send(&[33], &[&[1]]), no(Answer::HandshakeRefused, fault));
    assert_eq!(send(&[30], &[&[0]]), no(Answer::PeerMisses { keys: 0 }, fault));
    let events = written(|writer| writer.str("subscribe_kv_events"));
    let off = Answer::EventsOff { incarnation: Config::default().incarnation };
    assert_eq!(send(&events, &[&[7], b"\xa1m", &[0], &[8]]), no(off, fault));
}

fn registration(change: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields: [(&str, &[u8]); 8] = [
        ("instance_id", &[7]),
        ("model_name", b"\xa1m"),
        ("world_size", &[1]),
        ("block_size", &[16]),
        ("num_layers", &[2]),
        ("hidden_dim_size", &[8]),
        ("dtype_str", b"\xa7float16"),
        ("use_mla", b"\xc2"),
    ];
    written(|writer| {
        writer.map(fields.len());
        for (name, value) in fields {
            writer.str(name);
            let changed = change.iter().find(|(changed, _)| *changed == name);
            writer.raw(changed.map_or(value, |(_, value)| value));
        }
    })
}

#[test]
fn registrations_are_served_or_refused_with_a_reason() {
    let register = |frame: &[u8]| send(&[14], &[frame]);
    assert_eq!(register(&registration(&[])), ok("Register"));
    let dtype = registration(&[("dtype_str", b"\xa7float17".to_vec())]);
    assert_eq!(register(&dtype), ok("RegisterRefused unknown_dtype"));
    let text_id = registration(&[("instance_id", b"\xa11".to_vec())]);
    let malformed = ("RegisterRefused malformed".to_owned(), Some(RequestFault::Malformed));
    assert_eq!(register(&text_id), malformed);
    assert_eq!(register(&vec![0; (1 << 20) + 1]), malformed);
    let (mut front, mut out) = (Front::new(&config()), Outbox::default());
    let frames: [&[u8]; 3] = [b"uid", &[14], &text_id];
    match front.step(&mut front.begin(Body::Here), &frames, &mut 1000, &mut out) {
        Step::Ask(Ask::RegisterRefused { reason, .. }) => {
            assert_eq!(reason, Refusal::Malformed("instance_id is not an int"));
        }
        other => panic!("the engine refuses it, naming the field: {other:?}"),
    }

    let config = Config { transfer_modes: TransferModes::ServerDriven, ..config() };
    let whole = registration(&[]);
    let off = send_to(&mut Front::new(&config), Body::Here, &[14], &[&whole]);
    assert_eq!(off, ok("RegisterRefused engine_driven_off"));

    let server: [&[u8]; 7] = [&[7], b"\x90", b"\xa1m", &[1], b"\xa4vllm", b"\x80", b"\x90"];
    assert_eq!(send(&[1], &server), ok("RegisterRefused pages"));
    let config = Config { transfer_modes: TransferModes::EngineDriven, ..self::config() };
    let off = send_to(&mut Front::new(&config), Body::Here, &[1], &server);
    assert_eq!(off, ok("RegisterRefused server_driven_off"));
    assert_eq!(send(&[3], &server), ok("RegisterRefused query_cache"));
    let rope: [&[u8]; 8] = [&[7], b"\x90", &[8], b"\xc3", b"\x90", b"\x90", b"\x90", b"\xa0"];
    assert_eq!(send(&[25], &rope), ok("RegisterRefused rope"));
}

#[test]
fn the_end_of_a_session_says_what_was_known_of_it() {
    let mut front = Front::new(&config());
    let frame = frame(&key());
    let lookup = send_to(&mut front, Body::Here, &[8], &[&frame, &[1]]);
    assert_eq!(lookup, ok("Lookup 0..2"));
    let mut out = Outbox::default();
    for (request, known) in [(&b"\xa1r"[..], 2), (b"\xa1x", 0), (b"\xa1r", 2)] {
        let mut job = front.begin(Body::Here);
        let frames: [&[u8]; 3] = [b"uid", &[13], request];
        match front.step(&mut job, &frames, &mut 100, &mut out) {
            Step::Ask(Ask::EndSession { hashes, .. }) => assert_eq!(hashes.len(), known),
            other => panic!("{other:?}"),
        }
    }
}

/// A step takes no more than its budget and one block, and the work is shared out over turns.
#[test]
fn large_keys_take_several_turns() {
    let tokens: Vec<u32> = (0..100_000).collect();
    let config = Config { chunk_size: 256, ..config() };
    let frame = frame(&Key { tokens: &tokens, end: 99_840, ..key() });
    let mut front = Front::new(&config);
    let mut job = front.begin(Body::Here);
    let mut out = Outbox::default();
    let mut turns = 0;
    loop {
        let mut budget = 64 << 10;
        turns += 1;
        let frames: [&[u8]; 4] = [b"uid", &[16], &frame, &[7]];
        match front.step(&mut job, &frames, &mut budget, &mut out) {
            Step::More => assert_eq!(budget, 0),
            Step::Ask(Ask::PrepareStore { instance, keys }) => {
                assert_eq!((instance, keys.hashes.len()), (InstanceId(7), 390));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(turns, frame.len().div_ceil(64 << 10));
}

/// Whatever the real client was seen to send is served, or refused for what it is.
#[test]
fn requests_of_the_real_client_have_no_fault_of_their_own() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../golden/wire.json")).expect("the vectors are JSON");
    let bytes = |hex: &str| -> Vec<u8> {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
        (0..hex.len()).step_by(2).map(byte).collect()
    };
    let config = Config { chunk_size: 16, ..Config::default() };
    let mut front = Front::new(&config);
    let (mut asks, mut keys) = (0, 0);
    for vector in golden["vectors"].as_array().expect("a list") {
        let captured = vector["source"].as_str().is_some_and(|source| source.starts_with("live"));
        if vector["direction"] != "request" || !captured {
            continue;
        }
        let frames = vector["frames"].as_array().expect("a list");
        let frames: Vec<Vec<u8>> =
            frames.iter().map(|frame| bytes(frame.as_str().expect("hex"))).collect();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let name = &vector["name"];
        let (step, fault) = send_to(&mut front, Body::Here, frames[1], &frames[2..]);
        assert!(matches!(fault, None | Some(RequestFault::NotServed)), "{name}: {fault:?}");
        let served = vector["operation"].as_str().expect("a name");
        if ["lookup", "prepare_store", "commit_store", "prepare_retrieve"].contains(&served) {
            assert!(step.contains(".."), "{name}: {step}");
            keys += 1;
        }
        asks += 1;
    }
    assert!(asks > 60 && keys > 15, "{asks} requests, {keys} keys");
}
