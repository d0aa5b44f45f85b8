//! From bytes to questions: reads a socket, assembles messages, has the front decode them and puts
//! them to the engine. Invariant: nothing a peer sends is waited for, and nothing of it is kept
//! beyond a bound; whoever exceeds one is held, answered or closed, and others do not notice.

use super::buffers::Class;
use super::connection::{Connection, Phase, Plan, Served};
use super::counters::Closing;
use super::requests::Envelope;
use super::shared::{Desk, Shared};
use kvtide_core::event::{Ask, Event};
use kvtide_core::front::paged::{event, memory};
use kvtide_core::front::{Body as Data, Step};
use kvtide_core::limits::{
    FRAMES_MAX, INPUT_BYTES_PER_TURN, LARGE_FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGES_PER_TURN,
    SMALL_MESSAGE_BYTES_MAX,
};
use kvtide_core::wire::answer::append_answer;
use kvtide_core::wire::operation::{Operation, decode_operation};
use kvtide_core::wire::request::bin_head;
use kvtide_core::wire::zmtp::{READY_ROUTER, Token, ZmtpFault, pong};

/// What a connection may still use up in this turn.
struct Share {
    messages: usize,
    /// Bytes to be read.
    bytes: usize,
    /// Bytes to be decoded and hashed by the front.
    work: usize,
}

impl Connection {
    /// This connection's part of a turn.
    pub fn serve<E: Desk>(&mut self, shared: &mut Shared<E>) -> Served {
        let served = self.serve_share(shared);
        self.account(shared);
        served
    }

    fn serve_share<E: Desk>(&mut self, shared: &mut Shared<E>) -> Served {
        let mut share = Share {
            messages: MESSAGES_PER_TURN,
            bytes: INPUT_BYTES_PER_TURN,
            work: INPUT_BYTES_PER_TURN,
        };
        loop {
            self.let_go_of_answers(shared);
            if !self.wants_service(shared.terms()) {
                return Served::Idle;
            }
            let spent = share.messages == 0 || share.bytes == 0 || share.work == 0;
            if spent || shared.is_turn_full() {
                return Served::Again;
            }
            match self.phase {
                Phase::Verdict(_) => return Served::Idle,
                // The rest of its frame will not come, or comes too late for anybody.
                Phase::Waiting => return Served::Ended,
                Phase::Discarding if !self.decoder.is_ready() => return Served::Ended,
                Phase::Working(_) => self.work(shared, &mut share),
                Phase::Reading if self.unread_at < self.unread.len() => {
                    self.decode_unread(shared, &mut share);
                }
                Phase::Reading | Phase::Discarding => {
                    if let Some(served) = self.read_once(shared, &mut share) {
                        return served;
                    }
                }
            }
        }
    }

    /// Reads what is there, at most the turn's share, and decodes it.
    fn read_once<E: Desk>(&mut self, shared: &mut Shared<E>, share: &mut Share) -> Option<Served> {
        let mut scratch = std::mem::take(&mut shared.scratch);
        let room = scratch.len().min(share.bytes);
        let outcome = match self.read(&mut scratch[..room]) {
            Ok(Some(0)) => Some(Served::Ended),
            Ok(Some(count)) => {
                share.bytes -= count;
                shared.counters.input_bytes += count as u64;
                self.heard = shared.now;
                let rest = self.decode(shared, share, &scratch[..count]);
                if rest > 0 {
                    self.unread = shared.buffers.take();
                    self.unread.extend_from_slice(&scratch[count - rest..count]);
                    self.unread_at = 0;
                }
                None
            }
            Ok(None) => Some(Served::Idle),
            Err(_) => Some(Served::Ended),
        };
        shared.scratch = scratch;
        outcome
    }

    /// Goes on with bytes that an earlier turn left.
    fn decode_unread<E: Desk>(&mut self, shared: &mut Shared<E>, share: &mut Share) {
        let unread = std::mem::take(&mut self.unread);
        let rest = self.decode(shared, share, &unread[self.unread_at..]);
        if rest > 0 {
            self.unread_at = unread.len() - rest;
            self.unread = unread;
        } else {
            self.unread_at = 0;
            shared.buffers.give(unread);
        }
    }

    /// Decodes until the input or the share is used up or something else is due first. Returns how
    /// many bytes are left at the end of `input`.
    fn decode<E: Desk>(
        &mut self,
        shared: &mut Shared<E>,
        share: &mut Share,
        mut input: &[u8],
    ) -> usize {
        let terms = shared.terms();
        while share.messages > 0 && !shared.is_turn_full() {
            match self.phase {
                // Who has hung up is heard to the end, or it would stay for ever.
                Phase::Reading if self.hung_up || self.may_ask(terms) => {}
                Phase::Working(_) if share.work > 0 && !self.starving => {
                    self.work(shared, share);
                    continue;
                }
                Phase::Discarding => return 0,
                _ => return input.len(),
            }
            match self.next_token(&mut input) {
                Ok(Some(token)) => self.take_token(shared, share, token),
                Ok(None) => break,
                Err(fault) => self.close(shared, Closing::Protocol(fault)),
            }
        }
        input.len()
    }

    /// The head of an inline body is taken byte by byte, so that the body itself stays in `input`
    /// until it is known where to.
    fn next_token<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Token<'i>>, ZmtpFault> {
        if self.plan != Plan::Head {
            return self.decoder.step(input);
        }
        let (mut few, rest) = input.split_at(input.len().min(1));
        let token = self.decoder.step(&mut few);
        // The end of a frame takes no byte.
        if few.is_empty() {
            *input = rest;
        }
        token
    }

    fn take_token<E: Desk>(&mut self, shared: &mut Shared<E>, share: &mut Share, token: Token<'_>) {
        match token {
            Token::Greeted => self.say(shared, READY_ROUTER),
            Token::Ready => {}
            Token::Ping(context) => self.say(shared, &pong(context)),
            Token::FrameStarted { more, bytes } => self.frame_started(shared, more, bytes),
            Token::FrameBytes(part) => self.frame_bytes(shared, part),
            Token::FrameEnded { more } => self.frame_ended(shared, share, more),
        }
    }

    fn frame_started<E: Desk>(&mut self, shared: &mut Shared<E>, more: bool, bytes: u64) {
        self.message.lend_buffer(|| shared.buffers.take());
        let index = self.message.begin_frame();
        if index == DATA_FRAME && !more && self.operation() == Some(Operation::CommitStore) {
            self.plan = Plan::Head;
            self.body_bytes = bytes;
            return;
        }
        let message_bytes = bytes.saturating_add(self.message.bytes() as u64);
        // One message takes at most what a budget holds: it never waits for itself.
        if bytes > LARGE_FRAME_BYTES_MAX as u64 || message_bytes > MESSAGE_BYTES_MAX as u64 {
            return self.close(shared, Closing::FrameTooLarge);
        }
        if index < PAYLOAD_FRAME && bytes > ENVELOPE_FRAME_BYTES_MAX {
            return self.close(shared, Closing::EnvelopeTooLarge);
        }
        if index >= FRAMES_MAX {
            self.plan = Plan::Skip;
            return;
        }
        self.plan = Plan::Keep;
        let (bytes, message_bytes) = (bytes as usize, message_bytes as usize);
        // What comes beside a granted frame is small, or is granted itself.
        if message_bytes - self.granted.total().min(message_bytes) > SMALL_MESSAGE_BYTES_MAX {
            let class = Class::of(message_bytes);
            if shared.budgets.of(class).reserve(self.name, bytes) {
                self.is_granted(class, bytes, shared);
            } else {
                self.phase = Phase::Waiting;
            }
        }
    }

    /// The shared budget has room for the frame that began.
    pub(super) fn is_granted<E: Desk>(
        &mut self,
        class: Class,
        bytes: usize,
        shared: &mut Shared<E>,
    ) {
        self.granted.add(class, bytes, (shared.now, self.message.bytes()));
        // Nothing was read while it waited; that is not held against it.
        self.heard = shared.now;
        self.message.reserve(bytes, &mut shared.buffers);
        if let Phase::Waiting = self.phase {
            self.phase = Phase::Reading;
        }
    }

    fn frame_bytes<E: Desk>(&mut self, shared: &mut Shared<E>, part: &[u8]) {
        match self.plan {
            Plan::Keep => self.message.append(part),
            Plan::Skip => {}
            Plan::Head => {
                self.message.append(part);
                self.read_head(shared);
            }
            Plan::Body => {
                let body = self.body.as_mut().expect("a body is planned while it is open");
                body.feed(part, &mut shared.arena);
            }
        }
    }

    /// What follows the head is the body, or what takes its place; unless somebody wants it,
    /// nobody does.
    fn read_head<E: Desk>(&mut self, shared: &mut Shared<E>) {
        let head = self.message.frame(DATA_FRAME);
        let body = match bin_head(head, self.body_bytes) {
            Ok(None) => return,
            Ok(Some((_, bytes))) => {
                self.body_bytes = bytes;
                self.message.drop_frame();
                Data::Announced { bytes }
            }
            // Its first byte alone is no binary either, so the front finds the fault again.
            Err(_) => {
                self.body_bytes = 0;
                self.message.truncate_frame(1);
                Data::Here
            }
        };
        self.plan = Plan::Skip;
        self.begin_work(shared, body);
    }

    fn frame_ended<E: Desk>(&mut self, shared: &mut Shared<E>, share: &mut Share, more: bool) {
        if more {
            return;
        }
        share.messages -= 1;
        shared.counters.messages += 1;
        if let Some(body) = self.body.take() {
            shared.door.tell(body.ended());
        }
        if !self.asked {
            self.begin_work(shared, Data::Here);
        }
        // The next frame begins a new message.
        (self.asked, self.body_bytes, self.plan) = (false, 0, Plan::Skip);
    }

    /// The message, or what comes before its inline body, is complete.
    fn begin_work<E: Desk>(&mut self, shared: &mut Shared<E>, data: Data) {
        (self.asked, self.data) = (true, data);
        self.phase = Phase::Working(shared.front.begin(data));
    }

    /// Has the front decode some of the message. When it is done, the question goes to the engine.
    fn work<E: Desk>(&mut self, shared: &mut Shared<E>, share: &mut Share) {
        let Phase::Working(mut job) = std::mem::replace(&mut self.phase, Phase::Reading) else {
            return;
        };
        let message = std::mem::take(&mut self.message);
        let mut frames = [&[][..]; FRAMES_MAX];
        let count = message.kept(&mut frames);
        let [uid, operation] = [frames[UID_FRAME], frames[OPERATION_FRAME]];
        let out = &mut shared.door.out;
        match shared.front.step(&mut job, &frames[..count], &mut share.work, out) {
            Step::More => {
                self.message = message;
                self.phase = Phase::Working(job);
                return;
            }
            Step::Silent => {}
            Step::Answer(answer) => {
                if self.opens_output(shared) {
                    let (context, out) = (shared.context(), &shared.door.out);
                    self.outgoing.encode(|bytes| {
                        append_answer(answer, uid, operation, &context, out, bytes);
                    });
                }
            }
            Step::Ask(ask) => {
                let envelope = Envelope::new(uid, operation);
                let reply = shared.requests.open(&mut self.own, self.name, envelope);
                let Some(reply) = reply else {
                    self.message = message;
                    return self.starve(shared);
                };
                match ask {
                    Ask::RegisterPaged(_) => {
                        let memory = memory(&frames[..count]);
                        shared.memories.extend(memory.map(|memory| (reply, memory)));
                    }
                    Ask::Store { .. } | Ask::Retrieve { .. } => {
                        shared.events.insert(reply, event(&frames[..count]).into());
                    }
                    _ => {}
                }
                let speaker = shared.door.speaker(&ask);
                shared.door.tell(Event::Asked { reply, ask });
                if let Some(request) = speaker {
                    shared.record_tokens(&request);
                }
                if self.mute {
                    // Nobody takes the answer.
                    shared.requests.drop_all(&mut self.own);
                }
                if self.asked && self.body_bytes > 0 {
                    self.phase = Phase::Verdict(reply);
                }
            }
        }
        self.message = message;
        self.drop_message(shared);
    }

    /// The request table is full: the message is kept, and decoded again when there is a place.
    /// What needs no place, others' probes among it, is answered meanwhile.
    fn starve<E: Desk>(&mut self, shared: &mut Shared<E>) {
        self.phase = Phase::Working(shared.front.begin(self.data));
        self.starving = true;
        shared.starved.push_back(self.name);
    }

    fn operation(&self) -> Option<Operation> {
        decode_operation(self.message.frame(OPERATION_FRAME))
    }
}

const UID_FRAME: usize = 0;
const OPERATION_FRAME: usize = 1;
/// The first frame after uid and operation.
const PAYLOAD_FRAME: usize = 2;
/// The frame of a `commit_store` that holds the inline body: after key and instance.
const DATA_FRAME: usize = PAYLOAD_FRAME + 2;
/// Bytes of a uid or operation frame. Clients send a counter of at most nine and a name of at most
/// forty; an answer repeats both.
const ENVELOPE_FRAME_BYTES_MAX: u64 = 64 << 10;
