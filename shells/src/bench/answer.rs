//! Answers as they come from the stream, gathered into one buffer that is used again: no memory is
//! taken per answer once it has grown.

use super::message::Uid;
use kvtide_core::wire::msgpack::Reader;
use kvtide_core::wire::operation::{Operation, decode_operation};
use kvtide_core::wire::zmtp::{Decoder, Role, Token, pong};

/// The frames of one message.
#[derive(Debug, Default)]
pub struct Answer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Answer {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn frame(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// The value, where this answers that request; else a sentence about what came instead.
    pub fn value(&self, uid: Uid, operation: Operation) -> Result<Option<&[u8]>, String> {
        if self.frame(0) != Some(&uid.frame()[..]) {
            return Err(format!("{} is answered with another request's number", operation.name()));
        }
        let Some(second) = self.frame(1) else {
            return Err(format!("{} is answered with one frame", operation.name()));
        };
        if decode_operation(second) == Some(operation) {
            return Ok(self.frame(2));
        }
        // A refusal has its reason where the operation stands.
        let reason = Reader::new(second).read_str().unwrap_or("not with its own operation");
        Err(format!("{} is refused: {reason}", operation.name()))
    }

    /// A count; None where the answer has no value.
    pub fn count(&self, uid: Uid, operation: Operation) -> Result<Option<u64>, String> {
        let Some(value) = self.value(uid, operation)? else { return Ok(None) };
        match Reader::new(value).read_u64() {
            Ok(count) => Ok(Some(count)),
            Err(_) => {
                Err(format!("{} is answered with something else than a count", operation.name()))
            }
        }
    }
}

/// One connection's incoming side.
#[derive(Debug)]
pub struct Inlet {
    decoder: Decoder,
    answer: Answer,
    whole: bool,
}

impl Default for Inlet {
    fn default() -> Inlet {
        Inlet { decoder: Decoder::new(Role::Dealer), answer: Answer::default(), whole: false }
    }
}

impl Inlet {
    pub fn is_ready(&self) -> bool {
        self.decoder.is_ready()
    }

    /// The message that `feed` completed last.
    pub fn last(&self) -> &Answer {
        &self.answer
    }

    /// Takes bytes off the front of `input` until a message is whole. None: all are taken and more
    /// are needed. PONGs to be sent are appended to `pongs`.
    pub fn feed(
        &mut self,
        input: &mut &[u8],
        pongs: &mut Vec<u8>,
    ) -> Result<Option<&Answer>, String> {
        if std::mem::take(&mut self.whole) {
            self.answer.clear();
        }
        loop {
            match self.decoder.step(input).map_err(|fault| fault.text().to_owned())? {
                None => return Ok(None),
                Some(Token::Greeted | Token::Ready | Token::FrameStarted { .. }) => {}
                Some(Token::Ping(context)) => pongs.extend_from_slice(&pong(context)),
                Some(Token::FrameBytes(bytes)) => self.answer.bytes.extend_from_slice(bytes),
                Some(Token::FrameEnded { more }) => {
                    self.answer.ends.push(self.answer.bytes.len());
                    if !more {
                        self.whole = true;
                        return Ok(Some(&self.answer));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::wire::client::{append_message, operation_frame};
    use kvtide_core::wire::zmtp::{GREETING, READY_ROUTER};

    fn stream(messages: &[&[&[u8]]]) -> Vec<u8> {
        let mut bytes = [&GREETING[..], READY_ROUTER].concat();
        messages.iter().for_each(|frames| append_message(frames, &mut bytes));
        bytes
    }

    #[test]
    fn answers_come_one_by_one_and_are_held_to_their_request() {
        let (first, second) = (Uid::FIRST, Uid::FIRST.next());
        let wait = operation_frame(Operation::WaitPrefetchStatus);
        let bytes = stream(&[
            &[&first.frame(), &wait, &[16]],
            &[&second.frame(), &wait],
            &[&second.frame(), b"\xa3no!"],
        ]);
        let (mut inlet, mut pongs, mut input) = (Inlet::default(), Vec::new(), &bytes[..]);
        let wait = Operation::WaitPrefetchStatus;
        let answer = inlet.feed(&mut input, &mut pongs).expect("right").expect("whole");
        assert_eq!(answer.count(first, wait), Ok(Some(16)));
        assert!(answer.count(second, wait).is_err(), "that is another request");
        assert!(answer.count(first, Operation::Lookup).is_err(), "and another operation");
        let answer = inlet.feed(&mut input, &mut pongs).expect("right").expect("whole");
        assert_eq!(answer.count(second, wait), Ok(None));
        let answer = inlet.feed(&mut input, &mut pongs).expect("right").expect("whole");
        let refusal = answer.count(second, wait).expect_err("a refusal");
        assert!(refusal.ends_with("is refused: no!"), "{refusal}");
        assert!(matches!(inlet.feed(&mut input, &mut pongs), Ok(None)));
    }

    #[test]
    fn a_server_that_is_something_else_is_found_out() {
        let mut input = &b"HTTP/1.1 400 Bad Request\r\n"[..];
        let fault = Inlet::default().feed(&mut input, &mut Vec::new()).map(|_| ());
        assert!(fault.is_err_and(|sentence| sentence.contains("greeting")));
    }
}
