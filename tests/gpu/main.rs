//! Server-driven transfer on cards, end to end: this process is the engine and speaks to a driver
//! and to the wire by itself; the server is the release binary. Without a card the driver of both
//! is the fake one (docs/gpu.md); `KVTIDE_CUDA` names a real one to be used instead, and then what
//! only the fake can be told (to be late, to fail, to be held up) is left out with a line.

mod bed;
mod cache;
mod card;
mod endings;
mod faults;
mod layouts;
mod memory;
mod orders;
mod pages;
mod refusals;
mod worker;
