//! Values written as the peer writes them: every head in its shortest form.

use alloc::vec::Vec;

/// Appends values in their shortest form, which is what the peer writes.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    pub fn nil(&mut self) {
        self.out.push(0xc0);
    }

    pub fn bool(&mut self, value: bool) {
        self.out.push(0xc2 | value as u8);
    }

    pub fn u64(&mut self, value: u64) {
        match value {
            0..=0x7f => self.out.push(value as u8),
            0x80..=0xff => self.head(0xcc, &(value as u8).to_be_bytes()),
            0x100..=0xffff => self.head(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.head(0xce, &(value as u32).to_be_bytes()),
            _ => self.head(0xcf, &value.to_be_bytes()),
        }
    }

    pub fn i64(&mut self, value: i64) {
        match value {
            0.. => self.u64(value as u64),
            -0x20..=-1 => self.out.push(value as i8 as u8),
            -0x80..=-0x21 => self.head(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..=-0x81 => self.head(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => self.head(0xd2, &(value as i32).to_be_bytes()),
            _ => self.head(0xd3, &value.to_be_bytes()),
        }
    }

    pub fn f64(&mut self, value: f64) {
        self.head(0xcb, &value.to_be_bytes());
    }

    pub fn str(&mut self, value: &str) {
        match value.len() {
            bytes @ 0..=0x1f => self.out.push(0xa0 | bytes as u8),
            bytes @ 0x20..=0xff => self.head(0xd9, &(bytes as u8).to_be_bytes()),
            bytes @ 0x100..=0xffff => self.head(0xda, &(bytes as u16).to_be_bytes()),
            bytes => self.head(0xdb, &length(bytes).to_be_bytes()),
        }
        self.out.extend_from_slice(value.as_bytes());
    }

    pub fn bin(&mut self, value: &[u8]) {
        self.bin_head(value.len());
        self.out.extend_from_slice(value);
    }

    /// The head of a binary whose bytes are written elsewhere.
    pub fn bin_head(&mut self, bytes: usize) {
        match bytes {
            0..=0xff => self.head(0xc4, &(bytes as u8).to_be_bytes()),
            0x100..=0xffff => self.head(0xc5, &(bytes as u16).to_be_bytes()),
            _ => self.head(0xc6, &length(bytes).to_be_bytes()),
        }
    }

    pub fn array(&mut self, count: usize) {
        match count {
            0..=0x0f => self.out.push(0x90 | count as u8),
            0x10..=0xffff => self.head(0xdc, &(count as u16).to_be_bytes()),
            _ => self.head(0xdd, &length(count).to_be_bytes()),
        }
    }

    pub fn map(&mut self, count: usize) {
        match count {
            0..=0x0f => self.out.push(0x80 | count as u8),
            0x10..=0xffff => self.head(0xde, &(count as u16).to_be_bytes()),
            _ => self.head(0xdf, &length(count).to_be_bytes()),
        }
    }

    pub fn ext(&mut self, code: i8, body: &[u8]) {
        match body.len() {
            1 => self.out.push(0xd4),
            2 => self.out.push(0xd5),
            4 => self.out.push(0xd6),
            8 => self.out.push(0xd7),
            16 => self.out.push(0xd8),
            bytes @ 0..=0xff => self.head(0xc7, &(bytes as u8).to_be_bytes()),
            bytes @ 0x100..=0xffff => self.head(0xc8, &(bytes as u16).to_be_bytes()),
            bytes => self.head(0xc9, &length(bytes).to_be_bytes()),
        }
        self.out.push(code as u8);
        self.out.extend_from_slice(body);
    }

    /// A value that is encoded already.
    pub fn raw(&mut self, value: &[u8]) {
        self.out.extend_from_slice(value);
    }

    fn head(&mut self, marker: u8, number: &[u8]) {
        self.out.push(marker);
        self.out.extend_from_slice(number);
    }
}

/// Lengths on the wire have 32 bits. What we write ourselves is bounded far below that.
fn length(count: usize) -> u32 {
    u32::try_from(count).expect("a value that we write is shorter than 4 GiB")
}
