//! The shapes of payloads: structs of the peer and groups of arguments (spec/wire §2.1).
//!
//! Fields of a `structure!` carry the names that they have on the wire.

use crate::names::InstanceId;
use crate::wire::descriptor::Device;
use crate::wire::fields::{Broken, FreeMap, List, Opaque, Wire, structure};
use crate::wire::msgpack::{Malformed, Reader, Writer};
use core::fmt;

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
