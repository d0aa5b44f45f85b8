//! What the engine's tables cost (design P3): every one by name, at its bound.

use crate::config::{AdapterSetup, Config, Limits};
use crate::engine::adapters::Adapters;
use crate::engine::adapters::shelf::Shelf;
use crate::engine::alarms::Alarms;
use crate::engine::attachments::Attachments;
use crate::engine::clients::Clients;
use crate::engine::copies::Copies;
use crate::engine::demote::Demote;
use crate::engine::jobs::Jobs;
use crate::engine::l1::L1;
use crate::engine::l1::leases::Cell;
use crate::engine::layouts::Layouts;
use crate::engine::promote::Promote;
use crate::engine::quota::Quota;
use crate::engine::scopes::Scopes;
use crate::engine::sessions::Sessions;
use crate::engine::status::Refusals;
use crate::names::ChunkHash;
use crate::slots::Slots;

/// One table and the most bytes that it takes.
pub type TableBytes = (&'static str, u64);

/// All tables of an engine with this configuration. Text that clients name (models, salts, request
/// ids) is counted at its bound.
pub fn table_bytes(config: &Config) -> [TableBytes; 18] {
    let limits = &config.limits;
    let timers = timers(limits);
    [
        ("objects", L1::table_bytes(config)),
        ("eviction policy", L1::policy_bytes(config)),
        ("arena", L1::space_bytes(config)),
        ("names", Scopes::table_bytes()),
        ("sessions", Sessions::table_bytes(limits)),
        ("lease cells", (limits.lease_cells * size_of::<Cell>()) as u64),
        // A lookup that takes several turns keeps the hashes of what it is charged for: a cell is
        // at least one hash, or a row, which takes less.
        ("lookups under way", (limits.lease_cells * size_of::<ChunkHash>()) as u64),
        ("loads from lower tiers", Promote::table_bytes(limits)),
        ("stores to lower tiers", Demote::table_bytes(limits)),
        ("orders to lower tiers", Adapters::table_bytes(limits)),
        ("client copies", Copies::table_bytes(config)),
        ("instances", Clients::table_bytes(limits)),
        ("attached memory", Attachments::table_bytes(limits)),
        ("layouts", Layouts::table_bytes(limits)),
        ("quotas", Quota::table_bytes()),
        ("refusals", Refusals::table_bytes()),
        ("jobs", Jobs::table_bytes(limits)),
        ("alarms", Alarms::table_bytes(timers)),
    ]
}

/// Every owner's timers at their bounds.
pub(super) fn timers(limits: &Limits) -> usize {
    let clients = 2 * limits.sessions + limits.tickets + limits.waits + limits.instances;
    // An adapter has one for its next tries and one for its next trial.
    clients + limits.flights + limits.loads + 2 * crate::limits::ADAPTERS_MAX + 2
}

/// What one more lower tier takes when it joins: the table of what it holds, the order in which
/// that goes, and who waits to be stored there. It is given back when the tier has left.
pub fn adapter_bytes(limits: &Limits, setup: &AdapterSetup<'_>) -> u64 {
    Shelf::table_bytes(setup) + Demote::adapter_bytes(limits, setup)
}

/// A slot table at its bound.
pub(super) fn slots_bytes<T>(limit: usize) -> u64 {
    (limit * (Slots::<T>::ENTRY_BYTES + size_of::<u32>())) as u64
}

/// A hash map at its bound: hashbrown fills seven of eight places and adds one byte to each.
pub(super) fn map_bytes<K, V>(limit: usize) -> u64 {
    let places = (limit * 8 / 7 + 1).next_power_of_two();
    (places * (size_of::<(K, V)>() + 1)) as u64
}

/// What a shared text takes beside its bytes: two counts.
pub(super) const TEXT_BYTES: usize = 2 * size_of::<usize>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyKind;

    fn metadata_bytes(config: &Config) -> u64 {
        let of_objects = ["objects", "eviction policy", "arena"];
        let tables = table_bytes(config).into_iter();
        tables.filter(|(name, _)| of_objects.contains(name)).map(|(_, bytes)| bytes).sum()
    }

    /// Ten million objects of 512 bytes (design §8).
    #[test]
    #[cfg_attr(miri, ignore = "ten million entries take it hours")]
    fn p3_an_object_costs_at_most_256_bytes_beside_its_own() {
        const OBJECTS: usize = 10_000_000;
        let policies =
            [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::IsolatedLru, PolicyKind::Noop];
        for policy in policies {
            let config = Config {
                l1_bytes: (512 * OBJECTS as u64).next_multiple_of(64 << 20),
                l1_align_bytes: 512,
                l1_objects_max: OBJECTS,
                policy,
                ..Config::default()
            };
            let each = metadata_bytes(&config) / OBJECTS as u64;
            assert!(each <= 256, "{policy:?}: {each} bytes");
        }
    }

    /// The list is what the tables take, no less and not much more: a table of this size, made.
    #[test]
    fn p3_tables_have_their_size_from_the_start_and_it_is_the_one_listed() {
        let objects = 4096;
        let slots = Slots::<crate::engine::l1::objects::Object>::with_limit(objects);
        let listed = slots_bytes::<crate::engine::l1::objects::Object>(objects);
        assert_eq!(slots.memory_bytes(), listed);
        assert_eq!(crate::chains::Chains::with_limit(objects).memory_bytes(), {
            crate::chains::Chains::bytes(objects)
        });
    }
}
