//! Lookups: what a scheduler is told, and what that is good for.

use crate::harness::{Bench, Got, Worker, prompt, scheduler};
use crate::stage::{end, say, stage, stage_of};
use insta::assert_snapshot;
use kvtide_core::effect::Answer;
use kvtide_core::engine::fold::{Fold, Next};
use kvtide_core::event::Ask;
use kvtide_core::time::Duration;

fn two_ranks(bench: &mut Bench) -> [Worker; 2] {
    let ranks = [Worker::new(1).with_rank(0, 2), Worker::new(2).with_rank(1, 2)];
    ranks.iter().for_each(|rank| bench.register(rank));
    ranks
}

#[test]
fn store_hit_and_retrieve_over_shared_memory() {
    let mut bench = stage(8);
    let ranks = two_ranks(&mut bench);
    let prompt = prompt('a', 3);

    say(&mut bench, "nothing is stored yet");
    assert_eq!(bench.hit(&ranks[0], "r1", &prompt), 0);
    bench.end_session("r1");

    say(&mut bench, "both ranks store");
    bench.store(&ranks[0], &prompt, 0..3);
    bench.store(&ranks[1], &prompt, 0..3);

    say(&mut bench, "a hit of all three chunks, retrieved by both ranks");
    bench.advance(Duration::from_millis(1500));
    assert_eq!(bench.hit(&ranks[0], "r2", &prompt), 3);
    for rank in &ranks {
        assert_eq!(bench.prepare_retrieve(rank, "r2", &prompt, 0..3).slots().len(), 3);
        bench.advance(Duration::from_millis(2));
        bench.commit_retrieve(rank, "r2", &prompt, 0..3);
    }
    bench.end_session("r2");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_miss() {
    let mut bench = stage(8);
    let worker = Worker::new(1);
    let (stored, asked) = (prompt('a', 2), prompt('b', 2));

    say(&mut bench, "before any worker has registered there is nothing to look for");
    assert_eq!(bench.hit(&worker, "r1", &asked), 0);

    say(&mut bench, "another prompt is stored");
    bench.register(&worker);
    bench.store(&worker, &stored, 0..2);
    assert_eq!(bench.hit(&worker, "r2", &asked), 0);

    say(&mut bench, "who reads without a promise misses, even what is there");
    let without_lookup = bench.prepare_retrieve(&worker, "r3", &stored, 0..2);
    assert_eq!(without_lookup, Got::Answer(Answer::RetrieveMiss));
    let after_a_miss = bench.prepare_retrieve(&worker, "r2", &asked, 0..2);
    assert_eq!(after_a_miss, Got::Answer(Answer::RetrieveMiss));
    for request in ["r1", "r2"] {
        bench.end_session(request);
    }
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_partial_hit_and_the_new_tail() {
    let mut bench = stage(8);
    let worker = Worker::new(1);
    let prompt = prompt('a', 5);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..3);

    say(&mut bench, "a longer prompt begins with the same three chunks");
    assert_eq!(bench.hit(&worker, "r1", &prompt), 3);
    assert!(bench.retrieve(&worker, "r1", &prompt, 0..3));

    say(
        &mut bench,
        "the worker computes the rest and stores it; what is there is not written again",
    );
    let slots = bench.store(&worker, &prompt, 0..5);
    assert!(slots.iter().map(|slot| slot.chunk).eq([3, 4]));
    bench.end_session("r1");

    say(&mut bench, "from now on all of it hits");
    assert_eq!(bench.hit(&worker, "r2", &prompt), 5);

    say(&mut bench, "the engine has two of these chunks itself, and gives them back unread");
    bench.free(&worker, "r2", &prompt[..2]);
    assert!(bench.retrieve(&worker, "r2", &prompt, 2..5));
    bench.end_session("r2");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn one_of_two_ranks_is_missing() {
    let mut bench = stage(8);
    let ranks = two_ranks(&mut bench);
    let prompt = prompt('a', 3);

    say(&mut bench, "rank 0 stores three chunks, rank 1 has come to two of them");
    bench.store(&ranks[0], &prompt, 0..3);
    bench.store(&ranks[1], &prompt, 0..2);
    assert_eq!(bench.hit(&ranks[0], "r1", &prompt), 2, "a prefix that every rank has");
    bench.end_session("r1");

    say(&mut bench, "rank 1 is writing the third one");
    assert_eq!(bench.prepare_store(&ranks[1], &prompt, 2..3).slots().len(), 1);
    assert_eq!(bench.hit(&ranks[0], "r2", &prompt), 2);
    bench.end_session("r2");
    assert!(bench.commit_store(&ranks[1], &prompt, 2..3));
    assert_eq!(bench.hit(&ranks[0], "r3", &prompt), 3);
    bench.free(&ranks[0], "r3", &prompt);
    bench.end_session("r3");
    assert_snapshot!(end(bench));
}

#[test]
fn several_readers_of_one_lookup() {
    let mut bench = stage(4);
    let ranks = [1, 2, 3].map(Worker::new);
    let prompt = prompt('a', 2);
    ranks.iter().for_each(|rank| bench.register(rank));

    say(&mut bench, "with MLA every rank has the same bytes: one of them stores");
    bench.store(&ranks[0], &prompt, 0..2);

    say(&mut bench, "one lookup says how many of them will read");
    bench.lookup(&ranks[0], "r1", &prompt, 3);
    assert_eq!(bench.query("r1"), Some(2));
    for rank in &ranks[..2] {
        assert!(bench.retrieve(rank, "r1", &prompt, 0..2));
    }
    say(&mut bench, "a reader who comes twice takes what is promised to the third");
    assert!(bench.retrieve(&ranks[1], "r1", &prompt, 0..2));
    let third = bench.prepare_retrieve(&ranks[2], "r1", &prompt, 0..2);
    assert_eq!(third, Got::Answer(Answer::RetrieveMiss));
    bench.end_session("r1");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_long_lookup_is_waited_for() {
    let mut config = crate::harness::config(16);
    config.limits.work_units = 8;
    let mut bench = stage_of(config);
    let worker = Worker::new(1);
    let prompt = prompt('a', 12);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..6);
    bench.store(&worker, &prompt, 6..12);

    say(
        &mut bench,
        "here one turn visits 8 chunks (4096 in a real server): the lookup is not decided",
    );
    bench.lookup(&worker, "r1", &prompt, 1);
    assert_eq!(bench.query("r1"), None);
    let wait = Duration::from_secs(5);
    let parked = bench.ask(scheduler(), Ask::WaitPrefetch { request: "r1", wait });
    assert_eq!(parked, Got::Nothing, "the answer comes with the result");
    bench.settle();
    assert_eq!(bench.late.len(), 1);

    say(&mut bench, "a result is handed out once");
    assert_eq!(bench.query("r1"), Some(0));
    bench.free(&worker, "r1", &prompt);
    bench.end_session("r1");
    bench.settle();
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_request_id_is_used_again() {
    let mut bench = stage(8);
    let worker = Worker::new(1);
    let (first, second) = (prompt('a', 3), prompt('b', 2));
    bench.register(&worker);
    bench.store(&worker, &first, 0..3);
    bench.store(&worker, &second, 0..2);
    assert_eq!(bench.hit(&worker, "r1", &first), 3);

    say(&mut bench, "another lookup under the same id ends the first one, with all that it holds");
    assert_eq!(bench.hit(&worker, "r1", &second), 2);
    let of_first = bench.prepare_retrieve(&worker, "r1", &first, 0..3);
    assert_eq!(of_first, Got::Answer(Answer::RetrieveMiss));
    assert!(bench.retrieve(&worker, "r1", &second, 0..2));
    bench.end_session("r1");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

/// A prefix of L chunks can be served when each row has what it needs of it: a row with full
/// attention all L, one with a window of w the last w. No engine of the first tier registers such
/// rows yet, so this scene is that of the rule itself.
#[test]
fn a_sliding_window_row_with_a_hole() {
    let rows = [("full attention", None, "xxxxxx"), ("window of 2", Some(2), "xx.xxx")];
    let mut fold = Fold::new(rows.map(|(_, window, _)| window));
    let mut text = String::from("chunk  full attention  window of 2  longest servable prefix\n");
    for chunk in 0..6 {
        let is_there = |row: usize| rows[row].2.as_bytes()[chunk] == b'x';
        assert_eq!(fold.feed(is_there), Next::More, "the row without a window has no hole");
        let [full, windowed] = [0, 1].map(|row| if is_there(row) { "there" } else { "missing" });
        let hit = fold.hit();
        let needs = match fold.first_retained(1, hit) {
            first if first as usize == chunk => format!("{hit}: its window is chunk {chunk}"),
            first if hit as usize > chunk => {
                format!("{hit}: its window is chunks {first} to {chunk}")
            }
            _ => format!("{hit}: the hole lies in the window of a longer one"),
        };
        text += &format!("A{chunk}     {full:<14}  {windowed:<11}  {needs}\n");
    }
    assert_eq!(fold.hit(), 6, "the hole lies before the window");
    assert_snapshot!(text);
}
