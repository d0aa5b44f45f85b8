//! The shells around the pure core: threads, sockets, memory, clocks and operators.

pub mod admin;
pub mod arena;
pub mod bench;
pub mod cli;
pub mod clock;
pub mod ending;
pub mod entropy;
pub mod log;
pub mod object_key;
pub mod paged;
pub mod reactor;
pub mod record;
pub mod replay;
pub mod serve;
pub mod server;
pub mod sockets;
pub mod telemetry;
pub mod tiers;
pub mod version;
