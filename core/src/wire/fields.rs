//! Maps with named fields, and arrays of them (spec/wire §2.1).
//!
//! A list is checked when it is read and stays where it is: walking it decodes again, so that
//! nothing is allocated and a long list costs what its bytes cost. Its one invariant: a value that
//! exists decodes without fault.

use crate::wire::msgpack::{Malformed, Reader, Writer};
use core::fmt;
use core::marker::PhantomData;

/// A value that breaks a rule: which field of which map, and the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// The innermost named field; empty where the value itself is meant.
    pub field: &'static str,
    pub rule: Malformed,
}

impl Broken {
    pub fn within(self, field: &'static str) -> Broken {
        if self.field.is_empty() { Broken { field, ..self } } else { self }
    }
}

impl From<Malformed> for Broken {
    fn from(rule: Malformed) -> Broken {
        Broken { field: "", rule }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "value" } else { self.field };
        write!(f, "{field} {}", self.rule.text())
    }
}

/// A value with one form on the wire. Inside maps and arrays nothing is coerced.
pub trait Wire<'a>: Sized {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Broken>;
    fn write(&self, writer: &mut Writer<'_>);
}

impl<'a> Wire<'a> for i64 {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<i64, Broken> {
        Ok(reader.read_i64()?)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.i64(*self);
    }
}

impl<'a> Wire<'a> for bool {
    fn read(reader: &mut Reader<'a>) -> Result<bool, Broken> {
        Ok(reader.read_bool()?)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.bool(*self);
    }
}

impl<'a> Wire<'a> for &'a str {
    fn read(reader: &mut Reader<'a>) -> Result<&'a str, Broken> {
        Ok(reader.read_str()?)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.str(self);
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn read(reader: &mut Reader<'a>) -> Result<Option<T>, Broken> {
        if reader.peek_marker()? == NIL {
            reader.read_nil()?;
            return Ok(None);
        }
        T::read(reader).map(Some)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Some(value) => value.write(writer),
            None => writer.nil(),
        }
    }
}

/// Binary that somebody else understands. Shown by its size alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Opaque<'a>(pub &'a [u8]);

impl fmt::Debug for Opaque<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl<'a> Wire<'a> for Opaque<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Opaque<'a>, Broken> {
        Ok(Opaque(reader.read_bin()?))
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.bin(self.0);
    }
}

/// An array, checked and still encoded. Shown by its length alone: it may hold token ids.
pub struct List<'a, T> {
    count: usize,
    elements: &'a [u8],
    of: PhantomData<fn() -> T>,
}

impl<'a, T: Wire<'a>> List<'a, T> {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut reader = Reader::new(self.elements);
        (0..self.count).map(move |_| T::read(&mut reader).expect("checked when the list was read"))
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for List<'a, T> {
    fn read(reader: &mut Reader<'a>) -> Result<List<'a, T>, Broken> {
        let count = reader.read_array_len()?;
        let rest = reader.rest();
        for _ in 0..count {
            T::read(reader)?;
        }
        let elements = &rest[..rest.len() - reader.remaining()];
        Ok(List { count, elements, of: PhantomData })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.array(self.count);
        self.iter().for_each(|element| element.write(writer));
    }
}

/// A map from ints, checked and still encoded. Repeated keys are kept.
pub struct IntMap<'a, T> {
    pairs: usize,
    elements: &'a [u8],
    of: PhantomData<fn() -> T>,
}

impl<'a, T: Wire<'a>> IntMap<'a, T> {
    pub fn len(&self) -> usize {
        self.pairs
    }

    pub fn is_empty(&self) -> bool {
        self.pairs == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (i64, T)> + use<'a, T> {
        let mut reader = Reader::new(self.elements);
        (0..self.pairs).map(move |_| {
            let key = i64::read(&mut reader).expect("checked when the map was read");
            (key, T::read(&mut reader).expect("checked when the map was read"))
        })
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for IntMap<'a, T> {
    fn read(reader: &mut Reader<'a>) -> Result<IntMap<'a, T>, Broken> {
        let pairs = reader.read_map_len()?;
        let rest = reader.rest();
        for _ in 0..pairs {
            i64::read(reader)?;
            T::read(reader)?;
        }
        let elements = &rest[..rest.len() - reader.remaining()];
        Ok(IntMap { pairs, elements, of: PhantomData })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.map(self.pairs);
        for (key, value) in self.iter() {
            writer.i64(key);
            value.write(writer);
        }
    }
}

/// The same for both: a copy of the slice, equal when the bytes are, shown by the count.
macro_rules! borrowed {
    ($name:ident, $count:ident, $noun:literal) => {
        impl<T> Clone for $name<'_, T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<'_, T> {}

        impl<T> PartialEq for $name<'_, T> {
            fn eq(&self, other: &Self) -> bool {
                self.$count == other.$count && self.elements == other.elements
            }
        }

        impl<T> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $noun), self.$count)
            }
        }
    };
}

borrowed!(List, count, "elements");
borrowed!(IntMap, pairs, "pairs");

/// A free-form map (`layout_hints`): known to be a map, otherwise untouched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FreeMap<'a>(&'a [u8]);

impl<'a> FreeMap<'a> {
    /// A reader that stands before the value of a text key.
    pub fn find(&self, key: &str) -> Option<Reader<'a>> {
        let mut reader = Reader::new(self.0);
        for _ in 0..reader.read_map_len().ok()? {
            let found = reader.read_raw().ok()?;
            if Reader::new(found).read_str_bytes() == Ok(key.as_bytes()) {
                return Some(reader);
            }
            reader.skip().ok()?;
        }
        None
    }
}

impl fmt::Debug for FreeMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map of {} bytes", self.0.len())
    }
}

impl<'a> Wire<'a> for FreeMap<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<FreeMap<'a>, Broken> {
        let mut head = *reader;
        head.read_map_len()?;
        Ok(FreeMap(reader.read_raw()?))
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.raw(self.0);
    }
}

const NIL: u8 = 0xc0;

/// A map with these fields, named as on the wire. Unknown keys are passed over, a repeated key
/// counts the last time, a field without a default must be there.
macro_rules! structure {
    ($(#[$doc:meta])* $name:ident<$life:lifetime> {
        $($(#[$about:meta])* $field:ident: $type:ty $(= $default:expr)?,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name<$life> {
            $($(#[$about])* pub $field: $type,)*
        }

        impl<$life> $crate::wire::fields::Wire<$life> for $name<$life> {
            fn read(
                reader: &mut $crate::wire::msgpack::Reader<$life>,
            ) -> Result<Self, $crate::wire::fields::Broken> {
                $(let mut $field: Option<$type> = None;)*
                for _ in 0..reader.read_map_len()? {
                    let key = reader.read_str_bytes()?;
                    $(if key == stringify!($field).as_bytes() {
                        let value = <$type as $crate::wire::fields::Wire>::read(reader);
                        $field = Some(value.map_err(|broken| broken.within(stringify!($field)))?);
                        continue;
                    })*
                    reader.skip()?;
                }
                $(let $field = $field $(.or(Some($default)))?
                    .ok_or($crate::wire::fields::Broken {
                        field: stringify!($field),
                        rule: $crate::wire::msgpack::Malformed::MissingField,
                    })?;)*
                Ok($name { $($field,)* })
            }

            fn write(&self, writer: &mut $crate::wire::msgpack::Writer<'_>) {
                writer.map([$(stringify!($field),)*].len());
                $(writer.str(stringify!($field));
                $crate::wire::fields::Wire::write(&self.$field, writer);)*
            }
        }
    };
}

pub(crate) use structure;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    structure! {
        Sample<'a> {
            name: &'a str,
            sizes: List<'a, i64>,
            count: i64 = 7,
        }
    }

    fn sample(frame: &[u8]) -> Result<Sample<'_>, Broken> {
        let mut reader = Reader::new(frame);
        Sample::read(&mut reader)
    }

    #[test]
    fn defaults_fill_in_and_unknown_keys_are_passed_over() {
        let mut frame = Vec::new();
        let mut writer = Writer::new(&mut frame);
        writer.map(3);
        writer.str("sizes");
        writer.array(2);
        writer.i64(3);
        writer.i64(-4);
        writer.str("later");
        writer.map(1);
        writer.nil();
        writer.array(0);
        writer.str("name");
        writer.str("n");
        let value = sample(&frame).expect("all that must be there is there");
        assert_eq!((value.name, value.count), ("n", 7));
        assert_eq!(value.sizes.iter().collect::<Vec<_>>(), [3, -4]);
    }

    #[test]
    fn a_fault_names_its_field() {
        let missing = Broken { field: "name", rule: Malformed::MissingField };
        assert_eq!(sample(&[0x80]), Err(missing));
        let mut frame = Vec::new();
        let mut writer = Writer::new(&mut frame);
        writer.map(1);
        writer.str("sizes");
        writer.array(1);
        writer.str("1");
        assert_eq!(sample(&frame), Err(Broken { field: "sizes", rule: Malformed::NotInt }));
        assert_eq!(sample(&[0x90]), Err(Broken { field: "", rule: Malformed::NotMap }));
        assert_eq!(sample(&[0x81, 1, 1]), Err(Broken { field: "", rule: Malformed::NotText }));
    }

    #[test]
    fn free_maps_find_text_keys_among_others() {
        let mut frame = Vec::new();
        let mut writer = Writer::new(&mut frame);
        writer.map(2);
        writer.i64(5);
        writer.array(0);
        writer.str("kv_layout");
        writer.str("NHD");
        let map = FreeMap::read(&mut Reader::new(&frame)).expect("a map");
        let mut found = map.find("kv_layout").expect("the key is there");
        assert_eq!(found.read_str(), Ok("NHD"));
        assert!(map.find("head_dim").is_none());
    }
}
