//! What lay in an adapter when it joined: told in parts, the least recently used first, so that
//! usage, bytes by tenant and the order of eviction are what they were (F10, I-46).

use super::Adapters;
use crate::engine::scopes::ScopeKey;
use crate::engine::turn::Turn;
use crate::event::Scanned;
use crate::fact::{AdapterState, Fact};
use crate::limits::{MODEL_BYTES_MAX, SALT_CHARS_MAX};
use crate::names::{AdapterId, L2Key, Layout};

/// What became of one object that was told of.
enum Taken {
    In,
    /// A probe, or a store, was first.
    Known,
    Skipped,
}

impl Adapters {
    /// Takes in one part.
    pub(crate) fn scanned(&mut self, turn: &mut Turn, id: AdapterId, found: &[Scanned<'_>]) {
        // What leaves takes nothing in: its table is being freed.
        if matches!(self.get(id).state, AdapterState::Draining | AdapterState::Gone) {
            return;
        }
        turn.spend_own(found.len());
        let mut skipped = 0;
        for scanned in found {
            if let Taken::Skipped = self.take_in(turn, id, scanned) {
                skipped += 1;
            }
        }
        if skipped > 0 {
            self.get_mut(id).counts.scan_skipped += u64::from(skipped);
            turn.out.tell(Fact::L2ScanSkipped { adapter: id, objects: skipped });
        }
    }

    fn take_in(&mut self, turn: &mut Turn, id: AdapterId, scanned: &Scanned<'_>) -> Taken {
        let Some(key) = name_of(turn, scanned) else { return Taken::Skipped };
        let shelf = &mut self.get_mut(id).shelf;
        if let Some((_, entry)) = shelf.find(&key) {
            let is_same = entry.bytes == scanned.bytes;
            // Whoever asked for it did not know what its bytes come to.
            if let Some(seal) = scanned.seal.filter(|_| is_same) {
                shelf.sealed(&key, scanned.bytes, seal);
            }
            return Taken::Known;
        }
        match shelf.admit(key, scanned.bytes, scanned.seal, &mut turn.l1.scopes) {
            Some(_) => Taken::In,
            None => {
                self.get_mut(id).has_untold = true;
                Taken::Skipped
            }
        }
    }

    /// All of it has been told: names that are not in the table are not there.
    pub(crate) fn scan_ended(&mut self, turn: &mut Turn, id: AdapterId) {
        let adapter = self.get_mut(id);
        adapter.is_scanned = true;
        if adapter.state == AdapterState::Scanning {
            adapter.state = AdapterState::Ready;
            turn.out.tell(Fact::AdapterChanged { adapter: id, state: AdapterState::Ready });
        }
    }
}

/// None where it could not be asked for by anybody, or every name is in use.
fn name_of(turn: &mut Turn, scanned: &Scanned<'_>) -> Option<L2Key> {
    let is_named = scanned.model.len() <= MODEL_BYTES_MAX
        && !scanned.model.is_empty()
        && scanned.salt.chars().count() <= SALT_CHARS_MAX
        && scanned.bytes > 0;
    if !is_named {
        return None;
    }
    let scopes = &mut turn.l1.scopes;
    let tenant = scopes.name_tenant(scanned.model, scanned.salt, &mut turn.out.facts)?;
    let (rank, group) = (scanned.rank, scanned.group);
    let scope = scopes.name_scope(ScopeKey { tenant, rank, group, layout: Layout::UNKNOWN })?;
    Some(L2Key { hash: scanned.hash, scope })
}
