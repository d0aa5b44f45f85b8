//! What operators see and take away of a lower tier. Looking changes nothing, and a page of a list
//! costs a bounded number of visits, however few of the objects are wanted.

use super::shelf::{Entry, Stage};
use super::{Adapter, Adapters, Counts, Known};
use crate::config::PolicyKind;
use crate::engine::demote::Demote;
use crate::engine::l1::L1;
use crate::engine::operator::Deleted;
use crate::engine::scopes::ScopeKey;
use crate::engine::turn::Turn;
use crate::event::Named;
use crate::fact::{AdapterState, StoreDrop};
use crate::limits;
use crate::names::{AdapterId, ChunkHash, KvRank, L2Key, Layout};
use crate::time::Instant;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// One lower tier, for `/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStatus {
    pub id: AdapterId,
    pub name: String,
    pub state: AdapterState,
    /// All of what lay in it when it joined has been told.
    pub is_scanned: bool,
    /// Names that are not in its table are asked for.
    pub is_asked: bool,
    pub policy: PolicyKind,
    pub watermark_ppm: u64,
    pub ratio_ppm: u64,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub objects: u64,
    pub objects_max: u64,
    /// Tenants that have something there.
    pub tenants: u64,
    pub stores_in_flight: u64,
    pub loads_in_flight: u64,
    /// Objects that wait to be stored here.
    pub stores_waiting: u64,
    /// Effects on their way, of every kind.
    pub flights: u64,
    pub care: AdapterCare,
}

/// How a lower tier does, and what it did not take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterCare {
    pub deletes_in_flight: u64,
    /// Bytes of L1 that loads are for, and that are kept for objects that wait to be stored.
    pub loading_bytes: u64,
    pub waiting_bytes: u64,
    /// Objects that were not stored, by reason; all reasons are listed.
    pub drops: Vec<(StoreDrop, u64)>,
    /// Objects that are stored when they come a second time.
    pub first_touches: u64,
    pub failures_in_a_row: u32,
    /// When a tripped adapter is tried again.
    pub tripped_until: Option<Instant>,
    /// What one load brings in a second, on average; 0 where none has ended yet.
    pub load_bytes_per_second: u64,
    pub counts: Counts,
}

/// One object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub model: Arc<str>,
    pub salt: Arc<str>,
    pub rank: KvRank,
    pub group: u16,
    pub hash: ChunkHash,
    pub bytes: u64,
}

/// A part of a list, and where the next one begins; None at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub objects: Vec<Listed>,
    pub next: Option<u32>,
}

impl Adapters {
    /// Everything that has joined and not left, in the order of the roster.
    pub fn statuses(&self, demote: &Demote) -> Vec<AdapterStatus> {
        let live = self.list.iter().filter(|adapter| adapter.state != AdapterState::Gone);
        live.zip(self.gauges(demote))
            .map(|(adapter, gauges)| AdapterStatus {
                id: adapter.id,
                name: String::from(&*adapter.name),
                state: adapter.state,
                is_scanned: adapter.is_scanned,
                is_asked: adapter.setup.is_shared,
                policy: adapter.setup.policy,
                watermark_ppm: adapter.setup.watermark_ppm,
                ratio_ppm: adapter.setup.ratio_ppm,
                capacity_bytes: adapter.setup.capacity_bytes,
                used_bytes: adapter.shelf.used_bytes,
                objects: adapter.shelf.len() as u64,
                objects_max: adapter.setup.objects_max.into(),
                tenants: adapter.shelf.by_tenant.len() as u64,
                stores_in_flight: adapter.stores.into(),
                loads_in_flight: adapter.loads.into(),
                stores_waiting: gauges.stores_waiting,
                flights: adapter.flights.into(),
                care: self.care(adapter, demote),
            })
            .collect()
    }

    fn care(&self, adapter: &Adapter, demote: &Demote) -> AdapterCare {
        let queue = demote.queue(adapter.id);
        AdapterCare {
            deletes_in_flight: adapter.deletes.into(),
            loading_bytes: adapter.loading_bytes,
            waiting_bytes: queue.charged_bytes,
            drops: StoreDrop::ALL.into_iter().zip(queue.drops).collect(),
            first_touches: queue.first_touches,
            failures_in_a_row: adapter.health.failures,
            tripped_until: adapter.health.until,
            load_bytes_per_second: self.load_bytes_per_second(adapter.id),
            counts: adapter.counts,
        }
    }

    /// Adapters of which not all has been told yet.
    pub fn scanning(&self) -> usize {
        let live = self.list.iter().filter(|adapter| adapter.state != AdapterState::Gone);
        live.filter(|adapter| !adapter.is_scanned).count()
    }

    /// Bytes at rest of each salt, over all adapters and models.
    pub fn bytes_by_salt(&self, l1: &L1) -> BTreeMap<Arc<str>, u64> {
        let mut bytes = BTreeMap::new();
        for (tenant, share) in self.list.iter().flat_map(|adapter| &adapter.shelf.by_tenant) {
            let (_, salt) = l1.scopes.names_of(*tenant);
            *bytes.entry(salt.clone()).or_default() += share.bytes;
        }
        bytes
    }

    /// Objects at rest from place `from` on: at most `most`, of one model where it is given. What
    /// is there from the first page to the last is on exactly one of them. None for an adapter
    /// that is not there.
    pub fn page(
        &self,
        id: AdapterId,
        (from, most): (u32, usize),
        model: Option<&str>,
        l1: &L1,
    ) -> Option<Page> {
        let entries = &self.find(id)?.shelf.entries;
        let end = entries.high_water();
        let mut page = Page::default();
        let mut at = from;
        let last = end.min(from.saturating_add(PAGE_VISITS_MAX));
        while at < last && page.objects.len() < most {
            if let Some((_, entry)) = entries.at(at)
                && entry.stage == Stage::Stored
            {
                let found = listed(entry, l1);
                let is_wanted = model.is_none_or(|wanted| *found.model == *wanted);
                page.objects.extend(is_wanted.then_some(found));
            }
            at += 1;
        }
        page.next = (at < end).then_some(at);
        Some(page)
    }

    /// Takes an object away. None where it is known not to be there. One that is being written is
    /// held, and so is everything in an adapter that does not serve: it cannot go now.
    pub(crate) fn delete_named(
        &mut self,
        turn: &mut Turn<'_>,
        id: AdapterId,
        key: &Named<'_>,
    ) -> Option<Deleted> {
        let adapter = self.find(id)?;
        let knows_all = adapter.is_scanned && !adapter.setup.is_shared;
        let serves = adapter.serves();
        let key = name(turn, key, knows_all)?;
        let entry = match self.known(id, &key) {
            Known::Here { entry, .. } => entry,
            Known::Absent => {
                let (_, found) = self.get(id).shelf.find(&key)?;
                return Some(match found.stage {
                    Stage::Deleting(_) => Deleted::Gone,
                    Stage::Storing | Stage::Stored => Deleted::Held,
                });
            }
            // It may be at rest under this name all the same, and how large it is does not matter.
            Known::Unknown if serves => {
                let scopes = &mut turn.l1.scopes;
                self.get_mut(id).shelf.enter(key, 0, None, Stage::Stored, scopes)?
            }
            Known::Unknown => return Some(Deleted::Held),
        };
        Some(match self.take_away(turn, id, entry) {
            true => Deleted::Gone,
            false => Deleted::Held,
        })
    }
}

/// What a lower tier knows a name by. None where it has no name yet and none is wanted, or there is
/// no room for one.
fn name(turn: &mut Turn<'_>, key: &Named<'_>, is_known: bool) -> Option<L2Key> {
    let scopes = &mut turn.l1.scopes;
    let tenant = match scopes.tenant(key.model, key.salt) {
        Some(tenant) => tenant,
        None if is_known => return None,
        None => scopes.name_tenant(key.model, key.salt, &mut turn.out.facts)?,
    };
    let of = ScopeKey { tenant, rank: key.rank, group: key.group, layout: Layout::UNKNOWN };
    let scope = match scopes.scope(&of) {
        Some(scope) => scope,
        None if is_known => return None,
        None => scopes.name_scope(of)?,
    };
    Some(L2Key { hash: key.hash, scope })
}

fn listed(entry: &Entry, l1: &L1) -> Listed {
    let of = l1.scopes.key(entry.key.scope);
    let (model, salt) = l1.scopes.names_of(of.tenant);
    Listed {
        model: model.clone(),
        salt: salt.clone(),
        rank: of.rank,
        group: of.group,
        hash: entry.key.hash,
        bytes: entry.bytes,
    }
}

/// Places that one page looks at: many more than it can show, and still no long turn.
const PAGE_VISITS_MAX: u32 = 16 * limits::WORK_UNITS as u32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AdapterSetup, Config};
    use crate::effect::{Effect, OperatorAnswer, Outbox};
    use crate::engine::Engine;
    use crate::event::{DeleteOutcome, Event, OperatorAsk};
    use crate::fact::{Fact, L2Removal};
    use crate::names::{Operator, Ticket};
    use crate::slots::SlotName;
    use crate::time::{Duration, Instant};

    const SETUP: AdapterSetup<'static> = AdapterSetup {
        name: "mock",
        is_shared: false,
        keeps_data: true,
        capacity_bytes: 1 << 30,
        objects_max: 256,
        charge_bytes: 1,
        policy: PolicyKind::Lru,
        watermark_ppm: 800_000,
        ratio_ppm: 200_000,
        stores_max: 8,
        loads_max: 8,
        probe_deadline: Duration::from_secs(1),
        load_deadline: Duration::from_secs(1),
        store_deadline: Duration::from_secs(1),
        on_second_touch: false,
        write_bytes_per_second: 0,
        write_bytes_per_day: 0,
        scrub_bytes_per_second: 0,
        verify: true,
    };
    const FIRST: AdapterId = AdapterId(0);

    fn named(model: &'static str, byte: u8) -> Named<'static> {
        let rank = KvRank::of(1, 0).expect("a world of one");
        Named { model, salt: "s", rank, group: 0, hash: ChunkHash([byte; 32]) }
    }

    /// An engine with one adapter that holds objects of two models in turn.
    fn engine(objects: u8) -> (Engine, Outbox) {
        let (mut engine, mut out) = (Engine::new(Config::default()), Outbox::default());
        let added = Event::AdapterAdded { adapter: FIRST, setup: SETUP };
        engine.handle(Instant::ZERO, added, &mut out);
        for byte in 0..objects {
            let model = if byte.is_multiple_of(2) { "even" } else { "odd" };
            let scopes = &mut engine.l1.scopes;
            let tenant = scopes.name_tenant(model, "s", &mut out.facts).expect("there is room");
            let rank = KvRank::of(1, 0).expect("a world of one");
            let of = ScopeKey { tenant, rank, group: 0, layout: Layout::UNKNOWN };
            let scope = scopes.name_scope(of).expect("there is room");
            let key = L2Key { hash: ChunkHash([byte; 32]), scope };
            let shelf = &mut engine.adapters.get_mut(FIRST).shelf;
            shelf.admit(key, 100, None, scopes).expect("there is room");
        }
        out.clear();
        (engine, out)
    }

    /// How many were deleted and how many skipped; the orders are left in `out`.
    fn delete(engine: &mut Engine, keys: &[Named<'_>], out: &mut Outbox) -> (u32, u32) {
        out.clear();
        let mut sum = (0, 0);
        for key in keys {
            let (key, adapter) = (*key, Some(FIRST));
            let ask = OperatorAsk::Delete { key, from_l1: false, adapter, force: false };
            engine.handle(Instant::ZERO, Event::OperatorAsked { operator: Operator(1), ask }, out);
            let answers = out.effects.iter().rev();
            let mut answers = answers.filter_map(|effect| match effect {
                Effect::OperatorAnswer { answer, .. } => Some(*answer),
                _ => None,
            });
            let Some(OperatorAnswer::Deleted { deleted, skipped }) = answers.next() else {
                panic!("an operator gets an answer");
            };
            sum = (sum.0 + deleted, sum.1 + skipped);
        }
        sum
    }

    #[test]
    fn every_object_is_on_exactly_one_page() {
        let (engine, _) = engine(11);
        let (mut from, mut found) = (0, Vec::new());
        for _ in 0..4 {
            let page = engine.l2_page(FIRST, (from, 3), None).expect("the adapter is there");
            assert!(page.objects.len() <= 3);
            found.extend(page.objects.iter().map(|object| object.hash.0[0]));
            let Some(next) = page.next else { break };
            from = next;
        }
        assert_eq!(found, (0..11).collect::<Vec<u8>>());
        let odd = engine.l2_page(FIRST, (0, 64), Some("odd")).expect("the adapter is there");
        assert_eq!((odd.objects.len(), odd.next), (5, None));
        assert!(odd.objects.iter().all(|object| &*object.model == "odd" && object.bytes == 100));
        let beyond = engine.l2_page(FIRST, (u32::MAX, 3), None).expect("any token is safe");
        assert_eq!((beyond.objects.len(), beyond.next), (0, None));
        assert_eq!(engine.l2_page(AdapterId(1), (0, 3), None), None);
    }

    #[test]
    fn what_tenants_use_is_told_by_salt() {
        let (engine, _) = engine(3);
        assert_eq!(engine.quota_of("s").used_bytes, 300);
        assert_eq!(engine.quota_of("t").used_bytes, 0);
        assert_eq!((engine.adapters_scanning(), engine.status().adapters[0].objects), (1, 3));
    }

    fn orders(out: &Outbox) -> Vec<Ticket> {
        let each = out.effects.iter().filter_map(|effect| match effect {
            Effect::DeleteObject { ticket, .. } => Some(*ticket),
            _ => None,
        });
        each.collect()
    }

    fn entry(engine: &Engine, key: &Named<'_>) -> SlotName {
        let tenant = engine.l1.scopes.tenant(key.model, key.salt).expect("it was named");
        let of = ScopeKey { tenant, rank: key.rank, group: 0, layout: Layout::UNKNOWN };
        let scope = engine.l1.scopes.scope(&of).expect("it was named");
        let shelf = &engine.adapters.get(FIRST).shelf;
        shelf.find(&L2Key { hash: key.hash, scope }).expect("it is there").0
    }

    fn ended(engine: &mut Engine, ticket: Ticket, out: &mut Outbox) {
        out.clear();
        let event = Event::DeleteEnded { ticket, outcome: DeleteOutcome::Deleted };
        engine.handle(Instant::ZERO, event, out);
    }

    #[test]
    fn a_delete_is_ordered_once_and_waits_for_who_reads() {
        let (mut engine, mut out) = engine(2);
        let (key, read) = (named("even", 0), named("odd", 1));
        let held = entry(&engine, &read);
        engine.adapters.hold(FIRST, held);
        assert_eq!(delete(&mut engine, &[key, read], &mut out), (2, 0));
        let first = orders(&out);
        assert_eq!(first.len(), 1, "the other one is still being read");
        assert_eq!(delete(&mut engine, &[key], &mut out), (1, 0));
        assert!(orders(&out).is_empty(), "it is on its way out already");
        ended(&mut engine, first[0], &mut out);
        let is_told =
            |fact: &Fact| matches!(fact, Fact::L2Removed { why: L2Removal::Operator, .. });
        assert!(out.facts.iter().any(is_told), "every removal says why");
        assert!(orders(&out).is_empty(), "it is read still");
        engine.adapters.unhold(FIRST, held);
        out.clear();
        engine.handle(Instant::ZERO + Duration::from_secs(1), Event::Tick, &mut out);
        assert_eq!(orders(&out).len(), 1);
        assert_eq!(engine.audit(), Ok(()));
    }

    #[test]
    fn more_than_can_be_on_their_way_at_once_follow_one_another() {
        let (mut engine, mut out) = engine(200);
        let keys: Vec<Named<'_>> = (0..200_u8)
            .map(|byte| named(if byte.is_multiple_of(2) { "even" } else { "odd" }, byte))
            .collect();
        assert_eq!(delete(&mut engine, &keys, &mut out), (200, 0));
        let mut open = orders(&out);
        assert_eq!(open.len(), limits::DELETES_MAX as usize);
        let mut gone = 0;
        while let Some(ticket) = open.pop() {
            ended(&mut engine, ticket, &mut out);
            open.extend(orders(&out));
            gone += 1;
        }
        assert_eq!((gone, engine.status().adapters[0].objects), (200, 0));
        assert_eq!(engine.audit(), Ok(()));
    }

    #[test]
    fn a_name_that_is_not_known_is_sent_on_only_where_it_may_be_at_rest() {
        let (mut engine, mut out) = engine(0);
        let answer = delete(&mut engine, &[named("other", 7)], &mut out);
        assert_eq!(answer, (1, 0), "not scanned yet");
        engine.adapters.get_mut(FIRST).is_scanned = true;
        let answer = delete(&mut engine, &[named("third", 7)], &mut out);
        assert_eq!(answer, (0, 0));
        assert_eq!(out.effects.len(), 1, "nothing but the answer");
        assert_eq!(engine.l1.scopes.tenant("third", "s"), None, "no name is made for nothing");
    }
}
