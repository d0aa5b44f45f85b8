//! What the fuzz targets do with an input. `tests/fuzz_seeds.rs` includes this file, so that every
//! committed input is replayed by `cargo test --workspace` without a nightly toolchain.
//!
//! A target does not only wait for a panic: it says what holds for any input.

pub mod engine;
pub mod front;
pub mod hashes;
pub mod http;
pub mod index;
pub mod keys;
pub mod msgpack;
pub mod names;
pub mod pickle;
pub mod recording;
pub mod reference;
pub mod request;
pub mod zmtp;

/// Takes one input; panics where it finds something.
pub type Target = fn(&[u8]);

/// Every target by the name of its folder of seeds.
pub const TARGETS: &[(&str, Target)] = &[
    ("engine", engine::run),
    ("front", front::run),
    ("hashes", hashes::run),
    ("http", http::run),
    ("index", index::run),
    ("keys", keys::run),
    ("msgpack", msgpack::run),
    ("names", names::run),
    ("pickle", pickle::run),
    ("recording", recording::run),
    ("request", request::run),
    ("zmtp", zmtp::run),
];

/// Frames, each behind its length in two bytes, big end first. The last one may be cut.
fn frames(mut input: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = input.split_at_checked(2) {
        let bytes = usize::from(u16::from_be_bytes([head[0], head[1]])).min(rest.len());
        let (frame, rest) = rest.split_at(bytes);
        frames.push(frame);
        input = rest;
    }
    frames
}
