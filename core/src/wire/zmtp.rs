//! ZMTP 3, NULL mechanism, as libzmq speaks it (spec/wire §1.2).
//!
//! The decoder takes whatever bytes there are and hands out what they complete. Bodies of message
//! frames pass through as slices of the input; only commands, which are short, are kept. Its one
//! invariant: the sequence of tokens depends on the stream alone, not on how it is cut.

use alloc::vec::Vec;
use core::ops::Deref;

/// Both sides open with these 64 bytes.
pub const GREETING: [u8; 64] = {
    let mut bytes = [0; 64];
    bytes[0] = 0xff;
    bytes[8] = 1;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[11] = 1;
    bytes[12] = b'N';
    bytes[13] = b'U';
    bytes[14] = b'L';
    bytes[15] = b'L';
    bytes
};

/// The second thing a ROUTER says, framed.
pub const READY_ROUTER: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\
    \x08Identity\x00\x00\x00\x00";

/// The second thing a DEALER says, framed.
pub const READY_DEALER: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\
    \x08Identity\x00\x00\x00\x00";

/// Which rule of the protocol a peer broke. Each of them ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ZmtpFault {
    Signature,
    VersionBelow3,
    MechanismNotNull,
    ReservedFlags,
    CommandWithMore,
    CommandTooLong,
    CommandMalformed,
    LengthOutOfRange,
    MessageBeforeReady,
    NotReady,
    SocketTypeMissing,
    SocketType,
    /// The peer sent an ERROR command in place of READY.
    Rejected,
}

impl ZmtpFault {
    pub fn text(self) -> &'static str {
        match self {
            ZmtpFault::Signature => "the greeting is not ZMTP's",
            ZmtpFault::VersionBelow3 => "the peer speaks a ZMTP version below 3",
            ZmtpFault::MechanismNotNull => "the peer wants a security mechanism other than NULL",
            ZmtpFault::ReservedFlags => "a frame has reserved flags set",
            ZmtpFault::CommandWithMore => "a command announces further frames",
            ZmtpFault::CommandTooLong => "a command is too long",
            ZmtpFault::CommandMalformed => "a command is malformed",
            ZmtpFault::LengthOutOfRange => "a frame is longer than 2^63 - 1 bytes",
            ZmtpFault::MessageBeforeReady => "a message came before READY",
            ZmtpFault::NotReady => "the first command is not READY",
            ZmtpFault::SocketTypeMissing => "READY names no socket type",
            ZmtpFault::SocketType => "the peer's socket type does not fit",
            ZmtpFault::Rejected => "the peer refused the handshake",
        }
    }
}

/// Which end of the connection is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The server.
    Router,
    /// A client: load generator and tests.
    Dealer,
}

impl Role {
    /// What libzmq lets this socket talk to.
    fn fits(self, peer: &[u8]) -> bool {
        let peers: &[&[u8]] = match self {
            Role::Router => &[b"DEALER", b"REQ", b"ROUTER"],
            Role::Dealer => &[b"ROUTER", b"REP", b"DEALER"],
        };
        peers.contains(&peer)
    }
}

/// What the stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'i> {
    /// The peer's greeting is complete and right.
    Greeted,
    /// The peer's READY is there: messages may follow.
    Ready,
    /// To be answered with `pong`.
    Ping(PingContext),
    /// A frame of a message begins; `bytes` of body follow.
    FrameStarted {
        more: bool,
        bytes: u64,
    },
    /// A part of the body of the frame, at least one byte.
    FrameBytes(&'i [u8]),
    FrameEnded {
        more: bool,
    },
}

/// What a PING wants to see again, at most 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingContext {
    bytes: [u8; PING_CONTEXT_BYTES_MAX],
    count: usize,
}

impl PingContext {
    /// A longer context is cut, as libzmq does.
    pub fn new(context: &[u8]) -> PingContext {
        let count = context.len().min(PING_CONTEXT_BYTES_MAX);
        let mut bytes = [0; PING_CONTEXT_BYTES_MAX];
        bytes[..count].copy_from_slice(&context[..count]);
        PingContext { bytes, count }
    }
}

impl Deref for PingContext {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Greeting {
        at: usize,
    },
    Flags,
    /// `digits` bytes of the length are still to come.
    Length {
        flags: u8,
        digits: u8,
        bytes: u64,
    },
    Body {
        more: bool,
        left: u64,
    },
    Command {
        left: usize,
    },
    Failed(ZmtpFault),
}

/// One direction of one connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    role: Role,
    state: State,
    ready: bool,
    command: Vec<u8>,
}

impl Decoder {
    pub fn new(role: Role) -> Decoder {
        Decoder { role, state: State::Greeting { at: 0 }, ready: false, command: Vec::new() }
    }

    /// Whether the handshake is over.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Takes the next token off the front of `input`. None: all of it is taken, and more is
    /// needed. Call it until then, also with an empty input: a frame may end without a further
    /// byte. A fault is final: it is returned from then on.
    #[inline]
    pub fn step<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Token<'i>>, ZmtpFault> {
        if let State::Body { more, left } = &mut self.state {
            if *left == 0 {
                let more = *more;
                self.state = State::Flags;
                return Ok(Some(Token::FrameEnded { more }));
            }
            if input.is_empty() {
                return Ok(None);
            }
            let bytes = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
            let (part, rest) = input.split_at(bytes);
            *left -= bytes as u64;
            *input = rest;
            return Ok(Some(Token::FrameBytes(part)));
        }
        let stepped = self.step_outside_body(input);
        if let Err(fault) = stepped {
            self.state = State::Failed(fault);
        }
        stepped
    }

    fn step_outside_body<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Token<'i>>, ZmtpFault> {
        loop {
            let token = match self.state {
                State::Failed(fault) => return Err(fault),
                State::Body { .. } => return Ok(None),
                // A command without a body is complete at once.
                State::Command { left } if left == 0 || !input.is_empty() => {
                    self.take_command(left, input)?
                }
                _ => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    self.take_byte(*byte)?
                }
            };
            if token.is_some() {
                return Ok(token);
            }
        }
    }

    fn take_byte(&mut self, byte: u8) -> Result<Option<Token<'static>>, ZmtpFault> {
        match self.state {
            State::Greeting { at } => {
                check_greeting(at, byte)?;
                if at + 1 == GREETING.len() {
                    self.state = State::Flags;
                    return Ok(Some(Token::Greeted));
                }
                self.state = State::Greeting { at: at + 1 };
                Ok(None)
            }
            State::Flags => {
                if byte & !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND) != 0 {
                    return Err(ZmtpFault::ReservedFlags);
                }
                if byte & FLAG_COMMAND == 0 && !self.ready {
                    return Err(ZmtpFault::MessageBeforeReady);
                }
                if byte & FLAG_COMMAND != 0 && byte & FLAG_MORE != 0 {
                    return Err(ZmtpFault::CommandWithMore);
                }
                let digits = if byte & FLAG_LONG != 0 { 8 } else { 1 };
                self.state = State::Length { flags: byte, digits, bytes: 0 };
                Ok(None)
            }
            State::Length { flags, digits, bytes } => {
                let bytes = bytes << 8 | byte as u64;
                if digits > 1 {
                    self.state = State::Length { flags, digits: digits - 1, bytes };
                    return Ok(None);
                }
                self.start_frame(flags, bytes)
            }
            State::Body { .. } | State::Command { .. } | State::Failed(_) => {
                unreachable!("bodies and failures are handled before single bytes")
            }
        }
    }

    fn start_frame(&mut self, flags: u8, bytes: u64) -> Result<Option<Token<'static>>, ZmtpFault> {
        if flags & FLAG_COMMAND != 0 {
            if bytes > COMMAND_BYTES_MAX {
                return Err(ZmtpFault::CommandTooLong);
            }
            self.command.clear();
            self.state = State::Command { left: bytes as usize };
            return Ok(None);
        }
        if bytes > i64::MAX as u64 {
            return Err(ZmtpFault::LengthOutOfRange);
        }
        let more = flags & FLAG_MORE != 0;
        self.state = State::Body { more, left: bytes };
        Ok(Some(Token::FrameStarted { more, bytes }))
    }

    fn take_command<'i>(
        &mut self,
        left: usize,
        input: &mut &'i [u8],
    ) -> Result<Option<Token<'i>>, ZmtpFault> {
        let (part, rest) = input.split_at(left.min(input.len()));
        *input = rest;
        self.command.extend_from_slice(part);
        if part.len() < left {
            self.state = State::Command { left: left - part.len() };
            return Ok(None);
        }
        self.state = State::Flags;
        let (name, data) = split_name(&self.command).ok_or(ZmtpFault::CommandMalformed)?;
        if !self.ready {
            return match name {
                b"READY" => {
                    check_ready(self.role, data)?;
                    self.ready = true;
                    Ok(Some(Token::Ready))
                }
                b"ERROR" => Err(ZmtpFault::Rejected),
                _ => Err(ZmtpFault::NotReady),
            };
        }
        // Other commands than PING ask for nothing; libzmq ignores what it does not know.
        if name != b"PING" {
            return Ok(None);
        }
        let context = data.get(PING_TTL_BYTES..).ok_or(ZmtpFault::CommandMalformed)?;
        Ok(Some(Token::Ping(PingContext::new(context))))
    }
}

/// The greeting byte by byte, so that a stranger is refused at its first wrong one. The padding
/// within the signature, the minor version, as-server and the filler are not checked.
fn check_greeting(at: usize, byte: u8) -> Result<(), ZmtpFault> {
    match at {
        0 | 9 if byte != GREETING[at] => Err(ZmtpFault::Signature),
        10 if byte < GREETING[at] => Err(ZmtpFault::VersionBelow3),
        12..=31 if byte != GREETING[at] => Err(ZmtpFault::MechanismNotNull),
        _ => Ok(()),
    }
}

/// Properties: one byte of length and a name, four bytes of length and a value.
fn check_ready(role: Role, mut data: &[u8]) -> Result<(), ZmtpFault> {
    let mut fits = None;
    while !data.is_empty() {
        let (name, rest) = split_name(data).ok_or(ZmtpFault::CommandMalformed)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(ZmtpFault::CommandMalformed)?;
        let bytes = u32::from_be_bytes(*length) as usize;
        if bytes > rest.len() {
            return Err(ZmtpFault::CommandMalformed);
        }
        let (value, rest) = rest.split_at(bytes);
        // An identity is ignored: every connection gets its own name here.
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            fits = Some(role.fits(value));
        }
        data = rest;
    }
    match fits {
        Some(true) => Ok(()),
        Some(false) => Err(ZmtpFault::SocketType),
        None => Err(ZmtpFault::SocketTypeMissing),
    }
}

/// A non-empty name behind one byte of length.
fn split_name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let length = *length as usize;
    if length == 0 || length > rest.len() {
        return None;
    }
    Some(rest.split_at(length))
}

/// A few bytes by value: a frame header or a short command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    bytes: [u8; SHORT_BYTES],
    count: usize,
}

impl Short {
    fn of(parts: &[&[u8]]) -> Short {
        let mut short = Short { bytes: [0; SHORT_BYTES], count: 0 };
        for part in parts {
            short.bytes[short.count..short.count + part.len()].copy_from_slice(part);
            short.count += part.len();
        }
        short
    }
}

impl Deref for Short {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// What goes before the body of a message frame.
#[inline]
pub fn frame_header(more: bool, bytes: u64) -> Short {
    let flags = if more { FLAG_MORE } else { 0 };
    match u8::try_from(bytes) {
        Ok(bytes) => Short::of(&[&[flags, bytes]]),
        Err(_) => Short::of(&[&[flags | FLAG_LONG], &bytes.to_be_bytes()]),
    }
}

/// The answer to a PING, framed.
pub fn pong(context: PingContext) -> Short {
    let bytes = PONG.len() + context.len();
    Short::of(&[&[FLAG_COMMAND, bytes as u8], PONG, &context])
}

/// A PING, framed. `ttl_deciseconds` 0 asks the peer to keep no clock of its own.
pub fn ping(ttl_deciseconds: u16, context: PingContext) -> Short {
    let bytes = PING.len() + PING_TTL_BYTES + context.len();
    Short::of(&[&[FLAG_COMMAND, bytes as u8], PING, &ttl_deciseconds.to_be_bytes(), &context])
}

pub const FLAG_MORE: u8 = 1;
pub const FLAG_LONG: u8 = 2;
pub const FLAG_COMMAND: u8 = 4;
/// READY with an identity of 255 bytes and some properties fits many times.
const COMMAND_BYTES_MAX: u64 = 4096;
const PING_CONTEXT_BYTES_MAX: usize = 16;
const PING_TTL_BYTES: usize = 2;
const PING: &[u8] = b"\x04PING";
const PONG: &[u8] = b"\x04PONG";
const SHORT_BYTES: usize = 2 + PING.len() + PING_TTL_BYTES + PING_CONTEXT_BYTES_MAX;
const _: () = assert!(SHORT_BYTES >= 9, "a long frame header fits");

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use alloc::{format, vec};

    /// Tokens in one line; bodies are joined, so that the cuts of the input do not show.
    fn told(parts: &[&[u8]]) -> String {
        let mut decoder = Decoder::new(Role::Router);
        let mut told = String::new();
        for part in parts {
            let mut input = *part;
            loop {
                match decoder.step(&mut input) {
                    Ok(Some(Token::Greeted)) => told += "greeted ",
                    Ok(Some(Token::Ready)) => told += "ready ",
                    Ok(Some(Token::Ping(context))) => told += &format!("ping{} ", context.len()),
                    Ok(Some(Token::FrameStarted { more, bytes })) => {
                        told += &format!("[{bytes}{}", if more { "+" } else { "" })
                    }
                    Ok(Some(Token::FrameBytes(bytes))) => {
                        bytes.iter().for_each(|byte| told += &format!(" {byte}"));
                    }
                    Ok(Some(Token::FrameEnded { .. })) => told += "] ",
                    Ok(None) => break,
                    Err(fault) => return told + &format!("{fault:?}"),
                }
            }
        }
        told.trim_end().to_string()
    }

    fn opened(rest: &[u8]) -> Vec<u8> {
        [&GREETING[..], READY_DEALER, rest].concat()
    }

    #[test]
    fn a_stream_cut_anywhere_says_the_same() {
        let stream = opened(
            b"\x01\x01\x05\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x07\x08\
              \x04\x09\x04PING\x00\x00ab\x04\x05\x04PONG\x00\x01\x09",
        );
        let whole = "greeted ready [1+ 5] [0] [2 7 8] ping2 [1 9]";
        assert_eq!(told(&[&stream]), whole);
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(told(&single), whole);
        for at in 0..stream.len() {
            assert_eq!(told(&[&stream[..at], &[], &stream[at..]]), whole, "cut at {at}");
        }
    }

    #[test]
    fn greetings_are_refused_at_their_first_wrong_byte() {
        assert_eq!(told(&[b"GET / HTTP/1.1\r\n"]), "Signature");
        let mut old = GREETING;
        old[10] = 2;
        assert_eq!(told(&[&old[..11]]), "VersionBelow3");
        let mut secure = GREETING;
        secure[12..17].copy_from_slice(b"PLAIN");
        assert_eq!(told(&[&secure[..13]]), "MechanismNotNull");
    }

    #[test]
    fn padding_and_minor_version_are_not_checked() {
        let mut greeting = GREETING;
        greeting[1..9].fill(0xaa);
        greeting[11] = 9;
        greeting[40] = 1;
        assert_eq!(told(&[&greeting]), "greeted");
    }

    #[test]
    fn ready_needs_a_fitting_socket_type_only() {
        let ready = |body: &[u8]| {
            let body = [&b"\x05READY"[..], body].concat();
            told(&[&GREETING, &[FLAG_COMMAND, body.len() as u8], &body])
        };
        assert_eq!(ready(b"\x0bsocket-TYPE\x00\x00\x00\x06DEALER"), "greeted ready");
        assert_eq!(
            ready(b"\x03X-y\x00\x00\x00\x01z\x0bSocket-Type\x00\x00\x00\x06DEALER"),
            "greeted ready"
        );
        assert_eq!(ready(b"\x0bSocket-Type\x00\x00\x00\x03PUB"), "greeted SocketType");
        assert_eq!(ready(b""), "greeted SocketTypeMissing");
        assert_eq!(ready(b"\x0bSocket-Type\xff\xff\xff\xff"), "greeted CommandMalformed");
        assert_eq!(ready(b"\x00"), "greeted CommandMalformed");
    }

    #[test]
    fn messages_wait_for_ready() {
        assert_eq!(told(&[&GREETING, b"\x00\x01a"]), "greeted MessageBeforeReady");
        assert_eq!(told(&[&GREETING, b"\x04\x05\x04PING"]), "greeted NotReady");
        assert_eq!(told(&[&GREETING, b"\x04\x07\x05ERROR\x00"]), "greeted Rejected");
        assert_eq!(told(&[&GREETING, b"\x04\x00"]), "greeted CommandMalformed");
    }

    #[test]
    fn frames_that_cannot_be_are_refused() {
        assert_eq!(told(&[&opened(b"\x08")]), "greeted ready ReservedFlags");
        assert_eq!(told(&[&opened(b"\x05")]), "greeted ready CommandWithMore");
        assert_eq!(
            told(&[&opened(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff")]),
            "greeted ready LengthOutOfRange"
        );
        assert_eq!(
            told(&[&opened(b"\x06\x00\x00\x00\x01\x00\x00\x00\x00")]),
            "greeted ready CommandTooLong"
        );
        assert_eq!(told(&[&opened(b"\x04\x06\x04PING\x00")]), "greeted ready CommandMalformed");
    }

    #[test]
    fn a_fault_is_final() {
        let mut decoder = Decoder::new(Role::Router);
        let mut input = &b"x"[..];
        assert_eq!(decoder.step(&mut input), Err(ZmtpFault::Signature));
        let mut more = &GREETING[..];
        assert_eq!(decoder.step(&mut more), Err(ZmtpFault::Signature));
    }

    #[test]
    fn headers_are_short_up_to_255_bytes() {
        assert_eq!(&*frame_header(true, 255), [1, 255]);
        assert_eq!(&*frame_header(false, 256), [2, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(frame_header(true, u64::MAX >> 1)[..2], [3, 0x7f]);
    }

    #[test]
    fn pongs_echo_at_most_sixteen_bytes() {
        assert_eq!(&*pong(PingContext::new(b"ab")), b"\x04\x07\x04PONGab");
        let long = vec![7; 40];
        let ping = ping(3, PingContext::new(&long));
        assert_eq!(ping.len(), SHORT_BYTES);
        assert_eq!(told(&[&opened(&ping)]), "greeted ready ping16");
    }
}
