//! The driver's entry points, looked up once. The library is found and opened by cudarc, whose
//! layouts are used too; its own calls are not, because they panic where a symbol is missing and
//! take every answer for a value of a closed enum, which a newer driver's answer need not be.
//!
//! Handles are carried as numbers: they are opaque, and whoever holds one needs no pointer.

use super::{Absent, Failed};
use cudarc::driver::sys;
use std::ffi::{c_char, c_void};

pub type IpcMemory = sys::CUipcMemHandle;
pub type IpcEvent = sys::CUipcEventHandle;
pub type CopyAttributes = sys::CUmemcpyAttributes;
pub type Copy2d = sys::CUDA_MEMCPY2D;
pub type Uuid = sys::CUuuid;
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

fn check(call: &'static str, code: u32) -> Result<(), Failed> {
    if code == 0 { Ok(()) } else { Err(Failed { call, code }) }
}

/// A table of functions, those that must be there and those that may be missing, and a method for
/// each that turns its number into a result.
macro_rules! calls {
    (
        needed { $($field:ident = $symbol:ident($($arg:ident: $kind:ty),*);)* }
        optional { $($may:ident = $name:ident($($parameter:ident: $type:ty),*);)* }
    ) => {
        pub struct Calls {
            $($field: unsafe extern "C" fn($($kind),*) -> u32,)*
            $($may: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }

        impl Calls {
            /// Looks everything up. The error names the first symbol that is missing.
            pub fn load() -> Result<Calls, Absent> {
                // SAFETY: the caller found that the library opens; it stays open for good.
                let library = unsafe { sys::culib() };
                Ok(Calls {
                    $($field: {
                        let name = stringify!($symbol);
                        // SAFETY: the type is that of the driver's header for this symbol.
                        match unsafe { library.get(name.as_bytes()) } {
                            Ok(found) => *found,
                            Err(_) => return Err(Absent::Missing { symbol: name }),
                        }
                    },)*
                    $($may: {
                        // SAFETY: the type is that of the driver's header for this symbol.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        found.ok().map(|found| *found)
                    },)*
                })
            }

            $(
                /// # Safety
                ///
                /// As the driver's documentation says of this call.
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $field(&self, $($arg: $kind),*) -> Result<(), Failed> {
                    // SAFETY: the caller keeps to the documentation of the call.
                    check(stringify!($symbol), unsafe { (self.$field)($($arg),*) })
                }
            )*

            $(
                /// # Safety
                ///
                /// As the driver's documentation says of this call.
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $may(&self, $($parameter: $type),*) -> Result<(), Failed> {
                    let call = stringify!($name);
                    let Some(function) = self.$may else {
                        return Err(Failed { call, code: super::NOT_SUPPORTED });
                    };
                    // SAFETY: the caller keeps to the documentation of the call.
                    check(call, unsafe { function($($parameter),*) })
                }
            )*
        }
    };
}

calls! {
    needed {
        version = cuDriverGetVersion(out: *mut i32);
        init = cuInit(flags: u32);
        device_count = cuDeviceGetCount(out: *mut i32);
        device = cuDeviceGet(out: *mut i32, ordinal: i32);
        device_name = cuDeviceGetName(out: *mut u8, bytes: i32, device: i32);
        device_uuid = cuDeviceGetUuid_v2(out: *mut Uuid, device: i32);
        context_retain = cuDevicePrimaryCtxRetain(out: *mut usize, device: i32);
        context_release = cuDevicePrimaryCtxRelease_v2(device: i32);
        context_set = cuCtxSetCurrent(context: usize);
        memory_open = cuIpcOpenMemHandle_v2(out: *mut u64, handle: IpcMemory, flags: u32);
        memory_close = cuIpcCloseMemHandle(address: u64);
        memory_range = cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
        host_register = cuMemHostRegister_v2(address: usize, bytes: usize, flags: u32);
        host_unregister = cuMemHostUnregister(address: usize);
        stream_create = cuStreamCreate(out: *mut usize, flags: u32);
        stream_destroy = cuStreamDestroy_v2(stream: usize);
        stream_query = cuStreamQuery(stream: usize);
        stream_synchronize = cuStreamSynchronize(stream: usize);
        stream_wait = cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
        event_create = cuEventCreate(out: *mut usize, flags: u32);
        event_record = cuEventRecord(event: usize, stream: usize);
        event_query = cuEventQuery(event: usize);
        event_destroy = cuEventDestroy_v2(event: usize);
        event_export = cuIpcGetEventHandle(out: *mut IpcEvent, event: usize);
        event_open = cuIpcOpenEventHandle(out: *mut usize, handle: IpcEvent);
        launch_host = cuLaunchHostFunc(stream: usize, function: HostFunction, data: *mut c_void);
        copy_to_host = cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: usize);
        copy_to_device = cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: usize);
        copy_rows = cuMemcpy2DAsync_v2(plan: *const Copy2d, stream: usize);
    }
    optional {
        copy_batch = cuMemcpyBatchAsync(
            to: *const u64, from: *const u64, bytes: *const usize, count: usize,
            attributes: *const CopyAttributes, indexes: *const usize, attribute_count: usize,
            failed_at: *mut usize, stream: usize
        );
        memory_allocate = cuMemAlloc_v2(out: *mut u64, bytes: usize);
        memory_free = cuMemFree_v2(address: u64);
        memory_export = cuIpcGetMemHandle(out: *mut IpcMemory, address: u64);
        memory_set = cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize);
        value_write = cuStreamWriteValue64_v2(
            stream: usize, address: u64, value: u64, flags: u32
        );
        value_wait = cuStreamWaitValue64_v2(
            stream: usize, address: u64, value: u64, flags: u32
        );
    }
}

impl Calls {
    pub fn has_batch(&self) -> bool {
        self.copy_batch.is_some()
    }

    /// Whether completion may be told through numbers in exported memory.
    pub fn has_values(&self) -> bool {
        let memory = self.memory_allocate.is_some() && self.memory_free.is_some();
        let export = self.memory_export.is_some() && self.memory_set.is_some();
        memory && export && self.value_write.is_some() && self.value_wait.is_some()
    }
}

/// The bytes of a handle as the wire has them, as the characters that the header's struct holds.
pub fn characters(bytes: &[u8; 64]) -> [c_char; 64] {
    bytes.map(|byte| byte as c_char)
}
