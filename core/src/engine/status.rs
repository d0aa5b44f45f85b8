//! What `/status` shows: a plain copy of the engine's state, made into JSON elsewhere.

use crate::effect::Refusal;
use crate::engine::Engine;
use crate::engine::adapters::operator::{AdapterStatus, Page};
use crate::engine::clients::Mode;
use crate::limits;
use crate::names::{AdapterId, Attachment, InstanceId, Layout};
use crate::pages::Pages;
use crate::time::Instant;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// A registration that was refused, for the operator who wonders why nothing is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRegistration {
    pub at: Instant,
    pub instance: InstanceId,
    pub model: String,
    pub reason: Refusal,
}

/// The last refusals, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    last: VecDeque<RefusedRegistration>,
    total: u64,
}

impl Refusals {
    /// The last ones, model names included.
    pub(crate) fn table_bytes() -> u64 {
        let each = size_of::<RefusedRegistration>() + limits::MODEL_BYTES_MAX;
        (limits::REFUSALS_KEPT * each) as u64
    }

    pub fn keep(&mut self, at: Instant, instance: InstanceId, model: &str, reason: Refusal) {
        if self.last.len() == limits::REFUSALS_KEPT {
            self.last.pop_front();
        }
        let model = model.into();
        self.last.push_back(RefusedRegistration { at, instance, model, reason });
        self.total += 1;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceStatus {
    pub id: InstanceId,
    pub model: String,
    pub world_size: u32,
    pub block_size: u32,
    pub layout: Layout,
    /// How its memory is laid out, where the server copies.
    pub pages: Option<Pages>,
    pub mode: Mode,
    pub pinged: bool,
    pub silent_for: core::time::Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub objects: u64,
    pub staged_objects: u64,
    pub leased_objects: u64,
    pub condemned_objects: u64,
    pub staged_bytes: u64,
    pub resident_bytes: u64,
    pub condemned_bytes: u64,
    /// Staged or condemned bytes that clients hold for writing, and the most that they may.
    pub lent_bytes: u64,
    pub lent_bytes_max: u64,
    pub leased_bytes: u64,
    pub used_bytes: u64,
    pub total_bytes: u64,
    pub configured_bytes: u64,
    pub sessions: u64,
    pub active_prefetch_jobs: u64,
    pub parked_waits: u64,
    pub tickets: u64,
    pub jobs: u64,
    pub lease_units: u64,
    pub stale_endings: u64,
    pub evicted_objects: u64,
    pub instances: Vec<InstanceStatus>,
    pub refused_registrations: Vec<RefusedRegistration>,
    pub refused_registrations_total: u64,
    pub quotas: Vec<QuotaStatus>,
    /// Lower tiers, the preferred one first.
    pub adapters: Vec<AdapterStatus>,
    pub prefetches: PrefetchStatus,
}

/// Lookups that go on below L1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchStatus {
    /// They wait for their turn (`--l2-prefetch-max-in-flight`).
    pub waiting: u64,
    /// They wait for what adapters say of their keys.
    pub asking: u64,
    /// They wait for objects.
    pub loading: u64,
}

/// One tenant's limit below L1, and what it has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    pub salt: String,
    /// None: no limit was set.
    pub limit_bytes: Option<u64>,
    pub used_bytes: u64,
}

impl Engine {
    /// A copy of what an operator may see. Changes nothing.
    pub fn status(&self) -> Status {
        let bytes = self.l1.bytes();
        Status {
            objects: self.l1.objects_len() as u64,
            staged_objects: self.l1.staged as u64,
            leased_objects: self.l1.leased as u64,
            condemned_objects: self.l1.condemned as u64,
            staged_bytes: bytes.staged,
            resident_bytes: bytes.resident,
            condemned_bytes: bytes.condemned,
            lent_bytes: self.copies.lent_bytes,
            lent_bytes_max: self.config.lent_bytes_max(),
            leased_bytes: bytes.leased,
            used_bytes: self.l1.used_bytes(),
            total_bytes: self.l1.total_bytes(),
            configured_bytes: self.l1.configured_bytes(),
            sessions: self.sessions.len() as u64,
            active_prefetch_jobs: self.sessions.untaken,
            parked_waits: self.sessions.waits_len() as u64,
            tickets: self.copies.in_flight() as u64,
            jobs: self.jobs.len() as u64,
            lease_units: self.l1.lease_units(),
            stale_endings: self.copies.stale_endings
                + self.adapters.stale_endings
                + self.attachments.stale_endings,
            evicted_objects: self.l1.totals().evicted,
            instances: self.clients.iter().map(|instance| self.instance_status(instance)).collect(),
            refused_registrations: self.refusals.last.iter().cloned().collect(),
            refused_registrations_total: self.refusals.total,
            quotas: self.quotas(),
            adapters: self.adapters.statuses(&self.demote),
            prefetches: self.promote.status(),
        }
    }

    /// One tenant's limit and use, whether it has a limit or not.
    pub fn quota_of(&self, salt: &str) -> QuotaStatus {
        let limit_bytes = self.quota.find(salt);
        let used_bytes = self.adapters.bytes_by_salt(&self.l1).get(salt).copied();
        QuotaStatus { salt: salt.into(), limit_bytes, used_bytes: used_bytes.unwrap_or_default() }
    }

    /// The memory that an instance has registered; None where it has not, or is not there.
    pub fn attachment_of(&self, instance: InstanceId) -> Option<Attachment> {
        Some(self.clients.find(instance)?.memory?.attachment)
    }

    /// Every tenant that has a limit, for who wants no more than that.
    pub fn quotas(&self) -> Vec<QuotaStatus> {
        let used = self.adapters.bytes_by_salt(&self.l1);
        let each = self.quota.iter().map(|(salt, bytes)| QuotaStatus {
            salt: salt.into(),
            limit_bytes: Some(bytes),
            used_bytes: used.get(salt).copied().unwrap_or_default(),
        });
        each.collect()
    }

    /// The roster of lower tiers, for who wants no more than that.
    pub fn adapters_status(&self) -> Vec<AdapterStatus> {
        self.adapters.statuses(&self.demote)
    }

    /// Objects at rest in a lower tier, from place `from` on: `Adapters::page`.
    pub fn l2_page(
        &self,
        adapter: AdapterId,
        from_and_most: (u32, usize),
        model: Option<&str>,
    ) -> Option<Page> {
        self.adapters.page(adapter, from_and_most, model, &self.l1)
    }

    /// Lower tiers of which not all has been told yet: names that are missing are asked for.
    pub fn adapters_scanning(&self) -> usize {
        self.adapters.scanning()
    }

    fn instance_status(&self, instance: &crate::engine::clients::Instance) -> InstanceStatus {
        InstanceStatus {
            id: instance.id,
            model: String::from(&*instance.model),
            world_size: instance.world_size,
            block_size: instance.block_size,
            layout: instance.layout,
            pages: instance.memory.map(|memory| memory.pages),
            mode: instance.mode,
            pinged: instance.pinged,
            silent_for: self.now.since(instance.last_seen),
        }
    }
}
