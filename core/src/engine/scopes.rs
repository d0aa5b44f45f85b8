//! Interned names: tenants (model and salt) and scopes (everything of a key but its hash).
//!
//! A scope holds the layout, so objects of different shape or element type never share a key
//! (I-48). An id stays with its name while anything uses it; unused names are kept until the table
//! is full and then replaced, oldest first.

use crate::engine::memory::map_bytes;
use crate::fact::Fact;
use crate::limits;
use crate::names::{KvRank, Layout, ScopeId, TenantId};
use crate::{Map, map_with_capacity};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

#[derive(Clone, Debug, PartialEq, Eq)]
struct TenantKey {
    model: Arc<str>,
    salt: Arc<str>,
}

/// The same key, borrowed: a look-up allocates nothing.
struct TenantRef<'a> {
    model: &'a str,
    salt: &'a str,
}

impl Hash for TenantKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        TenantRef { model: &self.model, salt: &self.salt }.hash(state);
    }
}

impl Hash for TenantRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.model.hash(state);
        self.salt.hash(state);
    }
}

impl hashbrown::Equivalent<TenantKey> for TenantRef<'_> {
    fn equivalent(&self, key: &TenantKey) -> bool {
        *self.model == *key.model && *self.salt == *key.salt
    }
}

#[derive(Clone, Debug)]
struct Tenant {
    key: TenantKey,
    uses: u32,
    idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScopeKey {
    pub tenant: TenantId,
    pub rank: KvRank,
    pub group: u16,
    pub layout: Layout,
}

#[derive(Clone, Debug)]
struct Scope {
    key: ScopeKey,
    uses: u32,
    idle: bool,
}

#[derive(Clone, Debug)]
pub struct Scopes {
    tenants: Vec<Tenant>,
    tenant_ids: Map<TenantKey, TenantId>,
    idle_tenants: VecDeque<TenantId>,
    scopes: Vec<Scope>,
    scope_ids: Map<ScopeKey, ScopeId>,
    idle_scopes: VecDeque<ScopeId>,
    /// Ids without a name.
    free_scopes: Vec<ScopeId>,
}

impl Scopes {
    pub fn new(seed: u64) -> Scopes {
        Scopes {
            tenants: Vec::with_capacity(limits::TENANTS_MAX),
            tenant_ids: map_with_capacity(limits::TENANTS_MAX, seed),
            idle_tenants: VecDeque::with_capacity(limits::TENANTS_MAX),
            scopes: Vec::with_capacity(limits::SCOPES_MAX),
            scope_ids: map_with_capacity(limits::SCOPES_MAX, seed ^ 1),
            idle_scopes: VecDeque::with_capacity(limits::SCOPES_MAX),
            free_scopes: Vec::new(),
        }
    }

    /// All names at their bounds, texts included.
    pub(crate) fn table_bytes() -> u64 {
        let (tenants, scopes) = (limits::TENANTS_MAX, limits::SCOPES_MAX);
        let text = limits::MODEL_BYTES_MAX + 4 * limits::SALT_CHARS_MAX;
        let tenant = text + size_of::<Tenant>() + size_of::<TenantId>();
        let scope = size_of::<Scope>() + size_of::<ScopeId>();
        (tenants * tenant + scopes * scope) as u64
            + map_bytes::<TenantKey, TenantId>(tenants)
            + map_bytes::<ScopeKey, ScopeId>(scopes)
    }

    pub fn tenant(&self, model: &str, salt: &str) -> Option<TenantId> {
        self.tenant_ids.get(&TenantRef { model, salt }).copied()
    }

    /// The tenant's id, new where it has none yet. None when every id is in use.
    pub fn name_tenant(
        &mut self,
        model: &str,
        salt: &str,
        facts: &mut Vec<Fact>,
    ) -> Option<TenantId> {
        if let Some(tenant) = self.tenant(model, salt) {
            return Some(tenant);
        }
        let key = TenantKey { model: model.into(), salt: salt.into() };
        let fresh = Tenant { key: key.clone(), uses: 0, idle: false };
        let tenant = if self.tenants.len() < limits::TENANTS_MAX {
            self.tenants.push(fresh);
            TenantId(self.tenants.len() as u32 - 1)
        } else {
            let mut visits = IDLE_VISITS;
            let tenant =
                self.take_idle_tenant(&mut visits).or_else(|| self.free_tenant(&mut visits))?;
            self.tenant_ids.remove(&self.tenants[tenant.0 as usize].key);
            self.tenants[tenant.0 as usize] = fresh;
            tenant
        };
        facts.push(Fact::TenantNamed { tenant, model: key.model.clone(), salt: key.salt.clone() });
        self.tenant_ids.insert(key, tenant);
        self.park_tenant(tenant);
        Some(tenant)
    }

    pub fn scope(&self, key: &ScopeKey) -> Option<ScopeId> {
        self.scope_ids.get(key).copied()
    }

    /// The scope's id, new where it has none yet. None when every id is in use.
    pub fn name_scope(&mut self, key: ScopeKey) -> Option<ScopeId> {
        if let Some(scope) = self.scope(&key) {
            return Some(scope);
        }
        let fresh = Scope { key, uses: 0, idle: false };
        let scope = if let Some(scope) = self.free_scopes.pop() {
            self.scopes[scope.0 as usize] = fresh;
            scope
        } else if self.scopes.len() < limits::SCOPES_MAX {
            self.scopes.push(fresh);
            ScopeId(self.scopes.len() as u32 - 1)
        } else {
            let mut visits = IDLE_VISITS;
            self.drop_idle_scope(&mut visits)?;
            let scope = self.free_scopes.pop().expect("one was just dropped");
            self.scopes[scope.0 as usize] = fresh;
            scope
        };
        self.tenants[key.tenant.0 as usize].uses += 1;
        self.scope_ids.insert(key, scope);
        self.park_scope(scope);
        Some(scope)
    }

    /// An object lives in this scope, or a session speaks of it, from now on.
    pub fn retain(&mut self, scope: ScopeId) {
        self.scopes[scope.0 as usize].uses += 1;
    }

    pub fn release(&mut self, scope: ScopeId) {
        let entry = &mut self.scopes[scope.0 as usize];
        assert!(entry.uses > 0, "a scope is released once per user");
        entry.uses -= 1;
        if entry.uses == 0 {
            self.park_scope(scope);
        }
    }

    pub fn key(&self, scope: ScopeId) -> &ScopeKey {
        &self.scopes[scope.0 as usize].key
    }

    pub fn tenant_of(&self, scope: ScopeId) -> TenantId {
        self.scopes[scope.0 as usize].key.tenant
    }

    pub fn names_of(&self, tenant: TenantId) -> (&Arc<str>, &Arc<str>) {
        let key = &self.tenants[tenant.0 as usize].key;
        (&key.model, &key.salt)
    }

    /// Says every name again, for a listener that has lost some.
    pub fn retell(&self, facts: &mut Vec<Fact>) {
        for (index, tenant) in self.tenants.iter().enumerate() {
            facts.push(Fact::TenantNamed {
                tenant: TenantId(index as u32),
                model: tenant.key.model.clone(),
                salt: tenant.key.salt.clone(),
            });
        }
    }

    /// Every scope there is an id for, in the order of the ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ScopeId, &ScopeKey)> {
        self.scopes.iter().enumerate().map(|(at, scope)| (ScopeId(at as u32), &scope.key))
    }

    /// Objects and sessions per scope, for the audit.
    pub fn uses(&self, scope: ScopeId) -> u32 {
        self.scopes[scope.0 as usize].uses
    }

    /// Tenants and scopes that there are ids for, for the audit.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.tenants.len(), self.scopes.len())
    }

    /// Sessions and scopes of a tenant, for the audit.
    pub(crate) fn tenant_uses(&self, tenant: TenantId) -> u32 {
        self.tenants[tenant.0 as usize].uses
    }

    /// Whether this id has a name, for the audit.
    pub(crate) fn is_named(&self, scope: ScopeId) -> bool {
        self.scope_ids.get(self.key(scope)) == Some(&scope)
    }

    /// A session speaks of this tenant until it ends.
    pub fn retain_tenant(&mut self, tenant: TenantId) {
        self.tenants[tenant.0 as usize].uses += 1;
    }

    pub fn release_tenant(&mut self, tenant: TenantId) {
        let entry = &mut self.tenants[tenant.0 as usize];
        assert!(entry.uses > 0, "a tenant is released once per user");
        entry.uses -= 1;
        if entry.uses == 0 {
            self.park_tenant(tenant);
        }
    }

    fn park_tenant(&mut self, tenant: TenantId) {
        let entry = &mut self.tenants[tenant.0 as usize];
        if !entry.idle {
            entry.idle = true;
            self.idle_tenants.push_back(tenant);
        }
    }

    fn park_scope(&mut self, scope: ScopeId) {
        let entry = &mut self.scopes[scope.0 as usize];
        if !entry.idle {
            entry.idle = true;
            self.idle_scopes.push_back(scope);
        }
    }

    /// The queues may hold names that are in use again: those are dropped here and parked anew
    /// when their last user leaves. A request looks at `visits` of them at the most; the next one
    /// goes on from there.
    fn take_idle_tenant(&mut self, visits: &mut usize) -> Option<TenantId> {
        while *visits > 0 {
            *visits -= 1;
            let tenant = self.idle_tenants.pop_front()?;
            let entry = &mut self.tenants[tenant.0 as usize];
            entry.idle = false;
            if entry.uses == 0 {
                return Some(tenant);
            }
        }
        None
    }

    /// Takes the name of the oldest scope that nothing uses, and lets its tenant go.
    fn drop_idle_scope(&mut self, visits: &mut usize) -> Option<()> {
        while *visits > 0 {
            *visits -= 1;
            let scope = self.idle_scopes.pop_front()?;
            let entry = &mut self.scopes[scope.0 as usize];
            entry.idle = false;
            if entry.uses == 0 {
                let key = entry.key;
                self.scope_ids.remove(&key);
                self.free_scopes.push(scope);
                self.release_tenant(key.tenant);
                return Some(());
            }
        }
        None
    }

    /// A tenant that only unused scopes kept.
    fn free_tenant(&mut self, visits: &mut usize) -> Option<TenantId> {
        loop {
            self.drop_idle_scope(visits)?;
            if let Some(tenant) = self.take_idle_tenant(visits) {
                return Some(tenant);
            }
        }
    }
}

/// Parked names that one request looks at for one that nothing uses.
const IDLE_VISITS: usize = 2 * limits::TENANTS_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Dtype;

    fn key(tenant: TenantId) -> ScopeKey {
        let rank = KvRank::of(1, 0).expect("a world of one");
        let dtype = Dtype::named("float16").expect("a known type");
        let layout = Layout { planes: 2, layers: 1, slots: 16, hidden: 8, dtype };
        ScopeKey { tenant, rank, group: 0, layout }
    }

    /// Scopes that nothing uses once kept every tenant named for ever, so the server refused new
    /// salts after the 4096th.
    #[test]
    fn i48_unused_names_give_way_and_used_ones_stay() {
        let mut scopes = Scopes::new(1);
        let mut facts = Vec::new();
        let kept = scopes.name_tenant("m", "kept", &mut facts).expect("the table is empty");
        let used = scopes.name_scope(key(kept)).expect("the table is empty");
        scopes.retain(used);
        for salt in 0..2 * limits::TENANTS_MAX {
            let salt = alloc::format!("s{salt}");
            let tenant = scopes.name_tenant("m", &salt, &mut facts).expect("idle names give way");
            assert_ne!(tenant, kept);
            assert!(scopes.name_scope(key(tenant)).is_some_and(|scope| scope != used));
        }
        assert_eq!(scopes.tenant("m", "kept"), Some(kept));
        assert_eq!(scopes.scope(&key(kept)), Some(used));
        assert_eq!(scopes.tenant_of(used), kept);
        assert_eq!(scopes.tenant("m", "s0"), None);
    }
}
