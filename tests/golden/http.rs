//! Every captured answer of the peer's HTTP API that this version serves, against the real admin
//! thread over a socket. Values are compared as JSON; what must differ is named where it differs.

#[path = "http_bounds.rs"]
mod bounds;
#[path = "http_memory.rs"]
mod memory;

use kvtide::admin::{
    Admin, Ask, Options, Reach, ReactorSeen, Seen, Teller, Times, Unreachable, View, Wanted,
};
use kvtide::arena::Machine;
use kvtide::cli::{Asked, Settings, Start, parse};
use kvtide::paged::{SumFault, Summed, Wanted as SumWanted};
use kvtide::sockets::Bound;
use kvtide::tiers::files::status::TierStatus;
use kvtide_core::config::{Config, PolicyKind, TransferModes};
use kvtide_core::effect::{OperatorAnswer, Refusal};
use kvtide_core::engine::Status;
use kvtide_core::engine::adapters::operator::{AdapterCare, AdapterStatus, Listed, Page};
use kvtide_core::engine::clients::Mode;
use kvtide_core::engine::status::{InstanceStatus, QuotaStatus, RefusedRegistration};
use kvtide_core::fact::AdapterState;
use kvtide_core::names::{AdapterId, ChunkHash, Dtype, InstanceId, KvRank, Layout};
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
                quotas.retain(|known| known.salt != salt);
                quotas.push(quota(&salt, bytes));
                OperatorAnswer::Done
            }
            Ask::QuotaRemove { salt } => {
                quotas.retain(|known| known.salt != salt);
                OperatorAnswer::Removed(quotas.len() < before)
            }
            // Everything is there, below L1.
            Ask::Delete { keys, adapter, .. } => {
                let deleted = if adapter.is_some() { keys.len() as u32 } else { 0 };
                OperatorAnswer::Deleted { deleted, skipped: 0 }
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

    fn quota_of(&self, wanted: String, answer: Teller<QuotaStatus>) -> Result<(), Unreachable> {
        self.look(Box::new(move |seen| {
            let none = QuotaStatus { limit_bytes: None, ..quota(&wanted, 0) };
            let mut quotas = seen.engine.quotas.into_iter();
            answer(quotas.find(|quota| quota.salt == wanted).unwrap_or(none));
        }))
    }

    fn quotas(&self, answer: Teller<Vec<QuotaStatus>>) -> Result<(), Unreachable> {
        self.look(Box::new(move |seen| answer(seen.engine.quotas)))
    }

    fn adapters(&self, answer: Teller<Vec<AdapterStatus>>) -> Result<(), Unreachable> {
        self.look(Box::new(move |seen| answer(seen.engine.adapters)))
    }

    /// Ten objects of one model lie in every adapter.
    fn objects(&self, wanted: Wanted, answer: Teller<Option<Page>>) -> Result<(), Unreachable> {
        let end = wanted.from.saturating_add(wanted.most as u32).min(10);
        let objects = (wanted.from..end).map(|at| Listed {
            model: "meta/llama".into(),
            salt: "s".into(),
            rank: KvRank(0x0100_0100),
            group: 0,
            hash: ChunkHash([at as u8; 32]),
            bytes: 4096,
        });
        let objects =
            objects.filter(|of| wanted.model.as_ref().is_none_or(|name| **name == *of.model));
        let next = (end < 10).then_some(end);
        answer(Some(Page { objects: objects.collect(), next }));
        Ok(())
    }

    fn sum(
        &self,
        instance: InstanceId,
        wanted: SumWanted,
        answer: Teller<Result<Summed, SumFault>>,
    ) -> Result<(), Unreachable> {
        if self.full {
            return Err(Unreachable::Busy);
        }
        answer(memory::sum(instance, wanted));
        Ok(())
    }

    fn last_turn_age(&self) -> Duration {
        self.age
    }

    fn metrics_page(&self, reactor: Option<&ReactorSeen>, _: u64) -> String {
        let answered = reactor.is_some();
        format!("a_metric 1\nreactor_answered {answered}\n")
    }
}

fn quota(salt: &str, bytes: u64) -> QuotaStatus {
    QuotaStatus { salt: salt.to_owned(), limit_bytes: Some(bytes), used_bytes: 0 }
}

/// An adapter of this type at this place of the roster.
fn adapter(number: u16, name: &str) -> AdapterStatus {
    AdapterStatus {
        id: AdapterId(number),
        name: name.to_owned(),
        state: AdapterState::Ready,
        is_scanned: true,
        is_asked: true,
        policy: PolicyKind::Lru,
        watermark_ppm: 800_000,
        ratio_ppm: 200_000,
        capacity_bytes: 1 << 30,
        used_bytes: 1_179_648,
        objects: 72,
        objects_max: 1 << 20,
        tenants: 2,
        stores_in_flight: 0,
        loads_in_flight: 0,
        stores_waiting: 0,
        flights: 0,
        care: AdapterCare::default(),
    }
}

fn with_adapters(names: &[&str]) -> Scripted {
    let list = names.iter().enumerate().map(|(at, name)| adapter(at as u16, name));
    let engine = Status { adapters: list.collect(), ..Status::default() };
    Scripted { seen: Mutex::new(Seen { engine, ..Seen::default() }), ..Scripted::default() }
}

struct Server {
    admin: Admin,
    http: SocketAddr,
    metrics: SocketAddr,
    scripted: Arc<Scripted>,
}

impl Server {
    fn with(scripted: Scripted, config: Config, document: Value) -> Server {
        Server::with_view(scripted, View::new(config, Vec::new()), document)
    }

    fn with_view(scripted: Scripted, view: View, document: Value) -> Server {
        let scripted = Arc::new(scripted);
        let patience = Duration::from_millis(if scripted.silent { 20 } else { 60_000 });
        let patience = if scripted.deaf { bounds::NEVER } else { patience };
        let times = scripted.times;
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
fn a_tenant_uses_lower_tiers_with_or_without_a_limit() {
    let golden = golden("quota_usage_isolated");
    let server = Server::new();
    let bytes = (0.000701904296875 * (1_u64 << 30) as f64) as u64;
    let used = QuotaStatus { limit_bytes: None, used_bytes: bytes, ..quota("", 0) };
    server.scripted.seen.lock().expect("nobody panics here").engine.quotas = vec![used];
    assert_eq!(server.replay(&golden).json(), golden["json"]);
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
    let settings = settings(&format!("{CAPTURED} --l2-adapter {FS}"));
    let server = Server::with(Scripted::default(), settings.engine, settings.document);
    let golden = golden("config");
    let answer = server.replay(&golden);
    assert_eq!(answer.status, 200);
    let (peer, ours) = (&golden["json"], answer.json());
    // A tier without an order has one all the same (F19), and bytes pass by the page cache.
    let adapter = "/storage_manager/l2_adapter_config/adapters/0";
    let others = [format!("{adapter}/eviction_config"), format!("{adapter}/use_odirect")];
    let eviction =
        ours["storage_manager"]["l2_adapter_config"]["adapters"][0]["eviction_config"].clone();
    let expected =
        json!({ "eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2 });
    assert_eq!(eviction, expected);
    let mut ours = ours;
    for path in &others {
        let value = ours.pointer_mut(path).expect("the adapter has it");
        *value = peer.pointer(path).expect("so has the peer's").clone();
    }
    compare("", peer, &ours, &[]);
    let mut more = Vec::new();
    added("", peer, &ours, &mut more);
    assert_eq!(more, ["/storage_manager/prefill_tokens_per_second"], "beside what adapters have");
}

/// The adapter of the capture.
const FS: &str = r#"{"type":"fs","base_path":"/var/kvtide/l2"}"#;
const TWO: [&str; 2] = [
    r#"{"type":"mock","max_size_gb":1,"mock_bandwidth_gb":1}"#,
    r#"{"type":"fs","base_path":"/var/kvtide/l2a","use_odirect":false}"#,
];

#[test]
fn adapters_are_listed_and_the_first_is_the_primary_one() {
    let with = |names| Server::with(with_adapters(names), Config::default(), Value::Null);
    with(&["fs"]).same("config_adapters");
    with(&["mock", "fs"]).same("config_adapters_two");
    let none = Server::new().get("/config/adapters");
    assert_eq!((none.status, none.json()), (200, json!({ "adapters": [] })));
}

#[test]
fn objects_are_listed_page_by_page_for_every_type() {
    let server = Server::with(with_adapters(&["mock", "fs"]), Config::default(), Value::Null);
    server.same("cache_objects_adapter_404");
    server.same("cache_objects_pagesize_422");
    server.same("cache_objects_tier_bad_422");
    server.same("cache_objects_tier_l1_400");
    // Where the peer says that it cannot.
    for name in ["fs_503", "fs_unlisted_503", "mock"] {
        let golden = golden(&format!("cache_objects_{name}"));
        assert_eq!((golden["status"].as_u64(), server.replay(&golden).status), (Some(503), 200));
    }
    let (mut path, mut found) = ("/cache/objects?page_size=4&adapter=fs".to_owned(), Vec::new());
    loop {
        let page = server.get(&path).json();
        assert_eq!((&page["adapter"], &page["shared"]), (&json!("fs"), &json!(false)));
        found.extend(page["entries"].as_array().expect("a list").clone());
        let Some(token) = page["next_page_token"].as_str() else { break };
        path = format!("/cache/objects?page_size=4&adapter=fs&page_token={token}");
    }
    assert_eq!(found.len(), 10);
    let key = json!({
        "chunk_hash_hex": "09".repeat(32),
        "model_name": "meta/llama",
        "kv_rank": 16_777_472,
        "object_group_id": 0,
        "cache_salt": "s",
    });
    assert_eq!(found[9], json!({ "key": key, "size_bytes": 4096 }));
    let wrong = server.get("/cache/objects?adapter=fs&page_token=0.4");
    assert_eq!((wrong.status, wrong.json()["detail"].is_string()), (400, true), "of another");
    let wrong = server.replay(&golden("cache_objects_pagetoken_fs_503"));
    assert_eq!(wrong.status, 400);
    let none = server.get("/cache/objects?model_name=other").json();
    assert_eq!(none["entries"], json!([]));
    assert_eq!(server.get("/cache/objects?adapter=1").json()["adapter"], "fs", "by its place");
    let none = Server::new().get("/cache/objects");
    assert_eq!((none.status, none.json()["detail"].is_string()), (503, true));
}

#[test]
fn objects_are_deleted_by_name_and_what_is_wrong_is_told_as_the_peer_does() {
    let server = Server::with(with_adapters(&["fs"]), Config::default(), Value::Null);
    for name in ["absent_all_force", "absent_l1", "absent_l2", "badhex_400", "empty_keys"] {
        server.same(&format!("cache_delete_{name}"));
    }
    server.same("cache_delete_missing_422");
    server.same("cache_delete_nobody_422");
    let asked = server.scripted.asked.lock().expect("nobody panics here").clone();
    let hows: Vec<_> = asked
        .iter()
        .map(|ask| match ask {
            Ask::Delete { keys, from_l1, adapter, force } => {
                (keys.len(), *from_l1, *adapter, *force)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let first = Some(AdapterId(0));
    assert_eq!(hows, [(1, true, first, true), (1, true, None, false), (1, false, first, false)]);
}

#[test]
fn a_list_of_ten_thousand_keys_is_taken_and_one_more_refused() {
    let server = Server::with(with_adapters(&["fs"]), Config::default(), Value::Null);
    let key = json!({ "chunk_hash_hex": "ab".repeat(32), "model_name": "m", "kv_rank": 1 });
    let body = |keys: usize| json!({ "keys": vec![key.clone(); keys] }).to_string().into_bytes();
    let answer = exchange(server.http, "DELETE", "/cache/objects", &body(10_000));
    assert_eq!((answer.status, answer.json()["deleted"].as_u64()), (200, Some(10_000)));
    let answer = exchange(server.http, "DELETE", "/cache/objects", &body(10_001));
    let detail = "too many keys in a single request (limit=10000, got=10001)";
    assert_eq!((answer.status, answer.json()), (400, json!({ "detail": detail })));
    let longest = server
        .scripted
        .asked
        .lock()
        .expect("nobody panics here")
        .iter()
        .map(|ask| match ask {
            Ask::Delete { keys, .. } => keys.len(),
            other => panic!("{other:?}"),
        })
        .max();
    assert_eq!(longest, Some(64), "a turn is bounded");
}

#[test]
fn a_server_is_ready_while_it_learns_what_lies_below() {
    let ready = |scanning| {
        let reactor = ReactorSeen { scanning, ..ReactorSeen::default() };
        let seen = Mutex::new(Seen { reactor, ..Seen::default() });
        let scripted = Scripted { seen, ..Scripted::default() };
        let answer = Server::with(scripted, Config::default(), Value::Null).get("/readyz");
        (answer.status, answer.json()["note"].clone())
    };
    assert_eq!(ready(0), (200, Value::Null));
    assert_eq!(ready(1), (200, json!("scanning 1 adapter")));
    assert_eq!(ready(2), (200, json!("scanning 2 adapters")));
}

/// What a server with KV events, and one whose tiers all have an order, say differently.
const MASKED: &[&str] = &[
    "/storage_manager/l2_eviction_controller/adapters",
    "/storage_manager/l2_adapters/0/use_odirect",
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
    status_with(engine, modes, "")
}

fn status_with(engine: Status, modes: TransferModes, adapters: &str) -> Value {
    let seen = Seen { engine, ..Seen::default() };
    let scripted = Scripted { seen: Mutex::new(seen), ..Scripted::default() };
    let settings = settings(&format!("{CAPTURED} {adapters}"));
    let config = Config { transfer_modes: modes, ..settings.engine };
    let view = View::new(config, settings.adapters);
    Server::with_view(scripted, view, Value::Null).get("/status").json()
}

#[test]
fn an_empty_server_has_the_peers_status() {
    let engine = Status { adapters: vec![adapter(0, "fs")], ..l1_of(0, 0) };
    let ours = status_with(engine, TransferModes::ServerDriven, &format!("--l2-adapter {FS}"));
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
        pages: None,
        mode: Mode::SharedMemory,
        pinged: true,
        silent_for: Duration::from_secs(3),
    };
    let adapters = vec![adapter(0, "mock"), adapter(1, "fs")];
    let engine = Status { instances: vec![instance], adapters, ..l1_of(72, 1_179_648) };
    let [mock, fs] = TWO;
    let flags = format!("--l2-adapter {mock} --l2-adapter {fs}");
    let ours = status_with(engine, TransferModes::Auto, &flags);
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
fn a_tier_shows_what_only_we_know_of_it_and_a_tripped_one_is_not_healthy() {
    let tripped = AdapterStatus {
        state: AdapterState::Tripped,
        is_scanned: false,
        stores_waiting: 5,
        stores_in_flight: 2,
        ..adapter(1, "fs")
    };
    let tier = TierStatus {
        engine: "io_uring",
        direct: true,
        registered: true,
        direct_bytes: 7,
        ..TierStatus::default()
    };
    let engine = Status { adapters: vec![adapter(0, "mock"), tripped], ..l1_of(0, 0) };
    let seen = Seen { engine, tiers: vec![None, Some(tier)], ..Seen::default() };
    let scripted = Scripted { seen: Mutex::new(seen), ..Scripted::default() };
    let ours = Server::with(scripted, Config::default(), Value::Null).get("/status").json();
    let manager = &ours["storage_manager"];
    assert_eq!((&ours["is_healthy"], &manager["is_healthy"]), (&json!(false), &json!(false)));
    let own = &manager["l2_adapters"][1]["kvtide"];
    assert_eq!((&own["state"], &own["scanned"]), (&json!("tripped"), &json!(false)));
    let io = &own["io"];
    assert_eq!((&io["engine"], &io["direct"]), (&json!("io_uring"), &json!(true)));
    assert_eq!((&io["registered"], &io["direct_bytes"]), (&json!(true), &json!(7)));
    assert_eq!(manager["l2_adapters"][0]["kvtide"]["io"], Value::Null);
    let store = &manager["store_controller"];
    assert_eq!(
        (&store["pending_keys_count"], &store["in_flight_task_count"]),
        (&json!(5), &json!(2))
    );
    let eviction = &manager["l2_eviction_controller"]["adapters"][0];
    assert_eq!(eviction["current_usage"], json!(1_179_648.0 / (1_u64 << 30) as f64));
    assert_eq!(eviction["num_cache_salt_buckets"], 2);
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
