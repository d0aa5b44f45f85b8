//! A client whose process is stopped past every deadline and then goes on, on a virtual clock.

use crate::harness::{Bench, Got, Worker, config, prompt};
use kvtide_core::effect::Answer;
use kvtide_core::event::Ask;
use kvtide_core::time::Duration;

#[test]
fn i2_a_client_stopped_past_ttl_and_reap_keeps_its_slots_and_caches_again() {
    let (mut bench, prompt) = (Bench::new(config(8)), prompt('a', 3));
    let [stopped, other] = [Worker::new(1), Worker::new(2)];
    bench.register(&stopped);
    assert!(bench.ping(&stopped));
    let lent = bench.prepare_store(&stopped, &prompt, 0..3).slots();
    // The write TTL, the silence after which an instance is reaped, and a good deal more.
    bench.advance(Duration::from_secs(4000));
    bench.settle();
    assert!(bench.status().instances.is_empty(), "it is reaped");
    // Its keys are others' now, its memory is not.
    bench.register(&other);
    for letter in ['a', 'b', 'c'] {
        let slots = bench.store(&other, &crate::harness::prompt(letter, 3), 0..3);
        let shared = lent.iter().any(|slot| slots.iter().any(|next| slot.place == next.place));
        assert!(!shared, "it may still write there");
    }
    assert!(!bench.commit_store(&stopped, &prompt, 0..3), "it comes too late");
    assert_eq!([bench.ping(&stopped), bench.ping(&stopped)], [false, true], "told so once");
    bench.register(&stopped);
    let anew = crate::harness::prompt('z', 2);
    assert_eq!(bench.store(&stopped, &anew, 0..2).len(), 2);
    assert_eq!(bench.hit(&other, "z", &anew), 2);
    bench.end_session("z");
    bench.end_connection(&stopped);
    bench.settle();
    assert_eq!(bench.status().condemned_bytes, 0);
}

// A worker that was reaped while it wrote or read commits when it goes on. Nothing of that is
// published, but it has said that it is done: its memory comes back with the commit, however long
// its connection lives on (design §4).
#[test]
fn i2_a_late_commit_without_a_registration_gives_its_slots_back() {
    let mut bench = Bench::new(config(8));
    let [writer, reader] = [Worker::new(1), Worker::new(2)];
    bench.register(&writer);
    bench.register(&reader);
    let (kept, late) = (prompt('a', 2), prompt('b', 3));
    bench.store(&writer, &kept, 0..2);
    // With a store it shows that it reads slots.
    bench.store(&reader, &prompt('c', 1), 0..1);
    assert_eq!(bench.hit(&reader, "r", &kept), 2);
    assert_eq!(bench.prepare_retrieve(&reader, "r", &kept, 0..2).slots().len(), 2);
    assert_eq!(bench.prepare_store(&writer, &late, 0..3).slots().len(), 3);
    bench.unregister(&writer);
    bench.unregister(&reader);
    bench.settle();
    assert!(bench.status().condemned_bytes > 0);
    // Another range, and the same from another connection, are not this copy's.
    assert!(!bench.commit_store(&writer, &late, 0..2));
    assert!(!bench.commit_store(&Worker { connection: reader.connection, ..writer }, &late, 0..3));
    assert!(bench.status().condemned_bytes > 0);
    assert!(!bench.commit_store(&writer, &late, 0..3), "nothing is published");
    assert_eq!(bench.status().condemned_bytes, 0);
    let (instance, keys) = (reader.instance, reader.keys("r", &kept, 0..2));
    let got = bench.ask(reader.connection, Ask::CommitRetrieve { instance, keys });
    assert_eq!(got, Got::Answer(Answer::Bool(false)));
    bench.clear(true);
    bench.settle();
    assert_eq!(bench.status().condemned_bytes, 0, "nobody reads any more");
}
