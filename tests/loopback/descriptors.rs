//! Alone in its process, because it takes all of the process's descriptors away.

#[allow(dead_code, reason = "the other loopback tests need the rest")]
mod harness;

use harness::{Client, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;

#[test]
fn without_descriptors_newcomers_are_turned_away_and_others_served() {
    let server = Server::start();
    let mut client = Client::open(server.address);
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(200), maximum: limit.maximum };
    setrlimit(Resource::Nofile, few).expect("a soft limit can be lowered");
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // The one that the newcomer itself needs.
    files.pop();
    for turned_away in 1..=3 {
        Client::connect(server.address).expect_closed();
        client.expect_served();
        let status = server.status();
        assert_eq!(status.counters.turned_away_descriptors, turned_away);
        assert_eq!(status.connections, 1);
    }
    drop(files);
    Client::open(server.address).expect_served();
}
