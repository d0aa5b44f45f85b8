//! Messages of one server, one after the other, as the front turns them into asks.
//!
//! ```text
//! input   | u16be length | bytes | …   frames from the operation on; an empty frame ends a message
//! ```
//!
//! Whatever a turn may read at once, and whatever earlier messages left in the token memo, a
//! message comes to the same ask or answer. Only `end_session` may differ without a memo: the
//! hashes that it touches are a hint.

use super::frames;
use kvtide_core::config::Config;
use kvtide_core::effect::Outbox;
use kvtide_core::front::{Body, Front, Step};

pub fn run(input: &[u8]) {
    let config = Config { chunk_size: 4, ..Config::default() };
    let mut whole = Front::new(&config);
    let mut slow = Front::new(&config);
    for message in frames(input).split(|frame| frame.is_empty()) {
        let mut frames: Vec<&[u8]> = vec![b"uid"];
        frames.extend(message);
        let once = read(&mut whole, &frames, usize::MAX);
        assert_eq!(read(&mut slow, &frames, 1), once, "a budget changes nothing");
        let forgetful = read(&mut Front::new(&config), &frames, usize::MAX);
        assert!(forgetful == once || once.starts_with("Ask(EndSession"), "{forgetful} and {once}");
    }
}

/// What the message comes to, as text.
fn read(front: &mut Front, frames: &[&[u8]], budget: usize) -> String {
    let bytes: usize = frames.iter().map(|frame| frame.len()).sum();
    let mut job = front.begin(Body::Here);
    let mut out = Outbox::default();
    for _ in 0..=bytes + 1 {
        let step = front.step(&mut job, frames, &mut budget.clone(), &mut out);
        if !matches!(step, Step::More) {
            return format!("{step:?}");
        }
    }
    panic!("a step reads at least a byte");
}
