//! A reactor that stands still, or falls, says what it was at.

use crate::harness::{Client, NIL, PING, Script, Server, reactor};
use kvtide::reactor::{Desk, ListenAddress, Watchdog};
use kvtide_core::effect::{Answer, Outbox};
use kvtide_core::event::{Ask, Event};
use kvtide_core::time::{Duration, Instant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Hangs in every ping until it is let go.
struct Hanging {
    hangs: Sender<()>,
    release: Receiver<()>,
}

impl Desk for Hanging {
    fn handle(&mut self, _now: Instant, event: Event<'_>, out: &mut Outbox) {
        if let Event::Asked { reply, ask: Ask::Ping { .. } } = event {
            self.hangs.send(()).expect("the test listens");
            self.release.recv().expect("the test lets go");
            out.answer(reply, Answer::Bool(true));
        }
    }

    fn next_tick(&self) -> Option<Instant> {
        None
    }

    fn retell(&mut self, _out: &mut Outbox) {}

    fn finish(&mut self, _now: Instant, _out: &mut Outbox) {}
}

#[test]
fn a_reactor_that_hangs_in_an_event_is_told_of_once_by_its_name() {
    let ((hangs, hung), (let_go, release)) = (channel(), channel());
    let server = Server::with(Hanging { hangs, release });
    let mut watchdog = Watchdog::new(server.last_turn.clone());
    let mut client = Client::open(server.address);
    client.send(&[b"u", PING, NIL]);
    hung.recv().expect("the reactor comes to it");
    let turned = server.last_turn.ended();
    let mut look = |seconds| {
        let at = turned + Duration::from_secs(seconds);
        watchdog.look(at).map(|sighting| sighting.to_string())
    };
    assert_eq!(look(6), None);
    let told = "The reactor has not turned for 7.0 s; it is in the event ping";
    assert_eq!(look(7).as_deref(), Some(told));
    assert_eq!(look(60), None);
    let_go.send(()).expect("the reactor waits");
    assert_eq!(client.receive(), [&b"u"[..], PING, b"\xc3"]);
    server.until(|status| status.stalls == 1 && server.last_turn.ended() > turned);
    let told = look(0).expect("it turns again");
    assert!(told.starts_with("The reactor turns again after "), "{told}");
    assert_eq!(look(0), None);
}

#[test]
fn a_reactor_that_falls_tells_its_last_events() {
    let desk = Script::new(|_, event, out| match event {
        Event::Asked { ask: Ask::Ping { instance: Some(_) }, .. } => panic!("as the test wants"),
        Event::Asked { reply, .. } => out.answer(reply, Answer::Bool(true)),
        _ => {}
    });
    let (mut reactor, _sender) = reactor(desk);
    let address = ListenAddress::parse("tcp://127.0.0.1:0").expect("an address");
    let ListenAddress::Tcp(address) = reactor.listen(&address).expect("it is free") else {
        unreachable!("a tcp address stays one")
    };
    let fallen = std::thread::spawn(move || {
        let fell = catch_unwind(AssertUnwindSafe(|| reactor.run())).is_err();
        (fell, reactor.recent_events())
    });
    let mut client = Client::open(address);
    assert_eq!(client.call(&[b"u", PING, NIL]), [&b"u"[..], PING, b"\xc3"]);
    client.send(&[b"u", PING, b"\x01"]);
    let (fell, events) = fallen.join().expect("the panic is caught");
    assert!(fell);
    let names: Vec<&str> = events.split(' ').skip(1).step_by(2).collect();
    assert_eq!(names, ["arena_grown,", "ping,", "ping"], "{events}");
}
