//! Lower tiers on real files: every way a transfer can take, on a ring and on threads, and what
//! happens where the system refuses, fails, fills up or hangs.

mod bed;

mod faults;
mod limits;
mod objects;
mod wakes;
