//! Cuts a pickle into instructions, however its bytes arrive.
//!
//! Knows the instructions that lists of tensors are made of and no others. The one invariant: what
//! is held between two calls is at most one instruction with a short text; the content of binaries
//! is left to the caller.

use super::Unreadable;
use super::symbols::{Global, Symbol};

/// One instruction, with its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Protocol and frame headers: nothing to do.
    Header,
    Stop,
    Mark,
    Pop,
    PopMark,
    EmptyList,
    EmptyTuple,
    EmptyDict,
    Append,
    Appends,
    /// Everything above the mark.
    Tuple,
    TupleOf(usize),
    Reduce,
    SetItem,
    SetItems,
    Memoize,
    Put(usize),
    Get(usize),
    None,
    Bool(bool),
    Int(i64),
    /// The number that begins torch's stream; it has 80 bits.
    Magic,
    Text(Symbol),
    Global(Global),
    StackGlobal,
    Persistent,
    /// The head of a binary; as many bytes follow.
    Binary(u64),
}

#[derive(Clone, Debug)]
pub struct Lexer {
    state: State,
    held: [u8; HELD_BYTES_MAX],
    held_len: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Code,
    /// A number of a fixed size follows the code.
    Number {
        code: u8,
        bytes: usize,
    },
    /// The content whose length has been read follows.
    Content {
        code: u8,
        bytes: usize,
    },
    /// Two lines follow; so many have not ended.
    Lines {
        left: usize,
    },
}

impl Lexer {
    pub fn new() -> Lexer {
        Lexer { state: State::Code, held: [0; HELD_BYTES_MAX], held_len: 0 }
    }

    /// Takes bytes off the front of `input` until an instruction is whole, or all of them.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Instruction>, Unreadable> {
        loop {
            let whole = match self.state {
                State::Code => {
                    let Some((&code, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    self.held_len = 0;
                    begin(code, &mut self.state)?
                }
                State::Number { code, bytes } => {
                    if !self.hold(input, bytes)? {
                        return Ok(None);
                    }
                    let held = &self.held[..self.held_len];
                    let whole = end_number(code, held, &mut self.state)?;
                    // A length may have been read, whose content follows.
                    self.held_len = 0;
                    whole
                }
                State::Content { code, bytes } => {
                    if !self.hold(input, bytes)? {
                        return Ok(None);
                    }
                    Some(end_content(code, self.held())?)
                }
                State::Lines { left } => {
                    if !self.hold_line(input)? {
                        return Ok(None);
                    }
                    self.state = State::Lines { left: left - 1 };
                    if left > 1 { None } else { Some(end_lines(self.held())?) }
                }
            };
            if let Some(instruction) = whole {
                self.state = State::Code;
                return Ok(Some(instruction));
            }
        }
    }

    fn held(&self) -> &[u8] {
        &self.held[..self.held_len]
    }

    /// True when `bytes` are held.
    fn hold(&mut self, input: &mut &[u8], bytes: usize) -> Result<bool, Unreadable> {
        let taken = input.len().min(bytes - self.held_len);
        let (now, rest) = input.split_at(taken);
        self.keep(now)?;
        *input = rest;
        Ok(self.held_len == bytes)
    }

    /// True when a line has ended; its end is held, too.
    fn hold_line(&mut self, input: &mut &[u8]) -> Result<bool, Unreadable> {
        let end = input.iter().take(HELD_BYTES_MAX + 1).position(|byte| *byte == b'\n');
        let (now, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
        self.keep(now)?;
        *input = rest;
        Ok(end.is_some())
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        let end = self.held_len + bytes.len();
        self.held.get_mut(self.held_len..end).ok_or(Unreadable)?.copy_from_slice(bytes);
        self.held_len = end;
        Ok(())
    }
}

fn begin(code: u8, state: &mut State) -> Result<Option<Instruction>, Unreadable> {
    let bytes = match code {
        b'.' => return Ok(Some(Instruction::Stop)),
        b'(' => return Ok(Some(Instruction::Mark)),
        b'0' => return Ok(Some(Instruction::Pop)),
        b'1' => return Ok(Some(Instruction::PopMark)),
        b']' => return Ok(Some(Instruction::EmptyList)),
        b')' => return Ok(Some(Instruction::EmptyTuple)),
        b'}' => return Ok(Some(Instruction::EmptyDict)),
        b'a' => return Ok(Some(Instruction::Append)),
        b'e' => return Ok(Some(Instruction::Appends)),
        b't' => return Ok(Some(Instruction::Tuple)),
        0x85..=0x87 => return Ok(Some(Instruction::TupleOf((code - 0x84) as usize))),
        b'R' => return Ok(Some(Instruction::Reduce)),
        b's' => return Ok(Some(Instruction::SetItem)),
        b'u' => return Ok(Some(Instruction::SetItems)),
        0x94 => return Ok(Some(Instruction::Memoize)),
        b'N' => return Ok(Some(Instruction::None)),
        0x88 => return Ok(Some(Instruction::Bool(true))),
        0x89 => return Ok(Some(Instruction::Bool(false))),
        0x93 => return Ok(Some(Instruction::StackGlobal)),
        b'Q' => return Ok(Some(Instruction::Persistent)),
        b'c' => {
            *state = State::Lines { left: 2 };
            return Ok(None);
        }
        PROTOCOL | b'q' | b'h' | b'K' | 0x8a | 0x8c | b'C' => 1,
        b'M' => 2,
        b'J' | b'r' | b'j' | b'X' | b'B' => 4,
        FRAME | 0x8d | 0x8e => 8,
        _ => return Err(Unreadable),
    };
    *state = State::Number { code, bytes };
    Ok(None)
}

/// The number is whole: an argument, or the length of what follows.
fn end_number(code: u8, held: &[u8], state: &mut State) -> Result<Option<Instruction>, Unreadable> {
    let number = held.iter().rev().fold(0_u64, |number, byte| number << 8 | *byte as u64);
    let index = || usize::try_from(number).map_err(|_| Unreadable);
    let instruction = match code {
        PROTOCOL if (2..=5).contains(&number) => Instruction::Header,
        FRAME => Instruction::Header,
        b'q' | b'r' => Instruction::Put(index()?),
        b'h' | b'j' => Instruction::Get(index()?),
        b'K' | b'M' => Instruction::Int(number as i64),
        b'J' => Instruction::Int(number as u32 as i32 as i64),
        b'C' | b'B' | 0x8e => Instruction::Binary(number),
        0x8a | 0x8c | 0x8d | b'X' if number <= HELD_BYTES_MAX as u64 => {
            *state = State::Content { code, bytes: number as usize };
            return Ok(None);
        }
        _ => return Err(Unreadable),
    };
    Ok(Some(instruction))
}

fn end_content(code: u8, held: &[u8]) -> Result<Instruction, Unreadable> {
    if code != 0x8a {
        let text = core::str::from_utf8(held).map_err(|_| Unreadable)?;
        return Ok(Instruction::Text(Symbol::of(text)));
    }
    if held == MAGIC {
        return Ok(Instruction::Magic);
    }
    // Little-endian two's complement; as long as it likes, but no more than a number of ours.
    let Some(last) = held.last() else { return Ok(Instruction::Int(0)) };
    let mut digits = [if *last >= 0x80 { 0xff } else { 0 }; 8];
    digits.get_mut(..held.len()).ok_or(Unreadable)?.copy_from_slice(held);
    Ok(Instruction::Int(i64::from_le_bytes(digits)))
}

fn end_lines(held: &[u8]) -> Result<Instruction, Unreadable> {
    let text = core::str::from_utf8(held).map_err(|_| Unreadable)?;
    let mut lines = text.lines();
    let (module, name) = (lines.next().ok_or(Unreadable)?, lines.next().ok_or(Unreadable)?);
    Global::of(Symbol::of(module), Symbol::of(name)).map(Instruction::Global).ok_or(Unreadable)
}

/// The longest text: far more than any name that we know.
const HELD_BYTES_MAX: usize = 256;
const PROTOCOL: u8 = 0x80;
const FRAME: u8 = 0x95;
/// `0x1950a86a20f9469cfc6c` (spec/transfer §4.7).
const MAGIC: &[u8] = &[0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn all(mut input: &[u8]) -> Result<Vec<Instruction>, Unreadable> {
        let mut lexer = Lexer::new();
        let mut found = Vec::new();
        while let Some(instruction) = lexer.next(&mut input)? {
            found.push(instruction);
        }
        Ok(found)
    }

    #[test]
    fn numbers_have_their_signs() {
        let ints =
            all(b"K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x00\x8a\x01\x80\x8a\x05\x00\x00\x00\x00\x01");
        let expected = [255, 65535, -1, 0, -128, 1 << 32].map(Instruction::Int);
        assert_eq!(ints, Ok(expected.to_vec()));
        assert_eq!(all(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01"), Err(Unreadable));
    }

    #[test]
    fn only_known_names_are_globals() {
        let known = all(b"ctorch._utils\n_rebuild_tensor_v2\n");
        assert_eq!(known, Ok([Instruction::Global(Global::RebuildV2)].to_vec()));
        assert_eq!(all(b"cos\nsystem\n"), Err(Unreadable));
        assert_eq!(all(b"cbuiltins\neval\n"), Err(Unreadable));
    }

    #[test]
    fn endless_texts_are_refused() {
        let mut lexer = Lexer::new();
        let mut input: &[u8] = &[b'c'; 1];
        assert_eq!(lexer.next(&mut input), Ok(None));
        let mut line: &[u8] = &[b'x'; HELD_BYTES_MAX + 1];
        assert_eq!(lexer.next(&mut line), Err(Unreadable));
        assert_eq!(all(b"X\x01\x01\x00\x00"), Err(Unreadable));
    }
}
