//! What will happen, and what a process does when its answer comes.

use super::{ProcessId, RequestNumber};
use crate::calls::Call;
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::effect::Answer;
use kvtide_core::event::AttachFault;
use kvtide_core::names::{AdapterId, Attachment, Connection, Reply, Ticket};
use std::rc::Rc;

/// What a process does when its answer comes.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    Nothing,
    /// A release, an end or the like that nobody waits for, sent where it may make no sense.
    Stray,
    Registered,
    LookedUp(RequestNumber),
    Queried(RequestNumber),
    Retrieve(RequestNumber),
    Store,
    /// A writer has committed the slots that it was lent for this request.
    Committed(Reply),
    /// It does so under another request's id than this, its own.
    CommittedAs(Reply, Rc<str>),
    /// A reader is done with them.
    HasRead(Reply),
    /// A commit that should come to nothing.
    Lied(State),
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A message reaches the server.
    Arrive {
        connection: Connection,
        call: Call,
        then: Then,
    },
    /// The server goes on reading what has come over a connection.
    ReadOn {
        connection: Connection,
    },
    /// An answer reaches its process.
    Return {
        connection: Connection,
        call: Call,
        then: Then,
        answer: Answer,
    },
    /// A process works on the places that it has been lent.
    Work {
        holding: u64,
    },
    /// Bytes go on travelling.
    Flow {
        ticket: Ticket,
    },
    StaleEnding {
        input: Input,
    },
    Connect {
        process: ProcessId,
    },
    Ping {
        connection: Connection,
    },
    Begin {
        group: usize,
    },
    StartRetrieve {
        process: ProcessId,
        request: RequestNumber,
    },
    StartStore {
        process: ProcessId,
        request: RequestNumber,
        from: u32,
    },
    Finish {
        request: RequestNumber,
    },
    Grow,
    Fault,
    ForcedClear,
    Crash {
        process: ProcessId,
    },
    /// A lower tier joins the roster.
    Join {
        tier: usize,
    },
    /// More of what lay there is told.
    Scan {
        tier: usize,
        adapter: AdapterId,
    },
    /// An order goes on.
    Toil {
        ticket: Ticket,
    },
    /// Memory of an engine is attached by now, or not.
    Attached {
        attachment: Attachment,
        outcome: Result<(), AttachFault>,
    },
    /// A copy between an engine's blocks and L1 goes on.
    Carry {
        ticket: Ticket,
    },
    /// An instance registers anew.
    Anew {
        process: ProcessId,
    },
    /// What a tier has done so far is durable, with so many notes.
    Flush {
        tier: usize,
        notes: usize,
    },
}
