//! One connection of a fleet and where its request stands.

use crate::bench::answer::{Answer, Inlet};
use crate::bench::candidate::{Candidate, Prompt, SessionMessages};
use crate::bench::message::{Ids, RequestId, Uid};
use kvtide_core::wire::operation::Operation;
use mio::net::TcpStream;
use std::io::{self, ErrorKind, Read, Write};

/// What members share of their candidate.
pub struct Kit<'c> {
    session: &'c SessionMessages,
    ids: &'c mut Ids,
}

impl Kit<'_> {
    pub fn of(candidate: &mut Candidate) -> Kit<'_> {
        Kit { session: &candidate.session, ids: &mut candidate.ids }
    }
}

/// The call that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Lookup,
    Wait,
    Free,
    End,
}

pub struct Member {
    pub stream: TcpStream,
    inlet: Inlet,
    stage: Stage,
    /// The number of its prompt.
    prompt: usize,
    id: RequestId,
    uid: Uid,
    due: u64,
    out: Vec<u8>,
    sent: usize,
    /// The last lookup as it was sent, and the number of its prompt.
    kept: Vec<u8>,
    kept_prompt: Option<usize>,
    pongs: Vec<u8>,
}

impl Member {
    pub fn new(stream: std::net::TcpStream, inlet: Inlet) -> io::Result<Member> {
        stream.set_nonblocking(true)?;
        Ok(Member {
            stream: TcpStream::from_std(stream),
            inlet,
            stage: Stage::Idle,
            prompt: 0,
            id: RequestId::NONE,
            uid: Uid::FIRST,
            due: 0,
            out: Vec::new(),
            sent: 0,
            kept: Vec::new(),
            kept_prompt: None,
            pongs: Vec::new(),
        })
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Puts the first call of a request into the output; `send` is to follow.
    pub fn begin(&mut self, (number, prompt): (usize, &Prompt), due: u64, kit: &mut Kit<'_>) {
        assert!(self.is_idle(), "a connection has one request at a time");
        self.stage = Stage::Lookup;
        self.prompt = number;
        self.due = due;
        self.id = kit.ids.next_id();
        self.uid = self.uid.next();
        self.sent = 0;
        if self.kept_prompt.take() == Some(number) {
            // A prompt of megabytes is not copied again: that would hold up all others.
            std::mem::swap(&mut self.out, &mut self.kept);
            prompt.lookup.patch(self.uid, self.id, &mut self.out);
        } else {
            prompt.lookup.stamp(self.uid, self.id, &mut self.out);
        }
        if prompt.hits == 0 {
            prompt.lookup.stamp_token(kit.ids.next_token(), &mut self.out);
        }
    }

    /// Sends a part of the output. True: more can be sent at once.
    pub fn send(&mut self) -> io::Result<bool> {
        if self.sent == self.out.len() {
            return Ok(false);
        }
        let end = self.out.len().min(self.sent + SEND_BYTES);
        match self.stream.write(&self.out[self.sent..end]) {
            Ok(count) => {
                self.sent += count;
                // A short write means that the socket is full: it tells when it is not.
                Ok(self.sent == end && end < self.out.len())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes what has come and puts the next call into the output. When the request has ended: when
    /// it was due.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        prompts: &[Prompt],
        kit: &mut Kit<'_>,
    ) -> Result<Option<u64>, String> {
        let mut ended = None;
        loop {
            let count = match self.stream.read(buffer) {
                Ok(0) => return Err("the server closed the connection".to_owned()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ended),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            let mut input = &buffer[..count];
            while let Some(answer) = self.inlet.feed(&mut input, &mut self.pongs)? {
                let prompt = &prompts[self.prompt];
                check(answer, self.stage, self.uid, prompt)?;
                if self.go_on(prompt, kit) {
                    ended = Some(self.due);
                }
            }
            self.answer_pings().map_err(|error| error.to_string())?;
            // A short read has emptied the socket.
            if count < buffer.len() {
                return Ok(ended);
            }
        }
    }

    /// The next call of the request. True where there is none.
    fn go_on(&mut self, prompt: &Prompt, kit: &Kit<'_>) -> bool {
        let (stage, message) = match self.stage {
            Stage::Lookup => (Stage::Wait, &kit.session.wait),
            Stage::Wait if prompt.hits > 0 => (Stage::Free, &prompt.free),
            Stage::Wait | Stage::Free => (Stage::End, &kit.session.end),
            Stage::End | Stage::Idle => {
                self.stage = Stage::Idle;
                return true;
            }
        };
        if self.stage == Stage::Lookup {
            std::mem::swap(&mut self.out, &mut self.kept);
            self.kept_prompt = Some(self.prompt);
        }
        self.stage = stage;
        self.uid = self.uid.next();
        self.sent = 0;
        message.stamp(self.uid, self.id, &mut self.out);
        false
    }

    /// A PONG goes between two messages; while one is half sent it is owed.
    fn answer_pings(&mut self) -> io::Result<()> {
        if self.pongs.is_empty() || (self.sent > 0 && self.sent < self.out.len()) {
            return Ok(());
        }
        // Short enough to fit any socket that is not full.
        match self.stream.write(&self.pongs) {
            Ok(_) => self.pongs.clear(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Holds an answer to what was asked.
fn check(answer: &Answer, stage: Stage, uid: Uid, prompt: &Prompt) -> Result<(), String> {
    let operation = match stage {
        Stage::Idle => return Err("answers before it is asked".to_owned()),
        Stage::Lookup => Operation::Lookup,
        Stage::Free => Operation::FreeLookupLocks,
        Stage::End => Operation::EndSession,
        Stage::Wait => {
            return prompt.judge(answer.count(uid, Operation::WaitPrefetchStatus)?);
        }
    };
    answer.value(uid, operation).map(drop)
}

/// What a member sends before others have their turn: a request of 16 chunks is a fifth of it.
const SEND_BYTES: usize = 96 << 10;
