//! Properties of `core/src/wire`: nothing panics, cuts of a stream do not matter, and what is
//! encoded decodes to the same.

use kvtide_core::wire::answer::append_frame;
use kvtide_core::wire::client::{Inbox, append_message, encode_payloads};
use kvtide_core::wire::descriptor::Device;
use kvtide_core::wire::fields::{FreeMap, IntMap, List, Wire};
use kvtide_core::wire::msgpack::{Reader, Writer};
use kvtide_core::wire::operation::{Operation, decode_operation, decode_stream_control};
use kvtide_core::wire::request::{Request, bin_head, decode_commit_head};
use kvtide_core::wire::zmtp::{
    Decoder, GREETING, PingContext, READY_DEALER, READY_ROUTER, Role, Token, ZmtpFault, ping,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// What a stream said, with the parts of each body joined.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Greeted,
    Ready,
    Ping(Vec<u8>),
    Frame { more: bool, bytes: u64, body: Vec<u8>, whole: bool },
    Fault(ZmtpFault),
}

/// Feeds the stream in parts that end at `cuts`.
fn say(stream: &[u8], cuts: &[usize]) -> Vec<Said> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    ends.push(stream.len());
    ends.sort_unstable();
    let (mut decoder, mut said, mut start) = (Decoder::new(Role::Router), Vec::new(), 0);
    for end in ends {
        let mut input = &stream[start..end];
        start = end;
        loop {
            match decoder.step(&mut input) {
                Ok(None) => break assert!(input.is_empty(), "all of the input is taken"),
                Ok(Some(token)) => take(token, &mut said),
                Err(fault) => {
                    said.push(Said::Fault(fault));
                    return said;
                }
            }
        }
    }
    said
}

fn take(token: Token<'_>, said: &mut Vec<Said>) {
    match token {
        Token::Greeted => said.push(Said::Greeted),
        Token::Ready => said.push(Said::Ready),
        Token::Ping(context) => said.push(Said::Ping(context.to_vec())),
        Token::FrameStarted { more, bytes } => {
            said.push(Said::Frame { more, bytes, body: Vec::new(), whole: false });
        }
        Token::FrameBytes(part) => {
            assert!(!part.is_empty(), "a part has bytes");
            let Some(Said::Frame { body, .. }) = said.last_mut() else { panic!("bytes of none") };
            body.extend_from_slice(part);
        }
        Token::FrameEnded { more: ended } => {
            let Some(Said::Frame { more, bytes, body, whole }) = said.last_mut() else {
                panic!("an end of none")
            };
            assert_eq!((ended, body.len() as u64, *whole), (*more, *bytes, false));
            *whole = true;
        }
    }
}

/// One piece of a stream: a frame, a ping, or noise.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (any::<bool>(), vec(any::<u8>(), 0..300)).prop_map(|(more, body)| {
            let mut out = Vec::new();
            append_frame(more, &body, &mut out);
            out
        }),
        2 => vec(any::<u8>(), 0..20)
            .prop_map(|context| ping(1, PingContext::new(&context)).to_vec()),
        1 => vec(any::<u8>(), 0..20).prop_map(|name| {
            [&[4, name.len() as u8 + 1, name.len() as u8], &name[..]].concat()
        }),
        1 => vec(any::<u8>(), 0..12),
    ]
}

/// Bytes that look like msgpack more often than chance would have it.
fn msgpackish() -> impl Strategy<Value = Vec<u8>> {
    let marker = select(vec![
        0x00, 0x05, 0x7f, 0x80, 0x81, 0x82, 0x90, 0x91, 0x98, 0xa0, 0xa1, 0xa4, 0xc0, 0xc1, 0xc2,
        0xc3, 0xc4, 0xc7, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd3, 0xd4, 0xd9, 0xdc, 0xdd,
        0xde, 0xdf, 0xff,
    ]);
    vec(prop_oneof![3 => marker, 1 => any::<u8>()], 0..64)
}

/// A value that is right, in some encoding.
fn value() -> impl Strategy<Value = rmpv::Value> {
    use rmpv::Value;
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        (any::<i8>(), vec(any::<u8>(), 0..40)).prop_map(|(code, body)| Value::Ext(code, body)),
    ];
    leaf.prop_recursive(4, 40, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Value::Array),
            vec((inner.clone(), inner), 0..8).prop_map(Value::Map),
        ]
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    select(Operation::ALL.to_vec())
}

proptest! {
    #[test]
    fn a_stream_says_the_same_however_it_is_cut(
        pieces in vec(piece(), 0..12),
        cuts in vec(any::<usize>(), 0..24),
    ) {
        let stream = [&GREETING[..], READY_DEALER, &pieces.concat()].concat();
        let whole = say(&stream, &[]);
        let single: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(&say(&stream, &cuts), &whole);
        prop_assert_eq!(&say(&stream, &single), &whole);
    }

    #[test]
    fn strangers_are_refused_or_waited_for(bytes in vec(any::<u8>(), 0..200), cut: usize) {
        prop_assert_eq!(say(&bytes, &[cut]), say(&bytes, &[]));
        let after_greeting = [&GREETING[..], &bytes].concat();
        prop_assert_eq!(say(&after_greeting, &[cut]), say(&after_greeting, &[]));
    }

    #[test]
    fn messages_arrive_as_they_were_sent(
        messages in vec(vec(vec(any::<u8>(), 0..300), 1..6), 0..6),
        part in 1_usize..400,
    ) {
        let mut stream = [&GREETING[..], READY_ROUTER].concat();
        messages.iter().for_each(|frames| append_message(frames, &mut stream));
        let (mut inbox, mut received, mut output) = (Inbox::new(), Vec::new(), Vec::new());
        for part in stream.chunks(part) {
            inbox.feed(part, &mut received, &mut output).expect("a right stream");
        }
        prop_assert_eq!(received, messages);
        prop_assert!(output.is_empty());
    }

    #[test]
    fn skipping_ends_where_another_decoder_ends(value in value(), tail in vec(any::<u8>(), 0..4)) {
        let mut frame = Vec::new();
        rmpv::encode::write_value(&mut frame, &value).expect("memory takes all");
        let bytes = frame.len();
        frame.extend_from_slice(&tail);
        let mut reader = Reader::new(&frame);
        prop_assert_eq!(reader.skip(), Ok(()));
        prop_assert_eq!(reader.position(), bytes);
        for short in 0..bytes {
            prop_assert!(Reader::new(&frame[..short]).skip().is_err());
        }
    }

    #[test]
    fn values_are_read_and_written_back(value in value()) {
        let mut frame = Vec::new();
        rmpv::encode::write_value(&mut frame, &value).expect("memory takes all");
        let (mut reader, mut out) = (Reader::new(&frame), Vec::new());
        copy_any(&mut reader, &mut Writer::new(&mut out));
        prop_assert_eq!(reader.finish(), Ok(()));
        let again = rmpv::decode::read_value(&mut &out[..]).expect("we write msgpack");
        // Written in the shortest form, a value is the same bytes from either encoder.
        let mut once_more = Vec::new();
        rmpv::encode::write_value(&mut once_more, &again).expect("memory takes all");
        prop_assert_eq!(&once_more, &frame);
    }

    #[test]
    fn no_frame_makes_a_decoder_panic(
        operation in operation(),
        frames in vec(msgpackish(), 0..9),
        bytes in any::<u64>(),
    ) {
        let mut frames = frames;
        let borrowed: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        let _ = Request::decode(operation, &borrowed);
        frames.resize(operation.payload_count(), vec![0xc0]);
        let borrowed: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        // A request that decodes is encoded to one that decodes to the same.
        if let Ok(request) = Request::decode(operation, &borrowed) {
            let encoded = encode_payloads(&request);
            let encoded: Vec<&[u8]> = encoded.iter().map(|frame| &frame[..]).collect();
            let again = Request::decode(operation, &encoded).expect("we wrote it");
            prop_assert_eq!(encode_payloads(&again), encoded);
        }
        for frame in &frames {
            let _ = decode_operation(frame);
            let _ = decode_stream_control(frame, &borrowed);
            let _ = bin_head(frame, bytes);
            let _ = decode_commit_head(frame, frame);
            let _ = Device(frame).descriptor();
            all_reads(frame);
        }
    }
}

/// Every reading door on the same bytes; none may pass the end.
fn all_reads(frame: &[u8]) {
    let doors: &[fn(&mut Reader<'_>) -> bool] = &[
        |reader| reader.read_i64().is_ok(),
        |reader| reader.read_u64().is_ok(),
        |reader| reader.read_u32().is_ok(),
        |reader| reader.read_int_coerced().is_ok(),
        |reader| reader.read_bool().is_ok(),
        |reader| reader.read_bool_coerced().is_ok(),
        |reader| reader.read_float().is_ok(),
        |reader| reader.read_str().is_ok(),
        |reader| reader.read_bin().is_ok(),
        |reader| reader.read_ext().is_ok(),
        |reader| reader.read_nil().is_ok(),
        |reader| reader.read_raw().is_ok(),
        |reader| reader.read_nil_or(Reader::read_array_len).is_ok(),
        |reader| reader.read_map_len().is_ok(),
        |reader| List::<'_, List<'_, i64>>::read(reader).map(|list| list.iter().count()).is_ok(),
        |reader| IntMap::<'_, &str>::read(reader).map(|map| map.iter().count()).is_ok(),
        |reader| FreeMap::read(reader).map(|map| map.find("").is_some()).is_ok(),
    ];
    for door in doors {
        let mut reader = Reader::new(frame);
        door(&mut reader);
        assert!(reader.position() <= frame.len(), "a reader stays within its frame");
    }
}

fn copy_any(reader: &mut Reader<'_>, writer: &mut Writer<'_>) {
    use kvtide_core::wire::msgpack::Kind;
    let why = "the value is right";
    match reader.peek().expect(why) {
        Kind::Nil => {
            reader.read_nil().expect(why);
            writer.nil();
        }
        Kind::Bool => writer.bool(reader.read_bool().expect(why)),
        Kind::Int => match reader.read_u64() {
            Ok(number) => writer.u64(number),
            Err(_) => writer.i64(reader.read_i64().expect(why)),
        },
        Kind::Float => writer.f64(reader.read_float().expect(why)),
        Kind::Text => writer.str(reader.read_str().expect(why)),
        Kind::Bin => writer.bin(reader.read_bin().expect(why)),
        Kind::Array => {
            let count = reader.read_array_len().expect(why);
            writer.array(count);
            (0..count).for_each(|_| copy_any(reader, writer));
        }
        Kind::Map => {
            let pairs = reader.read_map_len().expect(why);
            writer.map(pairs);
            (0..2 * pairs).for_each(|_| copy_any(reader, writer));
        }
        Kind::Ext => {
            let (code, body) = reader.read_ext().expect(why);
            writer.ext(code, body);
        }
        Kind::Unused => panic!("{why}"),
    }
}
