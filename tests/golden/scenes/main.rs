//! Scenes: short stories of a server's life, as the engine sees and tells them.
//!
//! A transcript shows every event with its answers and facts, so that a change of any decision is
//! seen, and seen as a whole. `INSTA_UPDATE=always` writes them anew; the difference is the review.
//! They are also what a newcomer learns from: `docs/scenes.md` names all of them and goes through
//! three line by line.

#[path = "../../engine/harness.rs"]
mod harness;
#[path = "../../engine/transcript.rs"]
mod transcript;

mod clients;
mod leases;
mod lookups;
mod page;
mod room;
mod stage;
mod writers;
