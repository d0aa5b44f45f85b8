//! The desk's part for operators: what they may change while the server runs. Every ask has its
//! one answer at once; what it sets in motion may take longer.

use super::Engine;
use super::l1::{Found, Key, L1};
use super::scopes::ScopeKey;
use super::turn::Turn;
use crate::effect::{Effect, OperatorAnswer, Outbox};
use crate::event::{Named, OperatorAsk};
use crate::fact::{Abort, Fact, Removal};
use crate::names::{AdapterId, ObjectId, Operator, ScopeId};
use smallvec::SmallVec;

/// What becomes of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// Nothing is left of it, or will be in a moment.
    Gone,
    /// Somebody holds it.
    Held,
}

impl Engine {
    pub(super) fn operate(&mut self, operator: Operator, ask: OperatorAsk<'_>, out: &mut Outbox) {
        let answer = match ask {
            OperatorAsk::Clear { force } => {
                self.clear(force, out);
                OperatorAnswer::Done
            }
            OperatorAsk::QuotaSet { salt, bytes } => {
                if self.quota.set(salt, bytes) {
                    out.tell(Fact::QuotaChanged);
                    OperatorAnswer::Done
                } else {
                    OperatorAnswer::Full("QUOTAS_MAX")
                }
            }
            OperatorAsk::QuotaRemove { salt } => {
                let removed = self.quota.remove(salt);
                if removed {
                    out.tell(Fact::QuotaChanged);
                }
                OperatorAnswer::Removed(removed)
            }
            OperatorAsk::AdapterRemove { adapter } => match self.adapter_removed(adapter, out) {
                true => OperatorAnswer::Done,
                false => OperatorAnswer::Removed(false),
            },
            OperatorAsk::Delete { key, from_l1, adapter, force } => {
                self.delete(&key, from_l1.then_some(force), adapter, out)
            }
        };
        out.effects.push(Effect::OperatorAnswer { operator, answer });
    }

    pub(super) fn clear(&mut self, force: bool, out: &mut Outbox) {
        self.l1.clear(force);
        self.jobs.sweep();
        out.tell(Fact::Cleared { force });
    }

    /// What was there counts, in each tier by itself (spec/http-cli §2.3).
    fn delete(
        &mut self,
        key: &Named<'_>,
        l1_force: Option<bool>,
        adapter: Option<AdapterId>,
        out: &mut Outbox,
    ) -> OperatorAnswer {
        let (mut deleted, mut skipped) = (0, 0);
        let mut turn = Turn {
            now: self.now,
            config: &self.config,
            l1: &mut self.l1,
            alarms: &mut self.alarms,
            jobs: &mut self.jobs,
            work: &mut self.work,
            out,
        };
        let mut ends: SmallVec<[Deleted; 2]> = SmallVec::new();
        if let Some(force) = l1_force {
            for scope in scopes_of(turn.l1, key) {
                turn.spend_own(1);
                let key = Key { hash: key.hash, scope };
                ends.extend(delete_one(turn.l1, &key, force, turn.out));
            }
        }
        ends.extend(adapter.and_then(|id| self.adapters.delete_named(&mut turn, id, key)));
        for end in ends {
            deleted += u32::from(end == Deleted::Gone);
            skipped += u32::from(end == Deleted::Held);
        }
        OperatorAnswer::Deleted { deleted, skipped }
    }
}

/// L1's scopes under a name: one for each layout that has objects there, or had.
fn scopes_of(l1: &L1, key: &Named<'_>) -> SmallVec<[ScopeId; 1]> {
    let Some(tenant) = l1.scopes.tenant(key.model, key.salt) else { return SmallVec::new() };
    let is_of = |of: &ScopeKey| (of.tenant, of.rank, of.group) == (tenant, key.rank, key.group);
    l1.scopes.iter().filter(|(_, of)| is_of(of)).map(|(scope, _)| scope).collect()
}

/// None where there is no such object.
fn delete_one(l1: &mut L1, key: &Key, force: bool, out: &mut Outbox) -> Option<Deleted> {
    match l1.find(key) {
        Found::Absent => None,
        Found::Staged if force => {
            let index = l1.index_of(key).expect("it was just found");
            let (name, _) = l1.objects.at(index).expect("the index names live objects");
            let mark = out.mark();
            l1.condemn_staged(ObjectId(name), out);
            let keys = out.keys_since(mark);
            out.tell(Fact::WriteAborted { keys, why: Abort::ForcedClear });
            Some(Deleted::Gone)
        }
        Found::Staged => Some(Deleted::Held),
        Found::Resident(id) => {
            let is_held = l1.objects.find(id.0).is_some_and(|object| object.held);
            if is_held && !force {
                return Some(Deleted::Held);
            }
            l1.evict(id, Removal::Operator, out);
            Some(Deleted::Gone)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::event::{Ask, Event, Keys, Registration};
    use crate::names::{ChunkHash, Connection, Dtype, InstanceId, KvRank, Layout, Reply};
    use crate::slots::SlotName;
    use crate::time::Instant;

    struct Desk {
        engine: Engine,
        out: Outbox,
        asked: u32,
        /// Objects of which it was told that an operator took them away.
        removed: usize,
    }

    impl Desk {
        fn new() -> Desk {
            let engine = Engine::new(Config::default());
            let mut desk = Desk { engine, out: Outbox::default(), asked: 0, removed: 0 };
            desk.tell(Event::ArenaGrown { bytes: 64 << 20 });
            let dtype = Dtype::named("float16").expect("a known type");
            let layout = Layout { planes: 1, layers: 1, slots: 16, hidden: 128, dtype };
            let instance = InstanceId(1);
            let registration =
                Registration { instance, model: "m", world_size: 1, block_size: 16, layout };
            desk.ask(Ask::Register(registration));
            desk
        }

        fn tell(&mut self, event: Event<'_>) {
            self.out.clear();
            self.engine.handle(Instant::ZERO, event, &mut self.out);
        }

        fn ask(&mut self, ask: Ask<'_>) {
            let connection = Connection(SlotName { index: 1, generation: 0 });
            let request = SlotName { index: self.asked, generation: 0 };
            self.asked += 1;
            self.tell(Event::Asked { reply: Reply { connection, request }, ask });
        }

        /// Of all keys together: how many were deleted and how many skipped.
        fn delete(&mut self, keys: &[Named<'_>], force: bool) -> (u32, u32) {
            let mut sum = (0, 0);
            for key in keys {
                let ask = OperatorAsk::Delete { key: *key, from_l1: true, adapter: None, force };
                self.tell(Event::OperatorAsked { operator: Operator(7), ask });
                let mut answers = self.out.effects.iter().filter_map(|effect| match effect {
                    Effect::OperatorAnswer { answer, .. } => Some(*answer),
                    _ => None,
                });
                let Some(OperatorAnswer::Deleted { deleted, skipped }) = answers.next() else {
                    panic!("an operator gets an answer");
                };
                assert_eq!(answers.next(), None, "exactly one");
                sum = (sum.0 + deleted, sum.1 + skipped);
                let is_why = |why: &Removal| *why == Removal::Operator;
                self.removed += self
                    .out
                    .facts
                    .iter()
                    .filter(|fact| matches!(fact, Fact::Evicted { why, .. } if is_why(why)))
                    .count();
            }
            sum
        }
    }

    fn keys<'a>(request: &'a str, hashes: &'a [ChunkHash]) -> Keys<'a> {
        Keys {
            model: "m",
            salt: "",
            request,
            world_size: 1,
            worker: Some(0),
            readers: 1,
            first_chunk: 0,
            end_chunk: hashes.len() as u32,
            hashes,
        }
    }

    fn named(hash: ChunkHash) -> Named<'static> {
        let rank = KvRank::of(1, 0).expect("a world of one");
        Named { model: "m", salt: "", rank, group: 0, hash }
    }

    #[test]
    fn what_is_held_stays_unless_it_is_forced_and_absent_keys_do_not_count() {
        let mut desk = Desk::new();
        let hashes = [1, 2, 3].map(|byte| ChunkHash([byte; 32]));
        let instance = InstanceId(1);
        desk.ask(Ask::PrepareStore { instance, keys: keys("r", &hashes[..2]) });
        desk.ask(Ask::CommitStore { instance, keys: keys("r", &hashes[..2]), inline_bytes: 0 });
        // One is looked up, and so leased; one is being written; one is nowhere.
        let looked = Keys { worker: None, ..keys("look", &hashes[..1]) };
        desk.ask(Ask::Lookup { keys: looked });
        desk.ask(Ask::PrepareStore { instance, keys: keys("w", &hashes) });
        let all = [named(hashes[0]), named(hashes[1]), named(hashes[2]), named(ChunkHash([9; 32]))];
        let answer = desk.delete(&all, false);
        assert_eq!(answer, (1, 2));
        assert_eq!((desk.engine.status().objects, desk.engine.status().staged_objects), (2, 1));
        let answer = desk.delete(&all, true);
        assert_eq!(answer, (2, 0));
        assert_eq!(desk.removed, 2, "every removal says why; the third was only reserved");
        assert_eq!(desk.engine.status().staged_objects, 0);
        assert_eq!(desk.delete(&all, true), (0, 0));
    }

    #[test]
    fn names_of_another_tenant_rank_or_group_are_other_objects() {
        let mut desk = Desk::new();
        let hashes = [ChunkHash([1; 32])];
        let instance = InstanceId(1);
        desk.ask(Ask::PrepareStore { instance, keys: keys("r", &hashes) });
        desk.ask(Ask::CommitStore { instance, keys: keys("r", &hashes), inline_bytes: 0 });
        let right = named(hashes[0]);
        let rank = KvRank::of(2, 0).expect("a world of two");
        let wrong = [
            Named { model: "n", ..right },
            Named { salt: "s", ..right },
            Named { rank, ..right },
            Named { group: 1, ..right },
        ];
        let answer = desk.delete(&wrong, true);
        assert_eq!(answer, (0, 0));
        let answer = desk.delete(&[right], false);
        assert_eq!(answer, (1, 0));
    }
}
