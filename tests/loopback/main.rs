//! The reactor over real sockets: whatever clients do, the others are served and nothing stays.

mod harness;

mod bodies;
mod budgets;
mod departures;
mod disks;
mod fairness;
mod orders;
mod paged;
mod protocol;
mod shutdown;
mod stalls;
