//! Reads an `IPCCacheServerKey` (spec/wire §2.1) and hashes its token ids on the way.
//!
//! ```text
//! { model_name, world_size, worker_id, token_ids: [ … ], start, end, request_id, cache_salt, … }
//!                                                 └ compared with the memo as far as it is known,
//!                                                   then decoded and hashed block by block
//! ```
//!
//! The whole frame is in memory, the work is not done in one go: `read` stops when the turn's bytes
//! are used up and goes on from there. The one invariant: whatever the budget and whatever the memo
//! knew, the outcome is that of decoding the whole frame at once and hashing every whole chunk.

pub mod rules;
mod tokens;

use crate::config::HashAlgorithm;
use crate::front::memo::{Memo, Session};
use crate::limits::{MODEL_BYTES_MAX, REQUEST_ID_BYTES_MAX, SALT_CHARS_MAX};
use crate::wire::msgpack::{Kind, Malformed, Reader};
use core::ops::Range;
use rules::{Field, KeyError, check_model, check_request, check_salt};
use tokens::TokenArray;

/// A key that obeys every rule which holds for all operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    pub model: &'a str,
    pub salt: &'a str,
    pub request: &'a str,
    pub world_size: u32,
    pub worker: Option<u32>,
    /// 0 where the field is absent.
    pub readers: u64,
    pub start: u64,
    pub end: u64,
    /// Elements of `token_ids`.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The budget is used up.
    More,
    Done,
}

/// How keys are read: what it takes beside the frame.
#[derive(Debug)]
pub struct KeyTools<'m> {
    pub algorithm: HashAlgorithm,
    pub chunk_tokens: u32,
    pub memo: &'m mut Memo,
}

/// One key frame, being read.
#[derive(Clone, Debug)]
pub struct KeyReader {
    at: usize,
    stage: Stage,
    /// Pairs of the map that have not been read.
    pairs: usize,
    /// One bit per `Field` that has been read.
    seen: u16,
    model: Range<usize>,
    salt: Range<usize>,
    request: Range<usize>,
    world_size: i64,
    worker: Option<i64>,
    readers: i64,
    start: i64,
    end: i64,
    tokens: u64,
    /// Where the id stands under which `session` was taken from the memo.
    hint: Range<usize>,
    session: Session,
}

#[derive(Clone, Debug)]
enum Stage {
    Head,
    Pairs,
    /// Passing over a value that nobody needs, `owed` values before the next pair.
    Skip {
        owed: usize,
    },
    Tokens(TokenArray),
}

impl KeyReader {
    pub fn new() -> KeyReader {
        KeyReader {
            at: 0,
            stage: Stage::Head,
            pairs: 0,
            seen: 0,
            model: 0..0,
            salt: 0..0,
            request: 0..0,
            world_size: 0,
            worker: None,
            readers: 0,
            start: 0,
            end: 0,
            tokens: 0,
            hint: 0..0,
            session: Session::default(),
        }
    }

    /// Goes on reading `frame`, which must be the same one on every call. Takes what it uses off
    /// `budget` and passes it by one block at most. After `Done` or an error it is not called
    /// again.
    pub fn read(
        &mut self,
        frame: &[u8],
        tools: &mut KeyTools<'_>,
        budget: &mut usize,
    ) -> Result<Progress, KeyError> {
        let progress = self.read_on(frame, tools, budget);
        if progress == Ok(Progress::More) {
            return progress;
        }
        self.give_back(frame, tools.memo);
        progress
    }

    /// What was read, once it is done; errors are rules that a well-formed key broke.
    pub fn key<'a>(&self, frame: &'a [u8]) -> Result<Key<'a>, KeyError> {
        let text = |range: &Range<usize>| {
            let bytes = frame.get(range.clone()).ok_or(Malformed::Truncated)?;
            core::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8)
        };
        let (model, salt, request) = (text(&self.model)?, text(&self.salt)?, text(&self.request)?);
        check_model(model)?;
        check_salt(salt)?;
        check_request(request)?;
        let unsigned =
            |value: i64, field| u64::try_from(value).map_err(|_| KeyError::Negative(field));
        let worker = self.worker.map(|worker| u32::try_from(worker).map_err(|_| KeyError::Worker));
        Ok(Key {
            model,
            salt,
            request,
            world_size: u32::try_from(self.world_size).map_err(|_| KeyError::WorldSize)?,
            worker: worker.transpose()?,
            readers: unsigned(self.readers, Field::Readers)?,
            start: unsigned(self.start, Field::Start)?,
            end: unsigned(self.end, Field::End)?,
            tokens: self.tokens,
        })
    }

    fn read_on(
        &mut self,
        frame: &[u8],
        tools: &mut KeyTools<'_>,
        budget: &mut usize,
    ) -> Result<Progress, KeyError> {
        loop {
            if *budget == 0 {
                return Ok(Progress::More);
            }
            if self.at > frame.len() {
                return Err(KeyError::Malformed(Malformed::Truncated));
            }
            let before = self.at;
            let done = match &mut self.stage {
                Stage::Head => self.read_head(frame)?,
                Stage::Pairs => self.read_pairs(frame, tools)?,
                Stage::Skip { owed } => {
                    if skip_some(frame, &mut self.at, owed, *budget)? {
                        self.stage = Stage::Pairs;
                    }
                    false
                }
                Stage::Tokens(array) => {
                    let session = &mut self.session;
                    if array.read_block(frame, &mut self.at, session, tools, budget)? {
                        self.stage = Stage::Pairs;
                    }
                    continue;
                }
            };
            *budget = budget.saturating_sub(self.at - before);
            if done {
                return Ok(Progress::Done);
            }
        }
    }

    fn read_head(&mut self, frame: &[u8]) -> Result<bool, KeyError> {
        let mut reader = Reader::new(frame);
        self.pairs = reader.read_map_len()?;
        self.at = reader.position();
        self.stage = Stage::Pairs;
        Ok(false)
    }

    /// Reads pairs until one takes a stage of its own. True at the end of the frame.
    fn read_pairs(&mut self, frame: &[u8], tools: &mut KeyTools<'_>) -> Result<bool, KeyError> {
        let mut reader = Reader::resume(frame, self.at);
        while self.pairs > 0 {
            self.pairs -= 1;
            let name = reader.read_str_bytes()?;
            let field = Field::named(name);
            if let Some(field) = field {
                if self.seen & field.bit() != 0 {
                    return Err(KeyError::Twice(field));
                }
                self.seen |= field.bit();
            }
            match field {
                Some(Field::Model) => self.model = text_range(&mut reader, Field::Model)?,
                Some(Field::WorldSize) => self.world_size = reader.read_i64()?,
                Some(Field::Worker) => self.worker = reader.read_nil_or(Reader::read_i64)?,
                Some(Field::Start) => self.start = reader.read_i64()?,
                Some(Field::End) => self.end = reader.read_i64()?,
                Some(Field::Request) => self.request = text_range(&mut reader, Field::Request)?,
                Some(Field::Salt) => self.salt = text_range(&mut reader, Field::Salt)?,
                Some(Field::Readers) => self.readers = reader.read_i64()?,
                Some(Field::Tokens) => {
                    let left = reader.read_array_len()?;
                    self.at = reader.position();
                    self.begin_tokens(frame, left, tools);
                    return Ok(false);
                }
                Some(Field::Configs) if !matches!(reader.peek()?, Kind::Map | Kind::Nil) => {
                    return Err(KeyError::Malformed(Malformed::NotMap));
                }
                Some(Field::Configs) | None => {
                    self.at = reader.position();
                    self.stage = Stage::Skip { owed: 1 };
                    return Ok(false);
                }
            }
        }
        self.at = reader.position();
        reader.finish()?;
        match Field::REQUIRED.iter().find(|field| self.seen & field.bit() == 0) {
            Some(missing) => Err(KeyError::Missing(*missing)),
            None => Ok(true),
        }
    }

    fn begin_tokens(&mut self, frame: &[u8], left: usize, tools: &mut KeyTools<'_>) {
        self.tokens = left as u64;
        self.hint = match self.seen & Field::Request.bit() {
            0 => find_request(frame).unwrap_or(0..0),
            _ => self.request.clone(),
        };
        if let Some(request) = self.hint_text(frame) {
            self.session = tools.memo.take(request, frame.len() - self.at);
        }
        self.stage = Stage::Tokens(TokenArray::new(self.at, left));
    }

    fn hint_text<'a>(&self, frame: &'a [u8]) -> Option<&'a str> {
        let bytes = frame.get(self.hint.clone())?;
        if bytes.len() > REQUEST_ID_BYTES_MAX {
            return None;
        }
        core::str::from_utf8(bytes).ok()
    }

    /// Brings the session back under the request's own id: what it knows is right in any case.
    fn give_back(&mut self, frame: &[u8], memo: &mut Memo) {
        if self.session.hashes().is_empty() {
            return;
        }
        if self.seen & Field::Request.bit() != 0 {
            self.hint = self.request.clone();
        }
        if let Some(request) = self.hint_text(frame) {
            memo.put(request, core::mem::take(&mut self.session));
        }
    }
}

impl Default for KeyReader {
    fn default() -> KeyReader {
        KeyReader::new()
    }
}

/// Passes over values until none is owed (true) or `budget` bytes are behind.
fn skip_some(
    frame: &[u8],
    at: &mut usize,
    owed: &mut usize,
    budget: usize,
) -> Result<bool, KeyError> {
    let mut reader = Reader::resume(frame, *at);
    while *owed > 0 && reader.position() - *at < budget {
        *owed -= 1;
        match reader.peek()? {
            Kind::Array => *owed += reader.read_array_len()?,
            Kind::Map => *owed += reader.read_map_len()? * 2,
            _ => reader.skip()?,
        }
        if *owed > reader.remaining() {
            return Err(KeyError::Malformed(Malformed::Truncated));
        }
    }
    *at = reader.position();
    Ok(*owed == 0)
}

/// Where the text of `request_id` probably stands: the field comes after the tokens, so the memo is
/// asked before it is reached. A guess, looked for in the end of the frame only.
fn find_request(frame: &[u8]) -> Option<Range<usize>> {
    let tail_start = frame.len().saturating_sub(HINT_TAIL_BYTES);
    let name = REQUEST_NAME.as_bytes();
    let found = frame[tail_start..].windows(name.len()).rposition(|window| window == name)?;
    let mut reader = Reader::resume(frame, tail_start + found + name.len());
    text_range(&mut reader, Field::Request).ok()
}

/// Reads a text and says where its bytes stand; `KeyReader::key` checks what they are. One that is
/// too long for every field is not looked at, so that it costs no time.
fn text_range(reader: &mut Reader<'_>, field: Field) -> Result<Range<usize>, KeyError> {
    let bytes = reader.read_str_bytes()?.len();
    if bytes > TEXT_BYTES_MAX {
        return Err(KeyError::TooLong(field));
    }
    Ok(reader.position() - bytes..reader.position())
}

/// How far from its end a frame is searched for its request id: the id, the salt and short configs.
const HINT_TAIL_BYTES: usize = 2048;
/// The longest text that any field may hold.
const TEXT_BYTES_MAX: usize = 1024;
const REQUEST_NAME: &str = "request_id";

const _: () = assert!(MODEL_BYTES_MAX <= TEXT_BYTES_MAX, "every legal model name is read");
const _: () = assert!(SALT_CHARS_MAX * 4 <= TEXT_BYTES_MAX, "every legal salt is read");
const _: () = assert!(REQUEST_ID_BYTES_MAX <= TEXT_BYTES_MAX, "every legal request id is read");
