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
use crate::pages::{Described, Format, Group, Hint, Pages};
use crate::wire::descriptor::{Descriptor, Handle};
use crate::wire::fields::List;
use crate::wire::msgpack::Reader;
use crate::wire::operation::{Operation, decode_operation};
use crate::wire::request::{EngineGroup, EngineType, Request, ServerDrivenRegistration};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// What a registration's tensors lie in, in the order of `Run::tensor`. Stays with the shells until
/// the memory is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    Segments(Vec<Source>),
    Device(Vec<DeviceSource>),
}

/// Where one tensor begins in shared memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// POSIX name of the shared memory segment.
    pub segment: String,
    /// Size of the storage as the engine says, from the start of the segment.
    pub segment_bytes: u64,
    /// Where the tensor's first element lies.
    pub offset_bytes: u64,
}

/// Where one tensor begins in memory of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSource {
    /// The card's uuid, as torch writes it.
    pub card: String,
    /// The handle of the allocation.
    pub memory: [u8; 64],
    /// The storage within the allocation.
    pub storage_offset: u64,
    pub storage_bytes: u64,
    /// Where the tensor's first element lies within the storage.
    pub offset_bytes: u64,
    /// Torch's count of those who use the storage: a file, and a place in it.
    pub counter: Option<(Vec<u8>, u64)>,
    /// To be waited for before the first use.
    pub event: Option<Vec<u8>>,
}

/// What the engine is told of a registration that decoded.
pub fn register<'a>(config: &Config, payload: &ServerDrivenRegistration<'a>) -> Ask<'a> {
    match check(config, payload) {
        Ok(registration) => Ask::RegisterPaged(registration),
        Err(reason) => refused(payload.instance, payload.model, reason),
    }
}

/// What a registration that `register` let pass says of its memory. `frames` are all frames of its
/// message.
pub fn memory(frames: &[&[u8]]) -> Option<Memory> {
    let [_, operation, payloads @ ..] = frames else { return None };
    if decode_operation(operation) != Some(Operation::RegisterKvCache) {
        return None;
    }
    let payload = Request::decode(Operation::RegisterKvCache, payloads);
    let Ok(Request::RegisterKvCache(payload)) = payload else { return None };
    let tensors = tensors(&payload).ok()?;
    let segments = tensors.iter().map(|tensor| match &tensor.place {
        Place::Segment(source) => Some(source.clone()),
        Place::Device(_) => None,
    });
    if let Some(segments) = segments.collect() {
        return Some(Memory::Segments(segments));
    }
    let devices = tensors.into_iter().map(|tensor| match tensor.place {
        Place::Segment(_) => None,
        Place::Device(source) => Some(*source),
    });
    devices.collect::<Option<_>>().map(Memory::Device)
}

/// The handle of the event that a transfer brought: the engine's blocks are ready when it has come.
pub fn event<'a>(frames: &[&'a [u8]]) -> &'a [u8] {
    let frame = frames.get(EVENT_FRAME).copied().unwrap_or_default();
    Reader::new(frame).read_bin().unwrap_or_default()
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
    if !tensors.windows(2).all(|pair| pair[0].place.is_beside(&pair[1].place)) {
        return Err(Refusal::ServerDriven);
    }
    let described = tensors.iter().map(|tensor| Described {
        shape: &tensor.shape,
        stride: &tensor.stride,
        storage_offset: tensor.storage_offset,
        dtype: tensor.dtype,
    });
    // On a card the peer takes slots to come first where nothing is said.
    let on_card = tensors.iter().any(|tensor| matches!(tensor.place, Place::Device(_)));
    let hint = read_hint(payload)?.or(on_card.then_some(Hint::Nhd));
    let pages = Pages::discover(described, hint, group, config.chunk_size);
    let pages = pages.map_err(|fault| Refusal::Pages(fault.text()))?;
    if on_card && pages.format == Format::Indexer {
        return Err(Refusal::Pages(
            "pages of an indexer (132 bytes a slot) are not served on a card",
        ));
    }
    if pages.runs_max() > RUNS_PER_OBJECT_MAX {
        return Err(Refusal::Pages("one chunk of these kv_caches has too many blocks and layers"));
    }
    // Where heads come first, a run is a copy for each of them.
    let heads = if on_card && pages.format.heads_first() { pages.heads.into() } else { 1 };
    if pages.runs_max().saturating_mul(heads) > RUNS_PER_OBJECT_MAX {
        return Err(Refusal::Pages(
            "one chunk of these kv_caches has too many blocks, layers and heads for a card; \
             with kv_layout NHD it has fewer pieces",
        ));
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
    place: Place,
}

enum Place {
    Segment(Source),
    Device(Box<DeviceSource>),
}

impl Place {
    /// Whether one registration can have both.
    fn is_beside(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Segment(_), Place::Segment(_)) => true,
            (Place::Device(one), Place::Device(other)) => one.card == other.card,
            _ => false,
        }
    }
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
    fn sizes(list: List<'_, i64>) -> SmallVec<[u64; 6]> {
        // The descriptor's reader refuses what is negative.
        list.iter().map(|size| size as u64).collect()
    }
    let tensor = &descriptor.tensor;
    let (storage_offset, dtype) = (tensor.storage_offset, tensor.dtype);
    let outside = Refusal::Malformed("a tensor reaches beyond its storage");
    let offset_bytes = storage_offset.checked_mul(dtype.bytes()).ok_or(outside)?;
    let device = |memory: &[u8; 64], storage_offset, storage_bytes| DeviceSource {
        card: tensor.device_uuid.into(),
        memory: *memory,
        storage_offset,
        storage_bytes,
        offset_bytes,
        counter: None,
        event: None,
    };
    let place = match descriptor.handle {
        Handle::CpuShm { name, bytes } => {
            Place::Segment(Source { segment: name.into(), segment_bytes: bytes, offset_bytes })
        }
        Handle::Cuda(cuda) => Place::Device(Box::new(DeviceSource {
            counter: Some((cuda.counter_name.into(), cuda.counter_index)),
            event: cuda.event.map(Vec::from),
            ..device(cuda.memory, cuda.base_offset_bytes, cuda.storage_bytes)
        })),
        Handle::CudaRaw { memory, alloc_offset, bytes } => {
            Place::Device(Box::new(device(memory, alloc_offset, bytes)))
        }
        Handle::CudaVmm(_) => return Err(Refusal::ServerDriven),
    };
    let (shape, stride) = (sizes(tensor.shape), sizes(tensor.stride));
    Ok(Tensor { shape, stride, storage_offset, dtype, place })
}

/// Where `store` and `retrieve` have their event: behind uid, operation, key, instance and blocks.
const EVENT_FRAME: usize = 5;
