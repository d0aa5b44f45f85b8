//! What a run did to its bench, in names that still mean something when some of it is left out:
//! a stream and the places of a writer are named by the request that they were given for.

use crate::bench::{Bench, Copying, Lent, Seen};
use crate::calls::Call;
use crate::devices::DeviceId;
use crate::memory::grains;
use crate::model::{Kind, Model};
use crate::transcript::Input;
use kvtide_core::event::{AttachFault, BodyOutcome, SendOutcome};
use kvtide_core::names::{Attachment, Connection, Reply, Ticket};
use kvtide_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Whether a request is one that an honest client sends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    Plain,
    /// Only as long as it speaks for nobody who is still at work.
    Stray,
    /// The commit of what this request was lent; a stray one where that request is missing.
    Commit(Reply),
}

#[derive(Clone, Debug)]
pub enum Deed {
    Asked {
        reply: Reply,
        call: Call,
        sense: Sense,
    },
    SendEnded {
        reply: Reply,
        outcome: SendOutcome,
    },
    ReceiveEnded {
        reply: Reply,
        complete: u32,
        outcome: BodyOutcome,
    },
    /// A grain of a lent place was written.
    Wrote {
        reply: Reply,
        chunk: u32,
        grain: u64,
    },
    /// An engine computed what belongs into its blocks.
    Computed {
        device: DeviceId,
        ids: Rc<[u32]>,
    },
    /// One block of a copy was copied.
    Moved {
        reply: Reply,
        step: usize,
    },
    CopyEnded {
        reply: Reply,
        whole: bool,
    },
    /// All lent places were read.
    Read {
        reply: Reply,
    },
    /// Everything that names no request.
    Other(Input),
}

impl Deed {
    pub fn connection(&self) -> Option<Connection> {
        match self {
            Deed::Asked { reply, .. }
            | Deed::SendEnded { reply, .. }
            | Deed::ReceiveEnded { reply, .. }
            | Deed::Wrote { reply, .. }
            | Deed::Moved { reply, .. }
            | Deed::CopyEnded { reply, .. }
            | Deed::Read { reply } => Some(reply.connection),
            Deed::Other(Input::ConnectionEnded { connection }) => Some(*connection),
            Deed::Other(_) | Deed::Computed { .. } => None,
        }
    }

    /// The request id that it is about.
    pub fn request(&self) -> Option<&str> {
        let Deed::Asked { call, .. } = self else { return None };
        match call {
            Call::Query { request }
            | Call::Wait { request, .. }
            | Call::EndSession { request, .. } => Some(request),
            _ => call.range().map(|range| &*range.request),
        }
    }
}

/// A stray commit must not speak for a writer or reader that is still at work: that would be a
/// client that lies about its own bytes, against which nothing helps.
pub fn is_unfair(model: &Model, call: &Call) -> bool {
    match call {
        // Slots are committed for whoever has them under this name, bytes for the request.
        Call::CommitStore { instance, range, inline_bytes: 0 } => {
            model.is_lent(Kind::Store, *instance, range, None)
        }
        Call::CommitStore { instance, range, .. } => {
            model.is_lent(Kind::Store, *instance, range, Some(&range.request))
        }
        Call::CommitRetrieve { instance, range } => {
            model.is_lent(Kind::Retrieve, *instance, range, Some(&range.request))
        }
        _ => false,
    }
}

/// A bench to which deeds are done again.
pub struct Stage {
    pub bench: Bench,
    pub now: Instant,
    lent: BTreeMap<Reply, Vec<Lent>>,
    /// Grains that were written of what a request was lent.
    written: BTreeSet<(Reply, u32, u64)>,
    streams: BTreeMap<Reply, Open>,
    copies: BTreeMap<Reply, Carried>,
    attaching: BTreeSet<Attachment>,
    connections: BTreeMap<Connection, bool>,
}

/// A copy and the steps of it that were done.
struct Carried {
    copying: Copying,
    moved: BTreeSet<usize>,
    has_ended: bool,
}

struct Open {
    ticket: Ticket,
    is_body: bool,
    has_ended: bool,
}

impl Stage {
    pub fn new(bench: Bench) -> Stage {
        Stage {
            bench,
            now: Instant::ZERO,
            lent: BTreeMap::new(),
            written: BTreeSet::new(),
            streams: BTreeMap::new(),
            copies: BTreeMap::new(),
            attaching: BTreeSet::new(),
            connections: BTreeMap::new(),
        }
    }

    /// Does a deed. One that names what is not there comes to nothing.
    pub fn play(&mut self, at: Instant, deed: &Deed) -> Result<(), String> {
        self.now = self.now.max(at);
        let input = match deed {
            Deed::Wrote { reply, chunk, grain } => {
                let lent = self.lent.get(reply).into_iter().flatten();
                for lent in lent.filter(|lent| lent.chunk == *chunk) {
                    self.bench.memory.write(lent.place, *grain, lent.object)?;
                    self.written.insert((*reply, *chunk, *grain));
                }
                return Ok(());
            }
            Deed::Read { reply } => {
                for lent in self.lent.get(reply).into_iter().flatten() {
                    self.bench.memory.check(lent.place, lent.object)?;
                }
                return Ok(());
            }
            Deed::Asked { reply, call, sense } => {
                let may_be_unfair = match sense {
                    Sense::Plain => false,
                    Sense::Stray => true,
                    Sense::Commit(of) => !self.lent.contains_key(of),
                };
                if may_be_unfair && is_unfair(&self.bench.model, call) {
                    return Ok(());
                }
                if !self.may_name(call) {
                    return Ok(());
                }
                if let Sense::Commit(of) = sense {
                    // Nobody commits what is not written.
                    let writes = matches!(call, Call::CommitStore { .. });
                    if writes && !self.has_written(of, u32::MAX) {
                        return Ok(());
                    }
                    self.lent.remove(of);
                }
                Input::Asked { reply: *reply, call: call.clone() }
            }
            Deed::SendEnded { reply, outcome } => {
                let Some(ticket) = self.end(reply) else { return Ok(()) };
                Input::SendEnded { ticket, outcome: *outcome }
            }
            Deed::ReceiveEnded { reply, complete, outcome } => {
                if !self.has_written(reply, *complete) {
                    return Ok(());
                }
                let Some(ticket) = self.end(reply) else { return Ok(()) };
                Input::ReceiveEnded { ticket, complete: *complete, outcome: *outcome }
            }
            Deed::Computed { device, ids } => {
                self.bench.devices.compute(*device, ids);
                return Ok(());
            }
            Deed::Moved { reply, step } => {
                let Some(carried) = self.copies.get_mut(reply) else { return Ok(()) };
                carried.moved.insert(*step);
                return self.bench.move_block(&carried.copying, *step);
            }
            Deed::CopyEnded { reply, whole } => {
                let Some(carried) = self.copies.get_mut(reply) else { return Ok(()) };
                // Nobody says that a copy is whole which is not.
                let total: usize = carried.copying.blocks.iter().map(Vec::len).sum();
                if *whole && carried.moved.len() < total {
                    return Ok(());
                }
                carried.has_ended = true;
                Input::CopyEnded { ticket: carried.copying.ticket, whole: *whole }
            }
            Deed::Other(input) => input.clone(),
        };
        self.feed(&input)
    }

    /// Nobody stores from blocks into which nothing was computed, or which a copy may be writing.
    fn may_name(&self, call: &Call) -> bool {
        let (Call::Store { instance, blocks, .. } | Call::Retrieve { instance, blocks, .. }) = call
        else {
            return true;
        };
        self.bench.may_name(*instance, blocks, matches!(call, Call::Store { .. }))
    }

    /// Whether all is written of the first `chunks` of what a request was lent.
    fn has_written(&self, reply: &Reply, chunks: u32) -> bool {
        let mut lent = self.lent.get(reply).into_iter().flatten();
        lent.all(|lent| {
            let mut grains = 0..grains(lent.place);
            let is_written = |grain| self.written.contains(&(*reply, lent.chunk, grain));
            lent.chunk >= chunks || grains.all(is_written)
        })
    }

    fn feed(&mut self, input: &Input) -> Result<(), String> {
        match input {
            Input::Asked { reply, .. } => drop(self.connections.insert(reply.connection, true)),
            Input::ConnectionEnded { connection } => {
                self.connections.insert(*connection, false);
                self.lent.retain(|reply, _| {
                    reply.connection != *connection || self.streams.contains_key(reply)
                });
            }
            Input::Restarted => {
                self.lent.clear();
                self.written.clear();
                self.streams.clear();
                self.copies.clear();
                self.attaching.clear();
                self.connections.clear();
            }
            Input::AttachEnded { attachment, .. } => drop(self.attaching.remove(attachment)),
            _ => {}
        }
        for seen in self.bench.feed(self.now, input)? {
            match seen {
                Seen::Answered { reply, slots, .. } if !slots.is_empty() => {
                    self.lent.insert(reply, slots);
                }
                Seen::Answered { .. } | Seen::Ordered(_) | Seen::Detached { .. } => {}
                Seen::Attaching { attachment, .. } => drop(self.attaching.insert(attachment)),
                Seen::Copying(copying) => {
                    let (copying, moved) = (*copying, BTreeSet::new());
                    let carried = Carried { copying, moved, has_ended: false };
                    self.copies.insert(carried.copying.reply, carried);
                }
                Seen::Sending { reply, ticket, slots, .. } => {
                    self.lent.insert(reply, slots);
                    let open = Open { ticket, is_body: false, has_ended: false };
                    self.streams.insert(reply, open);
                }
                Seen::Receiving { reply, ticket, slots, .. } => {
                    self.lent.insert(reply, slots);
                    let open = Open { ticket, is_body: true, has_ended: false };
                    self.streams.insert(reply, open);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, reply: &Reply) -> Option<Ticket> {
        let open = self.streams.get_mut(reply)?;
        open.has_ended = true;
        Some(open.ticket)
    }

    /// Everybody leaves and everything that flows ends: what is left after that, and after every
    /// deadline, breaks P4.
    pub fn leave(&mut self) -> Result<(), String> {
        let open: Vec<Connection> =
            self.connections.iter().filter(|(_, open)| **open).map(|(name, _)| *name).collect();
        for connection in open {
            self.feed(&Input::ConnectionEnded { connection })?;
        }
        let streams: Vec<(Ticket, bool)> = self
            .streams
            .values()
            .filter(|open| !open.has_ended)
            .map(|open| (open.ticket, open.is_body))
            .collect();
        for (ticket, is_body) in streams {
            self.feed(&if is_body {
                Input::ReceiveEnded { ticket, complete: 0, outcome: BodyOutcome::Cut }
            } else {
                Input::SendEnded { ticket, outcome: SendOutcome::Cut }
            })?;
        }
        for attachment in self.attaching.clone() {
            self.feed(&Input::AttachEnded { attachment, outcome: Err(AttachFault::Failed) })?;
        }
        let copies = self.copies.values().filter(|carried| !carried.has_ended);
        for ticket in copies.map(|carried| carried.copying.ticket).collect::<Vec<_>>() {
            self.feed(&Input::CopyEnded { ticket, whole: false })?;
        }
        Ok(())
    }

    pub fn tick(&mut self, now: Instant) -> Result<(), String> {
        self.now = self.now.max(now);
        self.feed(&Input::Tick)
    }
}
