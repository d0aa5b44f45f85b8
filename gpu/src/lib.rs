//! Everything that touches a card, and the host path with the same face.
//!
//! Today this is [`host`]: bounds-checked copies between request bodies and host memory, which is
//! what serves every engine that sends its tensors inside messages. The CUDA driver layer (imported
//! handles, streams, batched copies) comes beside it with server-driven transfer; until then
//! nothing here needs a card, a driver or a toolkit.
//!
//! The one invariant: a copy stays inside the region that it was given.

pub mod host;
