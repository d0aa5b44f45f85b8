//! A client whose process is stopped past every deadline and then goes on, on a virtual clock.

use crate::harness::{Bench, Worker, config, prompt};
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
