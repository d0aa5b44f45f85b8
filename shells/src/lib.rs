//! The binary: sockets, files, clocks and threads around the core.

pub mod telemetry;
