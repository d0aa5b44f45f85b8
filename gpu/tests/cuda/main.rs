//! The driver layer on the fake driver: this process is the server, which loads the fake as it
//! would load a driver, and starts itself again as an engine, which exports memory and events.

mod copies;
mod endings;
mod engine;
mod layout;
mod memory;
mod probe;
mod support;
mod transfer;
