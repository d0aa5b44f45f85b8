//! Everything that touches a card, and the host path with the same face.
//!
//! Today this is [`host`]: bounds-checked copies between request bodies and host memory, which
//! serve every engine that sends its tensors inside messages, and copies from and to the paged cache
//! of an engine on the CPU. Nothing here needs a card, a driver or a toolkit.
//!
//! The one invariant: a copy stays inside the region that it was given.

pub mod host;
