//! The fake itself is tried: whatever is wrong on purpose has to be answered or reported.

use kvtide_fake_cuda::abi::{self, Copy2d, CopyAttributes, IpcHandle, Location};
use kvtide_fake_cuda::{control, copy, event, gate, ipc, mem, stream};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A context with a stream, an allocation and registered memory, for one test at a time.
struct World {
    _alone: MutexGuard<'static, ()>,
    context: usize,
    stream: usize,
    device: u64,
    host: Box<[u8]>,
    directory: std::path::PathBuf,
}

const BYTES: usize = 8192;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set(name: &str, value: u64) {
    control::fakecuda_set(CString::new(name).expect("no zero in it").as_ptr(), value);
}

fn reports() -> String {
    let mut bytes = vec![0; 4096];
    let length = control::fakecuda_violation_text(bytes.as_mut_ptr(), bytes.len());
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// The call gives this code, and one report that holds this text; none for an empty text.
#[track_caller]
fn expect(code: u32, expected: u32, report: &str) {
    assert_eq!(code, expected, "{}", reports());
    let found = reports();
    assert_eq!(found.lines().count(), usize::from(!report.is_empty()), "{found}");
    assert!(found.contains(report), "{found}");
    control::fakecuda_forgive();
}

fn open(name: &str) -> World {
    let alone = alone();
    control::fakecuda_reset();
    let name = format!("kvtide-fake-{}-{name}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).expect("a folder for the test");
    let path = CString::new(directory.to_str().expect("UTF-8")).expect("no zero in it");
    control::fakecuda_directory(path.as_ptr());
    set("delay_us", 300);
    let host = vec![0; BYTES].into_boxed_slice();
    let mut world = World { _alone: alone, context: 0, stream: 0, device: 0, host, directory };
    expect(gate::cuInit(0), 0, "");
    expect(gate::cuDevicePrimaryCtxRetain(&mut world.context, 0), 0, "");
    expect(gate::cuCtxSetCurrent(world.context), 0, "");
    expect(stream::cuStreamCreate(&mut world.stream, 1), 0, "");
    expect(mem::cuMemAlloc_v2(&mut world.device, BYTES), 0, "");
    expect(mem::cuMemHostRegister_v2(world.host(), BYTES, 1), 0, "");
    world
}

impl World {
    fn host(&self) -> usize {
        self.host.as_ptr() as usize
    }

    /// A copy that is still to happen.
    fn queue(&self) {
        set("stalled", 1);
        let code = copy::cuMemcpyDtoHAsync_v2(self.host(), self.device, 16, self.stream);
        expect(code, 0, "");
    }

    fn drain(&self) {
        set("stalled", 0);
        expect(stream::cuStreamSynchronize(self.stream), 0, "");
    }

    fn event(&self, flags: u32) -> usize {
        let mut made = 0;
        expect(event::cuEventCreate(&mut made, flags), 0, "");
        made
    }

    fn batch(&self, to: &[u64], from: &[u64], order: u32, indexes: &[usize]) -> (u32, usize) {
        let place = Location { kind: 0, id: 0 };
        let attributes = CopyAttributes {
            source_access_order: order,
            source_hint: place,
            target_hint: place,
            flags: 0,
        };
        let (bytes, attributes) = (vec![16; to.len()], vec![attributes; indexes.len()]);
        let mut failed_at = 0;
        let code = copy::cuMemcpyBatchAsync(
            to.as_ptr(),
            from.as_ptr(),
            bytes.as_ptr(),
            to.len(),
            attributes.as_ptr(),
            indexes.as_ptr(),
            indexes.len(),
            &mut failed_at,
            self.stream,
        );
        (code, failed_at)
    }

    /// Everything goes in order, and nothing is left.
    fn finish(self) {
        self.drain();
        expect(stream::cuStreamDestroy_v2(self.stream), 0, "");
        expect(mem::cuMemFree_v2(self.device), 0, "");
        expect(mem::cuMemHostUnregister(self.host()), 0, "");
        expect(gate::cuDevicePrimaryCtxRelease_v2(0), 0, "");
        assert_eq!((control::fakecuda_live(), control::fakecuda_violations()), (0, 0));
        std::fs::remove_dir(&self.directory).expect("empty, and made by this test");
    }
}

#[test]
fn nothing_works_before_the_start_or_without_a_context() {
    let world = open("start");
    control::fakecuda_reset();
    expect(gate::cuCtxSetCurrent(world.context), abi::NOT_INITIALIZED, "");
    expect(gate::cuInit(1), abi::INVALID_VALUE, "");
    expect(gate::cuInit(0), 0, "");
    expect(gate::cuCtxSetCurrent(world.context + 1), abi::INVALID_CONTEXT, "");
    expect(gate::cuCtxSetCurrent(0), 0, "");
    let (code, report) = (abi::INVALID_CONTEXT, "cuStreamQuery on a thread without a context");
    expect(stream::cuStreamQuery(world.stream), code, report);
    expect(gate::cuCtxSetCurrent(world.context), 0, "");
    world.finish();
}

#[test]
fn a_release_too_many_and_objects_left_behind() {
    let mut world = open("release");
    expect(stream::cuStreamDestroy_v2(world.stream), 0, "");
    expect(gate::cuDevicePrimaryCtxRelease_v2(0), 0, "2 objects are alive at the last release");
    let report = "released more often than retained";
    expect(gate::cuDevicePrimaryCtxRelease_v2(0), abi::INVALID_CONTEXT, report);
    expect(mem::cuMemFree_v2(world.device), abi::INVALID_CONTEXT, "without a context");
    expect(gate::cuDevicePrimaryCtxRetain(&mut world.context, 0), 0, "");
    expect(gate::cuCtxSetCurrent(world.context), 0, "");
    expect(stream::cuStreamCreate(&mut world.stream, 1), 0, "");
    world.finish();
}

#[test]
fn memory_is_freed_once_by_its_base_and_not_under_a_copy() {
    let world = open("free");
    let report = "no allocation, or not its base";
    expect(mem::cuMemFree_v2(world.device + 8), abi::INVALID_VALUE, report);
    let mut other = 0;
    expect(mem::cuMemAlloc_v2(&mut other, 64), 0, "");
    expect(mem::cuMemFree_v2(other), 0, "");
    expect(mem::cuMemFree_v2(other), abi::INVALID_VALUE, report);
    expect(mem::cuMemAlloc_v2(&mut other, 0), abi::INVALID_VALUE, "");
    expect(mem::cuMemAlloc_v2(&mut other, 2 << 30), abi::OUT_OF_MEMORY, "");
    expect(mem::cuMemAlloc_v2(&mut other, 64), 0, "");
    set("stalled", 1);
    let code = copy::cuMemcpyHtoDAsync_v2(other, world.host(), 16, world.stream);
    expect(code, 0, "");
    expect(mem::cuMemFree_v2(other), 0, "freed while an operation uses it");
    world.finish();
}

#[test]
fn registration_does_not_overlap_and_ends_after_its_copies() {
    let world = open("register");
    let host = world.host();
    expect(mem::cuMemHostRegister_v2(host + 100, 10, 1), abi::ALREADY_REGISTERED, "");
    expect(mem::cuMemHostUnregister(host + 100), abi::NOT_REGISTERED, "");
    world.queue();
    expect(mem::cuMemHostUnregister(host), 0, "unregistered while an operation uses it");
    world.drain();
    expect(mem::cuMemHostRegister_v2(host, BYTES, 0), 0, "for one context only");
    world.finish();
}

#[test]
fn copies_stay_inside_and_keep_the_sides_apart() {
    let world = open("copies");
    let (host, device, stream) = (world.host(), world.device, world.stream);
    let mut other = vec![0_u8; 64];
    let outside = other.as_mut_ptr() as usize;
    let invalid = abi::INVALID_VALUE;
    let to_host = |to, from, bytes| copy::cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
    expect(to_host(host, device + 1, BYTES), invalid, "");
    expect(to_host(host + 1, device, BYTES), invalid, "");
    expect(to_host(host, host as u64, 16), invalid, "");
    expect(to_host(device as usize, device, 16), invalid, "");
    expect(to_host(host, device, 0), invalid, "");
    expect(to_host(outside, device, 16), 0, "is not registered");
    let code = copy::cuMemcpyDtoHAsync_v2(host, device, 16, 0);
    expect(code, abi::INVALID_HANDLE, "is no stream");
    world.drain();
    let plan = Copy2d {
        source_x: 0,
        source_y: 0,
        source_kind: abi::KIND_DEVICE,
        source_host: 0,
        source_device: device,
        source_array: 0,
        source_pitch: 64,
        target_x: 0,
        target_y: 0,
        target_kind: abi::KIND_HOST,
        target_host: host,
        target_device: 0,
        target_array: 0,
        target_pitch: 128,
        width: 64,
        height: 64,
    };
    let rows = |plan: Copy2d| copy::cuMemcpy2DAsync_v2(&plan, stream);
    expect(rows(plan), 0, "");
    expect(rows(Copy2d { source_pitch: 63, ..plan }), invalid, "");
    expect(rows(Copy2d { target_x: 65, ..plan }), invalid, "");
    expect(rows(Copy2d { height: 65, target_pitch: 64, ..plan }), 0, "");
    expect(rows(Copy2d { height: 66, ..plan }), invalid, "");
    expect(rows(Copy2d { source_kind: 3, ..plan }), invalid, "");
    expect(copy::cuMemcpy2DAsync_v2(std::ptr::null(), stream), invalid, "");
    world.finish();
}

#[test]
fn a_batch_has_its_rules() {
    let mut world = open("batch");
    let (host, device) = (world.host() as u64, world.device);
    let (to, from) = ([host, host + 64], [device, device + 64]);
    let (fine, invalid) = ((0, usize::MAX), abi::INVALID_VALUE);
    assert_eq!(world.batch(&to, &from, 1, &[0]), fine);
    assert_eq!(world.batch(&to, &from, 1, &[0, 1]), fine);
    for indexes in [&[1][..], &[0, 0], &[0, 2], &[0, 1, 1], &[]] {
        let (code, failed_at) = world.batch(&to, &from, 1, indexes);
        assert_eq!((code, failed_at), (invalid, usize::MAX), "{indexes:?}");
    }
    assert_eq!(world.batch(&to, &from, 0, &[0]), (invalid, usize::MAX), "no order of access");
    let beyond = [device, device + BYTES as u64 - 8];
    assert_eq!(world.batch(&to, &beyond, 1, &[0]), (invalid, 1), "names the entry");
    expect(0, 0, "");
    let (code, _) = world.batch(&[host, host + 8], &from, 1, &[0]);
    expect(code, 0, "write the same bytes");
    let (code, _) = world.batch(&[host, device], &[device + 8, host + 64], 1, &[0]);
    expect(code, 0, "reads what another writes");
    let own = std::mem::take(&mut world.stream);
    let (code, _) = world.batch(&to, &from, 1, &[0]);
    expect(code, invalid, "a batch in the null stream");
    world.stream = own;
    world.finish();
}

#[test]
fn events_keep_their_rules() {
    let world = open("events");
    let (mut made, mut exported) = (0, IpcHandle { reserved: [0; 64] });
    expect(event::cuEventCreate(&mut made, 4), abi::INVALID_VALUE, "");
    let local = world.event(2);
    let code = ipc::cuIpcGetEventHandle(&mut exported, local);
    expect(code, abi::INVALID_HANDLE, "");
    let report = "never recorded";
    expect(event::cuStreamWaitEvent(world.stream, local, 0), 0, report);
    expect(event::cuEventQuery(local), 0, "");
    world.queue();
    expect(event::cuEventRecord(local, world.stream), 0, "");
    expect(event::cuEventQuery(local), abi::NOT_READY, "");
    expect(event::cuEventDestroy_v2(local), 0, "");
    expect(event::cuEventQuery(local), abi::INVALID_HANDLE, "one that was destroyed");
    expect(event::cuEventDestroy_v2(local), abi::INVALID_HANDLE, "no event");
    let shared = world.event(6);
    expect(ipc::cuIpcGetEventHandle(&mut exported, shared), 0, "");
    let code = ipc::cuIpcOpenEventHandle(&mut made, exported);
    expect(code, abi::INVALID_CONTEXT, "");
    expect(event::cuEventDestroy_v2(shared), 0, "");
    world.finish();
}

#[test]
fn streams_are_not_destroyed_with_work_nor_used_afterwards() {
    let world = open("streams");
    let mut other = 0;
    expect(stream::cuStreamCreate(&mut other, 2), abi::INVALID_VALUE, "");
    expect(stream::cuStreamCreate(&mut other, 0), 0, "waits for the null stream");
    set("stalled", 1);
    let code = copy::cuMemcpyHtoDAsync_v2(world.device, world.host(), 16, other);
    expect(code, 0, "");
    let behind = world.event(2);
    expect(event::cuEventRecord(behind, other), 0, "");
    expect(stream::cuStreamQuery(other), abi::NOT_READY, "");
    expect(stream::cuStreamDestroy_v2(other), 0, "destroyed with work in it");
    expect(stream::cuStreamQuery(other), abi::INVALID_HANDLE, "one that was destroyed");
    let code = stream::cuStreamWriteValue64_v2(world.stream, world.device + 4, 1, 0);
    expect(code, abi::INVALID_VALUE, "");
    let beyond = world.device + BYTES as u64;
    let code = stream::cuStreamWaitValue64_v2(world.stream, beyond, 1, 0);
    expect(code, abi::INVALID_VALUE, "");
    set("stalled", 0);
    // The destroyed stream still does what it had to.
    while event::cuEventQuery(behind) == abi::NOT_READY {}
    expect(event::cuEventDestroy_v2(behind), 0, "");
    world.finish();
}

static ANSWERED: AtomicU32 = AtomicU32::new(0);

extern "C" fn asks_the_driver(_: *mut c_void) {
    ANSWERED.store(gate::cuCtxSetCurrent(0), Ordering::Release);
}

#[test]
fn a_host_function_must_not_ask_the_driver() {
    let world = open("callback");
    let code = stream::cuLaunchHostFunc(world.stream, None, 0);
    expect(code, abi::INVALID_VALUE, "");
    expect(stream::cuLaunchHostFunc(world.stream, Some(asks_the_driver), 0), 0, "");
    let code = stream::cuStreamSynchronize(world.stream);
    expect(code, 0, "cuCtxSetCurrent inside a host function");
    assert_eq!(ANSWERED.load(Ordering::Acquire), abi::NOT_PERMITTED);
    world.finish();
}

#[test]
fn a_broken_context_answers_with_its_error_and_calls_nobody() {
    let world = open("sticky");
    ANSWERED.store(0, Ordering::Release);
    let made = world.event(2);
    set("breaking", 700);
    expect(event::cuEventRecord(made, world.stream), 0, "");
    expect(stream::cuStreamSynchronize(world.stream), 0, "");
    expect(event::cuEventQuery(made), 700, "");
    let code = stream::cuLaunchHostFunc(world.stream, Some(asks_the_driver), 0);
    expect(code, 700, "");
    assert_eq!(ANSWERED.load(Ordering::Acquire), 0, "never called");
    // Destroying does its work and repeats the error.
    expect(event::cuEventDestroy_v2(made), 700, "");
    expect(stream::cuStreamDestroy_v2(world.stream), 700, "");
    expect(mem::cuMemFree_v2(world.device), 700, "");
    expect(mem::cuMemHostUnregister(world.host()), 700, "");
    expect(gate::cuDevicePrimaryCtxRelease_v2(0), 0, "");
    assert_eq!(control::fakecuda_live(), 0);
    std::fs::remove_dir(&world.directory).expect("empty, and made by this test");
}

#[test]
fn own_handles_false_handles_and_wrong_closings() {
    let world = open("handles");
    let (mut exported, mut opened) = (IpcHandle { reserved: [0; 64] }, 0);
    let invalid = abi::INVALID_VALUE;
    expect(ipc::cuIpcGetMemHandle(&mut exported, world.device + 8), invalid, "");
    expect(ipc::cuIpcGetMemHandle(&mut exported, world.device), 0, "");
    let code = ipc::cuIpcOpenMemHandle_v2(&mut opened, exported, 1);
    expect(code, abi::INVALID_CONTEXT, "");
    expect(ipc::cuIpcOpenMemHandle_v2(&mut opened, exported, 0), invalid, "");
    let mut versioned = exported;
    versioned.reserved.copy_within(..62, 2);
    versioned.reserved[..2].copy_from_slice(&[3, b'c']);
    expect(ipc::cuIpcOpenMemHandle_v2(&mut opened, versioned, 1), invalid, "");
    let report = "own memory is closed";
    expect(ipc::cuIpcCloseMemHandle(world.device), invalid, report);
    expect(ipc::cuIpcCloseMemHandle(world.device + 8), invalid, "is not open");
    world.finish();
}
