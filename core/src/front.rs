//! Turns requests into what the engine understands: decoded, checked and hashed.

pub mod hash;
pub mod key;
pub mod memo;
