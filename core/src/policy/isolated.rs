//! LRU with an order per tenant beside the order over all of them.
//!
//! The peer keeps only the orders per tenant and its L1 loop fails for want of one (spec/storage
//! §3.1); here a pick without a tenant goes by the global order.
//!
//! Invariant: an object is in the list of exactly one tenant, the one it was admitted with, and
//! that list has the order of `order`.

use super::holds;
use super::order::{Order, RECENT};
use crate::limits::TENANTS_MAX;
use crate::lists::Lists;
use crate::names::TenantId;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Clone, Debug)]
pub(super) struct Isolated {
    pub(super) order: Order,
    tenants: Vec<u32>,
    lists: Lists,
}

impl Isolated {
    pub(super) fn new(objects_max: usize) -> Isolated {
        Isolated {
            order: Order::new(objects_max, 1),
            tenants: vec![0; objects_max],
            lists: Lists::new(TENANTS_MAX, objects_max),
        }
    }

    pub(super) fn push(&mut self, index: u32, tenant: TenantId) {
        assert!((tenant.0 as usize) < TENANTS_MAX, "tenant ids are interned below their bound");
        self.order.push(index, RECENT);
        self.tenants[index as usize] = tenant.0;
        self.lists.push_back(tenant.0, index);
    }

    pub(super) fn renew(&mut self, index: u32) {
        self.order.renew(index, RECENT);
        let tenant = self.tenants[index as usize];
        self.lists.remove(tenant, index);
        self.lists.push_back(tenant, index);
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.order.remove(index);
        self.lists.remove(self.tenants[index as usize], index);
    }

    pub(super) fn coldest_of(&self, tenant: TenantId, visits_max: usize) -> Option<u32> {
        if tenant.0 as usize >= TENANTS_MAX {
            return None;
        }
        self.lists.iter(tenant.0).take(visits_max).find(|index| !self.order.is_held(*index))
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.order.memory_bytes()
            + self.lists.memory_bytes()
            + (self.tenants.capacity() * size_of::<u32>()) as u64
    }

    pub(super) fn audit(&self) -> Result<(), &'static str> {
        self.order.audit()?;
        let mut listed = 0;
        for head in 0..self.tenants.len() as u32 {
            let tenant = self.tenants[head as usize];
            // Each list once, from its head.
            if !self.order.contains(head) || self.lists.head(tenant) != Some(head) {
                continue;
            }
            let mut before = None;
            for index in self.lists.iter(tenant) {
                holds(self.tenants[index as usize] == tenant, "I-38: an object has one tenant")?;
                holds(self.order.contains(index), "I-38: a listed object is tracked")?;
                let is_sorted = before.is_none_or(|older| self.order.is_older(older, index));
                holds(is_sorted, "I-36: a tenant's order is the global order")?;
                before = Some(index);
                listed += 1;
            }
        }
        holds(listed == self.order.len(), "I-38: every tracked object has a tenant")
    }
}
