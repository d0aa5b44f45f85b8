//! Every captured answer of the peer's HTTP API that this version serves, against the real admin
//! thread over a socket. Values are compared as JSON; what must differ is named where it differs.

#[path = "http_bounds.rs"]
mod bounds;

use kvtide::admin::{
    Admin, Ask, Options, Reach, ReactorSeen, Seen, Teller, Times, Unreachable, View,
};
use kvtide::arena::Machine;
use kvtide::cli::{Asked, Settings, Start, parse};
use kvtide::sockets::Bound;
use kvtide_core::config::{Config, TransferModes};
use kvtide_core::effect::{OperatorAnswer, Refusal};
use kvtide_core::engine::Status;
use kvtide_core::engine::clients::Mode;
use kvtide_core::engine::status::{InstanceStatus, RefusedRegistration};
use kvtide_core::names::{Dtype, InstanceId, Layout};
use kvtide_core::time::{Duration, Instant};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Stands in for the reactor and telemetry.
#[derive(Default)]
struct Scripted {
    seen: Mutex<Seen>,
    asked: Mutex<Vec<Ask>>,
    /// Neither asks nor looks are answered.
    silent: bool,
    /// Asks alone are not answered.
    deaf: bool,
    /// The mailbox is full.
    full: bool,
    age: Duration,
    times: Times,
}

impl Reach for Scripted {
    fn ask(&self, ask: Ask, answer: Teller<OperatorAnswer>) -> Result<(), Unreachable> {
        if self.full {
            return Err(Unreachable::Busy);
        }
        if self.silent || self.deaf {
            // Kept for ever, like a question to a reactor that hangs.
            std::mem::forget(answer);
            return Ok(());
        }
        self.asked.lock().expect("nobody panics here").push(ask.clone());
        let mut seen = self.seen.lock().expect("nobody panics here");
        let quotas = &mut seen.engine.quotas;
        let before = quotas.len();
        answer(match ask {
            Ask::Clear { .. } => OperatorAnswer::Done,
            Ask::QuotaSet { salt, bytes } => {
                quotas.retain(|(known, _)| *known != salt);
                quotas.push((salt, bytes));
                OperatorAnswer::Done
            }
            Ask::QuotaRemove { salt } => {
                quotas.retain(|(known, _)| *known != salt);
                OperatorAnswer::Removed(quotas.len() < before)
            }
        });
        Ok(())
    }

    fn look(&self, answer: Teller<Seen>) -> Result<(), Unreachable> {
        if self.silent {
            std::mem::forget(answer);
            return Ok(());
        }
        answer(self.seen.lock().expect("nobody panics here").clone());
        Ok(())
    }

    fn pulse(&self, answer: Teller<ReactorSeen>) -> Result<(), Unreachable> {
        if self.silent {
            std::mem::forget(answer);
            return Ok(());
        }
        answer(self.seen.lock().expect("nobody panics here").reactor.clone());
        Ok(())
    }

    fn quota_of(&self, wanted: String, answer: Teller<Option<u64>>) -> Result<(), Unreachable> {
        self.look(Box::new(move |seen| {
            let found = seen.engine.quotas.iter().find(|(salt, _)| *salt == wanted);
            answer(found.map(|(_, bytes)| *bytes));
        }))
    }

    fn quotas(&self, answer: Teller<Vec<(String, u64)>>) -> Result<(), Unreachable> {
        self.look(Box::new(move |seen| answer(seen.engine.quotas)))
    }

    fn last_turn_age(&self) -> Duration {
        self.age
    }

    fn metrics_page(&self, reactor: Option<&ReactorSeen>, _: u64) -> String {
        let answered = reactor.is_some();
        format!("a_metric 1\nreactor_answered {answered}\n")
    }
}

struct Server {
    admin: Admin,
    http: SocketAddr,
    metrics: SocketAddr,
    scripted: Arc<Scripted>,
}

impl Server {
    fn with(scripted: Scripted, config: Config, document: Value) -> Server {
        let scripted = Arc::new(scripted);
        let patience = Duration::from_millis(if scripted.silent { 20 } else { 60_000 });
        let patience = if scripted.deaf { bounds::NEVER } else { patience };
        let times = scripted.times;
        let view = View::new(config);
        let options = Options { reach: scripted.clone(), view, document, patience, times };
        let http = Bound::bind("127.0.0.1", 0).expect("some port is free");
        let metrics = Bound::bind("127.0.0.1", 0).expect("some port is free");
        let addresses = (http.address(), metrics.address());
        let admin = Admin::start(http, Some(metrics), options).expect("the thread starts");
        Server { admin, http: addresses.0, metrics: addresses.1, scripted }
    }

    fn new() -> Server {
        Server::with(Scripted::default(), Config::default(), Value::Null)
    }

    fn get(&self, path: &str) -> Answer {
        exchange(self.http, "GET", path, b"")
    }

    /// Sends the request of a capture.
    fn replay(&self, golden: &Value) -> Answer {
        let request = &golden["request"];
        let body = match (&request["raw"], &request["json"]) {
            (Value::String(raw), _) => raw.clone(),
            (_, Value::Null) => String::new(),
            (_, json) => json.to_string(),
        };
        let text = |key: &str| request[key].as_str().expect("a request has both").to_owned();
        exchange(self.http, &text("method"), &text("path"), body.as_bytes())
    }

    /// Replays a capture and compares all of it.
    fn same(&self, name: &str) {
        let golden = golden(name);
        let answer = self.replay(&golden);
        assert_eq!(golden["status"], answer.status, "{name}: {answer:?}");
        assert_eq!(golden["content_type"], *answer.content_type(), "{name}");
        match golden.get("json") {
            Some(json) => assert_eq!(*json, answer.json(), "{name}"),
            None => assert_eq!(golden["text"], answer.body, "{name}"),
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    fn content_type(&self) -> &str {
        self.header("content-type")
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn exchange(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{kind}content-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the server reads");
    stream.write_all(body).expect("the server reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the server answers with text");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    let headers = headers.collect();
    Answer { status: status.expect("an answer has a status"), headers, body: body.to_owned() }
}

fn golden(name: &str) -> Value {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/http");
    let text = std::fs::read_to_string(folder.join(format!("server_{name}.json")));
    serde_json::from_str(&text.expect("the capture is in the folder")).expect("it is JSON")
}

/// Everything in `peer` is in `ours`, but for paths that are masked: there only the kind of value
/// must be the same. `ours` may say more.
fn compare(path: &str, peer: &Value, ours: &Value, masked: &[&str]) {
    if masked.contains(&path) {
        let kind = |value: &Value| std::mem::discriminant(value);
        assert_eq!(kind(peer), kind(ours), "{path}: {ours}");
        return;
    }
    match (peer, ours) {
        (Value::Object(peer), Value::Object(ours)) => {
            for (key, value) in peer {
                let path = format!("{path}/{key}");
                let Some(our) = ours.get(key) else { panic!("{path} is missing") };
                compare(&path, value, our, masked);
            }
        }
        (Value::Array(peer), Value::Array(ours)) if peer.len() == ours.len() => {
            for (at, (peer, our)) in peer.iter().zip(ours).enumerate() {
                compare(&format!("{path}/{at}"), peer, our, masked);
            }
        }
        _ => assert_eq!(peer, ours, "{path}"),
    }
}

/// Keys that the peer does not have, by path.
fn added(path: &str, peer: &Value, ours: &Value, found: &mut Vec<String>) {
    let (Value::Object(peer), Value::Object(ours)) = (peer, ours) else { return };
    for (key, value) in ours {
        let path = format!("{path}/{key}");
        match peer.get(key) {
            Some(peer) => added(&path, peer, value, found),
            None => found.push(path),
        }
    }
}

#[test]
fn constants_and_conventions_are_the_peers() {
    let server = Server::new();
    for name in ["root", "healthcheck", "lmc_version", "periodic_threads_health", "404", "405"] {
        server.same(name);
    }
    server.same("metrics_reset");
    for name in ["version", "commit_id"] {
        let (golden, answer) = (golden(name), server.replay(&golden(name)));
        assert_eq!((answer.status, answer.content_type()), (200, "application/json"));
        let (peer, ours) = (golden["json"].clone(), answer.json());
        assert!(ours.is_string() && peer.is_string(), "{name} is a bare string");
    }
    let version = server.get("/version").json();
    let version = version.as_str().expect("the version is text").to_owned();
    assert!(version.starts_with("0.5.6-"), "clients compare the beginning: {version}");
}

#[test]
fn clearing_answers_as_the_peer_and_reaches_the_engine() {
    let server = Server::new();
    for name in ["default", "force", "l2_400", "badjson_422", "badtype_422"] {
        server.same(&format!("cache_clear_{name}"));
    }
    let asked = server.scripted.asked.lock().expect("nobody panics here").clone();
    assert_eq!(asked, [Ask::Clear { force: false }, Ask::Clear { force: true }]);
}

#[test]
fn quotas_answer_as_the_peers_and_reach_the_engine() {
    let server = Server::new();
    for name in ["list_empty", "put", "get", "put_default", "list", "delete", "delete_absent"] {
        server.same(&format!("quota_{name}"));
    }
    for name in ["get_absent", "put_atsign", "put_long", "put_numeric_string"] {
        server.same(&format!("quota_{name}"));
    }
    let errors = ["badjson", "nan", "negative", "nokey", "nonnumeric"];
    errors.iter().for_each(|name| server.same(&format!("quota_put_{name}_400")));
    server.same("quota_put_slash_404");
    let asked = server.scripted.asked.lock().expect("nobody panics here").clone();
    let set = |salt: &str, bytes| Ask::QuotaSet { salt: salt.to_owned(), bytes };
    assert_eq!(asked[0], set("alice", 3 << 29));
    assert_eq!(asked[1], set("", 2 << 30), "_default is the empty salt");
    assert_eq!(asked[2], Ask::QuotaRemove { salt: "alice".to_owned() });
    assert_eq!(asked[4], set("a@b", 1 << 30));
    assert_eq!(asked.len(), 7, "what is refused reaches nobody");
}

#[test]
fn a_tenants_use_of_lower_tiers_is_a_number_and_nothing_today() {
    let golden = golden("quota_usage_isolated");
    let server = Server::new();
    server.scripted.seen.lock().expect("nobody panics here").engine.quotas.clear();
    let answer = server.replay(&golden).json();
    compare("", &golden["json"], &answer, &["/current_usage_gb"]);
    assert_eq!(answer["current_usage_gb"], 0.0);
}

#[test]
fn a_salt_has_a_longest_length() {
    let server = Server::new();
    let path = format!("/quota/{}", "x".repeat(1025));
    let answer = exchange(server.http, "PUT", &path, br#"{"limit_gb": 1}"#);
    assert_eq!((answer.status, answer.json()["error"].is_string()), (400, true));
    assert!(server.scripted.asked.lock().expect("nobody panics here").is_empty());
}

#[test]
fn what_is_never_served_is_not_found() {
    let server = Server::new();
    let golden = golden("run_script_disabled_404");
    let answer = server.replay(&golden);
    assert_eq!(golden["status"], answer.status);
    assert_eq!(golden["content_type"], *answer.content_type());
    assert_eq!(server.get("/env").status, 404);
    assert_eq!(server.get("/threads").status, 404);
}

#[test]
fn a_trailing_slash_is_led_away_and_other_methods_are_refused() {
    let server = Server::new();
    let answer = server.get("/quota/alice/?x=1");
    let location = format!("http://{}/quota/alice?x=1", server.http);
    assert_eq!((answer.status, answer.header("location")), (307, &*location));
    assert_eq!(server.get("/nope/").status, 404);
    assert_eq!(server.get("//evil.example/").status, 404);
    assert_eq!(exchange(server.http, "HEAD", "/healthcheck", b"").status, 200);
    assert_eq!(exchange(server.http, "HEAD", "/status", b"").status, 405);
    assert_eq!(exchange(server.http, "OPTIONS", "/status", b"").status, 405);
    assert_eq!(exchange(server.http, "POST", "/metrics", b"").status, 405);
}

/// The configuration of the capture, by the command line that it was started with.
fn settings(line: &str) -> Settings {
    let args = format!("kvtide server {line}");
    let args = args.split_whitespace().map(Into::into).collect();
    let Ok(Asked::Serve { flags, .. }) = parse(args) else { panic!("{line} does not parse") };
    let shm = kvtide::arena::SharedMount::Free(8 << 30);
    let machine = Machine { memory_bytes: 8 << 30, shm, huge_free_bytes: 0 };
    let (environment, random_id) = (&|_: &str| None, "an-id");
    let start = Start { environment, machine, seed: 7, random_id, wall_nanos: 1 };
    Settings::resolve(&flags, start).expect("the line is a configuration")
}

const CAPTURED: &str = "--port 27555 --chunk-size 16 --l1-size-gb 1 --eviction-policy LRU \
    --no-l1-use-lazy --supported-transfer-mode lmcache_driven --http-port 27080 \
    --instance-id a67cf726-a43a-45fc-98a4-99a8569fa67c";

#[test]
fn the_configuration_has_the_peers_names_and_values() {
    let settings = settings(CAPTURED);
    let server = Server::with(Scripted::default(), settings.engine, settings.document);
    let mut golden = golden("config");
    let answer = server.replay(&golden);
    assert_eq!(answer.status, 200);
    // The capture's server has a lower tier.
    golden["json"]["storage_manager"]["l2_adapter_config"]["adapters"] = json!([]);
    assert_eq!(golden["json"], answer.json());
}

#[test]
fn adapters_are_a_list() {
    let golden = golden("config_adapters");
    let answer = Server::new().replay(&golden);
    assert_eq!(golden["status"], answer.status);
    assert_eq!(answer.json(), json!({ "adapters": [] }));
}

/// What a server with lower tiers, and with KV events, says differently.
const MASKED: &[&str] = &[
    "/storage_manager/l2_adapters",
    "/storage_manager/num_l2_adapters",
    "/storage_manager/prefetch_controller/num_l2_adapters",
    "/storage_manager/prefetch_controller/num_active_adapters",
    "/storage_manager/store_controller/num_l2_adapters",
    "/storage_manager/store_controller/num_active_adapters",
    "/storage_manager/store_controllers/_default/num_l2_adapters",
    "/storage_manager/store_controllers/_default/num_active_adapters",
    "/kv_events/enabled",
    "/kv_events/incarnation",
    "/kv_events/log_capacity",
    "/kv_events/unbound_stores",
];

fn l1_of(objects: u64, used: u64) -> Status {
    Status {
        objects,
        used_bytes: used,
        total_bytes: 1 << 30,
        configured_bytes: 1 << 30,
        ..Status::default()
    }
}

fn status_of(engine: Status, modes: TransferModes) -> Value {
    let seen = Seen { engine, reactor: ReactorSeen::default() };
    let scripted = Scripted { seen: Mutex::new(seen), ..Scripted::default() };
    let config = Config { transfer_modes: modes, ..settings(CAPTURED).engine };
    Server::with(scripted, config, Value::Null).get("/status").json()
}

#[test]
fn an_empty_server_has_the_peers_status() {
    let ours = status_of(l1_of(0, 0), TransferModes::ServerDriven);
    let peer = &golden("status_empty")["json"];
    compare("", peer, &ours, MASKED);
    let mut more = Vec::new();
    added("", peer, &ours, &mut more);
    more.sort_unstable();
    assert_eq!(more, ["/kvtide", "/storage_manager/eviction_controller"]);
}

#[test]
fn a_server_with_an_instance_has_the_peers_status() {
    let layout = Layout {
        planes: 2,
        layers: 4,
        slots: 16,
        hidden: 64,
        dtype: Dtype::named("float16").expect("it is a type"),
    };
    let instance = InstanceStatus {
        id: InstanceId(1000),
        model: "test-model".to_owned(),
        world_size: 1,
        block_size: 16,
        layout,
        mode: Mode::SharedMemory,
        pinged: true,
        silent_for: Duration::from_secs(3),
    };
    let engine = Status { instances: vec![instance], ..l1_of(72, 1_179_648) };
    let ours = status_of(engine, TransferModes::Auto);
    compare("", &golden("status_engine_driven")["json"], &ours, MASKED);
    assert_eq!(ours["kvtide"]["instances"]["1000"]["transfer"], "shared_memory");
    assert_eq!(ours["kvtide"]["instances"]["1000"]["bytes_per_chunk"], 16_384);
}

#[test]
fn a_family_that_is_not_served_omits_its_keys() {
    let engine_driven = status_of(l1_of(0, 0), TransferModes::EngineDriven);
    assert!(engine_driven.get("cache_context_meta").is_none());
    assert!(engine_driven.get("non_cuda_context_meta").is_some());
    let server_driven = status_of(l1_of(0, 0), TransferModes::ServerDriven);
    assert!(server_driven.get("non_cuda_context_meta").is_none());
}

#[test]
fn a_refused_registration_shows_with_its_reason() {
    let refused = RefusedRegistration {
        at: Instant::from_secs(2),
        instance: InstanceId(7),
        model: "m".to_owned(),
        reason: Refusal::ServerDriven,
    };
    let engine = Status {
        refused_registrations: vec![refused],
        refused_registrations_total: 3,
        condemned_bytes: 4096,
        ..l1_of(0, 0)
    };
    let ours = &status_of(engine, TransferModes::Auto)["kvtide"];
    let refusals = &ours["refused_registrations"];
    assert_eq!((&refusals["total"], &ours["bytes"]["condemned"]), (&json!(3), &json!(4096)));
    let last = &refusals["last"][0];
    assert_eq!((&last["instance_id"], &last["reason"]), (&json!(7), &json!("server_driven")));
    let text = last["text"].as_str().expect("a reason has words");
    assert!(text.contains("mp_transfer_mode=engine_driven"), "it says what to set: {text}");
}

#[test]
fn a_reactor_that_stands_still_is_told_from_one_that_is_slow() {
    let slow = Scripted { age: Duration::from_secs(5), ..Scripted::default() };
    let slow = Server::with(slow, Config::default(), Value::Null);
    assert_eq!(slow.get("/livez").status, 200);
    let stuck = Scripted { age: Duration::from_millis(5001), silent: true, ..Scripted::default() };
    let stuck = Server::with(stuck, Config::default(), Value::Null);
    assert_eq!(stuck.get("/livez").status, 503);
    assert_eq!(stuck.get("/readyz").status, 503);
    let health = stuck.get("/periodic-threads-health").json();
    assert_eq!(health["unhealthy_threads"], json!(["reactor"]));
    assert_eq!(stuck.get("/healthcheck").status, 200, "as the peer's, which asks nobody");
    let status = stuck.get("/status");
    assert_eq!((status.status, status.json()["error"].is_string()), (503, true));
    let clear = exchange(stuck.http, "POST", "/cache/clear", b"");
    assert_eq!((clear.status, clear.json()["detail"].is_string()), (503, true));
}

#[test]
fn a_full_mailbox_is_an_answer() {
    let full = Scripted { full: true, ..Scripted::default() };
    let full = Server::with(full, Config::default(), Value::Null);
    assert_eq!(exchange(full.http, "DELETE", "/quota/a", b"").status, 503);
}

#[test]
fn a_server_that_is_ending_is_alive_but_not_ready() {
    let reactor = ReactorSeen { stopping: true, ..ReactorSeen::default() };
    let seen = Mutex::new(Seen { reactor, ..Seen::default() });
    let ending = Scripted { seen, ..Scripted::default() };
    let ending = Server::with(ending, Config::default(), Value::Null);
    assert_eq!((ending.get("/livez").status, ending.get("/readyz").status), (200, 503));
    assert_eq!(Server::new().get("/readyz").status, 200);
}

#[test]
fn metrics_are_text_and_the_second_listener_has_nothing_else() {
    let server = Server::new();
    let text = "text/plain; charset=utf-8";
    for (address, path) in
        [(server.http, "/metrics"), (server.metrics, "/metrics"), (server.metrics, "/status")]
    {
        let answer = exchange(address, "GET", path, b"");
        assert_eq!(
            (answer.status, answer.content_type(), &*answer.body),
            (200, text, "a_metric 1\nreactor_answered true\n")
        );
    }
}

#[test]
fn the_thread_ends_although_a_client_holds_its_connection() {
    let server = Server::new();
    let mut held = TcpStream::connect(server.http).expect("the server listens");
    held.write_all(b"GET /half HTTP/1.1\r\n").expect("the server reads");
    let address = server.http;
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}
