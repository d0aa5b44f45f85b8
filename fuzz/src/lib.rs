//! What the fuzz targets do with an input. `tests/fuzz_seeds.rs` includes this file, so that every
//! committed input is replayed by `cargo test --workspace` without a nightly toolchain.
//!
//! A target does not only wait for a panic: it says what holds for any input.

pub mod msgpack;
pub mod request;
pub mod zmtp;

/// Every target by the name of its folder of seeds.
pub const TARGETS: &[(&str, fn(&[u8]))] =
    &[("msgpack", msgpack::run), ("request", request::run), ("zmtp", zmtp::run)];
