//! Clients whose process is killed or stopped while the server has lent them memory.

use crate::bystander::{Bystander, CHUNK_BYTES, Prompt};
use crate::harness::PING;
use crate::running::{expect_unharmed, start, start_with, until};
use kvtide_core::wire::request::Request;
use kvtide_tests::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Set in the process that plays the victim: where its server is.
const ADDRESS: &str = "KVTIDE_HOSTILE_CHILD";
const VICTIM: i64 = 7;
const CHUNKS: u64 = 4;

fn victims_prompt() -> Prompt {
    Prompt::new(500_000, CHUNKS)
}

/// Not a test where it is run as one: what the child process does, step by step, as its parent
/// lets it.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let address: SocketAddr = address.parse().expect("the parent gives an address");
    let mut orders = std::io::stdin().lines();
    let mut next = || orders.next().map(|line| line.expect("the parent writes text"));
    let mut client = Bystander::join(address, VICTIM);
    let prompt = victims_prompt();
    let slots = client.prepare_store(&prompt);
    println!("\nchild: prepared");
    if next().is_none() {
        return;
    }
    slots.iter().for_each(|slot| client.write(*slot, &vec![0xee; CHUNK_BYTES]));
    let stored = client.commit_store(&prompt);
    println!("\nchild: stored {stored}");
    next();
    // As an engine does: it pings, is told, pings again, registers and goes on.
    let pings = [0; 2].map(|_| {
        let instance = Some(client.instance);
        client.ask(&Request::Ping { instance }).as_bool().expect("a ping is answered with a bool")
    });
    println!("\nchild: pings {pings:?}");
    next();
    let mut anew = Bystander::join(address, VICTIM);
    anew.round();
    anew.leave();
    println!("\nchild: served");
    next();
}

struct Victim {
    process: Child,
    orders: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Victim {
    fn start(server: &Server) -> Victim {
        let mut process = Command::new(std::env::current_exe().expect("tests have a path"))
            .args(["--exact", "deaths::child", "--nocapture"])
            .env(ADDRESS, server.request.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can be run again");
        let orders = process.stdin.take().expect("it is piped");
        let told = BufReader::new(process.stdout.take().expect("it is piped"));
        Victim { process, orders, told }
    }

    fn goes_on(&mut self) {
        writeln!(self.orders, "go on").expect("the child reads");
    }

    fn expect(&mut self, wanted: &str) {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(self.told.read_line(&mut line).expect("text") > 0, "it ended after {seen}");
            if let Some(told) = line.trim().strip_prefix("child: ") {
                assert_eq!(told, wanted);
                return;
            }
            seen += &line;
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the child runs");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn bytes(status: &Value, state: &str) -> u64 {
    status["kvtide"]["bytes"][state].as_u64().expect("a number")
}

const LENT: u64 = CHUNKS * CHUNK_BYTES as u64;

#[test]
fn p4_a_client_killed_between_prepare_and_commit_gives_its_slots_back_and_publishes_nothing() {
    let mut server = start_with(&["--l1-write-ttl-seconds", "600"]);
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    let mut victim = Victim::start(&server);
    victim.expect("prepared");
    until(&mut server, |status| bytes(status, "staged") == LENT);
    victim.signal(Signal::KILL);
    until(&mut server, |status| {
        (bytes(status, "staged"), bytes(status, "condemned")) == (0, 0)
            && status["kvtide"]["tickets"] == 0
    });
    assert_eq!(bystander.lookup(&victims_prompt()), 0, "nothing was published");
    bystander.end_session(&victims_prompt().request);
    // The range is free for others at once.
    bystander.store(&victims_prompt().renamed("heir"));
    bystander.expect_cached(&victims_prompt().renamed("reader"));
    expect_unharmed(server, bystander);
}

#[test]
fn p1_a_client_stopped_past_every_lifetime_that_goes_on_writing_harms_nobody() {
    let ttl = ["--l1-write-ttl-seconds", "1", "--l1-read-ttl-seconds", "1"];
    let reap = [
        "--worker-reap-timeout-seconds",
        "30",
        "--worker-registration-grace-seconds",
        "30",
        "--l1-size-gb",
        "0.03125",
    ];
    let mut server = start_with(&[&ttl[..], &reap].concat());
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    let mut victim = Victim::start(&server);
    victim.expect("prepared");
    victim.signal(Signal::STOP);
    until(&mut server, |status| bytes(status, "condemned") == LENT);
    // Silent for too long; the other one is not.
    until(&mut server, |status| {
        let instance = Some(bystander.instance);
        bystander.ask(&Request::Ping { instance });
        status["kvtide"]["instances"].get(VICTIM.to_string()).is_none()
    });
    // Half as much again as the pool holds: what is not lent has been used for something else.
    for seed in 0..12 {
        bystander.store(&Prompt::new(900_000 + seed, 64));
    }
    bystander.forget();
    let newest: Vec<Prompt> = (9..12).map(|seed| Prompt::new(900_000 + seed, 64)).collect();
    victim.signal(Signal::CONT);
    victim.goes_on();
    victim.expect("stored false");
    // With its commit it has said that it is done: its memory is back while its connection lives.
    until(&mut server, |status| bytes(status, "condemned") == 0);
    for prompt in &newest {
        bystander.expect_cached(&prompt.renamed(&format!("{}-after", prompt.request)));
    }
    assert_eq!(bystander.lookup(&victims_prompt()), 0, "nothing was published");
    bystander.end_session(&victims_prompt().request);
    victim.goes_on();
    victim.expect("pings [false, true]");
    victim.goes_on();
    victim.expect("served");
    victim.goes_on();
    drop(victim);
    until(&mut server, |status| bytes(status, "condemned") == 0);
    expect_unharmed(server, bystander);
}

#[test]
fn scheduler_and_worker_may_come_in_any_order_around_the_end_of_a_session() {
    let server = start();
    let mut worker = Bystander::join(server.request, 1);
    worker.round();
    let mut scheduler = Bystander::join(server.request, 2);
    for (number, order) in
        ["store last", "commit last", "retrieve last", "twice"].iter().enumerate()
    {
        let prompt = Prompt::new(700_000 + number as u64, 2);
        match *order {
            "store last" => {
                assert_eq!(scheduler.lookup(&prompt), 0);
                scheduler.end_session(&prompt.request);
                worker.store(&prompt);
            }
            "commit last" => {
                assert_eq!(scheduler.lookup(&prompt), 0);
                let slots = worker.prepare_store(&prompt);
                scheduler.end_session(&prompt.request);
                for (chunk, slot) in slots.iter().enumerate() {
                    worker.write(*slot, &prompt.bytes(chunk));
                }
                assert!(worker.commit_store(&prompt), "a store outlives its session");
            }
            "retrieve last" => {
                worker.store(&prompt);
                assert_eq!(scheduler.lookup(&prompt), 2);
                scheduler.end_session(&prompt.request);
                worker.expect_retrieved(&prompt);
            }
            _ => {
                worker.store(&prompt);
                scheduler.end_session(&prompt.request);
                scheduler.end_session(&prompt.request);
            }
        }
        worker.expect_cached(&prompt.renamed(&format!("{order}, read")));
    }
    assert_eq!(scheduler.client.call(&[b"p", PING, b"\xc0"]), [&b"p"[..], PING, b"\xc3"]);
    scheduler.leave();
    expect_unharmed(server, worker);
}

/// The tests' own servers differ only in what they are told.
#[test]
fn the_short_lifetimes_of_these_tests_do_not_disturb_who_behaves() {
    let server = start();
    let mut bystander = Bystander::join(server.request, 1);
    (0..10).for_each(|_| bystander.round());
    expect_unharmed(server, bystander);
}
