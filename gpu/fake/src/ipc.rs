//! What other processes see: files in one directory that the test makes and removes, so that a
//! killed test leaves nothing behind. A handle is a magic word, the exporter, a number and a size.

use crate::abi::{self, IpcHandle, put};
use crate::event::Event;
use crate::gate::{CURRENT, entries};
use crate::mem::{Allocation, Backing, Reservation, in_flight};
use crate::world;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MEMORY: &[u8; 8] = b"FAKEMEM1";
const EVENT: &[u8; 8] = b"FAKEEVT1";

/// A mapped file: a page of words that both sides look at, then the bytes.
pub struct Shared {
    address: usize,
    path: PathBuf,
    pub named: Named,
}

const HEAD: usize = 4096;

impl Shared {
    pub fn create(directory: Option<PathBuf>, id: u64, bytes: usize) -> Result<Shared, u32> {
        let Some(directory) = directory else {
            eprintln!("fake driver: FAKECUDA_DIR is not set");
            return Err(abi::OUT_OF_MEMORY);
        };
        let path = path(&directory, std::process::id(), id);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|_| abi::OUT_OF_MEMORY)?;
        file.set_len((HEAD + bytes) as u64).map_err(|_| abi::OUT_OF_MEMORY)?;
        Shared::map(&file, path, Named { process: std::process::id(), id, bytes })
    }

    fn open(directory: Option<PathBuf>, named: Named) -> Result<Shared, u32> {
        let path = path(&directory.ok_or(abi::MAP_FAILED)?, named.process, named.id);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|_| abi::MAP_FAILED)?;
        Shared::map(&file, path, named)
    }

    fn map(file: &File, path: PathBuf, named: Named) -> Result<Shared, u32> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (any, length) = (std::ptr::null_mut(), HEAD + named.bytes);
        // SAFETY: a fresh mapping wherever the kernel likes disturbs none that exists.
        let mapped = unsafe { mm::mmap(any, length, access, MapFlags::SHARED, file, 0) };
        let address = mapped.map_err(|_| abi::MAP_FAILED)? as usize;
        Ok(Shared { address, path, named })
    }

    /// Word `at` of the head: 0 opened elsewhere, 1 gone, 2 recorded, 3 completed.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < HEAD / 8, "a word of the head");
        let word = (self.address + at * 8) as *const AtomicU64;
        // SAFETY: the head is mapped as long as this value lives, words are aligned, and all
        // processes touch them as atomics only.
        unsafe { &*word }
    }

    pub fn address(&self) -> usize {
        self.address + HEAD
    }

    pub fn fill(&self, byte: u8) {
        // SAFETY: the bytes behind the head are mapped for writing, and nobody knows them yet.
        unsafe { std::ptr::write_bytes(self.address() as *mut u8, byte, self.named.bytes) };
    }

    pub fn imports(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    pub fn gone(&self) -> bool {
        self.word(1).load(Ordering::Acquire) != 0
    }

    /// Its owner destroys it: whoever still uses it can be told so.
    pub fn retire(&self) {
        self.word(1).store(1, Ordering::Release);
    }

    fn handle(&self, magic: &[u8; 8]) -> IpcHandle {
        let mut reserved = [0xA5; 64];
        reserved[..8].copy_from_slice(magic);
        reserved[8..16].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
        reserved[16..24].copy_from_slice(&self.named.id.to_le_bytes());
        reserved[24..32].copy_from_slice(&(self.named.bytes as u64).to_le_bytes());
        IpcHandle { reserved }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.named.process == std::process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
        // SAFETY: this value made the mapping, and whoever used it held a reference to the value.
        let _ = unsafe { mm::munmap(self.address as *mut _, HEAD + self.named.bytes) };
    }
}

fn path(directory: &Path, process: u32, id: u64) -> PathBuf {
    directory.join(format!("{process}-{id}"))
}

/// What a handle says: the process that made the object, its number there, and its size.
#[derive(Clone, Copy)]
pub struct Named {
    pub process: u32,
    id: u64,
    bytes: usize,
}

/// A handle without its magic word is no handle (a versioned one that was not stripped, say), and
/// one's own cannot be opened: both are documented to fail.
fn named(handle: &IpcHandle, magic: &[u8; 8]) -> Result<Named, u32> {
    let bytes = &handle.reserved;
    let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
    let word = |at| word(at).map_err(|_| abi::INVALID_VALUE);
    if &bytes[..8] != magic || bytes[32..].iter().any(|byte| *byte != 0xA5) {
        return Err(abi::INVALID_VALUE);
    }
    let found = Named { process: word(8)? as u32, id: word(16)?, bytes: word(24)? as usize };
    if found.process == std::process::id() { Err(abi::INVALID_CONTEXT) } else { Ok(found) }
}

entries! {
    /// Only the base of memory that was allocated here has a handle.
    Context cuIpcGetMemHandle(out: *mut IpcHandle, address: u64) {
        let world = world::lock();
        let found = world.allocations.get(&address).ok_or(abi::INVALID_VALUE)?;
        if found.imported.is_some() {
            return Err(abi::INVALID_VALUE);
        }
        put(out, found.backing.shared()?.handle(MEMORY))
    }

    /// The flag for lazy peer access must be there. Opened again in one process, the same pointer
    /// comes back and is counted.
    Context cuIpcOpenMemHandle_v2(out: *mut u64, handle: IpcHandle, flags: u32) {
        if flags != 1 {
            return Err(abi::INVALID_VALUE);
        }
        let named = named(&handle, MEMORY)?;
        let mut world = world::lock();
        for (base, each) in &mut world.allocations {
            if let Some((known, count)) = &mut each.imported
                && known.reserved == handle.reserved
            {
                *count += 1;
                return put(out, *base);
            }
        }
        let shared = Shared::open(world.directory(), named)?;
        shared.word(0).fetch_add(1, Ordering::AcqRel);
        let reserved = Reservation::new(named.bytes)?;
        let base = reserved.address;
        let backing = Arc::new(Backing(Some((shared, reserved))));
        let (context, imported) = (CURRENT.get(), Some((handle, 1)));
        let found = Allocation { context, bytes: named.bytes as u64, backing, imported };
        world.allocations.insert(base, found);
        put(out, base)
    }

    /// Takes the pointer that opening gave, as often as it was opened.
    Cleanup cuIpcCloseMemHandle(address: u64) {
        let mut world = world::lock();
        let Some(found) = world.allocations.get_mut(&address) else {
            world.violation("memory is closed that is not open".to_string());
            return Err(abi::INVALID_VALUE);
        };
        let Some((_, count)) = &mut found.imported else {
            world.violation("own memory is closed instead of freed".to_string());
            return Err(abi::INVALID_VALUE);
        };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        let found = world.allocations.remove(&address).expect("found a few lines above");
        if in_flight(&found.backing) {
            world.violation_in_flight("memory is closed while an operation uses it");
        }
        found.backing.shared()?.word(0).fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    /// Only events made for other processes have a handle.
    Context cuIpcGetEventHandle(out: *mut IpcHandle, event: usize) {
        let mut world = world::lock();
        let found = world.event(event)?;
        let ours = found.interprocess && !found.imported;
        if ours { put(out, found.page.handle(EVENT)) } else { Err(abi::INVALID_HANDLE) }
    }

    Context cuIpcOpenEventHandle(out: *mut usize, handle: IpcHandle) {
        let named = named(&handle, EVENT)?;
        let mut world = world::lock();
        let page = Arc::new(Shared::open(world.directory(), named)?);
        let (made, context) = (world.handle(), CURRENT.get());
        world.events.insert(made, Event { context, page, interprocess: true, imported: true });
        put(out, made)
    }
}
