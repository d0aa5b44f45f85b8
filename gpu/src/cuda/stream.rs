//! A stream of one direction, and the host function that says how far it got.

use super::driver::Calls;
use super::{Card, Failed, NOT_READY, Sink};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Stream {
    card: Card,
    handle: usize,
}

impl Stream {
    pub fn create(card: &Card) -> Result<Stream, Failed> {
        let calls = card.bind()?;
        let mut handle = 0;
        // SAFETY: the argument is a place for one handle.
        unsafe { calls.stream_create(&mut handle, NON_BLOCKING) }?;
        Ok(Stream { card: card.clone(), handle })
    }

    pub fn handle(&self) -> usize {
        self.handle
    }

    /// Whether everything that was queued is done.
    pub fn idle(&self, calls: &Calls) -> Result<bool, Failed> {
        // SAFETY: the stream lives as long as this value.
        done(unsafe { calls.stream_query(self.handle) })
    }

    pub fn synchronize(&self, calls: &Calls) -> Result<(), Failed> {
        // SAFETY: the stream lives as long as this value.
        unsafe { calls.stream_synchronize(self.handle) }
    }

    /// Orders the note's ticket to be told when everything queued so far is done.
    pub fn tell(&self, calls: &Calls, note: &Note) -> Result<(), Failed> {
        let data = std::ptr::from_ref(note).cast_mut().cast::<c_void>();
        // SAFETY: an instance frees its notes only when no stream has a function left to call.
        unsafe { calls.launch_host(self.handle, told, data) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(calls) = self.card.bind() else { return };
        // SAFETY: made by `create` and destroyed once.
        let _ = unsafe { calls.stream_destroy(self.handle) };
    }
}

/// "Not ready" is an answer and no failure.
pub fn done(asked: Result<(), Failed>) -> Result<bool, Failed> {
    match asked {
        Ok(()) => Ok(true),
        Err(failed) if failed.code == NOT_READY => Ok(false),
        Err(failed) => Err(failed),
    }
}

/// What a host function finds: whom to tell, and of which ticket.
pub struct Note {
    sink: Sink,
    ticket: AtomicU64,
}

impl Note {
    pub fn new(sink: &Sink) -> Note {
        Note { sink: Sink::clone(sink), ticket: AtomicU64::new(0) }
    }

    pub fn name(&self, ticket: u64) {
        self.ticket.store(ticket, Ordering::Release);
    }
}

/// Runs on a thread of the driver, which must not be asked for anything here, nor held up.
unsafe extern "C" fn told(data: *mut c_void) {
    // SAFETY: `tell` passed a note, which lives until no function is left that could be called.
    let note = unsafe { &*data.cast::<Note>() };
    (note.sink)(note.ticket.load(Ordering::Acquire));
}

/// Or it would wait for, and hold up, whatever runs in the null stream.
const NON_BLOCKING: u32 = 1;
