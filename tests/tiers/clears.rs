//! Loads that wait when everything is cleared by force, and lookups that meet the bound of leases.

use crate::bed::{Bed, Order, config, prompt, setup};
use crate::stores::bed;
use kvtide_core::config::AdapterSetup;
use kvtide_core::event::Ask;
use kvtide_core::fact::{Abort, Fact};

fn loads(bed: &Bed) -> usize {
    bed.orders.iter().filter(|order| matches!(order, Order::Load { .. })).count()
}

/// Broke: what waited for a credit when a forced clear came was loaded for nobody. Guards: only
/// what is being read is waited for; the others are given up, and nothing is left of them.
#[test]
fn i02_loads_that_wait_at_a_forced_clear_are_not_begun() {
    let mut bed = bed(config(8), &[AdapterSetup { loads_max: 1, ..setup("fs") }]);
    let hashes = prompt(b'a', 4);
    bed.disks[0].extend(&hashes);
    bed.lookup("r", 1, &hashes);
    bed.end(0);
    assert_eq!(loads(&bed), 1, "three wait for a credit");
    bed.ask(Ask::Clear { force: true });
    bed.work();
    assert_eq!(bed.query("r"), None, "what is being read ends first");
    bed.end(0);
    bed.work();
    assert_eq!(loads(&bed), 0, "none of the others is begun");
    bed.end_all();
    assert_eq!(bed.query("r"), Some(0));
    let cleared = |fact: &Fact| matches!(fact, Fact::WriteAborted { why: Abort::ForcedClear, .. });
    assert!(bed.find_told(cleared) > 0);
    assert_eq!(bed.engine.status().objects, 0);
    bed.ask(Ask::EndSession { request: "r", hashes: &[] });
    bed.pass(kvtide_core::time::Duration::from_secs(10));
    assert!(bed.engine.is_quiet());
}

/// A lookup below L1 takes no more leases than there are cells, and gives them back.
#[test]
fn i11_a_lookup_below_keeps_to_the_bound_of_lease_cells() {
    let mut config = config(16);
    config.limits.lease_cells = 4;
    let mut bed = bed(config, &[setup("fs")]);
    let hashes = prompt(b'a', 8);
    bed.disks[0].extend(&hashes);
    for round in 0..3 {
        let request = format!("r{round}");
        bed.lookup(&request, 1, &hashes);
        bed.end_all();
        assert_eq!(bed.query(&request), Some(4), "round {round}");
        bed.ask(Ask::EndSession { request: &request, hashes: &[] });
        bed.pass(kvtide_core::time::Duration::from_secs(10));
    }
    assert!(bed.engine.is_quiet());
}
