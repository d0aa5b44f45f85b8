//! The configuration and what an event ends, in the words of the model.

use crate::model::{Arena, Geometry, Over, Rules};
use crate::transcript::Input;
use kvtide_core::config::{Config, PolicyKind, PoolKind, PrefetchPolicy, StorePolicy};
use kvtide_core::pages::Pages;
use kvtide_core::time::Duration;

/// What the promises depend on, of all that is configured.
pub(super) fn rules(config: &Config) -> Rules {
    let watermark = config.l1_bytes as u128 * config.watermark_ppm as u128 / 1_000_000;
    Rules {
        read_ttl: config.read_ttl,
        write_ttl: config.write_ttl,
        session_ttl: config.session_ttl,
        // As promised (design §7), whatever the engine takes it to be.
        linger: Duration::from_secs(5),
        reap_after: config.reap_after,
        registration_grace: config.registration_grace,
        is_shared: config.pool == PoolKind::Shared,
        lent_bytes_max: config.lent_bytes_max(),
        watermark_bytes: watermark as u64,
        is_lru: matches!(config.policy, PolicyKind::Lru | PolicyKind::IsolatedLru),
        evicts: config.policy != PolicyKind::Noop,
        arena: Arena::new(config.l1_bytes, config.l1_align_bytes),
        objects_max: config.l1_objects_max,
        sessions: config.limits.sessions,
        lease_cells: config.limits.lease_cells,
        instances: config.limits.instances,
        told: config.limits.told,
        copies: config.limits.tickets,
        retains: config.prefetch_policy == PrefetchPolicy::Retain,
        skips_l1: config.store_policy == StorePolicy::SkipL1,
        null_block: config.null_block,
        few_loads: config.limits.loads < 512 || config.limits.flights < 2_048,
    }
}

/// How pages make up objects.
pub(super) fn geometry(pages: &Pages) -> Geometry {
    Geometry {
        blocks: pages.blocks,
        per_chunk: pages.chunk_tokens / pages.tokens_per_block,
        per_object: pages.object_slots / pages.slots_per_block,
        tokens_per_block: pages.tokens_per_block,
    }
}

/// What an event says is over.
pub(super) fn over(input: &Input) -> Over {
    match input {
        Input::ConnectionEnded { connection } => Over { connection: Some(*connection), body: None },
        Input::ReceiveEnded { ticket, complete, .. } => {
            Over { connection: None, body: Some((*ticket, *complete)) }
        }
        // Nothing of a copy that is not whole is.
        Input::CopyEnded { ticket, whole } => {
            let complete = if *whole { u32::MAX } else { 0 };
            Over { connection: None, body: Some((*ticket, complete)) }
        }
        _ => Over::default(),
    }
}
