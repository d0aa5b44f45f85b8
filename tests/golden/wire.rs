//! Captures between the real client and the real server (`wire.json`): every frame is read and
//! written back, requests also through `Request`, answers also through `Answer` where kvtide has
//! such an answer. Counts are asserted, so that no vector drops out silently.

use kvtide_core::effect::{Answer, Outbox, Slot, SlotRange};
use kvtide_core::names::{ArenaId, Dtype, Layout, Place};
use kvtide_core::wire::answer::{
    Context, Envelope, append_answer, encode_value, retrieve_head, retrieve_tail,
};
use kvtide_core::wire::client::{Key, encode_payloads, operation_frame, uid_frame};
use kvtide_core::wire::msgpack::{Kind, Malformed, Reader, Writer};
use kvtide_core::wire::operation::{
    Operation, StreamControl, decode_operation, decode_stream_control,
};
use kvtide_core::wire::request::{KeyFrame, Request};
use kvtide_core::wire::zmtp::{
    Decoder, GREETING, READY_DEALER, READY_ROUTER, Role, Token, frame_header,
};
use serde_json::{Value, json};

#[path = "wire_properties.rs"]
mod wire_properties;

const VECTORS: usize = 193;

struct Vector {
    name: String,
    direction: String,
    operation: String,
    frames: Vec<Vec<u8>>,
    decoded: Value,
}

fn golden() -> Value {
    serde_json::from_str(include_str!("wire.json")).expect("the golden file is JSON")
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("a text");
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn vectors() -> Vec<Vector> {
    let golden = golden();
    let text = |vector: &Value, field: &str| vector[field].as_str().expect("a text").to_string();
    let all: Vec<Vector> = golden["vectors"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|vector| Vector {
            name: text(vector, "name"),
            direction: text(vector, "direction"),
            operation: text(vector, "operation"),
            frames: vector["frames"].as_array().expect("an array").iter().map(unhex).collect(),
            decoded: vector["decoded"].clone(),
        })
        .collect();
    assert_eq!(all.len(), VECTORS);
    all
}

fn of<'v>(vectors: &'v [Vector], direction: &str) -> Vec<&'v Vector> {
    vectors.iter().filter(|vector| vector.direction == direction).collect()
}

fn operation(vector: &Vector) -> Operation {
    let operation = decode_operation(&vector.frames[1]).expect(&vector.name);
    assert_eq!(operation.name(), vector.operation, "{}", vector.name);
    operation
}

// A server that was upgraded met clients of the version before, which sent one operation with fewer
// payloads and waited for ever. What such a client sends is recorded: the requests of its suite,
// through a proxy that kept the bytes. All of it must be understood.
#[test]
fn f15_recorded_messages_of_the_client_before_are_understood() {
    let recorded: Value =
        serde_json::from_str(include_str!("clients/0.5.5.json")).expect("the record is JSON");
    let messages = recorded["messages"].as_array().expect("an array");
    assert_eq!(messages.len(), 27);
    let mut operations = Vec::new();
    for message in messages {
        let frames: Vec<Vec<u8>> =
            message["frames"].as_array().expect("an array").iter().map(unhex).collect();
        let operation = decode_operation(&frames[1]).expect("it is known");
        let payloads: Vec<&[u8]> = frames[2..].iter().map(Vec::as_slice).collect();
        let request = Request::decode(operation, &payloads);
        assert!(request.is_ok(), "{operation:?}: {request:?}");
        if operation == Operation::Clear {
            assert_eq!(request, Ok(Request::Clear { force: true }), "it knew no other");
        }
        operations.push(operation.name());
    }
    operations.dedup();
    assert_eq!(operations.len(), 16, "{operations:?}");
}

/// Reads one value and writes it again. The bodies of extensions are values themselves.
fn copy(reader: &mut Reader<'_>, writer: &mut Writer<'_>) -> Result<(), Malformed> {
    match reader.peek()? {
        Kind::Nil => {
            reader.read_nil()?;
            writer.nil();
        }
        Kind::Bool => writer.bool(reader.read_bool()?),
        Kind::Int => writer.i64(reader.read_i64()?),
        Kind::Float => writer.f64(reader.read_float()?),
        Kind::Text => writer.str(reader.read_str()?),
        Kind::Bin => writer.bin(reader.read_bin()?),
        Kind::Array => {
            let count = reader.read_array_len()?;
            writer.array(count);
            (0..count).try_for_each(|_| copy(reader, writer))?;
        }
        Kind::Map => {
            let pairs = reader.read_map_len()?;
            writer.map(pairs);
            (0..2 * pairs).try_for_each(|_| copy(reader, writer))?;
        }
        Kind::Ext => {
            let (code, body) = reader.read_ext()?;
            let mut inner = Vec::new();
            copy(&mut Reader::new(body), &mut Writer::new(&mut inner))?;
            writer.ext(code, &inner);
        }
        Kind::Unused => return Err(Malformed::UnusedMarker),
    }
    Ok(())
}

/// The JSON view of the golden file.
fn view(reader: &mut Reader<'_>) -> Result<Value, Malformed> {
    Ok(match reader.peek()? {
        Kind::Nil => {
            reader.read_nil()?;
            Value::Null
        }
        Kind::Bool => json!(reader.read_bool()?),
        Kind::Int => json!(reader.read_i64()?),
        Kind::Float => json!({"$f64": reader.read_float()?}),
        Kind::Text => json!(reader.read_str()?),
        Kind::Bin => json!({"$bin": hex(reader.read_bin()?)}),
        Kind::Array => {
            let count = reader.read_array_len()?;
            Value::Array((0..count).map(|_| view(reader)).collect::<Result<_, _>>()?)
        }
        Kind::Map => {
            let pairs = reader.read_map_len()?;
            let pairs: Vec<(Value, Value)> = (0..pairs)
                .map(|_| Ok((view(reader)?, view(reader)?)))
                .collect::<Result<_, Malformed>>()?;
            if pairs.iter().all(|(key, _)| key.is_string()) {
                let text = |key: Value| key.as_str().expect("a text").to_string();
                Value::Object(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
            } else {
                let pairs = pairs.into_iter().map(|(key, value)| json!([key, value]));
                json!({"$map": pairs.collect::<Vec<_>>()})
            }
        }
        Kind::Ext => {
            let (code, body) = reader.read_ext()?;
            json!({"$ext": code, "data": view(&mut Reader::new(body))?})
        }
        Kind::Unused => return Err(Malformed::UnusedMarker),
    })
}

fn whole_view(frame: &[u8]) -> Value {
    let mut reader = Reader::new(frame);
    let value = view(&mut reader).expect("a value");
    reader.finish().expect("one value");
    value
}

#[test]
fn every_frame_of_every_vector_is_read_and_written_back() {
    let (mut values, mut controls) = (0, 0);
    for vector in vectors() {
        let name = &vector.name;
        assert_eq!(whole_view(&vector.frames[0]), vector.decoded["uid"], "{name}");
        if vector.direction == "stream_control" {
            controls += 1;
            continue;
        }
        for frame in &vector.frames {
            let (mut reader, mut out) = (Reader::new(frame), Vec::new());
            copy(&mut reader, &mut Writer::new(&mut out)).expect(name);
            reader.finish().expect(name);
            assert_eq!(&out, frame, "{name}");
        }
        let payloads: Vec<Value> = vector.frames[2..].iter().map(|f| whole_view(f)).collect();
        assert_eq!(json!(payloads), vector.decoded["payloads"], "{name}");
        values += 1;
    }
    assert_eq!((values, controls), (VECTORS - 3, 3));
}

#[test]
fn every_request_decodes_and_encodes_to_the_same_bytes() {
    let vectors = vectors();
    let requests = of(&vectors, "request");
    let (mut same, mut keys, mut devices) = (0, 0, 0);
    for vector in &requests {
        let name = &vector.name;
        let frames: Vec<&[u8]> = vector.frames[2..].iter().map(|frame| &frame[..]).collect();
        let request = Request::decode(operation(vector), &frames).expect(name);
        assert_eq!(uid_frame(vector.decoded["uid"].as_u64().expect(name)), vector.frames[0]);
        assert_eq!(operation_frame(request.operation()), vector.frames[1], "{name}");
        // The one int where a float is declared comes back as the float it stands for.
        if name == "encoder/wait_int_timeout/request" {
            assert_eq!(encode_payloads(&request)[1], [0xcb, 0x40, 0x14, 0, 0, 0, 0, 0, 0]);
        } else {
            assert_eq!(encode_payloads(&request), frames, "{name}");
            same += 1;
        }
        if let Some(KeyFrame(frame)) = key_of(&request) {
            keys += key_comes_back(frame, name) as usize;
        }
        let list = match &request {
            Request::RegisterKvCache(all) | Request::RegisterQCache(all) => Some(all.kv_cache),
            Request::RegisterRope(rope) => Some(rope.caches),
            _ => None,
        };
        for device in list.iter().flat_map(|list| list.iter()) {
            device.descriptor().expect(name);
            devices += 1;
        }
    }
    assert_eq!((requests.len(), same), (REQUESTS, REQUESTS - 1));
    assert_eq!((keys, devices), (KEYS - KEYS_WITH_CONFIGS, DEVICES));
}

fn key_of<'a>(request: &Request<'a>) -> Option<KeyFrame<'a>> {
    match request {
        Request::StoreQ(transfer)
        | Request::Store(transfer)
        | Request::Retrieve { transfer, .. } => Some(transfer.key),
        Request::RetrievePreComputed(blend) => Some(blend.key),
        Request::Lookup { key, .. }
        | Request::FreeLookupLocks { key, .. }
        | Request::UnifiedLookup { key, .. }
        | Request::PrepareStore { key, .. }
        | Request::CommitStore { key, .. }
        | Request::PrepareRetrieve { key, .. }
        | Request::CommitRetrieve { key, .. }
        | Request::ReorderPlan { key, .. } => Some(*key),
        _ => None,
    }
}

/// False where the key carries what our client never sends.
fn key_comes_back(frame: &[u8], name: &str) -> bool {
    let view = whole_view(frame);
    let number = |field: &str| view[field].as_u64().expect(field);
    let text = |field: &str| view[field].as_str().expect(field);
    let tokens: Vec<u32> = view["token_ids"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|token| token.as_u64().expect("an int") as u32)
        .collect();
    if !view["request_configs"].is_null() {
        return false;
    }
    let key = Key {
        model: text("model_name"),
        world_size: number("world_size") as u32,
        worker: view["worker_id"].as_u64().map(|worker| worker as u32),
        tokens: &tokens,
        start: number("start"),
        end: number("end"),
        request: text("request_id"),
        salt: text("cache_salt"),
        readers: number("num_kv_readers") as u32,
    };
    let mut out = Vec::new();
    key.encode(&mut out);
    assert_eq!(out, frame, "{name}");
    true
}

/// What the engine would have had to say for this response, and the lists it speaks of.
struct Said {
    answer: Answer,
    outbox: Outbox,
    pool_name: String,
    pool_bytes: u64,
}

fn said(answer: Answer) -> Option<Said> {
    Some(Said { answer, outbox: Outbox::default(), pool_name: String::new(), pool_bytes: 0 })
}

/// None where kvtide has no such answer: it is a yes to something that it does not serve.
fn said_by(operation: Operation, value: Option<&Value>) -> Option<Said> {
    let Some(value) = value else { return said(Answer::None) };
    if let Some(flag) = value.as_bool() {
        return said(Answer::Bool(flag));
    }
    if let Some(count) = value.as_u64() {
        return said(Answer::Count(count));
    }
    match operation {
        Operation::Noop => said(Answer::Text("OK")),
        Operation::Experimental if value == &json!([]) => said(Answer::NoTexts),
        Operation::ReorderPlan if value == &json!([]) => said(Answer::EmptyArray),
        Operation::RegisterEngineDriven => Some(Said {
            answer: Answer::Registered,
            outbox: Outbox::default(),
            pool_name: value["shm_name"].as_str().expect("a text").to_string(),
            pool_bytes: value["pool_size"].as_u64().expect("an int"),
        }),
        Operation::PrepareStore if value == &json!({"context": {}}) => said(Answer::NoContext),
        Operation::PrepareStore => {
            let (outbox, slots, layout) = slots(value);
            Some(Said { outbox, ..said(Answer::StoreSlots { slots, layout })? })
        }
        Operation::PrepareRetrieve if value["success"] == json!(false) => {
            said(Answer::RetrieveMiss)
        }
        Operation::PrepareRetrieve if value["data"]["$bin"] == json!("") => {
            let (outbox, slots, layout) = slots(value);
            Some(Said { outbox, ..said(Answer::RetrieveSlots { slots, layout })? })
        }
        Operation::Store | Operation::Retrieve if value[0]["$bin"] == json!("") => {
            said(Answer::EventFlag(value[1].as_bool().expect("a bool")))
        }
        Operation::PeerQueryLookupResults => {
            let misses = value.as_array().expect("an array");
            let missed = |miss: &Value| miss == &json!({"offset": -1, "size": 0});
            misses.iter().all(missed).then_some(())?;
            said(Answer::PeerMisses { keys: misses.len() as u32 })
        }
        Operation::SubscribeKvEvents if value["enabled"] == json!(false) => {
            let incarnation = value["incarnation"].as_u64().expect("an int");
            said(Answer::EventsOff { incarnation })
        }
        _ => None,
    }
}

fn slots(value: &Value) -> (Outbox, SlotRange, Layout) {
    let context = &value["context"];
    let list = context["slots"].as_array().expect("an array");
    let slot = |(index, slot): (usize, &Value)| Slot {
        chunk: context["chunk_indices"][index].as_u64().unwrap_or(index as u64) as u32,
        place: Some(Place {
            arena: ArenaId(0),
            offset: slot["offset"].as_u64().expect("an int"),
            bytes: slot["length"].as_u64().expect("an int"),
        }),
    };
    let outbox = Outbox { slots: list.iter().enumerate().map(slot).collect(), ..Outbox::default() };
    let shape = |at: usize| list.first().map_or(1, |slot| slot["shape"][at].as_u64().expect("int"));
    let layout = Layout {
        planes: shape(0) as u8,
        layers: shape(1) as u32,
        slots: shape(2) as u32,
        hidden: shape(3) as u32,
        dtype: Dtype::named("bfloat16").expect("a torch type"),
    };
    assert_eq!(list.first().map_or(layout.bytes(), |slot| slot["length"].as_u64()), layout.bytes());
    (outbox, SlotRange { start: 0, end: list.len() as u32 }, layout)
}

/// The answer written by us, framed, is the capture's frames, framed.
fn assert_said(vector: &Vector, said: &Said) {
    let context = Context { pool_name: &said.pool_name, pool_bytes: said.pool_bytes };
    let mut value = Vec::new();
    let envelope = encode_value(said.answer, &context, &said.outbox, &mut value);
    let mut framed = Vec::new();
    let [uid, operation] = [&vector.frames[0], &vector.frames[1]];
    append_answer(said.answer, uid, operation, &context, &said.outbox, &mut framed);
    let mut want = Vec::new();
    for (index, frame) in vector.frames.iter().enumerate() {
        let more = index + 1 < vector.frames.len();
        want.extend_from_slice(&frame_header(more, frame.len() as u64));
        want.extend_from_slice(frame);
    }
    if envelope == Envelope::ValueThenEcho {
        assert!(framed.starts_with(&want), "{}", vector.name);
    } else {
        assert_eq!(framed, want, "{}", vector.name);
    }
    assert_eq!(vector.frames.get(2).map_or(&[][..], |frame| frame), value, "{}", vector.name);
}

#[test]
fn every_response_is_written_as_the_peer_writes_it() {
    let vectors = vectors();
    let mut not_ours = Vec::new();
    let mut written = 0;
    for direction in ["response", "stream_chunk", "stream_end"] {
        for vector in of(&vectors, direction) {
            let value = vector.decoded["payloads"].get(0);
            match said_by(operation(vector), value) {
                Some(said) => {
                    assert_said(vector, &said);
                    written += 1;
                }
                None => not_ours.push(&vector.name[..]),
            }
        }
    }
    assert_eq!(not_ours, NOT_OUR_ANSWERS);
    assert_eq!(written + not_ours.len() + REQUESTS + 3, VECTORS);
}

#[test]
fn a_payload_is_gathered_between_head_and_tail() {
    let vectors = vectors();
    let hit = vectors.iter().find(|vector| vector.name == "pickle/prepare_retrieve_hit/response");
    let hit = hit.expect("the vector is there");
    let data = unhex(&hit.decoded["payloads"][0]["data"]["$bin"]);
    let layout = slots(&json!({"context": {"slots": []}})).2;
    let mut tail = Vec::new();
    retrieve_tail(&[], layout, false, &mut tail);
    let mut out = Vec::new();
    let [uid, operation] = [&hit.frames[0], &hit.frames[1]];
    assert!(retrieve_head(uid, operation, data.len() as u64, tail.len(), &mut out));
    out.extend_from_slice(&data);
    out.extend_from_slice(&tail);
    assert!(out.ends_with(&hit.frames[2]));
    let header = frame_header(false, hit.frames[2].len() as u64);
    assert_eq!(out[6..6 + header.len()], *header);
}

#[test]
fn stream_controls_are_no_requests() {
    let vectors = vectors();
    let controls: Vec<_> = of(&vectors, "stream_control")
        .iter()
        .map(|vector| {
            assert_eq!(decode_operation(&vector.frames[1]), None);
            decode_stream_control(&vector.frames[1], &[&vector.frames[2][..]])
        })
        .collect();
    let [ack, cancel] = [Some(StreamControl::Ack), Some(StreamControl::Cancel)];
    assert_eq!(controls, [ack, ack, cancel]);
}

#[test]
fn numbers_of_operations_are_the_peers() {
    let golden = golden();
    let ids = golden["legacy_operation_ids"].as_object().expect("an object");
    for operation in Operation::ALL {
        let id = ids.get(operation.name()).map(|id| id.as_u64().expect("an int") as u8);
        assert_eq!(operation.legacy_id(), id, "{}", operation.name());
    }
    let numbered = Operation::ALL.iter().filter(|operation| operation.legacy_id().is_some());
    assert_eq!(numbered.count(), ids.len());
}

#[test]
fn the_handshake_is_libzmqs() {
    let golden = golden();
    let zmtp = &golden["zmtp"];
    assert_eq!(unhex(&zmtp["client_greeting"]), GREETING);
    assert_eq!(unhex(&zmtp["server_greeting"]), GREETING);
    assert_eq!(unhex(&zmtp["client_ready_command_frame"]), READY_DEALER);
    assert_eq!(unhex(&zmtp["server_ready_command_frame"]), READY_ROUTER);
    for (role, ready) in [(Role::Router, READY_DEALER), (Role::Dealer, READY_ROUTER)] {
        let stream = [&GREETING[..], ready].concat();
        let (mut decoder, mut input) = (Decoder::new(role), &stream[..]);
        assert_eq!(decoder.step(&mut input), Ok(Some(Token::Greeted)));
        assert_eq!(decoder.step(&mut input), Ok(Some(Token::Ready)));
        assert_eq!(decoder.step(&mut input), Ok(None));
    }
}

const REQUESTS: usize = 92;
const KEYS: usize = 36;
const DEVICES: usize = 7;

/// Two keys of the captures carry `request_configs`, which our client never sends.
const KEYS_WITH_CONFIGS: usize = 2;

const NOT_OUR_ANSWERS: &[&str] = &[
    "pickle/get_experimental/response",
    // Gathered between head and tail, tested on its own.
    "pickle/prepare_retrieve_hit/response",
    "pickle/store/response",
    "pickle/retrieve/response",
    "encoder/store_cuda/response",
    "encoder/retrieve_failed/response",
    "encoder/server_module_call/response",
    "encoder/cb_protocol_handshake/response",
    "encoder/cb_retrieve_pre_computed/response",
    "encoder/cb_unified_lookup/response",
    "encoder/p2p_query_lookup_results/response",
    "pickle/subscribe_kv_events/chunk0",
    "pickle/subscribe_kv_events/chunk1",
    "encoder/kv_events_removed_lost/chunk",
];
