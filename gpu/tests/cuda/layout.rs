//! The fake declares its own layouts; these are compared with those of cudarc.

use cudarc::driver::sys;
use kvtide_fake_cuda::abi;
use std::mem::{align_of, offset_of, size_of};

#[test]
fn layouts_are_those_of_the_header() {
    let ours = [
        (size_of::<abi::IpcHandle>(), align_of::<abi::IpcHandle>()),
        (size_of::<abi::IpcHandle>(), align_of::<abi::IpcHandle>()),
        (size_of::<abi::Uuid>(), align_of::<abi::Uuid>()),
        (size_of::<abi::Location>(), align_of::<abi::Location>()),
        (size_of::<abi::CopyAttributes>(), align_of::<abi::CopyAttributes>()),
        (size_of::<abi::Copy2d>(), align_of::<abi::Copy2d>()),
    ];
    let theirs = [
        (size_of::<sys::CUipcMemHandle>(), align_of::<sys::CUipcMemHandle>()),
        (size_of::<sys::CUipcEventHandle>(), align_of::<sys::CUipcEventHandle>()),
        (size_of::<sys::CUuuid>(), align_of::<sys::CUuuid>()),
        (size_of::<sys::CUmemLocation>(), align_of::<sys::CUmemLocation>()),
        (size_of::<sys::CUmemcpyAttributes>(), align_of::<sys::CUmemcpyAttributes>()),
        (size_of::<sys::CUDA_MEMCPY2D>(), align_of::<sys::CUDA_MEMCPY2D>()),
    ];
    assert_eq!(ours, theirs);
    // Handles and device addresses are numbers here.
    assert_eq!(size_of::<sys::CUstream>(), size_of::<usize>());
    assert_eq!(size_of::<sys::CUdeviceptr>(), size_of::<u64>());
    assert_eq!(size_of::<sys::CUdevice>(), size_of::<i32>());
}

#[test]
fn fields_lie_where_the_header_has_them() {
    type Rows = abi::Copy2d;
    type Plan = sys::CUDA_MEMCPY2D;
    let pairs = [
        (offset_of!(Rows, source_x), offset_of!(Plan, srcXInBytes)),
        (offset_of!(Rows, source_y), offset_of!(Plan, srcY)),
        (offset_of!(Rows, source_kind), offset_of!(Plan, srcMemoryType)),
        (offset_of!(Rows, source_host), offset_of!(Plan, srcHost)),
        (offset_of!(Rows, source_device), offset_of!(Plan, srcDevice)),
        (offset_of!(Rows, source_array), offset_of!(Plan, srcArray)),
        (offset_of!(Rows, source_pitch), offset_of!(Plan, srcPitch)),
        (offset_of!(Rows, target_x), offset_of!(Plan, dstXInBytes)),
        (offset_of!(Rows, target_y), offset_of!(Plan, dstY)),
        (offset_of!(Rows, target_kind), offset_of!(Plan, dstMemoryType)),
        (offset_of!(Rows, target_host), offset_of!(Plan, dstHost)),
        (offset_of!(Rows, target_device), offset_of!(Plan, dstDevice)),
        (offset_of!(Rows, target_array), offset_of!(Plan, dstArray)),
        (offset_of!(Rows, target_pitch), offset_of!(Plan, dstPitch)),
        (offset_of!(Rows, width), offset_of!(Plan, WidthInBytes)),
        (offset_of!(Rows, height), offset_of!(Plan, Height)),
    ];
    assert!(pairs.iter().all(|(ours, theirs)| ours == theirs), "{pairs:?}");
    type Ours = abi::CopyAttributes;
    type Theirs = sys::CUmemcpyAttributes;
    let pairs = [
        (offset_of!(Ours, source_access_order), offset_of!(Theirs, srcAccessOrder)),
        (offset_of!(Ours, source_hint), offset_of!(Theirs, srcLocHint)),
        (offset_of!(Ours, target_hint), offset_of!(Theirs, dstLocHint)),
        (offset_of!(Ours, flags), offset_of!(Theirs, flags)),
        (offset_of!(abi::Location, kind), offset_of!(sys::CUmemLocation, type_)),
        (offset_of!(abi::Location, id), offset_of!(sys::CUmemLocation, id)),
    ];
    assert!(pairs.iter().all(|(ours, theirs)| ours == theirs), "{pairs:?}");
}
