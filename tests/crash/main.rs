//! Real crashes: the real client under load, killed and stopped at random points, and the server
//! with it. What everybody has done is in their histories; a verdict over them says whether every
//! byte, every hit and every refusal was right (I-7, I-20, I-47).
//!
//! `KVTIDE_CRASH_ROUNDS` runs so many rounds instead of two, each with the next seed;
//! `KVTIDE_CRASH_SEED` names the first one.

mod history;
mod member;
mod plan;
mod round;
mod verdict;
mod verdict_tests;

use kvtide_tests::client::switched_off;

fn number(name: &str, otherwise: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return otherwise };
    text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}"))
}

#[test]
fn i20_after_crashes_of_anybody_no_byte_is_wrong_and_nothing_is_left() {
    if switched_off() {
        println!("left out: KVTIDE_WITHOUT_CLIENT=1");
        return;
    }
    let first = number("KVTIDE_CRASH_SEED", 1);
    for seed in first..first + number("KVTIDE_CRASH_ROUNDS", 2) {
        match round::play(seed) {
            Ok(counts) => println!("seed {seed}: {counts}"),
            Err(why) => panic!("KVTIDE_CRASH_SEED={seed} KVTIDE_CRASH_ROUNDS=1: {why}"),
        }
    }
}
