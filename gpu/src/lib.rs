//! Everything that touches a card, and the host path with the same face.
//!
//! [`host`] is bounds-checked copies between request bodies and host memory, which serve every
//! engine that sends its tensors inside messages, and copies from and to the paged cache of an
//! engine on the CPU. [`cuda`] is the driver layer for engines that export their device memory;
//! nothing of it needs a toolkit, and without a driver it says so in a sentence. It has met no card
//! yet: docs/gpu.md.
//!
//! The one invariant: a copy stays inside the region that it was given.

pub mod cuda;
pub mod host;
