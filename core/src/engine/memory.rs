//! What the engine's tables cost (design P3): every one by name, at its bound.

use crate::config::Config;
use crate::engine::alarms::Alarms;
use crate::engine::clients::Clients;
use crate::engine::copies::Copies;
use crate::engine::l1::L1;
use crate::engine::l1::leases::Cell;
use crate::engine::scopes::Scopes;
use crate::engine::sessions::Sessions;
use crate::slots::Slots;

/// One table and the most bytes that it takes.
pub type TableBytes = (&'static str, u64);

/// All tables of an engine with this configuration. Text that clients name (models, salts, request
/// ids) is counted at its bound.
pub fn table_bytes(config: &Config) -> [TableBytes; 9] {
    let limits = &config.limits;
    let timers = 2 * limits.sessions + limits.tickets + limits.waits + limits.instances + 2;
    [
        ("objects", L1::table_bytes(config)),
        ("eviction policy", L1::policy_bytes(config)),
        ("arena", L1::space_bytes(config)),
        ("names", Scopes::table_bytes()),
        ("sessions", Sessions::table_bytes(limits)),
        ("lease cells", (limits.lease_cells * size_of::<Cell>()) as u64),
        ("client copies", Copies::table_bytes(limits)),
        ("instances", Clients::table_bytes(limits)),
        ("alarms", Alarms::table_bytes(timers)),
    ]
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
