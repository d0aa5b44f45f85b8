//! `kvtide bench` against a server of its own: what a run prints and keeps, and that a server that
//! answers wrongly ends it.

use rustix::process::{Pid, Signal, getpgid, kill_process_group};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A server as a child, on ports of the system's choosing. Killed when dropped.
struct Server {
    child: Child,
    request: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    fn start(size_gb: &str) -> Server {
        Server::start_with(size_gb, &[])
    }

    fn start_with(size_gb: &str, more: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvtide"))
            .args(["server", "--host", "127.0.0.1", "--port", "0", "--http-port", "0"])
            .args(["--l1-size-gb", size_gb])
            .args(more)
            .env("LMCACHE_DISABLE_BANNER", "1")
            .env_remove("LMCACHE_LOG_LEVEL")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let log = BufReader::new(child.stderr.take().expect("its log was asked for"));
        let (mut request, mut admin) = (None, None);
        let mut lines = log.lines().map(|line| line.expect("the log is text"));
        while request.is_none() || admin.is_none() {
            let line = lines.next().expect("the server says where it listens");
            request = request.or(address_behind(&line, "cache server is running on "));
            admin = admin.or(address_behind(&line, "HTTP server initialized on "));
        }
        // Somebody has to go on reading, or the server waits for room in the pipe.
        thread::spawn(move || lines.for_each(drop));
        let (request, admin) = request.zip(admin).expect("both were found");
        Server { child, request, admin }
    }

    fn status(&self) -> Value {
        let mut stream = TcpStream::connect(self.admin).expect("the admin side listens");
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(body).expect("the body is JSON")
    }
}

fn address_behind(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, behind) = line.split_once(words)?;
    behind.split_whitespace().next()?.parse().ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A server that lies: it passes everything on, and changes what comes back.
fn liar(server: SocketAddr, lie: fn(&mut [u8])) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(server).expect("the server listens");
            client.set_nodelay(true).expect("an option of every socket");
            pass(&client, &server, |_| {});
            pass(&server, &client, lie);
        }
    });
    address
}

fn pass(from: &TcpStream, to: &TcpStream, change: impl Fn(&mut [u8]) + Send + 'static) {
    let mut from = from.try_clone().expect("a socket has copies");
    let mut to = to.try_clone().expect("a socket has copies");
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            change(&mut bytes[..count]);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
}

/// A server that says nothing any more once the gate is closed, until a client knocks again.
fn gated(server: SocketAddr, gate: Arc<Gate>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            gate.set(true);
            let server = TcpStream::connect(server).expect("the server listens");
            client.set_nodelay(true).expect("an option of every socket");
            pass(&client, &server, |_| {});
            let gate = Arc::clone(&gate);
            pass(&server, &client, move |_| gate.wait());
        }
    });
    address
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, open: bool) {
        *self.open.lock().expect("nobody panics with it") = open;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let open = self.open.lock().expect("nobody panics with it");
        drop(self.opened.wait_while(open, |open| !*open).expect("nobody panics with it"));
    }
}

fn bench(address: SocketAddr, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["bench", "--quick", "--url", &format!("tcp://{address}")])
        .args(arguments.split_whitespace())
        .output()
        .expect("the program was built")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the program writes text")
}

/// The run ended with 1, and says why in a line that names the server.
fn assert_failed(output: &Output, address: SocketAddr, why: &str) {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with(&format!("kvtide bench: tcp://{address}: ")), "{told}");
    assert!(last.contains(why), "{told}");
}

fn places(bytes: &[u8], pattern: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(pattern.len()).enumerate();
    windows.filter(|(_, window)| *window == pattern).map(|(at, _)| at + pattern.len()).collect()
}

#[test]
fn a_run_measures_every_part_keeps_every_figure_and_leaves_nothing_behind() {
    let (server, other) = (Server::start("0.13"), Server::start("0.13"));
    let json = std::env::temp_dir().join(format!("kvtide-bench-{}.json", std::process::id()));
    let output = bench(
        server.request,
        &format!(
            "--floor --vs tcp://{} --connections 1,4 --chunks 1,16 --object-kib 2048 \
             --name ours --vs-name theirs --json {}",
            other.request,
            json.display()
        ),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "no bar where there is no terminal");
    let tables = text(&output.stdout);
    for shown in ["ours against theirs", "ours against floor", "closed loop", "hit 16", "p99.9 us"]
    {
        assert!(tables.contains(shown), "{shown}: {tables}");
    }
    let kept = std::fs::read_to_string(&json).expect("the file was written");
    std::fs::remove_file(&json).ok();
    let kept: Value = serde_json::from_str(&kept).expect("the file is JSON");
    assert_eq!(kept["version"], 1);
    assert_eq!(kept["about"]["fault"], Value::Null);
    assert_eq!(kept["about"]["servers"][0]["pid"], server.child.id(), "found by its port");
    let rounds = kept["rounds"].as_array().expect("a list");
    let parts: BTreeSet<&str> = rounds.iter().filter_map(|each| each["part"].as_str()).collect();
    let all = ["bystander", "closed", "lookup", "memory", "noop", "open", "transfer"];
    assert_eq!(parts, BTreeSet::from(all));
    let floor = rounds.iter().filter(|each| each["server"] == "floor");
    let floor: BTreeSet<&str> = floor.filter_map(|each| each["part"].as_str()).collect();
    assert_eq!(floor, BTreeSet::from(["closed", "lookup", "noop", "open"]));
    for round in rounds {
        let figures = round["figures"].as_object().expect("an object");
        let known: Vec<f64> = figures.values().filter_map(Value::as_f64).collect();
        assert!(!known.is_empty() && known.iter().all(|each| *each >= 0.0), "{round}");
    }
    let closed = || rounds.iter().filter(|each| each["part"] == "closed");
    for name in ["requests_per_s", "p99_us", "server_cpu_us", "generator_cpu_us"] {
        let known = closed().filter_map(|each| each["figures"][name].as_f64());
        assert!(known.sum::<f64>() > 0.0, "{name}");
    }
    let status = server.status();
    assert_eq!(status["active_sessions"], 0);
    assert_eq!(status["registered_non_cuda_instance_ids"], Value::Array(Vec::new()));
}

#[test]
fn a_wrong_count_ends_the_run() {
    let server = Server::start("0.03");
    // The answer of wait_prefetch_status: operation 10, then 16.
    let lying = liar(server.request, |bytes| {
        for at in places(bytes, b"\x01\x01\x0a\x00\x01\x10") {
            bytes[at - 1] = 15;
        }
    });
    for parts in ["--parts closed --connections 2", "--parts lookup --chunks 16"] {
        let output = bench(lying, parts);
        assert_failed(&output, lying, "finds 15 chunks where 16 are stored");
        assert_eq!(text(&output.stdout).lines().filter(|line| line.contains("hit")).count(), 0);
    }
    let output = bench(server.request, "--parts closed --connections 2");
    assert_eq!(output.status.code(), Some(0), "the same server, asked without the liar");
}

#[test]
fn a_wrong_byte_ends_the_run() {
    let server = Server::start("0.13");
    // Two objects of a retrieve change places.
    let lying = liar(server.request, |bytes| {
        let retrieved = !places(bytes, b"\xa7success\xc3").is_empty();
        if let (true, [_, one, other, ..]) = (retrieved, &*places(bytes, b"\xa6offset\xce")) {
            let place = |at: usize| at..at + 4;
            let moved: Vec<u8> = bytes[place(*other)].to_vec();
            bytes[place(*one)].copy_from_slice(&moved);
        }
    });
    let output = bench(lying, "--parts transfer --object-kib 8192");
    assert_failed(&output, lying, "retrieved bytes are not those that were stored");
}

#[test]
fn servers_that_are_too_small_or_not_there_are_named() {
    let server = Server::start("0.03");
    let output = bench(server.request, "--parts transfer");
    assert_failed(&output, server.request, "too small for transfers of 64 MiB");
    let output = bench(server.request, "--parts closed --connections 1 --rate 0");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--rate"), "{}", text(&output.stderr));
    let address = server.request;
    drop(server);
    let output = bench(address, "");
    assert_failed(&output, address, "refused");
    let output = bench(address, "--json /nowhere/at/all.json");
    assert!(text(&output.stderr).contains("--json: /nowhere"), "{}", text(&output.stderr));
    let output = bench(address, &format!("--vs tcp://{address}"));
    assert!(text(&output.stderr).contains("--vs: transfers clear the cache"));
    let output = bench(address, "--server-pid 4194304");
    assert!(text(&output.stderr).contains("--server-pid: there is no process"));
}

#[test]
fn ctrl_c_leaves_nothing_behind_at_a_server_that_answers_late() {
    let server = Server::start("0.03");
    let gate = Arc::new(Gate::default());
    let slow = gated(server.request, Arc::clone(&gate));
    let child = Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["bench", "--url", &format!("tcp://{slow}"), "--floor"])
        .args(["--parts", "noop", "--seconds", "3600"])
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let nobody = Value::Array(Vec::new());
    // Some thousand looks are more than it takes to start.
    let registered = || server.status()["registered_non_cuda_instance_ids"].clone();
    let known = (0..LOOKS_MAX).any(|_| registered() != nobody);
    assert!(known, "the benchmark registers first");
    let floor = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
    let floor = floor.expect("the kernel tells").trim().parse().expect("it has one child");
    let floor = Pid::from_raw(floor).expect("no process is zero");
    assert_eq!(getpgid(Some(floor)), Ok(floor), "Ctrl-C at a terminal does not reach it");
    gate.set(false);
    let group = Pid::from_child(&child);
    kill_process_group(group, Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it is our child");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(registered(), nobody);
    assert_eq!(server.status()["active_sessions"], 0);
}

/// Far more looks at `/status` than anything takes.
const LOOKS_MAX: u32 = 20_000;

/// Objects in L1.
fn objects_of(status: &Value) -> Option<u64> {
    let l1 = &status["storage_manager"]["l1_manager"];
    l1["total_object_count"].as_u64()
}

#[test]
fn a_filled_server_holds_the_objects_and_one_that_is_too_small_is_found_out() {
    let places = ["--l1-objects-max", "8000", "--l1-align-bytes", "512"];
    let server = Server::start_with("0.13", &places);
    let fill = "--fill 5000 --parts lookup --chunks 16";
    let output = bench(server.request, fill);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let objects = objects_of(&server.status()).expect("a number");
    assert!((5016..=5100).contains(&objects), "{objects}");
    let output = bench(server.request, &format!("{fill} --fill-bytes 500"));
    assert_failed(&output, server.request, "no object of 500 bytes");
    let output = bench(server.request, "--fill 1");
    assert!(text(&output.stderr).contains("--fill: transfers clear the cache"));
    drop(server);
    let small = Server::start_with("0.03", &["--l1-objects-max", "3000"]);
    let output = bench(small.request, fill);
    assert_failed(&output, small.request, "--fill: ");
}

/// An empty folder below the system's, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Folder {
        let name = format!("kvtide-bench-{what}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).expect("the system's folder is there");
        folder
    }

    /// Objects at rest.
    fn objects(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("it is there");
        let files = entries.map(|entry| entry.expect("it can be read").path());
        files.filter(|file| file.extension().is_some_and(|end| end == "data")).collect()
    }

    /// A tier in it, as `--l2-adapter` takes it.
    fn adapter(&self) -> String {
        format!(r#"{{"type": "fs", "base_path": "{}", "max_capacity_gb": 1}}"#, self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn disks_are_stored_to_and_loaded_from_with_every_byte_compared() {
    let (folder, other_folder) = (Folder::new("one"), Folder::new("other"));
    let server = Server::start_with("0.13", &["--l2-adapter", &folder.adapter()]);
    let other = Server::start_with("0.13", &["--l2-adapter", &other_folder.adapter()]);
    let json = folder.0.join("figures.json");
    let output = bench(
        server.request,
        &format!(
            "--parts disk --object-kib 8192 --disk-lookups 2 --disk-dir {} --vs tcp://{} \
             --vs-disk-dir {} --name ours --vs-name theirs --json {}",
            folder.0.display(),
            other.request,
            other_folder.0.display(),
            json.display()
        ),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for shown in ["8 MiB", "128 x 256 KiB", "ours against theirs", "store GB/s", "hit p99 ms"] {
        assert!(tables.contains(shown), "{shown}: {tables}");
    }
    let kept = std::fs::read_to_string(&json).expect("the file was written");
    let kept: Value = serde_json::from_str(&kept).expect("the file is JSON");
    let rounds = kept["rounds"].as_array().expect("a list");
    assert_eq!(rounds.len(), 4, "two sizes at two servers");
    for round in rounds {
        let figures = round["figures"].as_object().expect("an object");
        for (name, figure) in figures {
            assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{name}: {round}");
        }
    }
    // Unmeasured and measured: 8 objects of 8 MiB, and two prompts of 128 chunks.
    for folder in [&folder, &other_folder] {
        assert_eq!(folder.objects().len(), 2 * (8 + 2 * 128));
    }
    let status = server.status();
    assert_eq!(status["active_sessions"], 0);
    assert_eq!(status["registered_non_cuda_instance_ids"], Value::Array(Vec::new()));
}

/// One byte of every object at rest is another one. The tier knows no digests that would tell.
#[test]
fn a_wrong_byte_from_a_disk_and_a_missing_hit_end_the_run() {
    let folder = Folder::new("wrong");
    let flips = format!(
        r#"{{"type": "fault_inject", "flip_rate": 1, "verify": false, "inner": {}}}"#,
        folder.adapter()
    );
    let disk = format!("--parts disk --object-kib 8192 --disk-dir {}", folder.0.display());
    let server = Server::start_with("0.13", &["--l2-adapter", &flips]);
    let output = bench(server.request, &disk);
    assert_failed(&output, server.request, "bytes from its lower tier are not those");
    let status = server.status();
    assert_eq!(status["active_sessions"], 0, "what was open is ended");
    drop(server);
    let checked = flips.replace(r#""verify": false"#, r#""verify": true"#);
    let server = Server::start_with("0.13", &["--l2-adapter", &checked]);
    let output = bench(server.request, &disk);
    assert_failed(&output, server.request, "finds 0 chunks where 8 are at rest");
    assert_eq!(server.status()["active_sessions"], 0, "what was open is ended");
    let output = bench(server.request, "--parts disk");
    assert!(text(&output.stderr).contains("--parts disk needs --disk-dir"));
    let output = bench(server.request, &format!("{disk} --fio /nowhere/at/all"));
    assert!(text(&output.stderr).contains("--fio: /nowhere/at/all"));
}
