//! Requests, decoded (spec/wire §2.1, §2.2).
//!
//! Every operation of the protocol is decoded, also those that are not served, so that a malformed
//! request and an unserved one can be told apart. Values borrow from the frames; keys stay raw,
//! because `front` reads them bit by bit. Its one invariant: decoding allocates nothing.

use crate::limits::WAIT_SECS_MAX;
use crate::names::InstanceId;
use crate::time::Duration;
use crate::wire::fields::{Broken, IntMap, List, Opaque, Wire};
use crate::wire::msgpack::{Malformed, Reader};
use crate::wire::operation::Operation;

mod shapes;

pub use shapes::*;

/// Why a request could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    PayloadCount { got: usize, want: usize },
    Malformed { payload: u8, broken: Broken },
}

/// One request with its payloads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    RegisterKvCache(ServerDrivenRegistration<'a>),
    UnregisterKvCache {
        instance: InstanceId,
    },
    RegisterQCache(ServerDrivenRegistration<'a>),
    UnregisterQCache {
        instance: InstanceId,
    },
    StoreQ(ServerDrivenTransfer<'a>),
    Store(ServerDrivenTransfer<'a>),
    Retrieve {
        transfer: ServerDrivenTransfer<'a>,
        skip_first_tokens: i64,
    },
    Lookup {
        key: KeyFrame<'a>,
        tp_size: i64,
    },
    QueryPrefetchStatus {
        request: &'a str,
    },
    WaitPrefetchStatus {
        request: &'a str,
        wait: Duration,
    },
    FreeLookupLocks {
        key: KeyFrame<'a>,
        tp_size: i64,
    },
    EndSession {
        request: &'a str,
    },
    RegisterEngineDriven(EngineDrivenRegistration<'a>),
    UnregisterEngineDriven {
        instance: InstanceId,
    },
    PrepareStore {
        key: KeyFrame<'a>,
        instance: InstanceId,
    },
    CommitStore {
        key: KeyFrame<'a>,
        instance: InstanceId,
        data: Opaque<'a>,
    },
    PrepareRetrieve {
        key: KeyFrame<'a>,
        instance: InstanceId,
    },
    CommitRetrieve {
        key: KeyFrame<'a>,
        instance: InstanceId,
    },
    Clear {
        force: bool,
    },
    ChunkSize,
    Ping {
        instance: Option<InstanceId>,
    },
    ReportBlockAllocation {
        instance: InstanceId,
        model: &'a str,
        records: List<'a, BlockAllocation<'a>>,
    },
    Noop,
    RegisterRope(RopeRegistration<'a>),
    UnregisterRope {
        instance: InstanceId,
    },
    RetrievePreComputed(BlendRetrieve<'a>),
    UnifiedLookup {
        key: KeyFrame<'a>,
        tp_size: i64,
    },
    PeerLookupAndLock {
        keys: List<'a, ObjectKey<'a>>,
        layouts: IntMap<'a, MemoryLayout<'a>>,
    },
    PeerQueryLookupResults {
        task: i64,
    },
    PeerUnlockObjects {
        keys: List<'a, ObjectKey<'a>>,
    },
    Experimental,
    ProtocolHandshake {
        version: i64,
    },
    ReorderPlan {
        key: KeyFrame<'a>,
        keep_prefix: i64,
        budget_ms: i64,
    },
    SubscribeKvEvents {
        instance: InstanceId,
        model: &'a str,
        cursor: i64,
        events_max: i64,
    },
    ServerModuleCall(ModuleCall<'a>),
}

impl<'a> Request<'a> {
    /// Decodes the frames behind uid and operation.
    pub fn decode(operation: Operation, payloads: &[&'a [u8]]) -> Result<Request<'a>, Fault> {
        let (got, want) = (payloads.len(), operation.payload_count());
        // Clients before 0.5.6 have no choice and say nothing (F15).
        if operation == Operation::Clear && got == 0 {
            return Ok(Request::Clear { force: true });
        }
        if got != want {
            return Err(Fault::PayloadCount { got, want });
        }
        let mut payloads = Payloads { frames: payloads, at: 0 };
        match operation {
            Operation::RegisterKvCache
            | Operation::UnregisterKvCache
            | Operation::RegisterQCache
            | Operation::UnregisterQCache
            | Operation::StoreQ
            | Operation::Store
            | Operation::Retrieve => decode_server_driven(operation, &mut payloads),
            Operation::RegisterRope
            | Operation::UnregisterRope
            | Operation::RetrievePreComputed
            | Operation::UnifiedLookup
            | Operation::ReorderPlan
            | Operation::ProtocolHandshake => decode_blend(operation, &mut payloads),
            Operation::PeerLookupAndLock
            | Operation::PeerQueryLookupResults
            | Operation::PeerUnlockObjects
            | Operation::ReportBlockAllocation
            | Operation::SubscribeKvEvents
            | Operation::ServerModuleCall => decode_other(operation, &mut payloads),
            _ => decode_common(operation, &mut payloads),
        }
    }

    pub fn operation(&self) -> Operation {
        match self {
            Request::RegisterKvCache(_) => Operation::RegisterKvCache,
            Request::UnregisterKvCache { .. } => Operation::UnregisterKvCache,
            Request::RegisterQCache(_) => Operation::RegisterQCache,
            Request::UnregisterQCache { .. } => Operation::UnregisterQCache,
            Request::StoreQ(_) => Operation::StoreQ,
            Request::Store(_) => Operation::Store,
            Request::Retrieve { .. } => Operation::Retrieve,
            Request::Lookup { .. } => Operation::Lookup,
            Request::QueryPrefetchStatus { .. } => Operation::QueryPrefetchStatus,
            Request::WaitPrefetchStatus { .. } => Operation::WaitPrefetchStatus,
            Request::FreeLookupLocks { .. } => Operation::FreeLookupLocks,
            Request::EndSession { .. } => Operation::EndSession,
            Request::RegisterEngineDriven(_) => Operation::RegisterEngineDriven,
            Request::UnregisterEngineDriven { .. } => Operation::UnregisterEngineDriven,
            Request::PrepareStore { .. } => Operation::PrepareStore,
            Request::CommitStore { .. } => Operation::CommitStore,
            Request::PrepareRetrieve { .. } => Operation::PrepareRetrieve,
            Request::CommitRetrieve { .. } => Operation::CommitRetrieve,
            Request::Clear { .. } => Operation::Clear,
            Request::ChunkSize => Operation::ChunkSize,
            Request::Ping { .. } => Operation::Ping,
            Request::ReportBlockAllocation { .. } => Operation::ReportBlockAllocation,
            Request::Noop => Operation::Noop,
            Request::RegisterRope(_) => Operation::RegisterRope,
            Request::UnregisterRope { .. } => Operation::UnregisterRope,
            Request::RetrievePreComputed(_) => Operation::RetrievePreComputed,
            Request::UnifiedLookup { .. } => Operation::UnifiedLookup,
            Request::PeerLookupAndLock { .. } => Operation::PeerLookupAndLock,
            Request::PeerQueryLookupResults { .. } => Operation::PeerQueryLookupResults,
            Request::PeerUnlockObjects { .. } => Operation::PeerUnlockObjects,
            Request::Experimental => Operation::Experimental,
            Request::ProtocolHandshake { .. } => Operation::ProtocolHandshake,
            Request::ReorderPlan { .. } => Operation::ReorderPlan,
            Request::SubscribeKvEvents { .. } => Operation::SubscribeKvEvents,
            Request::ServerModuleCall(_) => Operation::ServerModuleCall,
        }
    }
}

/// The two frames in front of the data of a `commit_store` whose third frame is too large to
/// buffer: its body is streamed into reserved places (design §7).
pub fn decode_commit_head<'a>(
    key: &'a [u8],
    instance: &'a [u8],
) -> Result<(KeyFrame<'a>, InstanceId), Fault> {
    let frames = [key, instance];
    let mut payloads = Payloads { frames: &frames, at: 0 };
    Ok((payloads.key(), payloads.instance()?))
}

/// Reads the head of a binary that fills a frame of `frame_bytes` from the first bytes of it.
/// Returns the bytes of the head and of what follows; None when more bytes are needed to tell.
pub fn bin_head(first: &[u8], frame_bytes: u64) -> Result<Option<(usize, u64)>, Malformed> {
    let digits = match first.first() {
        None if frame_bytes == 0 => return Err(Malformed::Truncated),
        None => return Ok(None),
        Some(0xc4) => 1,
        Some(0xc5) => 2,
        Some(0xc6) => 4,
        Some(_) => return Err(Malformed::NotBin),
    };
    let head = 1 + digits;
    if frame_bytes < head as u64 {
        return Err(Malformed::Truncated);
    }
    let Some(length) = first.get(1..head) else { return Ok(None) };
    let body = length.iter().fold(0_u64, |bytes, digit| bytes << 8 | *digit as u64);
    match (head as u64 + body).cmp(&frame_bytes) {
        core::cmp::Ordering::Less => Err(Malformed::TrailingBytes),
        core::cmp::Ordering::Greater => Err(Malformed::Truncated),
        core::cmp::Ordering::Equal => Ok(Some((head, body))),
    }
}

fn decode_common<'a>(
    operation: Operation,
    payloads: &mut Payloads<'_, 'a>,
) -> Result<Request<'a>, Fault> {
    let p = payloads;
    Ok(match operation {
        Operation::Lookup => Request::Lookup { key: p.key(), tp_size: p.int()? },
        Operation::QueryPrefetchStatus => Request::QueryPrefetchStatus { request: p.value()? },
        Operation::WaitPrefetchStatus => {
            Request::WaitPrefetchStatus { request: p.value()?, wait: p.wait()? }
        }
        Operation::FreeLookupLocks => Request::FreeLookupLocks { key: p.key(), tp_size: p.int()? },
        Operation::EndSession => Request::EndSession { request: p.value()? },
        Operation::RegisterEngineDriven => Request::RegisterEngineDriven(p.value()?),
        Operation::UnregisterEngineDriven => {
            Request::UnregisterEngineDriven { instance: p.instance()? }
        }
        Operation::PrepareStore => Request::PrepareStore { key: p.key(), instance: p.instance()? },
        Operation::CommitStore => {
            Request::CommitStore { key: p.key(), instance: p.instance()?, data: p.value()? }
        }
        Operation::PrepareRetrieve => {
            Request::PrepareRetrieve { key: p.key(), instance: p.instance()? }
        }
        Operation::CommitRetrieve => {
            Request::CommitRetrieve { key: p.key(), instance: p.instance()? }
        }
        Operation::Clear => Request::Clear { force: p.flag()? },
        Operation::ChunkSize => Request::ChunkSize,
        // Declared as `int | nil`, which the peer does not coerce.
        Operation::Ping => Request::Ping { instance: p.value::<Option<i64>>()?.map(InstanceId) },
        Operation::Noop => Request::Noop,
        Operation::Experimental => Request::Experimental,
        other => unreachable!("{other:?} is decoded elsewhere"),
    })
}

fn decode_server_driven<'a>(
    operation: Operation,
    payloads: &mut Payloads<'_, 'a>,
) -> Result<Request<'a>, Fault> {
    let p = payloads;
    Ok(match operation {
        Operation::RegisterKvCache => Request::RegisterKvCache(p.server_driven()?),
        Operation::UnregisterKvCache => Request::UnregisterKvCache { instance: p.instance()? },
        Operation::RegisterQCache => Request::RegisterQCache(p.server_driven()?),
        Operation::UnregisterQCache => Request::UnregisterQCache { instance: p.instance()? },
        Operation::StoreQ => Request::StoreQ(p.transfer()?),
        Operation::Store => Request::Store(p.transfer()?),
        Operation::Retrieve => {
            Request::Retrieve { transfer: p.transfer()?, skip_first_tokens: p.int()? }
        }
        other => unreachable!("{other:?} is decoded elsewhere"),
    })
}

fn decode_blend<'a>(
    operation: Operation,
    payloads: &mut Payloads<'_, 'a>,
) -> Result<Request<'a>, Fault> {
    let p = payloads;
    Ok(match operation {
        Operation::RegisterRope => Request::RegisterRope(RopeRegistration {
            instance: p.instance()?,
            caches: p.value()?,
            head_size: p.int()?,
            is_neox_style: p.flag()?,
            group_to_cache: p.value()?,
            group_rot: p.value()?,
            group_head_size: p.value()?,
            kv_quant: p.value()?,
        }),
        Operation::UnregisterRope => Request::UnregisterRope { instance: p.instance()? },
        Operation::RetrievePreComputed => Request::RetrievePreComputed(BlendRetrieve {
            key: p.key(),
            matches: p.value()?,
            block_ids: p.value()?,
            instance: p.instance()?,
            event_handle: p.value()?,
        }),
        Operation::UnifiedLookup => Request::UnifiedLookup { key: p.key(), tp_size: p.int()? },
        Operation::ProtocolHandshake => Request::ProtocolHandshake { version: p.int()? },
        Operation::ReorderPlan => {
            Request::ReorderPlan { key: p.key(), keep_prefix: p.int()?, budget_ms: p.int()? }
        }
        other => unreachable!("{other:?} is decoded elsewhere"),
    })
}

fn decode_other<'a>(
    operation: Operation,
    payloads: &mut Payloads<'_, 'a>,
) -> Result<Request<'a>, Fault> {
    let p = payloads;
    Ok(match operation {
        Operation::PeerLookupAndLock => {
            Request::PeerLookupAndLock { keys: p.value()?, layouts: p.value()? }
        }
        Operation::PeerQueryLookupResults => Request::PeerQueryLookupResults { task: p.int()? },
        Operation::PeerUnlockObjects => Request::PeerUnlockObjects { keys: p.value()? },
        Operation::ReportBlockAllocation => Request::ReportBlockAllocation {
            instance: p.instance()?,
            model: p.value()?,
            records: p.value()?,
        },
        Operation::SubscribeKvEvents => Request::SubscribeKvEvents {
            instance: p.instance()?,
            model: p.value()?,
            cursor: p.int()?,
            events_max: p.int()?,
        },
        Operation::ServerModuleCall => Request::ServerModuleCall(p.value()?),
        other => unreachable!("{other:?} is decoded elsewhere"),
    })
}

/// The payload frames, taken one by one. Their number was checked before.
struct Payloads<'p, 'a> {
    frames: &'p [&'a [u8]],
    at: usize,
}

impl<'a> Payloads<'_, 'a> {
    fn key(&mut self) -> KeyFrame<'a> {
        self.at += 1;
        KeyFrame(self.frames[self.at - 1])
    }

    fn value<T: Wire<'a>>(&mut self) -> Result<T, Fault> {
        self.take(T::read)
    }

    /// A payload that is declared as plain `int`.
    fn int(&mut self) -> Result<i64, Fault> {
        self.take(|reader| Ok(reader.read_int_coerced()?))
    }

    /// A payload that is declared as plain `bool`.
    fn flag(&mut self) -> Result<bool, Fault> {
        self.take(|reader| Ok(reader.read_bool_coerced()?))
    }

    fn instance(&mut self) -> Result<InstanceId, Fault> {
        self.int().map(InstanceId)
    }

    /// Seconds as the client gives them. Negative and not-a-number mean: poll now (design §7).
    fn wait(&mut self) -> Result<Duration, Fault> {
        let seconds = self.take(|reader| Ok(reader.read_float()?))?;
        let positive = if seconds > 0.0 { seconds } else { 0.0 };
        Ok(Duration::from_secs_f64(positive.min(WAIT_SECS_MAX as f64)))
    }

    fn server_driven(&mut self) -> Result<ServerDrivenRegistration<'a>, Fault> {
        Ok(ServerDrivenRegistration {
            instance: self.instance()?,
            kv_cache: self.value()?,
            model: self.value()?,
            world_size: self.int()?,
            engine: self.value()?,
            layout_hints: self.value()?,
            groups: self.value()?,
        })
    }

    fn transfer(&mut self) -> Result<ServerDrivenTransfer<'a>, Fault> {
        Ok(ServerDrivenTransfer {
            key: self.key(),
            instance: self.instance()?,
            block_ids: self.value()?,
            event_handle: self.value()?,
        })
    }

    /// One frame, one value, nothing after it.
    fn take<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Broken>,
    ) -> Result<T, Fault> {
        let payload = self.at as u8;
        let mut reader = Reader::new(self.frames[self.at]);
        self.at += 1;
        let value = read(&mut reader).and_then(|value| Ok((value, reader.finish()?)));
        match value {
            Ok((value, ())) => Ok(value),
            Err(broken) => Err(Fault::Malformed { payload, broken }),
        }
    }
}

impl Fault {
    /// The reason a registration is refused with; names the field where the peer gave a map.
    pub fn sentence(self) -> &'static str {
        match self {
            Fault::PayloadCount { .. } => "the request has a wrong number of payloads",
            Fault::Malformed { broken, .. } => registration_sentence(broken),
        }
    }
}

/// `Refusal` carries a static text, so the sentences for the fields of registrations are spelled
/// out here, field by rule.
fn registration_sentence(broken: Broken) -> &'static str {
    macro_rules! sentences {
        ($($field:literal)*) => {
            match (broken.field, broken.rule) {
                $(($field, Malformed::MissingField) => concat!($field, " is missing"),
                ($field, Malformed::NotInt) => concat!($field, " is not an int"),
                ($field, Malformed::NotText) => concat!($field, " is not a text"),
                ($field, Malformed::NotBool) => concat!($field, " is not a bool"),
                ($field, _) => concat!($field, " is malformed"),)*
                (_, Malformed::NotMap) => "a payload that must be a map is none",
                _ => "a payload is malformed",
            }
        };
    }
    sentences! {
        "instance_id" "model_name" "world_size" "block_size" "num_layers" "hidden_dim_size"
        "dtype_str" "use_mla" "num_physical_slots" "engine_group_id" "layer_indices"
        "tokens_per_block" "sw_size_tokens" "extra_object_group_tag" "recurrent_state"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::client::encode_payloads;
    use crate::wire::msgpack::Writer;
    use alloc::vec;
    use alloc::vec::Vec;

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        out
    }

    fn one(operation: Operation, frame: &[u8]) -> Result<Request<'_>, Fault> {
        Request::decode(operation, &[frame])
    }

    fn malformed(payload: u8, field: &'static str, rule: Malformed) -> Fault {
        Fault::Malformed { payload, broken: Broken { field, rule } }
    }

    /// A registration with some fields left out or replaced.
    fn registration(change: &[(&str, Option<&[u8]>)]) -> Vec<u8> {
        let fields: [(&str, &[u8]); 9] = [
            ("instance_id", b"\x05"),
            ("model_name", b"\xa1m"),
            ("world_size", b"\x01"),
            ("block_size", b"\x10"),
            ("num_layers", b"\x02"),
            ("hidden_dim_size", b"\x08"),
            ("dtype_str", b"\xa7float16"),
            ("use_mla", b"\xc2"),
            ("num_physical_slots", b"\x10"),
        ];
        let changed = fields.map(|(name, value)| {
            let change = change.iter().find(|(changed, _)| *changed == name);
            (name, change.map_or(Some(value), |(_, value)| *value))
        });
        let kept: Vec<_> = changed.into_iter().filter_map(|(n, v)| Some((n, v?))).collect();
        written(|writer| {
            writer.map(kept.len());
            for (name, value) in kept {
                writer.str(name);
                writer.raw(value);
            }
        })
    }

    #[test]
    fn the_number_of_payloads_is_fixed() {
        for operation in Operation::ALL {
            let want = operation.payload_count();
            // What older clients leave out may be missing.
            let least = (*operation == Operation::Clear) as usize;
            for got in (least..want).chain([want + 1]) {
                let frames = vec![&[0xc0][..]; got];
                let decoded = Request::decode(*operation, &frames);
                assert_eq!(decoded, Err(Fault::PayloadCount { got, want }));
            }
        }
    }

    #[test]
    fn every_operation_has_a_decoder_and_names_the_payload_it_refuses() {
        for operation in Operation::ALL {
            let frames = vec![&[0xc1][..]; operation.payload_count()];
            match Request::decode(*operation, &frames) {
                Ok(request) => assert!(frames.is_empty(), "{request:?}"),
                Err(Fault::Malformed { broken, .. }) => {
                    assert_eq!(broken.rule, Malformed::UnusedMarker, "{}", operation.name());
                }
                Err(fault) => panic!("{}: {fault:?}", operation.name()),
            }
        }
    }

    #[test]
    fn ping_takes_an_int_or_nil_and_coerces_nothing() {
        let ping = |frame: &[u8]| match one(Operation::Ping, frame) {
            Ok(Request::Ping { instance }) => Ok(instance),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(fault),
        };
        assert_eq!(ping(&[0xc0]), Ok(None));
        assert_eq!(ping(&[5]), Ok(Some(InstanceId(5))));
        for frame in [written(|w| w.str("x")), written(|w| w.f64(1.0)), vec![0xc3], vec![0x80]] {
            assert_eq!(ping(&frame), Err(malformed(0, "", Malformed::NotInt)));
        }
        assert_eq!(ping(&[]), Err(malformed(0, "", Malformed::Truncated)));
        assert_eq!(ping(&[5, 5]), Err(malformed(0, "", Malformed::TrailingBytes)));
    }

    #[test]
    fn plain_ints_may_be_texts() {
        let size = written(|w| w.str("1"));
        let decoded = Request::decode(Operation::Lookup, &[&[0x80], &size]);
        assert_eq!(decoded, Ok(Request::Lookup { key: KeyFrame(&[0x80]), tp_size: 1 }));
        let size = written(|w| w.str("one"));
        let decoded = Request::decode(Operation::Lookup, &[&[0x80], &size]);
        assert_eq!(decoded, Err(malformed(1, "", Malformed::NotInt)));
    }

    #[test]
    fn waits_are_bounded_and_odd_ones_poll() {
        let wait = |frame: Vec<u8>| match Request::decode(
            Operation::WaitPrefetchStatus,
            &[b"\xa1r", &frame],
        ) {
            Ok(Request::WaitPrefetchStatus { wait, .. }) => Ok(wait),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(fault),
        };
        assert_eq!(wait(written(|w| w.f64(1.5))), Ok(Duration::from_millis(1500)));
        assert_eq!(wait(vec![5]), Ok(Duration::from_secs(5)));
        assert_eq!(wait(written(|w| w.f64(1e300))), Ok(Duration::from_secs(300)));
        assert_eq!(wait(written(|w| w.f64(f64::INFINITY))), Ok(Duration::from_secs(300)));
        for poll in [f64::NAN, -1.0, f64::NEG_INFINITY, -0.0] {
            assert_eq!(wait(written(|w| w.f64(poll))), Ok(Duration::ZERO), "{poll}");
        }
        assert_eq!(wait(written(|w| w.str("1"))), Err(malformed(1, "", Malformed::NotFloat)));
    }

    #[test]
    fn registrations_are_maps_with_all_their_fields() {
        let whole = registration(&[]);
        let Ok(Request::RegisterEngineDriven(payload)) =
            one(Operation::RegisterEngineDriven, &whole)
        else {
            panic!("a whole registration decodes");
        };
        assert_eq!((payload.instance_id, payload.num_physical_slots), (5, Some(16)));
        assert_eq!(encode_payloads(&Request::RegisterEngineDriven(payload)), [whole]);

        let no_slots = registration(&[("num_physical_slots", None)]);
        assert!(one(Operation::RegisterEngineDriven, &no_slots).is_ok());

        let refused = |frame: &[u8]| {
            one(Operation::RegisterEngineDriven, frame).expect_err("refused").sentence()
        };
        assert_eq!(refused(&registration(&[("use_mla", None)])), "use_mla is missing");
        assert_eq!(
            refused(&registration(&[("instance_id", Some(b"\xa11"))])),
            "instance_id is not an int"
        );
        assert_eq!(refused(&registration(&[("use_mla", Some(&[1]))])), "use_mla is not a bool");
        assert_eq!(
            refused(&registration(&[("model_name", Some(b"\xc4\x01m"))])),
            "model_name is not a text"
        );
        assert_eq!(refused(&[0x99]), "a payload that must be a map is none");
    }

    #[test]
    fn sessions_have_text_names() {
        let fault = Err(malformed(0, "", Malformed::NotText));
        assert_eq!(one(Operation::EndSession, &[5]), fault);
        let long = written(|w| w.str(&"r".repeat(1 << 20)));
        assert!(one(Operation::QueryPrefetchStatus, &long).is_ok());
    }

    #[test]
    fn commit_data_is_binary() {
        let commit = |data: &[u8]| {
            Request::decode(Operation::CommitStore, &[&[0x80], &[5], data]).map(|_| ())
        };
        assert_eq!(commit(&[0xc4, 0]), Ok(()));
        assert_eq!(commit(b"\xa4text"), Err(malformed(2, "", Malformed::NotBin)));
    }

    #[test]
    fn the_head_of_a_streamed_binary_is_told_from_its_first_bytes() {
        let frame = written(|w| w.bin(&[7; 70_000]));
        let bytes = frame.len() as u64;
        for seen in 0..5 {
            assert_eq!(bin_head(&frame[..seen], bytes), Ok(None));
        }
        assert_eq!(bin_head(&frame[..5], bytes), Ok(Some((5, 70_000))));
        assert_eq!(bin_head(&frame, bytes + 1), Err(Malformed::TrailingBytes));
        assert_eq!(bin_head(&frame, bytes - 1), Err(Malformed::Truncated));
        assert_eq!(bin_head(&[0xc4], 1), Err(Malformed::Truncated));
        assert_eq!(bin_head(&[], 0), Err(Malformed::Truncated));
        assert_eq!(bin_head(b"\xa4", 5), Err(Malformed::NotBin));
    }
}
