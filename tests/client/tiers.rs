//! Lower tiers by the real client: what L1 evicts comes back from disk, whatever ends the server;
//! where a disk fails, tears, flips bits or fills up, there are misses and never a wrong byte.

use super::{POOL, verdict};
use kvtide_tests::client::{Client, Install, switched_off};
use kvtide_tests::load::{self, Tally};
use kvtide_tests::server::Server;
use kvtide_tests::{binary, metrics};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A client, a server's binary, and a folder that goes with its test.
struct Bed {
    client: Client,
    binary: PathBuf,
    folder: PathBuf,
}

impl Bed {
    /// None where the client is switched off.
    fn new(test: &str) -> Option<Bed> {
        if switched_off() {
            println!("left out: KVTIDE_WITHOUT_CLIENT=1");
            return None;
        }
        let name = format!("kvtide-client-tiers-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("the name is free");
        let client = Client::have(Install::Lean).unwrap_or_else(|why| panic!("{why}"));
        let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
        Some(Bed { client, binary, folder })
    }

    /// `fs` in a folder below ours, with these keys beside.
    fn files(&self, more: Value) -> Value {
        let mut spec = json!({ "type": "fs", "base_path": self.folder.join("objects") });
        let keys = more.as_object().expect("more keys");
        keys.iter().for_each(|(key, value)| spec[key] = value.clone());
        spec
    }

    fn start(&self, pool: &[&str], adapter: &Value) -> Server {
        let adapter = adapter.to_string();
        let arguments = [pool, &["--l2-adapter", &adapter]].concat();
        Server::start(&self.binary, &arguments).unwrap_or_else(|why| panic!("{why}"))
    }

    /// A scenario of `drive.py` by name, all of its checks passed. Nothing is waited for between
    /// two stores, nor between the last one and the first read.
    fn drive(&self, server: &Server, scenario: &str) {
        let arguments = ["--l2", "--l2-pace", "0", "--l2-settle", "0", "--run-id", "tiers"];
        let run = self.client.drive_with(server, scenario, &arguments);
        let run = run.unwrap_or_else(|why| panic!("{why}"));
        println!("{}", run.output);
        let is_proven = run.code == 0 && !run.out_of_time && verdict(&run.output, scenario);
        assert!(is_proven, "{scenario} failed; the server says:\n{}", server.log());
    }

    /// A run of `tiers.py` with these words.
    fn load(&self, server: &Server, words: &str) -> Tally {
        let words = format!("--model documents {words}");
        let tally = load::run(&self.client, server, &words);
        let tally = tally.unwrap_or_else(|why| panic!("{why}; it says:\n{}", server.log()));
        println!("{words}: {tally:?}");
        assert_eq!(tally.broken, 0, "what a lookup has promised is there:\n{}", server.log());
        tally
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn adapter(status: &Value) -> &Value {
    &status["storage_manager"]["l2_adapters"][0]["kvtide"]
}

fn bytes(status: &Value, name: &str) -> u64 {
    adapter(status)[name].as_u64().expect("it is a count")
}

/// Until nothing waits to be stored or is on its way.
fn at_rest(server: &mut Server) -> Value {
    let counts = ["stores_waiting", "stores_in_flight", "loads_in_flight", "orders_in_flight"];
    let rested = server.until(|status| counts.iter().all(|count| bytes(status, count) == 0));
    rested.unwrap_or_else(|why| panic!("{why}"))
}

fn metric(server: &Server, family: &str, labels: &[&str]) -> u64 {
    let page = server.metrics().unwrap_or_else(|why| panic!("{why}"));
    metrics::sum(&page, family, labels) as u64
}

fn stop(server: Server) {
    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((stopped.code, stopped.segments_left), (143, vec![]), "{}", stopped.log);
    assert!(!stopped.log.contains("panicked"), "{}", stopped.log);
}

/// Whether the kernel gives this process a ring. Asked without anything of ours.
fn may_have_rings() -> bool {
    // `struct io_uring_params` has 120 bytes; zeros ask for nothing particular.
    let mut parameters = [0_u64; 15];
    // SAFETY: the call writes at most 120 bytes into what is as long; the descriptor is closed.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if ring < 0 {
        return false;
    }
    // SAFETY: it was opened above and nobody else knows it.
    unsafe { libc::close(ring as i32) };
    true
}

/// Whether this process, and the server that it starts, may lock all of L1.
fn may_lock_memory() -> bool {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    let sets = capabilities(None).expect("they can be asked for");
    let limit = getrlimit(Resource::Memlock).current;
    sets.effective.contains(CapabilitySet::IPC_LOCK) || limit.is_none_or(|limit| limit >= 1 << 30)
}

fn is_direct_possible(folder: &Path) -> bool {
    let path = folder.join("direct");
    let mut options = File::options();
    options.create(true).append(true).custom_flags(libc::O_DIRECT);
    let opened = options.open(&path).is_ok();
    std::fs::remove_file(&path).ok();
    opened
}

/// As fast as the kernel allows, by a look of our own at what it allows, and not one byte of
/// payload by a slower way.
fn expect_the_fast_way(bed: &Bed, status: &Value, moved: u64) {
    let io = &adapter(status)["io"];
    let (rings, direct) = (may_have_rings(), is_direct_possible(&bed.folder));
    let registered = rings && may_lock_memory();
    assert_eq!(io["engine"], if rings { "io_uring" } else { "threads" }, "{io:#}");
    assert_eq!((&io["direct"], &io["registered"]), (&json!(direct), &json!(registered)), "{io:#}");
    if rings && direct && registered {
        assert_eq!(io["reason"], "", "{io:#}");
        for fallback in ["direct_bytes", "buffered_bytes", "thread_bytes"] {
            assert_eq!(io[fallback], 0, "{io:#}");
        }
        assert!(io["registered_direct_bytes"].as_u64() >= Some(moved), "{moved} in {io:#}");
    } else {
        println!("not all of io_uring, direct and registered can be had here: {io}");
        assert_ne!(io["reason"], "", "{io:#}");
    }
}

/// Broke elsewhere: a short absence erased what lay on disk from the index, though the files were
/// intact. Here every byte is there again after a kill, after a stop, and without any index.
#[test]
fn f13_what_lies_below_is_there_after_a_kill_after_a_stop_and_without_its_index() {
    let Some(bed) = Bed::new("restarts") else { return };
    let spec = bed.files(json!({}));
    let mut server = bed.start(POOL, &spec);
    bed.drive(&server, "l2");
    let status = at_rest(&mut server);
    let (stored, objects) = (bytes(&status, "used_bytes"), bytes(&status, "objects"));
    assert!(stored > 600 << 20 && objects > 600, "{:#}", adapter(&status));
    expect_the_fast_way(&bed, &status, stored);
    server.kill().unwrap_or_else(|why| panic!("{why}"));

    let verify = |after: &str| {
        let mut server = bed.start(POOL, &spec);
        bed.drive(&server, "l2-verify");
        let status = at_rest(&mut server);
        assert_eq!(bytes(&status, "used_bytes"), stored, "after {after}");
        assert_eq!(bytes(&status, "objects"), objects, "after {after}");
        expect_the_fast_way(&bed, &status, stored);
        let left = metric(&server, "kvtide_l2_digest_mismatches_total", &[]);
        assert_eq!(left, 0, "after {after}");
        server
    };
    stop(verify("a kill"));
    stop(verify("a stop"));
    let own = bed.folder.join("objects/.kvtide");
    let mut indexes = 0;
    for entry in std::fs::read_dir(own).expect("it was made") {
        let path = entry.expect("it can be read").path();
        if path.extension().is_some_and(|extension| extension == "idx") {
            std::fs::remove_file(path).expect("it is ours");
            indexes += 1;
        }
    }
    assert!(indexes > 0, "there was an index");
    stop(verify("the loss of the index"));
}

/// The server is killed while files are being written: those have no object's name, so that nobody
/// ever takes one for whole, and go with the next start.
#[test]
fn i20_a_kill_amid_stores_leaves_whole_objects_and_nothing_else() {
    let Some(bed) = Bed::new("amid") else { return };
    let (spec, folder) = (bed.files(json!({})), bed.folder.join("objects"));
    let (mut amid, mut whole) = (0, 0);
    for round in 0..ROUNDS_MAX {
        let mut server = bed.start(SMALL, &spec);
        assert_eq!(temporary(&folder), 0, "what the one before has left is gone");
        let first = round * 100;
        let words = format!("--model documents --do store --first {first} --end {}", first + 100);
        let run = load::start(&bed.client, &server, &words).unwrap_or_else(|why| panic!("{why}"));
        // After some objects, as files are being written almost always.
        server
            .until(|status| bytes(status, "objects") > whole + 40)
            .unwrap_or_else(|why| panic!("{why}"));
        server.kill().unwrap_or_else(|why| panic!("{why}"));
        drop(run);
        amid += u64::from(temporary(&folder) > 0);
        let files = objects(&folder);
        for file in &files {
            let size = file.metadata().expect("it is there").len();
            assert_eq!(size, OBJECT_BYTES, "{}", file.display());
        }
        whole = files.len() as u64;
        if amid >= 3 {
            break;
        }
    }
    assert!(amid > 0, "in {ROUNDS_MAX} rounds no store was cut");
    let mut server = bed.start(SMALL, &spec);
    let read = bed.load(&server, &format!("--do read --end {}", ROUNDS_MAX * 100));
    assert!(read.hit > 0, "{read:?}");
    assert_eq!(bytes(&at_rest(&mut server), "objects"), whole, "and all of them are right");
    let mismatches = metric(&server, "kvtide_l2_digest_mismatches_total", &[]);
    assert_eq!(mismatches, 0);
    stop(server);
}

const ROUNDS_MAX: u64 = 10;
/// Of `tiers.py`, where nothing else is said.
const OBJECT_BYTES: u64 = 512 << 10;

/// Files of stores that have not ended.
fn temporary(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).expect("it was made");
    let names = names.map(|entry| entry.expect("it can be read").file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".tmp")).count()
}

const SMALL: &[&str] = &["--l1-size-gb", "0.0625", "--eviction-policy", "LRU"];
/// Documents of 2 MiB, twelve times what `SMALL` holds.
const DOCUMENTS: u64 = 384;

#[test]
fn of_a_working_set_ten_times_l1_nine_tenths_come_from_disk() {
    let Some(bed) = Bed::new("working-set") else { return };
    let mut server = bed.start(SMALL, &bed.files(json!({})));
    let stored = bed.load(&server, &format!("--do store --end {DOCUMENTS}")).stored;
    assert_eq!(stored, DOCUMENTS * 4, "there is room for all");
    at_rest(&mut server);
    let tally = bed.load(&server, &format!("--do read --steps 400 --end {DOCUMENTS} --seed 1"));
    assert_eq!((tally.asked, tally.hit), (1600, 1600), "nothing is lost");
    let loaded = metric(&server, "kvtide_l2_load_ends_total", &["end=\"loaded\""]);
    assert!(loaded * 10 >= tally.hit * 9, "{loaded} of {} chunks come from disk", tally.hit);
    let counted = metric(&server, "lmcache_mp_lookup_hit_l2_keys_total", &[]);
    assert_eq!(counted, loaded, "each is promised once and loaded once");
    let status = at_rest(&mut server);
    expect_the_fast_way(&bed, &status, (stored + loaded) << 19);
    stop(server);
}

/// Broke elsewhere: after errors below, checksum failures were returned for ever. Here what is bad
/// is a miss, is counted, is stored again, and nobody is told anything wrong.
#[test]
fn f32_what_fails_tears_or_flips_below_is_a_miss_and_never_a_wrong_byte() {
    let Some(bed) = Bed::new("faults") else { return };
    let inner = bed.files(json!({}));
    let spec = json!({
        "type": "fault_inject", "inner": inner, "seed": 7, "latency_ms": 2,
        "error_rate": 0.05, "torn_rate": 0.1, "flip_rate": 0.1,
    });
    let mut server = bed.start(SMALL, &spec);
    bed.load(&server, "--do store --end 120");
    at_rest(&mut server);
    let tally = bed.load(&server, "--do churn --steps 400 --end 120 --seed 2");
    assert!(tally.hit > 400, "most of it is served all the same: {tally:?}");
    assert!(tally.hit < tally.asked, "some of it cannot be: {tally:?}");
    at_rest(&mut server);
    let mismatches = metric(&server, "kvtide_l2_digest_mismatches_total", &[]);
    let failed = metric(&server, "kvtide_l2_load_ends_total", &["end=\"io\""]);
    let short = metric(&server, "kvtide_l2_load_ends_total", &["end=\"other_size\""]);
    let counts = (mismatches, failed, short);
    assert!(mismatches > 0 && failed > 0 && short > 0, "{counts:?} of each kind are counted");
    stop(server);

    // Without the faults, what was torn or flipped at rest is still no answer.
    let mut server = bed.start(SMALL, &bed.files(json!({})));
    let tally = bed.load(&server, "--do read --end 120");
    assert!(tally.hit > 0, "{tally:?}");
    at_rest(&mut server);
    stop(server);
}

/// Bad files that are kept for somebody to look at (docs/disk-format.md).
const QUARANTINED_MAX: u64 = 64;

/// Real bits in real files, while the server is away.
#[test]
fn f32_a_hundred_files_with_a_flipped_bit_are_misses_and_then_stored_again() {
    let Some(bed) = Bed::new("flipped") else { return };
    let spec = bed.files(json!({}));
    let mut server = bed.start(SMALL, &spec);
    bed.load(&server, "--do store --end 100");
    at_rest(&mut server);
    stop(server);
    for path in objects(&bed.folder.join("objects")).iter().step_by(4) {
        let file = File::options().read(true).write(true).open(path).expect("it is ours");
        let mut byte = [0];
        file.read_exact_at(&mut byte, 300_001).expect("it has so many bytes");
        file.write_all_at(&[byte[0] ^ 0x10], 300_001).expect("it is ours");
        file.sync_all().expect("it is written");
    }
    let mut server = bed.start(SMALL, &spec);
    let read = bed.load(&server, "--do read --end 100");
    assert!(read.hit > 0 && read.hit < read.asked, "{read:?}");
    at_rest(&mut server);
    // What lies behind a bad chunk is met only when that one is good again.
    for _ in 0..4 {
        bed.load(&server, "--do churn --end 100");
        at_rest(&mut server);
    }
    let read = bed.load(&server, "--do read --end 100");
    assert_eq!(read.hit, read.asked, "all of it is stored again");
    let mismatches = metric(&server, "kvtide_l2_digest_mismatches_total", &[]);
    // The oldest of them go in the order of what is noted, of which nothing is left after a stop.
    stop(server);
    let aside = std::fs::read_dir(bed.folder.join("objects/.kvtide/quarantine"));
    let aside = aside.expect("it was made").count() as u64;
    assert_eq!((mismatches, aside), (100, QUARANTINED_MAX), "each is counted once and put aside");
}

/// The files of all objects, in the order of their names.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("it was made");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let is_object = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "data");
    let mut paths: Vec<PathBuf> = paths.filter(is_object).collect();
    paths.sort();
    paths
}

/// A file system of its own on a loop device, which goes with its test.
struct Disk(PathBuf);

impl Disk {
    /// None, with a line, where this user may not mount or has no such device.
    fn mount(bed: &Bed, mebibytes: u64) -> Option<Disk> {
        let (image, at) = (bed.folder.join("image"), bed.folder.join("objects"));
        std::fs::create_dir(&at).expect("the folder is ours");
        let file = File::create(&image).expect("the folder is ours");
        file.set_len(mebibytes << 20).expect("a file may have holes");
        let run = |command: &mut Command| match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        };
        // With a journal, blocks of deleted files are free only when it has committed: whether a
        // disk is full would be a matter of time.
        let options = ["-q", "-m", "0", "-O", "^has_journal"];
        let made = run(Command::new("mkfs.ext4").args(options).arg(&image))
            .and_then(|()| run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at)));
        match made {
            Ok(()) => Some(Disk(at)),
            Err(why) => {
                println!("left out: no loop device can be mounted here ({})", why.trim());
                None
            }
        }
    }

    /// Bytes of blocks that are in use.
    fn used_bytes(&self) -> u64 {
        let usage = rustix::fs::statvfs(&self.0).expect("it is mounted");
        (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// Broke elsewhere: tiers without a bound wrote until the volume was full. Here three times the
/// volume passes by an adapter of which nothing but its path was said.
#[test]
fn f19_three_times_a_volume_stay_within_it_where_no_bound_was_given() {
    let Some(bed) = Bed::new("no-bound") else { return };
    let Some(disk) = Disk::mount(&bed, 100) else { return };
    let mut server = bed.start(SMALL, &bed.files(json!({})));
    let empty = disk.used_bytes();
    let capacity = bytes(&server.status().expect("it is told"), "capacity_bytes");
    assert!((50 << 20..100 << 20).contains(&capacity), "{capacity} bytes of a hundred MiB");
    // 300 MiB in parts, so that the bound is looked at on the way, too.
    for first in (0..150).step_by(30) {
        bed.load(&server, &format!("--do store --first {first} --end {}", first + 30));
        let status = at_rest(&mut server);
        let used = bytes(&status, "used_bytes");
        assert!(used <= capacity, "{used} of {capacity}");
        assert!(disk.used_bytes() <= empty + capacity + (2 << 20), "what is counted is there");
    }
    let no_space = metric(&server, "kvtide_l2_store_ends_total", &["end=\"no_space\""]);
    assert_eq!(no_space, 0, "it never came to that");
    server.kill().unwrap_or_else(|why| panic!("{why}"));
    let server = bed.start(SMALL, &bed.files(json!({})));
    let newest = bed.load(&server, "--do read --first 140 --end 150");
    assert_eq!(newest.hit, newest.asked, "the newest stay");
    let oldest = bed.load(&server, "--do read --first 0 --end 50");
    assert_eq!(oldest.hit, 0, "the oldest go");
    stop(server);
    drop(disk);
}

/// Others fill the volume, too: what was a bound when the server started is none any more.
#[test]
fn f19_a_volume_that_is_full_before_its_bound_makes_room_and_goes_on() {
    let Some(bed) = Bed::new("full") else { return };
    let Some(disk) = Disk::mount(&bed, 100) else { return };
    let spec = bed.files(json!({ "max_capacity_gb": 0.08 }));
    let mut server = bed.start(SMALL, &spec);
    let ballast = File::create(disk.0.join("of-somebody-else")).expect("there is room");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&ballast, flags, 0, 40 << 20).expect("there is room");
    let mut last = 0;
    for first in (0..150).step_by(30) {
        bed.load(&server, &format!("--do store --first {first} --end {}", first + 30));
        at_rest(&mut server);
        let stored = metric(&server, "kvtide_l2_store_ends_total", &["end=\"stored\""]);
        assert!(stored > last, "it goes on: {last}");
        last = stored;
    }
    let no_space = metric(&server, "kvtide_l2_store_ends_total", &["end=\"no_space\""]);
    assert!(no_space > 0, "the disk was full");
    let churn = bed.load(&server, "--do churn --steps 100 --end 150 --seed 3");
    assert!(churn.hit > 0 && churn.stored > 0, "{churn:?}");
    let status = at_rest(&mut server);
    assert_eq!(adapter(&status)["state"], "ready");
    server.kill().unwrap_or_else(|why| panic!("{why}"));
    // No server is started with a bound that the volume cannot hold.
    drop(ballast);
    std::fs::remove_file(disk.0.join("of-somebody-else")).expect("it was made above");
    let server = bed.start(SMALL, &spec);
    let again = bed.load(&server, "--do read --end 150");
    assert!(again.hit > 0, "{again:?}");
    stop(server);
    drop(disk);
}
