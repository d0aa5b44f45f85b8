//! The names behind tenant ids, and what each salt has accessed.
//!
//! The one invariant: a salt is there as long as a tenant bears it, and its id is never used for
//! another one.

use super::Text;
use crate::limits::{MODEL_BYTES_MAX, SALT_CHARS_MAX, TENANTS_MAX};
use crate::map::{Map, map_with_capacity};
use crate::names::TenantId;
use crate::slots::{SlotName, Slots};
use alloc::sync::Arc;

/// One salt, whatever the models it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SaltId(SlotName);

#[derive(Clone, Debug)]
struct Salt {
    name: Arc<str>,
    /// Tenants that bear it.
    tenants: u32,
    /// Chunk accesses so far (spec/metrics §3.4).
    accesses: u64,
}

#[derive(Clone, Debug)]
struct Tenant {
    model: Arc<str>,
    salt: SaltId,
}

/// The label values of one tenant.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) model: Text,
    pub(super) salt: Text,
}

impl Names {
    pub(super) fn labels(self) -> [(&'static str, Text); 2] {
        [("cache_salt", self.salt), ("model_name", self.model)]
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tenants {
    tenants: Map<TenantId, Tenant>,
    salts: Slots<Salt>,
    by_name: Map<Arc<str>, SaltId>,
    missing: bool,
}

/// Keys of a tenant without a name are not taken for another tenant's, nor for nobody's.
const UNKNOWN: Text = Text::Fixed("_unknown");

impl Tenants {
    pub(super) fn new(seed: u64) -> Tenants {
        Tenants {
            tenants: map_with_capacity(0, seed),
            salts: Slots::with_limit(TENANTS_MAX),
            by_name: map_with_capacity(0, seed),
            missing: false,
        }
    }

    /// The id means this pair from now on. A table that is full forgets nothing and learns
    /// nothing: the engine has no more tenants than this.
    pub(super) fn name(&mut self, tenant: TenantId, model: &Arc<str>, salt: &Arc<str>) {
        self.missing = false;
        if let Some(before) = self.tenants.remove(&tenant) {
            self.release(before.salt);
        }
        if self.tenants.len() == TENANTS_MAX {
            return;
        }
        let salt = match self.by_name.get(salt) {
            Some(id) => *id,
            None => {
                let new = Salt { name: salt.clone(), tenants: 0, accesses: 0 };
                let id = self.salts.insert(new).expect("there are no more salts than tenants");
                self.by_name.insert(salt.clone(), SaltId(id));
                SaltId(id)
            }
        };
        self.salt_mut(salt).tenants += 1;
        self.tenants.insert(tenant, Tenant { model: model.clone(), salt });
    }

    pub(super) fn find(&mut self, tenant: TenantId) -> Names {
        let Some(found) = self.tenants.get(&tenant) else {
            self.missing = true;
            return Names { model: UNKNOWN, salt: UNKNOWN };
        };
        let salt = self.salts.find(found.salt.0).expect("a tenant's salt is there");
        Names { model: Text::Shared(found.model.clone()), salt: Text::Shared(salt.name.clone()) }
    }

    pub(super) fn salt_of(&self, tenant: TenantId) -> Option<SaltId> {
        self.tenants.get(&tenant).map(|tenant| tenant.salt)
    }

    pub(super) fn salt_name(&self, salt: SaltId) -> Text {
        let salt = self.salts.find(salt.0).expect("a tenant's salt is there");
        Text::Shared(salt.name.clone())
    }

    /// Counts one access, and says how many there were.
    pub(super) fn access(&mut self, salt: SaltId) -> u64 {
        let salt = self.salt_mut(salt);
        salt.accesses += 1;
        salt.accesses
    }

    pub(super) fn names_are_missing(&self) -> bool {
        self.missing
    }

    /// Tables and texts, all names as long as they may be.
    pub(super) const fn memory_bytes_max() -> u64 {
        let texts = MODEL_BYTES_MAX + 4 * SALT_CHARS_MAX;
        let rows = size_of::<(TenantId, Tenant)>() + size_of::<(Arc<str>, SaltId)>();
        (TENANTS_MAX * (texts + 4 * rows + 2 * size_of::<Salt>())) as u64
    }

    fn release(&mut self, salt: SaltId) {
        let left = self.salt_mut(salt);
        left.tenants -= 1;
        if left.tenants > 0 {
            return;
        }
        let gone = self.salts.remove(salt.0).expect("a tenant's salt is there");
        self.by_name.remove(&gone.name);
    }

    fn salt_mut(&mut self, salt: SaltId) -> &mut Salt {
        self.salts.find_mut(salt.0).expect("a tenant's salt is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tenants: &mut Tenants, id: u32) -> (alloc::string::String, alloc::string::String) {
        let names = tenants.find(TenantId(id));
        (names.model.as_str().into(), names.salt.as_str().into())
    }

    #[test]
    fn a_lost_name_shows_until_it_is_told_again() {
        let mut tenants = Tenants::new(1);
        assert!(!tenants.names_are_missing());
        assert_eq!(texts(&mut tenants, 3), ("_unknown".into(), "_unknown".into()));
        assert!(tenants.names_are_missing());
        tenants.name(TenantId(3), &"m".into(), &"".into());
        assert_eq!(texts(&mut tenants, 3), ("m".into(), "".into()));
        assert!(!tenants.names_are_missing());
    }

    #[test]
    fn a_salt_ends_with_its_last_tenant() {
        let mut tenants = Tenants::new(1);
        tenants.name(TenantId(1), &"m".into(), &"s".into());
        tenants.name(TenantId(2), &"n".into(), &"s".into());
        let salt = tenants.salt_of(TenantId(1)).expect("it was named");
        assert_eq!(tenants.salt_of(TenantId(2)), Some(salt));
        assert_eq!(tenants.access(salt), 1);
        tenants.name(TenantId(1), &"m".into(), &"t".into());
        assert_eq!(tenants.access(salt), 2);
        tenants.name(TenantId(2), &"n".into(), &"t".into());
        tenants.name(TenantId(1), &"m".into(), &"s".into());
        let again = tenants.salt_of(TenantId(1)).expect("it was named");
        assert_ne!(again, salt);
        assert_eq!(tenants.access(again), 1);
    }

    #[test]
    fn more_tenants_than_the_bound_stay_unknown() {
        let mut tenants = Tenants::new(1);
        for id in 0..TENANTS_MAX as u32 + 1 {
            tenants.name(TenantId(id), &"m".into(), &alloc::format!("{id}").into());
        }
        assert_eq!(texts(&mut tenants, TENANTS_MAX as u32).0, "_unknown");
        tenants.name(TenantId(0), &"other".into(), &"new".into());
        assert_eq!(texts(&mut tenants, 0), ("other".into(), "new".into()));
    }
}
