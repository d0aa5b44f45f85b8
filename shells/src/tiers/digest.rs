//! The worker that computes digests: CRC32 over the native name of an object and its bytes, beside
//! a write to a lower tier or before what was loaded is published.
//!
//! Invariant: every order ends, in the order given. The worker only reads, and only places that are
//! pinned until it has said that it is done.

use crate::arena::{Span, Window};
use crate::ending::Ending;
use crc32fast::Hasher;
use kvtide_core::event::Event;
use kvtide_core::limits::{FLIGHTS_MAX, MODEL_BYTES_MAX, SALT_CHARS_MAX};
use kvtide_core::names::Ticket;
use kvtide_lanes::lane::{Consumer, Producer, lane};
use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use std::io;
use std::sync::Arc;

/// The reactor's end of it.
pub struct Digester {
    orders: Producer<Order>,
    endings: Mailbox<Digested>,
    taken: Vec<Digested>,
    /// Where the worker is gone, which only a panic can bring about: ends what it is given itself.
    window: Window,
    pending: usize,
}

struct Order {
    ticket: Ticket,
    name: String,
    span: Span,
}

#[derive(Clone, Copy, Debug)]
struct Digested {
    ticket: Ticket,
    digest: u32,
}

impl Digester {
    /// `wake` is called when there is something to collect.
    pub fn start(window: Window, wake: Arc<dyn Fn() + Send + Sync>) -> io::Result<Digester> {
        let (orders, consumer) = lane(FLIGHTS_MAX);
        let (sender, endings) = mailbox(FLIGHTS_MAX, move || wake());
        let share = window.clone();
        // It ends when nobody can give it orders any more; there is nothing to wait for.
        Ending::spawn("digest", move || work(consumer, sender, &share))?;
        Ok(Digester { orders, endings, taken: Vec::new(), window, pending: 0 })
    }

    /// The digest of a span that is pinned until the ending.
    pub fn order(
        &mut self,
        ticket: Ticket,
        name: String,
        span: Span,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        match self.orders.put(Order { ticket, name, span }) {
            Ok(()) => self.pending += 1,
            Err(refused) => {
                let order = refused.into_value();
                let Digested { ticket, digest } = order.carry_out(&self.window, &mut scratch());
                tell(Event::DigestEnded { ticket, digest });
            }
        }
    }

    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) {
        if self.pending == 0 {
            return;
        }
        // Whether the worker is still there shows with the next order.
        let _ = self.endings.take(&mut self.taken);
        self.pending -= self.taken.len();
        for Digested { ticket, digest } in self.taken.drain(..) {
            tell(Event::DigestEnded { ticket, digest });
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pending == 0
    }
}

/// CRC32 of an object's native name and its bytes.
pub fn keyed(name: &str) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.update(name.as_bytes());
    hasher
}

impl Order {
    fn carry_out(&self, window: &Window, scratch: &mut [u8]) -> Digested {
        let mut hasher = keyed(&self.name);
        let read = window.read(self.span, scratch, |bytes| hasher.update(bytes));
        let digest = hasher.finalize();
        // Only a segment that was cut short cannot be read, which ends the server. Until then a
        // digest that cannot be right keeps what is lost from being served.
        let digest = if read.is_ok() { digest } else { !digest };
        Digested { ticket: self.ticket, digest }
    }
}

fn work(mut orders: Consumer<Order>, endings: Sender<Digested>, window: &Window) {
    let (mut taken, mut scratch) = (Vec::new(), scratch());
    while orders.wait(&mut taken) {
        for order in taken.drain(..) {
            let digested = order.carry_out(window, &mut scratch);
            // There is room for as many endings as can be in flight; a reactor that is gone wants
            // none.
            if endings.put(digested).is_err() {
                return;
            }
        }
    }
}

/// Both sides of both queues, with the longest names, and the scratch.
pub fn memory_bytes_max() -> u64 {
    let entry = size_of::<Order>() + size_of::<Digested>();
    (FLIGHTS_MAX * (2 * entry + NAME_BYTES_MAX) + scratch().len()) as u64
}

/// Of a native name: model and salt have bounds, the rest is of fixed length.
const NAME_BYTES_MAX: usize = MODEL_BYTES_MAX + 4 * SALT_CHARS_MAX + 128;

/// Small enough to stay in a core's cache between being copied and being read.
fn scratch() -> Vec<u8> {
    vec![0; 128 << 10]
}
