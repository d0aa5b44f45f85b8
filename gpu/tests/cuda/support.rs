//! The fake driver in this process, the engine in another, and a server that uses both.

use crate::engine::Engine;
use kvtide_gpu::cuda::{
    Card, Direction, Driver, EventHandle, Instance, InstanceSpec, Outcome, Pinned, Region,
    RegionSource, Run, Sink, Submitted, Work, probe,
};
use std::alloc::Layout;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// No operation takes less; without delays a missing wait goes unseen.
pub const DELAY_US: u64 = 300;
/// Long enough for any machine; only a failing test waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The fake driver, for one test at a time: it has one world in a process, as a driver has.
pub struct Fake {
    library: usize,
    pub directory: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// Beside the tests, or a changed copy that another process made for this one.
pub fn library_path() -> PathBuf {
    if let Some(path) = std::env::var_os("KVTIDE_FAKE_LIBRARY") {
        return path.into();
    }
    let program = std::env::current_exe().expect("a test knows its program");
    program.with_file_name("libkvtide_fake_cuda.so")
}

/// A new folder for one test, removed with the value that holds it.
pub fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kvtide-gpu-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder for the test");
    path
}

fn text(text: &str) -> CString {
    CString::new(text).expect("no zero in it")
}

impl Fake {
    /// Loads the library before anything looks for a driver: its soname is what cudarc asks for
    /// first, and the loaded copy answers.
    pub fn load(name: &str) -> Fake {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = text(library_path().to_str().expect("a path in UTF-8"));
        // SAFETY: the library runs nothing when it is loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "the fake driver lies beside the test: {path:?}");
        let directory = folder(name);
        let fake = Fake { library: library as usize, directory, _alone: alone };
        let reset: extern "C" fn() = fake.symbol(c"fakecuda_reset");
        reset();
        assert_eq!(fake.live(), 0, "an earlier test left objects behind");
        let place: extern "C" fn(*const c_char) = fake.symbol(c"fakecuda_directory");
        place(text(fake.directory.to_str().expect("a path in UTF-8")).as_ptr());
        fake.set("delay_us", DELAY_US);
        fake
    }

    fn symbol<F: Copy>(&self, name: &CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>(), "a function");
        // SAFETY: the library was opened by `load` and stays.
        let found = unsafe { libc::dlsym(self.library as *mut c_void, name.as_ptr()) };
        assert!(!found.is_null(), "the library is the fake driver, which has {name:?}");
        // SAFETY: callers name the type that the fake gives this symbol, a pointer to a function.
        unsafe { std::mem::transmute_copy(&found) }
    }

    pub fn set(&self, name: &str, value: u64) {
        let set: extern "C" fn(*const c_char, u64) = self.symbol(c"fakecuda_set");
        set(text(name).as_ptr(), value);
    }

    /// Call `nth` of `name` from now on fails.
    pub fn fail(&self, name: &str, nth: u64, code: u32) {
        let fail: extern "C" fn(*const c_char, u64, u32) = self.symbol(c"fakecuda_fail");
        fail(text(name).as_ptr(), nth, code);
    }

    pub fn calls(&self, name: &str) -> u64 {
        let calls: extern "C" fn(*const c_char) -> u64 = self.symbol(c"fakecuda_calls");
        calls(text(name).as_ptr())
    }

    pub fn live(&self) -> u64 {
        let live: extern "C" fn() -> u64 = self.symbol(c"fakecuda_live");
        live()
    }

    pub fn violations(&self) -> String {
        let mut bytes = vec![0; 1 << 16];
        let copy: extern "C" fn(*mut u8, usize) -> usize = self.symbol(c"fakecuda_violation_text");
        let length = copy(bytes.as_mut_ptr(), bytes.len());
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Every test ends with this: nothing was done that is not allowed, and nothing is left.
    pub fn finish(self) {
        assert_eq!(self.violations(), "", "no rule was broken");
        assert_eq!(self.live(), 0, "nothing is left in the driver");
        let left = std::fs::read_dir(&self.directory).expect("the folder is there").count();
        assert_eq!(left, 0, "no object is left in the folder");
    }

    pub fn driver(&self) -> Driver {
        let driver = probe().expect("the fake driver works");
        assert_eq!(driver.cards()[0].name, "fake card", "no other driver was there first");
        driver
    }

    pub fn card(&self) -> Card {
        let driver = self.driver();
        let uuid = driver.cards()[0].uuid.clone();
        driver.card(&uuid).expect("the card that the driver shows")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Host memory of whole pages.
pub struct Memory {
    pub base: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let layout = Layout::from_size_align(bytes, 4096).expect("a size in pages");
        // SAFETY: the size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Memory { base: NonNull::new(base).expect("memory for a test"), layout }
    }

    /// What lies there. Only for bytes that no ticket in flight is writing to.
    pub fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let (offset, bytes) = (offset as usize, bytes as usize);
        assert!(offset + bytes <= self.layout.size(), "inside");
        // SAFETY: inside the allocation, and the tickets that write there have ended.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), bytes) }.to_vec()
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset as usize + bytes.len() <= self.layout.size(), "inside");
        let start = self.base.as_ptr().wrapping_add(offset as usize);
        // SAFETY: inside the allocation, and no ticket in flight reads or writes there.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; what registered it is gone before.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A server with one engine. Fields end in this order.
pub struct Server {
    pub instance: Option<Instance>,
    _pinned: Arc<Pinned>,
    pub memory: Memory,
    pub done: Receiver<u64>,
    next: u64,
}

pub const ARENA_BYTES: u64 = 1 << 20;
/// Small, so that copies cross borders of slices.
pub const SLICE_BYTES: usize = 3 * 4096;

/// A sink that hands tickets to a channel, as a server hands them to its reactor.
pub fn sink() -> (Sink, Receiver<u64>) {
    let (sender, receiver) = channel();
    let told = move |ticket| sender.send(ticket).expect("the test listens to the end");
    (Arc::new(told), receiver)
}

pub fn pinned(card: &Card, memory: &Memory) -> Arc<Pinned> {
    // SAFETY: the memory outlives what is pinned: servers drop it later, tests declare it before.
    let pinned = unsafe { Pinned::new(card, memory.base, SLICE_BYTES) };
    pinned.grow(memory.layout.size()).expect("memory can be registered");
    Arc::new(pinned)
}

pub fn region(card: &Card, handle: &[u8; 64], bytes: u64) -> Region {
    let source = RegionSource { memory: handle, offset: 0, bytes, counter: None };
    Region::open(card, &source).expect("memory of the engine")
}

impl Server {
    /// Opens every allocation that the engine has made.
    pub fn open(card: &Card, engine: &Engine, spec: InstanceSpec) -> Server {
        let memory = Memory::new(ARENA_BYTES as usize);
        let pinned = pinned(card, &memory);
        let (sink, done) = sink();
        let allocations = engine.allocations.iter();
        let regions = allocations.map(|(handle, bytes)| region(card, handle, *bytes)).collect();
        let instance = Instance::open(card, &pinned, regions, &sink, spec).expect("an instance");
        Server { instance: Some(instance), _pinned: pinned, memory, done, next: 1 }
    }

    pub fn instance(&mut self) -> &mut Instance {
        self.instance.as_mut().expect("not closed yet")
    }

    /// Queues copies and gives the ticket with what came of it.
    pub fn submit(
        &mut self,
        direction: Direction,
        producer: &[u8],
        work: &Work<'_>,
    ) -> (u64, Submitted) {
        let ticket = self.next;
        self.next += 1;
        let submitted = self.instance().submit(ticket, direction, producer, work);
        (ticket, submitted.expect("the copies are legal"))
    }

    /// Waits for the next ending.
    pub fn ended(&mut self) -> (u64, Outcome) {
        let ticket = self.done.recv_timeout(PATIENCE).expect("every ticket is told");
        (ticket, self.instance().end(ticket).expect("it was in flight"))
    }

    /// Copies, waits for the ending, and gives the event that the engine is told.
    pub fn copy(&mut self, direction: Direction, producer: &[u8], runs: &[Run]) -> EventHandle {
        let (ticket, submitted) = self.submit(direction, producer, &Work { runs, rows: &[] });
        assert_eq!(submitted.failed, None);
        assert_eq!(self.ended(), (ticket, Outcome::Copied));
        submitted.event.expect("an event for the engine")
    }

    pub fn close(&mut self) {
        let instance = self.instance.take().expect("not closed yet");
        instance.close().expect("no ticket is in flight");
    }
}

/// Starts this program again to run one test in it, alone.
pub fn again(test: &str, directory: &Path) -> std::process::Command {
    let program = std::env::current_exe().expect("a test knows its program");
    let mut command = std::process::Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("FAKECUDA_DIR", directory).env("FAKECUDA_DELAY_US", DELAY_US.to_string());
    command
}
