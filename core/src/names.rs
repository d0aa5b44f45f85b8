//! The ids and small values that all parts share. Newtypes only: an index is not a count.

use crate::slots::SlotName;
use core::fmt;

/// BLAKE3-256 or SHA-256 of a chunk and everything before it (spec/transfer §1.2, §1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHash(pub [u8; 32]);

impl fmt::Debug for ChunkHash {
    /// Eight hex digits tell chunks apart in a transcript.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The number that an engine worker gives itself: random, 63 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub i64);

/// One connection of one client, from accept to end of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection(pub SlotName);

/// One request that still waits for its answer. The shell keeps uid and operation frame under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reply {
    pub connection: Connection,
    pub request: SlotName,
}

/// One question of an operator (HTTP) that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operator(pub u64);

/// Whatever is in flight: issued once, ended by exactly one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub SlotName);

/// The memory of an engine that the server may copy from and to. Named before the shells attach
/// it; whoever holds the name of one that is gone holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment(pub SlotName);

/// Where an engine's memory lies: of the host, or of the card that this process knows by that
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    Host,
    Card(u32),
}

/// One object of the L1 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub SlotName);

/// A pair of model name and tenant salt, interned. Named by `Fact::TenantNamed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u32);

/// Everything of an object key but its hash: tenant, KV rank, object group and layout, interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub u32);

/// One lower tier, by its place in the roster. A place is never used twice in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u16);

/// What a lower tier knows an object by. Its scope has no layout: names at rest hold none
/// (spec/transfer §1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct L2Key {
    pub hash: ChunkHash,
    pub scope: ScopeId,
}

/// What is known of the bytes of an object below L1, and its name does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seal {
    /// CRC32 of the object's native name and its bytes.
    pub digest: u32,
    /// `Layout::fingerprint` of its layout.
    pub layout: u32,
}

/// Which mapping a place lies in. 0 is the L1 arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(pub u16);

/// Where bytes lie. Payload never enters the core; this is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub arena: ArenaId,
    pub offset: u64,
    pub bytes: u64,
}

/// `ws<<24 | rank<<16 | ws<<8 | rank` (spec/transfer §1.5). World sizes over 255 do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvRank(pub u32);

impl KvRank {
    /// None when the world is empty or larger than 255, or the rank lies outside it.
    pub fn of(world_size: u32, rank: u32) -> Option<KvRank> {
        if world_size == 0 || world_size > 255 || rank >= world_size {
            return None;
        }
        Some(KvRank(world_size << 24 | rank << 16 | world_size << 8 | rank))
    }
}

/// A torch element type: a label with a size. Copying is bytewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dtype(u8);

/// Name without `torch.`, and bytes per element.
const DTYPES: &[(&str, u8)] = &[
    ("float16", 2),
    ("bfloat16", 2),
    ("float32", 4),
    ("float64", 8),
    ("uint8", 1),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("bool", 1),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
    ("complex64", 8),
    ("complex128", 16),
];

/// Torch's second names for the same types.
const DTYPE_ALIASES: &[(&str, &str)] = &[
    ("half", "float16"),
    ("float", "float32"),
    ("double", "float64"),
    ("short", "int16"),
    ("int", "int32"),
    ("long", "int64"),
    ("cfloat", "complex64"),
    ("cdouble", "complex128"),
];

impl Dtype {
    pub fn named(name: &str) -> Option<Dtype> {
        let plain = DTYPE_ALIASES.iter().find(|(alias, _)| *alias == name);
        let name = plain.map_or(name, |(_, plain)| *plain);
        let index = DTYPES.iter().position(|(known, _)| *known == name)?;
        Some(Dtype(index as u8))
    }

    pub fn name(self) -> &'static str {
        DTYPES[self.0 as usize].0
    }

    pub fn bytes(self) -> u64 {
        DTYPES[self.0 as usize].1 as u64
    }
}

/// The canonical shape of one object: token-major `[plane][layer][slot][hidden]`
/// (spec/transfer §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    /// 2 for split K and V, 1 for MLA and fused K/V.
    pub planes: u8,
    pub layers: u32,
    pub slots: u32,
    pub hidden: u32,
    pub dtype: Dtype,
}

impl Layout {
    /// Of an object whose shape is not known: one that was found in a lower tier.
    pub const UNKNOWN: Layout =
        Layout { planes: 0, layers: 0, slots: 0, hidden: 0, dtype: Dtype(0) };

    /// Tells layouts of equal size apart at rest (32-bit FNV-1a of the fields, little endian).
    pub fn fingerprint(&self) -> u32 {
        let fields =
            [self.planes.into(), self.layers, self.slots, self.hidden, self.dtype.0.into()];
        let bytes = fields.into_iter().flat_map(u32::to_le_bytes);
        bytes.fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// Bytes of one object; None when the product leaves 64 bits or is zero.
    pub fn bytes(&self) -> Option<u64> {
        let elements = (self.planes as u64)
            .checked_mul(self.layers as u64)?
            .checked_mul(self.slots as u64)?
            .checked_mul(self.hidden as u64)?;
        elements.checked_mul(self.dtype.bytes()).filter(|bytes| *bytes > 0)
    }

    /// The shape an engine-driven client expects: `[2, L, T, H]` or `[L, T, H]`
    /// (spec/transfer §3.4).
    pub fn shape(&self) -> ([u64; 4], usize) {
        let [layers, slots, hidden] = [self.layers, self.slots, self.hidden].map(u64::from);
        if self.planes == 1 {
            ([layers, slots, hidden, 0], 3)
        } else {
            ([self.planes as u64, layers, slots, hidden], 4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn world_sizes_over_255_are_refused() {
        assert_eq!(KvRank::of(8, 7), Some(KvRank(0x0807_0807)));
        assert_eq!(KvRank::of(256, 255), None);
        assert_eq!(KvRank::of(2, 2), None);
        assert_eq!(KvRank::of(0, 0), None);
    }

    #[test]
    fn aliases_name_the_same_type() {
        assert_eq!(Dtype::named("half"), Dtype::named("float16"));
        assert_eq!(Dtype::named("float17"), None);
        assert_eq!(Dtype::named("Size"), None);
    }
}
