//! Writes the data of a `prepare_retrieve` answer: a pickle of tensors around payload that is
//! gathered from where it lies (spec/transfer §4.7, "Outgoing").
//!
//! ```text
//! head │ tensor_head │ payload │ tensor_tail │ … │ TAIL
//!
//! head         m0 = partial(torch.frombuffer, dtype=torch.X), m1 = torch.reshape, m2 = shape; [
//! per tensor   m1( m0( bytearray ), m2 ),
//! TAIL         ]
//! ```
//!
//! The one invariant: all pieces have a length that the layout alone decides, so the length of the
//! whole is known before the first byte is sent.

use crate::names::Layout;
use alloc::vec::Vec;

/// Appends everything that stands before the first tensor.
pub fn head(layout: &Layout, out: &mut Vec<u8>) {
    out.extend_from_slice(BEFORE_DTYPE);
    out.extend_from_slice(layout.dtype.name().as_bytes());
    out.extend_from_slice(BEFORE_SHAPE);
    let (sizes, rank) = layout.shape();
    for size in &sizes[..rank] {
        // Five bytes hold any size of 32 bits with its sign.
        out.extend_from_slice(&[0x8a, 5]);
        out.extend_from_slice(&size.to_le_bytes()[..5]);
    }
    out.extend_from_slice(AFTER_SHAPE);
}

/// What stands before the payload of every tensor.
pub fn tensor_head(layout: &Layout) -> [u8; TENSOR_HEAD_BYTES] {
    let mut head = *b"h\x01h\x00\x96--------";
    head[5..].copy_from_slice(&layout.bytes().unwrap_or(0).to_le_bytes());
    head
}

/// What stands after the payload of every tensor.
pub const TENSOR_TAIL: &[u8] = b"\x85Rh\x02\x86R";

/// What stands after the last tensor.
pub const TAIL: &[u8] = b"e.";

pub const TENSOR_HEAD_BYTES: usize = 13;

/// Bytes of the whole pickle of `tensors` tensors; None when they leave 64 bits.
pub fn total_bytes(layout: &Layout, tensors: u32) -> Option<u64> {
    let (_, rank) = layout.shape();
    let head = HEAD_FIXED_BYTES + layout.dtype.name().len() + rank * SIZE_BYTES;
    let around = (TENSOR_HEAD_BYTES + TENSOR_TAIL.len()) as u64;
    let each = layout.bytes()?.checked_add(around)?;
    each.checked_mul(tensors as u64)?.checked_add((head + TAIL.len()) as u64)
}

/// One size of the shape.
const SIZE_BYTES: usize = 7;
/// The class, the function, and a dictionary whose item is the type that follows.
const BEFORE_DTYPE: &[u8] =
    b"\x80\x05cfunctools\npartial\nctorch\nfrombuffer\n\x85}\x8c\x05dtypectorch\n";
/// The call that makes a partial of them, kept in the memo; then the second function.
const BEFORE_SHAPE: &[u8] = b"\ns\x92q\x000ctorch\nreshape\nq\x010(";
const AFTER_SHAPE: &[u8] = b"tq\x020](";
const HEAD_FIXED_BYTES: usize = BEFORE_DTYPE.len() + BEFORE_SHAPE.len() + AFTER_SHAPE.len();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Dtype;

    #[test]
    fn the_length_is_known_before() {
        for (name, planes, slots) in [("float16", 2, 16), ("float8_e4m3fn", 1, u32::MAX)] {
            let dtype = Dtype::named(name).expect("a torch type");
            let layout = Layout { planes, layers: 2, slots, hidden: 3, dtype };
            for tensors in [0, 1, 7] {
                let mut bytes = Vec::new();
                head(&layout, &mut bytes);
                let payload = layout.bytes().expect("a size");
                let around = tensor_head(&layout).len() + TENSOR_TAIL.len();
                let each = payload + around as u64;
                let whole = (bytes.len() + TAIL.len()) as u64 + each * tensors as u64;
                assert_eq!(total_bytes(&layout, tensors), Some(whole));
            }
        }
        let dtype = Dtype::named("float64").expect("a torch type");
        let layout = Layout { planes: 1, layers: u32::MAX, slots: u32::MAX, hidden: 1, dtype };
        assert_eq!(total_bytes(&layout, 1), None);
    }
}
