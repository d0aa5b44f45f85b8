//! What tables that are full, sizes of others and tiers that hang cost a lookup.

use crate::bed::{Bed, Order, config, layout, prompt, setup};
use crate::stores::{ONE, bed, drops, own, store};
use kvtide_core::config::{AdapterSetup, StorePolicy};
use kvtide_core::effect::Effect;
use kvtide_core::event::{Ask, Event, Keys, Registration, Scanned};
use kvtide_core::fact::StoreDrop;
use kvtide_core::names::{Dtype, InstanceId, KvRank, Layout};
use kvtide_core::time::Duration;

/// Lookups of 255 ranks take two names of a scope for each, until there are none left.
#[test]
fn a_lookup_that_finds_no_name_left_below_is_answered() {
    let mut config = config(64);
    config.limits.sessions = 512;
    config.limits.loads = 512;
    config.limits.lease_cells = 1 << 20;
    let mut bed = Bed::new(config, 255, &[setup("fs")]);
    for at in 0..140 {
        let request = format!("r{at}");
        let salt = format!("s{at}");
        let hashes = prompt(b'a', 1);
        let keys = Bed::keys(&request, 255, None, &hashes);
        bed.ask(Ask::Lookup { keys: Keys { salt: &salt, ..keys } });
        bed.work();
    }
    bed.end_all();
    assert_eq!(bed.query("r0"), Some(0));
    assert_eq!(bed.query("r139"), Some(0));
}

/// The worker is another one from now on, whose chunks have another layout.
fn register(bed: &mut Bed, layout: Layout) {
    let instance = InstanceId(0);
    let (model, world_size, block_size) = ("llama", 1, 16);
    bed.ask(Ask::Register(Registration { instance, model, world_size, block_size, layout }));
}

/// Files of a server that writes whole blocks are larger than the objects in them.
#[test]
fn a_padded_file_of_another_server_is_loaded_and_checked_as_what_it_holds() {
    let scrubbed =
        AdapterSetup { charge_bytes: 1, scrub_bytes_per_second: 1 << 30, ..own("fs", 64) };
    let mut bed = Bed::new(config(64), 1, &[scrubbed]);
    register(&mut bed, Layout { hidden: 100, ..layout() });
    let bytes = 16 * 100 * 2;
    let hashes = prompt(b'a', 2);
    let found = [4096, 8192].into_iter().zip(&hashes).map(|(bytes, hash)| Scanned {
        model: "llama",
        salt: "",
        rank: KvRank::of(1, 0).expect("a world of one"),
        group: 0,
        hash: *hash,
        bytes,
        seal: None,
    });
    let found: Vec<_> = found.collect();
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    bed.disks[0].extend(&hashes);
    bed.lookup("r", 1, &hashes);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(1), "one block is its size rounded up, two are not");
    bed.pass(Duration::from_secs(2));
    let checked = bed.orders.iter().find_map(|order| match order {
        Order::Other { effect: Effect::Scrub { bytes, .. }, .. } => Some(*bytes),
        _ => None,
    });
    assert_eq!(checked, Some(bytes), "what lies behind it is not what was sealed");
}

#[test]
fn i22_an_object_of_another_layout_is_not_the_one_that_leaves_l1() {
    let config = kvtide_core::config::Config { store_policy: StorePolicy::SkipL1, ..config(64) };
    let mut bed = bed(config, &[own("one", 64)]);
    let hashes = prompt(b'a', 1);
    store(&mut bed, &hashes);
    bed.end_all();
    assert_eq!(bed.engine.status().objects, 0, "it is below");
    let dtype = Dtype::named("bfloat16").expect("a known type");
    register(&mut bed, Layout { dtype, ..layout() });
    store(&mut bed, &hashes);
    bed.end_all();
    assert_eq!(bed.engine.status().objects, 1, "no tier has this one");
    assert_eq!(drops(&bed, ONE, StoreDrop::Unfit), 1);
}

/// The lists of those who wait held names of all who had ever waited, for as long as the first one
/// did: the audit counts them after every event.
#[test]
fn p3_lookups_that_give_up_stand_in_no_line() {
    let mut config = config(64);
    config.prefetch_max = 2;
    let mut bed = Bed::new(config, 1, &[AdapterSetup { loads_max: 1, ..setup("fs") }]);
    let hashes = prompt(b'a', 4);
    bed.disks[0].extend(&hashes);
    bed.lookup("first", 1, &hashes);
    bed.end(0);
    assert_eq!(bed.orders.len(), 1, "one load at once, three wait");
    bed.lookup("second", 1, &prompt(b'b', 4));
    for _ in 0..3 {
        bed.lookup("third", 1, &prompt(b'c', 4));
    }
    bed.ask(Ask::EndSession { request: "third", hashes: &[] });
    bed.ask(Ask::EndSession { request: "first", hashes: &[] });
    bed.end_all();
    assert_eq!(bed.query("second"), Some(0));
}

/// Fewer credits than the breaker waits for failures: it never opened, and every lookup waited as
/// long as one may at all.
#[test]
fn f47_a_tier_whose_credits_all_hang_is_not_waited_for() {
    let two = [AdapterSetup { loads_max: 2, ..setup("hung") }, setup("fs")];
    let mut bed = Bed::new(config(64), 1, &two);
    let hashes = prompt(b'a', 4);
    bed.disks[0].extend(&hashes);
    bed.lookup("first", 1, &hashes);
    while let Some(at) = bed.orders.iter().position(|order| matches!(order, Order::Probe { .. })) {
        bed.end(at);
    }
    assert_eq!(bed.orders.len(), 2, "two loads at once, and they never end");
    bed.lookup("second", 1, &prompt(b'a', 3));
    bed.pass(Duration::from_secs(7));
    assert_eq!((bed.query("first"), bed.query("second")), (Some(0), Some(0)));
    // What it has is had from the next one, without it.
    bed.disks[1].extend(&hashes);
    bed.lookup("third", 1, &hashes);
    while let Some(at) = bed.orders.iter().position(|order| match order {
        Order::Probe { adapter, .. } | Order::Load { adapter, .. } => adapter.0 == 1,
        _ => true,
    }) {
        bed.end(at);
    }
    assert_eq!(bed.query("third"), Some(4));
    bed.end_all();
    bed.lookup("fourth", 1, &prompt(b'a', 4));
    assert_eq!(bed.query("fourth"), Some(4));
}

/// Whether a prompt of one chunk, and then one of eight that are all on disk, were found: a chunk
/// takes 100 ms, however many are on their way, and computing one 50 ms.
#[test]
fn a_load_is_slower_than_computing_only_where_all_together_are() {
    let config = kvtide_core::config::Config { prefill_tokens_per_second: 5120, ..config(64) };
    let mut bed = Bed::new(config, 1, &[setup("fs")]);
    for (request, letter) in [("first", b'a'), ("second", b'b')] {
        bed.disks[0].extend(prompt(letter, 8));
        bed.lookup(request, 1, &prompt(letter, 8));
        bed.end(0);
        bed.pass(Duration::from_millis(100));
        bed.end_all();
        assert_eq!(bed.query(request), Some(8), "eight in 100 ms are faster than 400 ms");
    }
    // It is slow once: what comes soon after is computed, and later it is tried again.
    bed.disks[0].extend(prompt(b'c', 1));
    bed.lookup("slow", 1, &prompt(b'c', 1));
    bed.end(0);
    bed.pass(Duration::from_secs(4));
    bed.end_all();
    for (request, letter, found) in [("soon", b'd', 0), ("late", b'e', 1)] {
        bed.disks[0].extend(prompt(letter, 1));
        bed.lookup(request, 1, &prompt(letter, 1));
        bed.end_all();
        assert_eq!(bed.query(request), Some(found), "{request}");
        bed.pass(Duration::from_secs(11));
    }
}
