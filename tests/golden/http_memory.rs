//! What the peer says over HTTP of engines whose memory it knows: sums over their blocks, and their
//! part of `/status`. That both servers sum the same bytes is seen by `cargo client-full`.

use super::*;
use kvtide_core::pages::{Described, Format, Group, Hint, Pages};

/// Instance 1 has what was asked for, counted; others are there for what can be wrong.
pub fn sum(instance: InstanceId, wanted: SumWanted) -> Result<Summed, SumFault> {
    let layers = wanted.layerwise.then_some(2);
    let chunks = wanted.blocks.len().div_ceil(wanted.chunk_size.max(1) as usize);
    let count = chunks * layers.unwrap_or(1);
    match instance.0 {
        1 => Ok(Summed {
            sums: (0..count as u8).map(|at| [at; 16]).collect(),
            chunks,
            layers,
            wanted,
        }),
        2 => Err(SumFault::NoBlocks),
        3 => Err(SumFault::ChunkSize),
        4 => Err(SumFault::Format(Format::PackedSlot)),
        5 => Err(SumFault::Outside),
        6 => Err(SumFault::Sums),
        7 => Err(SumFault::Busy),
        8 => Err(SumFault::Card),
        _ => Err(SumFault::Unknown),
    }
}

fn post(server: &Server, body: Value) -> Answer {
    exchange(server.http, "POST", "/cache/checksums", body.to_string().as_bytes())
}

#[test]
fn sums_are_refused_in_the_peers_words() {
    let server = Server::new();
    for name in ["nobody_422", "badjson_422", "list_422", "badtype_422", "badlist_422"] {
        server.same(&format!("cache_checksums_{name}"));
    }
    server.same("cache_checksums_unknown_404");
    let told = |instance: i64| {
        let answer = post(&server, json!({ "instance_id": instance, "block_ids": [1] }));
        let json = answer.json();
        (answer.status, json["detail"].as_str().expect("a sentence").to_owned())
    };
    assert_eq!(told(2), (400, "block_ids is required".to_owned()));
    assert_eq!(told(3), (400, "chunk_size must be positive".to_owned()));
    let text = "checksum not supported for GPU KV format NL_X_NB_BS_NH_CS";
    assert_eq!(told(4), (501, text.to_owned()));
    // Ours alone: the peer answers 500 without a word, or has no such bound.
    assert_eq!(told(5).0, 400);
    assert_eq!(told(6).0, 400);
    assert_eq!(told(7).0, 503);
    assert_eq!(told(8).0, 501);
}

#[test]
fn sums_are_told_chunk_by_chunk_or_layer_by_layer() {
    let server = Server::new();
    let ask = |layerwise| {
        let body = json!({
            "block_ids": [7, 3, 4, 5, 9],
            "chunk_size": 2,
            "instance_id": 1,
            "layerwise": layerwise,
        });
        let answer = post(&server, body);
        assert_eq!((answer.status, answer.content_type()), (200, "application/json"));
        answer.json()
    };
    let sum = |at: u8| format!("{at:02x}").repeat(16);
    let whole = json!({
        "status": "success",
        "chunk_size": 2,
        "num_chunks": 3,
        "chunk_checksums": [sum(0), sum(1), sum(2)],
        "layerwise": false,
        "block_id_ranges": [7, [3, 5], 9],
    });
    assert_eq!(ask(false), whole);
    let layers =
        json!({ "layer_0": [sum(0), sum(2), sum(4)], "layer_1": [sum(1), sum(3), sum(5)] });
    assert_eq!(ask(true)["chunk_checksums"], layers);
}

#[test]
fn a_server_that_knows_no_memory_sums_nothing() {
    let config = Config { transfer_modes: TransferModes::EngineDriven, ..Config::default() };
    let server = Server::with(Scripted::default(), config, Value::Null);
    let answer = post(&server, json!({ "instance_id": 1 }));
    assert_eq!(answer.status, 501);
    assert_eq!(answer.json(), json!({ "detail": "checksum not supported for this engine type" }));
    let silent = Server::with(
        Scripted { full: true, ..Scripted::default() },
        Config::default(),
        Value::Null,
    );
    assert_eq!(post(&silent, json!({ "instance_id": 1 })).status, 503);
}

#[test]
fn an_engine_whose_memory_is_known_has_the_peers_status() {
    let (shape, stride) = ([2, 64, 16, 2, 32], [65_536, 1024, 64, 32, 1]);
    let dtype = Dtype::named("float16").expect("it is a type");
    let tensor = Described { shape: &shape, stride: &stride, storage_offset: 0, dtype };
    let group = Group { tokens_per_block: 0, window_tokens: None };
    let pages = Pages::discover([tensor; 4].into_iter(), Some(Hint::Nhd), group, 16);
    let pages = pages.expect("it is a layout");
    let instance = InstanceStatus {
        id: InstanceId(1000),
        model: "test-model".to_owned(),
        world_size: 1,
        block_size: 16,
        layout: pages.layout(),
        pages: Some(pages),
        mode: Mode::ServerDriven,
        pinged: true,
        silent_for: Duration::from_secs(3),
    };
    let engine = Status { instances: vec![instance], ..l1_of(39, 638_976) };
    let ours = status_of(engine, TransferModes::Auto);
    let peer = &golden("status_lmcache_driven")["json"];
    for key in ["registered_gpu_ids", "cache_context_meta", "worker_liveness"] {
        assert_eq!(peer[key], ours[key], "{key}");
    }
    assert_eq!(ours["registered_non_cuda_instance_ids"], json!([]));
    assert_eq!(ours["non_cuda_context_meta"], json!({}));
    assert_eq!(ours["kvtide"]["instances"]["1000"]["transfer"], "server_driven");
}
