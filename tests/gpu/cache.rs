//! A cache of an engine: its tensors on the card or, for an engine on the CPU, in shared memory,
//! filled with bytes that differ everywhere, and what they have to become.

use crate::card::{Allocation, Card};
use crate::pages::{Form, Pages};
use kvtide_core::wire::msgpack::Writer;
use rustix::fs::Mode;
use rustix::shm;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Cache {
    pub pages: Pages,
    place: Place,
    /// Of every tensor, as it was filled.
    pub before: Vec<Vec<u8>>,
}

enum Place {
    /// The allocation of each layer, and where in it the layer begins.
    Card(Vec<(Allocation, u64)>),
    Host(Vec<(String, OwnedFd)>),
}

/// Allocations are no smaller than what a driver makes of them.
pub const ALLOCATION_BYTES: u64 = 2 << 20;

fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let mix = |at: u64| (at ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B) >> 13;
    (0..bytes).map(|at| mix(at) as u8).collect()
}

fn count() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

impl Cache {
    /// An allocation for each layer. It is being filled when this returns.
    pub fn on(card: &mut Card, pages: Pages) -> Cache {
        let places = (0..pages.layers).map(|_| (card.allocate(ALLOCATION_BYTES), 0));
        let places = places.collect();
        Cache::fill(card, pages, places)
    }

    /// All layers in one allocation, with a gap in front and between.
    pub fn in_one(card: &mut Card, pages: Pages) -> Cache {
        let allocation = card.allocate(ALLOCATION_BYTES);
        let each = (pages.tensor_bytes() + 700).next_multiple_of(512);
        let places = (0..pages.layers).map(|layer| (allocation, 1024 + layer * each));
        let places = places.collect();
        Cache::fill(card, pages, places)
    }

    fn fill(card: &mut Card, pages: Pages, places: Vec<(Allocation, u64)>) -> Cache {
        let before = Cache::patterns(&pages);
        for ((allocation, start), bytes) in places.iter().zip(&before) {
            card.fill(allocation.address + start, bytes);
        }
        Cache { pages, place: Place::Card(places), before }
    }

    /// In shared memory, as the client puts it there on the CPU.
    pub fn on_host(pages: Pages) -> Cache {
        let before = Cache::patterns(&pages);
        let segment = |bytes: &Vec<u8>| {
            let name = format!("/lmcache_kv_{}_g{}", std::process::id(), count());
            let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
            let file = shm::open(&*name, flags, Mode::RUSR | Mode::WUSR).expect("a free name");
            rustix::io::pwrite(&file, bytes, 0).expect("a segment takes bytes");
            (name, file)
        };
        let segments = before.iter().map(segment).collect();
        Cache { pages, place: Place::Host(segments), before }
    }

    fn patterns(pages: &Pages) -> Vec<Vec<u8>> {
        (0..pages.layers).map(|_| pattern(count().into(), pages.tensor_bytes())).collect()
    }

    /// The tensors as they are now.
    pub fn now(&self, card: &mut Card) -> Vec<Vec<u8>> {
        let bytes = self.pages.tensor_bytes();
        match &self.place {
            Place::Card(places) => {
                let read =
                    |(memory, start): &(Allocation, u64)| card.read(memory.address + start, bytes);
                places.iter().map(read).collect()
            }
            Place::Host(segments) => {
                let read = |(name, _): &(String, OwnedFd)| {
                    std::fs::read(format!("/dev/shm{name}")).expect("it is there")
                };
                segments.iter().map(read).collect()
            }
        }
    }

    /// What this cache has to be where blocks of another were written into it.
    fn with(&self, (pages, from): (&Pages, &[Vec<u8>]), pairs: &[(u64, u64)]) -> Vec<Vec<u8>> {
        let mut after = self.before.clone();
        let bytes = self.pages.row_bytes() as usize;
        assert_eq!(self.pages.row_bytes(), pages.row_bytes(), "rows are alike");
        for (layer, tensor) in after.iter_mut().enumerate() {
            for (source, target) in pairs {
                let rows = pages.rows(*source).into_iter().zip(self.pages.rows(*target));
                for (source, target) in rows {
                    let source = &from[layer][source as usize..][..bytes];
                    tensor[target as usize..][..bytes].copy_from_slice(source);
                }
            }
        }
        after
    }

    /// Asserts that exactly these blocks of another, as it was filled, were written into this one.
    pub fn expect(&self, card: &mut Card, from: &Cache, pairs: &[(u64, u64)]) {
        self.expect_of(card, (&from.pages, &from.before), pairs);
    }

    /// The same of one that has changed since.
    pub fn expect_of(&self, card: &mut Card, from: (&Pages, &[Vec<u8>]), pairs: &[(u64, u64)]) {
        let (now, wanted) = (self.now(card), self.with(from, pairs));
        for (layer, (now, wanted)) in now.iter().zip(&wanted).enumerate() {
            let differs = now.iter().zip(wanted).position(|(one, other)| one != other);
            assert_eq!(differs, None, "layer {layer} of {:?} from {:?}", self.pages, from.0);
        }
    }

    /// A descriptor for each layer: `cuda_raw`, or `cpu_shm`.
    pub fn descriptors(&self, card: &Card) -> Vec<Vec<u8>> {
        let bytes = self.pages.tensor_bytes();
        match &self.place {
            Place::Card(places) => {
                let raw = |(memory, start): &(Allocation, u64)| {
                    raw(memory, (*start, bytes), &self.pages, &card.uuid)
                };
                places.iter().map(raw).collect()
            }
            Place::Host(segments) => {
                let shm = |(name, _): &(String, OwnedFd)| {
                    descriptor("cpu_shm", &self.pages, 0, "cpu", |w| {
                        w.str("shm_name");
                        w.str(name);
                        w.str("nbytes");
                        w.u64(bytes);
                        2
                    })
                };
                segments.iter().map(shm).collect()
            }
        }
    }

    /// A tensor of an indexer, all of it bytes.
    pub fn indexer(memory: &Allocation, card: &Card) -> Vec<u8> {
        let pages = Pages { layers: 1, ..Pages::new(Form::Indexer) };
        raw(memory, (0, pages.tensor_bytes()), &pages, &card.uuid)
    }

    pub fn allocation(&self, layer: usize) -> (Allocation, u64) {
        match &self.place {
            Place::Card(places) => places[layer],
            Place::Host(_) => panic!("it is on the host"),
        }
    }

    /// What an engine on this cache sends where there is nothing to wait for.
    pub fn is_on_host(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Place::Host(segments) = &self.place {
            for (name, _) in segments {
                let _ = shm::unlink(&**name);
            }
        }
    }
}

pub fn frame(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut Writer::new(&mut bytes));
    bytes
}

/// The `cuda_raw` form: where in the allocation the storage begins, and how long it is.
pub fn raw(memory: &Allocation, (start, bytes): (u64, u64), pages: &Pages, uuid: &str) -> Vec<u8> {
    descriptor("cuda_raw", pages, 0, uuid, |w| {
        w.str("ipc_handle");
        w.bin(&memory.handle);
        w.str("alloc_offset");
        w.u64(start);
        w.str("nbytes");
        w.u64(bytes);
        3
    })
}

/// A descriptor with `fields` of its own, which says how many it has written.
pub fn descriptor(
    kind: &str,
    pages: &Pages,
    storage_offset: u64,
    uuid: &str,
    fields: impl Fn(&mut Writer<'_>) -> usize,
) -> Vec<u8> {
    let mut count = 0;
    let own = frame(|w| count = fields(w));
    frame(|w| {
        w.map(3 + count);
        w.str("type");
        w.str(kind);
        w.raw(&own);
        w.str("version");
        w.u64(1);
        w.str("metadata");
        w.map(5);
        w.str("dtype");
        w.str(pages.dtype());
        for (name, sizes) in [("shape", pages.shape()), ("stride", pages.strides())] {
            w.str(name);
            w.array(sizes.len());
            sizes.iter().for_each(|size| w.u64(*size));
        }
        w.str("storage_offset");
        w.u64(storage_offset);
        w.str("device_uuid");
        w.str(uuid);
    })
}
