//! What no driver has: orders from a test, and what it asks at its end. Names begin with
//! `fakecuda_`, so a program can tell whether it talks to this library.

use crate::world::{self, Fault, Settings};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

fn text<'a>(from: *const c_char) -> &'a CStr {
    assert!(!from.is_null(), "a test passes a string");
    // SAFETY: a test passes a string that ends in zero and outlives the call.
    unsafe { CStr::from_ptr(from) }
}

/// What broke the rules since the start or the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_violations() -> u64 {
    world::lock().violations.len() as u64
}

/// Copies the sentences, one a line, as far as they fit; returns how many bytes that were.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_violation_text(out: *mut u8, bytes: usize) -> usize {
    let all = world::lock().violations.join("\n");
    let length = all.len().min(bytes);
    for (at, byte) in all.bytes().take(length).enumerate() {
        crate::abi::put(out.wrapping_add(at), byte).expect("a test passes a buffer");
    }
    length
}

/// Contexts, streams, events, allocations and registrations that exist.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_live() -> u64 {
    let world = world::lock();
    (world.objects(|_| true) + world.contexts.len()) as u64
}

/// How often a driver function was called.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_calls(name: *const c_char) -> u64 {
    let name = text(name).to_string_lossy();
    world::lock().calls.get(name.as_ref()).copied().unwrap_or(0)
}

/// Call `nth` (1 is the next) of `name` returns `code` and does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_fail(name: *const c_char, nth: u64, code: u32) {
    let name = text(name).to_string_lossy().into_owned();
    world::lock().faults.push(Fault { name, nth, code, breaks: false });
}

/// `devices`, `version`, `quota_bytes`, `delay_us`, `stalled`, `breaking`, `batch_fails_at`.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_set(name: *const c_char, value: u64) {
    let mut world = world::lock();
    let settings = &mut world.settings;
    match text(name).to_bytes() {
        b"devices" => settings.devices = value,
        b"version" => settings.version = value,
        b"quota_bytes" => settings.quota_bytes = value,
        b"delay_us" => settings.delay_us = value,
        b"stalled" => settings.stalled = value != 0,
        b"breaking" => settings.breaking = value as u32,
        b"batch_fails_at" => settings.batch_fails_at = value,
        other => panic!("no setting {:?}", String::from_utf8_lossy(other)),
    }
}

/// Where this process and its peers keep what they share.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_directory(path: *const c_char) {
    let path = PathBuf::from(OsStr::from_bytes(text(path).to_bytes()));
    world::lock().directory = Some(path);
}

/// Forgets settings, faults, counts and violations; what is alive stays, and waits for `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_reset() {
    let mut world = world::lock();
    world.settings = Settings::default();
    world.faults.clear();
    world.calls.clear();
    world.violations.clear();
    world.process = None;
}

/// Forgets the violations: a test that provoked them has seen them.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_forgive() {
    world::lock().violations.clear();
}
