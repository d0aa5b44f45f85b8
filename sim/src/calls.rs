//! Requests that own what they name, because in a simulation they travel before they are asked.

use crate::devices::DeviceId;
use kvtide_core::event::{Ask, Keys, PagedRegistration, Registration};
use kvtide_core::names::{ChunkHash, InstanceId, Layout};
use kvtide_core::pages::Pages;
use kvtide_core::time::Duration;
use std::fmt;
use std::rc::Rc;

/// An owned `event::Keys`.
#[derive(Clone, PartialEq, Eq)]
pub struct Range {
    pub model: Rc<str>,
    pub salt: Rc<str>,
    pub request: Rc<str>,
    pub world_size: u32,
    pub worker: Option<u32>,
    pub readers: u16,
    pub first_chunk: u32,
    pub end_chunk: u32,
    pub hashes: Rc<[ChunkHash]>,
}

impl Range {
    pub fn keys(&self) -> Keys<'_> {
        Keys {
            model: &self.model,
            salt: &self.salt,
            request: &self.request,
            world_size: self.world_size,
            worker: self.worker,
            readers: self.readers,
            first_chunk: self.first_chunk,
            end_chunk: self.end_chunk,
            hashes: &self.hashes[..self.end_chunk as usize],
        }
    }

    /// The same request, another part of its chunks.
    pub fn part(&self, worker: Option<u32>, first_chunk: u32, end_chunk: u32) -> Range {
        Range { worker, first_chunk, end_chunk, ..self.clone() }
    }

    pub fn len(&self) -> u32 {
        self.end_chunk.saturating_sub(self.first_chunk)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{} ", self.model, self.salt, self.request)?;
        match self.worker {
            Some(worker) => write!(f, "rank {worker} of {}", self.world_size)?,
            None => write!(f, "all {} ranks, {} readers", self.world_size, self.readers)?,
        }
        write!(f, ", chunks {}..{}", self.first_chunk, self.end_chunk)?;
        match self.hashes[..self.end_chunk as usize].last() {
            Some(last) => write!(f, " to {last:?}"),
            None => Ok(()),
        }
    }
}

/// An owned `event::Ask`, of those that clients send.
#[derive(Clone, PartialEq, Eq)]
pub enum Call {
    Register { instance: InstanceId, model: Rc<str>, world_size: u32, layout: Layout },
    RegisterPaged { instance: InstanceId, model: Rc<str>, world_size: u32, paged: Paged },
    Unregister { instance: InstanceId },
    Ping { instance: Option<InstanceId> },
    Lookup { range: Range },
    Query { request: Rc<str> },
    Wait { request: Rc<str>, wait: Duration },
    Free { range: Range },
    EndSession { request: Rc<str>, hashes: Rc<[ChunkHash]> },
    PrepareStore { instance: InstanceId, range: Range },
    CommitStore { instance: InstanceId, range: Range, inline_bytes: u64 },
    PrepareRetrieve { instance: InstanceId, range: Range },
    CommitRetrieve { instance: InstanceId, range: Range },
    Store { instance: InstanceId, range: Range, blocks: Blocks },
    Retrieve { instance: InstanceId, range: Range, blocks: Blocks, skip_tokens: u64 },
    Clear { force: bool },
}

/// Blocks of an engine that a request names, and whose memory it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub device: DeviceId,
    pub ids: Rc<[u32]>,
}

/// Memory that an engine registers: which it is, and how its pages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paged {
    pub device: DeviceId,
    pub pages: Pages,
}

impl Call {
    /// The chunks that a request is about, where it names some.
    pub fn range(&self) -> Option<&Range> {
        match self {
            Call::Lookup { range }
            | Call::Free { range }
            | Call::PrepareStore { range, .. }
            | Call::CommitStore { range, .. }
            | Call::PrepareRetrieve { range, .. }
            | Call::CommitRetrieve { range, .. }
            | Call::Store { range, .. }
            | Call::Retrieve { range, .. } => Some(range),
            _ => None,
        }
    }

    /// Whether it is a part of a client's store.
    pub fn stores(&self) -> bool {
        matches!(self, Call::PrepareStore { .. } | Call::CommitStore { .. } | Call::Store { .. })
    }

    /// What the engine is asked.
    pub fn ask(&self) -> Ask<'_> {
        match self {
            Call::Register { instance, model, world_size, layout } => Ask::Register(Registration {
                instance: *instance,
                model,
                world_size: *world_size,
                block_size: layout.slots,
                layout: *layout,
            }),
            Call::RegisterPaged { instance, model, world_size, paged } => {
                Ask::RegisterPaged(PagedRegistration {
                    instance: *instance,
                    model,
                    world_size: *world_size,
                    pages: paged.pages,
                })
            }
            Call::Store { instance, range, blocks } => {
                Ask::Store { instance: *instance, keys: range.keys(), blocks: &blocks.ids }
            }
            Call::Retrieve { instance, range, blocks, skip_tokens } => Ask::Retrieve {
                instance: *instance,
                keys: range.keys(),
                blocks: &blocks.ids,
                skip_tokens: *skip_tokens,
            },
            Call::Unregister { instance } => Ask::Unregister { instance: *instance },
            Call::Ping { instance } => Ask::Ping { instance: *instance },
            Call::Lookup { range } => Ask::Lookup { keys: range.keys() },
            Call::Query { request } => Ask::QueryPrefetch { request },
            Call::Wait { request, wait } => Ask::WaitPrefetch { request, wait: *wait },
            Call::Free { range } => Ask::FreeLookupLocks { keys: range.keys() },
            Call::EndSession { request, hashes } => Ask::EndSession { request, hashes },
            Call::PrepareStore { instance, range } => {
                Ask::PrepareStore { instance: *instance, keys: range.keys() }
            }
            Call::CommitStore { instance, range, inline_bytes } => Ask::CommitStore {
                instance: *instance,
                keys: range.keys(),
                inline_bytes: *inline_bytes,
            },
            Call::PrepareRetrieve { instance, range } => {
                Ask::PrepareRetrieve { instance: *instance, keys: range.keys() }
            }
            Call::CommitRetrieve { instance, range } => {
                Ask::CommitRetrieve { instance: *instance, keys: range.keys() }
            }
            Call::Clear { force } => Ask::Clear { force: *force },
        }
    }
}

impl fmt::Debug for Call {
    /// One line as a transcript shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Register { instance, model, world_size, layout } => {
                let bytes = layout.bytes().unwrap_or(0);
                write!(f, "register {} {model} of {world_size}, {bytes} bytes", instance.0)
            }
            Call::Unregister { instance } => write!(f, "unregister {}", instance.0),
            Call::Ping { instance: Some(instance) } => write!(f, "ping {}", instance.0),
            Call::Ping { instance: None } => f.write_str("ping nobody"),
            Call::Lookup { range } => write!(f, "lookup {range:?}"),
            Call::Query { request } => write!(f, "query {request}"),
            Call::Wait { request, wait } => write!(f, "wait {request} for {wait:?}"),
            Call::Free { range } => write!(f, "free {range:?}"),
            Call::EndSession { request, hashes } => {
                write!(f, "end session {request}, {} hashes", hashes.len())
            }
            Call::PrepareStore { instance, range } => {
                write!(f, "prepare store {} {range:?}", instance.0)
            }
            Call::CommitStore { instance, range, inline_bytes: 0 } => {
                write!(f, "commit store {} {range:?}", instance.0)
            }
            Call::CommitStore { instance, range, inline_bytes } => {
                write!(f, "commit store {} {range:?}, {inline_bytes} bytes inline", instance.0)
            }
            Call::PrepareRetrieve { instance, range } => {
                write!(f, "prepare retrieve {} {range:?}", instance.0)
            }
            Call::CommitRetrieve { instance, range } => {
                write!(f, "commit retrieve {} {range:?}", instance.0)
            }
            Call::RegisterPaged { instance, model, world_size, paged } => {
                let Paged { device, pages } = paged;
                let bytes = pages.layout().bytes().unwrap_or(0);
                write!(f, "register {} {model} of {world_size}, {bytes} bytes in ", instance.0)?;
                let each = (pages.blocks_per_object(), pages.blocks_per_chunk());
                write!(f, "{} of {} of {} blocks, ", each.0, each.1, pages.blocks)?;
                write!(f, "{:?}, device {}", pages.format, device.0)
            }
            Call::Store { instance, range, blocks } => {
                write!(f, "store {} {range:?} from {:?}", instance.0, blocks.ids)
            }
            Call::Retrieve { instance, range, blocks, skip_tokens } => {
                write!(f, "retrieve {} {range:?} into {:?}, ", instance.0, blocks.ids)?;
                write!(f, "skip {skip_tokens}")
            }
            Call::Clear { force } => write!(f, "clear, force {force}"),
        }
    }
}
