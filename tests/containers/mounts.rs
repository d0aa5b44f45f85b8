//! `/dev/shm` as container engines make it: small, missing, read-only, or filling up.

use crate::client::{Client, Prompt, SAMPLE, SAMPLE_CHUNKS};
use crate::launch::{
    contained, fails, grown, memory_limit, started, status, stop, until, warning, warnings,
};
use std::path::PathBuf;

const SMALL_MOUNT: &str = "mount -t tmpfs -o size=64m none /dev/shm\n";
const READ_ONLY_MOUNT: &str = "mount -t tmpfs -o ro,size=2g none /dev/shm\n";
/// A `/dev` with the devices that a program needs and nothing else.
const NO_MOUNT: &str = "D=$(mktemp -d)\n\
    mount -t tmpfs none $D\n\
    for f in null zero random urandom; do : > $D/$f; mount --bind /dev/$f $D/$f; done\n\
    mount --rbind $D /dev\n";

/// One warning, private memory, and bytes inside messages.
fn serves_inside_messages(script: &str, told: &[&str]) {
    let script = memory_limit(512) + script;
    let Some(launch) = contained(&["--mount"], &script) else { return };
    let mut server = started(&launch, &SAMPLE_CHUNKS);
    let warning = warning(&mut server);
    assert!(told.iter().all(|part| warning.contains(part)), "{warning}");
    let pool = &status(&server)["kvtide"]["pool"];
    assert_eq!((&pool["kind"], &pool["name"]), (&"private".into(), &().into()));
    assert_eq!(pool["configured_bytes"], 256 << 20, "half of the memory limit");
    grown(&mut server);
    let (mut client, name) = Client::registered(server.request, 1, SAMPLE);
    assert_eq!(name, "", "there is nothing to map");
    let prompt = Prompt::new(1, 2, SAMPLE);
    assert_eq!(client.prepare_store(&prompt), None);
    assert!(client.store_inline(&prompt));
    client.expect_inline(&prompt);
    stop(server);
}

/// Where it was asked for, with the only clients that would need it.
fn refuses_what_was_asked_for(script: &str, told: &[&str]) {
    let script = memory_limit(512) + script;
    let Some(launch) = contained(&["--mount"], &script) else { return };
    for asked in [["--l1-size-gb", "0.125"], ["--shm-name", "x"]] {
        let mode = ["--supported-transfer-mode", "engine_driven"];
        let (code, output) = fails(launch(), &[asked, mode].concat());
        assert_eq!(code, 3, "{output}");
        assert!(told.iter().all(|part| output.contains(part)), "{output}");
    }
}

#[test]
fn f49_a_mount_of_64_mib_means_private_memory_and_one_warning() {
    serves_inside_messages(SMALL_MOUNT, &["64.0 MiB", "256.0 MiB", "--shm-size"]);
}

#[test]
fn f49_a_mount_of_64_mib_is_refused_where_more_was_asked_for() {
    refuses_what_was_asked_for(SMALL_MOUNT, &["64.0 MiB", "engine_driven"]);
}

#[test]
fn f49_without_a_mount_memory_is_private_or_the_start_refused() {
    serves_inside_messages(NO_MOUNT, &["there is no /dev/shm", "256.0 MiB"]);
    refuses_what_was_asked_for(NO_MOUNT, &["there is no /dev/shm"]);
}

#[test]
fn f49_a_read_only_mount_is_as_good_as_none() {
    serves_inside_messages(READ_ONLY_MOUNT, &["Read-only", "256.0 MiB"]);
    refuses_what_was_asked_for(READ_ONLY_MOUNT, &["Read-only"]);
}

/// The server has looked at the mount and found enough; then somebody else takes the room. What is
/// missing stays away until it is back.
#[test]
fn f49_a_mount_that_fills_up_while_l1_grows_stops_it_until_there_is_room() {
    // Stopped at its first sign of a segment, the server finds the mount all but full. One of its
    // threads may finish a step while it is being stopped, so the rest is counted again.
    let script = "mount -t tmpfs -o size=260m none /dev/shm\n\
        (set +e\n\
        while ! [ -e /dev/shm/lmcache_l1_pool_filling ]; do :; done\n\
        kill -STOP $$\n\
        for try in 1 2 3 4 5 6 7 8; do\n\
        free=$(df --output=avail -B1 /dev/shm | tail -n 1)\n\
        fallocate -l $((free - 3145728)) /dev/shm/filler && break\n\
        done\n\
        kill -CONT $$) &\n";
    let Some(launch) = contained(&["--mount"], script) else { return };
    let whole = 256 << 20;
    let named = ["--l1-size-gb", "0.25", "--shm-name", "filling"];
    let mut server = started(&launch, &[&named[..], &SAMPLE_CHUNKS].concat());
    let short = until(&mut server, |status| !pool(status)["waits_for_memory"].is_null());
    let usable = pool(&short)["usable_bytes"].as_u64().expect("a number");
    assert!(usable >= 2 << 20 && usable < whole, "{short}");
    let why = pool(&short)["waits_for_memory"].as_str().expect("a text");
    assert!(why.contains("No space left"), "{why}");
    let warning = warning(&mut server);
    assert!(warning.contains("256.0 MiB") && warning.contains("No space left"), "{warning}");

    // What is there is served, and what does not fit is said so.
    let (mut client, name) = Client::registered(server.request, 1, SAMPLE);
    assert_eq!(name, "lmcache_l1_pool_filling");
    let prompt = Prompt::new(1, 2, SAMPLE);
    assert_eq!(client.prepare_store(&prompt).map(|slots| slots.len()), Some(2));
    assert!(client.commit_store(&prompt, b""));
    assert_eq!(client.lookup(&prompt), 2);

    // What the server sees as its `/`.
    let folder = PathBuf::from(format!("/proc/{}/root", server.id())).join("dev/shm");
    std::fs::remove_file(folder.join("filler")).expect("the script made it");
    until(&mut server, |status| {
        pool(status)["usable_bytes"] == whole && pool(status)["waits_for_memory"].is_null()
    });
    assert_eq!(client.lookup(&prompt), 2);
    assert_eq!(warnings(&server.log()).len(), 1, "{}", server.log());
    stop(server);
}

/// Two pools do not fit: the second start has to remove what the first left before it looks how
/// much room there is.
#[test]
fn f49_after_a_kill_the_next_start_has_the_room_of_the_pool_that_was_left() {
    let script = "mount -t tmpfs -o size=200m none /dev/shm\n\
        \"$0\" \"$@\" --port 0 --http-port 0 2>/dev/null &\n\
        while [ $(df --output=avail -B1M /dev/shm | tail -n 1) -gt 80 ]; do kill -0 $!; done\n\
        kill -KILL $!\n\
        wait $! || true\n";
    let Some(launch) = contained(&["--mount"], script) else { return };
    let asked = ["--l1-size-gb", "0.125", "--supported-transfer-mode", "engine_driven"];
    for name in [&[][..], &["--shm-name", "left"]] {
        let mut server = started(&launch, &[&asked[..], name].concat());
        grown(&mut server);
        assert_eq!(pool(&status(&server))["kind"], "shared", "{}", server.log());
        assert!(server.log().contains("left behind"), "{}", server.log());
        stop(server);
    }
}

fn pool(status: &serde_json::Value) -> &serde_json::Value {
    &status["kvtide"]["pool"]
}
