//! One round: a server and its clients at work, the blows of the plan, the end in order, and the
//! verdict.

use crate::history::{self, History, Read};
use crate::member::{Ground, Member, ROLES};
use crate::plan::{self, Blow, Step};
use crate::verdict::{Counts, Life, Run, judge};
use kvtide_tests::client::{Client, Install, RUN_TIME_MAX};
use kvtide_tests::server::{Server, left_behind};
use kvtide_tests::{binary, child, http};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// What a server is told in one round, at every start.
struct Flags {
    arguments: Vec<String>,
    is_roomy: bool,
    has_disk: bool,
}

/// Lifetimes of leases and reservations in seconds: short, so that they end within a round.
const TTL_SECS: u64 = 1;
/// Where a disk keeps its objects, in the folder of the round; `load.py` knows it as well.
const OBJECTS: &str = "objects";
/// How long one is stopped: longer than they live.
const STOPPED_NANOS: u64 = 1_500_000_000;
/// What everybody writes before the first blow and after the last one.
const LINES_AT_WORK: u64 = 60;
const LINES_AT_LAST: u64 = 200;

impl Flags {
    /// Odd seeds have a name of their own, to be taken over, and room for everything; even ones an
    /// invented name, to be swept, and too little room. The second and third of four have a disk
    /// below, which outlives its servers.
    fn of(seed: u64, folder: &Path) -> Flags {
        let is_roomy = !seed.is_multiple_of(2);
        let has_disk = [2, 3].contains(&(seed % 4));
        let ttl = TTL_SECS.to_string();
        let mut arguments: Vec<String> = ["--eviction-policy", "LRU"].map(String::from).to_vec();
        for flag in ["--l1-read-ttl-seconds", "--l1-write-ttl-seconds", "--session-ttl-seconds"] {
            arguments.extend([flag.into(), ttl.clone()]);
        }
        // Everything that is new within a second takes little more than 1 MiB.
        let size = if is_roomy { "0.25" } else { "0.00390625" };
        arguments.extend(["--l1-size-gb".into(), size.into()]);
        if is_roomy {
            let name = format!("crash_{}_{seed}", std::process::id());
            arguments.extend(["--shm-name".into(), name]);
        }
        if has_disk {
            let spec = json!({ "type": "fs", "base_path": folder.join(OBJECTS) });
            arguments.extend(["--l2-adapter".into(), spec.to_string()]);
        }
        Flags { arguments, is_roomy, has_disk }
    }
}

struct Round<'a> {
    ground: Ground<'a>,
    binary: &'a Path,
    flags: Flags,
    addresses: (SocketAddr, SocketAddr),
    server: Option<Server>,
    members: Vec<Option<Member>>,
    lives: Vec<Life>,
    /// Every segment that a server of this round has had.
    segments: Vec<PathBuf>,
}

/// Plays one round. Its folder stays where it fails.
pub fn play(seed: u64) -> Result<Counts, String> {
    let client = Client::have(Install::Lean)?;
    let binary = binary::release()?;
    let folder = std::env::temp_dir().join(format!("kvtide-crash-{}-{seed}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let addresses = ports_at_rest(seed)?;
    let url = format!("tcp://{}", addresses.0);
    let ground = Ground { client: &client, folder: &folder, url, seed };
    let mut round = Round {
        ground,
        binary: &binary,
        flags: Flags::of(seed, &folder),
        addresses,
        server: None,
        members: Vec::new(),
        lives: Vec::new(),
        segments: Vec::new(),
    };
    let outcome = round.play(seed);
    let lives = std::mem::take(&mut round.lives);
    let segments = std::mem::take(&mut round.segments);
    let has_disk = round.flags.has_disk;
    // Whoever still lives is gone before anybody reads what it has written.
    drop(round);
    let judged = outcome.and_then(|()| {
        let files = if has_disk { Some(files(&client, &folder)?) } else { None };
        verdict(&folder, lives, files)
    });
    let counts = judged.map_err(|why| {
        // A round that fails is told of; its memory need not stay.
        segments.iter().for_each(|path| drop(std::fs::remove_file(path)));
        format!("{why}\nhistories: {}", folder.display())
    })?;
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(counts)
}

impl Round<'_> {
    fn play(&mut self, seed: u64) -> Result<(), String> {
        self.start_server()?;
        for role in ROLES {
            self.members.push(Some(Member::start(&self.ground, role)?));
        }
        self.all_go_on(LINES_AT_WORK)?;
        for step in plan::steps(seed, ROLES.len()) {
            self.step(step).map_err(|why| format!("{step:?}: {why}"))?;
        }
        self.all_go_on(LINES_AT_LAST)?;
        // The scheduler first: it looks up for workers that are still there.
        for member in std::mem::take(&mut self.members).into_iter().flatten() {
            member.leave()?;
        }
        self.end_server()
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        self.go_on(step.by, step.lines)?;
        if let Some(kind) = step.amid {
            let server = self.server.as_mut().ok_or("there is a server")?;
            self.members[step.by].as_mut().ok_or("there is a member")?.catch(server, kind)?;
        }
        match step.blow {
            Blow::KillMember { who } => self.kill_member(who),
            Blow::KillServer => {
                self.kill_server()?;
                // Whoever was caught goes on as if nothing had happened.
                self.member(step.by)?.signal(Signal::CONT)
            }
            Blow::KillBoth { who } => {
                self.member(who)?.signal(Signal::KILL)?;
                self.kill_server()?;
                self.kill_member(who)
            }
            Blow::StopMember { who, other } => {
                self.member(who)?.signal(Signal::STOP)?;
                let server = self.server.as_mut().ok_or("there is a server")?;
                let other = self.members[other].as_mut().ok_or("there is a member")?;
                other.go_on_for(server, STOPPED_NANOS)?;
                self.member(who)?.signal(Signal::CONT)?;
                self.go_on(who, 1)
            }
            Blow::StopServer => {
                let server = self.server.as_mut().ok_or("there is a server")?;
                server.signal(Signal::STOP)?;
                let member = self.members[step.by].as_mut().ok_or("there is a member")?;
                member.lose_a_call(server)?;
                server.signal(Signal::CONT)
            }
        }
    }

    fn member(&mut self, who: usize) -> Result<&mut Member, String> {
        self.members[who].as_mut().ok_or_else(|| "a member is gone".into())
    }

    fn go_on(&mut self, who: usize, lines: u64) -> Result<(), String> {
        let server = self.server.as_mut().ok_or("there is a server")?;
        self.members[who].as_mut().ok_or("there is a member")?.go_on(server, lines)
    }

    fn all_go_on(&mut self, lines: u64) -> Result<(), String> {
        (0..ROLES.len()).try_for_each(|who| self.go_on(who, lines))
    }

    /// Ends one process; another one takes over its part.
    fn kill_member(&mut self, who: usize) -> Result<(), String> {
        let mut member = self.members[who].take().ok_or("a member is gone")?;
        member.kill()?;
        self.members[who] = Some(member.again(&self.ground)?);
        Ok(())
    }

    fn start_server(&mut self) -> Result<(), String> {
        let arguments: Vec<&str> = self.flags.arguments.iter().map(String::as_str).collect();
        self.lives.push(Life { began: now(), ended: u64::MAX, is_roomy: false });
        let (request, admin) = self.addresses;
        let mut server = Server::start_at(self.binary, request, admin, &arguments)?;
        server.until(|status| {
            let pool = &status["kvtide"]["pool"];
            pool["usable_bytes"] == pool["configured_bytes"]
        })?;
        let own = server.segments();
        if own.len() != 1 {
            return Err(format!("one pool is mapped: {own:?}"));
        }
        // What a killed one has left is gone, or taken over under the same name.
        let stale = self.segments.iter().filter(|path| !own.contains(path) && path.exists());
        let stale: Vec<&PathBuf> = stale.collect();
        if !stale.is_empty() {
            return Err(format!("a restart leaves the segments of its forerunner: {stale:?}"));
        }
        self.segments.extend(own);
        self.server = Some(server);
        Ok(())
    }

    /// Kills the server and starts another one on the same addresses, and the same name if it has
    /// one.
    fn kill_server(&mut self) -> Result<(), String> {
        let server = self.server.take().ok_or("there is a server")?;
        let is_roomy = self.flags.is_roomy && has_room(&server.status()?);
        let segments = server.segments();
        server.signal(Signal::KILL)?;
        let ended = server.ended(segments)?;
        self.life_ends(is_roomy);
        if ended.code != 137 {
            return Err(format!("killed, the server ends with {}:\n{}", ended.code, ended.log));
        }
        expect_calm(&ended.log)?;
        self.start_server()
    }

    fn life_ends(&mut self, is_roomy: bool) {
        if let Some(life) = self.lives.last_mut() {
            (life.ended, life.is_roomy) = (now(), is_roomy);
        }
    }

    /// Nothing of anybody is left; then it ends in order.
    fn end_server(&mut self) -> Result<(), String> {
        let mut server = self.server.take().ok_or("there is a server")?;
        server.until(|status| left_behind(status).is_empty())?;
        until_metrics_are_zero(&mut server)?;
        let is_roomy = self.flags.is_roomy && has_room(&server.status()?);
        let ended = server.stop()?;
        self.life_ends(is_roomy);
        if ended.code != 143 {
            return Err(format!("stopped, the server ends with {}:\n{}", ended.code, ended.log));
        }
        expect_calm(&ended.log)?;
        let leaked: Vec<&PathBuf> = self.segments.iter().filter(|path| path.exists()).collect();
        if leaked.is_empty() { Ok(()) } else { Err(format!("left in /dev/shm: {leaked:?}")) }
    }
}

/// Whose objects lie on the disk, told by their content.
fn files(client: &Client, folder: &Path) -> Result<Vec<Read>, String> {
    let mut command = client.command();
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/crash/load.py"))
        .args(["--role", "files", "--folder"])
        .arg(folder);
    let told = child::run(&mut command, RUN_TIME_MAX)?;
    let of_line = |line: &str| history::read(&serde_json::from_str(line).ok()?);
    let files: Option<Vec<Read>> = told.output.lines().map(of_line).collect();
    files.filter(|_| told.code == 0).ok_or(told.output)
}

fn verdict(folder: &Path, servers: Vec<Life>, files: Option<Vec<Read>>) -> Result<Counts, String> {
    let ttl = TTL_SECS * 1_000_000_000;
    let histories = histories(folder)?;
    let has_disk = files.is_some();
    let run = Run { servers, histories, read_ttl: ttl, write_ttl: ttl, files };
    let (faults, counts) = judge(&run);
    if !faults.is_empty() {
        let told: Vec<String> = faults.iter().take(20).map(ToString::to_string).collect();
        return Err(format!("{} faults in {counts}:\n{}", faults.len(), told.join("\n")));
    }
    // A round in which nothing was read proves nothing.
    let last = counts.read_by_server.last().copied().unwrap_or_default();
    let is_proof = last > 0
        && counts.stored_chunks > 100
        && counts.read_chunks > 100
        && counts.read_of_others > 0
        && counts.cut_stores > 0
        && counts.promises > 0
        && (!has_disk || counts.files > 100 && counts.read_from_disk > 0);
    if is_proof { Ok(counts) } else { Err(format!("too little has happened: {counts}")) }
}

fn histories(folder: &Path) -> Result<Vec<History>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut histories = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            let who = path.file_stem().unwrap_or_default().to_string_lossy();
            histories.push(History::parse(&who, &text)?);
        }
    }
    histories.sort_by(|one, other| one.who.cmp(&other.who));
    Ok(histories)
}

/// Nothing was evicted so far, nor will be very soon.
fn has_room(status: &Value) -> bool {
    let own = &status["kvtide"];
    let bytes = |name: &str| own["bytes"][name].as_u64().unwrap_or(u64::MAX);
    let whole = own["pool"]["configured_bytes"].as_u64().unwrap_or_default();
    own["evicted_objects"] == 0 && bytes("resident") < whole / 2
}

/// Gauges are told once a second: what an operator sees comes to zero as well.
fn until_metrics_are_zero(server: &mut Server) -> Result<(), String> {
    let admin = server.admin;
    let mut page = String::new();
    let quiet = server.until(|_| {
        page = http::get(admin, "/metrics").map_or_else(|error| error.to_string(), |got| got.body);
        GAUGES.iter().all(|name| gauge(&page, name) == Some(0.0))
    });
    quiet.map(drop).map_err(|why| format!("{GAUGES:?} are not all 0 ({why}):\n{page}"))
}

const GAUGES: [&str; 5] = [
    "kvtide_l1_condemned_bytes",
    "kvtide_l1_staging_bytes",
    "kvtide_l1_leased_bytes",
    "kvtide_lease_units",
    "kvtide_tickets",
];

fn gauge(page: &str, name: &str) -> Option<f64> {
    let line = page
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Whatever clients do, the server finds nothing wrong with itself.
fn expect_calm(log: &str) -> Result<(), String> {
    match ["ERROR", "panicked"].into_iter().find(|word| log.contains(word)) {
        Some(word) => Err(format!("{word} in the server's log:\n{log}")),
        None => Ok(()),
    }
}

/// Two loopback ports that are free and that the system gives to nobody who does not ask for their
/// numbers: a server that comes back must find its own free.
fn ports_at_rest(seed: u64) -> Result<(SocketAddr, SocketAddr), String> {
    let start = u64::from(std::process::id()).wrapping_mul(31).wrapping_add(seed.wrapping_mul(7));
    let ports = (0..PORTS).map(|at| (PORT_MIN + start.wrapping_add(at) % PORTS) as u16);
    let addresses = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut free = addresses.filter(|address| TcpListener::bind(address).is_ok());
    let pair = free.next().zip(free.next());
    pair.ok_or_else(|| "no free ports below those that the system gives away".into())
}

const PORT_MIN: u64 = 16_200;
const PORTS: u64 = 10_000;

/// The clock that the clients' histories have.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
