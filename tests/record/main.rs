//! Recordings: what is written is read, what was run is run again, and nobody can tell from it what
//! was asked.

#[path = "../loopback/harness.rs"]
#[allow(dead_code, reason = "the loopback tests need the rest")]
mod harness;

#[path = "../hostile/bystander.rs"]
#[allow(dead_code, reason = "the tests of hostile clients need the rest")]
mod bystander;

mod codec;
mod damage;
mod dumps;
mod earlier;
mod folder;
mod parts;
mod runs;
