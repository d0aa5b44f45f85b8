//! What somebody with access to `/dev/shm` does to a live server's segment.

use crate::client::{Client, Prompt, SAMPLE, SAMPLE_CHUNKS};
use crate::launch::{
    SMALL, grown, pool_name, segment, start, status, unique, until, warning, warnings,
};
use std::fs;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn f49_a_segment_cut_short_ends_the_server_before_it_serves_what_is_lost() {
    let socket = std::env::temp_dir().join(unique("torn"));
    let named = ["--ipc-path", socket.to_str().expect("it is text")];
    let mut server = start(&[&SMALL[..], &SAMPLE_CHUNKS, &named].concat());
    grown(&mut server);
    assert!(socket.exists());
    let (mut client, name) = Client::registered(server.request, 1, SAMPLE);
    let prompt = Prompt::new(1, 2, SAMPLE);
    assert!(client.store_inline(&prompt));
    client.expect_inline(&prompt);
    let path = segment(&name);
    let file = fs::File::options().write(true).open(&path).expect("it is this user's");
    file.set_len(4096).expect("so it can be cut");
    // By its own decision and with a last word, not by a signal.
    assert_eq!(server.wait(PATIENCE), Ok(Some(3)), "{}", server.log());
    assert!(server.log().contains("cut short from outside"), "{}", server.log());
    assert!(!path.exists() && !socket.exists(), "it leaves nothing behind");
}

#[test]
fn f49_a_segment_whose_name_is_removed_is_told_of_and_served() {
    // A name that no other start sweeps.
    let named = ["--shm-name", &unique("unnamed")];
    let mut server = start(&[&SMALL[..], &SAMPLE_CHUNKS, &named].concat());
    grown(&mut server);
    let name = pool_name(&server).expect("it is shared");
    let (mut client, _) = Client::registered(server.request, 1, SAMPLE);
    let prompt = Prompt::new(1, 2, SAMPLE);
    assert!(client.store_inline(&prompt));
    fs::remove_file(segment(&name)).expect("it is this user's");
    until(&mut server, |status| status["kvtide"]["pool"]["name_removed"] == true);
    let warning = warning(&mut server);
    assert!(warning.contains(&name), "{warning}");
    client.expect_inline(&prompt);
    // Whoever has the name now keeps it.
    fs::write(segment(&name), b"somebody else's").expect("the name is free");
    assert_eq!(status(&server)["is_healthy"], true);
    stop_leaving(server);
    assert!(segment(&name).exists());
    fs::remove_file(segment(&name)).expect("the test made it");
}

/// The map still names the segment that was removed, so it is looked at by hand.
fn stop_leaving(server: kvtide_tests::server::Server) {
    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "{}", stopped.log);
    assert_eq!(warnings(&stopped.log).len(), 1, "{}", stopped.log);
}

#[test]
fn a_server_that_ends_in_order_finds_nothing_wrong_with_its_segment() {
    let server = start(&SMALL);
    let log = server.stop().unwrap_or_else(|why| panic!("{why}")).log;
    assert_eq!(warnings(&log), [""; 0], "{log}");
}
