//! The engine: a process with its own copy of the fake driver, linked in. It exports memory and
//! events, and does what it is told, line by line, over a socket.

use crate::support::{Fake, PATIENCE, again};
use kvtide_fake_cuda::abi::IpcHandle;
use kvtide_fake_cuda::{control, copy, event, gate, ipc, mem, stream};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};

/// What the server's side knows of its engine.
pub struct Engine {
    child: Child,
    socket: BufReader<UnixStream>,
    pub allocations: Vec<([u8; 64], u64)>,
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let pair = |pair| std::str::from_utf8(pair).expect("letters and digits");
    pairs.map(|two| u8::from_str_radix(pair(two), 16).expect("hexadecimal")).collect()
}

/// Bytes that differ by place and by seed.
pub fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let mix = |at: u64| (at ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B) >> 13;
    (0..bytes).map(|at| mix(at) as u8).collect()
}

impl Engine {
    pub fn start(fake: &Fake) -> Engine {
        let path = fake.directory.join("engine.socket");
        let listener = UnixListener::bind(&path).expect("a socket in the folder");
        let mut command = again("engine::this_process_is_an_engine", &fake.directory);
        command.env("KVTIDE_ENGINE_SOCKET", &path).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("this program starts again");
        let (socket, _) = listener.accept().expect("the engine calls");
        std::fs::remove_file(&path).expect("bound above");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        Engine { child, socket: BufReader::new(socket), allocations: Vec::new() }
    }

    /// Has the engine do something and gives its answer.
    pub fn ask(&mut self, words: &str) -> String {
        writeln!(self.socket.get_mut(), "{words}").expect("the engine listens");
        let mut answer = String::new();
        self.socket.read_line(&mut answer).expect("the engine answers");
        assert!(answer.ends_with('\n'), "the engine lives, asked for {words}");
        answer.trim_end().to_string()
    }

    pub fn allocate(&mut self, bytes: u64) -> [u8; 64] {
        let handle = bytes_of(&self.ask(&format!("allocate {bytes}")));
        let handle = handle.try_into().expect("sixty-four bytes");
        self.allocations.push((handle, bytes));
        handle
    }

    /// Queues a write of `pattern(seed, bytes)`, which is still to happen when this returns.
    pub fn fill(&mut self, allocation: usize, offset: u64, bytes: u64, seed: u64) {
        assert_eq!(self.ask(&format!("fill {allocation} {offset} {bytes} {seed}")), "queued");
    }

    /// An event behind everything that is queued.
    pub fn record(&mut self) -> Vec<u8> {
        bytes_of(&self.ask("record"))
    }

    /// Has everything that is queued later wait for the server's event.
    pub fn wait(&mut self, event: &[u8]) {
        assert_eq!(self.ask(&format!("wait {}", hex(event))), "waits");
    }

    pub fn read(&mut self, allocation: usize, offset: u64, bytes: u64) -> Vec<u8> {
        bytes_of(&self.ask(&format!("read {allocation} {offset} {bytes}")))
    }

    /// Ends the engine in order: it frees everything, and has broken no rule.
    pub fn finish(mut self) {
        assert_eq!(self.ask("finish"), "0 live; broken:");
        assert!(self.child.wait().expect("it was started").success(), "the engine ends well");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it was started");
        self.child.wait().expect("it was killed");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn this_process_is_an_engine() {
    let Some(path) = std::env::var_os("KVTIDE_ENGINE_SOCKET") else { return };
    serve(Path::new(&path));
}

fn check(code: u32) {
    assert_eq!(code, 0, "a call of the engine");
}

#[derive(Default)]
struct Work {
    stream: usize,
    allocations: Vec<u64>,
    /// Registered memory that fills come from and reads go to, each in one piece.
    buffers: Vec<Box<[u8]>>,
    events: Vec<usize>,
    opened: Vec<u64>,
    /// The handle of the memory for numbers, and the last one written.
    number: (String, u64),
}

fn serve(path: &Path) {
    let socket = UnixStream::connect(path).expect("the server listens");
    let mut answers = socket.try_clone().expect("one more descriptor");
    let mut context = 0;
    check(gate::cuInit(0));
    check(gate::cuDevicePrimaryCtxRetain(&mut context, 0));
    check(gate::cuCtxSetCurrent(context));
    let mut stream = 0;
    check(stream::cuStreamCreate(&mut stream, 1));
    let mut work = Work { stream, ..Work::default() };
    for line in BufReader::new(socket).lines() {
        let line = line.expect("the server speaks in lines");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = work.obey(&words);
        writeln!(answers, "{answer}").expect("the server listens");
        if words[0] == "finish" {
            return;
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn handle(word: &str) -> IpcHandle {
    IpcHandle { reserved: bytes_of(word).try_into().expect("sixty-four bytes") }
}

impl Work {
    fn obey(&mut self, words: &[&str]) -> String {
        match words {
            ["allocate", bytes] => self.allocate(number(bytes) as usize),
            ["fill", at, offset, bytes, seed] => {
                let bytes = pattern(number(seed), number(bytes));
                let to = self.allocations[number(at) as usize] + number(offset);
                let buffer = self.register(bytes);
                let (from, bytes) =
                    (self.buffers[buffer].as_ptr() as usize, self.buffers[buffer].len());
                check(copy::cuMemcpyHtoDAsync_v2(to, from, bytes, self.stream));
                "queued".to_string()
            }
            ["read", at, offset, bytes] => {
                let from = self.allocations[number(at) as usize] + number(offset);
                let buffer = self.register(vec![0; number(bytes) as usize]);
                let to = self.buffers[buffer].as_mut_ptr() as usize;
                let bytes = self.buffers[buffer].len();
                check(copy::cuMemcpyDtoHAsync_v2(to, from, bytes, self.stream));
                check(stream::cuStreamSynchronize(self.stream));
                hex(&self.buffers[buffer])
            }
            ["record"] => self.record(),
            ["wait", event] if event.len() == 128 => {
                let opened = self.open_event(event);
                check(event::cuStreamWaitEvent(self.stream, opened, 0));
                "waits".to_string()
            }
            ["wait", event] => {
                let (address, number) = self.open_number(event);
                check(stream::cuStreamWaitValue64_v2(self.stream, address, number, 0));
                "waits".to_string()
            }
            ["query", event] => {
                let opened = self.open_event(event);
                event::cuEventQuery(opened).to_string()
            }
            ["make", "number"] => self.make_number(),
            ["number"] => self.write_number(),
            ["set", name, value] => {
                let name = std::ffi::CString::new(*name).expect("no zero in it");
                control::fakecuda_set(name.as_ptr(), number(value));
                "set".to_string()
            }
            ["close"] => {
                check(stream::cuStreamSynchronize(self.stream));
                self.opened.drain(..).for_each(|address| check(ipc::cuIpcCloseMemHandle(address)));
                "closed".to_string()
            }
            ["finish"] => self.finish(),
            // Wrong on purpose, and what the fake said of it.
            ["hasty", event] => {
                let opened = self.open_event(event);
                check(event::cuStreamWaitEvent(self.stream, opened, 0));
                self.events.pop();
                check(event::cuEventDestroy_v2(opened));
                reports()
            }
            ["late"] => {
                let opened = *self.events.last().expect("an event of the server");
                check(event::cuEventQuery(opened));
                reports()
            }
            ["free", at] => {
                check(mem::cuMemFree_v2(self.allocations.remove(number(at) as usize)));
                reports()
            }
            other => panic!("nobody told the engine how to {other:?}"),
        }
    }

    fn allocate(&mut self, bytes: usize) -> String {
        let (mut address, mut exported) = (0, IpcHandle { reserved: [0; 64] });
        check(mem::cuMemAlloc_v2(&mut address, bytes));
        check(ipc::cuIpcGetMemHandle(&mut exported, address));
        self.allocations.push(address);
        hex(&exported.reserved)
    }

    fn register(&mut self, bytes: Vec<u8>) -> usize {
        let buffer = bytes.into_boxed_slice();
        check(mem::cuMemHostRegister_v2(buffer.as_ptr() as usize, buffer.len(), 1));
        self.buffers.push(buffer);
        self.buffers.len() - 1
    }

    fn record(&mut self) -> String {
        let (mut made, mut exported) = (0, IpcHandle { reserved: [0; 64] });
        check(event::cuEventCreate(&mut made, 6));
        check(ipc::cuIpcGetEventHandle(&mut exported, made));
        check(event::cuEventRecord(made, self.stream));
        self.events.push(made);
        hex(&exported.reserved)
    }

    fn open_event(&mut self, word: &str) -> usize {
        let mut opened = 0;
        check(ipc::cuIpcOpenEventHandle(&mut opened, handle(word)));
        self.events.push(opened);
        opened
    }

    /// The address and the number of an event in isolated form.
    fn open_number(&mut self, word: &str) -> (u64, u64) {
        let bytes = bytes_of(word);
        assert_eq!((bytes.len(), bytes[0]), (81, 1));
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let mut opened = 0;
        check(ipc::cuIpcOpenMemHandle_v2(&mut opened, handle(&hex(&bytes[1..65])), 1));
        self.opened.push(opened);
        (opened + word(65), word(73))
    }

    /// Memory for an event in isolated form. It is zero before anybody hears of it, or who waits
    /// for a number would find a higher one there already.
    fn make_number(&mut self) -> String {
        self.number = (self.allocate(64), self.number.1);
        let address = *self.allocations.last().expect("allocated a line above");
        check(stream::cuMemsetD8Async(address, 0, 64, self.stream));
        check(stream::cuStreamSynchronize(self.stream));
        "made".to_string()
    }

    /// The event: a number written behind all work so far.
    fn write_number(&mut self) -> String {
        let (exported, number) = (bytes_of(&self.number.0), self.number.1 + 1);
        self.number.1 = number;
        let address = *self.allocations.last().expect("made before") + 16;
        check(stream::cuStreamWriteValue64_v2(self.stream, address, number, 0));
        hex(&[&[1][..], &exported, &16_u64.to_be_bytes(), &number.to_be_bytes()].concat())
    }

    fn finish(&mut self) -> String {
        check(stream::cuStreamSynchronize(self.stream));
        check(stream::cuStreamDestroy_v2(self.stream));
        self.events.iter().for_each(|event| check(event::cuEventDestroy_v2(*event)));
        self.allocations.iter().for_each(|address| check(mem::cuMemFree_v2(*address)));
        for buffer in &self.buffers {
            check(mem::cuMemHostUnregister(buffer.as_ptr() as usize));
        }
        check(gate::cuDevicePrimaryCtxRelease_v2(0));
        format!("{} live; broken: {}", control::fakecuda_live(), reports())
    }
}

/// What was reported since the last time.
fn reports() -> String {
    let mut text = vec![0; 4096];
    let length = control::fakecuda_violation_text(text.as_mut_ptr(), text.len());
    control::fakecuda_forgive();
    String::from_utf8_lossy(&text[..length]).replace('\n', "; ")
}
