//! The release binary where it will live: in containers, beside other servers and other users, with
//! too little memory, and with clients that stop.
//!
//! What needs namespaces or another user makes them with `unshare` and `setpriv`. Where the machine
//! does not allow that, a test says so in one printed line and passes what it can.

mod client;
mod launch;

mod condemned;
mod limits;
mod memory;
mod mounts;
mod names;
mod pages;
mod torn;
mod users;
