//! Eviction orders against lists that are searched from end to end.

use kvtide_core::config::PolicyKind;
use kvtide_core::names::{ChunkHash, ScopeId, TenantId};
use kvtide_core::policy::{Departure, Policy, PolicyKey};
use kvtide_core::rng::Rng;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Few objects, so that a list of operations goes through the ring many times.
const OBJECTS: u32 = 12;
/// More keys than objects, so that ARC has ghosts and sees them again.
const KEYS: u8 = 30;
const TENANTS: u32 = 3;

#[derive(Clone, Copy, Debug)]
enum Op {
    Reserve {
        key: u8,
    },
    Admit {
        key: u8,
    },
    Commit {
        nth: usize,
    },
    Touch {
        index: u32,
    },
    Hold {
        nth: usize,
    },
    Unhold {
        nth: usize,
    },
    Forget {
        nth: usize,
    },
    /// Evict the first in order that is not held.
    Evict,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let nth = 0..100usize;
    let op = prop_oneof![
        6 => (0..KEYS).prop_map(|key| Op::Reserve { key }),
        2 => (0..KEYS).prop_map(|key| Op::Admit { key }),
        4 => nth.clone().prop_map(|nth| Op::Commit { nth }),
        8 => (0..OBJECTS).prop_map(|index| Op::Touch { index }),
        3 => nth.clone().prop_map(|nth| Op::Hold { nth }),
        3 => nth.clone().prop_map(|nth| Op::Unhold { nth }),
        1 => nth.prop_map(|nth| Op::Forget { nth }),
        4 => Just(Op::Evict),
    ];
    proptest::collection::vec(op, 1..400)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 256,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

fn key(number: u8) -> PolicyKey {
    let tenant = TenantId(number as u32 % TENANTS);
    PolicyKey { scope: ScopeId(number as u32 % 2), hash: ChunkHash([number; 32]), tenant }
}

/// The policy's whole order, as an engine walks it.
fn walk(policy: &Policy) -> Vec<u32> {
    std::iter::successors(policy.coldest(), |index| policy.next_after(*index)).collect()
}

/// What all models share: which object is what.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Object {
    index: u32,
    key: u8,
    is_held: bool,
    is_pending: bool,
}

trait Order {
    fn reserve(&mut self, object: Object);
    fn admit(&mut self, object: Object);
    fn commit(&mut self, index: u32);
    fn touch(&mut self, index: u32);
    fn remove(&mut self, index: u32, how: Departure);
    /// Oldest first within a list; in the order in which it would be evicted.
    fn objects(&self) -> Vec<Object>;
    fn find(&mut self, index: u32) -> Option<&mut Object>;
    fn check(&self, policy: &Policy);
}

fn apply(model: &mut impl Order, policy: &mut Policy, op: Op) {
    let objects = model.objects();
    let nth = |nth: usize| objects.get(nth % objects.len().max(1)).copied();
    match op {
        Op::Reserve { key: number } | Op::Admit { key: number } => {
            let mut indices = 0..OBJECTS;
            let free = indices.find(|index| objects.iter().all(|object| object.index != *index));
            let is_there = objects.iter().any(|object| object.key == number);
            let (Some(index), false) = (free, is_there) else { return };
            let is_pending = matches!(op, Op::Reserve { .. });
            let object = Object { index, key: number, is_held: false, is_pending };
            if is_pending {
                model.reserve(object);
                policy.reserve(index, &key(number));
            } else {
                model.admit(object);
                policy.admit(index, &key(number));
            }
        }
        Op::Commit { nth: at } => {
            if let Some(object) = nth(at) {
                model.commit(object.index);
                policy.commit(object.index);
            }
        }
        Op::Touch { index } => {
            model.touch(index);
            policy.touch(index);
        }
        Op::Hold { nth: at } => {
            if let Some(object) = nth(at) {
                model.find(object.index).expect("it is there").is_held = true;
                policy.hold(object.index);
            }
        }
        Op::Unhold { nth: at } => {
            if let Some(object) = nth(at) {
                model.find(object.index).expect("it is there").is_held = false;
                policy.unhold(object.index);
            }
        }
        Op::Forget { nth: at } => {
            if let Some(object) = nth(at) {
                model.remove(object.index, Departure::Forgotten);
                policy.remove(object.index, Departure::Forgotten);
            }
        }
        Op::Evict => {
            let first = objects.iter().find(|object| !object.is_held).map(|object| object.index);
            assert_eq!(policy.coldest(), first);
            if let Some(index) = first {
                model.remove(index, Departure::Evicted);
                policy.remove(index, Departure::Evicted);
            }
        }
    }
}

/// I-35: the walk is the model's order without the held. I-38: exactly these are tracked.
fn compare(model: &impl Order, policy: &Policy) {
    assert_eq!(policy.audit(), Ok(()));
    let objects = model.objects();
    let eligible: Vec<u32> =
        objects.iter().filter(|object| !object.is_held).map(|object| object.index).collect();
    assert_eq!(walk(policy), eligible);
    assert_eq!(policy.len(), objects.len());
    for index in 0..OBJECTS {
        let is_tracked = objects.iter().any(|object| object.index == index);
        assert_eq!(policy.contains(index), is_tracked);
    }
    model.check(policy);
}

/// One list, oldest first.
#[derive(Default)]
struct NaiveLru(Vec<Object>);

impl NaiveLru {
    fn renew(&mut self, index: u32) {
        if let Some(at) = self.0.iter().position(|object| object.index == index) {
            let object = self.0.remove(at);
            self.0.push(object);
        }
    }
}

impl Order for NaiveLru {
    fn reserve(&mut self, object: Object) {
        self.0.push(object);
    }

    fn admit(&mut self, object: Object) {
        self.0.push(object);
    }

    fn commit(&mut self, index: u32) {
        self.renew(index);
    }

    fn touch(&mut self, index: u32) {
        self.renew(index);
    }

    fn remove(&mut self, index: u32, _how: Departure) {
        self.0.retain(|object| object.index != index);
    }

    fn objects(&self) -> Vec<Object> {
        self.0.clone()
    }

    fn find(&mut self, index: u32) -> Option<&mut Object> {
        self.0.iter_mut().find(|object| object.index == index)
    }

    fn check(&self, policy: &Policy) {
        for tenant in (0..TENANTS).map(TenantId) {
            let mut of_tenant = self.0.iter().filter(|object| key(object.key).tenant == tenant);
            let first = of_tenant.find(|object| !object.is_held).map(|object| object.index);
            match policy {
                Policy::IsolatedLru(_) => assert_eq!(policy.coldest_of(tenant, 100), first),
                _ => assert_eq!(policy.coldest_of(tenant, 100), None),
            }
        }
        for pair in self.0.windows(2) {
            assert!(policy.is_older(pair[0].index, pair[1].index));
            assert!(!policy.is_older(pair[1].index, pair[0].index));
        }
    }
}

/// ARC from the table of spec/storage §3.2, with lists of objects and of keys.
#[derive(Default)]
struct NaiveArc {
    t1: Vec<Object>,
    t2: Vec<Object>,
    b1: Vec<u8>,
    b2: Vec<u8>,
    p_ppm: u64,
    cap: usize,
}

impl NaiveArc {
    /// True when the key was a ghost.
    fn ghost_hit(&mut self, key: u8) -> bool {
        let (b1, b2) = (self.b1.len() as u64, self.b2.len() as u64);
        if self.b1.contains(&key) {
            let up = (b2 * 1_000_000 / b1).max(1_000_000);
            self.p_ppm = (self.p_ppm + up).min(self.cap as u64 * 1_000_000);
            self.b1.retain(|ghost| *ghost != key);
            true
        } else if self.b2.contains(&key) {
            let down = (b1 * 1_000_000 / b2).max(1_000_000);
            self.p_ppm -= down.min(self.p_ppm);
            self.b2.retain(|ghost| *ghost != key);
            true
        } else {
            false
        }
    }

    fn make_frequent(&mut self, index: u32) {
        for list in 0..2 {
            let from = if list == 0 { &mut self.t1 } else { &mut self.t2 };
            if let Some(at) = from.iter().position(|object| object.index == index) {
                let object = from.remove(at);
                self.t2.push(object);
                return;
            }
        }
    }

    fn trim(&mut self) {
        self.cap = self.cap.max(self.t1.len() + self.t2.len());
        while self.t1.len() + self.b1.len() > self.cap && !self.b1.is_empty() {
            self.b1.remove(0);
        }
        while self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() > 2 * self.cap {
            let list = if self.b2.is_empty() { &mut self.b1 } else { &mut self.b2 };
            list.remove(0);
        }
    }
}

impl Order for NaiveArc {
    fn reserve(&mut self, object: Object) {
        self.ghost_hit(object.key);
        self.t1.push(object);
        self.trim();
    }

    fn admit(&mut self, object: Object) {
        match self.ghost_hit(object.key) {
            true => self.t2.push(object),
            false => self.t1.push(object),
        }
        self.trim();
    }

    fn commit(&mut self, index: u32) {
        let object = self.find(index).expect("it is there");
        match std::mem::take(&mut object.is_pending) {
            true => {}
            false => self.make_frequent(index),
        }
    }

    fn touch(&mut self, index: u32) {
        self.make_frequent(index);
    }

    fn remove(&mut self, index: u32, how: Departure) {
        let in_t1 = self.t1.iter().any(|object| object.index == index);
        let (list, ghosts) =
            if in_t1 { (&mut self.t1, &mut self.b1) } else { (&mut self.t2, &mut self.b2) };
        let at = list.iter().position(|object| object.index == index).expect("it is there");
        let object = list.remove(at);
        if how == Departure::Evicted {
            ghosts.push(object.key);
        }
        self.trim();
    }

    fn objects(&self) -> Vec<Object> {
        let (first, second) = match self.t1.len() as u64 >= self.p_ppm / 1_000_000 {
            true => (&self.t1, &self.t2),
            false => (&self.t2, &self.t1),
        };
        first.iter().chain(second).copied().collect()
    }

    fn find(&mut self, index: u32) -> Option<&mut Object> {
        self.t1.iter_mut().chain(&mut self.t2).find(|object| object.index == index)
    }

    fn check(&self, policy: &Policy) {
        assert!(self.t1.len() + self.b1.len() <= self.cap);
        assert_eq!(policy.coldest_of(TenantId(0), 100), None);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn i36_lru_equals_a_naive_list(ops in ops()) {
        let mut policy = Policy::new(PolicyKind::Lru, OBJECTS as usize, 1);
        let mut model = NaiveLru::default();
        for op in ops {
            apply(&mut model, &mut policy, op);
            compare(&model, &policy);
        }
    }

    #[test]
    fn i36_isolated_lru_equals_a_naive_list_per_tenant(ops in ops()) {
        let mut policy = Policy::new(PolicyKind::IsolatedLru, OBJECTS as usize, 1);
        let mut model = NaiveLru::default();
        for op in ops {
            apply(&mut model, &mut policy, op);
            compare(&model, &policy);
        }
    }

    #[test]
    fn i38_arc_equals_naive_lists(ops in ops()) {
        let mut policy = Policy::new(PolicyKind::Arc, OBJECTS as usize, 1);
        let mut model = NaiveArc::default();
        for op in ops {
            apply(&mut model, &mut policy, op);
            compare(&model, &policy);
        }
    }

    #[test]
    fn noop_tracks_nothing_and_picks_nothing(ops in ops()) {
        let mut policy = Policy::new(PolicyKind::Noop, OBJECTS as usize, 1);
        let mut model = NaiveLru::default();
        for op in ops.into_iter().filter(|op| !matches!(op, Op::Evict)) {
            apply(&mut model, &mut policy, op);
            prop_assert_eq!(policy.coldest(), None);
            prop_assert_eq!(policy.len(), 0);
        }
    }
}

/// The caller walks a request from its last chunk to its first, so the tail goes first.
#[test]
fn i36_last_chunk_of_a_request_is_the_oldest() {
    for kind in [PolicyKind::Lru, PolicyKind::IsolatedLru] {
        let mut policy = Policy::new(kind, 8, 1);
        let requests = [0..4u32, 4..8u32];
        for request in requests.clone() {
            request.clone().rev().for_each(|index| policy.reserve(index, &key(index as u8)));
            request.rev().for_each(|index| policy.commit(index));
        }
        assert_eq!(walk(&policy), [3, 2, 1, 0, 7, 6, 5, 4]);
        requests[0].clone().rev().for_each(|index| policy.touch(index));
        assert_eq!(walk(&policy), [7, 6, 5, 4, 3, 2, 1, 0]);
    }
}

/// A lease is not a use: when it ends, the object is where it was.
#[test]
fn i36_the_end_of_a_hold_is_not_a_touch() {
    let mut policy = Policy::new(PolicyKind::Lru, 8, 1);
    (0..8).for_each(|index| policy.reserve(index, &key(index as u8)));
    (0..6).for_each(|index| policy.hold(index));
    assert_eq!(walk(&policy), [6, 7]);
    policy.unhold(3);
    assert_eq!(walk(&policy), [3, 6, 7]);
    policy.unhold(1);
    assert_eq!(walk(&policy), [1, 3, 6, 7]);
    policy.touch(0);
    policy.unhold(0);
    assert_eq!(walk(&policy), [1, 3, 6, 7, 0]);
}

/// Long runs at several table sizes go through many passes over the ring, with the whole table
/// tracked, which is when room for holes is scarcest.
#[test]
fn i36_order_survives_many_turns_of_the_ring() {
    for (objects, touches) in [(1u32, 5_000u32), (2, 5_000), (63, 20_000), (1000, 60_000)] {
        let mut rng = Rng::new(36 + objects as u64);
        let mut policy = Policy::new(PolicyKind::Lru, objects as usize, 1);
        let mut stamps = vec![0u32; objects as usize];
        (0..objects).for_each(|index| policy.reserve(index, &key(0)));
        for stamp in 1..=touches {
            // Mostly the newer half, so that the oldest objects hold the head back.
            let span = if rng.chance_ppm(900_000) { objects.div_ceil(2) } else { objects };
            let index = objects - 1 - rng.below(span as u64) as u32;
            policy.touch(index);
            stamps[index as usize] = stamp;
            if stamp % (touches / 20) == 0 {
                let mut expected: Vec<u32> = (0..objects).collect();
                expected.sort_by_key(|index| (stamps[*index as usize], *index));
                assert_eq!(walk(&policy), expected, "{objects} objects, {stamp} touches");
                assert_eq!(policy.audit(), Ok(()));
            }
        }
    }
}

/// Design §8: at most 256 bytes of metadata for a resident object, all tables together.
#[test]
fn tables_are_small_and_fixed() {
    let objects = 1 << 20;
    for (kind, bytes_max) in [
        (PolicyKind::Lru, 13),
        (PolicyKind::Arc, 85),
        (PolicyKind::IsolatedLru, 25),
        (PolicyKind::Noop, 0),
    ] {
        let mut policy = Policy::new(kind, objects, 1);
        let before = policy.memory_bytes();
        assert!(before <= bytes_max * objects as u64, "{kind:?}: {before}");
        (0..1000).for_each(|index| policy.reserve(index, &key(index as u8)));
        assert_eq!(policy.memory_bytes(), before);
    }
}
