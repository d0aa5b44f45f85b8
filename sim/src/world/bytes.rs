//! Clients that speak bytes: their requests are framed, cut into pieces, gathered, decoded and
//! hashed by the very `wire` and `front` that production uses before they become questions.
//!
//! What is understood must be what was meant. Some messages are broken on the way: those are
//! refused with an answer and a fact, and change nothing, or happen to be another request.

use super::actions::{Action, Then};
use super::{ProcessId, Step, World};
use crate::calls::{Blocks, Call, Paged, Range};
use crate::devices::DeviceId;
use crate::reach::State;
use kvtide_core::effect::{Answer, Outbox};
use kvtide_core::event::{Ask, Keys};
use kvtide_core::fact::Fact;
use kvtide_core::front::{Body, Front, Job, Step as Heard};
use kvtide_core::names::Connection;
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;
use kvtide_core::wire::client::{Key, append_message, encode_payloads, operation_frame, uid_frame};
use kvtide_core::wire::fields::Opaque;
use kvtide_core::wire::request::{EngineDrivenRegistration, KeyFrame, Request};
use kvtide_core::wire::zmtp::{Decoder, GREETING, READY_DEALER, Role, Token};
use std::collections::VecDeque;

/// The server's side of one connection.
pub(crate) struct Link {
    decoder: Decoder,
    frame: Vec<u8>,
    frames: Vec<Vec<u8>>,
    inbox: VecDeque<Message>,
}

struct Message {
    frames: Vec<Vec<u8>>,
    job: Job,
    /// What its client meant.
    call: Call,
    then: Then,
    is_broken: bool,
}

/// What the front made of a message.
enum Understood {
    NotYet,
    Call(Call),
    Answered(Answer),
    Nothing,
}

impl Default for Link {
    /// A connection whose handshake is over.
    fn default() -> Link {
        let mut decoder = Decoder::new(Role::Router);
        for mut greeting in [&GREETING[..], READY_DEALER] {
            while let Ok(Some(_)) = decoder.step(&mut greeting) {}
        }
        Link { decoder, frame: Vec::new(), frames: Vec::new(), inbox: VecDeque::new() }
    }
}

impl Link {
    /// Takes in some bytes. The frames of the message that they complete.
    fn feed(&mut self, mut input: &[u8]) -> Result<Option<Vec<Vec<u8>>>, String> {
        loop {
            match self.decoder.step(&mut input) {
                Ok(None) => return Ok(None),
                Ok(Some(Token::FrameBytes(bytes))) => self.frame.extend_from_slice(bytes),
                Ok(Some(Token::FrameEnded { more })) => {
                    self.frames.push(std::mem::take(&mut self.frame));
                    if !more {
                        return Ok(Some(std::mem::take(&mut self.frames)));
                    }
                }
                Ok(Some(_)) => {}
                Err(fault) => return Err(format!("P7: good bytes are no ZMTP: {fault:?}")),
            }
        }
    }
}

impl World {
    /// A message comes in, in pieces.
    pub(super) fn arrive_in_bytes(
        &mut self,
        connection: Connection,
        call: Call,
        then: Then,
    ) -> Step {
        let (mut frames, body) = self.frames(&call);
        let is_broken = self.chance(self.profile.faults.damage);
        let mut is_cut = false;
        if is_broken {
            is_cut = !damage(&mut frames, &mut self.rng);
            let what = if is_cut { "connection cut within a message" } else { "message broken" };
            self.tally.came(what);
        }
        let mut bytes = Vec::new();
        append_message(&frames, &mut bytes);
        let process = connection.0.index as usize;
        if is_cut {
            let some = self.pick(bytes.len());
            self.processes[process].link.feed(&bytes[..some])?;
            self.bench.reach.met(State::CutInMessage);
            return self.crash(ProcessId(process));
        }
        let (first, second) = bytes.split_at(self.rng.below(bytes.len() as u64) as usize);
        let link = &mut self.processes[process].link;
        let mut whole = link.feed(first)?;
        if whole.is_none() {
            whole = link.feed(second)?;
        }
        let frames = whole.ok_or("P7: a whole message was not gathered")?;
        if matches!(body, Body::Announced { .. }) {
            self.bench.reach.met(State::BodyAnnounced);
        }
        self.note_known(&call);
        let job = self.front.begin(body);
        let inbox = &mut self.processes[process].link.inbox;
        inbox.push_back(Message { frames, job, call, then, is_broken });
        if inbox.len() > 1 { Ok(()) } else { self.read_on(connection) }
    }

    /// Goes on with the messages of a connection, in their order, as far as a turn reaches.
    pub(super) fn read_on(&mut self, connection: Connection) -> Step {
        let process = connection.0.index as usize;
        while self.is_open(connection) {
            let mut budget = 16 + self.rng.below(2_000) as usize;
            let inbox = &mut self.processes[process].link.inbox;
            let Some(message) = inbox.front_mut() else { break };
            let mut out = Outbox::default();
            let understood = understand(&mut self.front, message, &mut budget, &mut out);
            if matches!(understood, Understood::NotYet) {
                self.bench.reach.met(State::ReadInParts);
                return self.read_later(connection);
            }
            let message = inbox.pop_front().expect("it is at the front");
            self.understood(connection, message, understood, &out)?;
        }
        Ok(())
    }

    fn read_later(&mut self, connection: Connection) -> Step {
        let delay = self.latency() / 8 + Duration::from_nanos(1);
        self.plan_in(delay, Action::ReadOn { connection });
        Ok(())
    }

    fn understood(
        &mut self,
        connection: Connection,
        message: Message,
        understood: Understood,
        out: &Outbox,
    ) -> Step {
        let Message { call, then, is_broken, .. } = message;
        match understood {
            Understood::NotYet => Ok(()),
            Understood::Nothing if is_broken => Ok(()),
            Understood::Nothing => Err(format!("P2: nobody answers a good request: {call:?}")),
            Understood::Call(got) if is_same(&call, &got) => {
                if let Call::EndSession { hashes, .. } = &got
                    && self.profile.faults.damage == 0
                    && !self.library.knows(hashes)
                {
                    return Err("P7: the memo knows tokens that nobody has sent".into());
                }
                self.ask(connection, got, then)
            }
            Understood::Call(got) if is_broken => {
                self.bench.reach.met(State::DamageReadsWell);
                // What it asks for may have to be named once more, by tokens that there are.
                let is_known = got.range().is_none_or(|range| self.library.knows(&range.hashes));
                if !is_known || !is_for_bench(&got) {
                    return Ok(());
                }
                self.ask(connection, got, Then::Stray)
            }
            Understood::Call(got) => Err(format!("P7: {call:?} was read as {got:?}")),
            Understood::Answered(answer) => {
                let faulted = |fact: &Fact| matches!(fact, Fact::RequestFaulted { .. });
                let is_refused =
                    out.facts.iter().any(faulted) || matches!(answer, Answer::Refused(_));
                let may_be_refused = is_broken || (is_refused && asks_for_nothing(&call));
                if !may_be_refused {
                    return Err(format!("P7: {call:?} was refused by the front"));
                }
                if is_refused {
                    let broken = (State::FrameRefused, State::RequestRefused);
                    self.bench.reach.met(if is_broken { broken.0 } else { broken.1 });
                }
                self.bench.transcript.line(format!("refused {call:?}: {answer:?}"));
                self.answer(connection, call, then, answer);
                Ok(())
            }
        }
    }

    /// Whether the front knows the beginning of a message's tokens already.
    fn note_known(&mut self, call: &Call) {
        let Some(range) = call.range() else { return };
        let known = self.front.memo().hashes(&range.request).first();
        if known.is_some() && known == range.hashes.first() {
            self.bench.reach.met(State::PrefixKnown);
        }
    }

    /// A request as a client frames it.
    fn frames(&mut self, call: &Call) -> (Vec<Vec<u8>>, Body) {
        self.messages_sent += 1;
        let key = call.range().map(|range| self.key(call, range)).unwrap_or_default();
        let key = KeyFrame(&key);
        let tp_size = call.range().map_or(0, |range| range.world_size as i64);
        let mut data = Vec::new();
        let mut body = Body::Here;
        if let Call::CommitStore { inline_bytes, .. } = call {
            // Short bodies come in one piece with their request.
            if *inline_bytes > SHORT_BODY_BYTES {
                body = Body::Announced { bytes: *inline_bytes };
            } else {
                data.resize(*inline_bytes as usize, 0);
            }
        }
        let request = match call {
            Call::Register { instance, model, world_size, layout } => {
                Request::RegisterEngineDriven(EngineDrivenRegistration {
                    instance_id: instance.0,
                    model_name: model,
                    world_size: *world_size as i64,
                    block_size: layout.slots as i64,
                    num_layers: layout.layers as i64,
                    hidden_dim_size: layout.hidden as i64,
                    dtype_str: layout.dtype.name(),
                    use_mla: layout.planes == 1,
                    num_physical_slots: Some(layout.slots as i64),
                })
            }
            Call::Unregister { instance } => {
                Request::UnregisterEngineDriven { instance: *instance }
            }
            Call::Ping { instance } => Request::Ping { instance: *instance },
            Call::Lookup { .. } => Request::Lookup { key, tp_size },
            Call::Query { request } => Request::QueryPrefetchStatus { request },
            Call::Wait { request, wait } => Request::WaitPrefetchStatus { request, wait: *wait },
            Call::Free { .. } => Request::FreeLookupLocks { key, tp_size },
            Call::EndSession { request, .. } => Request::EndSession { request },
            Call::PrepareStore { instance, .. } => {
                Request::PrepareStore { key, instance: *instance }
            }
            Call::CommitStore { instance, .. } => {
                Request::CommitStore { key, instance: *instance, data: Opaque(&data) }
            }
            Call::PrepareRetrieve { instance, .. } => {
                Request::PrepareRetrieve { key, instance: *instance }
            }
            Call::CommitRetrieve { instance, .. } => {
                Request::CommitRetrieve { key, instance: *instance }
            }
            Call::RegisterPaged { .. } | Call::Store { .. } | Call::Retrieve { .. } => {
                unreachable!("workers with memory speak in values")
            }
            Call::Clear { force } => Request::Clear { force: *force },
        };
        let mut frames = vec![uid_frame(self.messages_sent), operation_frame(request.operation())];
        frames.extend(encode_payloads(&request));
        if matches!(body, Body::Announced { .. }) {
            frames.pop();
        }
        (frames, body)
    }

    /// The frame of a key. Where the operation allows it, the range does not end or begin at a
    /// chunk, and the tokens go on beyond the last whole one.
    fn key(&mut self, call: &Call, range: &Range) -> Vec<u8> {
        let chunk = self.profile.config.chunk_size as u64;
        let mut tokens = self.library.tokens(&range.hashes).to_vec();
        tokens.extend((0..self.rng.below(chunk)).map(|_| 7));
        let (mut start, mut end) =
            (range.first_chunk as u64 * chunk, range.end_chunk as u64 * chunk);
        let some = self.rng.below(chunk);
        match call {
            Call::Lookup { .. } => end += some,
            Call::Free { .. } => {
                start = start.saturating_sub(some);
                end += some;
            }
            _ => {}
        }
        let key = Key {
            model: &range.model,
            world_size: range.world_size,
            worker: range.worker,
            tokens: &tokens,
            start,
            end,
            request: &range.request,
            salt: &range.salt,
            readers: range.readers as u32,
        };
        let mut frame = Vec::new();
        key.encode(&mut frame);
        frame
    }
}

fn understand(
    front: &mut Front,
    message: &mut Message,
    budget: &mut usize,
    out: &mut Outbox,
) -> Understood {
    let frames: Vec<&[u8]> = message.frames.iter().map(Vec::as_slice).collect();
    match front.step(&mut message.job, &frames, budget, out) {
        Heard::More => Understood::NotYet,
        Heard::Silent => Understood::Nothing,
        Heard::Answer(answer) => Understood::Answered(answer),
        Heard::Ask(Ask::RegisterRefused { reason, .. }) => {
            Understood::Answered(Answer::Refused(reason))
        }
        Heard::Ask(ask) => Understood::Call(owned(&ask)),
    }
}

fn owned(ask: &Ask<'_>) -> Call {
    match *ask {
        Ask::Register(registration) => Call::Register {
            instance: registration.instance,
            model: registration.model.into(),
            world_size: registration.world_size,
            layout: registration.layout,
        },
        Ask::RegisterRefused { .. } => unreachable!("the caller has answered it"),
        Ask::Unregister { instance } => Call::Unregister { instance },
        Ask::Ping { instance } => Call::Ping { instance },
        Ask::Lookup { keys } => Call::Lookup { range: range(&keys) },
        Ask::QueryPrefetch { request } => Call::Query { request: request.into() },
        Ask::WaitPrefetch { request, wait } => Call::Wait { request: request.into(), wait },
        Ask::FreeLookupLocks { keys } => Call::Free { range: range(&keys) },
        Ask::EndSession { request, hashes } => {
            Call::EndSession { request: request.into(), hashes: hashes.into() }
        }
        Ask::PrepareStore { instance, keys } => {
            Call::PrepareStore { instance, range: range(&keys) }
        }
        Ask::CommitStore { instance, keys, inline_bytes } => {
            Call::CommitStore { instance, range: range(&keys), inline_bytes }
        }
        Ask::PrepareRetrieve { instance, keys } => {
            Call::PrepareRetrieve { instance, range: range(&keys) }
        }
        Ask::CommitRetrieve { instance, keys } => {
            Call::CommitRetrieve { instance, range: range(&keys) }
        }
        Ask::RegisterPaged(registration) => Call::RegisterPaged {
            instance: registration.instance,
            model: registration.model.into(),
            world_size: registration.world_size,
            paged: Paged { device: NOBODYS, pages: registration.pages },
        },
        Ask::Store { instance, keys, blocks } => {
            let blocks = Blocks { device: NOBODYS, ids: blocks.into() };
            Call::Store { instance, range: range(&keys), blocks }
        }
        Ask::Retrieve { instance, keys, blocks, skip_tokens } => {
            let blocks = Blocks { device: NOBODYS, ids: blocks.into() };
            Call::Retrieve { instance, range: range(&keys), blocks, skip_tokens }
        }
        Ask::Clear { force } => Call::Clear { force },
    }
}

fn range(keys: &Keys<'_>) -> Range {
    Range {
        model: keys.model.into(),
        salt: keys.salt.into(),
        request: keys.request.into(),
        world_size: keys.world_size,
        worker: keys.worker,
        readers: keys.readers,
        first_chunk: keys.first_chunk,
        end_chunk: keys.end_chunk,
        hashes: keys.hashes.into(),
    }
}

/// Whether what was read is what was meant. The hashes of a session that ends are the memo's own.
fn is_same(meant: &Call, got: &Call) -> bool {
    if let (Call::EndSession { request: meant, .. }, Call::EndSession { request: got, .. }) =
        (meant, got)
    {
        return meant == got;
    }
    let mut meant = meant.clone();
    if let Call::Lookup { range }
    | Call::Free { range }
    | Call::PrepareStore { range, .. }
    | Call::CommitStore { range, .. }
    | Call::PrepareRetrieve { range, .. }
    | Call::CommitRetrieve { range, .. } = &mut meant
    {
        range.hashes = range.hashes[..range.end_chunk as usize].into();
    }
    meant == *got
}

/// A transfer that names no rank of its world is one that the front refuses.
fn asks_for_nothing(call: &Call) -> bool {
    match call {
        Call::PrepareStore { range, .. }
        | Call::CommitStore { range, .. }
        | Call::PrepareRetrieve { range, .. }
        | Call::CommitRetrieve { range, .. } => {
            range.worker.is_none_or(|rank| rank >= range.world_size)
        }
        _ => false,
    }
}

/// Whether the world is made for such a request: layouts of whole grains, waits that end within
/// act two, and worlds that do not stretch the bounds of a turn.
fn is_for_bench(call: &Call) -> bool {
    match call {
        Call::Register { .. } | Call::RegisterPaged { .. } => false,
        // What its blocks held would be anybody's guess.
        Call::Store { .. } | Call::Retrieve { .. } => false,
        Call::Wait { wait, .. } => *wait <= Duration::from_secs(1),
        _ => call.range().is_none_or(|range| range.world_size <= 8 && range.readers <= 8),
    }
}

/// Breaks a message. False: its connection ends within it.
fn damage(frames: &mut Vec<Vec<u8>>, rng: &mut Rng) -> bool {
    let which = 1 + rng.below(frames.len() as u64 - 1) as usize;
    let frame = &mut frames[which];
    let at = rng.below(frame.len().max(1) as u64) as usize;
    match rng.below(5) {
        0 => frame.truncate(at),
        1 if !frame.is_empty() => frame[at] ^= 1 + rng.below(255) as u8,
        2 if frames.len() > 2 => drop(frames.pop()),
        3 => frames.push(vec![0xc0]),
        _ => return false,
    }
    true
}

/// The memory that a broken message speaks of.
const NOBODYS: DeviceId = DeviceId(u32::MAX);
/// A longer body is announced by its frames and follows them.
const SHORT_BODY_BYTES: u64 = 2_048;
