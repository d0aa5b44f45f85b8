//! The engine above lower tiers: lookups that go on below L1.

mod bed;
mod bounds;
mod clears;
mod loads;
mod probes;
mod races;
mod runs;
mod shelves;
mod store_runs;
mod stores;
