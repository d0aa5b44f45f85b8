//! The flight recorder: the last minute in memory, in frames that are shared with whoever writes
//! them. Its one invariant: it never holds more than its bound, and always begins with a frame that
//! can be read without those before it.

use kvtide_core::recording::Frame;
use kvtide_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Frames in groups that are dropped as a whole.
#[derive(Debug, Default)]
pub struct Flight {
    scopes: VecDeque<Scope>,
    bytes: u64,
}

#[derive(Debug)]
struct Scope {
    began: Instant,
    frames: Vec<Frame>,
    bytes: u64,
}

impl Flight {
    pub fn keep(&mut self, frame: Frame, now: Instant) {
        let bytes = frame.entries.len() as u64 + FRAME_OVERHEAD;
        self.bytes += bytes;
        match self.scopes.back_mut() {
            Some(scope) if !frame.is_fresh => {
                scope.bytes += bytes;
                scope.frames.push(frame);
            }
            _ => {
                let began = frame.began;
                self.scopes.push_back(Scope { began, frames: vec![frame], bytes });
            }
        }
        while self.is_first_too_much(now) {
            let scope = self.scopes.pop_front().expect("it was just looked at");
            self.bytes -= scope.bytes;
        }
    }

    /// Oldest first. Copies share their entries.
    pub fn frames(&self) -> Vec<Frame> {
        self.scopes.iter().flat_map(|scope| scope.frames.iter().cloned()).collect()
    }

    /// Without the first scope there is still a minute, or there is no room for it.
    fn is_first_too_much(&self, now: Instant) -> bool {
        match self.scopes.get(1) {
            Some(second) => self.bytes > BYTES_MAX || now.since(second.began) >= KEPT,
            None => self.bytes > BYTES_MAX,
        }
    }
}

const KEPT: Duration = Duration::from_secs(60);
/// All of it, allocated as it fills.
pub const BYTES_MAX: u64 = 64 << 20;
/// What a frame takes beside its entries.
const FRAME_OVERHEAD: u64 = (size_of::<Frame>() + 64) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::recording::Mark;

    fn frame(number: u64, at_seconds: u64, is_fresh: bool, bytes: usize) -> Frame {
        Frame {
            number,
            first_event: number,
            began: Instant::from_secs(at_seconds),
            is_fresh,
            mark: Mark::None,
            entries: vec![0; bytes].into(),
        }
    }

    #[test]
    fn a_minute_is_kept_and_little_more() {
        let mut flight = Flight::default();
        for second in 0..200 {
            flight.keep(frame(second, second, second % 5 == 0, 10), Instant::from_secs(second));
            let frames = flight.frames();
            assert!(frames[0].is_fresh);
            assert!(frames.len() as u64 > second.min(60), "{} at {second}", frames.len());
            assert!(frames.len() <= 66, "{} at {second}", frames.len());
        }
        let numbers: Vec<u64> = flight.frames().iter().map(|frame| frame.number).collect();
        assert!(numbers.is_sorted() && numbers.ends_with(&[198, 199]));
    }

    #[test]
    fn it_never_holds_more_than_its_bound() {
        let mut flight = Flight::default();
        for number in 0..200 {
            flight.keep(frame(number, 1, number % 4 == 0, 1 << 20), Instant::from_secs(1));
            assert!(flight.bytes <= BYTES_MAX);
            let frames = flight.frames();
            let bytes: usize = frames.iter().map(|frame| frame.entries.len()).sum();
            assert!(frames[0].is_fresh && bytes as u64 <= BYTES_MAX);
        }
        assert!(flight.frames().len() >= 60, "most of the room is used");
    }
}
