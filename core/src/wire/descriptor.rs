//! Descriptors of an engine's device memory: extension code 1 (spec/wire §2.4, spec/transfer §5.2).
//!
//! Its one invariant: whoever holds a `Descriptor` may turn it into addresses. Shape and stride
//! have one rank, nothing is negative, and every element lies within the storage it names.

use crate::names::Dtype;
use crate::wire::fields::{Broken, List, Wire};
use crate::wire::msgpack::{Malformed, Reader, Writer};
use core::fmt;

/// The rule that a descriptor broke; the text ends up in the engine's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorFault {
    Malformed(Broken),
    Version,
    /// `musa` or `npu`.
    Vendor,
    UnknownType,
    /// Memory of PyTorch's expandable segments has no plain IPC handle.
    ExpandableSegment,
    /// A handle of a newer PyTorch, whose layout nobody here has seen.
    HandleVersion {
        got: u8,
    },
    HandleForm,
    UnknownDtype,
    RankMismatch,
    Negative,
    SpanAboveStorage,
}

impl DescriptorFault {
    pub fn text(self) -> &'static str {
        match self {
            DescriptorFault::Malformed(_) => "a device descriptor is malformed",
            DescriptorFault::Version => "a device descriptor is not of version 1",
            DescriptorFault::Vendor => "memory of this device vendor is not served",
            DescriptorFault::UnknownType => "a device descriptor is of an unknown type",
            DescriptorFault::ExpandableSegment => {
                "device memory lies in expandable segments, which cannot be shared; \
                 start the engine with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"
            }
            DescriptorFault::HandleVersion { .. } => {
                "a device memory handle is of a version above 3: \
                 this PyTorch is newer than the server"
            }
            DescriptorFault::HandleForm => "a device memory handle has an unknown form",
            DescriptorFault::UnknownDtype => "a device descriptor has an unknown element type",
            DescriptorFault::RankMismatch => "shape and stride of a tensor differ in rank",
            DescriptorFault::Negative => "a device descriptor holds a negative size",
            DescriptorFault::SpanAboveStorage => "a tensor reaches beyond its storage",
        }
    }
}

impl From<Broken> for DescriptorFault {
    fn from(broken: Broken) -> DescriptorFault {
        DescriptorFault::Malformed(broken)
    }
}

impl From<Malformed> for DescriptorFault {
    fn from(rule: Malformed) -> DescriptorFault {
        DescriptorFault::Malformed(rule.into())
    }
}

/// The body of an extension value of code 1, not looked at yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device<'a>(pub &'a [u8]);

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor of {} bytes", self.0.len())
    }
}

impl<'a> Wire<'a> for Device<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Device<'a>, Broken> {
        let (code, body) = reader.read_ext()?;
        if code != DEVICE_CODE { Err(Malformed::UnknownValue.into()) } else { Ok(Device(body)) }
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.ext(DEVICE_CODE, self.0);
    }
}

/// One tensor on a device, and how to reach its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descriptor<'a> {
    pub handle: Handle<'a>,
    pub tensor: Tensor<'a>,
}

/// Strides and offset count elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub dtype: Dtype,
    pub shape: List<'a, i64>,
    pub stride: List<'a, i64>,
    pub storage_offset: u64,
    pub device_uuid: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Handle<'a> {
    Cuda(CudaHandle<'a>),
    CudaRaw { memory: &'a [u8; 64], alloc_offset: u64, bytes: u64 },
    CudaVmm(VmmHandle<'a>),
    CpuShm { name: &'a str, bytes: u64 },
}

/// PyTorch's own form: an allocation, the storage within it, and the sender's bookkeeping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaHandle<'a> {
    pub memory: &'a [u8; 64],
    pub storage_bytes: u64,
    pub base_offset_bytes: u64,
    pub counter_name: &'a [u8],
    pub counter_index: u64,
    /// To be waited for once before the first use.
    pub event: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmmHandle<'a> {
    pub export_id: &'a [u8; 16],
    pub kind: VmmKind,
    pub fabric: Option<&'a [u8]>,
    pub alloc_bytes: u64,
    pub alloc_offset: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmmKind {
    /// Needs a descriptor passed out of band, for which the protocol has no way.
    PosixFd,
    Fabric,
}

impl<'a> Device<'a> {
    pub fn descriptor(&self) -> Result<Descriptor<'a>, DescriptorFault> {
        let fields = Fields::read(self.0)?;
        if fields.need("version", fields.version)? != 1 {
            return Err(DescriptorFault::Version);
        }
        let tensor = fields.need("metadata", fields.metadata)?;
        let handle = fields.handle()?;
        let storage_bytes = match handle {
            Handle::Cuda(cuda) => cuda.storage_bytes,
            Handle::CudaRaw { bytes, .. } | Handle::CpuShm { bytes, .. } => bytes,
            Handle::CudaVmm(vmm) => {
                let end = vmm.alloc_offset.checked_add(vmm.bytes);
                if end.is_none_or(|end| end > vmm.alloc_bytes) {
                    return Err(DescriptorFault::SpanAboveStorage);
                }
                vmm.bytes
            }
        };
        let span = tensor.span_bytes().ok_or(DescriptorFault::SpanAboveStorage)?;
        if span > storage_bytes {
            return Err(DescriptorFault::SpanAboveStorage);
        }
        Ok(Descriptor { handle, tensor })
    }
}

impl<'a> Tensor<'a> {
    /// Bytes from the start of the storage to the end of the last element; 0 for an empty tensor,
    /// None where they leave 64 bits.
    pub fn span_bytes(&self) -> Option<u64> {
        let mut last = self.storage_offset;
        for (size, stride) in self.shape.iter().zip(self.stride.iter()) {
            if size == 0 {
                return Some(0);
            }
            let steps = (size as u64 - 1).checked_mul(stride as u64)?;
            last = last.checked_add(steps)?;
        }
        last.checked_add(1)?.checked_mul(self.dtype.bytes())
    }

    fn read(reader: &mut Reader<'a>) -> Result<Tensor<'a>, DescriptorFault> {
        let (mut dtype, mut offset, mut uuid) = (None, None, None);
        let (mut shape, mut stride) = (None, None);
        for _ in 0..reader.read_map_len()? {
            match reader.read_str()? {
                "dtype" => dtype = Some(reader.read_str().map_err(within("dtype"))?),
                "shape" => shape = Some(read_sizes(reader, "shape")?),
                "stride" => stride = Some(read_sizes(reader, "stride")?),
                "storage_offset" => offset = Some(read_size(reader, "storage_offset")?),
                "device_uuid" => uuid = Some(reader.read_str().map_err(within("device_uuid"))?),
                _ => return Err(Malformed::UnknownField.into()),
            }
        }
        let dtype = dtype.ok_or(missing("dtype"))?;
        let tensor = Tensor {
            dtype: Dtype::named(dtype).ok_or(DescriptorFault::UnknownDtype)?,
            shape: shape.ok_or(missing("shape"))?,
            stride: stride.ok_or(missing("stride"))?,
            storage_offset: offset.ok_or(missing("storage_offset"))?,
            device_uuid: uuid.ok_or(missing("device_uuid"))?,
        };
        if tensor.shape.len() != tensor.stride.len() {
            return Err(DescriptorFault::RankMismatch);
        }
        Ok(tensor)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Cuda,
    CudaRaw,
    CudaVmm,
    CpuShm,
}

impl Family {
    /// The keys that this type has, beside `type`, `version` and `metadata`.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Family::Cuda => &["handle"],
            Family::CudaRaw => &["ipc_handle", "alloc_offset", "nbytes"],
            Family::CudaVmm => {
                &["export_id", "kind", "fabric_blob", "alloc_size", "alloc_offset", "nbytes"]
            }
            Family::CpuShm => &["shm_name", "nbytes"],
        }
    }
}

/// Everything a descriptor of any type may hold. Which of it must be there, the type says.
struct Fields<'a> {
    family: Family,
    version: Option<i64>,
    metadata: Option<Tensor<'a>>,
    handle: Option<CudaHandle<'a>>,
    ipc_handle: Option<&'a [u8]>,
    export_id: Option<&'a [u8]>,
    kind: Option<VmmKind>,
    fabric_blob: Option<Option<&'a [u8]>>,
    alloc_size: Option<u64>,
    alloc_offset: Option<u64>,
    nbytes: Option<u64>,
    shm_name: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn read(body: &'a [u8]) -> Result<Fields<'a>, DescriptorFault> {
        let mut fields = Fields {
            family: find_family(body)?,
            version: None,
            metadata: None,
            handle: None,
            ipc_handle: None,
            export_id: None,
            kind: None,
            fabric_blob: None,
            alloc_size: None,
            alloc_offset: None,
            nbytes: None,
            shm_name: None,
        };
        let mut reader = Reader::new(body);
        for _ in 0..reader.read_map_len()? {
            let key = reader.read_str()?;
            fields.read_field(key, &mut reader)?;
        }
        reader.finish()?;
        Ok(fields)
    }

    fn read_field(&mut self, key: &str, r: &mut Reader<'a>) -> Result<(), DescriptorFault> {
        let common = ["type", "version", "metadata"].contains(&key);
        if !common && !self.family.keys().contains(&key) {
            return Err(Malformed::UnknownField.into());
        }
        match key {
            "type" => r.skip()?,
            "version" => self.version = Some(r.read_i64().map_err(within("version"))?),
            "metadata" => self.metadata = Some(Tensor::read(r)?),
            "handle" => self.handle = Some(read_cuda_handle(r)?),
            "ipc_handle" => self.ipc_handle = Some(r.read_bin().map_err(within("ipc_handle"))?),
            "export_id" => self.export_id = Some(r.read_bin().map_err(within("export_id"))?),
            "kind" => self.kind = Some(read_kind(r)?),
            "fabric_blob" => {
                let blob = r.read_nil_or(Reader::read_bin).map_err(within("fabric_blob"))?;
                self.fabric_blob = Some(blob);
            }
            "alloc_size" => self.alloc_size = Some(read_size(r, "alloc_size")?),
            "alloc_offset" => self.alloc_offset = Some(read_size(r, "alloc_offset")?),
            "nbytes" => self.nbytes = Some(read_size(r, "nbytes")?),
            "shm_name" => self.shm_name = Some(r.read_str().map_err(within("shm_name"))?),
            _ => return Err(Malformed::UnknownField.into()),
        }
        Ok(())
    }

    fn need<T>(&self, field: &'static str, value: Option<T>) -> Result<T, DescriptorFault> {
        value.ok_or(missing(field))
    }

    fn handle(&self) -> Result<Handle<'a>, DescriptorFault> {
        Ok(match self.family {
            Family::Cuda => Handle::Cuda(self.need("handle", self.handle)?),
            Family::CudaRaw => Handle::CudaRaw {
                memory: exactly(self.need("ipc_handle", self.ipc_handle)?)?,
                alloc_offset: self.need("alloc_offset", self.alloc_offset)?,
                bytes: self.need("nbytes", self.nbytes)?,
            },
            Family::CudaVmm => Handle::CudaVmm(VmmHandle {
                export_id: exactly(self.need("export_id", self.export_id)?)?,
                kind: self.need("kind", self.kind)?,
                fabric: self.need("fabric_blob", self.fabric_blob)?,
                alloc_bytes: self.need("alloc_size", self.alloc_size)?,
                alloc_offset: self.need("alloc_offset", self.alloc_offset)?,
                bytes: self.need("nbytes", self.nbytes)?,
            }),
            Family::CpuShm => Handle::CpuShm {
                name: self.need("shm_name", self.shm_name)?,
                bytes: self.need("nbytes", self.nbytes)?,
            },
        })
    }
}

/// The tag stands first with the peer's encoder, but its decoder takes it anywhere.
fn find_family(body: &[u8]) -> Result<Family, DescriptorFault> {
    let mut reader = Reader::new(body);
    for _ in 0..reader.read_map_len()? {
        if reader.read_str()? != "type" {
            reader.skip()?;
            continue;
        }
        return match reader.read_str().map_err(within("type"))? {
            "cuda" => Ok(Family::Cuda),
            "cuda_raw" => Ok(Family::CudaRaw),
            "cuda_vmm" => Ok(Family::CudaVmm),
            "cpu_shm" => Ok(Family::CpuShm),
            "musa" | "npu" => Err(DescriptorFault::Vendor),
            _ => Err(DescriptorFault::UnknownType),
        };
    }
    Err(missing("type"))
}

/// The eight values of PyTorch's storage handle. The first, the sender's ordinal, means nothing
/// here: the device is found by its uuid.
fn read_cuda_handle<'a>(reader: &mut Reader<'a>) -> Result<CudaHandle<'a>, DescriptorFault> {
    if reader.read_array_len().map_err(within("handle"))? != 8 {
        return Err(Broken { field: "handle", rule: Malformed::WrongLength }.into());
    }
    reader.read_i64().map_err(within("handle"))?;
    let memory = memory_handle(reader.read_bin().map_err(within("handle"))?)?;
    let storage_bytes = read_size(reader, "handle")?;
    let base_offset_bytes = read_size(reader, "handle")?;
    let counter_name = reader.read_bin().map_err(within("handle"))?;
    let counter_index = read_size(reader, "handle")?;
    let event = reader.read_bin().map_err(within("handle"))?;
    let event_needed = reader.read_bool().map_err(within("handle"))?;
    Ok(CudaHandle {
        memory,
        storage_bytes,
        base_offset_bytes,
        counter_name,
        counter_index,
        event: event_needed.then_some(event),
    })
}

/// 64 bare bytes, or a version, a letter for the kind, and 64 bytes (spec/cuda §5). PyTorch writes
/// 2 up to 2.12 and 3 from 2.13; projects derived from it still carry 1.
fn memory_handle(bytes: &[u8]) -> Result<&[u8; 64], DescriptorFault> {
    match bytes {
        [_, b'e', ..] if bytes.len() != 64 => Err(DescriptorFault::ExpandableSegment),
        [1..=3, b'c', handle @ ..] if bytes.len() == 66 => exactly(handle),
        [got @ 4..=u8::MAX, b'c', ..] if bytes.len() == 66 => {
            Err(DescriptorFault::HandleVersion { got: *got })
        }
        bare => exactly(bare),
    }
}

fn read_kind(reader: &mut Reader<'_>) -> Result<VmmKind, DescriptorFault> {
    match reader.read_str().map_err(within("kind"))? {
        "posix_fd" => Ok(VmmKind::PosixFd),
        "fabric" => Ok(VmmKind::Fabric),
        _ => Err(Broken { field: "kind", rule: Malformed::UnknownValue }.into()),
    }
}

fn read_size(reader: &mut Reader<'_>, field: &'static str) -> Result<u64, DescriptorFault> {
    let size = reader.read_i64().map_err(within(field))?;
    u64::try_from(size).map_err(|_| DescriptorFault::Negative)
}

fn read_sizes<'a>(
    reader: &mut Reader<'a>,
    field: &'static str,
) -> Result<List<'a, i64>, DescriptorFault> {
    let sizes: List<'a, i64> = List::read(reader).map_err(|broken| broken.within(field))?;
    if sizes.iter().any(|size| size < 0) {
        return Err(DescriptorFault::Negative);
    }
    Ok(sizes)
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], DescriptorFault> {
    bytes.try_into().map_err(|_| DescriptorFault::HandleForm)
}

fn within(field: &'static str) -> impl Fn(Malformed) -> Broken {
    move |rule| Broken { field, rule }
}

fn missing(field: &'static str) -> DescriptorFault {
    DescriptorFault::Malformed(Broken { field, rule: Malformed::MissingField })
}

const DEVICE_CODE: i8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    struct Sample {
        kind: &'static str,
        version: i64,
        fields: Vec<(&'static str, Vec<u8>)>,
        dtype: &'static str,
        shape: Vec<i64>,
        stride: Vec<i64>,
        offset: i64,
    }

    fn value(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        out
    }

    fn cpu(bytes: u64) -> Sample {
        Sample {
            kind: "cpu_shm",
            version: 1,
            fields: Vec::from([
                ("shm_name", value(|w| w.str("/lmcache_kv_1_0"))),
                ("nbytes", value(|w| w.u64(bytes))),
            ]),
            dtype: "bfloat16",
            shape: Vec::from([2, 8, 4]),
            stride: Vec::from([32, 4, 1]),
            offset: 0,
        }
    }

    fn cuda(memory: &[u8]) -> Sample {
        let handle = value(|w| {
            w.array(8);
            w.i64(3);
            w.bin(memory);
            w.u64(4096);
            w.u64(512);
            w.bin(b"/torch_1_2_3");
            w.u64(7);
            w.bin(&[9; 64]);
            w.bool(true);
        });
        Sample { kind: "cuda", fields: Vec::from([("handle", handle)]), ..cpu(0) }
    }

    impl Sample {
        fn encode(&self) -> Vec<u8> {
            value(|w| {
                w.map(self.fields.len() + 3);
                w.str("type");
                w.str(self.kind);
                for (name, field) in &self.fields {
                    w.str(name);
                    w.raw(field);
                }
                w.str("version");
                w.i64(self.version);
                w.str("metadata");
                w.map(5);
                w.str("dtype");
                w.str(self.dtype);
                for (name, sizes) in [("shape", &self.shape), ("stride", &self.stride)] {
                    w.str(name);
                    w.array(sizes.len());
                    sizes.iter().for_each(|size| w.i64(*size));
                }
                w.str("storage_offset");
                w.i64(self.offset);
                w.str("device_uuid");
                w.str("cpu");
            })
        }

        fn fault(&self) -> Option<DescriptorFault> {
            Device(&self.encode()).descriptor().err()
        }
    }

    #[test]
    fn a_tensor_must_lie_within_its_storage() {
        assert_eq!(cpu(128).fault(), None);
        assert_eq!(cpu(127).fault(), Some(DescriptorFault::SpanAboveStorage));
        let moved = Sample { offset: 1, ..cpu(128) };
        assert_eq!(moved.fault(), Some(DescriptorFault::SpanAboveStorage));
        let huge = Sample { stride: Vec::from([i64::MAX, 4, 1]), ..cpu(u64::MAX >> 1) };
        assert_eq!(huge.fault(), Some(DescriptorFault::SpanAboveStorage));
        let empty = Sample { shape: Vec::from([2, 0, 4]), ..cpu(0) };
        assert_eq!(empty.fault(), None);
    }

    #[test]
    fn sizes_have_one_rank_and_no_sign() {
        let flat = Sample { stride: Vec::from([4, 1]), ..cpu(128) };
        assert_eq!(flat.fault(), Some(DescriptorFault::RankMismatch));
        let negative = Sample { stride: Vec::from([32, -4, 1]), ..cpu(128) };
        assert_eq!(negative.fault(), Some(DescriptorFault::Negative));
        let before = Sample { offset: -1, ..cpu(128) };
        assert_eq!(before.fault(), Some(DescriptorFault::Negative));
        let strange = Sample { dtype: "Size", ..cpu(128) };
        assert_eq!(strange.fault(), Some(DescriptorFault::UnknownDtype));
    }

    #[test]
    fn versions_types_and_keys_are_checked() {
        assert_eq!(Sample { version: 2, ..cpu(128) }.fault(), Some(DescriptorFault::Version));
        assert_eq!(Sample { kind: "npu", ..cpu(128) }.fault(), Some(DescriptorFault::Vendor));
        let unknown = Sample { kind: "tpu", ..cpu(128) };
        assert_eq!(unknown.fault(), Some(DescriptorFault::UnknownType));
        let mut more = cpu(128);
        more.fields.push(("alloc_offset", value(|w| w.u64(0))));
        let rule = Malformed::UnknownField;
        assert_eq!(more.fault(), Some(DescriptorFault::Malformed(rule.into())));
        let mut less = cpu(128);
        less.fields.pop();
        assert_eq!(less.fault(), Some(missing("nbytes")));
        assert_eq!(Device(&[0x80]).descriptor(), Err(missing("type")));
    }

    #[test]
    fn memory_handles_come_bare_or_versioned() {
        let inner = [5; 64];
        let versioned = |version, kind| [&[version, kind][..], &inner].concat();
        let known = (1..=3).map(|version| versioned(version, b'c'));
        for memory in known.chain([inner.to_vec()]) {
            let body = cuda(&memory).encode();
            let descriptor = Device(&body).descriptor().expect("a handle that we open");
            let Handle::Cuda(handle) = descriptor.handle else { panic!("{descriptor:?}") };
            assert_eq!((handle.memory, handle.base_offset_bytes), (&inner, 512));
            assert_eq!(handle.event, Some(&[9; 64][..]));
        }
        let segment = cuda(&versioned(2, b'e')).fault();
        assert_eq!(segment, Some(DescriptorFault::ExpandableSegment));
        for version in [4, 255] {
            let newer = cuda(&versioned(version, b'c')).fault();
            assert_eq!(newer, Some(DescriptorFault::HandleVersion { got: version }));
        }
        for memory in [versioned(0, b'c'), versioned(2, b'x'), inner[1..].to_vec(), Vec::new()] {
            assert_eq!(cuda(&memory).fault(), Some(DescriptorFault::HandleForm));
        }
    }

    #[test]
    fn a_mapping_must_hold_what_it_promises() {
        let vmm = |kind: &str, alloc: u64| Sample {
            kind: "cuda_vmm",
            fields: Vec::from([
                ("export_id", value(|w| w.bin(&[1; 16]))),
                ("kind", value(|w| w.str(kind))),
                ("fabric_blob", value(|w| w.nil())),
                ("alloc_size", value(|w| w.u64(alloc))),
                ("alloc_offset", value(|w| w.u64(72))),
                ("nbytes", value(|w| w.u64(128))),
            ]),
            ..cpu(0)
        };
        assert_eq!(vmm("posix_fd", 200).fault(), None);
        assert_eq!(vmm("posix_fd", 199).fault(), Some(DescriptorFault::SpanAboveStorage));
        let kind = Broken { field: "kind", rule: Malformed::UnknownValue };
        assert_eq!(vmm("win32", 200).fault(), Some(DescriptorFault::Malformed(kind)));
    }
}
