//! MessagePack, as far as the protocol needs it (spec/wire §2.1).
//!
//! The reader borrows from one complete frame and allocates nothing. Its one invariant: `at` never
//! passes the end, and a length that is handed out has been checked against the bytes that are left
//! (every element of an array takes at least one byte, every pair of a map at least two), so a loop
//! over it ends, and room reserved by it is bounded by the size of the frame.

mod writer;

pub use writer::Writer;

/// The rule that a value broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Malformed {
    Truncated,
    TrailingBytes,
    UnusedMarker,
    NotNil,
    NotBool,
    NotInt,
    NotFloat,
    NotText,
    NotBin,
    NotArray,
    NotMap,
    NotExt,
    NotUtf8,
    IntOutOfRange,
    /// An array that must have a fixed number of elements has another.
    WrongLength,
    MissingField,
    /// Only where the peer refuses them, too (device descriptors).
    UnknownField,
    /// The value is none of the texts or numbers that the field may hold.
    UnknownValue,
    AboveLimit,
}

impl Malformed {
    /// The rule as the end of a sentence that begins with the field's name.
    pub fn text(self) -> &'static str {
        match self {
            Malformed::Truncated => "ends inside a value",
            Malformed::TrailingBytes => "has bytes after its value",
            Malformed::UnusedMarker => "holds the marker byte 0xc1",
            Malformed::NotNil => "is not nil",
            Malformed::NotBool => "is not a bool",
            Malformed::NotInt => "is not an int",
            Malformed::NotFloat => "is not a number",
            Malformed::NotText => "is not a text",
            Malformed::NotBin => "is not binary",
            Malformed::NotArray => "is not an array",
            Malformed::NotMap => "is not a map",
            Malformed::NotExt => "is not an extension value",
            Malformed::NotUtf8 => "is a text that is not UTF-8",
            Malformed::IntOutOfRange => "is an int out of range",
            Malformed::WrongLength => "is an array of the wrong length",
            Malformed::MissingField => "is missing",
            Malformed::UnknownField => "has an unknown field",
            Malformed::UnknownValue => "has an unknown value",
            Malformed::AboveLimit => "is above its limit",
        }
    }
}

/// The family of a value, told by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nil,
    Bool,
    Int,
    Float,
    Text,
    Bin,
    Array,
    Map,
    Ext,
    /// `0xc1`, which no value begins with.
    Unused,
}

impl Kind {
    #[inline]
    pub fn of(marker: u8) -> Kind {
        match marker {
            0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => Kind::Int,
            0x80..=0x8f | 0xde | 0xdf => Kind::Map,
            0x90..=0x9f | 0xdc | 0xdd => Kind::Array,
            0xa0..=0xbf | 0xd9..=0xdb => Kind::Text,
            0xc0 => Kind::Nil,
            0xc1 => Kind::Unused,
            0xc2 | 0xc3 => Kind::Bool,
            0xc4..=0xc6 => Kind::Bin,
            0xc7..=0xc9 | 0xd4..=0xd8 => Kind::Ext,
            0xca | 0xcb => Kind::Float,
        }
    }
}

/// A cursor over one frame. Copying it is how to look ahead.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Goes on where an earlier reader of the same frame stood.
    #[inline]
    pub fn resume(bytes: &'a [u8], at: usize) -> Reader<'a> {
        assert!(at <= bytes.len(), "a position lies within its frame");
        Reader { bytes, at }
    }

    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline]
    pub fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// What has not been read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// A frame is one value: nothing may follow it.
    #[inline]
    pub fn finish(self) -> Result<(), Malformed> {
        if self.is_done() { Ok(()) } else { Err(Malformed::TrailingBytes) }
    }

    /// The first byte of the next value.
    #[inline]
    pub fn peek_marker(&self) -> Result<u8, Malformed> {
        self.bytes.get(self.at).copied().ok_or(Malformed::Truncated)
    }

    #[inline]
    pub fn peek(&self) -> Result<Kind, Malformed> {
        self.peek_marker().map(Kind::of)
    }

    /// Any int that fits 64 bits with a sign. Bools are not ints.
    #[inline]
    pub fn read_i64(&mut self) -> Result<i64, Malformed> {
        let start = self.at;
        let value = match self.marker()? {
            marker @ 0x00..=0x7f => marker as i64,
            marker @ 0xe0..=0xff => marker as i8 as i64,
            0xd0 => i8::from_be_bytes(self.array()?) as i64,
            0xd1 => i16::from_be_bytes(self.array()?) as i64,
            0xd2 => i32::from_be_bytes(self.array()?) as i64,
            0xd3 => i64::from_be_bytes(self.array()?),
            marker => {
                let value = self.unsigned(marker, start)?;
                match i64::try_from(value) {
                    Ok(value) => value,
                    Err(_) => return self.out_of_range(start),
                }
            }
        };
        Ok(value)
    }

    /// Any int from 0 up. Bools are not ints.
    #[inline]
    pub fn read_u64(&mut self) -> Result<u64, Malformed> {
        let start = self.at;
        match self.marker()? {
            marker @ 0x00..=0x7f => Ok(marker as u64),
            marker @ 0xcc..=0xcf => self.unsigned(marker, start),
            _ => {
                self.at = start;
                match u64::try_from(self.read_i64()?) {
                    Ok(value) => Ok(value),
                    Err(_) => self.out_of_range(start),
                }
            }
        }
    }

    #[inline]
    pub fn read_u32(&mut self) -> Result<u32, Malformed> {
        let start = self.at;
        match u32::try_from(self.read_u64()?) {
            Ok(value) => Ok(value),
            Err(_) => self.out_of_range(start),
        }
    }

    /// What the peer takes for a payload declared as plain `int`: also bools, whole parts of
    /// floats and decimal texts (spec/wire §1.4). Fields of maps are stricter.
    pub fn read_int_coerced(&mut self) -> Result<i64, Malformed> {
        match self.peek()? {
            Kind::Bool => Ok(self.read_bool()? as i64),
            Kind::Float => {
                let value = self.read_float()?;
                // The bounds are exact in a float; beyond them a cast would saturate silently.
                let fits = (-TWO_POW_63..TWO_POW_63).contains(&value);
                if fits { Ok(value as i64) } else { Err(Malformed::IntOutOfRange) }
            }
            Kind::Text => {
                let text = self.read_str()?.trim();
                text.parse().map_err(|_| Malformed::NotInt)
            }
            _ => self.read_i64(),
        }
    }

    #[inline]
    pub fn read_bool(&mut self) -> Result<bool, Malformed> {
        match self.marker()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            _ => self.refuse(Malformed::NotBool),
        }
    }

    /// What the peer takes for a payload declared as plain `bool`: also numbers and nil
    /// (spec/wire §1.4). Texts are refused: `"false"` would say true.
    pub fn read_bool_coerced(&mut self) -> Result<bool, Malformed> {
        match self.peek()? {
            Kind::Nil => self.read_nil().map(|()| false),
            Kind::Int | Kind::Float => self.read_float().map(|value| value != 0.0),
            _ => self.read_bool(),
        }
    }

    /// A float of either width, or an int: callers may pass either (spec/wire §2.1).
    pub fn read_float(&mut self) -> Result<f64, Malformed> {
        let start = self.at;
        match self.marker()? {
            0xca => Ok(f32::from_be_bytes(self.array()?) as f64),
            0xcb => Ok(f64::from_be_bytes(self.array()?)),
            marker @ 0xcc..=0xcf => Ok(self.unsigned(marker, start)? as f64),
            marker if Kind::of(marker) == Kind::Int => {
                self.at = start;
                Ok(self.read_i64()? as f64)
            }
            _ => self.refuse(Malformed::NotFloat),
        }
    }

    #[inline]
    pub fn read_str(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.read_str_bytes()?;
        core::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8)
    }

    /// The bytes of a text, not checked to be UTF-8: enough to compare a map key.
    #[inline]
    pub fn read_str_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let bytes = match self.marker()? {
            marker @ 0xa0..=0xbf => (marker & 0x1f) as usize,
            0xd9 => self.length1()?,
            0xda => self.length2()?,
            0xdb => self.length4()?,
            _ => return self.refuse(Malformed::NotText),
        };
        self.take(bytes)
    }

    #[inline]
    pub fn read_bin(&mut self) -> Result<&'a [u8], Malformed> {
        let bytes = match self.marker()? {
            0xc4 => self.length1()?,
            0xc5 => self.length2()?,
            0xc6 => self.length4()?,
            _ => return self.refuse(Malformed::NotBin),
        };
        self.take(bytes)
    }

    /// The number of elements that follow: at most the number of bytes left.
    #[inline]
    pub fn read_array_len(&mut self) -> Result<usize, Malformed> {
        let count = match self.marker()? {
            marker @ 0x90..=0x9f => (marker & 0x0f) as usize,
            0xdc => self.length2()?,
            0xdd => self.length4()?,
            _ => return self.refuse(Malformed::NotArray),
        };
        if count > self.remaining() { Err(Malformed::Truncated) } else { Ok(count) }
    }

    /// The number of pairs that follow: at most half the number of bytes left.
    #[inline]
    pub fn read_map_len(&mut self) -> Result<usize, Malformed> {
        let count = match self.marker()? {
            marker @ 0x80..=0x8f => (marker & 0x0f) as usize,
            0xde => self.length2()?,
            0xdf => self.length4()?,
            _ => return self.refuse(Malformed::NotMap),
        };
        if count > self.remaining() / 2 { Err(Malformed::Truncated) } else { Ok(count) }
    }

    #[inline]
    pub fn read_nil(&mut self) -> Result<(), Malformed> {
        match self.marker()? {
            0xc0 => Ok(()),
            _ => self.refuse(Malformed::NotNil),
        }
    }

    /// None for nil, else what `read` makes of the value.
    #[inline]
    pub fn read_nil_or<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.peek_marker()? == 0xc0 {
            self.at += 1;
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// Code and body of an extension value.
    pub fn read_ext(&mut self) -> Result<(i8, &'a [u8]), Malformed> {
        let bytes = match self.marker()? {
            marker @ 0xd4..=0xd8 => 1 << (marker - 0xd4),
            0xc7 => self.length1()?,
            0xc8 => self.length2()?,
            0xc9 => self.length4()?,
            _ => return self.refuse(Malformed::NotExt),
        };
        let code = i8::from_be_bytes(self.array()?);
        Ok((code, self.take(bytes)?))
    }

    /// Passes over one value and all it holds. Counts the values that are still owed, so nesting
    /// costs neither stack nor memory, however deep it is.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        let mut owed = 1_usize;
        while owed > 0 {
            owed -= 1;
            owed += self.skip_head()?;
            if owed > self.remaining() {
                return Err(Malformed::Truncated);
            }
        }
        Ok(())
    }

    /// The exact bytes of the next value, unread.
    pub fn read_raw(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Passes over a scalar, or over the head of a container; says how many values it owes.
    #[inline]
    fn skip_head(&mut self) -> Result<usize, Malformed> {
        let marker = self.peek_marker()?;
        match Kind::of(marker) {
            Kind::Array => return self.read_array_len(),
            Kind::Map => return self.read_map_len().map(|pairs| pairs * 2),
            Kind::Text => drop(self.read_str_bytes()?),
            Kind::Bin => drop(self.read_bin()?),
            Kind::Ext => drop(self.read_ext()?),
            Kind::Unused => return Err(Malformed::UnusedMarker),
            Kind::Nil | Kind::Bool | Kind::Int | Kind::Float => {
                let bytes = match marker {
                    0xcc | 0xd0 => 2,
                    0xcd | 0xd1 => 3,
                    0xca | 0xce | 0xd2 => 5,
                    0xcb | 0xcf | 0xd3 => 9,
                    _ => 1,
                };
                self.take(bytes)?;
            }
        }
        Ok(0)
    }

    #[inline]
    fn marker(&mut self) -> Result<u8, Malformed> {
        let marker = self.peek_marker()?;
        self.at += 1;
        Ok(marker)
    }

    /// The marker just taken was of another family: gives it back.
    #[cold]
    fn refuse<T>(&mut self, rule: Malformed) -> Result<T, Malformed> {
        self.at -= 1;
        let unused = self.bytes[self.at] == 0xc1;
        Err(if unused { Malformed::UnusedMarker } else { rule })
    }

    /// Gives an int back that its reader has no room for.
    #[cold]
    fn out_of_range<T>(&mut self, start: usize) -> Result<T, Malformed> {
        self.at = start;
        Err(Malformed::IntOutOfRange)
    }

    #[inline]
    fn unsigned(&mut self, marker: u8, start: usize) -> Result<u64, Malformed> {
        match marker {
            0xcc => Ok(u8::from_be_bytes(self.array()?) as u64),
            0xcd => Ok(u16::from_be_bytes(self.array()?) as u64),
            0xce => Ok(u32::from_be_bytes(self.array()?) as u64),
            0xcf => Ok(u64::from_be_bytes(self.array()?)),
            _ => {
                self.at = start + 1;
                self.refuse(Malformed::NotInt)
            }
        }
    }

    #[inline]
    fn length1(&mut self) -> Result<usize, Malformed> {
        Ok(u8::from_be_bytes(self.array()?) as usize)
    }

    #[inline]
    fn length2(&mut self) -> Result<usize, Malformed> {
        Ok(u16::from_be_bytes(self.array()?) as usize)
    }

    #[inline]
    fn length4(&mut self) -> Result<usize, Malformed> {
        Ok(u32::from_be_bytes(self.array()?) as usize)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((head, _)) = self.bytes[self.at..].split_first_chunk::<N>() else {
            return Err(Malformed::Truncated);
        };
        self.at += N;
        Ok(*head)
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        if bytes > self.remaining() {
            return Err(Malformed::Truncated);
        }
        let taken = &self.bytes[self.at..self.at + bytes];
        self.at += bytes;
        Ok(taken)
    }
}

/// The first float beyond 64 bits with a sign.
const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        out
    }

    #[test]
    fn ints_take_their_shortest_form_and_come_back() {
        let edges = [
            (0, 1),
            (127, 1),
            (128, 2),
            (255, 2),
            (256, 3),
            (65_535, 3),
            (65_536, 5),
            (0xffff_ffff, 5),
            (0x1_0000_0000, 9),
            (i64::MAX, 9),
            (-1, 1),
            (-32, 1),
            (-33, 2),
            (-128, 2),
            (-129, 3),
            (-32_768, 3),
            (-32_769, 5),
            (-2_147_483_648, 5),
            (-2_147_483_649, 9),
            (i64::MIN, 9),
        ];
        for (value, bytes) in edges {
            let frame = written(|w| w.i64(value));
            assert_eq!(frame.len(), bytes, "{value}");
            assert_eq!(Reader::new(&frame).read_i64(), Ok(value));
            assert_eq!(Reader::new(&frame).read_u64().ok(), u64::try_from(value).ok());
        }
        let large = written(|w| w.u64(u64::MAX));
        assert_eq!(Reader::new(&large).read_u64(), Ok(u64::MAX));
        let mut reader = Reader::new(&large);
        assert_eq!(reader.read_i64(), Err(Malformed::IntOutOfRange));
        assert_eq!(reader.read_u64(), Ok(u64::MAX), "a refused value is not taken");
    }

    #[test]
    fn wide_encodings_of_small_ints_are_read() {
        for frame in [&[0xcc, 5][..], &[0xcd, 0, 5], &[0xd0, 5], &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5]] {
            assert_eq!(Reader::new(frame).read_u64(), Ok(5));
            assert_eq!(Reader::new(frame).read_i64(), Ok(5));
        }
    }

    #[test]
    fn strict_ints_take_nothing_else() {
        for frame in
            [&[0xc3][..], &[0xc0], &[0xa1, b'1'], &[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0], &[0x90]]
        {
            let mut reader = Reader::new(frame);
            assert_eq!(reader.read_i64(), Err(Malformed::NotInt));
            assert_eq!(reader.position(), 0, "a refused value is not taken");
            assert_eq!(reader.read_u64(), Err(Malformed::NotInt));
        }
    }

    #[test]
    fn plain_ints_are_coerced_as_the_peer_does() {
        let coerced = |frame: Vec<u8>| Reader::new(&frame).read_int_coerced();
        assert_eq!(coerced(written(|w| w.str("1"))), Ok(1));
        assert_eq!(coerced(written(|w| w.str(" -12 "))), Ok(-12));
        assert_eq!(coerced(written(|w| w.bool(true))), Ok(1));
        assert_eq!(coerced(written(|w| w.f64(2.9))), Ok(2));
        assert_eq!(coerced(written(|w| w.f64(f64::NAN))), Err(Malformed::IntOutOfRange));
        assert_eq!(coerced(written(|w| w.f64(1e300))), Err(Malformed::IntOutOfRange));
        assert_eq!(coerced(written(|w| w.str("one"))), Err(Malformed::NotInt));
        assert_eq!(coerced(written(|w| w.nil())), Err(Malformed::NotInt));
        assert_eq!(coerced(vec![0x91, 1]), Err(Malformed::NotInt));
    }

    #[test]
    fn plain_bools_are_coerced_from_numbers_and_nil_only() {
        let coerced = |frame: Vec<u8>| Reader::new(&frame).read_bool_coerced();
        assert_eq!(coerced(vec![0xc0]), Ok(false));
        assert_eq!(coerced(vec![0]), Ok(false));
        assert_eq!(coerced(vec![1]), Ok(true));
        assert_eq!(coerced(vec![0xc3]), Ok(true));
        assert_eq!(coerced(written(|w| w.f64(0.0))), Ok(false));
        assert_eq!(coerced(written(|w| w.str("false"))), Err(Malformed::NotBool));
    }

    #[test]
    fn lengths_beyond_the_frame_are_refused_before_anyone_reserves_room() {
        for frame in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdc, 0, 2, 1],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 1],
            &[0xdb, 0xff, 0xff, 0xff, 0xff, b'x'],
            &[0xc6, 0, 0, 0, 2, 0],
            &[0xc9, 0, 0, 0, 9, 1, 0],
            &[0xd8, 1, 0],
        ] {
            assert_eq!(Reader::new(frame).skip(), Err(Malformed::Truncated), "{frame:x?}");
        }
        assert_eq!(Reader::new(&[0xdd, 0, 0, 1, 0, 1]).read_array_len(), Err(Malformed::Truncated));
        assert_eq!(Reader::new(&[0x82, 1, 2, 3]).read_map_len(), Err(Malformed::Truncated));
    }

    #[test]
    fn skipping_a_million_levels_needs_no_stack() {
        let mut frame = vec![0x91; 1_000_000];
        frame.push(0xc0);
        frame.push(0x07);
        let mut reader = Reader::new(&frame);
        assert_eq!(reader.skip(), Ok(()));
        assert_eq!(reader.read_i64(), Ok(7));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn the_unused_marker_and_trailing_bytes_have_their_own_names() {
        assert_eq!(Reader::new(&[0xc1]).skip(), Err(Malformed::UnusedMarker));
        assert_eq!(Reader::new(&[0xc1]).read_str(), Err(Malformed::UnusedMarker));
        assert_eq!(Reader::new(&[]).read_nil(), Err(Malformed::Truncated));
        let mut reader = Reader::new(&[0xc0, 0xc0]);
        assert_eq!(reader.read_nil(), Ok(()));
        assert_eq!(reader.finish(), Err(Malformed::TrailingBytes));
        assert_eq!(Reader::new(&[0xa1, 0xff]).read_str(), Err(Malformed::NotUtf8));
    }

    #[test]
    fn texts_and_binaries_are_never_mixed() {
        assert_eq!(Reader::new(&[0xa1, b'x']).read_bin(), Err(Malformed::NotBin));
        assert_eq!(Reader::new(&[0xc4, 1, b'x']).read_str(), Err(Malformed::NotText));
    }

    #[test]
    fn every_kind_comes_back_at_every_width() {
        for bytes in [0, 1, 2, 4, 5, 8, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
            let body = vec![b'a'; bytes];
            let text = core::str::from_utf8(&body).expect("letters are UTF-8");
            let frame = written(|w| w.str(text));
            assert_eq!(Reader::new(&frame).read_str(), Ok(text));
            let frame = written(|w| w.bin(&body));
            assert_eq!(Reader::new(&frame).read_bin(), Ok(&body[..]));
            let frame = written(|w| w.ext(-3, &body));
            assert_eq!(Reader::new(&frame).read_ext(), Ok((-3, &body[..])));
            let mut frame = written(|w| w.array(bytes));
            frame.resize(frame.len() + bytes, 0xc0);
            assert_eq!(Reader::new(&frame).read_array_len(), Ok(bytes));
            assert_eq!(Reader::new(&frame).read_raw(), Ok(&frame[..]));
            let mut frame = written(|w| w.map(bytes));
            frame.resize(frame.len() + 2 * bytes, 0xc0);
            assert_eq!(Reader::new(&frame).read_map_len(), Ok(bytes));
            assert_eq!(Reader::new(&frame).read_raw(), Ok(&frame[..]));
        }
    }

    #[test]
    fn floats_may_be_ints_and_of_either_width() {
        assert_eq!(Reader::new(&[5]).read_float(), Ok(5.0));
        assert_eq!(Reader::new(&[0xff]).read_float(), Ok(-1.0));
        assert_eq!(Reader::new(&[0xca, 0x3f, 0xc0, 0, 0]).read_float(), Ok(1.5));
        let frame = written(|w| w.f64(1.5));
        assert_eq!(Reader::new(&frame).read_float(), Ok(1.5));
        assert_eq!(Reader::new(&[0xa1, b'1']).read_float(), Err(Malformed::NotFloat));
        assert_eq!(Reader::new(&[0xc3]).read_float(), Err(Malformed::NotFloat));
    }
}
