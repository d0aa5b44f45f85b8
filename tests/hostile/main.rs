//! The release binary against clients that are broken, dying or hostile. In each test a client that
//! behaves stores, looks up and reads back its bytes before, during and after; when everybody has
//! left, `/status` shows nothing of them (P1, P3, P4).

#[path = "../loopback/harness.rs"]
#[allow(dead_code, reason = "the loopback tests need the rest")]
mod harness;

mod bystander;
mod deaths;
mod descriptors;
mod ending;
mod floods;
mod requests;
mod running;
