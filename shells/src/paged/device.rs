//! The thread that has engines' memory on cards copied: opens it, queues copies on streams, hears
//! of their ends and lets the memory go.
//!
//! Invariant: every order ends once, by a host function behind its copies or by the second way that
//! the driver leaves (a context that is lost calls nobody back). Nothing is let go while something
//! is in flight on it. The thread never waits for a card; it sleeps until there is news.

mod cards;
mod flights;

use super::lane::{Copied, Order};
use crate::arena::Window;
use crate::ending::Ending;
use cards::Cards;
use flights::Flights;
use kvtide_core::event::AttachFault;
use kvtide_core::front::paged::DeviceSource;
use kvtide_core::limits::{INSTANCES_MAX, PAGE_COPIES_MAX};
use kvtide_core::names::{Attachment, Device};
use kvtide_core::pages::Pages;
use kvtide_gpu::cuda::Sink;
use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

/// What the thread is told.
pub enum Told {
    Attach(Box<Attaching>),
    Detach {
        attachment: Attachment,
    },
    Copy {
        attachment: Attachment,
        order: Box<Order>,
    },
    /// So much of the arena has memory behind it.
    Grown {
        bytes: u64,
    },
    /// The copies of this part are done. Comes from a thread of the driver.
    Done {
        part: u64,
    },
    /// The server ends.
    End,
}

/// A registration's memory.
pub struct Attaching {
    pub attachment: Attachment,
    pub sources: Vec<DeviceSource>,
    pub pages: Pages,
}

/// What it tells the reactor.
pub enum End {
    Attached { attachment: Attachment, outcome: Result<Device, AttachFault> },
    Copied(Copied),
}

pub type Tell = Box<dyn Fn(End) + Send>;

/// Starts the thread.
pub fn start(window: Window, tell: Tell) -> io::Result<(Sender<Told>, Ending)> {
    let sleeper: Arc<OnceLock<Thread>> = Arc::default();
    let awake = sleeper.clone();
    // Before it has said who it is, it has not slept yet.
    let wake = move || awake.get().into_iter().for_each(Thread::unpark);
    let (sender, notes) = mailbox(NOTES_MAX, wake);
    let own = sender.clone();
    let ending = Ending::spawn("copy-card", move || {
        sleeper.set(thread::current()).ok();
        // As many endings as can be in flight have room.
        let sink: Sink = Arc::new(move |part| drop(own.put(Told::Done { part })));
        let cards = Cards::new(window, sink);
        Devices { cards, flights: BTreeMap::new(), leaving: Vec::new(), tell }.run(notes);
    })?;
    Ok((sender, ending))
}

/// Fields go in this order: engines before the cards, and those before the arena.
struct Devices {
    flights: BTreeMap<Attachment, Flights>,
    /// Those that have been let go and have something in flight.
    leaving: Vec<Flights>,
    cards: Cards,
    tell: Tell,
}

impl Devices {
    fn run(mut self, mut notes: Mailbox<Told>) {
        let mut taken = Vec::new();
        loop {
            notes.take(&mut taken);
            for note in taken.drain(..) {
                match note {
                    Told::Attach(attaching) => self.attach(*attaching),
                    Told::Detach { attachment } => {
                        self.leaving.extend(self.flights.remove(&attachment))
                    }
                    Told::Copy { attachment, order } => self.copy(attachment, *order),
                    Told::Grown { bytes } => self.cards.grown(bytes),
                    Told::Done { part } => self.done(part),
                    Told::End => return self.end(),
                }
            }
            self.look_around();
            // Memory is registered with the cards slice by slice, while there is nothing to do.
            if self.cards.pin_some() {
                continue;
            }
            let busy = self.flights.values().any(|flights| flights.in_flight() > 0);
            let busy = busy || !self.leaving.is_empty();
            thread::park_timeout(if busy { LOOK_AROUND } else { IDLE });
        }
    }

    /// Lets everything go, unless a card may still be writing to the arena: that stays mapped then.
    fn end(mut self) {
        self.leaving.extend(std::mem::take(&mut self.flights).into_values());
        for _ in 0..LAST_LOOKS {
            self.look_around();
            if self.leaving.is_empty() {
                return;
            }
            thread::park_timeout(LAST_LOOK);
        }
        std::mem::forget(self);
    }

    fn attach(&mut self, attaching: Attaching) {
        let Attaching { attachment, sources, pages } = attaching;
        let outcome = self.cards.open(&sources, pages).map(|(card, flights)| {
            self.flights.insert(attachment, flights);
            Device::Card(card)
        });
        (self.tell)(End::Attached { attachment, outcome });
    }

    fn copy(&mut self, attachment: Attachment, order: Order) {
        let ticket = order.ticket;
        // It may have been let go since.
        let Some(flights) = self.flights.get_mut(&attachment) else {
            return (self.tell)(End::Copied(Copied { ticket, whole: false }));
        };
        flights.begin(order, &mut self.cards, &self.tell);
    }

    fn done(&mut self, part: u64) {
        let Devices { flights, leaving, cards, tell } = self;
        for flights in flights.values_mut().chain(leaving) {
            if flights.done(part, cards, tell) {
                return;
            }
        }
    }

    /// The second way to an ending, and whoever can leave.
    fn look_around(&mut self) {
        let Devices { flights, leaving, cards, tell } = self;
        for flights in flights.values_mut().chain(leaving.iter_mut()) {
            flights.look_around(cards, tell);
        }
        // Letting them go waits for their streams, and what an engine has left there (an event that
        // it never comes to) is no reason to hold up others.
        leaving.retain(|flights| !flights.is_idle());
    }
}

/// Orders, parts that have ended, attachments and what is said of them: a part that nobody heard of
/// would never end.
const NOTES_MAX: usize = PAGE_COPIES_MAX + (flights::PARTS_MAX + 4) * INSTANCES_MAX;
/// How often a lost context is looked for while something is in flight on it.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// What streams are given at the end to come to theirs.
const LAST_LOOKS: u32 = 200;
const LAST_LOOK: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_secs(3600);

/// What the thread is told, at its bound.
pub const MEMORY_BYTES_MAX: u64 = (2 * NOTES_MAX * size_of::<Told>()) as u64;
