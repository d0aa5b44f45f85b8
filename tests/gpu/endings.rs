//! Engines that go, in order or not, and the end of the server.

use crate::bed::Bed;
use crate::cache::Cache;
use crate::card::{Card, needs_fake};
use crate::pages::{Form, Pages};
use crate::worker::{Transfer, Worker};
use kvtide_core::wire::operation::Operation;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SOURCE: [u64; 8] = [3, 1, 2, 11, 7, 8, 9, 10];
const TARGET: [u64; 8] = [5, 4, 6, 1, 2, 3, 12, 13];

/// An engine in a process of its own, which is killed at the end of the test if not before.
struct Engine(Child);

impl Engine {
    /// Starts this program again as an engine that orders a store and never comes to its event.
    fn start(card: &Card, bed: &Bed) -> Engine {
        let program = std::env::current_exe().expect("a test knows its program");
        let mut command = Command::new(program);
        command.args(["endings::this_process_is_an_engine", "--exact", "--nocapture"]);
        command.env("KVTIDE_CARD_FOLDER", &card.folder);
        command.env("KVTIDE_CARD_SERVER", bed.server.request.to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut engine = Engine(child.expect("this program starts again"));
        let output = engine.0.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("ordered")), "the engine comes to its store");
        engine
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn this_process_is_an_engine() {
    let Some(folder) = std::env::var_os("KVTIDE_CARD_FOLDER") else { return };
    let server = std::env::var("KVTIDE_CARD_SERVER").expect("they go together");
    let mut card = Card::of_child(Path::new(&folder));
    let cache = Cache::in_one(&mut card, Pages::new(Form::PlaneBlock));
    let mut worker = Worker::at(server.parse().expect("an address"), 7);
    worker.register(&card, &cache);
    card.stall(true);
    card.fill(cache.allocation(0).0.address, &[7; 64]);
    let event = card.event();
    worker.begin(Operation::Store, &Transfer::new(9, "d", &SOURCE, &event));
    println!("ordered");
    worker.ended();
    unreachable!("it is killed before its event comes");
}

/// What an engine that crashed amid a copy had lent us is let go, once, and when nothing reads it
/// any more; nobody else notices.
#[test]
fn f09_an_engine_that_dies_amid_a_copy_leaves_others_served() {
    if !needs_fake() {
        return;
    }
    let mut card = Card::new("dies");
    let mut bed = Bed::start(&card);
    let pages = Pages::new(Form::PlaneBlock);
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let mut engine = Engine::start(&card, &bed);
    let file = format!("objects/{}-", engine.0.id());
    bed.until_in_flight(1);
    assert!(bed.maps(&file), "its memory is open");
    let event = card.event();
    assert!(writer.store(&Transfer::new(1, "s", &SOURCE, &event)), "while it hangs");
    engine.kill();
    assert!(reader.fetch(&Transfer::new(1, "r", &TARGET, &event)), "after it died");
    bed.until_in_flight(0);
    assert_eq!(reader.lookup(9, 2, "l"), 0, "what a dead engine has stored is not published");
    let pairs: Vec<(u64, u64)> = SOURCE.into_iter().zip(TARGET).collect();
    other.expect(&mut card, &one, &pairs);
    drop((writer, reader));
    bed.idle();
    while bed.maps(&file) {
        bed.server.status().expect("the server lives while it lets go");
    }
    bed.stop_clean();
    // The dead engine's objects: nobody else can remove them.
    for entry in std::fs::read_dir(card.folder.join("objects")).expect("it is there").flatten() {
        if entry.file_name().to_string_lossy().starts_with(&file["objects/".len()..]) {
            std::fs::remove_file(entry.path()).expect("it is a file");
        }
    }
    card.finish();
}

/// An engine that ends its registration while its own copy is under way: what it had lent is read
/// to the end, and then let go.
#[test]
fn f09_memory_is_let_go_after_the_last_copy_and_not_before() {
    if !needs_fake() {
        return;
    }
    let mut card = Card::new("unregister");
    let mut bed = Bed::start(&card);
    card.stall(true);
    let cache = Cache::in_one(&mut card, Pages::new(Form::PlaneBlock));
    let mut worker = Worker::new(&bed, 1);
    worker.register(&card, &cache);
    let event = card.event();
    worker.begin(Operation::Store, &Transfer::new(1, "s", &SOURCE, &event));
    bed.until_in_flight(1);
    drop(worker);
    bed.server.until(|status| status["kvtide"]["reactor"]["connections"] == 0).expect("it is gone");
    let file = format!("objects/{}-", std::process::id());
    assert!(bed.maps(&file), "a copy still reads it");
    card.stall(false);
    bed.idle();
    while bed.maps(&file) {
        bed.server.status().expect("the server lives while it lets go");
    }
    bed.stop_clean();
    card.finish();
}

/// A signal while engines are registered, and while one waits for a copy: that is answered, and the
/// driver is left in order.
#[test]
fn a_server_that_is_stopped_lets_cards_go() {
    let mut card = Card::new("stopped");
    let bed = Bed::start(&card);
    let cache = Cache::in_one(&mut card, Pages::new(Form::PlaneBlock));
    let mut worker = Worker::new(&bed, 1);
    worker.register(&card, &cache);
    let event = card.event();
    let uid = worker.begin(Operation::Store, &Transfer::new(1, "s", &SOURCE, &event));
    bed.server.signal(rustix::process::Signal::TERM).expect("it runs");
    assert_eq!(worker.ended(), (uid, true));
    bed.ended_clean();
    card.finish();
}
