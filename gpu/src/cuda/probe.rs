//! Whether there is a driver that we can use, and which cards it shows.

use super::Failed;
use super::driver::{Calls, Uuid};
use super::memory::Imports;
use cudarc::driver::sys;
use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Why no card can be used: one sentence each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    NoDriver,
    /// The toolkit's stand-in, which a linker needs and nobody can run.
    Stub,
    TooOld {
        version: u32,
    },
    Missing {
        symbol: &'static str,
    },
    NoDevice,
    Failed(Failed),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NoDriver => write!(f, "no CUDA driver: libcuda.so.1 cannot be opened"),
            Absent::Stub => write!(
                f,
                "no CUDA driver: the libcuda.so that was found is the toolkit's stub, \
                 take its folder out of LD_LIBRARY_PATH"
            ),
            Absent::TooOld { version } => write!(
                f,
                "the CUDA driver is too old: it serves {}, and {} is needed",
                Version(*version),
                Version(VERSION_MIN)
            ),
            Absent::Missing { symbol } => {
                write!(f, "the CUDA driver lacks {symbol}, which is needed")
            }
            Absent::NoDevice => {
                write!(f, "the CUDA driver shows no card (is CUDA_VISIBLE_DEVICES empty?)")
            }
            Absent::Failed(failed) => write!(f, "the CUDA driver does not start: {failed}"),
        }
    }
}

impl std::error::Error for Absent {}

impl From<Failed> for Absent {
    fn from(failed: Failed) -> Absent {
        match failed.code {
            STUB_LIBRARY => Absent::Stub,
            NO_DEVICE => Absent::NoDevice,
            _ => Absent::Failed(failed),
        }
    }
}

struct Version(u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// A driver that works, and the cards it shows.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    calls: Calls,
    version: u32,
    cards: Vec<CardInfo>,
}

/// One context a card in this process, however many instances use it and however often it was
/// probed: what is open on it is counted there.
static OPEN: Mutex<Vec<Weak<CardInner>>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    pub ordinal: u32,
    /// Lower case, 8-4-4-4-12, without a prefix.
    pub uuid: String,
    pub name: String,
}

/// Looks for a driver. Neither a missing library nor a missing symbol panics.
pub fn probe() -> Result<Driver, Absent> {
    // SAFETY: opening the library runs its initialisers, which is what a driver is for.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absent::NoDriver);
    }
    let calls = match Calls::load() {
        Err(Absent::Missing { symbol }) => return Err(too_old().unwrap_or(missing(symbol))),
        loaded => loaded?,
    };
    let mut version = 0;
    // SAFETY: the argument is a place for one number.
    unsafe { calls.version(&mut version) }?;
    let version = u32::try_from(version).unwrap_or(0);
    if version < VERSION_MIN {
        return Err(Absent::TooOld { version });
    }
    // SAFETY: initialising takes no memory and may be repeated.
    unsafe { calls.init(0) }?;
    let cards = list_cards(&calls)?;
    if cards.is_empty() {
        return Err(Absent::NoDevice);
    }
    Ok(Driver(Arc::new(Inner { calls, version, cards })))
}

fn missing(symbol: &'static str) -> Absent {
    Absent::Missing { symbol }
}

/// A symbol is missing because the driver is old, or else for a reason nobody knows.
fn too_old() -> Option<Absent> {
    type Ask = unsafe extern "C" fn(*mut i32) -> u32;
    let mut version = 0;
    // SAFETY: the library is open for good, and the type is that of the driver's header.
    let code = unsafe { (*sys::culib().get::<Ask>(b"cuDriverGetVersion").ok()?)(&mut version) };
    let version = u32::try_from(version).ok()?;
    (code == 0 && version < VERSION_MIN).then_some(Absent::TooOld { version })
}

fn list_cards(calls: &Calls) -> Result<Vec<CardInfo>, Failed> {
    let mut count = 0;
    // SAFETY: the argument is a place for one number.
    unsafe { calls.device_count(&mut count) }?;
    let mut cards = Vec::new();
    for ordinal in 0..count {
        let (mut device, mut name) = (0, [0_u8; 256]);
        let mut uuid = Uuid { bytes: [0; 16] };
        // SAFETY: the arguments are places for a number, 256 characters and sixteen bytes.
        unsafe {
            calls.device(&mut device, ordinal)?;
            calls.device_name(name.as_mut_ptr(), 255, device)?;
            calls.device_uuid(&mut uuid, device)?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        cards.push(CardInfo {
            ordinal: device as u32,
            uuid: uuid_text(&uuid.bytes.map(|byte| byte as u8)),
            name: name.to_string_lossy().into_owned(),
        });
    }
    Ok(cards)
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

impl Driver {
    /// 12080 is 12.8.
    pub fn version(&self) -> u32 {
        self.0.version
    }

    pub fn has_batch(&self) -> bool {
        self.0.calls.has_batch()
    }

    pub fn cards(&self) -> &[CardInfo] {
        &self.0.cards
    }

    /// The card of that uuid, with its primary context held for as long as the value lives.
    pub fn card(&self, uuid: &str) -> Result<Card, CardFault> {
        let Some(info) = self.0.cards.iter().find(|card| card.uuid == uuid) else {
            let seen = self.0.cards.iter().map(|card| card.uuid.clone()).collect();
            return Err(CardFault::NotVisible { uuid: uuid.to_string(), seen });
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|each| each.strong_count() > 0);
        let mut known = open.iter().filter_map(Weak::upgrade);
        if let Some(card) = known.find(|card| card.info.ordinal == info.ordinal) {
            return Ok(Card(card));
        }
        let mut context = 0;
        // SAFETY: the argument is a place for one handle; the ordinal came from the driver.
        unsafe { self.0.calls.context_retain(&mut context, info.ordinal as i32) }
            .map_err(CardFault::Failed)?;
        let imports = Mutex::new(Imports::default());
        let driver = self.clone();
        let card = Arc::new(CardInner { driver, info: info.clone(), context, imports });
        open.push(Arc::downgrade(&card));
        Ok(Card(card))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardFault {
    NotVisible { uuid: String, seen: Vec<String> },
    Failed(Failed),
}

impl fmt::Display for CardFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CardFault::NotVisible { uuid, seen } => write!(
                f,
                "card {uuid} of the engine is not visible to the server, which sees {}",
                seen.join(", ")
            ),
            CardFault::Failed(failed) => write!(f, "the card cannot be used: {failed}"),
        }
    }
}

impl std::error::Error for CardFault {}

/// One card in use.
#[derive(Clone)]
pub struct Card(Arc<CardInner>);

struct CardInner {
    driver: Driver,
    info: CardInfo,
    context: usize,
    imports: Mutex<Imports>,
}

impl Card {
    pub fn info(&self) -> &CardInfo {
        &self.0.info
    }

    /// The driver's calls, with this card's context current on this thread: it is current per
    /// thread, and setting it is cheaper than knowing whether it still is.
    pub(super) fn bind(&self) -> Result<&Calls, Failed> {
        let calls = self.calls();
        // SAFETY: the context is retained for as long as this value lives.
        unsafe { calls.context_set(self.0.context) }?;
        Ok(calls)
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.0.driver.0.calls
    }

    pub(super) fn imports(&self) -> &Mutex<Imports> {
        &self.0.imports
    }
}

impl Drop for CardInner {
    fn drop(&mut self) {
        // SAFETY: retained once when this value was made, and everything made in the context
        // holds a card, so nothing of ours is left in it.
        let _ = unsafe { self.driver.0.calls.context_release(self.info.ordinal as i32) };
    }
}

/// 11.4 is the first to tell the uuid of a part of a card.
const VERSION_MIN: u32 = 11_040;
const STUB_LIBRARY: u32 = 34;
const NO_DEVICE: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_torch_writes_it() {
        let bytes =
            [0xFA, 0x4E, 0xC0, 0xDA, 0x2D, 0x6B, 0x76, 0x74, 0x69, 0x64, 0x65, 0x2D, 0x90, 0, 0, 1];
        assert_eq!(uuid_text(&bytes), "fa4ec0da-2d6b-7674-6964-652d90000001");
    }

    #[test]
    fn every_reason_is_a_sentence() {
        let failed = Failed { call: "cuInit", code: 999 };
        let reasons = [
            (Absent::NoDriver, "libcuda.so.1"),
            (Absent::Stub, "stub"),
            (Absent::TooOld { version: 10_020 }, "serves 10.2, and 11.4 is needed"),
            (Absent::Missing { symbol: "cuInit" }, "lacks cuInit"),
            (Absent::NoDevice, "no card"),
            (Absent::from(failed), "cuInit failed with 999"),
        ];
        for (reason, part) in reasons {
            assert!(reason.to_string().contains(part), "{reason}");
        }
        assert_eq!(Absent::from(Failed { code: 34, ..failed }), Absent::Stub);
        assert_eq!(Absent::from(Failed { code: 100, ..failed }), Absent::NoDevice);
    }
}
