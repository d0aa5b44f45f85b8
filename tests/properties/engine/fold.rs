//! The fold against the sentence that defines it (spec/storage §5.2).

use super::driver::cases;
use kvtide_core::engine::fold::{Fold, Next, Window};
use proptest::prelude::*;

/// `max{L : every row has its last min(window, L) chunks of [0, L)}`.
fn reference(windows: &[Window], rows: &[Vec<bool>]) -> usize {
    let chunks = rows[0].len();
    let servable = |length: &usize| {
        windows.iter().zip(rows).all(|(window, row)| {
            let needed = window.map_or(*length, |window| (window as usize).min(*length));
            row[length - needed..*length].iter().all(|present| *present)
        })
    };
    (0..=chunks).rev().find(servable).expect("nothing is always servable")
}

fn folded(windows: &[Window], rows: &[Vec<bool>]) -> usize {
    let mut fold = Fold::new(windows.iter().copied());
    let (mut chunk, chunks) = (0, rows[0].len());
    while chunk < chunks && fold.feed(|row| rows[row][chunk]) == Next::More {
        chunk += 1;
    }
    fold.hit() as usize
}

fn shapes() -> impl Strategy<Value = (Vec<Window>, Vec<Vec<bool>>)> {
    (1..5usize, 0..12usize).prop_flat_map(|(rows, chunks)| {
        let window = prop_oneof![Just(None), (1..6u32).prop_map(Some)];
        let present = prop_oneof![4 => Just(true), 1 => Just(false)];
        (
            proptest::collection::vec(window, rows),
            proptest::collection::vec(proptest::collection::vec(present, chunks), rows),
        )
    })
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn i28_the_hit_is_the_longest_servable_prefix((windows, rows) in shapes()) {
        prop_assert_eq!(folded(&windows, &rows), reference(&windows, &rows));
    }

    #[test]
    fn i28_more_presence_never_shortens_the_hit(
        (windows, rows) in shapes(),
        row in any::<prop::sample::Index>(),
        chunk in any::<prop::sample::Index>(),
    ) {
        let before = folded(&windows, &rows);
        let mut more = rows.clone();
        let row = row.index(more.len());
        if !more[row].is_empty() {
            let chunk = chunk.index(more[row].len());
            more[row][chunk] = true;
        }
        prop_assert!(folded(&windows, &more) >= before);
    }

    #[test]
    fn i28_without_windows_the_shortest_row_decides((_, rows) in shapes()) {
        let windows = vec![None; rows.len()];
        let leading = |row: &Vec<bool>| row.iter().take_while(|present| **present).count();
        let shortest = rows.iter().map(leading).min().expect("there is a row");
        prop_assert_eq!(folded(&windows, &rows), shortest);
    }
}
