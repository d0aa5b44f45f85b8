//! Checks a server-driven registration (spec/wire §2.4, spec/transfer §3 and §5.2): how its pages
//! lie and in which memory, or why it is refused. The one invariant: every tensor of what passes
//! lies within the storage that its descriptor names, and each of its objects fits L1.

use crate::config::{Config, TransferModes};
use crate::effect::Refusal;
use crate::event::{Ask, PagedRegistration};
use crate::front::key::rules::check_model;
use crate::front::register::refused;
use crate::limits::{RUNS_PER_OBJECT_MAX, TENSORS_MAX, WORLD_SIZE_MAX};
use crate::names::Dtype;
use crate::pages::{Described, Group, Hint, Pages};
use crate::wire::descriptor::{Descriptor, Handle};
use crate::wire::fields::List;
use crate::wire::operation::{Operation, decode_operation};
use crate::wire::request::{EngineGroup, EngineType, Request, ServerDrivenRegistration};
use alloc::string::String;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Where one tensor of an engine begins. Stays with the shells until the memory is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// POSIX name of the shared memory segment.
    pub segment: String,
    /// Size of the storage as the engine says, from the start of the segment.
    pub segment_bytes: u64,
    /// Where the tensor's first element lies.
    pub offset_bytes: u64,
}

/// What the engine is told of a registration that decoded.
pub fn register<'a>(config: &Config, payload: &ServerDrivenRegistration<'a>) -> Ask<'a> {
    match check(config, payload) {
        Ok(registration) => Ask::RegisterPaged(registration),
        Err(reason) => refused(payload.instance, payload.model, reason),
    }
}

/// The tensors of a registration that `register` let pass, in the order of `Run::tensor`. `frames`
/// are all frames of its message.
pub fn sources(frames: &[&[u8]]) -> Vec<Source> {
    let [_, operation, payloads @ ..] = frames else { return Vec::new() };
    let payload = match decode_operation(operation) {
        Some(Operation::RegisterKvCache) => Request::decode(Operation::RegisterKvCache, payloads),
        _ => return Vec::new(),
    };
    let Ok(Request::RegisterKvCache(payload)) = payload else { return Vec::new() };
    let tensors = tensors(&payload).unwrap_or_default();
    tensors.iter().map(|tensor| tensor.source.clone()).collect()
}

fn check<'a>(
    config: &Config,
    payload: &ServerDrivenRegistration<'a>,
) -> Result<PagedRegistration<'a>, Refusal> {
    if config.transfer_modes == TransferModes::EngineDriven {
        return Err(Refusal::ServerDrivenOff);
    }
    check_model(payload.model).map_err(|_| Refusal::Model)?;
    let world_size = u32::try_from(payload.world_size).unwrap_or(0);
    if world_size == 0 || world_size > WORLD_SIZE_MAX {
        return Err(Refusal::WorldSize);
    }
    if matches!(payload.engine, EngineType::Sglang | EngineType::Trtllm) {
        return Err(Refusal::Pages("memory of this engine_type is not served yet"));
    }
    let group = match payload.groups.iter().next() {
        Some(group) => read_group(&group)?,
        None => Group { tokens_per_block: 0, window_tokens: None },
    };
    let tensors = tensors(payload)?;
    let described = tensors.iter().map(|tensor| Described {
        shape: &tensor.shape,
        stride: &tensor.stride,
        storage_offset: tensor.storage_offset,
        dtype: tensor.dtype,
    });
    let hint = read_hint(payload)?;
    let pages = Pages::discover(described, hint, group, config.chunk_size);
    let pages = pages.map_err(|fault| Refusal::Pages(fault.text()))?;
    if pages.runs_max() > RUNS_PER_OBJECT_MAX {
        return Err(Refusal::Pages("one chunk of these kv_caches has too many blocks and layers"));
    }
    match pages.layout().bytes() {
        Some(bytes) if bytes <= config.l1_bytes => {}
        _ => return Err(Refusal::LayoutTooLarge),
    }
    Ok(PagedRegistration { instance: payload.instance, model: payload.model, world_size, pages })
}

fn read_group(group: &EngineGroup<'_>) -> Result<Group, Refusal> {
    if group.recurrent_state || group.extra_object_group_tag != 0 {
        return Err(Refusal::SeveralGroups);
    }
    let tokens_per_block = u32::try_from(group.tokens_per_block)
        .map_err(|_| Refusal::Malformed("tokens_per_block is out of range"))?;
    // Zero and below: no window.
    let window_tokens = u32::try_from(group.sw_size_tokens).ok().filter(|tokens| *tokens > 0);
    Ok(Group { tokens_per_block, window_tokens })
}

fn read_hint(payload: &ServerDrivenRegistration<'_>) -> Result<Option<Hint>, Refusal> {
    let Some(mut value) = payload.layout_hints.find("kv_layout") else { return Ok(None) };
    let unknown = Refusal::Malformed("kv_layout is none of NHD, HND, BLHNC and BLNHC");
    let name = value.read_nil_or(|reader| reader.read_str()).map_err(|_| unknown)?;
    name.map(|name| Hint::named(name).ok_or(unknown)).transpose()
}

struct Tensor {
    shape: SmallVec<[u64; 6]>,
    stride: SmallVec<[u64; 6]>,
    storage_offset: u64,
    dtype: Dtype,
    source: Source,
}

/// The tensors of the one group. Layers that are in none share another layer's memory.
fn tensors(payload: &ServerDrivenRegistration<'_>) -> Result<Vec<Tensor>, Refusal> {
    if payload.kv_cache.len() > TENSORS_MAX {
        return Err(Refusal::Malformed("kv_caches holds too many tensors"));
    }
    let mut all = payload.kv_cache.iter().enumerate();
    let mut found = Vec::new();
    let mut read = |wanted: Option<i64>| -> Result<bool, Refusal> {
        for (index, device) in all.by_ref() {
            if wanted.is_some_and(|wanted| wanted != index as i64) {
                continue;
            }
            let descriptor = device.descriptor();
            let descriptor = descriptor.map_err(|fault| Refusal::Malformed(fault.text()))?;
            found.push(read_tensor(&descriptor)?);
            return Ok(true);
        }
        Ok(false)
    };
    match payload.groups.len() {
        0 => while read(None)? {},
        1 => {
            let group = payload.groups.iter().next().expect("there is one");
            for index in group.layer_indices.iter() {
                let unknown = Refusal::Malformed("layer_indices do not ascend or name no tensor");
                read(Some(index))?.then_some(()).ok_or(unknown)?;
            }
        }
        _ => return Err(Refusal::SeveralGroups),
    }
    Ok(found)
}

fn read_tensor(descriptor: &Descriptor<'_>) -> Result<Tensor, Refusal> {
    let Handle::CpuShm { name, bytes } = descriptor.handle else {
        return Err(Refusal::ServerDriven);
    };
    let tensor = &descriptor.tensor;
    let (storage_offset, dtype) = (tensor.storage_offset, tensor.dtype);
    let outside = Refusal::Malformed("a tensor reaches beyond its storage");
    let offset_bytes = storage_offset.checked_mul(dtype.bytes()).ok_or(outside)?;
    // The descriptor's reader refuses what is negative.
    fn sizes(list: List<'_, i64>) -> SmallVec<[u64; 6]> {
        list.iter().map(|size| size as u64).collect()
    }
    Ok(Tensor {
        shape: sizes(tensor.shape),
        stride: sizes(tensor.stride),
        storage_offset,
        dtype,
        source: Source { segment: name.into(), segment_bytes: bytes, offset_bytes },
    })
}
