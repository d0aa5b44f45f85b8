//! Requests, decoded (spec/wire §2.1, §2.2).
//!
//! Every operation of the protocol is decoded, also those that are not served, so that a malformed
//! request and an unserved one can be told apart. Values borrow from the frames; keys stay raw,
//! because `front` reads them bit by bit. Its one invariant: decoding allocates nothing.

use crate::limits::WAIT_SECS_MAX;
use crate::names::InstanceId;
use crate::time::Duration;
use crate::wire::descriptor::Device;
use crate::wire::fields::{Broken, FreeMap, IntMap, List, Opaque, Wire, structure};
use crate::wire::msgpack::{Malformed, Reader, Writer};
use crate::wire::operation::Operation;
use alloc::vec::Vec;
use core::fmt;

/// Why a request could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    PayloadCount { got: usize, want: usize },
    Malformed { payload: u8, broken: Broken },
}

/// A frame that holds an `IPCCacheServerKey`, not looked at yet. Shown by its size alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyFrame<'a>(pub &'a [u8]);

impl fmt::Debug for KeyFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key of {} bytes", self.0.len())
    }
}

/// What kind of engine registers its device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineType {
    Vllm,
    Atom,
    Sglang,
    Trtllm,
    Mock,
}

impl EngineType {
    const ALL: [EngineType; 5] = [
        EngineType::Vllm,
        EngineType::Atom,
        EngineType::Sglang,
        EngineType::Trtllm,
        EngineType::Mock,
    ];

    pub fn name(self) -> &'static str {
        match self {
            EngineType::Vllm => "vllm",
            EngineType::Atom => "atom",
            EngineType::Sglang => "sglang",
            EngineType::Trtllm => "trtllm",
            EngineType::Mock => "mock",
        }
    }
}

impl<'a> Wire<'a> for EngineType {
    fn read(reader: &mut Reader<'a>) -> Result<EngineType, Broken> {
        let name = reader.read_str()?;
        let known = EngineType::ALL.into_iter().find(|engine| engine.name() == name);
        Ok(known.ok_or(Malformed::UnknownValue)?)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.str(self.name());
    }
}

structure! {
    /// `RegisterEngineDrivenContextPayload`, as sent; its numbers are not checked here.
    EngineDrivenRegistration<'a> {
        instance_id: i64,
        model_name: &'a str,
        world_size: i64,
        block_size: i64,
        num_layers: i64,
        hidden_dim_size: i64,
        dtype_str: &'a str,
        use_mla: bool,
        /// None: as many as a chunk has tokens.
        num_physical_slots: Option<i64> = None,
    }
}

structure! {
    /// `EngineGroupInfo`: layers that share a block table.
    EngineGroup<'a> {
        engine_group_id: i64,
        layer_indices: List<'a, i64>,
        tokens_per_block: i64 = 0,
        sw_size_tokens: i64 = -1,
        extra_object_group_tag: i64 = 0,
        recurrent_state: bool = false,
    }
}

structure! {
    /// `BlockAllocationRecord`.
    BlockAllocation<'a> {
        req_id: &'a str,
        new_block_ids: List<'a, i64>,
        new_token_ids: List<'a, i64>,
    }
}

structure! {
    /// `ObjectKey`, as another server names an object.
    ObjectKey<'a> {
        chunk_hash: Opaque<'a>,
        model_name: &'a str,
        kv_rank: i64,
        object_group_id: i64 = 0,
        cache_salt: &'a str = "",
    }
}

structure! {
    /// `MemoryLayoutDesc`.
    MemoryLayout<'a> {
        shapes: List<'a, List<'a, i64>>,
        dtypes: List<'a, &'a str>,
    }
}

structure! {
    /// `CBMatchResult`.
    BlendMatch<'a> {
        old_st: i64,
        old_ed: i64,
        cur_st: i64,
        cur_ed: i64,
        hash: Opaque<'a>,
    }
}

structure! {
    /// `ServerModuleCallRequest`.
    ModuleCall<'a> {
        method: &'a str,
        payload: Opaque<'a>,
    }
}

/// Device memory of an engine: `register_kv_cache` and `register_q_cache`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerDrivenRegistration<'a> {
    pub instance: InstanceId,
    pub kv_cache: List<'a, Device<'a>>,
    pub model: &'a str,
    pub world_size: i64,
    pub engine: EngineType,
    pub layout_hints: FreeMap<'a>,
    pub groups: List<'a, EngineGroup<'a>>,
}

/// `store`, `store_q`, and the front part of `retrieve`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerDrivenTransfer<'a> {
    pub key: KeyFrame<'a>,
    pub instance: InstanceId,
    pub block_ids: List<'a, List<'a, i64>>,
    pub event_handle: Opaque<'a>,
}

/// `cb_register_rope`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeRegistration<'a> {
    pub instance: InstanceId,
    pub caches: List<'a, Device<'a>>,
    pub head_size: i64,
    pub is_neox_style: bool,
    pub group_to_cache: List<'a, i64>,
    pub group_rot: List<'a, List<'a, i64>>,
    pub group_head_size: List<'a, i64>,
    pub kv_quant: &'a str,
}

/// `cb_retrieve_pre_computed`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlendRetrieve<'a> {
    pub key: KeyFrame<'a>,
    pub matches: List<'a, BlendMatch<'a>>,
    pub block_ids: List<'a, List<'a, i64>>,
    pub instance: InstanceId,
    pub event_handle: Opaque<'a>,
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

/// Encodes the payload frames of a request, one vector each: what a client sends.
pub fn encode_payloads(request: &Request<'_>) -> Vec<Vec<u8>> {
    let mut frames = Frames(Vec::with_capacity(request.operation().payload_count()));
    let f = &mut frames;
    match request {
        Request::RegisterKvCache(all) | Request::RegisterQCache(all) => {
            f.int(all.instance.0).value(&all.kv_cache).value(&all.model).int(all.world_size);
            f.value(&all.engine).value(&all.layout_hints).value(&all.groups);
        }
        Request::UnregisterKvCache { instance }
        | Request::UnregisterQCache { instance }
        | Request::UnregisterEngineDriven { instance }
        | Request::UnregisterRope { instance } => drop(f.int(instance.0)),
        Request::StoreQ(transfer) | Request::Store(transfer) => drop(f.transfer(transfer)),
        Request::Retrieve { transfer, skip_first_tokens } => {
            f.transfer(transfer).int(*skip_first_tokens);
        }
        Request::Lookup { key, tp_size }
        | Request::FreeLookupLocks { key, tp_size }
        | Request::UnifiedLookup { key, tp_size } => drop(f.key(key).int(*tp_size)),
        Request::QueryPrefetchStatus { request } | Request::EndSession { request } => {
            f.value(request);
        }
        Request::WaitPrefetchStatus { request, wait } => {
            f.value(request).push(|writer| writer.f64(wait.as_secs_f64()));
        }
        Request::RegisterEngineDriven(payload) => drop(f.value(payload)),
        Request::PrepareStore { key, instance }
        | Request::PrepareRetrieve { key, instance }
        | Request::CommitRetrieve { key, instance } => drop(f.key(key).int(instance.0)),
        Request::CommitStore { key, instance, data } => {
            f.key(key).int(instance.0).value(data);
        }
        Request::Clear { force } => drop(f.value(force)),
        Request::ChunkSize | Request::Noop | Request::Experimental => {}
        Request::Ping { instance } => drop(f.value(&instance.map(|instance| instance.0))),
        Request::ReportBlockAllocation { instance, model, records } => {
            f.int(instance.0).value(model).value(records);
        }
        Request::RegisterRope(rope) => {
            f.int(rope.instance.0).value(&rope.caches).int(rope.head_size);
            f.value(&rope.is_neox_style).value(&rope.group_to_cache).value(&rope.group_rot);
            f.value(&rope.group_head_size).value(&rope.kv_quant);
        }
        Request::RetrievePreComputed(blend) => {
            f.key(&blend.key).value(&blend.matches).value(&blend.block_ids);
            f.int(blend.instance.0).value(&blend.event_handle);
        }
        Request::PeerLookupAndLock { keys, layouts } => drop(f.value(keys).value(layouts)),
        Request::PeerQueryLookupResults { task } => drop(f.int(*task)),
        Request::PeerUnlockObjects { keys } => drop(f.value(keys)),
        Request::ProtocolHandshake { version } => drop(f.int(*version)),
        Request::ReorderPlan { key, keep_prefix, budget_ms } => {
            f.key(key).int(*keep_prefix).int(*budget_ms);
        }
        Request::SubscribeKvEvents { instance, model, cursor, events_max } => {
            f.int(instance.0).value(model).int(*cursor).int(*events_max);
        }
        Request::ServerModuleCall(call) => drop(f.value(call)),
    }
    frames.0
}

struct Frames(Vec<Vec<u8>>);

impl Frames {
    fn push(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> &mut Frames {
        let mut frame = Vec::new();
        write(&mut Writer::new(&mut frame));
        self.0.push(frame);
        self
    }

    fn value<'a>(&mut self, value: &impl Wire<'a>) -> &mut Frames {
        self.push(|writer| value.write(writer))
    }

    fn int(&mut self, value: i64) -> &mut Frames {
        self.push(|writer| writer.i64(value))
    }

    fn key(&mut self, key: &KeyFrame<'_>) -> &mut Frames {
        self.push(|writer| writer.raw(key.0))
    }

    fn transfer(&mut self, transfer: &ServerDrivenTransfer<'_>) -> &mut Frames {
        self.key(&transfer.key).int(transfer.instance.0).value(&transfer.block_ids);
        self.value(&transfer.event_handle)
    }
}
