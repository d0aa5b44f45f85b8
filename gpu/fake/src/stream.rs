//! Streams: a thread each, first in first out, with a delay before every operation. Host functions
//! of all streams run on one thread, as they are allowed to, so one that blocks stalls the rest.

use crate::abi::{self, HostFunction, put};
use crate::gate::{CURRENT, IN_CALLBACK, entries};
use crate::ipc::Shared;
use crate::mem::{Place, Side};
use crate::world::{self, World};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

pub struct Stream {
    pub context: usize,
    queue: Arc<Queue>,
}

pub enum Op {
    Copy(Vec<Segment>),
    Record { page: Arc<Shared>, number: u64 },
    Wait { page: Arc<Shared>, number: u64 },
    Set { at: Place, byte: u8, bytes: usize },
    Host { function: HostFunction, data: usize },
    Write { at: Place, value: u64 },
    Await { at: Place, value: u64 },
}

pub struct Segment {
    pub from: Place,
    pub to: Place,
    pub bytes: usize,
}

#[derive(Default)]
struct State {
    operations: VecDeque<(Duration, Op)>,
    running: bool,
    closing: bool,
}

pub struct Queue {
    context: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an operation with the delay that is set now.
    pub fn push(&self, world: &mut World, operation: Op) {
        let most = world.settings.delay_us;
        let delay_us = if most == 0 { 0 } else { most / 2 + world.random() % most };
        self.state().operations.push_back((Duration::from_micros(delay_us), operation));
        self.changed.notify_all();
    }

    fn idle(&self) -> bool {
        let state = self.state();
        state.operations.is_empty() && !state.running
    }

    fn drain(&self) {
        let mut state = self.state();
        while state.running || !state.operations.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) {
        loop {
            let mut state = self.state();
            while state.operations.is_empty() {
                if state.closing {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let (delay, operation) = state.operations.pop_front().expect("looked at a line above");
            state.running = true;
            drop(state);
            std::thread::sleep(delay);
            self.perform(operation);
            self.state().running = false;
            self.changed.notify_all();
        }
    }

    /// The error that ended the context; an ordered one strikes here.
    fn broken(&self) -> bool {
        let mut world = world::lock();
        let ordered = std::mem::take(&mut world.settings.breaking);
        let Some(context) = world.contexts.get_mut(&self.context) else { return true };
        if ordered != 0 {
            context.sticky = ordered;
        }
        context.sticky != 0
    }

    fn perform(&self, operation: Op) {
        let pause = Duration::from_micros(50);
        while world::lock().settings.stalled {
            std::thread::sleep(pause);
        }
        // After an error nothing of the context runs any more, and host functions are not called.
        if self.broken() {
            return;
        }
        match operation {
            Op::Copy(segments) => segments.iter().for_each(Segment::perform),
            Op::Record { page, number } => page.complete(number),
            Op::Wait { page, number } => {
                while !page.reached(number) && !self.broken() {
                    std::thread::sleep(pause);
                }
            }
            Op::Set { at, byte, bytes } => {
                // SAFETY: the range was found inside live memory at submit, and the place holds it.
                unsafe { std::ptr::write_bytes(at.address as *mut u8, byte, bytes) }
            }
            Op::Host { function, data } => call_back(function, data),
            Op::Write { at, value } => word(&at).store(value, Ordering::Release),
            Op::Await { at, value } => {
                while word(&at).load(Ordering::Acquire) < value && !self.broken() {
                    std::thread::sleep(pause);
                }
            }
        }
    }
}

impl Segment {
    fn perform(&self) {
        let (from, to) = (self.from.address as *const u8, self.to.address as *mut u8);
        // SAFETY: both ranges were found inside live memory when the copy was submitted, and the
        // places hold it. Ranges may overlap, and a racing program may write them: a card would
        // copy as well, and `copy` has no worse answer than torn bytes.
        unsafe { std::ptr::copy(from, to, self.bytes) };
    }
}

fn word(at: &Place) -> &AtomicU64 {
    // SAFETY: submit checked eight aligned bytes inside an allocation, and the place holds it.
    unsafe { &*(at.address as *const AtomicU64) }
}

/// Runs a host function on the one thread for them and waits until it returned.
fn call_back(function: HostFunction, data: usize) {
    type Call = (HostFunction, usize, SyncSender<()>);
    static CALLS: OnceLock<Sender<Call>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| {
        let (sender, receiver) = channel::<Call>();
        std::thread::spawn(move || {
            IN_CALLBACK.set(true);
            for (function, data, done) in receiver {
                function(data as *mut c_void);
                let _ = done.send(());
            }
        });
        sender
    });
    let (done, returned) = sync_channel(1);
    calls.send((function, data, done)).expect("the thread lives as long as the process");
    let _ = returned.recv();
}

/// The queue of a stream that is known and of this context. The null stream is refused: it
/// serialises with every other, which nobody here can want.
pub fn of(world: &mut World, stream: usize) -> Result<Arc<Queue>, u32> {
    let Some(found) = world.streams.get(&stream) else {
        world.violation(format!("{stream:#x} is no stream, or one that was destroyed"));
        return Err(abi::INVALID_HANDLE);
    };
    if found.context != CURRENT.get() {
        world.violation("a stream is used in another context than its own".to_string());
        return Err(abi::INVALID_HANDLE);
    }
    Ok(Arc::clone(&found.queue))
}

/// Stream memory operations take eight aligned bytes of device memory.
fn place_of_word(world: &mut World, address: u64) -> Result<Place, u32> {
    if !address.is_multiple_of(8) {
        return Err(abi::INVALID_VALUE);
    }
    world.place(address, 8, Side::Device)
}

entries! {
    Context cuStreamCreate(out: *mut usize, flags: u32) {
        if flags > 1 {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        if flags == 0 {
            world.violation("a stream that waits for the null stream".to_string());
        }
        let context = CURRENT.get();
        let (state, changed) = (Mutex::default(), Condvar::new());
        let queue = Arc::new(Queue { context, state, changed });
        let runner = Arc::clone(&queue);
        std::thread::spawn(move || runner.run());
        let made = world.handle();
        world.streams.insert(made, Stream { context, queue });
        put(out, made)
    }

    /// Returns at once; what is queued still runs.
    Cleanup cuStreamDestroy_v2(stream: usize) {
        let mut world = world::lock();
        let queue = of(&mut world, stream)?;
        if !queue.idle() {
            world.violation_in_flight("a stream is destroyed with work in it");
        }
        world.streams.remove(&stream);
        queue.state().closing = true;
        queue.changed.notify_all();
        Ok(())
    }

    Context cuStreamQuery(stream: usize) {
        let queue = of(&mut world::lock(), stream)?;
        if queue.idle() { Ok(()) } else { Err(abi::NOT_READY) }
    }

    /// Waits in a broken context, too, where the rest of the queue passes undone.
    Cleanup cuStreamSynchronize(stream: usize) {
        let queue = of(&mut world::lock(), stream)?;
        queue.drain();
        Ok(())
    }

    Context cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: usize) {
        let function = function.ok_or(abi::INVALID_VALUE)?;
        let mut world = world::lock();
        of(&mut world, stream)?.push(&mut world, Op::Host { function, data });
        Ok(())
    }

    Context cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize) {
        let mut world = world::lock();
        let at = world.place(address, bytes as u64, Side::Device)?;
        of(&mut world, stream)?.push(&mut world, Op::Set { at, byte, bytes });
        Ok(())
    }

    Context cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        if flags != 0 {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        let at = place_of_word(&mut world, address)?;
        of(&mut world, stream)?.push(&mut world, Op::Write { at, value });
        Ok(())
    }

    /// Only "at least" is understood here.
    Context cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        if flags != 0 {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        let at = place_of_word(&mut world, address)?;
        of(&mut world, stream)?.push(&mut world, Op::Await { at, value });
        Ok(())
    }
}
