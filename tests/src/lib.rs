//! What the tests of the whole program share: how to build, start, ask and stop the release
//! binary, and how to have the real client.
//!
//! Nothing here sleeps. Waiting is always waiting *for* something (a process that ends, a socket
//! that answers) with a bound, and a bound that is reached is an error that says what was awaited.

pub mod binary;
pub mod child;
pub mod client;
pub mod http;
pub mod load;
pub mod metrics;
pub mod server;
pub mod tidy;
