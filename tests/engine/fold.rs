//! What a row with a window may let go of a hit.

use kvtide_core::engine::fold::{Fold, Next, Window};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn cases() -> impl Strategy<Value = (Vec<Window>, Vec<Vec<bool>>)> {
    let window = prop_oneof![2 => Just(None), 3 => (0..6u32).prop_map(Some)];
    (proptest::collection::vec(window, 1..5), 0..24usize).prop_flat_map(|(windows, chunks)| {
        // Mostly present, else nearly every hit is 0 or 1.
        let row = proptest::collection::vec(proptest::bool::weighted(0.85), chunks);
        let rows = proptest::collection::vec(row, windows.len());
        (Just(windows), rows)
    })
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn i28_what_a_hit_retains_is_present((windows, rows) in cases()) {
        let mut fold = Fold::new(windows.iter().copied());
        let mut chunks = 0..rows[0].len();
        let decided = chunks.any(|chunk| fold.feed(|row| rows[row][chunk]) == Next::Decided);
        prop_assert!(decided || chunks.is_empty());
        let hit = fold.hit();
        for (at, row) in rows.iter().enumerate() {
            let first = fold.first_retained(at, hit);
            let kept = windows[at].map_or(hit, |window| window.min(hit));
            prop_assert_eq!(hit - first, kept);
            prop_assert!(row[first as usize..hit as usize].iter().all(|present| *present));
        }
    }
}
