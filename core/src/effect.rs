//! What the world shall do, and the box in which it is asked.

use crate::event::AttachFault;
use crate::fact::{Fact, FactKey};
use crate::names::{AdapterId, Attachment, L2Key, Layout, Operator, Place, Reply, Seal, Ticket};
use crate::pages::Pages;
use alloc::vec::Vec;
use core::fmt;

/// An order to the shells. Shells and simulator match every variant, without a `_` arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The one answer of a request.
    Answer { reply: Reply, answer: Answer },
    /// The one answer of a `prepare_retrieve` that carries payload: `success`, the bytes of
    /// `slots` as a pickle of tensors of `layout`, and, where `with_slots`, their places.
    /// Ends in `Event::SendEnded`, also when the connection is gone already.
    Send { reply: Reply, ticket: Ticket, slots: SlotRange, layout: Layout, with_slots: bool },
    /// Read the inline body of a `commit_store` into `slots` (one per chunk of the range, in
    /// order; `Slot::place` is None where the bytes are to be skipped).
    /// Ends in `Event::ReceiveEnded`.
    Receive { reply: Reply, ticket: Ticket, slots: SlotRange, layout: Layout },
    /// Attach the memory that the registration of this request described, which lies as `pages`
    /// says. Ends in `Event::AttachEnded`; from a good ending on there is a `Detach` to come.
    Attach { attachment: Attachment, reply: Reply, pages: Pages },
    /// Let go of an engine's memory as soon as no copy uses it. Has no ending.
    Detach { attachment: Attachment },
    /// Copy between an engine's blocks and `slots`, one per object. Ends in `Event::CopyEnded`.
    Copy { ticket: Ticket, attachment: Attachment, copy: PageCopy },
    /// Ask an adapter which of `keys` it holds, and with how many bytes. Ends in
    /// `Event::ProbeEnded`.
    Probe { ticket: Ticket, adapter: AdapterId, keys: L2KeyRange },
    /// Write the bytes of `place` under `key`. What is there already stays as it is. It becomes
    /// visible whole or not at all (I-29). Ends in `Event::StoreEnded`.
    StoreObject { ticket: Ticket, adapter: AdapterId, key: L2Key, place: Place },
    /// Read the object under `key`, which has as many bytes as `place`. Ends in
    /// `Event::LoadEnded`.
    LoadObject { ticket: Ticket, adapter: AdapterId, key: L2Key, place: Place },
    /// Take the object under `key` away; with `quarantine`, out of the way only, for somebody to
    /// look at. Ends in `Event::DeleteEnded`.
    DeleteObject { ticket: Ticket, adapter: AdapterId, key: L2Key, quarantine: bool },
    /// CRC32 of the native name of `key` and the bytes of `place`. Ends in `Event::DigestEnded`.
    Digest { ticket: Ticket, key: L2Key, place: Place },
    /// The same of the object at rest, which has so many bytes. Ends in `Event::ScrubEnded`.
    Scrub { ticket: Ticket, adapter: AdapterId, key: L2Key, bytes: u64 },
    /// Nobody waits for this ticket any more: end it as soon as it can end. It still ends once.
    Cancel { ticket: Ticket },
    /// A line for the adapter's index at rest. Has no ending.
    Note { adapter: AdapterId, key: L2Key, note: Note },
    /// The last ticket of a removed adapter has ended: let go of its files. Has no ending.
    AdapterClosed { adapter: AdapterId },
    /// The one answer of an operator's question.
    OperatorAnswer { operator: Operator, answer: OperatorAnswer },
}

/// Which blocks belong to which places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Of the request, which brought the event that the engine's blocks are ready at.
    pub reply: Reply,
    pub direction: Direction,
    /// `Slot::chunk` is the position within the request's range.
    pub slots: SlotRange,
    /// `Pages::blocks_per_object` ids for every slot, in the order of the slots.
    pub blocks: BlockRange,
    /// Tokens from the start of the range on whose blocks must not be written; 0 for a store.
    pub skip_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the engine's blocks into L1.
    Store,
    /// From L1 into the engine's blocks.
    Retrieve,
}

/// What an adapter's index is told of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    Stored {
        bytes: u64,
        seal: Option<Seal>,
    },
    /// It was loaded: it is the most recently used.
    Used,
    Removed,
}

/// The value of an answer. `core/wire` knows its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Two frames: void, or "still loading".
    None,
    Bool(bool),
    Count(u64),
    Text(&'static str),
    /// `get_experimental`: no capability strings.
    NoTexts,
    /// Engine-driven registration: the shell fills in pool name and size, both empty where the
    /// pool is private.
    Registered,
    /// The uid and, in place of the operation, a string with the reason (design §6).
    Refused(Refusal),
    /// `prepare_store`: places for the chunks that are not there yet.
    StoreSlots {
        slots: SlotRange,
        layout: Layout,
    },
    /// `prepare_store` without slots: pickle mode, or refused.
    NoContext,
    /// `prepare_retrieve` over shared memory.
    RetrieveSlots {
        slots: SlotRange,
        layout: Layout,
    },
    /// `prepare_retrieve`: a miss.
    RetrieveMiss,
    /// `[b"", flag]` of `store`, `retrieve`, `store_q`, `cb_retrieve_pre_computed`.
    EventFlag(bool),
    /// `cb_unified_lookup`: a struct of zeros.
    BlendMiss,
    /// `cb_protocol_handshake`: `[1, false]`.
    HandshakeRefused,
    /// `cb_reorder_plan` and other empty arrays.
    EmptyArray,
    /// `p2p_query_lookup_results`: nothing is offered to peers.
    PeerMisses {
        keys: u32,
    },
    /// `subscribe_kv_events` while off: one batch with `enabled=false`, then the end.
    EventsOff {
        incarnation: u64,
    },
    /// `server_module_call`: `success=false` and a sentence.
    ModuleRefused,
}

/// Why a registration is not served; the text ends up in the engine's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// `register_kv_cache` with memory that is shared in a way that is not served.
    ServerDriven,
    QueryCache,
    Rope,
    /// Engine-driven, but the server was told to serve the other family only.
    EngineDrivenOff,
    /// Server-driven, but the server was told to serve the other family only.
    ServerDrivenOff,
    /// The tensors of a registration do not lie as any format that is served; the rule they break.
    Pages(&'static str),
    /// Layers in several block tables, or with recurrent state.
    SeveralGroups,
    Attach(AttachFault),
    Malformed(&'static str),
    UnknownDtype,
    SlotsNotPositive,
    LayoutTooLarge,
    WorldSize,
    Model,
    InstancesFull,
    ScopesFull,
}

impl Refusal {
    /// The label value of `kvtide_refused_registrations_total{reason}`.
    pub fn label(self) -> &'static str {
        match self {
            Refusal::ServerDriven => "server_driven",
            Refusal::QueryCache => "query_cache",
            Refusal::Rope => "rope",
            Refusal::EngineDrivenOff => "engine_driven_off",
            Refusal::ServerDrivenOff => "server_driven_off",
            Refusal::Pages(_) => "pages",
            Refusal::SeveralGroups => "several_groups",
            Refusal::Attach(_) => "attach",
            Refusal::Malformed(_) => "malformed",
            Refusal::UnknownDtype => "unknown_dtype",
            Refusal::SlotsNotPositive => "slots_not_positive",
            Refusal::LayoutTooLarge => "layout_too_large",
            Refusal::WorldSize => "world_size",
            Refusal::Model => "model_name",
            Refusal::InstancesFull => "instances_full",
            Refusal::ScopesFull => "scopes_full",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused: ")?;
        match self {
            Refusal::ServerDriven => f.write_str(
                "memory that is shared by virtual memory handles (cuda_vmm), or of several \
                 devices at once, is not served; start vLLM with plain CUDA IPC, or set \
                 lmcache.mp.mp_transfer_mode=engine_driven in kv_connector_extra_config \
                 (or LMCACHE_MP_TRANSFER_MODE=engine_driven) and start the engine again",
            ),
            Refusal::QueryCache => f.write_str("query caches (transfer_query) are not served"),
            Refusal::Rope => f.write_str("blending (cb_*) is not served"),
            Refusal::EngineDrivenOff => f.write_str(
                "engine-driven transfer is switched off by \
                 --supported-transfer-mode lmcache_driven",
            ),
            Refusal::ServerDrivenOff => f.write_str(
                "server-driven transfer is switched off by \
                 --supported-transfer-mode engine_driven",
            ),
            Refusal::SeveralGroups => f.write_str(
                "models whose layers use several block tables (hybrid models, recurrent state) are \
                 not served yet",
            ),
            Refusal::Attach(fault) => f.write_str(fault.text()),
            Refusal::Malformed(what) | Refusal::Pages(what) => write!(f, "{what}"),
            Refusal::UnknownDtype => f.write_str("dtype_str is not a torch element type"),
            Refusal::SlotsNotPositive => f.write_str("num_physical_slots is not positive"),
            Refusal::LayoutTooLarge => {
                f.write_str("one chunk of this layout is empty or larger than L1 (--l1-size-gb)")
            }
            Refusal::WorldSize => f.write_str("world_size does not lie in 1..=255"),
            Refusal::Model => f.write_str("model_name is empty, too long or holds '@'"),
            Refusal::InstancesFull => f.write_str("too many instances are registered"),
            Refusal::ScopesFull => f.write_str("too many models and tenants are in use"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorAnswer {
    Done,
    /// `DELETE /quota`: whether there was one.
    Removed(bool),
    /// `DELETE /cache/objects`: objects that are gone, or will be in a moment, and objects that
    /// somebody holds, over both tiers.
    Deleted {
        deleted: u32,
        skipped: u32,
    },
    /// The table is full; names the bound.
    Full(&'static str),
}

/// A part of `Outbox::slots`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRange {
    pub start: u32,
    pub end: u32,
}

/// A part of `Outbox::blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRange {
    pub start: u32,
    pub end: u32,
}

/// A part of `Outbox::l2_keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L2KeyRange {
    pub start: u32,
    pub end: u32,
}

/// One chunk of a request's range and where its bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Position within the request's range (`chunk_indices`).
    pub chunk: u32,
    pub place: Option<Place>,
}

/// Lent by the caller to every `handle`; emptied by the caller.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    pub effects: Vec<Effect>,
    pub facts: Vec<Fact>,
    pub keys: Vec<FactKey>,
    pub slots: Vec<Slot>,
    pub l2_keys: Vec<L2Key>,
    /// Block ids of an engine.
    pub blocks: Vec<u32>,
}

impl Outbox {
    pub fn answer(&mut self, reply: Reply, answer: Answer) {
        self.effects.push(Effect::Answer { reply, answer });
    }

    pub fn slots(&self, range: SlotRange) -> &[Slot] {
        &self.slots[range.start as usize..range.end as usize]
    }

    pub fn l2_keys(&self, range: L2KeyRange) -> &[L2Key] {
        &self.l2_keys[range.start as usize..range.end as usize]
    }

    pub fn blocks(&self, range: BlockRange) -> &[u32] {
        &self.blocks[range.start as usize..range.end as usize]
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
        self.l2_keys.clear();
        self.effects.clear();
        self.facts.clear();
        self.keys.clear();
        self.slots.clear();
    }
}
