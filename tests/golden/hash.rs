//! Chunk hashes, KV ranks and object names against vectors made by the real peer
//! (`golden/hash.json`, spec/transfer §1.7).

use kvtide_core::config::HashAlgorithm;
use kvtide_core::format::names::{HashBytes, ObjectName};
use kvtide_core::front::hash::{ChunkHasher, seed};
use kvtide_core::names::{ChunkHash, KvRank};
use serde_json::Value;
use std::borrow::Cow;

fn golden() -> Value {
    serde_json::from_str(include_str!("hash.json")).expect("the vectors are JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).expect("a number of 32 bits")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn hash_of(value: &Value) -> ChunkHash {
    let digits = text(value);
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits");
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    ChunkHash(bytes.try_into().expect("32 bytes"))
}

fn hashes_of(value: &Value) -> Vec<ChunkHash> {
    list(value).iter().map(hash_of).collect()
}

fn tokens_of(value: &Value) -> Vec<u32> {
    match value.get("range") {
        Some(range) => (number(&range[0])..number(&range[1])).collect(),
        None => list(value).iter().map(number).collect(),
    }
}

fn chain(
    algorithm: HashAlgorithm,
    chunk: u32,
    prefix: Option<ChunkHash>,
    tokens: &[u32],
) -> Vec<ChunkHash> {
    let mut hasher = ChunkHasher::new(algorithm, chunk);
    hasher.restart(prefix);
    let mut hashes = Vec::new();
    hasher.feed(tokens, |hash| hashes.push(hash));
    hashes
}

#[test]
fn blake3_chains_are_the_peers() {
    let golden = golden();
    assert_eq!(seed(HashAlgorithm::Blake3), hash_of(&golden["none_hash_hex"]));
    for vector in list(&golden["hash_vectors"]) {
        let tokens = tokens_of(&vector["tokens"]);
        let chunk = number(&vector["chunk_size"]);
        let prefix = Some(&vector["prefix_hash_hex"]).filter(|hex| !hex.is_null()).map(hash_of);
        let end = vector["end"].as_u64().map_or(tokens.len(), |end| tokens.len().min(end as usize));
        let first = number(&vector["start"]).div_ceil(chunk) as usize;
        let hashes = chain(HashAlgorithm::Blake3, chunk, prefix, &tokens[..end]);
        assert_eq!(
            hashes[first.min(hashes.len())..],
            hashes_of(&vector["chunk_hashes_hex"]),
            "{}",
            text(&vector["name"])
        );
    }
}

#[test]
fn an_end_between_chunks_is_rounded_down() {
    let tokens: Vec<u32> = (0..16).collect();
    let hashes = chain(HashAlgorithm::Blake3, 4, None, &tokens[..10]);
    assert_eq!(hashes, hashes_of(&golden()["unaligned_end_10_of_16"]));
}

#[test]
fn sha256_cbor_chains_are_the_peers() {
    let golden = &golden()["sha256_cbor"];
    assert_eq!(seed(HashAlgorithm::Sha256Cbor), hash_of(&golden["none_hash_hex"]));
    let tokens = tokens_of(&golden["tokens"]);
    let hashes = chain(HashAlgorithm::Sha256Cbor, number(&golden["chunk_size"]), None, &tokens);
    assert_eq!(hashes, hashes_of(&golden["chunk_hashes_hex"]));
}

/// The peer does not mask ranks of worlds over 255, so they would collide: we refuse them.
#[test]
fn kv_ranks_are_the_peers_up_to_a_world_of_255() {
    for vector in list(&golden()["kv_rank"]) {
        let (world, worker) = (number(&vector["world_size"]), number(&vector["worker_id"]));
        let rank = vector["kv_rank"].as_u64().expect("a number");
        match u32::try_from(rank) {
            Ok(rank) => assert_eq!(KvRank::of(world, worker), Some(KvRank(rank))),
            Err(_) => assert_eq!(KvRank::of(world, worker), None),
        }
    }
}

#[test]
fn i48_object_names_are_the_peers_and_read_back() {
    for vector in list(&golden()["object_keys"]) {
        let key = &vector["ipc_key"];
        let chunk = number(&vector["chunk_size"]);
        let (start, end) = (number(&key["start"]) / chunk, number(&key["end"]) / chunk);
        let hashes = chain(HashAlgorithm::Blake3, chunk, None, &tokens_of(&key["token_ids"]));
        let world = number(&key["world_size"]);
        let workers = match key["worker_id"].as_u64() {
            Some(worker) => worker as u32..worker as u32 + 1,
            None => 0..world,
        };
        let groups = list(&vector["object_group_ids"]).iter().map(number);
        for (group, expected) in groups.zip(list(&vector["object_keys_per_group"])) {
            // Chunk-major, then rank-minor (spec/transfer §1.5).
            let ours: Vec<ObjectName> = hashes[start as usize..end as usize]
                .iter()
                .flat_map(|hash| workers.clone().map(move |worker| (*hash, worker)))
                .map(|(hash, worker)| ObjectName {
                    model: Cow::Borrowed(text(&key["model_name"])),
                    rank: KvRank::of(world, worker).expect("a legal world"),
                    group,
                    hash: HashBytes::from(hash),
                    salt: text(&key["cache_salt"]),
                })
                .collect();
            assert_eq!(ours.len(), list(expected).len());
            for (ours, expected) in ours.iter().zip(list(expected)) {
                assert_eq!(ours.hash.chunk_hash(), Some(hash_of(&expected["chunk_hash_hex"])));
                assert_eq!(ours.rank.0, number(&expected["kv_rank"]));
                let (native, file) =
                    (text(&expected["native_string"]), text(&expected["fs_filename"]));
                assert_eq!(ours.native().as_deref(), Ok(native));
                assert_eq!(ours.file().as_deref(), Ok(file));
                assert_eq!(ObjectName::parse_native(native).as_ref(), Ok(ours));
                assert_eq!(ObjectName::parse_file(file).as_ref(), Ok(ours));
            }
        }
    }
}

/// Rows are group-major, then rank-minor, each in chunk order (spec/transfer §1.5).
#[test]
fn lookup_rows_are_the_peers() {
    let golden = golden();
    let rows = list(&golden["lookup_rows"]);
    let tokens: Vec<u32> = (0..8).collect();
    let hashes = chain(HashAlgorithm::Blake3, 4, None, &tokens);
    let order: Vec<(u32, u32)> =
        rows.iter().map(|row| (number(&row["object_group_id"]), number(&row["kv_rank"]))).collect();
    let rank = |worker| KvRank::of(2, worker).expect("a legal world").0;
    let expected: Vec<(u32, u32)> =
        (0..2).flat_map(|group| (0..2).map(move |worker| (group, rank(worker)))).collect();
    assert_eq!(order, expected);
    for row in rows {
        assert_eq!(hashes_of(&row["chunk_hashes_hex"]), hashes);
    }
}
