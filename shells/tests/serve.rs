//! The program as its supervisor meets it: what it says when it starts, how it ends on signals, and
//! that nobody who reads its log, or does not, can hold it up (spec/http-cli §4.1, §4.2).

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// A server on memory that is quickly had, at ports of its own. Killed when dropped.
struct Running {
    child: Child,
    stderr: Option<BufReader<ChildStderr>>,
    /// What was read of its log, up to the line that says that it serves.
    said: Vec<String>,
    engines: SocketAddr,
    operators: SocketAddr,
}

impl Running {
    fn start(level: &str, flags: &[&str]) -> Running {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvtide"))
            .args(["server", "--port", "0", "--http-port", "0", "--l1-size-gb", "0.01"])
            .args(flags)
            .env("LMCACHE_DISABLE_BANNER", "1")
            .env("LMCACHE_LOG_LEVEL", level)
            .env_remove("LMCACHE_COORDINATOR_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut said = Vec::new();
        while !said.iter().any(|line: &String| line.contains("HTTP server initialized on")) {
            let mut line = String::new();
            let bytes = stderr.read_line(&mut line).expect("the log is text");
            assert!(bytes > 0, "it ended: {said:?}");
            said.push(line);
        }
        let port = |after: &str| {
            let line = said.iter().find_map(|line| Some(line.split_once(after)?.1.to_owned()));
            let digits: String =
                line.expect("it was said").chars().take_while(char::is_ascii_digit).collect();
            SocketAddr::from(([127, 0, 0, 1], digits.parse().expect("a port is a number")))
        };
        let engines = port("is running on localhost:");
        let operators = port("initialized on 127.0.0.1:");
        Running { child, stderr: Some(stderr), said, engines, operators }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is a child of ours");
    }

    fn segment(&self) -> PathBuf {
        let name = self.said.iter().find_map(|line| Some(line.split_once(", segment ")?.1));
        let name = name.and_then(|rest| rest.split(' ').next()).expect("it is said at the start");
        Path::new("/dev/shm").join(name)
    }

    /// The exit status after a signal, and the rest of the log where it is still read.
    fn stop(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let mut rest = String::new();
        if let Some(stderr) = &mut self.stderr {
            stderr.read_to_string(&mut rest).expect("the log is text");
        }
        let status = self.child.wait().expect("it is a child of ours");
        (status.code(), rest)
    }

    /// One answer on a connection of its own.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.operators).expect("it listens");
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers with text");
        answer
    }

    /// Has it log so many lines at DEBUG, and reads the answers meanwhile.
    fn make_it_talk(&self, lines: usize) {
        let mut writes = TcpStream::connect(self.operators).expect("it listens");
        let mut reads = writes.try_clone().expect("a descriptor is free");
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reads.read_to_end(&mut all).expect("it answers");
            String::from_utf8_lossy(&all).matches("HTTP/1.1 404").count()
        });
        let path = "x".repeat(100);
        for at in 0..lines {
            let end = if at + 1 == lines { "connection: close\r\n" } else { "" };
            let request = format!("GET /{path} HTTP/1.1\r\nhost: h\r\n{end}\r\n");
            writes.write_all(request.as_bytes()).expect("it reads");
        }
        assert_eq!(reading.join().expect("it answers"), lines);
    }

    fn lines_dropped(&self) -> f64 {
        let page = self.get("/metrics");
        let line =
            page.lines().find_map(|line| line.strip_prefix("kvtide_log_lines_dropped_total "));
        line.and_then(|value| value.parse().ok()).expect("the counter is on the page")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only where it has ended and been waited for.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn it_says_what_people_wait_for_and_ends_by_the_signals_name() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 143)] {
        // Who starts these tests with hangups ignored (`nohup`) hands that on to the server.
        if signal == Signal::HUP && hangups_are_ignored() {
            continue;
        }
        let server = Running::start("INFO", &[]);
        let at = |text: &str| {
            let at = server.said.iter().position(|line| line.contains(text));
            at.unwrap_or_else(|| panic!("{text} is not said: {:?}", server.said))
        };
        let order = [
            at("L1 is "),
            at("LMCache zmq cache server is running on localhost:"),
            at("LMCache cache server is running..."),
            at("LMCache HTTP server initialized"),
        ];
        assert!(order.is_sorted(), "{:?}", server.said);
        let segment = server.segment();
        assert!(segment.exists(), "{segment:?}");
        assert!(server.get("/readyz").starts_with("HTTP/1.0 200"));
        let (ended, rest) = server.stop(signal);
        assert_eq!(ended, Some(code), "{rest}");
        assert!(!segment.exists(), "{segment:?} is left behind");
    }
}

fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process has a status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is told");
    u64::from_str_radix(mask.trim(), 16).expect("a mask in hex") & 1 == 1
}

/// Nobody reads its log, so the last lines are waited for; by then the segment is gone. A second
/// signal that is taken cuts that short and gives its own name; one that is not leaves the first's.
#[test]
fn a_second_signal_ends_it_also_while_it_waits_for_the_readers_of_its_log() {
    let cut_short = || {
        let mut server = Running::start("DEBUG", &[]);
        server.make_it_talk(5000);
        let segment = server.segment();
        server.signal(Signal::TERM);
        while segment.exists() {
            std::thread::yield_now();
        }
        server.signal(Signal::INT);
        server.child.wait().expect("it is a child of ours").code() == Some(130)
    };
    // One may come in the instant before it counts, or after the server's patience has ended.
    assert!((0..8).any(|_| cut_short()), "no second signal was taken");
}

#[test]
fn in_json_every_line_is_an_object_and_nothing_else_is_written() {
    let server = Running::start("DEBUG", &["--log-format", "json"]);
    server.get("/livez");
    let mut lines = server.said.concat();
    let (code, rest) = server.stop(Signal::TERM);
    lines += &rest;
    assert_eq!(code, Some(143));
    for line in lines.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        for key in ["ts", "level", "message", "target"] {
            assert!(value[key].is_string(), "{key}: {line}");
        }
    }
    assert!(rest.contains("GET /livez"), "{rest}");
}

#[test]
fn a_log_that_nobody_reads_costs_lines_and_nothing_else() {
    let server = Running::start("DEBUG", &[]);
    // More than the pipe, the lines in hand and those that wait can hold.
    server.make_it_talk(6000);
    assert!(server.get("/livez").starts_with("HTTP/1.0 200"));
    assert!(server.lines_dropped() > 0.0);
    // The rest is read only after the end: it does not wait for that either.
    server.signal(Signal::TERM);
    let mut server = server;
    assert_eq!(server.child.wait().expect("it is a child of ours").code(), Some(143));
}

#[test]
fn a_log_whose_reader_has_gone_costs_lines_and_nothing_else() {
    let mut server = Running::start("DEBUG", &[]);
    server.stderr = None;
    server.make_it_talk(10);
    assert!(server.get("/livez").starts_with("HTTP/1.0 200"));
    // The log's thread finds out when it writes, which may be a little later.
    assert!((0..10_000).any(|_| server.lines_dropped() >= 10.0));
    assert_eq!(server.stop(Signal::TERM).0, Some(143));
}

#[test]
fn probes_that_connect_and_close_leave_no_trace() {
    let server = Running::start("INFO", &["--no-l1-use-lazy"]);
    for _ in 0..100 {
        for address in [server.engines, server.operators] {
            drop(TcpStream::connect(address).expect("it listens"));
        }
    }
    // Whoever came before is accepted before whoever comes now.
    assert!(server.get("/healthcheck").starts_with("HTTP/1.0 200"));
    let (code, rest) = server.stop(Signal::TERM);
    assert_eq!(code, Some(143));
    // L1's growth has a thread of its own, which may be late to tell of it.
    assert!(rest.lines().all(|line| line.contains("L1 has its full size")), "{rest}");
}

#[test]
fn a_metrics_port_that_is_taken_is_told_and_no_reason_not_to_serve() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("it is bound");
    let server = Running::start("INFO", &["--prometheus-port", &address.port().to_string()]);
    let warning = format!("--prometheus-port: Address already in use: {address}");
    assert!(server.said.iter().any(|line| line.contains(&warning)), "{:?}", server.said);
    assert!(server.get("/metrics").starts_with("HTTP/1.0 200"));
    assert_eq!(server.stop(Signal::TERM).0, Some(143));
}

#[test]
fn what_the_reactor_counts_is_on_the_page() {
    let server = Running::start("INFO", &["--no-l1-use-lazy"]);
    drop(TcpStream::connect(server.engines).expect("it listens"));
    let page = server.get("/metrics");
    for name in [
        "kvtide_turn_seconds_bucket{le=\"+Inf\"}",
        "kvtide_turn_seconds_sum",
        "kvtide_http_restarts_total",
        "kvtide_longest_turn_seconds{event=",
        "kvtide_connections ",
        "kvtide_connections_accepted_total",
        "kvtide_connections_turned_away_total{why=\"descriptors\"}",
        "kvtide_connections_closed_total{why=\"protocol\"}",
        "kvtide_connections_closed_total{why=\"message_stalled\"}",
        "kvtide_messages_total",
        "kvtide_log_lines_dropped_total 0",
        "process_open_fds",
        "process_max_fds",
    ] {
        assert!(page.lines().any(|line| line.starts_with(name)), "{name} is missing: {page}");
    }
    assert_eq!(server.stop(Signal::TERM).0, Some(143));
}
