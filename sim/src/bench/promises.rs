//! What every event owes, whatever it is about: an answer to whoever asked (P2), and no news
//! without a cause (I-7, I-49).

use super::{Bench, Seen};
use crate::calls::Call;
use crate::model::News;
use crate::transcript::Input;
use kvtide_core::effect::{Effect, OperatorAnswer, Outbox};
use kvtide_core::fact::Fact;
use kvtide_core::time::Instant;

impl Bench {
    /// An operator's question has one answer, at once (P2).
    pub(super) fn operator_answers(&self, input: &Input, out: &Outbox) -> Result<(), String> {
        let asked = match input {
            Input::OperatorClear { operator, .. }
            | Input::OperatorQuota { operator, .. }
            | Input::OperatorRemove { operator, .. } => Some(*operator),
            _ => None,
        };
        let answers = out.effects.iter().filter_map(|effect| match effect {
            Effect::OperatorAnswer { operator, answer } => Some((operator.0, *answer)),
            _ => None,
        });
        // Of a quota that is taken away it is said whether there was one.
        let is_removal = matches!(input, Input::OperatorQuota { bytes: None, .. });
        let good = |answer: &OperatorAnswer| match answer {
            OperatorAnswer::Removed(_) => is_removal,
            answer => *answer == OperatorAnswer::Done && !is_removal,
        };
        let answered: Vec<(u64, OperatorAnswer)> = answers.collect();
        let is_right = answered.iter().map(|(operator, _)| *operator).eq(asked)
            && answered.iter().all(|(_, answer)| good(answer));
        if !is_right {
            return Err("P2: an operator has not exactly one answer".into());
        }
        Ok(())
    }

    /// What was emptied for a store is everybody's at the second look at the watermark (I-37).
    pub(super) fn check_kept(&mut self) -> Result<(), String> {
        let looked = |fact: &&Fact| matches!(fact, Fact::EvictionTick { .. });
        // It is looked before anything is emptied.
        let is_older = self.was_keeping;
        self.was_keeping = self.engine.keeps_emptied();
        if !self.was_keeping || !is_older {
            self.looks = 0;
            return Ok(());
        }
        self.looks += self.out.facts.iter().filter(looked).count() as u32;
        if self.looks < 2 {
            return Ok(());
        }
        Err("I-37: an emptied window is kept for longer than two ticks".into())
    }

    /// Who is parked waits for a lookup that is under way, and no longer than asked for (I-10).
    pub(super) fn check_parked(&self, now: Instant, is_working: bool) -> Result<(), String> {
        let settled = self.settled(now).unwrap_or_default();
        let waits = self.parked.iter().filter_map(|reply| self.open.get(reply));
        for open in waits {
            let Call::Wait { request, wait } = &open.call else { continue };
            if !is_working || !self.model.may_look(request, open.serial) {
                return Err(format!("I-10: {request} is waited for, and its result is there"));
            }
            if open.asked + *wait <= settled {
                return Err(format!("I-10: {request} is waited for longer than was asked"));
            }
        }
        Ok(())
    }

    /// A wait without an answer is parked, and a body is read first; everything else is answered at
    /// once (P2).
    pub(super) fn park(&mut self, input: &Input, seen: &[Seen]) -> Result<(), String> {
        let open = &self.open;
        self.parked.retain(|reply| open.contains_key(reply));
        let Input::Asked { reply, call } = input else { return Ok(()) };
        let Some(open) = self.open.get_mut(reply) else { return Ok(()) };
        let is_read =
            |seen: &Seen| matches!(seen, Seen::Receiving { reply: to, .. } if to == reply);
        match call {
            Call::Wait { .. } => {
                open.parked = true;
                self.parked.insert(*reply);
            }
            Call::CommitStore { .. } if seen.iter().any(is_read) => {}
            // What has begun with this event is answered when it ends.
            Call::RegisterPaged { .. } | Call::Store { .. } | Call::Retrieve { .. }
                if open.parked => {}
            _ => return Err(format!("P2: {call:?} has no answer")),
        }
        Ok(())
    }
}

/// Only a writer's own words make anything reserved or readable, and only a reader's own count as a
/// retrieve: no clock, no end and no other request does.
pub(super) fn check_cause(input: &Input, news: &News) -> Result<(), String> {
    let call = match input {
        Input::Asked { call, .. } => Some(call),
        _ => None,
    };
    let stores = call.is_some_and(Call::stores);
    let asks_for_slots = !news.reserved.is_empty() || !news.refused.is_empty();
    if asks_for_slots && !stores {
        return Err("I-49: slots were reserved or refused, and nobody asked".into());
    }
    let writes = matches!(call, Some(Call::CommitStore { .. }))
        || matches!(input, Input::ReceiveEnded { .. } | Input::CopyEnded { .. });
    if !writes && !news.committed.is_empty() {
        return Err("I-7: published without its writer's word".into());
    }
    let reads = matches!(call, Some(Call::CommitRetrieve { .. }))
        || matches!(input, Input::SendEnded { .. } | Input::CopyEnded { .. });
    if !reads && news.retrieved > 0 {
        return Err("F26: retrieved without its reader's word".into());
    }
    Ok(())
}
