//! The stack machine of a pickle, for values of a few kinds.
//!
//! The one invariant: what it holds is bounded by its limits, whatever the pickle says. Tuples hold
//! plain values and tuples of those, so that none is deep; the memo holds plain values only, so
//! that no reference can multiply what is behind it.

use super::Unreadable;
use super::lexer::Instruction;
use super::symbols::{Global, Symbol};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A value without parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    None,
    Bool(bool),
    Int(i64),
    Magic,
    Text(Symbol),
    Global(Global),
    List,
    Dict,
    OrderedDict,
    /// A storage, by its number in the pickle.
    Storage(u32),
    /// A tensor, by its number in the pickle.
    Tensor(u32),
    /// A memoized tuple, which nobody asks for again.
    Forgotten,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Plain(Plain),
    Tuple(Box<[Value]>),
    Mark,
}

/// What an instruction wants from whoever runs the machine.
#[derive(Debug, PartialEq)]
pub enum Request {
    Nothing,
    /// The result of a call; push it.
    Call(Global, Box<[Value]>),
    /// The object with this id; push it.
    Persistent(Box<[Value]>),
    /// Push what this binary holds.
    Binary(u64),
    /// The items that end the stack from here on go to the list; take them.
    Appended(usize),
    /// The same for keys and values of a dictionary.
    Set(usize),
    /// The pickle has ended with this value.
    Stopped(Value),
}

#[derive(Clone, Debug)]
pub struct Machine {
    stack: Vec<Value>,
    memo: Vec<Plain>,
    memo_max: usize,
}

impl Machine {
    pub fn new(memo_max: usize) -> Machine {
        Machine { stack: Vec::new(), memo: Vec::new(), memo_max }
    }

    /// Ready for another pickle.
    pub fn clear(&mut self) {
        self.stack.clear();
        self.memo.clear();
    }

    pub fn push(&mut self, value: Plain) -> Result<(), Unreadable> {
        self.push_value(Value::Plain(value))
    }

    /// Takes the items of `Request::Appended` or `Request::Set`.
    pub fn take_from(&mut self, start: usize) -> impl Iterator<Item = Value> + '_ {
        self.stack.drain(start..)
    }

    pub fn run(&mut self, instruction: Instruction) -> Result<Request, Unreadable> {
        let plain = match instruction {
            Instruction::Header => return Ok(Request::Nothing),
            Instruction::Stop => return Ok(Request::Stopped(self.pop()?)),
            Instruction::Mark => return self.push_value(Value::Mark).map(|()| Request::Nothing),
            Instruction::Pop => return self.pop().map(|_| Request::Nothing),
            Instruction::PopMark => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
                return Ok(Request::Nothing);
            }
            Instruction::EmptyTuple => return self.tuple(self.stack.len()),
            Instruction::Tuple => {
                let mark = self.mark()?;
                self.stack.remove(mark);
                return self.tuple(mark);
            }
            Instruction::TupleOf(count) => {
                return self.tuple(self.stack.len().checked_sub(count).ok_or(Unreadable)?);
            }
            Instruction::Append => return self.appended(1, Plain::List).map(Request::Appended),
            Instruction::Appends => return self.marked(Plain::List).map(Request::Appended),
            Instruction::SetItem => return self.appended(2, Plain::Dict).map(Request::Set),
            Instruction::SetItems => return self.marked(Plain::Dict).map(Request::Set),
            Instruction::Reduce => return self.call(),
            Instruction::Persistent => {
                let Value::Tuple(id) = self.pop()? else { return Err(Unreadable) };
                return Ok(Request::Persistent(id));
            }
            Instruction::Binary(bytes) => return Ok(Request::Binary(bytes)),
            Instruction::Memoize => return self.put(self.memo.len()),
            Instruction::Put(index) => return self.put(index),
            Instruction::Get(index) => *self.memo.get(index).ok_or(Unreadable)?,
            Instruction::StackGlobal => self.stack_global()?,
            Instruction::EmptyList => Plain::List,
            Instruction::EmptyDict => Plain::Dict,
            Instruction::None => Plain::None,
            Instruction::Bool(value) => Plain::Bool(value),
            Instruction::Int(value) => Plain::Int(value),
            Instruction::Magic => Plain::Magic,
            Instruction::Text(symbol) => Plain::Text(symbol),
            Instruction::Global(global) => Plain::Global(global),
        };
        self.push(plain).map(|()| Request::Nothing)
    }

    fn push_value(&mut self, value: Value) -> Result<(), Unreadable> {
        if self.stack.len() == STACK_MAX {
            return Err(Unreadable);
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Unreadable> {
        self.stack.pop().ok_or(Unreadable)
    }

    /// Where the topmost mark is.
    fn mark(&self) -> Result<usize, Unreadable> {
        self.stack.iter().rposition(|value| *value == Value::Mark).ok_or(Unreadable)
    }

    fn tuple(&mut self, start: usize) -> Result<Request, Unreadable> {
        let items = &self.stack[start..];
        let shallow = items.iter().all(|item| match item {
            Value::Plain(_) => true,
            Value::Tuple(parts) => parts.iter().all(|part| matches!(part, Value::Plain(_))),
            Value::Mark => false,
        });
        if !shallow || items.len() > TUPLE_MAX {
            return Err(Unreadable);
        }
        let items = self.stack.drain(start..).collect();
        self.push_value(Value::Tuple(items)).map(|()| Request::Nothing)
    }

    fn call(&mut self) -> Result<Request, Unreadable> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        match (function, arguments) {
            (Value::Plain(Plain::Global(function)), Value::Tuple(arguments)) => {
                Ok(Request::Call(function, arguments))
            }
            _ => Err(Unreadable),
        }
    }

    /// Items above the topmost mark, which stands on a list or a dictionary.
    fn marked(&mut self, holder: Plain) -> Result<usize, Unreadable> {
        let mark = self.mark()?;
        self.stack.remove(mark);
        self.check_holder(mark, holder)
    }

    fn appended(&mut self, count: usize, holder: Plain) -> Result<usize, Unreadable> {
        let start = self.stack.len().checked_sub(count).ok_or(Unreadable)?;
        self.check_holder(start, holder)
    }

    fn check_holder(&self, start: usize, holder: Plain) -> Result<usize, Unreadable> {
        let below = start.checked_sub(1).and_then(|at| self.stack.get(at));
        if below == Some(&Value::Plain(holder)) { Ok(start) } else { Err(Unreadable) }
    }

    fn put(&mut self, index: usize) -> Result<Request, Unreadable> {
        let value = match self.stack.last() {
            Some(Value::Plain(plain)) => *plain,
            Some(Value::Tuple(_)) => Plain::Forgotten,
            Some(Value::Mark) | None => return Err(Unreadable),
        };
        // Every pickler counts its memo up from zero.
        if let Some(known) = self.memo.get_mut(index) {
            *known = value;
        } else if index == self.memo.len() && index < self.memo_max {
            self.memo.push(value);
        } else {
            return Err(Unreadable);
        }
        Ok(Request::Nothing)
    }

    fn stack_global(&mut self) -> Result<Plain, Unreadable> {
        match (self.pop()?, self.pop()?) {
            (Value::Plain(Plain::Text(name)), Value::Plain(Plain::Text(module))) => {
                Global::of(module, name).map(Plain::Global).ok_or(Unreadable)
            }
            _ => Err(Unreadable),
        }
    }
}

/// Python's pickler puts a thousand items of a list on the stack before it appends them.
const STACK_MAX: usize = 1100;
/// Arguments of the longest call, with room for a few more.
const TUPLE_MAX: usize = 12;
