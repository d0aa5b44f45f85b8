//! Other people's bytes on the wire: ZMTP framing, msgpack values, requests and answers.
//!
//! Everything here is pure: byte slices in, values out, and the other way round. It knows `event`,
//! `effect` and `names`, and nothing of the engine. Its one invariant: no input makes it panic, and
//! no number that a peer sent sizes an allocation before the bytes it speaks of are there.

pub mod answer;
pub mod client;
pub mod descriptor;
pub mod fields;
pub mod msgpack;
pub mod operation;
pub mod request;
pub mod zmtp;
