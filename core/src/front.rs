//! Turns messages into what the engine understands: decoded, checked and hashed (design §3).
//!
//! ```text
//! frames ─► operation ─► payloads ─► key ─► memo ─► hashes ─► Ask
//!                └──────────┴──────────┴─ wrong or not served ─► Answer
//! ```
//!
//! The engine sees hashes, never token ids. The one invariant: every message of two frames or more
//! ends in exactly one `Ask` or `Answer`, whatever it holds, and a message that is large takes
//! several steps, none of which goes far beyond its budget.

pub mod allocated;
pub mod hash;
pub mod key;
pub mod memo;
pub mod paged;
pub mod range;
pub mod register;

use crate::config::Config;
use crate::effect::{Answer, Outbox, Refusal};
use crate::event::{Ask, Keys};
use crate::fact::{Fact, RequestFault};
use crate::front::allocated::Allocated;
use crate::front::key::rules::{check_model, check_request};
use crate::front::key::{KeyReader, KeyTools, Progress};
use crate::front::memo::Memo;
use crate::limits::REQUEST_BLOCKS_MAX;
use crate::names::InstanceId;
use crate::wire::answer::{fault_answer, negative_answer, unserved_answer};
use crate::wire::fields::{List, Wire};
use crate::wire::msgpack::Reader;
use crate::wire::operation::{Operation, decode_operation};
use crate::wire::request::{Fault, Request, ServerDrivenTransfer, decode_commit_head};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Decodes and checks for all connections; remembers tokens between requests.
#[derive(Debug)]
pub struct Front {
    config: Config,
    memo: Memo,
    /// Block ids of the transfer that was read last.
    blocks: Vec<u32>,
    /// Likewise of the report.
    allocated: Allocated,
}

/// Where the data of a `commit_store` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The last of the frames, as for every other request.
    Here,
    /// It follows: the frames end before the data, whose binary holds this many bytes
    /// (`wire::request::bin_head`).
    Announced { bytes: u64 },
}

/// One message on its way through. Dropping it is how to stop.
#[derive(Clone, Debug)]
pub struct Job {
    body: Body,
    /// The key that is being read. None before the first step, and for messages without a key.
    reading: Option<Box<Reading>>,
}

#[derive(Clone, Debug)]
struct Reading {
    purpose: Purpose,
    reader: KeyReader,
}

/// What a key is read for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Lookup,
    Free,
    PrepareStore {
        instance: InstanceId,
    },
    CommitStore {
        instance: InstanceId,
        inline_bytes: u64,
    },
    PrepareRetrieve {
        instance: InstanceId,
    },
    CommitRetrieve {
        instance: InstanceId,
    },
    Store {
        instance: InstanceId,
    },
    /// None: negative.
    Retrieve {
        instance: InstanceId,
        skip_tokens: Option<u64>,
    },
}

/// How a step ended.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// The budget is used up; go on in the next turn.
    More,
    Ask(Ask<'a>),
    Answer(Answer),
    /// There is nothing to answer: one frame only, or the control frame of no stream.
    Silent,
}

/// What the payloads ask for.
enum Found<'a> {
    /// Whatever the key says, which must be read first.
    Key(Purpose),
    Ask(Ask<'a>),
    /// What was read into `Front::allocated`.
    Allocated {
        instance: InstanceId,
        model: &'a str,
    },
    Answer(Answer),
    Refused(RequestFault, Answer),
}

impl Front {
    pub fn new(config: &Config) -> Front {
        let (memo, allocated) = (Memo::new(config.seed), Allocated::new(config.seed));
        Front { config: config.clone(), memo, blocks: Vec::new(), allocated }
    }

    pub fn begin(&self, body: Body) -> Job {
        Job { body, reading: None }
    }

    pub fn memo(&self) -> &Memo {
        &self.memo
    }

    /// Goes on with a message. `frames` are all its frames from the uid on, less an announced body,
    /// and the same on every step. Takes what it reads off `budget`; facts go to `out`. After
    /// anything but `More` the job has ended.
    pub fn step<'a>(
        &'a mut self,
        job: &mut Job,
        frames: &[&'a [u8]],
        budget: &mut usize,
        out: &mut Outbox,
    ) -> Step<'a> {
        let [_, operation_frame, payloads @ ..] = frames else {
            tell_fault("", RequestFault::OneFrame, out);
            return Step::Silent;
        };
        let Some(operation) = decode_operation(operation_frame) else {
            return nameless(operation_frame, payloads, out);
        };
        if job.reading.is_none() {
            let bytes = payloads.iter().map(|payload| payload.len()).sum();
            match self.read_payloads(operation, job.body, payloads) {
                Found::Key(purpose) => {
                    let reader = KeyReader::new();
                    job.reading = Some(Box::new(Reading { purpose, reader }));
                }
                Found::Ask(ask) => {
                    *budget = budget.saturating_sub(bytes);
                    return Step::Ask(self.with_memo(ask));
                }
                Found::Allocated { instance, model } => {
                    *budget = budget.saturating_sub(bytes);
                    let blocks = self.allocated.blocks();
                    return Step::Ask(Ask::BlocksAllocated { instance, model, blocks });
                }
                Found::Answer(answer) => {
                    *budget = budget.saturating_sub(bytes);
                    return Step::Answer(answer);
                }
                Found::Refused(fault, answer) => {
                    *budget = budget.saturating_sub(bytes);
                    tell_fault(operation.name(), fault, out);
                    return refused(answer);
                }
            }
        }
        let (Some(reading), Some(frame)) = (&mut job.reading, payloads.first()) else {
            return self.refuse(operation, RequestFault::Malformed, out);
        };
        let mut tools = KeyTools {
            algorithm: self.config.hash_algorithm,
            chunk_tokens: self.config.chunk_size,
            memo: &mut self.memo,
        };
        match reading.reader.read(frame, &mut tools, budget) {
            Ok(Progress::More) => Step::More,
            Ok(Progress::Done) => self.ask(operation, reading, payloads, out),
            Err(error) => self.refuse(operation, error.fault(), out),
        }
    }

    fn read_payloads<'a>(
        &mut self,
        operation: Operation,
        body: Body,
        payloads: &[&'a [u8]],
    ) -> Found<'a> {
        let incarnation = self.config.incarnation;
        let decoded = match body {
            Body::Announced { bytes } => return announced(operation, payloads, bytes),
            Body::Here if decoded_bytes(operation, payloads) > DECODED_BYTES_MAX => {
                return oversized(operation, incarnation);
            }
            Body::Here => Request::decode(operation, payloads),
        };
        match decoded {
            Ok(request) => self.route(&request),
            Err(fault) => {
                Found::Refused(fault_of(fault), fault_answer(operation, fault, incarnation))
            }
        }
    }

    fn route<'a>(&mut self, request: &Request<'a>) -> Found<'a> {
        if let Some(purpose) = purpose(request) {
            return Found::Key(purpose);
        }
        Found::Ask(match *request {
            Request::QueryPrefetchStatus { request: id }
            | Request::WaitPrefetchStatus { request: id, .. }
            | Request::EndSession { request: id }
                if check_request(id).is_err() =>
            {
                let answer = negative_answer(request.operation(), self.config.incarnation);
                return Found::Refused(RequestFault::BadKey, answer);
            }
            Request::QueryPrefetchStatus { request } => Ask::QueryPrefetch { request },
            Request::WaitPrefetchStatus { request, wait } => Ask::WaitPrefetch { request, wait },
            Request::EndSession { request } => Ask::EndSession { request, hashes: &[] },
            Request::RegisterEngineDriven(payload) => register::register(&self.config, &payload),
            Request::RegisterKvCache(payload) => paged::register(&self.config, &payload),
            Request::RegisterQCache(payload) => {
                register::refused(payload.instance, payload.model, Refusal::QueryCache)
            }
            Request::RegisterRope(payload) => {
                register::refused(payload.instance, "", Refusal::Rope)
            }
            Request::UnregisterEngineDriven { instance }
            | Request::UnregisterKvCache { instance } => Ask::Unregister { instance },
            Request::Ping { instance } => Ask::Ping { instance },
            Request::Clear { force } => Ask::Clear { force },
            Request::ReportBlockAllocation { instance, model, records } => {
                return match check_model(model) {
                    Ok(()) if self.allocated.read(&records) => Found::Allocated { instance, model },
                    Ok(()) => Found::Refused(RequestFault::BadBlocks, Answer::None),
                    Err(_) => Found::Refused(RequestFault::BadKey, Answer::None),
                };
            }
            _ => return self.answer(request),
        })
    }

    /// Requests that need no engine: answered here, or not served.
    fn answer<'a>(&self, request: &Request<'a>) -> Found<'a> {
        Found::Answer(match request {
            Request::ChunkSize => Answer::Count(self.config.chunk_size as u64),
            Request::Noop => Answer::Text("OK"),
            Request::Experimental => Answer::NoTexts,
            // The other modes have registered nothing that could be unregistered: that is success.
            Request::UnregisterQCache { .. } | Request::UnregisterRope { .. } => Answer::None,
            unserved => {
                let answer = unserved_answer(unserved, self.config.incarnation);
                return Found::Refused(RequestFault::NotServed, answer);
            }
        })
    }

    /// The end of a session says what was known of it, and makes it the first to be forgotten.
    fn with_memo<'a>(&'a mut self, ask: Ask<'a>) -> Ask<'a> {
        match ask {
            Ask::EndSession { request, .. } => {
                self.memo.retire(request);
                Ask::EndSession { request, hashes: self.memo.hashes(request) }
            }
            other => other,
        }
    }

    fn ask<'a>(
        &'a mut self,
        operation: Operation,
        reading: &Reading,
        payloads: &[&'a [u8]],
        out: &mut Outbox,
    ) -> Step<'a> {
        let key = match reading.reader.key(payloads[0]) {
            Ok(key) => key,
            Err(error) => return self.refuse(operation, error.fault(), out),
        };
        if matches!(reading.purpose, Purpose::Store { .. } | Purpose::Retrieve { .. })
            && !read_blocks(payloads, &mut self.blocks)
        {
            return self.refuse(operation, RequestFault::BadBlocks, out);
        }
        if let Purpose::Retrieve { skip_tokens: None, .. } = reading.purpose {
            return self.refuse(operation, RequestFault::Malformed, out);
        }
        let chunk_tokens = self.config.chunk_size;
        let (range, worker) = match reading.purpose {
            Purpose::Lookup => (range::lookup(&key, chunk_tokens), None),
            Purpose::Free => (range::free(&key, chunk_tokens), None),
            _ => (range::transfer(&key, chunk_tokens), key.worker),
        };
        let range = match range {
            Ok(range) => range,
            Err(fault) => return self.refuse(operation, fault, out),
        };
        let keys = Keys {
            model: key.model,
            salt: key.salt,
            request: key.request,
            world_size: key.world_size,
            worker,
            readers: u16::try_from(key.readers).unwrap_or(u16::MAX),
            first_chunk: range.start,
            end_chunk: range.end,
            // Reading the key has just left them there, one for each whole chunk of its tokens.
            hashes: &self.memo.hashes(key.request)[..range.end as usize],
        };
        Step::Ask(match reading.purpose {
            Purpose::Lookup => Ask::Lookup { keys },
            Purpose::Free => Ask::FreeLookupLocks { keys },
            Purpose::PrepareStore { instance } => Ask::PrepareStore { instance, keys },
            Purpose::CommitStore { instance, inline_bytes } => {
                Ask::CommitStore { instance, keys, inline_bytes }
            }
            Purpose::PrepareRetrieve { instance } => Ask::PrepareRetrieve { instance, keys },
            Purpose::CommitRetrieve { instance } => Ask::CommitRetrieve { instance, keys },
            Purpose::Store { instance } => Ask::Store { instance, keys, blocks: &self.blocks },
            Purpose::Retrieve { instance, skip_tokens } => {
                let blocks = &self.blocks;
                let skip_tokens = skip_tokens.expect("refused above");
                Ask::Retrieve { instance, keys, blocks, skip_tokens }
            }
        })
    }

    fn refuse<'a>(&self, operation: Operation, fault: RequestFault, out: &mut Outbox) -> Step<'a> {
        tell_fault(operation.name(), fault, out);
        Step::Answer(negative_answer(operation, self.config.incarnation))
    }
}

fn purpose(request: &Request<'_>) -> Option<Purpose> {
    Some(match *request {
        Request::Lookup { .. } => Purpose::Lookup,
        Request::FreeLookupLocks { .. } => Purpose::Free,
        Request::PrepareStore { instance, .. } => Purpose::PrepareStore { instance },
        Request::CommitStore { instance, data, .. } => {
            Purpose::CommitStore { instance, inline_bytes: data.0.len() as u64 }
        }
        Request::PrepareRetrieve { instance, .. } => Purpose::PrepareRetrieve { instance },
        Request::CommitRetrieve { instance, .. } => Purpose::CommitRetrieve { instance },
        Request::Store(ServerDrivenTransfer { instance, .. }) => Purpose::Store { instance },
        Request::Retrieve { transfer, skip_first_tokens } => Purpose::Retrieve {
            instance: transfer.instance,
            skip_tokens: u64::try_from(skip_first_tokens).ok(),
        },
        _ => return None,
    })
}

/// Reads the block ids of a transfer: those of its one group of layers, each a place in a table.
/// False where they are anything else.
fn read_blocks(payloads: &[&[u8]], blocks: &mut Vec<u32>) -> bool {
    blocks.clear();
    let frame = payloads.get(BLOCKS_PAYLOAD).copied().unwrap_or_default();
    let Ok(groups) = List::<List<'_, i64>>::read(&mut Reader::new(frame)) else { return false };
    let mut groups = groups.iter();
    let (Some(ids), None) = (groups.next(), groups.next()) else { return false };
    if ids.len() > REQUEST_BLOCKS_MAX {
        return false;
    }
    blocks.extend(ids.iter().map_while(|id| u32::try_from(id).ok()));
    blocks.len() == ids.len()
}

/// Bytes of payloads that are decoded at once: all but a key, which is read step by step, and the
/// data behind it, which is not looked at.
fn decoded_bytes(operation: Operation, payloads: &[&[u8]]) -> usize {
    let decoded = match operation {
        Operation::Lookup
        | Operation::FreeLookupLocks
        | Operation::PrepareStore
        | Operation::CommitStore
        | Operation::PrepareRetrieve
        | Operation::CommitRetrieve => payloads.get(1..2).unwrap_or(&[]),
        Operation::Store | Operation::Retrieve => payloads.get(1..).unwrap_or(&[]),
        _ => payloads,
    };
    decoded.iter().map(|payload| payload.len()).sum()
}

/// The only message whose last frame may be streamed is a store with inline data.
fn announced<'a>(operation: Operation, payloads: &[&'a [u8]], inline_bytes: u64) -> Found<'a> {
    let fault = match (operation, payloads) {
        (Operation::CommitStore, [key, instance]) => match decode_commit_head(key, instance) {
            Ok((_, instance)) => {
                return Found::Key(Purpose::CommitStore { instance, inline_bytes });
            }
            Err(fault) => fault_of(fault),
        },
        (Operation::CommitStore, _) => RequestFault::PayloadCount,
        _ => RequestFault::Malformed,
    };
    Found::Refused(fault, negative_answer(operation, 0))
}

/// Everything but keys is decoded in one go, so it must not be large. What is, is not decoded:
/// clients send nothing of the kind.
fn oversized<'a>(operation: Operation, incarnation: u64) -> Found<'a> {
    match operation {
        Operation::RegisterKvCache
        | Operation::RegisterQCache
        | Operation::RegisterRope
        | Operation::RegisterEngineDriven => {
            let refusal = Refusal::Malformed("the registration is larger than 1 MiB");
            Found::Refused(RequestFault::Malformed, Answer::Refused(refusal))
        }
        _ => Found::Refused(RequestFault::Malformed, negative_answer(operation, incarnation)),
    }
}

/// A registration that cannot be read is refused by the engine like any other, so that it is
/// counted and shown; who sent it is not known.
fn refused<'a>(answer: Answer) -> Step<'a> {
    match answer {
        Answer::Refused(reason) => {
            Step::Ask(Ask::RegisterRefused { instance: InstanceId(0), model: "", reason })
        }
        answer => Step::Answer(answer),
    }
}

/// A message whose second frame names no operation. Only a late word about a stream that has ended
/// stays without an answer (spec/wire §1.8).
fn nameless<'a>(operation: &[u8], payloads: &[&[u8]], out: &mut Outbox) -> Step<'a> {
    if operation.is_empty() && matches!(payloads, [b"ack"] | [b"cancel"]) {
        return Step::Silent;
    }
    tell_fault("", RequestFault::UnknownOperation, out);
    Step::Answer(Answer::None)
}

fn fault_of(fault: Fault) -> RequestFault {
    match fault {
        Fault::PayloadCount { .. } => RequestFault::PayloadCount,
        Fault::Malformed { .. } => RequestFault::Malformed,
    }
}

fn tell_fault(operation: &'static str, fault: RequestFault, out: &mut Outbox) {
    out.tell(Fact::RequestFaulted { operation, fault });
}

/// Where `store` and `retrieve` have their block ids: behind key and instance.
const BLOCKS_PAYLOAD: usize = 2;
/// Payloads other than keys that are decoded at once.
const DECODED_BYTES_MAX: usize = 1 << 20;
