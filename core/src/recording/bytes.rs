//! Numbers and texts of a recording. Its one invariant: reading never goes beyond what is there and
//! never reserves memory for a number that was only claimed.

use alloc::vec::Vec;
use core::fmt;

/// Why bytes are no recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They do not begin as recordings do.
    NotARecording,
    /// Written by a version that this one does not know.
    Version { found: u16 },
    /// They end within something.
    Truncated { what: &'static str },
    /// The checksum says that they are not what was written.
    Checksum { what: &'static str },
    /// A value that no recorder writes.
    Value { what: &'static str },
    /// A frame that does not follow the one before.
    Order { expected: u64, found: u64 },
}

/// A fault and how many bytes into the file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    pub offset: u64,
    pub fault: Fault,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at offset {}: ", self.offset)?;
        match self.fault {
            Fault::NotARecording => f.write_str("this is no recording of kvtide"),
            Fault::Version { found } => {
                let known = super::VERSION;
                write!(f, "format version {found} is not known; this kvtide reads up to {known}")
            }
            Fault::Truncated { what } => write!(f, "it ends within {what}"),
            Fault::Checksum { what } => {
                write!(f, "the checksum of {what} is wrong: the bytes were changed")
            }
            Fault::Value { what } => write!(f, "{what} cannot be"),
            Fault::Order { expected, found } => {
                write!(f, "frame {expected} should follow, and frame {found} does")
            }
        }
    }
}

/// Appends numbers and texts.
pub(super) trait Write {
    fn byte(&mut self, value: u8);
    fn number(&mut self, value: u64);
    fn text(&mut self, text: &str);
    fn fixed_u32(&mut self, value: u32);
    fn fixed_u64(&mut self, value: u64);
}

impl Write for Vec<u8> {
    fn byte(&mut self, value: u8) {
        self.push(value);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.extend_from_slice(text.as_bytes());
    }

    fn fixed_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn fixed_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

/// Reads from the front and knows where in the file it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    bytes: &'a [u8],
    /// Offset within the file of the first byte that is left.
    offset: u64,
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8], offset: u64) -> Input<'a> {
        Input { bytes, offset }
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    pub fn fault(&self, fault: Fault) -> Malformed {
        Malformed { offset: self.offset, fault }
    }

    pub fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                self.offset += count as u64;
                Ok(taken)
            }
            None => Err(self.fault(Fault::Truncated { what })),
        }
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let taken = self.take(N, what)?;
        Ok(taken.try_into().expect("as many bytes were taken"))
    }

    pub fn byte(&mut self, what: &'static str) -> Result<u8, Malformed> {
        Ok(self.array::<1>(what)?[0])
    }

    pub fn fixed_u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn fixed_u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub fn number(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let start = *self;
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(start.fault(Fault::Value { what }))
    }

    pub fn number_u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        let start = *self;
        u32::try_from(self.number(what)?).map_err(|_| start.fault(Fault::Value { what }))
    }

    /// At most `bytes_max` of them.
    pub fn text(&mut self, bytes_max: usize, what: &'static str) -> Result<&'a str, Malformed> {
        let start = *self;
        let bytes = self.number(what)?;
        let value = Fault::Value { what };
        if bytes > bytes_max as u64 {
            return Err(start.fault(value));
        }
        let text = self.take(bytes as usize, what)?;
        core::str::from_utf8(text).map_err(|_| start.fault(value))
    }

    pub fn flag(&mut self, what: &'static str) -> Result<bool, Malformed> {
        let start = *self;
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(start.fault(Fault::Value { what })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_take_what_they_need() {
        for (value, bytes) in [(0, 1), (127, 1), (128, 2), (u64::from(u32::MAX), 5), (u64::MAX, 10)]
        {
            let mut written = Vec::new();
            written.number(value);
            assert_eq!(written.len(), bytes, "{value}");
            let mut input = Input::new(&written, 7);
            assert_eq!(input.number("a number"), Ok(value));
            assert_eq!((input.offset(), input.is_empty()), (7 + bytes as u64, true));
        }
    }

    #[test]
    fn numbers_that_do_not_end_or_leave_64_bits_are_named_by_their_start() {
        let value = Fault::Value { what: "a number" };
        for bytes in [[0xff; 11], [0xff, 255, 255, 255, 255, 255, 255, 255, 255, 2, 0]] {
            let fault = Input::new(&bytes, 3).number("a number");
            assert_eq!(fault, Err(Malformed { offset: 3, fault: value }));
        }
        let short = Input::new(&[0x80], 3).number("a number");
        let fault = Fault::Truncated { what: "a number" };
        assert_eq!(short, Err(Malformed { offset: 4, fault }));
    }

    #[test]
    fn a_text_is_no_longer_than_it_may_be() {
        let mut written = Vec::new();
        written.text("model");
        assert_eq!(Input::new(&written, 0).text(5, "a text"), Ok("model"));
        assert!(Input::new(&written, 0).text(4, "a text").is_err());
        assert!(Input::new(&[2, 0xc3, 0x28], 0).text(4, "a text").is_err(), "no UTF-8");
    }
}
