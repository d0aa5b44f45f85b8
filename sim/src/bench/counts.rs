//! Which of the states worth meeting an event has met.

use super::{Bench, Open};
use crate::calls::Call;
use crate::model::News;
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::effect::{Answer, Outbox, Refusal};
use kvtide_core::event::BodyOutcome;
use kvtide_core::fact::{Abort, Fact, InstanceEnd, LeaseEnd, LookupStop, NoRoom, ReadFailure};
use kvtide_core::fact::{Removal, RequestFault};

impl Bench {
    /// Counts the states that are seen in facts.
    pub(super) fn count(&mut self, input: &Input, out: &Outbox) {
        for fact in &out.facts {
            let met = match fact {
                // Only a store evicts for room, and the job that a store has left behind.
                Fact::Evicted { why: Removal::Pressure, .. } if matches!(input, Input::Tick) => {
                    State::WindowOverTurns
                }
                Fact::WriteRefused { why: NoRoom::Busy, .. } => State::StoreCutByTurn,
                Fact::WriteRefused { why: NoRoom::Lent, .. } => State::WritersShareFull,
                Fact::Evicted { why: Removal::Pressure, .. } => State::EvictedOnDemand,
                Fact::Evicted { why: Removal::Watermark, .. } => State::EvictionPass,
                Fact::Evicted { why: Removal::Table, .. } => State::TableFullEvicts,
                Fact::WriteAborted { why: Abort::WriteTtl, .. } => State::WriteTtlPassed,
                Fact::ReadFinished { why: LeaseEnd::Expired, .. } => State::LeaseExpired,
                Fact::ReadFinished { why: LeaseEnd::Replaced, .. } => State::LookupReplaced,
                Fact::LookupTaken { stop: LookupStop::RankMissing, .. } => State::RankMissing,
                Fact::LookupTaken { stop: LookupStop::InFlight, .. } => State::InFlightStop,
                Fact::InstanceTold { .. } => State::ToldOnce,
                Fact::InstanceEnded { why: InstanceEnd::Reaped, .. } => State::InstanceReaped,
                Fact::InstanceEnded { why: InstanceEnd::Replaced, .. } => State::InstanceReplaced,
                Fact::StaleEnding => State::StaleEnding,
                Fact::ReadFailed { why: ReadFailure::NotFound, .. } => State::ForcedClearOfLeased,
                Fact::RequestFaulted { fault: RequestFault::TableFull, .. }
                | Fact::RegistrationRefused { reason: Refusal::InstancesFull, .. }
                | Fact::LookupTaken { stop: LookupStop::NoRoom, .. }
                | Fact::WriteRefused { why: NoRoom::ObjectTable, .. } => State::TableFull,
                _ => continue,
            };
            self.reach.met(met);
        }
        self.count_below(out);
        match input {
            Input::ReceiveEnded { outcome: BodyOutcome::Short, .. } => {
                self.reach.met(State::PickleShort);
            }
            Input::ReceiveEnded { outcome: BodyOutcome::Cut, .. } => {
                self.reach.met(State::BodyCut);
            }
            _ => {}
        }
    }

    /// Counts the states that are seen in an answer, before the model takes it in.
    pub(super) fn count_answer(&mut self, open: &Open, answer: &Answer, news: &News, out: &Outbox) {
        let met = match (&open.call, answer) {
            (Call::Query { .. }, Answer::None) => State::LookupOverTurns,
            (Call::Query { request }, _) if self.model.has_forgotten(request) => {
                State::SessionForgotten
            }
            (Call::CommitStore { inline_bytes: 0, .. }, Answer::Bool(false))
                if has_ended_late(out) =>
            {
                // It is one that was refused, too.
                self.reach.met(State::LateCommitRefused);
                State::LateCommitGaveBack
            }
            (Call::CommitStore { inline_bytes: 0, .. }, Answer::Bool(false))
                if out.facts.iter().any(|fact| matches!(fact, Fact::StoreFinished { .. })) =>
            {
                State::LateCommitRefused
            }
            (Call::PrepareRetrieve { range, .. }, Answer::RetrieveSlots { .. })
                if self.model.has_ended(&range.request) =>
            {
                State::LingerUsed
            }
            (Call::PrepareRetrieve { range, .. }, Answer::RetrieveMiss)
                if self.model.has_ended(&range.request) =>
            {
                State::ReadAfterLinger
            }
            (Call::PrepareStore { .. }, Answer::StoreSlots { slots, .. })
                if !news.refused.is_empty() && slots.start < slots.end =>
            {
                State::NoRoomKeepsPrefix
            }
            (Call::Free { range }, _)
                if self.model.has_given_back(range)
                    && !news.no_such_hold
                    && !out.facts.iter().any(|fact| matches!(fact, Fact::ReadFinished { .. })) =>
            {
                State::DoubleFree
            }
            (Call::Clear { force: false }, _) if self.model.holds_readable() => {
                State::ClearSparesHeld
            }
            _ => return,
        };
        self.reach.met(met);
    }
}

/// Whether a commit of an instance that is not registered has ended a copy.
fn has_ended_late(out: &Outbox) -> bool {
    let has = |is_wanted: fn(&Fact) -> bool| out.facts.iter().any(is_wanted);
    has(|fact| matches!(fact, Fact::StoreFinished { .. }))
        && has(|fact| {
            let fault = RequestFault::UnknownInstance;
            matches!(fact, Fact::RequestFaulted { fault: told, .. } if *told == fault)
        })
}
