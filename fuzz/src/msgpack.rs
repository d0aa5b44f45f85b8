//! Values one after the other: passing over a value and taking it as it stands agree, and every
//! typed reader either fails or stays within the value.

use kvtide_core::wire::msgpack::{Kind, Reader};

pub fn run(input: &[u8]) {
    let mut reader = Reader::new(input);
    while !reader.is_done() {
        let start = reader.position();
        let mut skipping = reader;
        let mut typed = reader;
        let skipped = skipping.skip();
        match reader.read_raw() {
            Ok(raw) => {
                assert_eq!(skipped, Ok(()));
                assert_eq!(skipping.position(), reader.position());
                assert_eq!(raw, &input[start..reader.position()]);
                assert!(!raw.is_empty(), "a value has at least its marker");
            }
            Err(fault) => {
                assert_eq!(skipped, Err(fault));
                return;
            }
        }
        if read_typed(&mut typed) {
            assert_eq!(typed.position(), reader.position(), "a value ends in one place");
        }
    }
}

/// Whether the value at the front was read as what its marker says.
fn read_typed(reader: &mut Reader<'_>) -> bool {
    match reader.peek() {
        Ok(Kind::Nil) => reader.read_nil().is_ok(),
        Ok(Kind::Bool) => reader.read_bool().is_ok(),
        Ok(Kind::Int) => reader.read_i64().is_ok() || reader.read_u64().is_ok(),
        Ok(Kind::Float) => reader.read_float().is_ok(),
        Ok(Kind::Text) => reader.read_str_bytes().is_ok(),
        Ok(Kind::Bin) => reader.read_bin().is_ok(),
        Ok(Kind::Ext) => reader.read_ext().is_ok(),
        _ => false,
    }
}
