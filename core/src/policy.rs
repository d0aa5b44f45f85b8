//! In which order L1 objects go when room is needed (spec/storage §3.2).
//!
//! A policy knows objects by their index in the object table and nothing else about them. It is
//! told when one is reserved, committed, touched, held, let go and removed; it answers with the
//! next one to evict. All tables have their size from the start, every door is O(1) in the number
//! of objects, and no map is walked.
//!
//! Invariant (I-35, I-36): a pick is the first object in the policy's order among those that are
//! not held, exactly as if the order were a plain list and the held ones were stepped over.
//!
//! **Order with holds.** A linked list would make a pick cost as many steps as there are leased
//! objects before the first free one, and taking leased nodes out of it loses their position,
//! which has to be exact when the lease ends. So recency is a position in a log (`order`): a touch
//! moves the object to the log's end, and one bit per position says "tracked and not held". A hold
//! clears the bit, its end sets it again at the same position; neither is a touch. A pick is the
//! next set bit, found through five levels of 64 at the most. Holes that touches leave behind are
//! closed a few positions at a time.
//!
//! **Batch rule.** The caller walks a request's chunks from the last to the first, on commit and
//! on touch, so that the tail of a request is older than its head and goes first (I-36).
//!
//! Bytes per entry of the object table: LRU 13, ARC 85, IsolatedLRU 25, noop 0.

mod adaptive;
mod ghosts;
mod isolated;
mod order;

use crate::config::PolicyKind;
use crate::names::{ChunkHash, ScopeId, TenantId};
use adaptive::Adaptive;
use isolated::Isolated;
use order::{Order, RECENT};

/// What a policy may know of an object beside its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey {
    pub scope: ScopeId,
    pub hash: ChunkHash,
    pub tenant: TenantId,
}

/// How an object leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The policy picked it. ARC keeps its name among the ghosts.
    Evicted,
    /// Cleared, deleted, or a reservation given up.
    Forgotten,
}

/// `--eviction-policy`, with its state.
#[derive(Clone, Debug)]
pub enum Policy {
    Lru(Lru),
    Arc(Arc),
    IsolatedLru(IsolatedLru),
    /// Tracks nothing and picks nothing.
    Noop,
}

/// Least recently used first.
#[derive(Clone, Debug)]
pub struct Lru(Order);

/// Adaptive replacement: recent and frequent lists whose balance follows ghost hits.
#[derive(Clone, Debug)]
pub struct Arc(Adaptive);

/// Least recently used first over all tenants, and the same within each tenant.
#[derive(Clone, Debug)]
pub struct IsolatedLru(Isolated);

impl Policy {
    /// A policy for object indices in `0..objects_max`. The seed keeps ghosts from being chosen
    /// to collide.
    pub fn new(kind: PolicyKind, objects_max: usize, seed: u64) -> Policy {
        match kind {
            PolicyKind::Lru => Policy::Lru(Lru(Order::new(objects_max, 1))),
            PolicyKind::Arc => Policy::Arc(Arc(Adaptive::new(objects_max, seed))),
            PolicyKind::IsolatedLru => Policy::IsolatedLru(IsolatedLru(Isolated::new(objects_max))),
            PolicyKind::Noop => Policy::Noop,
        }
    }

    /// A reservation was made for this object. It is new to the policy.
    pub fn reserve(&mut self, index: u32, key: &PolicyKey) {
        match self {
            Policy::Lru(Lru(order)) => order.push(index, RECENT),
            Policy::Arc(Arc(adaptive)) => adaptive.reserve(index, key),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.push(index, key.tenant),
            Policy::Noop => {}
        }
    }

    /// A reserved object became resident.
    pub fn commit(&mut self, index: u32) {
        match self {
            Policy::Lru(Lru(order)) => order.renew(index, RECENT),
            Policy::Arc(Arc(adaptive)) => adaptive.commit(index),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.renew(index),
            Policy::Noop => {}
        }
    }

    /// An object became resident without a reservation that the policy heard of. It is new.
    pub fn admit(&mut self, index: u32, key: &PolicyKey) {
        match self {
            Policy::Arc(Arc(adaptive)) => adaptive.admit(index, key),
            _ => self.reserve(index, key),
        }
    }

    /// The object was used. Unknown ones pass through.
    pub fn touch(&mut self, index: u32) {
        match self {
            Policy::Lru(Lru(order)) if order.contains(index) => order.renew(index, RECENT),
            Policy::Arc(Arc(adaptive)) if adaptive.order.contains(index) => adaptive.touch(index),
            Policy::IsolatedLru(IsolatedLru(isolated)) if isolated.order.contains(index) => {
                isolated.renew(index);
            }
            _ => {}
        }
    }

    /// The object is gone. Unknown ones pass through.
    pub fn remove(&mut self, index: u32, how: Departure) {
        if !self.contains(index) {
            return;
        }
        match self {
            Policy::Lru(Lru(order)) => order.remove(index),
            Policy::Arc(Arc(adaptive)) => adaptive.remove(index, how),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.remove(index),
            Policy::Noop => {}
        }
    }

    /// The object cannot go now (first lease or pin). Its position stays. Unknown ones pass
    /// through; holding twice is the same as once.
    pub fn hold(&mut self, index: u32) {
        if let Some(order) = self.order_mut().filter(|order| order.contains(index)) {
            order.hold(index);
        }
    }

    /// The object can go again (last lease or pin ended), from the position it has.
    pub fn unhold(&mut self, index: u32) {
        if let Some(order) = self.order_mut().filter(|order| order.contains(index)) {
            order.unhold(index);
        }
    }

    /// The object to evict next: the first in order that is not held.
    pub fn coldest(&self) -> Option<u32> {
        match self {
            Policy::Lru(Lru(order)) => order.first(RECENT),
            Policy::Arc(Arc(adaptive)) => adaptive.coldest(),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.order.first(RECENT),
            Policy::Noop => None,
        }
    }

    /// What would be picked if everything up to and with `index` could not go. `index` is tracked;
    /// it may be held.
    pub fn next_after(&self, index: u32) -> Option<u32> {
        match self {
            Policy::Lru(Lru(order)) => order.next_after(index),
            Policy::Arc(Arc(adaptive)) => adaptive.next_after(index),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.order.next_after(index),
            Policy::Noop => None,
        }
    }

    /// The first of a tenant's objects that is not held, seen within `visits_max` of its oldest
    /// objects. Only IsolatedLRU keeps an order per tenant; the others answer None.
    pub fn coldest_of(&self, tenant: TenantId, visits_max: usize) -> Option<u32> {
        match self {
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.coldest_of(tenant, visits_max),
            Policy::Lru(_) | Policy::Arc(_) | Policy::Noop => None,
        }
    }

    /// Whether the first comes before the second when only recency counts. Both are tracked.
    pub fn is_older(&self, index: u32, than: u32) -> bool {
        self.order().is_some_and(|order| order.is_older(index, than))
    }

    pub fn contains(&self, index: u32) -> bool {
        self.order().is_some_and(|order| order.contains(index))
    }

    /// Tracked objects, held ones included.
    pub fn len(&self) -> usize {
        self.order().map_or(0, Order::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all tables, taken at start.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Policy::Lru(Lru(order)) => order.memory_bytes(),
            Policy::Arc(Arc(adaptive)) => adaptive.memory_bytes(),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.memory_bytes(),
            Policy::Noop => 0,
        }
    }

    /// I-38, recounted. That exactly the live objects are tracked is the object table's part.
    pub fn audit(&self) -> Result<(), &'static str> {
        match self {
            Policy::Lru(Lru(order)) => order.audit(),
            Policy::Arc(Arc(adaptive)) => adaptive.audit(),
            Policy::IsolatedLru(IsolatedLru(isolated)) => isolated.audit(),
            Policy::Noop => Ok(()),
        }
    }

    fn order(&self) -> Option<&Order> {
        match self {
            Policy::Lru(Lru(order)) => Some(order),
            Policy::Arc(Arc(adaptive)) => Some(&adaptive.order),
            Policy::IsolatedLru(IsolatedLru(isolated)) => Some(&isolated.order),
            Policy::Noop => None,
        }
    }

    fn order_mut(&mut self) -> Option<&mut Order> {
        match self {
            Policy::Lru(Lru(order)) => Some(order),
            Policy::Arc(Arc(adaptive)) => Some(&mut adaptive.order),
            Policy::IsolatedLru(IsolatedLru(isolated)) => Some(&mut isolated.order),
            Policy::Noop => None,
        }
    }
}

fn holds(condition: bool, rule: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(rule) }
}
