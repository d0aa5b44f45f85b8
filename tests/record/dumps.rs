//! The flight recorder: always on, written down when somebody asks or the engine panics.

use crate::folder::Folder;
use crate::harness::{Client, Script, config, reactor};
use crate::runs::{replay, start, stop, work};
use kvtide::reactor::ListenAddress;
use kvtide::record::{RecordOptions, start as record};
use kvtide_core::effect::Outbox;
use kvtide_core::event::Event;
use kvtide_core::recording::{Frame, Header, Part, Reader, Recorder, Secret, decode};
use kvtide_core::time::Instant;
use kvtide_tests::http;
use rustix::process::Signal;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

#[test]
fn a_dump_can_be_asked_for_over_http() {
    let folder = Folder::new("dumps");
    let server = start(&["--dump-dir", &folder.file(".")]);
    work(&server, 2);
    let answer = http::request(server.admin, "POST", "/debug/dump", None).expect("it answers");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let told: Value = serde_json::from_str(&answer.body).expect("an object");
    let path = told["path"].as_str().expect("a path").to_owned();
    let bytes = std::fs::read(&path).expect("it was written before the answer");
    assert_eq!(told["bytes"], bytes.len() as u64);
    let events = decode(&bytes).expect("it is whole");
    assert_eq!((&told["events"], &told["whole"]), (&Value::from(events), &Value::from(true)));
    let (code, output) = replay(&[&path]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("every effect and fact is the same."), "it began with the server");
    stop(server);
}

#[test]
fn a_dump_can_be_asked_for_by_signal() {
    let folder = Folder::new("signal");
    let mut server = start(&["--dump-dir", &folder.file(".")]);
    work(&server, 2);
    server.signal(Signal::USR2).unwrap_or_else(|why| panic!("{why}"));
    let dumped = server.until(|status| dumps_of(status) == 1);
    dumped.unwrap_or_else(|why| panic!("{why}"));
    let path = folder.file(&format!("kvtide-{}-0.dump", server.id()));
    assert!(decode(&std::fs::read(&path).expect("by signal")).expect("it is whole") > 10);
    let log = stop(server);
    assert!(log.contains("SIGUSR2: the last "), "{log}");
}

fn dumps_of(status: &Value) -> u64 {
    status["kvtide"]["reactor"]["totals"]["recording_dumps"].as_u64().expect("a count")
}

/// Dumps were written as fast as they were asked for: thousands of them, each of the whole ring,
/// and the recording lost its place in the queue to them. One a second is written now, the others
/// are told why not, and the recording is whole.
#[test]
fn a_flood_of_dumps_costs_the_recording_nothing() {
    let folder = Folder::new("flood");
    let file = folder.file("recording");
    let mut server = start(&["--record", &file, "--dump-dir", &folder.file(".")]);
    let address = server.admin;
    let asking: Vec<_> = (0..16)
        .map(|_| {
            std::thread::spawn(move || {
                let ask = |_| {
                    let answer = http::request(address, "POST", "/debug/dump", None);
                    answer.expect("it answers")
                };
                (0..20).map(ask).collect::<Vec<_>>()
            })
        })
        .collect();
    work(&server, 3);
    let answers: Vec<_> =
        asking.into_iter().flat_map(|asking| asking.join().expect("they ask")).collect();
    let (written, refused): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.status == 200);
    assert!(!written.is_empty(), "the first is written");
    assert!(!refused.is_empty(), "sixteen who ask at once do not all get one");
    for answer in refused {
        assert_eq!(answer.status, 503, "{}", answer.body);
        let why = ["a dump is being written", "less than a second old"];
        assert!(why.iter().any(|why| answer.body.contains(why)), "{}", answer.body);
    }
    let count = written.len() as u64;
    let counted = server.until(|status| {
        let gaps = &status["kvtide"]["reactor"]["totals"]["recording_gaps"];
        assert_eq!(gaps.as_u64(), Some(0), "the recording goes on");
        dumps_of(status) == count
    });
    counted.unwrap_or_else(|why| panic!("{why}"));
    stop(server);
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("every effect and fact is the same.\n"), "{output}");
}

/// Whoever puts a link where a dump will be must not have it overwrite what the link means.
#[test]
fn a_dump_never_follows_a_link() {
    let folder = Folder::new("link");
    let server = start(&["--dump-dir", &folder.file(".")]);
    let victim = folder.file("victim");
    std::fs::write(&victim, "mine").expect("the folder is ours");
    let name = folder.file(&format!("kvtide-{}-0.dump", server.id()));
    std::os::unix::fs::symlink(&victim, &name).expect("the name is free");
    let answer = http::request(server.admin, "POST", "/debug/dump", None).expect("it answers");
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(std::fs::read(&victim).expect("it is there"), b"mine");
    stop(server);
}

#[test]
fn without_a_flight_recorder_or_a_folder_there_is_no_dump_but_a_reason() {
    for (arguments, reason) in [
        (&["--no-flight-recorder"][..], "--no-flight-recorder"),
        (&["--dump-dir", "/no/such/folder"], "/no/such/folder/kvtide-"),
    ] {
        let server = start(arguments);
        let answer = http::request(server.admin, "POST", "/debug/dump", None).expect("it answers");
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains(reason), "{}", answer.body);
        stop(server);
    }
}

/// The engine panics while it handles an event: that event is the last one of the dump.
#[test]
fn what_led_to_a_panic_is_written_down() {
    let folder = Folder::new("panic");
    let script = Script::new(|_, event, _| {
        assert!(!matches!(event, Event::Asked { .. }), "this engine takes no questions");
    });
    let options = RecordOptions {
        file: Some(folder.path().join("recording")),
        bytes_max: 8 << 20,
        tokens: false,
        dump_dir: folder.path().to_owned(),
        flight: true,
    };
    let (recording, thread) =
        record(&options, &config()).expect("the folder is ours").expect("there is one");
    let (mut reactor, _sender) = reactor(script);
    reactor.record(recording);
    let address = ListenAddress::parse("tcp://127.0.0.1:0").expect("an address");
    let address = reactor.listen(&address).expect("the address is free");
    let ListenAddress::Tcp(address) = address else { unreachable!("a tcp address stays one") };
    let asking = std::thread::spawn(move || {
        let mut client = Client::open(address);
        client.send(&[b"uid", crate::harness::PING, crate::harness::NIL]);
        client
    });
    let ran = catch_unwind(AssertUnwindSafe(|| reactor.run()));
    assert!(ran.is_err(), "the engine panics");
    let dumped = reactor.dump_after_panic().expect("it is kept").expect("the folder is ours");
    reactor.end_recording(false);
    assert!(thread.within(Duration::from_secs(60)), "everything is written");
    asking.join().expect("the client has asked");
    for path in [dumped.path, folder.path().join("recording")] {
        let bytes = std::fs::read(&path).expect("it was written");
        let (_, mut reader) = Reader::new(&bytes).expect("it begins as recordings do");
        let mut last = None;
        while let Some(entry) = reader.next_entry().expect("it is whole") {
            last = Some((entry.kind, entry.outcome.is_some()));
        }
        assert_eq!(last, Some(("ping", false)), "{}", path.display());
    }
}

/// Of a server that is older than its flight recorder nothing can be replayed, but where it
/// panicked is the last thing in the dump.
#[test]
fn a_panic_dump_that_cannot_be_replayed_shows_where_it_was() {
    let folder = Folder::new("midst");
    let header =
        Header { recording: 7, tokens: false, writer: "1\u{1b}[31m".to_owned(), config: config() };
    let mut recorder = Recorder::new(Secret::new([7; 16]));
    for second in 0..3 {
        recorder.begins(Instant::from_secs(100 + second), &Event::Tick);
        recorder.ended(&[], &Part::since((0, 0), &Outbox::default()));
    }
    let bytes = 1 << 30;
    recorder.begins(Instant::from_secs(107), &Event::ArenaGrown { bytes });
    let frame = Frame { number: 4, first_event: 50, ..recorder.close().expect("four events") };
    let (head, entries) = frame.bytes();
    let file = folder.file("kvtide-1-panic.dump");
    std::fs::write(&file, [&header.bytes(), &head[..], entries].concat()).expect("it is ours");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("nothing was checked"), "{output}");
    let event = "107.000000        53 arena grown to 1073741824 bytes";
    assert_eq!(output.matches(event).count(), 2, "as the last line and the last word: {output}");
    assert!(output.contains("The core panicked within the last event:\n"), "{output}");
    assert_eq!(output.matches(" tick -> nothing").count(), 3, "{output}");
    assert!(output.contains("kvtide 1\\u{1b}[31m;") && !output.contains('\u{1b}'), "{output}");
}
