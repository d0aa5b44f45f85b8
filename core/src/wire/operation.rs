//! The operations by number and by name (spec/wire §1.3, §2.2).

use crate::wire::msgpack::{Kind, Reader};

/// One row per operation: variant, name on the wire, frozen number (0 where it has none), payloads.
macro_rules! operations {
    ($($variant:ident $name:literal $id:literal $payloads:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $($variant,)*
        }

        impl Operation {
            pub const ALL: &'static [Operation] = &[$(Operation::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$variant => $name,)*
                }
            }

            /// How many payload frames a request has.
            pub fn payload_count(self) -> usize {
                match self {
                    $(Operation::$variant => $payloads,)*
                }
            }

            /// The frozen number, where the operation has one.
            pub fn legacy_id(self) -> Option<u8> {
                let id = match self {
                    $(Operation::$variant => $id,)*
                };
                if id == 0 { None } else { Some(id) }
            }
        }
    };
}

operations! {
    RegisterKvCache "register_kv_cache" 1 7,
    UnregisterKvCache "unregister_kv_cache" 2 1,
    RegisterQCache "register_q_cache" 3 7,
    UnregisterQCache "unregister_q_cache" 4 1,
    StoreQ "store_q" 5 4,
    Store "store" 6 4,
    Retrieve "retrieve" 7 5,
    Lookup "lookup" 8 2,
    QueryPrefetchStatus "query_prefetch_status" 9 1,
    WaitPrefetchStatus "wait_prefetch_status" 10 2,
    FreeLookupLocks "free_lookup_locks" 12 2,
    EndSession "end_session" 13 1,
    RegisterEngineDriven "register_kv_cache_engine_driven_context" 14 1,
    UnregisterEngineDriven "unregister_kv_cache_engine_driven_context" 15 1,
    PrepareStore "prepare_store" 16 2,
    CommitStore "commit_store" 17 3,
    PrepareRetrieve "prepare_retrieve" 18 2,
    CommitRetrieve "commit_retrieve" 19 2,
    Clear "clear" 20 1,
    ChunkSize "get_chunk_size" 21 0,
    Ping "ping" 22 1,
    ReportBlockAllocation "report_block_allocation" 23 3,
    Noop "noop" 24 0,
    RegisterRope "cb_register_rope" 25 8,
    UnregisterRope "cb_unregister_rope" 26 1,
    RetrievePreComputed "cb_retrieve_pre_computed" 27 5,
    UnifiedLookup "cb_unified_lookup" 28 2,
    PeerLookupAndLock "p2p_lookup_and_lock" 29 2,
    PeerQueryLookupResults "p2p_query_lookup_results" 30 1,
    PeerUnlockObjects "p2p_unlock_objects" 31 1,
    Experimental "get_experimental" 32 0,
    ProtocolHandshake "cb_protocol_handshake" 33 1,
    ReorderPlan "cb_reorder_plan" 0 3,
    SubscribeKvEvents "subscribe_kv_events" 0 4,
    ServerModuleCall "server_module_call" 0 1,
}

impl Operation {
    pub fn by_id(id: u64) -> Option<Operation> {
        let index = match id {
            1..=10 => id - 1,
            // 11 is retired, so everything after it stands one place earlier.
            12..=33 => id - 2,
            _ => return None,
        };
        Some(Operation::ALL[index as usize])
    }

    pub fn by_name(name: &[u8]) -> Option<Operation> {
        Operation::ALL.iter().copied().find(|operation| operation.name().as_bytes() == name)
    }
}

/// Reads the second frame of a request: a number in any int encoding, or a name. Everything else
/// names no operation; `true`, which the peer takes for 1, among it.
#[inline]
pub fn decode_operation(frame: &[u8]) -> Option<Operation> {
    let mut reader = Reader::new(frame);
    let operation = match reader.peek().ok()? {
        Kind::Int => Operation::by_id(reader.read_u64().ok()?)?,
        Kind::Text => Operation::by_name(reader.read_str_bytes().ok()?)?,
        _ => return None,
    };
    reader.finish().ok()?;
    Some(operation)
}

/// A client steers its stream with a message whose operation frame is empty (spec/wire §1.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamControl {
    /// One more chunk may be sent.
    Ack,
    Cancel,
}

/// Reads the frames behind the uid as stream control; None when they are a request.
pub fn decode_stream_control(operation: &[u8], payloads: &[&[u8]]) -> Option<StreamControl> {
    match (operation, payloads) {
        ([], [control]) if *control == b"ack" => Some(StreamControl::Ack),
        ([], [control]) if *control == b"cancel" => Some(StreamControl::Cancel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Writer;
    use alloc::vec::Vec;

    #[test]
    fn numbers_and_names_name_the_same_operation() {
        for operation in Operation::ALL {
            let mut by_name = Vec::new();
            Writer::new(&mut by_name).str(operation.name());
            assert_eq!(decode_operation(&by_name), Some(*operation));
            if let Some(id) = operation.legacy_id() {
                assert_eq!(decode_operation(&[id]), Some(*operation));
                assert_eq!(decode_operation(&[0xcc, id]), Some(*operation));
                assert_eq!(decode_operation(&[0xd1, 0, id]), Some(*operation));
            }
        }
        assert_eq!(Operation::ALL.len(), 35);
    }

    #[test]
    fn retired_unknown_and_garbage_name_nothing() {
        for id in [0, 11, 34, 127] {
            assert_eq!(decode_operation(&[id]), None, "{id}");
        }
        for frame in [
            &[][..],
            &[0xc0],
            &[0xc1],
            &[0xc2],
            &[0xff],
            &[0x18, 0],
            &[0xcd, 0],
            &[0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0],
            &[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0],
            &[0x91, 0x18],
            &[0xa4, b'N', b'O', b'O', b'P'],
            &[0xc4, 4, b'n', b'o', b'o', b'p'],
            &[0xa0],
        ] {
            assert_eq!(decode_operation(frame), None, "{frame:x?}");
        }
    }

    #[test]
    fn true_is_not_the_number_one() {
        assert_eq!(decode_operation(&[0xc3]), None);
    }
}
