//! Clients of the admin side that send too much, too slowly or nothing: none of them costs anybody
//! else an answer.

use crate::{Scripted, Server, exchange, quota};
use kvtide::admin::Times;
use kvtide_core::config::Config;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// As many as are served at once.
const CONNECTIONS_MAX: usize = 256;
/// And that many more, for probes.
const PROBES_MAX: usize = 16;
/// A time so long that it does not come in a test.
pub const NEVER: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(20);

fn server(times: Times) -> Server {
    let scripted = Scripted { times, ..Scripted::default() };
    Server::with(scripted, Config::default(), Value::Null)
}

fn patient() -> Server {
    server(Times { head: NEVER, body: NEVER, idle: NEVER })
}

/// Sends these bytes and keeps the connection.
fn sends(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it is not zero");
    stream.write_all(bytes).expect("the server reads");
    stream
}

/// What comes until the server closes.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        // What it had not read makes its end a reset.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server closes in time: {error}"),
    }
    String::from_utf8(bytes).expect("an answer is text")
}

fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

fn json(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").expect("an answer has a body").1;
    serde_json::from_str(body).expect("it is JSON")
}

#[test]
fn a_head_that_does_not_come_in_time_ends_its_connection() {
    let server = server(Times { head: SOON, ..Times::default() });
    assert_eq!(rest(sends(server.http, b"GET /livez HTTP/1.1\r\nhost: h\r\n")), "");
    assert_eq!(rest(sends(server.http, b"")), "", "nor does one that says nothing stay");
    // The head may be late on a slow machine; then it is sent again.
    let asks = b"GET /livez HTTP/1.1\r\nhost: h\r\n\r\n";
    let mut kept = std::iter::repeat_with(|| rest(sends(server.http, asks))).take(1000);
    let kept = kept.find(|answer| !answer.is_empty()).expect("some head comes in time");
    assert_eq!(status(&kept), 200, "a kept connection ends likewise, after its answer");
}

#[test]
fn half_heads_in_every_place_make_way_for_a_probe_oldest_first() {
    let server = patient();
    let slow = |_| sends(server.http, b"GET /livez HTTP/1.1\r\nx-slow: ");
    let mut held: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(slow).collect();
    // It is accepted after all of them, for the backlog is a queue.
    assert_eq!(server.get("/livez").status, 200);
    assert_eq!(rest(held.remove(0)), "", "the first one has made way");
    let last = held.pop().expect("there are many");
    let mut finished = last.try_clone().expect("a descriptor is free");
    finished.write_all(b"a\r\nconnection: close\r\n\r\n").expect("it is still open");
    assert_eq!(status(&rest(last)), 200, "the last one has not");
}

#[test]
fn while_every_place_waits_for_its_answer_probes_are_still_answered() {
    // What they ask is not answered, for as long as the test likes.
    let scripted = Scripted {
        deaf: true,
        times: Times { head: NEVER, body: NEVER, idle: NEVER },
        ..Scripted::default()
    };
    let server = Server::with(scripted, Config::default(), Value::Null);
    let body = b"POST /cache/clear HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}";
    let mut held: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| sends(server.http, body)).collect();
    // Some made way before the server had read their heads; others take their places.
    let refused = std::iter::repeat_with(|| {
        held.push(sends(server.http, body));
        server.get("/version")
    });
    let refused = refused.take(2 * CONNECTIONS_MAX).find(|got| got.status != 200);
    let refused = refused.expect("there is an end to the places");
    assert_eq!((refused.status, refused.json()["detail"].is_string()), (503, true));
    for path in ["/livez", "/readyz", "/healthcheck", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    drop(held);
    let mut later = std::iter::repeat_with(|| server.get("/version")).take(1_000_000);
    let served = later.any(|got| got.status == 200);
    assert!(served, "places that are given back are used again");
}

#[test]
fn bodies_that_do_not_come_hold_no_place() {
    let server = patient();
    for head in ["GET /livez", "POST /cache/clear"] {
        let request = format!("{head} HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n");
        let slow = |_| sends(server.http, request.as_bytes());
        let held: Vec<TcpStream> = (0..CONNECTIONS_MAX + PROBES_MAX).map(slow).collect();
        for path in ["/livez", "/version"] {
            assert_eq!(server.get(path).status, 200, "{path} after {head}");
        }
        drop(held);
    }
}

#[test]
fn a_probe_with_a_body_is_answered_before_the_body_comes() {
    let server = patient();
    let request = b"GET /livez HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n";
    assert_eq!(status(&rest(sends(server.http, request))), 200);
}

#[test]
fn a_body_that_is_too_large_is_refused_in_the_shape_of_its_route() {
    let server = patient();
    for (path, method, key) in [("/quota/a", "PUT", "error"), ("/cache/clear", "POST", "detail")] {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n");
        let announced = format!("{head}content-length: 9999999\r\n\r\n");
        let chunk = format!("{head}transfer-encoding: chunked\r\n\r\n11000\r\n");
        let unannounced = [chunk.as_bytes(), &[b' '; 0x11000]].concat();
        for request in [announced.into_bytes(), unannounced] {
            let answer = rest(sends(server.http, &request));
            assert_eq!(status(&answer), 413, "{path}");
            assert!(json(&answer)[key].is_string(), "{answer}");
        }
    }
    assert_eq!(exchange(server.http, "PUT", "/quota/a", br#"{"limit_gb": 1}"#).status, 200);
}

#[test]
fn a_body_that_does_not_come_in_time_is_told_so() {
    let server = server(Times { body: SOON, head: NEVER, idle: NEVER });
    for (path, method, key) in [("/quota/a", "PUT", "error"), ("/cache/clear", "POST", "detail")] {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n{{");
        let answer = rest(sends(server.http, head.as_bytes()));
        assert_eq!(status(&answer), 408, "{path}");
        assert!(json(&answer)[key].is_string(), "{answer}");
    }
}

#[test]
fn a_flood_of_headers_is_refused() {
    let server = patient();
    let many = "x: y\r\n".repeat(200);
    let long = format!("x: {}\r\n", "y".repeat(40_000));
    for headers in [many, long] {
        let request = format!("GET /livez HTTP/1.1\r\nhost: h\r\n{headers}\r\n");
        assert_eq!(status(&rest(sends(server.http, request.as_bytes()))), 431);
    }
}

#[test]
fn an_answer_that_nobody_takes_ends_its_connection() {
    let server = server(Times { idle: SOON, head: NEVER, body: NEVER });
    let mut stream = sends(server.http, b"");
    stream.set_nonblocking(true).expect("it is a socket");
    let request = b"GET /status HTTP/1.1\r\nhost: h\r\n\r\n";
    // Answers fill the buffers between the two, until nothing moves any more.
    let ended = loop {
        match stream.write(request) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => break error.kind(),
        }
    };
    assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&ended), "{ended:?}");
}

#[test]
fn answers_that_nobody_takes_share_a_budget_and_probes_come_through() {
    let server = patient();
    // As long as names can be, of what takes most room in JSON: the list has 25 MB.
    let name = |at: usize| format!("{at:\u{1}>1024}");
    let quotas = (0..4096).map(|at| quota(&name(at), 1 << 30)).collect();
    server.scripted.seen.lock().expect("nobody panics here").engine.quotas = quotas;
    let asks = b"GET /quota HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    let mut taken = sends(server.http, asks);
    let mut first = [0; 12];
    taken.read_exact(&mut first).expect("an answer comes");
    assert_eq!(&first, b"HTTP/1.1 200");
    let refused = server.get("/quota");
    assert_eq!((refused.status, refused.json()["error"].is_string()), (503, true));
    for path in ["/livez", "/readyz", "/metrics", "/quota/one"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert!(rest(taken).len() > 4096 * 6 * 1000, "the first one is whole all the same");
    let mut later = std::iter::repeat_with(|| server.get("/quota")).take(1000);
    assert!(later.any(|got| got.status == 200), "what was taken leaves room");
}

#[test]
fn the_page_of_a_server_whose_reactor_hangs_has_everything_else() {
    let hangs = Scripted { silent: true, ..Scripted::default() };
    let hangs = Server::with(hangs, Config::default(), Value::Null);
    assert_eq!(hangs.get("/metrics").body, "a_metric 1\nreactor_answered false\n");
}

#[test]
fn the_end_does_not_wait_for_a_request_that_is_never_finished() {
    let server = patient();
    let half = b"POST /cache/clear HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n";
    let held = sends(server.http, half);
    assert_eq!(server.get("/livez").status, 200, "it was accepted before");
    let address = server.http;
    server.admin.stop(NEVER);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    assert_eq!(rest(held), "");
}
