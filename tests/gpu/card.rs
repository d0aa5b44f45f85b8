//! The engine's side of the card: allocations and events that it exports, and a stream that works
//! on them. One test at a time: a process has one driver.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The driver's functions that an engine needs, called with codes checked.
macro_rules! calls {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Calls { $($name: unsafe extern "C" fn($($kind),*) -> u32,)* }

        #[allow(non_snake_case)]
        impl Calls {
            fn load(library: Library) -> Calls {
                Calls { $($name: library.symbol(concat!(stringify!($name), "\0")),)* }
            }

            $(fn $name(&self, $($arg: $kind),*) {
                // SAFETY: the type is that of the driver's header; the engine passes what lives.
                let code = unsafe { (self.$name)($($arg),*) };
                assert_eq!(code, 0, "{} of the engine", stringify!($name));
            })*
        }
    };
}

calls! {
    cuInit(flags: u32);
    cuDeviceGetUuid_v2(out: *mut [u8; 16], device: i32);
    cuDevicePrimaryCtxRetain(out: *mut usize, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuCtxSetCurrent(context: usize);
    cuMemAlloc_v2(out: *mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuIpcGetMemHandle(out: *mut [u8; 64], address: u64);
    cuMemHostRegister_v2(address: usize, bytes: usize, flags: u32);
    cuMemHostUnregister(address: usize);
    cuStreamCreate(out: *mut usize, flags: u32);
    cuStreamDestroy_v2(stream: usize);
    cuStreamSynchronize(stream: usize);
    cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32);
    cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: usize);
    cuEventCreate(out: *mut usize, flags: u32);
    cuEventRecord(event: usize, stream: usize);
    cuEventDestroy_v2(event: usize);
    cuIpcGetEventHandle(out: *mut [u8; 64], event: usize);
}

#[derive(Clone, Copy)]
struct Library(usize);

impl Library {
    fn open(path: &Path) -> Library {
        let path = text(path);
        // SAFETY: a driver's initialisers are what it is opened for; the fake has none.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "the driver {path:?} opens");
        Library(library as usize)
    }

    fn symbol<F: Copy>(self, name: &str) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>(), "a function");
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("it ends in zero");
        // SAFETY: the library was opened and stays.
        let found = unsafe { libc::dlsym(self.0 as *mut c_void, name.as_ptr()) };
        assert!(!found.is_null(), "the driver has {name:?}");
        // SAFETY: callers name the type that the driver gives this symbol, a pointer to a function.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

fn text(path: &Path) -> CString {
    CString::new(path.to_str().expect("a path in UTF-8")).expect("no zero in it")
}

/// The driver to be tested with where it is not the fake.
pub fn real_driver() -> Option<PathBuf> {
    std::env::var_os("KVTIDE_CUDA").map(PathBuf::from)
}

/// The fake driver, built beside this program.
fn fake_driver() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its program");
    program.with_file_name("libkvtide_fake_cuda.so")
}

/// Says so where a test needs a driver that does as it is told.
pub fn needs_fake() -> bool {
    let real = real_driver().is_some();
    if real {
        println!("left out: a real driver cannot be told to");
    }
    !real
}

/// Memory that an engine exports.
#[derive(Clone, Copy)]
pub struct Allocation {
    pub address: u64,
    pub handle: [u8; 64],
}

pub struct Card {
    calls: Calls,
    library: Library,
    /// What both processes share of the fake, and the place of the driver for the server.
    pub folder: PathBuf,
    pub uuid: String,
    stream: usize,
    staging: Box<[u64]>,
    staged: usize,
    allocations: Vec<u64>,
    events: Vec<usize>,
    /// An event of the isolated kind: memory for numbers, and the last number.
    number: Option<(Allocation, u64)>,
    _alone: MutexGuard<'static, ()>,
}

impl Card {
    pub fn new(test: &str) -> Card {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("kvtide-card-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("lib")).expect("a folder for the test");
        std::fs::create_dir_all(folder.join("objects")).expect("a folder for the fake");
        let link = folder.join("lib/libcuda.so.1");
        std::os::unix::fs::symlink(fake_driver(), link).expect("a link in a new folder");
        Card::in_folder(folder, alone)
    }

    /// That of an engine in a process of its own.
    pub fn of_child(folder: &Path) -> Card {
        static ALONE: Mutex<()> = Mutex::new(());
        Card::in_folder(folder.into(), ALONE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn in_folder(folder: PathBuf, alone: MutexGuard<'static, ()>) -> Card {
        let library = Library::open(&real_driver().unwrap_or_else(fake_driver));
        let calls = Calls::load(library);
        if real_driver().is_none() {
            library.symbol::<extern "C" fn()>("fakecuda_reset\0")();
            let place: extern "C" fn(*const c_char) = library.symbol("fakecuda_directory\0");
            place(text(&folder.join("objects")).as_ptr());
        }
        calls.cuInit(0);
        let (mut context, mut stream, mut uuid) = (0, 0, [0; 16]);
        calls.cuDeviceGetUuid_v2(&mut uuid, 0);
        calls.cuDevicePrimaryCtxRetain(&mut context, 0);
        calls.cuCtxSetCurrent(context);
        calls.cuStreamCreate(&mut stream, 1);
        let staging = vec![0; STAGING_BYTES / 8].into_boxed_slice();
        calls.cuMemHostRegister_v2(staging.as_ptr() as usize, STAGING_BYTES, 1);
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let ends = [0..8, 8..12, 12..16, 16..20, 20..32];
        let uuid = ends.map(|part| hex[part].to_owned()).join("-");
        let (allocations, events) = (Vec::new(), Vec::new());
        Card {
            calls,
            library,
            folder,
            uuid,
            stream,
            staging,
            staged: 0,
            allocations,
            events,
            number: None,
            _alone: alone,
        }
    }

    pub fn allocate(&mut self, bytes: u64) -> Allocation {
        let mut made = Allocation { address: 0, handle: [0; 64] };
        self.calls.cuMemAlloc_v2(&mut made.address, bytes as usize);
        self.calls.cuIpcGetMemHandle(&mut made.handle, made.address);
        self.allocations.push(made.address);
        made
    }

    pub fn free(&mut self, allocation: Allocation) {
        self.allocations.retain(|address| *address != allocation.address);
        self.calls.cuMemFree_v2(allocation.address);
    }

    /// Queues the bytes to be written there; that is still to happen when this returns.
    pub fn fill(&mut self, address: u64, bytes: &[u8]) {
        let start = self.stage(bytes.len());
        let to = self.staging.as_mut_ptr().cast::<u8>().wrapping_add(start);
        // SAFETY: inside the staging memory, in a part that nothing queued uses.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.calls.cuMemcpyHtoDAsync_v2(address, to as usize, bytes.len(), self.stream);
    }

    /// What lies there when everything queued before is done.
    pub fn read(&mut self, address: u64, bytes: u64) -> Vec<u8> {
        let start = self.stage(bytes as usize);
        let to = self.staging.as_mut_ptr().cast::<u8>().wrapping_add(start);
        self.calls.cuMemcpyDtoHAsync_v2(to as usize, address, bytes as usize, self.stream);
        self.calls.cuStreamSynchronize(self.stream);
        // SAFETY: inside the staging memory, and the copy to it is done.
        unsafe { std::slice::from_raw_parts(to, bytes as usize) }.to_vec()
    }

    /// A part of the staging memory that nothing queued uses.
    fn stage(&mut self, bytes: usize) -> usize {
        if self.staged + bytes > STAGING_BYTES {
            self.calls.cuStreamSynchronize(self.stream);
            self.staged = 0;
        }
        let start = self.staged;
        self.staged = (start + bytes).next_multiple_of(64);
        assert!(start + bytes <= STAGING_BYTES, "it fits as a whole");
        start
    }

    /// The handle of an event behind everything that is queued.
    pub fn event(&mut self) -> Vec<u8> {
        let (mut made, mut handle) = (0, [0; 64]);
        self.calls.cuEventCreate(&mut made, 6);
        self.calls.cuIpcGetEventHandle(&mut handle, made);
        self.calls.cuEventRecord(made, self.stream);
        self.events.push(made);
        handle.to_vec()
    }

    /// The same in isolated form: a number in exported memory.
    pub fn number(&mut self) -> Vec<u8> {
        let (memory, last) = match self.number {
            Some(known) => known,
            None => {
                let made = self.allocate(1 << 21);
                self.calls.cuMemsetD8Async(made.address, 0, 1 << 21, self.stream);
                self.calls.cuStreamSynchronize(self.stream);
                (made, 0)
            }
        };
        let (offset, number) = (16_u64, last + 1);
        self.number = Some((memory, number));
        self.calls.cuStreamWriteValue64_v2(self.stream, memory.address + offset, number, 0);
        [&[1][..], &memory.handle, &offset.to_be_bytes(), &number.to_be_bytes()].concat()
    }

    fn set(&self, name: &CStr, value: u64) {
        let set: extern "C" fn(*const c_char, u64) = self.library.symbol("fakecuda_set\0");
        set(name.as_ptr(), value);
    }

    /// Nothing that is queued begins, or all of it does.
    pub fn stall(&self, stalled: bool) {
        self.set(c"stalled", stalled.into());
    }

    /// Ends the engine's side. Whoever opened its memory has closed it before.
    pub fn finish(mut self) {
        self.let_go();
        if real_driver().is_some() {
            return;
        }
        let live: extern "C" fn() -> u64 = self.library.symbol("fakecuda_live\0");
        assert_eq!(live(), 0, "the engine has left nothing in its driver");
        let mut text = vec![0; 1 << 16];
        let copy: extern "C" fn(*mut u8, usize) -> usize =
            self.library.symbol("fakecuda_violation_text\0");
        let length = copy(text.as_mut_ptr(), text.len());
        assert_eq!(String::from_utf8_lossy(&text[..length]), "", "the engine broke no rule");
        let left = std::fs::read_dir(self.folder.join("objects")).expect("it is there");
        let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
        assert!(left.is_empty(), "objects are left behind: {left:?}");
    }

    fn let_go(&mut self) {
        self.calls.cuStreamSynchronize(self.stream);
        self.calls.cuStreamDestroy_v2(self.stream);
        self.events.drain(..).for_each(|event| self.calls.cuEventDestroy_v2(event));
        self.allocations.drain(..).for_each(|address| self.calls.cuMemFree_v2(address));
        self.calls.cuMemHostUnregister(self.staging.as_ptr() as usize);
        self.calls.cuDevicePrimaryCtxRelease_v2(0);
        self.stream = 0;
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // A test that failed: the next one finds the driver as if it had not been.
        if self.stream != 0 {
            if real_driver().is_none() {
                self.stall(false);
            }
            self.let_go();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a driver says at its end, for the server's process.
#[derive(Default)]
pub struct Report {
    pub live: Option<u64>,
    pub violations: Vec<String>,
    calls: BTreeMap<String, u64>,
}

impl Report {
    pub fn read(path: &Path) -> Report {
        let mut report = Report::default();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            match line.split_once(' ').expect("a word and more") {
                ("live", count) => report.live = count.parse().ok(),
                ("violation", what) => report.violations.push(what.to_owned()),
                ("calls", call) => {
                    let (name, count) = call.split_once(' ').expect("a name and a number");
                    report.calls.insert(name.to_owned(), count.parse().expect("a number"));
                }
                other => panic!("a report says {other:?}"),
            }
        }
        report
    }

    pub fn calls(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }
}

const STAGING_BYTES: usize = 8 << 20;
