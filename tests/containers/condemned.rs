//! Clients that take slots and stop for good.

use crate::client::{Client, Prompt, SAMPLE, SAMPLE_CHUNKS, Shape};
use crate::launch::{SMALL, grown, start, status, stop, until};
use kvtide_tests::http;
use std::net::SocketAddr;

const MIB: u64 = 1 << 20;
/// Chunks of 1 MiB.
const SHAPE: Shape = Shape { model: "m", chunk_size: 64, layers: 32, hidden: 128 };

#[test]
fn p3_clients_that_stop_past_their_ttl_keep_no_more_than_the_bound() {
    let ttl = ["--l1-write-ttl-seconds", "1"];
    let mut server = start(&[&SMALL[..], &SAMPLE_CHUNKS, &ttl].concat());
    grown(&mut server);
    // Ten clients want 100 MiB of a pool of 64 MiB, and never commit.
    let mut stopped = Vec::new();
    let mut lent = 0;
    for number in 0..10 {
        let (mut client, _) = Client::registered(server.request, number, SHAPE);
        let slots = client.prepare_store(&Prompt::new(number as u32, 10, SHAPE));
        lent += slots.map_or(0, |slots| slots.len() as u64);
        stopped.push(client);
    }
    assert_eq!(lent, 32, "half of the pool");
    let server_admin = server.admin;
    let bytes = |status: &serde_json::Value| status["kvtide"]["bytes"].clone();
    let held = until(&mut server, |status| bytes(status)["condemned"] == 32 * MIB);
    assert_eq!(bytes(&held)["lent"], 32 * MIB);
    assert_eq!(bytes(&held)["lent_max"], 32 * MIB);
    // The gauges are told once a second.
    until(&mut server, |_| condemned_on_page(server_admin) == Some((32 * MIB) as f64));

    // Slots are refused; bytes inside messages still find the other half, and lookups are served.
    let (mut client, _) = Client::registered(server.request, 100, SHAPE);
    let prompt = Prompt::new(100, 3, SHAPE);
    assert_eq!(client.prepare_store(&prompt), None, "a context without slots");
    let (mut inline, _) = Client::registered(server.request, 101, SAMPLE);
    for number in 101..120 {
        assert!(inline.store_inline(&Prompt::new(number, 2, SAMPLE)));
    }
    inline.expect_inline(&Prompt::new(119, 2, SAMPLE));
    assert_eq!(bytes(&status(&server))["condemned"], 32 * MIB);

    // With their connections their memory comes back.
    drop(stopped);
    until(&mut server, |status| bytes(status)["condemned"] == 0);
    assert_eq!(client.prepare_store(&prompt).map(|slots| slots.len()), Some(3));
    assert!(client.commit_store(&prompt, b""));
    assert_eq!(client.lookup(&prompt), 3);
    drop((client, inline));
    stop(server);
}

fn condemned_on_page(admin: SocketAddr) -> Option<f64> {
    let page = http::get(admin, "/metrics").expect("the admin side answers").body;
    let gauge = page.lines().find(|line| line.starts_with("kvtide_l1_condemned_bytes"))?;
    gauge.rsplit(' ').next()?.parse().ok()
}
