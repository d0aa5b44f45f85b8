//! placeholder

pub mod space;
