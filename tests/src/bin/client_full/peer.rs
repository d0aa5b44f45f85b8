//! The peer's own server, unmodified, and ours over one folder of objects: what one has written the
//! other reads, and both at once store and delete there without a wrong byte. And what it says over
//! HTTP of an engine whose memory it has opened, by the same scenarios that ours is tested with.

use kvtide_tests::child::tail;
use kvtide_tests::client::Client;
use kvtide_tests::load::{self, Tally};
use kvtide_tests::server::Server;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy)]
pub enum Run {
    /// First the peer writes and we read, then we write elsewhere and the peer reads.
    InTurn { tier: &'static str, direct: bool },
    /// Objects that are no whole blocks. The peer's `fs_native` pads them when it writes directly.
    Unaligned,
    /// Both at once, on the same objects.
    AtOnce { tier: &'static str },
    /// A scenario of `server_driven.py`, which then holds what the peer answers.
    Answers { scenario: &'static str },
}

pub const RUNS: &[(&str, Run)] = &[
    ("peer, fs in turn", Run::InTurn { tier: "fs", direct: false }),
    ("peer, fs in turn, direct", Run::InTurn { tier: "fs", direct: true }),
    ("peer, fs_native in turn", Run::InTurn { tier: "fs_native", direct: false }),
    ("peer, fs_native in turn, direct", Run::InTurn { tier: "fs_native", direct: true }),
    ("peer, unaligned", Run::Unaligned),
    ("peer, fs at once", Run::AtOnce { tier: "fs" }),
    ("peer, fs_native at once", Run::AtOnce { tier: "fs_native" }),
    ("peer, checksums of memory", Run::Answers { scenario: "checksums" }),
    ("peer, status of memory", Run::Answers { scenario: "status" }),
];

struct Bed<'a> {
    client: &'a Client,
    binary: &'a Path,
    folder: PathBuf,
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

const OURS: &[&str] = &["--l1-size-gb", "0.125", "--eviction-policy", "LRU"];
/// Without both a name and its whole size at once the peer has no shared pool.
const THEIRS: &[&str] = &[
    "--l1-size-gb",
    "0.25",
    "--eviction-policy",
    "LRU",
    "--chunk-size",
    "256",
    "--supported-transfer-mode",
    "engine_driven",
    "--no-l1-use-lazy",
    "--shm-name",
];
const THEIRS_SERVER_DRIVEN: &[&str] = &[
    "--l1-size-gb",
    "0.25",
    "--eviction-policy",
    "LRU",
    "--chunk-size",
    "16",
    "--supported-transfer-mode",
    "lmcache_driven",
];
const UNALIGNED: &str = "--layers 1 --hidden 5";

pub fn run(client: &Client, binary: &Path, run: Run) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("kvtide-client-full-{}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let bed = Bed { client, binary, folder };
    match run {
        Run::InTurn { tier, direct } => {
            let theirs = bed.spec(tier, "theirs", direct);
            bed.first_one_then_the_other("", (true, &theirs), (false, &theirs))?;
            let ours = bed.spec(tier, "ours", direct);
            bed.first_one_then_the_other("", (false, &ours), (true, &ours))
        }
        Run::Unaligned => {
            let padded = bed.spec("fs_native", "padded", true);
            bed.first_one_then_the_other(UNALIGNED, (true, &padded), (false, &padded))?;
            let plain = bed.spec("fs", "padded", true);
            bed.first_one_then_the_other(UNALIGNED, (true, &padded), (false, &plain))?;
            let (ours, theirs) = (bed.spec("fs", "ours", true), bed.spec("fs", "ours", false));
            bed.first_one_then_the_other(UNALIGNED, (false, &ours), (true, &theirs))
        }
        Run::AtOnce { tier } => bed.at_once(&bed.spec(tier, "both", true)),
        Run::Answers { scenario } => bed.answers(scenario),
    }
}

impl Bed<'_> {
    fn spec(&self, tier: &str, folder: &str, direct: bool) -> Value {
        let path = self.folder.join(folder);
        json!({ "type": tier, "base_path": path, "use_odirect": direct })
    }

    /// The peer's server or ours.
    fn start(&self, is_peer: bool, spec: &Value) -> Result<Server, String> {
        let spec = spec.to_string();
        let tier = ["--l2-adapter", &spec];
        if !is_peer {
            return Server::start(self.binary, &[OURS, &tier].concat());
        }
        // A name of its own each time: what cleans up behind one that has ended removes it late.
        let name = format!("kvtide_test_peer_{}_{}", std::process::id(), count());
        self.start_theirs(&[THEIRS, &[&name], &tier].concat())
    }

    fn start_theirs(&self, arguments: &[&str]) -> Result<Server, String> {
        let launch = || {
            let mut command = self.client.command();
            command.args(["-c", "from lmcache.cli.main import main; main()"]);
            command
        };
        Server::start_by(&launch, arguments)
    }

    fn answers(&self, scenario: &str) -> Result<(), String> {
        let server = self.start_theirs(THEIRS_SERVER_DRIVEN)?;
        let finished = self.client.server_driven(&server, scenario, 0)?;
        println!("{}", tail(&finished.output, 60));
        if finished.code != 0 || finished.out_of_time {
            return Err(format!("it ended with {}; it says:\n{}", finished.code, server.log()));
        }
        stop(server)
    }

    fn load(&self, server: &Server, words: &str) -> Result<Tally, String> {
        let tally = load::run(self.client, server, &format!("--model shared/model {words}"));
        let tally = tally.map_err(|why| format!("{why}; it says:\n{}", server.log()))?;
        println!("{words}: {tally:?}");
        Ok(tally)
    }

    fn first_one_then_the_other(
        &self,
        shape: &str,
        (is_peer, writes): (bool, &Value),
        (other_is_peer, reads): (bool, &Value),
    ) -> Result<(), String> {
        let words = |what: &str| format!("--do {what} --end 30 {shape}").trim_end().to_owned();
        let mut writer = self.start(is_peer, writes)?;
        let stored = self.load(&writer, &words("store"))?.stored;
        at_rest(&mut writer)?;
        stop(writer)?;
        let reader = self.start(other_is_peer, reads)?;
        let read = self.load(&reader, &words("read"))?;
        stop(reader)?;
        if (read.hit, read.broken) != (read.asked, 0) || stored == 0 {
            return Err(format!("{stored} chunks were stored, peer: {is_peer}; then {read:?}"));
        }
        Ok(())
    }

    /// Objects come, go and come again under two servers that know nothing of each other.
    fn at_once(&self, spec: &Value) -> Result<(), String> {
        let mut ours = self.start(false, spec)?;
        let mut theirs = self.start(true, spec)?;
        let folder = self.folder.join("both");
        let churn =
            format!("--do churn --end 60 --steps 400 --delete 0.3 --folder {}", folder.display());
        let begin = |server, seed| {
            let words = format!("--model shared/model {churn} --seed {seed}");
            load::start(self.client, server, &words)
        };
        let (one, other) = (begin(&ours, 1)?, begin(&theirs, 2)?);
        let (one, other) = (load::end(one)?, load::end(other)?);
        println!("ours {one:?}\ntheirs {other:?}");
        at_rest(&mut ours)?;
        at_rest(&mut theirs)?;
        let tiers = ours.status()?["storage_manager"]["l2_adapters"].to_string();
        println!("{tiers}");
        stop(theirs)?;
        stop(ours)?;
        if one.broken > 0 || [one, other].iter().any(|each| each.deleted == 0 || each.hit == 0) {
            return Err("too little has happened, or a promise was not kept".into());
        }
        // What they leave is whole, for whoever comes next.
        let again = self.start(false, spec)?;
        let left = self.load(&again, "--do read --end 60")?;
        stop(again)?;
        if left.hit > 0 { Ok(()) } else { Err("nothing is left".into()) }
    }
}

/// Another number each time.
fn count() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Until nothing waits to be stored or is being stored, by what both servers tell of it.
fn at_rest(server: &mut Server) -> Result<(), String> {
    let is_idle = |status: &Value| {
        let stores = &status["storage_manager"]["store_controllers"]["_default"];
        stores["pending_keys_count"] == 0 && stores["in_flight_task_count"] == 0
    };
    server.until(is_idle).map(drop)
}

fn stop(server: Server) -> Result<(), String> {
    let stopped = server.stop()?;
    let is_clean = stopped.code == 143 && stopped.segments_left.is_empty();
    if is_clean { Ok(()) } else { Err(format!("it ends with {}:\n{}", stopped.code, stopped.log)) }
}
