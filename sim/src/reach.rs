//! Named states that a set of runs must have met: a simulation that never gets there proves
//! nothing about them.

use std::collections::BTreeMap;

/// One state worth meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    LateCommitRefused,
    LateCommitGaveBack,
    CondemnedFreedAtClose,
    EvictedOnDemand,
    EvictionPass,
    TableFullEvicts,
    LingerUsed,
    LeaseExpired,
    LookupReplaced,
    LookupOverTurns,
    RankMissing,
    InFlightStop,
    PickleIntoReservation,
    PickleShort,
    BodyCut,
    ForcedClearOfLeased,
    ClearSparesHeld,
    ToldOnce,
    InstanceReaped,
    InstanceReplaced,
    StaleEnding,
    NoRoomKeepsPrefix,
    WriteTtlPassed,
    WaitParked,
    WaitTimedOut,
    SendToUnknown,
    DoubleFree,
    SessionForgotten,
    TableFull,
    TurnSpent,
    StoreCutByTurn,
    WindowOverTurns,
    StoppedWritesOn,
    StoppedStoresAgain,
    LieAboutOthers,
    LieAboutCount,
    ReadAfterLinger,
    WritersShareFull,
}

impl State {
    pub const ALL: &[State] = &[
        State::LateCommitRefused,
        State::LateCommitGaveBack,
        State::CondemnedFreedAtClose,
        State::EvictedOnDemand,
        State::EvictionPass,
        State::TableFullEvicts,
        State::LingerUsed,
        State::LeaseExpired,
        State::LookupReplaced,
        State::LookupOverTurns,
        State::RankMissing,
        State::InFlightStop,
        State::PickleIntoReservation,
        State::PickleShort,
        State::BodyCut,
        State::ForcedClearOfLeased,
        State::ClearSparesHeld,
        State::ToldOnce,
        State::InstanceReaped,
        State::InstanceReplaced,
        State::StaleEnding,
        State::NoRoomKeepsPrefix,
        State::WriteTtlPassed,
        State::WaitParked,
        State::WaitTimedOut,
        State::SendToUnknown,
        State::DoubleFree,
        State::SessionForgotten,
        State::TableFull,
        State::TurnSpent,
        State::StoreCutByTurn,
        State::WindowOverTurns,
        State::StoppedWritesOn,
        State::StoppedStoresAgain,
        State::LieAboutOthers,
        State::LieAboutCount,
        State::ReadAfterLinger,
        State::WritersShareFull,
    ];

    pub fn name(self) -> &'static str {
        match self {
            State::LateCommitRefused => "a late commit was refused",
            State::LateCommitGaveBack => "a late commit without a registration gave its slots back",
            State::CondemnedFreedAtClose => "condemned memory came back with its connection's end",
            State::EvictedOnDemand => "a store evicted what was in its way",
            State::EvictionPass => "the tick freed above the watermark",
            State::TableFullEvicts => "a full object table evicted",
            State::LingerUsed => "a worker's retrieve came after the end of its session",
            State::LeaseExpired => "a lease ran out",
            State::LookupReplaced => "a lookup replaced another that held leases",
            State::LookupOverTurns => "a lookup took several turns",
            State::RankMissing => "a lookup stopped at a missing rank",
            State::InFlightStop => "a lookup stopped at a reserved chunk",
            State::PickleIntoReservation => "a body went into a pending reservation",
            State::PickleShort => "a body was too short",
            State::BodyCut => "a body was cut by the end of its connection",
            State::ForcedClearOfLeased => "a forced clear took a leased object",
            State::ClearSparesHeld => "a plain clear left a held object",
            State::ToldOnce => "an unknown instance was told so",
            State::InstanceReaped => "a silent instance was reaped",
            State::InstanceReplaced => "an instance came back with another layout",
            State::StaleEnding => "an ending came twice",
            State::NoRoomKeepsPrefix => "a store got the longest prefix that fits",
            State::WriteTtlPassed => "a write TTL passed",
            State::WaitParked => "a wait was parked and answered with a count",
            State::WaitTimedOut => "a parked wait timed out",
            State::SendToUnknown => "slots and bytes went to an instance of unknown mode",
            State::DoubleFree => "a release came twice",
            State::SessionForgotten => "an idle session was forgotten",
            State::TableFull => "a table was full",
            State::TurnSpent => "a turn had no units left",
            State::StoreCutByTurn => "a store got what its turn could make room for",
            State::StoppedWritesOn => "a stopped client wrote on after it was reaped",
            State::StoppedStoresAgain => "a client that had been reaped while stopped stored again",
            State::LieAboutOthers => "a commit of another's slots came to nothing",
            State::LieAboutCount => "a commit of another number of chunks came to nothing",
            State::ReadAfterLinger => "a worker's retrieve came after its leases had lingered",
            State::WritersShareFull => "writers held as much of L1 as they may",
            State::WindowOverTurns => "a tick emptied a window for objects of another size",
        }
    }
}

/// How often each state was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    counts: BTreeMap<State, u64>,
}

impl Reach {
    pub fn met(&mut self, state: State) {
        *self.counts.entry(state).or_default() += 1;
    }

    pub fn count(&self, state: State) -> u64 {
        self.counts.get(&state).copied().unwrap_or_default()
    }

    pub fn add(&mut self, other: &Reach) {
        for (state, count) in &other.counts {
            *self.counts.entry(*state).or_default() += count;
        }
    }

    pub fn missed(&self) -> Vec<State> {
        State::ALL.iter().copied().filter(|state| self.count(*state) == 0).collect()
    }
}
