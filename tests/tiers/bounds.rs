//! What tables that are full, sizes of others and tiers that hang cost a lookup.

use crate::bed::{Bed, config, prompt, setup};
use kvtide_core::event::{Ask, Keys};

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
