//! Tiers below memory.

pub mod index;
