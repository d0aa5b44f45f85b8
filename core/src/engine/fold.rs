//! From presence to usable prefix (spec/storage §5.2).
//!
//! A prefix of L chunks is servable when every row has its last `min(window, L)` chunks of it; a
//! row without a window needs all L. The hit is the longest servable prefix. Fed chunk by chunk, so
//! that a lookup of any length can stop and go on.

use smallvec::SmallVec;

/// How much of the tail of a prefix a row needs. None: all of it.
pub type Window = Option<u32>;

#[derive(Clone, Debug, Default)]
pub struct Fold {
    windows: SmallVec<[Window; 8]>,
    /// Present chunks in a row, up to the last one fed.
    runs: SmallVec<[u32; 8]>,
    chunks: u32,
    hit: u32,
}

/// Whether feeding more chunks can still lengthen the hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    More,
    Decided,
}

impl Fold {
    pub fn new(windows: impl IntoIterator<Item = Window>) -> Fold {
        let windows: SmallVec<[Window; 8]> = windows.into_iter().collect();
        let runs = SmallVec::from_elem(0, windows.len());
        Fold { windows, runs, chunks: 0, hit: 0 }
    }

    /// Takes in the next chunk of every row.
    pub fn feed(&mut self, mut is_present: impl FnMut(usize) -> bool) -> Next {
        self.chunks += 1;
        let mut servable = true;
        for (row, window) in self.windows.iter().enumerate() {
            let run = if is_present(row) { self.runs[row] + 1 } else { 0 };
            self.runs[row] = run;
            match window {
                None if run < self.chunks => return Next::Decided,
                None => {}
                Some(window) => servable &= run >= (*window).min(self.chunks),
            }
        }
        if servable {
            self.hit = self.chunks;
        }
        Next::More
    }

    /// Chunks of the longest servable prefix so far.
    pub fn hit(&self) -> u32 {
        self.hit
    }

    /// The first chunk of a row that a prefix of `hit` chunks needs.
    pub fn first_retained(&self, row: usize, hit: u32) -> u32 {
        self.windows[row].map_or(0, |window| hit.saturating_sub(window))
    }

    pub fn has_windows(&self) -> bool {
        self.windows.iter().any(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(windows: &[Window], rows: &[&str]) -> u32 {
        let mut fold = Fold::new(windows.iter().copied());
        for chunk in 0..rows[0].len() {
            if fold.feed(|row| rows[row].as_bytes()[chunk] == b'x') == Next::Decided {
                break;
            }
        }
        fold.hit()
    }

    #[test]
    fn i28_all_rows_are_needed() {
        assert_eq!(hit(&[None, None], &["xxx.", "xx.x"]), 2);
        assert_eq!(hit(&[None], &[".xxx"]), 0);
    }

    #[test]
    fn i28_a_window_may_have_a_hole_before_it() {
        assert_eq!(hit(&[None, Some(2)], &["xxxx", "x.xx"]), 4);
        assert_eq!(hit(&[None, Some(2)], &["xxxx", "xx.x"]), 2);
        assert_eq!(hit(&[None, Some(1)], &["xxxx", "...x"]), 4);
    }
}
