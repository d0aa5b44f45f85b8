//! What crosses the C boundary: layouts as `cuda.h` has them, codes as plain numbers. Handles and
//! pointers to handles are `usize`: a number that only this library can look up.

use std::ffi::c_void;

pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const NOT_INITIALIZED: u32 = 3;
pub const NO_DEVICE: u32 = 100;
pub const INVALID_DEVICE: u32 = 101;
pub const INVALID_CONTEXT: u32 = 201;
pub const MAP_FAILED: u32 = 205;
pub const INVALID_HANDLE: u32 = 400;
pub const NOT_READY: u32 = 600;
pub const ALREADY_REGISTERED: u32 = 712;
pub const NOT_REGISTERED: u32 = 713;
pub const NOT_PERMITTED: u32 = 800;

/// A memory or event handle for another process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    pub reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Uuid {
    pub bytes: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CopyAttributes {
    pub source_access_order: u32,
    pub source_hint: Location,
    pub target_hint: Location,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    pub source_x: usize,
    pub source_y: usize,
    pub source_kind: u32,
    pub source_host: usize,
    pub source_device: u64,
    pub source_array: usize,
    pub source_pitch: usize,
    pub target_x: usize,
    pub target_y: usize,
    pub target_kind: u32,
    pub target_host: usize,
    pub target_device: u64,
    pub target_array: usize,
    pub target_pitch: usize,
    pub width: usize,
    pub height: usize,
}

pub const KIND_HOST: u32 = 1;
pub const KIND_DEVICE: u32 = 2;

pub type HostFunction = extern "C" fn(*mut c_void);

/// Writes what a call gives back; the driver answers 1 to a pointer to nothing.
pub(crate) fn put<T>(out: *mut T, value: T) -> Result<(), u32> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of the driver passes a place for one `T`, or null, which was just refused.
    unsafe { out.write(value) };
    Ok(())
}

/// Reads one argument that is passed by address.
pub(crate) fn take<T: Copy>(from: *const T) -> Result<T, u32> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of the driver passes the address of one `T`, or null, which was refused.
    Ok(unsafe { from.read() })
}

/// Reads an array argument.
pub(crate) fn list<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>, u32> {
    if from.is_null() || count == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of the driver passes the address of `count` values; null was refused.
    Ok(unsafe { std::slice::from_raw_parts(from, count) }.to_vec())
}
