//! All tables behind one lock. Handles are numbers that are never given out twice, so a handle of
//! something destroyed is always recognised.

use crate::event::Event;
use crate::gate::CURRENT;
use crate::mem::{Allocation, Registration};
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

pub struct Context {
    pub device: i32,
    pub references: usize,
    /// The error that ended this context; 0 while it lives.
    pub sticky: u32,
}

/// One injected fault: call `nth` from now of `name` returns `code` and does nothing; or, where it
/// `breaks`, the call succeeds and the next operation of any stream ends its context with `code`.
pub struct Fault {
    pub name: String,
    pub nth: u64,
    pub code: u32,
    pub breaks: bool,
}

pub struct Settings {
    pub devices: u64,
    pub version: u64,
    pub quota_bytes: u64,
    pub delay_us: u64,
    /// Streams begin no operation.
    pub stalled: bool,
    /// The next operation of any stream ends its context with this error; 0 for none.
    pub breaking: u32,
    /// The entry at which the next batch fails, by one more; 0 for none.
    pub batch_fails_at: u64,
    pub seed: u64,
}

#[derive(Default)]
pub struct World {
    pub process: Option<u32>,
    next: usize,
    pub settings: Settings,
    /// Set by a test of this process; else the environment says it.
    pub directory: Option<PathBuf>,
    pub contexts: BTreeMap<usize, Context>,
    /// By address: what is allocated here and what was opened from elsewhere.
    pub allocations: BTreeMap<u64, Allocation>,
    pub registrations: BTreeMap<u64, Registration>,
    pub streams: BTreeMap<usize, Stream>,
    pub events: BTreeMap<usize, Event>,
    pub calls: BTreeMap<&'static str, u64>,
    pub faults: Vec<Fault>,
    pub violations: Vec<String>,
}

static WORLD: LazyLock<Mutex<World>> =
    LazyLock::new(|| Mutex::new(World { faults: ordered(), ..World::default() }));
pub type Locked = MutexGuard<'static, World>;

pub fn lock() -> Locked {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

/// Faults that the environment orders from the start: `name:nth:code` or `name:nth:code:breaks`,
/// more of them behind commas.
fn ordered() -> Vec<Fault> {
    let fault = |order: &str| {
        let mut words = order.split(':');
        let name = words.next()?.to_owned();
        let (nth, code) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Fault { name, nth, code, breaks: words.next() == Some("breaks") })
    };
    let orders = std::env::var("FAKECUDA_FAIL").unwrap_or_default();
    let faults = orders.split_terminator(',').map(|order| fault(order).expect("name:nth:code"));
    faults.collect()
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            devices: number("FAKECUDA_DEVICES", 1),
            version: number("FAKECUDA_VERSION", 12080),
            quota_bytes: number("FAKECUDA_QUOTA", 1 << 30),
            delay_us: number("FAKECUDA_DELAY_US", 200),
            stalled: false,
            breaking: 0,
            batch_fails_at: 0,
            seed: number("FAKECUDA_SEED", 1),
        }
    }
}

impl World {
    pub fn directory(&self) -> Option<PathBuf> {
        self.directory.clone().or_else(|| std::env::var_os("FAKECUDA_DIR").map(PathBuf::from))
    }

    pub fn handle(&mut self) -> usize {
        self.next += 0x10;
        self.next
    }

    /// Counts a call and ends it where a fault was ordered.
    pub fn injected(&mut self, name: &'static str) -> Result<(), u32> {
        *self.calls.entry(name).or_default() += 1;
        let Some(at) = self.faults.iter().position(|fault| fault.name == name) else {
            return Ok(());
        };
        if self.faults[at].nth > 1 {
            self.faults[at].nth -= 1;
            return Ok(());
        }
        let fault = self.faults.remove(at);
        if fault.breaks {
            self.settings.breaking = fault.code;
            return Ok(());
        }
        Err(fault.code)
    }

    pub fn violation(&mut self, text: String) {
        eprintln!("fake driver: {text}");
        if std::env::var_os("FAKECUDA_ABORT").is_some() {
            std::process::abort();
        }
        self.violations.push(text);
    }

    /// Something goes away under operations that are queued. In a broken context none will run.
    pub fn violation_in_flight(&mut self, text: &str) {
        if self.contexts.get(&CURRENT.get()).is_some_and(|context| context.sticky == 0) {
            self.violation(text.to_string());
        }
    }

    /// What exists in contexts that pass, beside the contexts.
    pub fn objects(&self, of: impl Fn(usize) -> bool) -> usize {
        let allocations = self.allocations.values().map(|each| each.context);
        let registrations = self.registrations.values().map(|each| each.context);
        let streams = self.streams.values().map(|each| each.context);
        let events = self.events.values().map(|each| each.context);
        let all = allocations.chain(registrations).chain(streams).chain(events);
        all.filter(|context| of(*context)).count()
    }

    /// Writes what there is to say at the end to the file that `FAKECUDA_REPORT` names: what is
    /// alive, every violation, and how often what was called.
    pub fn report(&self) {
        let Some(path) = std::env::var_os("FAKECUDA_REPORT") else { return };
        let alive = self.objects(|_| true) + self.contexts.len();
        let violations = self.violations.iter().map(|text| format!("violation {text}\n"));
        let calls = self.calls.iter().map(|(name, count)| format!("calls {name} {count}\n"));
        let text = format!("live {alive}\n");
        let text = violations.chain(calls).fold(text, |text, line| text + &line);
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("fake driver: {}: {error}", path.display());
        }
    }

    /// The next number of a small generator; only the order of what has no order depends on it.
    pub fn random(&mut self) -> u64 {
        let seed = &mut self.settings.seed;
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }
}
