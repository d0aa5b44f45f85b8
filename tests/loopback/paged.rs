//! Server-driven transfer over real sockets and segments: an engine whose cache lies in shared
//! memory, as the client puts it there on the CPU.

use crate::harness::{Client, Server};
use kvtide_core::engine::Engine;
use kvtide_core::wire::client::{Key, operation_frame};
use kvtide_core::wire::msgpack::Writer;
use kvtide_core::wire::operation::Operation;
use rustix::fs::{Mode, ftruncate};
use rustix::shm;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// `[NB, BS, C]` of u8: blocks of 4 slots of 24 bytes; a chunk has 16 tokens.
const SHAPE: [u64; 3] = [12, 4, 24];
const BLOCK_BYTES: usize = 96;
const LAYERS: usize = 2;

/// An engine on the CPU: two segments, one per layer.
struct Cache {
    names: Vec<String>,
    files: Vec<OwnedFd>,
}

impl Cache {
    fn new(seed: u8) -> Cache {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (mut names, mut files) = (Vec::new(), Vec::new());
        for layer in 0..LAYERS as u8 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("/lmcache_kv_{}_l{count}", std::process::id());
            let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
            let file = shm::open(&*name, flags, Mode::RUSR | Mode::WUSR).expect("a free name");
            let bytes = (0..12 * BLOCK_BYTES).map(|at| (at % 251) as u8 ^ seed ^ layer);
            let bytes = bytes.collect::<Vec<u8>>();
            rustix::io::pwrite(&file, &bytes, 0).expect("a segment takes bytes");
            names.push(name);
            files.push(file);
        }
        Cache { names, files }
    }

    fn block(&self, layer: usize, block: usize) -> Vec<u8> {
        let bytes = fs::read(format!("/dev/shm{}", self.names[layer])).expect("it is there");
        bytes[block * BLOCK_BYTES..][..BLOCK_BYTES].to_vec()
    }

    /// Descriptors of this process that hold one of its segments, beside its own.
    fn held(&self) -> usize {
        let links = fs::read_dir("/proc/self/fd").expect("proc is there").flatten();
        let links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
        let is_ours = |path: &std::path::PathBuf| {
            self.names.iter().any(|name| path.to_string_lossy().contains(name.as_str()))
        };
        links.filter(is_ours).count() - LAYERS
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = shm::unlink(&**name);
        }
    }
}

fn frame(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut Writer::new(&mut bytes));
    bytes
}

fn descriptor(name: &str, bytes: u64) -> Vec<u8> {
    frame(|w| {
        w.map(4);
        w.str("type");
        w.str("cpu_shm");
        w.str("shm_name");
        w.str(name);
        w.str("nbytes");
        w.u64(bytes);
        w.str("version");
        w.u64(1);
    })
    .into_iter()
    .chain(metadata())
    .collect()
}

/// The fifth field of a descriptor's map.
fn metadata() -> Vec<u8> {
    frame(|w| {
        w.str("metadata");
        w.map(5);
        w.str("dtype");
        w.str("uint8");
        w.str("shape");
        w.array(3);
        SHAPE.iter().for_each(|size| w.u64(*size));
        w.str("stride");
        w.array(3);
        [SHAPE[1] * SHAPE[2], SHAPE[2], 1].iter().for_each(|step| w.u64(*step));
        w.str("storage_offset");
        w.u64(0);
        w.str("device_uuid");
        w.str("cpu");
    })
}

/// One that speaks for an engine.
struct Worker {
    client: Client,
    instance: Vec<u8>,
}

impl Worker {
    fn new(server: &Server<Engine>, instance: u64) -> Worker {
        let instance = frame(|w| w.u64(instance));
        Worker { client: Client::open(server.address), instance }
    }

    fn call(&mut self, operation: Operation, payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let operation = operation_frame(operation);
        let mut frames: Vec<&[u8]> = vec![b"u", &operation];
        frames.extend(payloads.iter().map(Vec::as_slice));
        self.client.call(&frames)
    }

    /// None where it is taken, else the reason.
    fn register(&mut self, cache: &Cache) -> Option<String> {
        self.register_named(&cache.names, 12 * BLOCK_BYTES as u64)
    }

    fn register_named(&mut self, names: &[String], bytes: u64) -> Option<String> {
        let caches = frame(|w| {
            w.array(names.len());
            for name in names {
                let mut body = descriptor(name, bytes);
                // Four of the five fields were counted.
                body[0] += 1;
                w.ext(1, &body);
            }
        });
        let text = |text: &str| frame(|w| w.str(text));
        let (one, hints) = (frame(|w| w.u64(1)), frame(|w| w.map(0)));
        let groups = frame(|w| w.array(0));
        let payloads = [self.instance.clone(), caches, text("m"), one, text("vllm"), hints, groups];
        let answer = self.call(Operation::RegisterKvCache, &payloads);
        if answer == [&b"u"[..], &operation_frame(Operation::RegisterKvCache)] {
            return None;
        }
        Some(String::from_utf8_lossy(&answer[1]).into_owned())
    }

    fn key(&self, chunks: u64, worker: Option<u32>, request: &str) -> Vec<u8> {
        let tokens: Vec<u32> = (0..chunks as u32 * 16).collect();
        let (start, end) = (0, chunks * 16);
        let (model, salt) = ("m", "");
        let world_size = 1;
        let readers = 1;
        let key =
            Key { model, world_size, worker, tokens: &tokens, start, end, request, salt, readers };
        let mut bytes = Vec::new();
        key.encode(&mut bytes);
        bytes
    }

    fn transfer(&mut self, operation: Operation, request: &str, blocks: &[u64], skip: u64) -> bool {
        let chunks = blocks.len() as u64 / 4;
        let ids = frame(|w| {
            w.array(1);
            w.array(blocks.len());
            blocks.iter().for_each(|id| w.u64(*id));
        });
        let event = frame(|w| w.bin(b"stub_ipc_handle"));
        let mut payloads =
            vec![self.key(chunks, Some(0), request), self.instance.clone(), ids, event];
        if operation == Operation::Retrieve {
            payloads.push(frame(|w| w.u64(skip)));
        }
        let answer = self.call(operation, &payloads);
        match &answer[2][..] {
            b"\x92\xc4\x00\xc3" => true,
            b"\x92\xc4\x00\xc2" => false,
            other => panic!("no answer to a transfer: {other:?}"),
        }
    }

    fn lookup(&mut self, chunks: u64, request: &str) -> Vec<u8> {
        let payloads = [self.key(chunks, None, request), frame(|w| w.u64(1))];
        self.call(Operation::Lookup, &payloads);
        let payloads = [frame(|w| w.str(request))];
        self.call(Operation::QueryPrefetchStatus, &payloads)[2].clone()
    }
}

#[test]
fn blocks_are_stored_found_and_written_into_other_blocks() {
    let server = Server::start();
    let (one, other) = (Cache::new(0x55), Cache::new(0xAA));
    let (mut writer, mut reader) = (Worker::new(&server, 1), Worker::new(&server, 2));
    assert_eq!(writer.register(&one), None);
    assert_eq!(reader.register(&other), None);
    let source = [3, 1, 2, 11, 7, 8, 9, 10];
    assert!(writer.transfer(Operation::Store, "s", &source, 0));
    assert_eq!(reader.lookup(2, "r"), b"\x02");
    let target = [5, 4, 6, 1, 2, 3, 7, 9];
    // Of the first chunk, a block and a bit are there already.
    assert!(reader.transfer(Operation::Retrieve, "r", &target, 5));
    for layer in 0..LAYERS {
        for (from, to) in source.iter().zip(target).skip(1) {
            let (from, to) = (one.block(layer, *from as usize), other.block(layer, to as usize));
            assert_eq!(from, to, "layer {layer}");
        }
        let untouched = Cache::new(0xAA);
        for block in [0, 5, 8, 10, 11] {
            assert_eq!(other.block(layer, block), untouched.block(layer, block), "{block}");
        }
    }
    assert!(!reader.transfer(Operation::Retrieve, "r", &target, 0), "its leases are used up");
    assert!(!reader.transfer(Operation::Retrieve, "never", &target, 0), "it has no lease");
    server.stop(kvtide::reactor::Signal::Terminate);
}

/// Holding the memory of an engine that has crashed would keep it from the next one.
#[test]
fn f09_the_memory_of_an_engine_that_is_gone_is_let_go() {
    let server = Server::start();
    let cache = Cache::new(1);
    let mut worker = Worker::new(&server, 1);
    assert_eq!(worker.register(&cache), None);
    assert_eq!(cache.held(), LAYERS);
    // The same instance with the same memory: the old hold goes, a new one comes.
    assert_eq!(worker.register(&cache), None);
    server.status();
    assert_eq!(cache.held(), LAYERS);
    drop(worker);
    server.until(|status| status.connections == 0);
    server.status();
    assert_eq!(cache.held(), 0);

    let mut worker = Worker::new(&server, 1);
    assert!(!worker.transfer(Operation::Store, "s", &[1, 2, 3, 4], 0), "it has to register anew");
    assert_eq!(worker.register(&cache), None);
    assert!(worker.transfer(Operation::Store, "s", &[1, 2, 3, 4], 0));
    worker.call(Operation::UnregisterKvCache, &[worker.instance.clone()]);
    server.status();
    assert_eq!(cache.held(), 0);
    server.stop(kvtide::reactor::Signal::Terminate);
}

#[test]
fn a_segment_that_is_missing_short_or_somebody_elses_is_named_in_the_engines_log() {
    let server = Server::start();
    let cache = Cache::new(1);
    let mut worker = Worker::new(&server, 1);
    let bytes = 12 * BLOCK_BYTES as u64;
    let names = |name: &str| vec![cache.names[0].clone(), name.to_owned()];
    let absent = worker.register_named(&names("/lmcache_kv_0_none"), bytes);
    assert!(absent.is_some_and(|why| why.contains("is not there")));
    let denied = worker.register_named(&names("/lmcache_l1_pool_x"), bytes);
    assert!(denied.is_some_and(|why| why.contains("may not be opened")));
    ftruncate(&cache.files[1], 100).expect("it is ours");
    let short = worker.register(&cache);
    assert!(short.is_some_and(|why| why.contains("smaller than its tensors")));
    let beyond = worker.register_named(&cache.names, bytes - 1);
    assert!(beyond.is_some_and(|why| why.contains("reaches beyond its storage")));
    assert_eq!(cache.held(), 0, "nothing of a refused registration is kept");
    server.stop(kvtide::reactor::Signal::Terminate);
}

#[test]
fn block_ids_that_do_not_fit_are_refused_and_touch_nothing() {
    let server = Server::start();
    let cache = Cache::new(1);
    let mut worker = Worker::new(&server, 1);
    assert_eq!(worker.register(&cache), None);
    let before: Vec<Vec<u8>> = (0..12).map(|block| cache.block(0, block)).collect();
    for blocks in [[1, 2, 3, 12], [1, 2, 3, u64::from(u32::MAX)], [1, 2, 3, u64::MAX >> 1]] {
        assert!(!worker.transfer(Operation::Store, "s", &blocks, 0), "{blocks:?}");
        assert!(!worker.transfer(Operation::Retrieve, "s", &blocks, 0), "{blocks:?}");
    }
    assert_eq!(worker.lookup(1, "r"), b"\x00");
    let after: Vec<Vec<u8>> = (0..12).map(|block| cache.block(0, block)).collect();
    assert_eq!(before, after);
    // A chunk of null blocks holds nothing, and that is fine.
    assert!(worker.transfer(Operation::Store, "s", &[0, 0, 0, 0], 0));
    assert_eq!(worker.lookup(1, "r"), b"\x00");
    server.stop(kvtide::reactor::Signal::Terminate);
}

#[test]
fn a_segment_that_is_cut_short_under_way_fails_its_copies_and_nobody_elses() {
    let server = Server::start();
    let (cut, whole) = (Cache::new(1), Cache::new(2));
    let (mut one, mut other) = (Worker::new(&server, 1), Worker::new(&server, 2));
    assert_eq!(one.register(&cut), None);
    assert_eq!(other.register(&whole), None);
    ftruncate(&cut.files[1], 0).expect("it is ours");
    assert!(!one.transfer(Operation::Store, "s", &[1, 2, 3, 4], 0));
    assert_eq!(one.lookup(1, "r"), b"\x00", "nothing of it is published");
    assert!(other.transfer(Operation::Store, "t", &[1, 2, 3, 4], 0));
    assert_eq!(one.lookup(1, "q"), b"\x01");
    assert!(!one.transfer(Operation::Retrieve, "q", &[1, 2, 3, 4], 0));
    assert_eq!(other.lookup(1, "p"), b"\x01");
    assert!(other.transfer(Operation::Retrieve, "p", &[5, 6, 7, 8], 0));
    assert_eq!(whole.block(1, 5), whole.block(1, 1));
    server.stop(kvtide::reactor::Signal::Terminate);
}
