//! Lower tiers under the real reactor: what comes back from a disk wakes it, and the end of the
//! server waits for what is on its way.

use crate::harness::{ARENA_BYTES, Client, NIL, PING, reactor};
use kvtide::reactor::{Desk, ListenAddress, Note, Signal};
use kvtide::tiers::spec::AdapterSpec;
use kvtide_core::effect::{Answer, Effect, Outbox};
use kvtide_core::event::{Ask, Event, LoadOutcome, StoreOutcome};
use kvtide_core::format::names::{HashBytes, ObjectName};
use kvtide_core::names::{
    AdapterId, ArenaId, ChunkHash, KvRank, L2Key, Place, Reply, ScopeId, Ticket,
};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
use kvtide_lanes::mailbox::Sender;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::borrow::Cow;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const BYTES: u64 = 128 << 10;

type Heard = Arc<Mutex<Vec<&'static str>>>;

/// Stores, loads and digests an object for everybody who asks, and answers when that is done. The
/// end of the server leaves disks alone.
#[derive(Default)]
struct Librarian {
    asked: Vec<Reply>,
    heard: Heard,
    issued: u32,
    /// Nothing is stored before it is loaded.
    only_loads: bool,
}

impl Librarian {
    fn ticket(&mut self) -> Ticket {
        self.issued += 1;
        Ticket(SlotName { index: self.issued, generation: 0 })
    }

    fn hears(&self, what: &'static str) {
        self.heard.lock().expect("nobody panicked with it").push(what);
    }
}

fn key() -> L2Key {
    L2Key { hash: ChunkHash([7; 32]), scope: ScopeId(0) }
}

fn name() -> ObjectName<'static> {
    ObjectName {
        model: Cow::Borrowed("m"),
        rank: KvRank(0x0100_0100),
        group: 0,
        hash: HashBytes::from(key().hash),
        salt: "",
    }
}

fn place(half: u64) -> Place {
    Place { arena: ArenaId(0), offset: half * ARENA_BYTES / 2, bytes: BYTES }
}

impl Desk for Librarian {
    fn handle(&mut self, _now: Instant, event: Event<'_>, out: &mut Outbox) {
        let (adapter, key, ticket) = (AdapterId(0), key(), self.ticket());
        let load = Effect::LoadObject { ticket, adapter, key, place: place(1) };
        match event {
            Event::Asked { reply, ask: Ask::Ping { .. } } => {
                self.asked.push(reply);
                out.effects.push(match self.only_loads {
                    true => load,
                    false => Effect::StoreObject { ticket, adapter, key, place: place(0) },
                });
            }
            Event::StoreEnded { outcome, .. } => {
                assert_eq!(outcome, StoreOutcome::Stored);
                self.hears("stored");
                out.effects.push(load);
            }
            Event::LoadEnded { outcome, .. } => {
                assert_eq!(outcome, LoadOutcome::Loaded);
                self.hears("loaded");
                out.effects.push(Effect::Digest { ticket, key, place: place(1) });
            }
            Event::DigestEnded { .. } => {
                self.hears("digested");
                out.effects.push(Effect::DeleteObject { ticket, adapter, key, quarantine: false });
            }
            Event::DeleteEnded { .. } => {
                self.hears("deleted");
                for reply in self.asked.drain(..) {
                    out.answer(reply, Answer::Bool(true));
                }
            }
            Event::AdapterAdded { .. } => self.hears("added"),
            Event::AdapterScanEnded { .. } => self.hears("scanned"),
            _ => {}
        }
    }

    fn next_tick(&self) -> Option<Instant> {
        None
    }

    fn l2_name(&self, _key: &L2Key) -> ObjectName<'_> {
        name()
    }

    fn retell(&mut self, _out: &mut Outbox) {}

    fn finish(&mut self, _now: Instant, out: &mut Outbox) {
        self.asked.drain(..).for_each(|reply| out.answer(reply, Answer::Bool(false)));
    }
}

struct Library {
    /// Only a ring reads pipes as if they were files.
    has_ring: bool,
    folder: PathBuf,
    address: SocketAddr,
    sender: Sender<Note<Librarian>>,
    thread: JoinHandle<std::io::Result<Signal>>,
}

impl Library {
    fn open(test: &str, librarian: Librarian) -> Library {
        let folder = format!("kvtide-loopback-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let (mut reactor, sender) = reactor(librarian);
        let spec = AdapterSpec::files(folder.clone());
        let opened = kvtide::tiers::open(spec, reactor.tier_terms()).expect("a folder can be made");
        let has_ring = opened.tier.status().engine == "io_uring";
        let added = reactor.add_tier(opened).expect("it can be registered");
        assert_eq!(added, Some(AdapterId(0)));
        let address = ListenAddress::parse("tcp://127.0.0.1:0").expect("an address");
        let ListenAddress::Tcp(address) = reactor.listen(&address).expect("it is free") else {
            unreachable!("a tcp address stays one")
        };
        let thread = std::thread::spawn(move || reactor.run());
        Library { has_ring, folder, address, sender, thread }
    }

    fn stop(&self) {
        assert!(self.sender.put(Note::Stop(Signal::Terminate)).is_ok(), "the mailbox has room");
    }

    fn join(self) {
        let ended = self.thread.join().expect("the reactor does not panic");
        assert_eq!(ended.expect("polling works"), Signal::Terminate);
        std::fs::remove_dir_all(self.folder).expect("the folder was made");
    }
}

#[test]
fn what_a_disk_answers_wakes_the_reactor_step_by_step() {
    let librarian = Librarian::default();
    let heard = librarian.heard.clone();
    let library = Library::open("steps", librarian);
    let mut client = Client::open(library.address);
    for _ in 0..20 {
        assert_eq!(client.call(&[b"u", PING, NIL])[2], [0xc3], "it is answered true");
    }
    library.stop();
    library.join();
    let heard = heard.lock().expect("nobody panicked with it");
    // The look through the folder ends whenever it ends.
    let steps: Vec<_> = heard.iter().copied().filter(|what| *what != "scanned").collect();
    let round = ["stored", "loaded", "digested", "deleted"];
    assert_eq!((steps[0], &steps[1..]), ("added", &round.repeat(20)[..]));
    assert!(heard.len() <= steps.len() + 1, "it ends once");
}

/// A pipe under the object's name is a disk that answers late.
fn hung_library(test: &str) -> Option<(Library, Heard, PathBuf)> {
    let librarian = Librarian { only_loads: true, ..Librarian::default() };
    let heard = librarian.heard.clone();
    let library = Library::open(test, librarian);
    if !library.has_ring {
        eprintln!("skipped: there is no io_uring here");
        return None;
    }
    let fifo = library.folder.join(name().file().expect("it has a name"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("it can be made");
    let mut client = Client::open(library.address);
    client.send(&[b"u", PING, NIL]);
    client.expect_served();
    library.stop();
    assert_eq!(client.receive()[2], [0xc2], "it is answered false");
    client.expect_closed();
    Some((library, heard, fifo))
}

#[test]
fn the_end_waits_for_what_is_on_its_way_to_or_from_a_disk() {
    let Some((library, heard, fifo)) = hung_library("waits") else { return };
    let mut fifo = std::fs::File::options().write(true).open(fifo).expect("it is there");
    fifo.write_all(&[3; BYTES as usize]).expect("it is read");
    drop(fifo);
    library.join();
    let heard = heard.lock().expect("nobody panicked with it");
    assert!(heard.contains(&"loaded") && heard.contains(&"digested"), "{heard:?}");
}

#[test]
fn f47_a_second_signal_does_not_wait_for_a_disk_that_hangs() {
    let Some((library, heard, _fifo)) = hung_library("hangs") else { return };
    library.stop();
    library.join();
    assert!(!heard.lock().expect("nobody panicked with it").contains(&"loaded"));
}
