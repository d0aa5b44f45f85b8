//! The inside of one storage: torch's legacy stream (spec/transfer §4.7).
//!
//! ```text
//! magic · version · system · persistent id · [key] · u64 number of elements · the raw bytes
//! └──────────────── five pickles ────────────────┘
//! ```
//!
//! The one invariant: the raw bytes are handed on as they come and never held.

use super::Unreadable;
use super::lexer::Lexer;
use super::machine::{Machine, Plain, Request, Value};
use super::symbols::{Global, Symbol};
use crate::names::Dtype;

/// What a storage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// None where the class does not say: then the tensor does.
    pub dtype: Option<Dtype>,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub struct StorageReader {
    stage: Stage,
    lexer: Lexer,
    machine: Machine,
    dtype: Option<Dtype>,
    elements: u64,
    /// Items of the list of keys.
    keys: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Magic,
    Version,
    System,
    Object,
    Keys,
    Elements { digits: [u8; 8], held: usize },
    Raw,
}

/// What a piece of the stream was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'b> {
    /// The bytes before the raw ones have been read, and say this.
    Head(Contents),
    Raw(&'b [u8]),
    /// Everything given has been read.
    End,
}

impl StorageReader {
    pub fn new() -> StorageReader {
        StorageReader {
            stage: Stage::Magic,
            lexer: Lexer::new(),
            machine: Machine::new(MEMO_MAX),
            dtype: None,
            elements: 0,
            keys: 0,
        }
    }

    /// Ready for the next storage.
    pub fn restart(&mut self) {
        self.machine.clear();
        self.lexer = Lexer::new();
        self.stage = Stage::Magic;
    }

    /// Takes the next piece off the front of `input`.
    pub fn next<'b>(&mut self, input: &mut &'b [u8]) -> Result<Piece<'b>, Unreadable> {
        loop {
            match &mut self.stage {
                Stage::Raw if input.is_empty() => return Ok(Piece::End),
                Stage::Raw => return Ok(Piece::Raw(core::mem::take(input))),
                Stage::Elements { digits, held } => {
                    let taken = input.len().min(digits.len() - *held);
                    let (now, rest) = input.split_at(taken);
                    digits[*held..*held + taken].copy_from_slice(now);
                    *held += taken;
                    *input = rest;
                    if *held < digits.len() {
                        return Ok(Piece::End);
                    }
                    let elements = u64::from_le_bytes(*digits);
                    return self.begin_raw(elements).map(Piece::Head);
                }
                _ => {
                    let Some(instruction) = self.lexer.next(input)? else { return Ok(Piece::End) };
                    match self.machine.run(instruction)? {
                        Request::Nothing => {}
                        Request::Persistent(id) => self.persistent(&id)?,
                        Request::Appended(start) => {
                            self.keys += self.machine.take_from(start).count() as u32;
                        }
                        Request::Set(start) => self.set(start)?,
                        Request::Stopped(value) => self.stopped(&value)?,
                        Request::Call(..) | Request::Binary(_) => return Err(Unreadable),
                    }
                }
            }
        }
    }

    fn begin_raw(&mut self, elements: u64) -> Result<Contents, Unreadable> {
        if elements != self.elements {
            return Err(Unreadable);
        }
        self.stage = Stage::Raw;
        let element_bytes = self.dtype.map_or(1, Dtype::bytes);
        let bytes = elements.checked_mul(element_bytes).ok_or(Unreadable)?;
        Ok(Contents { dtype: self.dtype, bytes })
    }

    /// `('storage', class, key, device, elements, None)`.
    fn persistent(&mut self, id: &[Value]) -> Result<(), Unreadable> {
        let [
            word,
            class,
            Value::Plain(Plain::Text(_)),
            Value::Plain(Plain::Text(_)),
            elements,
            view,
        ] = id
        else {
            return Err(Unreadable);
        };
        let whole = *view == Value::Plain(Plain::None);
        if !whole || *word != Value::Plain(Plain::Text(Symbol::Storage)) {
            return Err(Unreadable);
        }
        self.dtype = match class {
            Value::Plain(Plain::Global(Global::TypedStorage(dtype))) => Some(*dtype),
            Value::Plain(Plain::Global(Global::UntypedStorage)) => None,
            _ => return Err(Unreadable),
        };
        let Value::Plain(Plain::Int(elements)) = elements else { return Err(Unreadable) };
        self.elements = u64::try_from(*elements).map_err(|_| Unreadable)?;
        self.machine.push(Plain::Storage(0))
    }

    /// Of the system's description one thing matters: the order of the raw bytes.
    fn set(&mut self, start: usize) -> Result<(), Unreadable> {
        let mut big_endian = false;
        let mut little = false;
        for (index, item) in self.machine.take_from(start).enumerate() {
            if index % 2 == 0 {
                little = item == Value::Plain(Plain::Text(Symbol::LittleEndian));
            } else if little {
                big_endian |= item != Value::Plain(Plain::Bool(true));
            }
        }
        if big_endian { Err(Unreadable) } else { Ok(()) }
    }

    /// One of the pickles has ended: with what it must, and the next begins.
    fn stopped(&mut self, value: &Value) -> Result<(), Unreadable> {
        let Value::Plain(value) = value else { return Err(Unreadable) };
        self.stage = match (self.stage, value) {
            (Stage::Magic, Plain::Magic) => Stage::Version,
            (Stage::Version, Plain::Int(FORMAT_VERSION)) => Stage::System,
            (Stage::System, Plain::Dict) => Stage::Object,
            (Stage::Object, Plain::Storage(_)) => Stage::Keys,
            (Stage::Keys, Plain::List) if self.keys == 1 => {
                Stage::Elements { digits: [0; 8], held: 0 }
            }
            _ => return Err(Unreadable),
        };
        self.keys = 0;
        self.machine.clear();
        Ok(())
    }
}

const FORMAT_VERSION: i64 = 1001;
/// Far more than any of the five pickles memoizes.
const MEMO_MAX: usize = 64;
