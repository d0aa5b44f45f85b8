//! How an adapter leaves: it takes nothing new, and when the last that is on its way has ended and
//! nobody reads from it any more, its table is freed and its files are let go (I-33, R-29, R-30).

use super::Adapters;
use super::shelf::Shelf;
use crate::config::AdapterSetup;
use crate::effect::Effect;
use crate::engine::demote::Demote;
use crate::engine::turn::Turn;
use crate::fact::{AdapterState, Fact};
use crate::names::AdapterId;

impl Adapters {
    /// An operator removes it. False where it has left already, or never came.
    pub(crate) fn remove(&mut self, turn: &mut Turn, id: AdapterId) -> bool {
        let Some(adapter) = self.find(id) else { return false };
        if adapter.state != AdapterState::Draining {
            self.disarm_trial(turn, id);
            let adapter = self.get_mut(id);
            adapter.state = AdapterState::Draining;
            adapter.evicting.stop();
            self.draining += 1;
            turn.out.tell(Fact::AdapterChanged { adapter: id, state: AdapterState::Draining });
        }
        true
    }

    /// Goes on with adapters that leave, as far as the turn reaches. True while there is more to
    /// do that waits for nobody.
    pub(crate) fn leave_some(&mut self, turn: &mut Turn, demote: &mut Demote) -> bool {
        let mut is_unfinished = false;
        for index in 0..self.list.len() {
            if self.draining == 0 {
                break;
            }
            let id = AdapterId(index as u16);
            let adapter = self.get(id);
            let is_over = (adapter.flights == 0 || planted!(turn.config, 46))
                && adapter.shelf.held == 0
                && adapter.loads == 0
                && demote.is_done_with(id);
            if adapter.state == AdapterState::Draining && is_over {
                is_unfinished |= !self.close_some(turn, demote, id);
            }
        }
        is_unfinished
    }

    /// Frees the table. True when that has ended.
    fn close_some(&mut self, turn: &mut Turn, demote: &mut Demote, id: AdapterId) -> bool {
        let hash = self.hash.clone();
        let adapter = self.get_mut(id);
        let mut at = adapter.closing.unwrap_or(0);
        while at < adapter.shelf.entries.high_water() {
            if turn.is_spent() {
                adapter.closing = Some(at);
                return false;
            }
            turn.spend(1);
            if let Some((name, _)) = adapter.shelf.entries.at(at) {
                adapter.shelf.remove(name, &mut turn.l1.scopes);
            }
            at += 1;
        }
        adapter.closing = Some(at);
        adapter.state = AdapterState::Gone;
        // Its memory is given back.
        let none = AdapterSetup { objects_max: 0, ..adapter.setup };
        adapter.shelf = Shelf::new(&none, hash);
        adapter.evicting.stop();
        demote.left(id, &none);
        self.draining -= 1;
        turn.out.tell(Fact::AdapterChanged { adapter: id, state: AdapterState::Gone });
        turn.out.effects.push(Effect::AdapterClosed { adapter: id });
        true
    }
}
