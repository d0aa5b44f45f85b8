//! Clients that take slots and stop for good.

use crate::client::{Client, Prompt, Shape};
use crate::launch::{SMALL, start, status, stop, until};
use kvtide_tests::http;

const MIB: u64 = 1 << 20;
/// Chunks of 1 MiB.
const SHAPE: Shape = Shape { chunk_size: 256, layers: 8, hidden: 128 };

#[test]
fn p3_clients_that_stop_past_their_ttl_keep_no_more_than_the_bound() {
    let mut server = start(&[&SMALL[..], &["--l1-write-ttl-seconds", "1"]].concat());
    until(&mut server, |status| status["kvtide"]["pool"]["usable_bytes"] == 64 * MIB);
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
    let bytes = |status: &serde_json::Value| status["kvtide"]["bytes"].clone();
    let held = until(&mut server, |status| bytes(status)["condemned"] == 32 * MIB);
    assert_eq!(bytes(&held)["lent"], 32 * MIB);
    assert_eq!(bytes(&held)["lent_max"], 32 * MIB);
    let page = http::get(server.admin, "/metrics").expect("the admin side answers").body;
    let gauge = page.lines().find(|line| line.starts_with("kvtide_l1_condemned_bytes"));
    let gauge = gauge.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert_eq!(gauge, Some((32 * MIB) as f64), "{page}");

    // Slots are refused; bytes inside messages still find the other half, and lookups are served.
    let (mut client, _) = Client::registered(server.request, 100, SHAPE);
    let prompt = Prompt::new(100, 3, SHAPE);
    assert_eq!(client.prepare_store(&prompt), None, "a context without slots");
    for number in 101..120 {
        assert!(client.store_inline(&Prompt::new(number, 3, SHAPE)));
    }
    client.expect_inline(&Prompt::new(119, 3, SHAPE));
    assert_eq!(bytes(&status(&server))["condemned"], 32 * MIB);

    // With their connections their memory comes back.
    drop(stopped);
    until(&mut server, |status| bytes(status)["condemned"] == 0);
    assert_eq!(client.prepare_store(&prompt).map(|slots| slots.len()), Some(3));
    assert!(client.commit_store(&prompt, b""));
    assert_eq!(client.lookup(&prompt), 3);
    drop(client);
    stop(server);
}
