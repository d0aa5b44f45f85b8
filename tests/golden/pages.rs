//! Geometry of paged KV caches, and what objects of them hold, against vectors made by the real
//! peer (`golden/pages.json`, spec/transfer §3.6 and §5.5.6).
//!
//! The peer ran its own discovery and its own copies on memory of the host. `object` is the CRC of
//! what it stored of the blocks `ids` behind `skip`, `stores` those of all tensors after it had
//! loaded another object into them. A vector without `found` was refused.

use kvtide_core::names::Dtype;
use kvtide_core::pages::{Described, Group, Hint, Pages, PagesFault, Run, Shape};
use serde_json::Value;

fn golden() -> Vec<Value> {
    serde_json::from_str(include_str!("pages.json")).expect("the vectors are JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn discover(vector: &Value) -> Result<Pages, PagesFault> {
    let tensor = Described {
        shape: &numbers(&vector["shape"]),
        stride: &numbers(&vector["stride"]),
        storage_offset: number(&vector["offset"]),
        dtype: dtype(vector),
    };
    let hint = vector["hint"].as_str().map(|name| Hint::named(name).expect("the peer has it"));
    let window = vector["window"].as_i64().expect("a number");
    let group = Group {
        tokens_per_block: number(&vector["tokens_per_block"]) as u32,
        window_tokens: u32::try_from(window).ok(),
    };
    let tensors = std::iter::repeat_n(tensor, number(&vector["tensors"]) as usize);
    Pages::discover(tensors, hint, group, number(&vector["chunk"]) as u32)
}

fn dtype(vector: &Value) -> Dtype {
    Dtype::named(vector["dtype"].as_str().expect("a text")).expect("the peer has it")
}

/// What memory held before: of tensor `number`, or of an object.
fn fill(bytes: usize, number: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(2_654_435_761) + number * 97) >> 11;
    (0..bytes as u64).map(|at| byte(at) as u8).collect()
}

/// The bytes of a run on both sides: in its tensor and in the object.
fn pairs(run: Run) -> impl Iterator<Item = (usize, usize)> {
    (0..run.bytes as usize).map(move |at| {
        let across = match run.shape {
            Shape::Flat => at,
            Shape::Heads { heads, slots, row_bytes } => {
                let [heads, slots, row] = [heads, slots, row_bytes].map(|each| each as usize);
                let line = at / row;
                (line % slots * heads + line / slots) * row + at % row
            }
        };
        (run.page as usize + at, run.object as usize + across)
    })
}

#[test]
fn the_peer_finds_the_same_geometry() {
    let mut refused = 0;
    for vector in golden() {
        let found = &vector["found"];
        if found.is_null() {
            assert!(discover(&vector).is_err(), "{vector}");
            refused += 1;
            continue;
        }
        let pages = discover(&vector).unwrap_or_else(|fault| panic!("{fault:?}: {vector}"));
        let ours = [
            ("format", pages.format.number().into()),
            ("planes", pages.planes.into()),
            ("layers", pages.layers),
            ("blocks", pages.blocks),
            ("slots", pages.slots_per_block),
            ("heads", pages.heads),
            ("width", pages.width),
            ("object_slots", pages.object_slots),
            ("per_chunk", pages.blocks_per_chunk()),
            ("per_object", pages.blocks_per_object()),
            ("skip", pages.blocks_skipped(number(&found["skip_tokens"]), 0)),
        ];
        for (name, value) in ours {
            assert_eq!(u64::from(value), number(&found[name]), "{name}: {vector}");
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn the_peer_stores_and_loads_the_same_bytes() {
    let mut loaded = 0;
    for vector in golden().into_iter().filter(|vector| !vector["found"].is_null()) {
        let found = &vector["found"];
        let pages = discover(&vector).expect("the peer took it");
        let ids: Vec<u32> = numbers(&found["ids"]).iter().map(|id| *id as u32).collect();
        let mut runs = Vec::new();
        pages.plan(&ids, number(&found["skip"]) as u32, &mut runs).expect("all blocks are there");
        let base = number(&vector["offset"]) as usize * dtype(&vector).bytes() as usize;
        let span = base + pages.tensor_bytes() as usize;
        let tensors = (0..pages.tensors.into()).map(|at| fill(span, at));
        let mut tensors: Vec<Vec<u8>> = tensors.collect();
        let mut object = vec![0xaa; pages.layout().bytes().expect("it fits") as usize];
        for run in &runs {
            for (page, at) in pairs(*run) {
                object[at] = tensors[run.tensor as usize][base + page];
            }
        }
        assert_eq!(u64::from(crc32fast::hash(&object)), number(&found["object"]), "{vector}");
        // Of blocks that are named twice, the peer's order of writing is not told.
        if found["stores"].is_null() {
            continue;
        }
        loaded += 1;
        let object = fill(object.len(), 50);
        for run in &runs {
            for (page, at) in pairs(*run) {
                tensors[run.tensor as usize][base + page] = object[at];
            }
        }
        let sums = tensors.iter().map(|bytes| crc32fast::hash(bytes).into());
        assert_eq!(sums.collect::<Vec<u64>>(), numbers(&found["stores"]), "{vector}");
    }
    assert!(loaded > 40, "{loaded}");
}
