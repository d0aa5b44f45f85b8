//! The watermark: once a second, and a pass that frees `ratio` of the allocated bytes when usage
//! is at or above it. The pass ends below the watermark, or with nothing left that can go (I-37).

use crate::engine::turn::Turn;
use crate::fact::{Fact, Removal};
#[cfg(feature = "planted")]
use crate::names::ObjectId;
use crate::time::Duration;

/// Period of the tick (spec/storage §3.1).
pub const TICK: Duration = Duration::from_secs(1);

/// Looks at the watermark. Starts a pass where usage has reached it.
pub fn tick(turn: &mut Turn) {
    turn.l1.age_kept();
    let used = turn.l1.used_bytes();
    // The configured size counts while the arena still grows: eviction must not start at 80 % of
    // the first step (spec/storage §2, trap).
    let total = match planted!(turn.config, 34) {
        true => turn.l1.total_bytes(),
        false => turn.l1.configured_bytes(),
    };
    let mark = parts(total, turn.config.watermark_ppm);
    let triggered = used >= mark && total > 0;
    turn.out.tell(Fact::EvictionTick { used_bytes: used, total_bytes: total, triggered });
    if triggered && used > 0 {
        let share = parts(used, turn.config.ratio_ppm).max(1);
        let bytes = share.max((used - mark).saturating_add(1));
        turn.jobs.evict(bytes);
    }
}

/// Goes on with a pass. True while something is still to be freed.
pub fn some(turn: &mut Turn) -> bool {
    let mut bytes = turn.jobs.evict_bytes();
    #[cfg(feature = "planted")]
    if let Some(id) = turn.l1.victim.take().filter(|id| turn.l1.readable(*id).is_some()) {
        turn.l1.evict(id, Removal::Watermark, turn.out);
    }
    while bytes > 0 && !turn.is_spent() {
        turn.spend(1);
        let before = turn.l1.used_bytes();
        if !turn.l1.evict_coldest(Removal::Watermark, turn.out) {
            bytes = 0;
            break;
        }
        let freed = before.checked_sub(turn.l1.used_bytes()).expect("evicting frees (F20)");
        bytes = bytes.saturating_sub(freed);
    }
    #[cfg(feature = "planted")]
    if planted!(turn.config, 11) && bytes > 0 {
        let next = turn.l1.policy.coldest().and_then(|index| turn.l1.objects.at(index));
        turn.l1.victim = next.map(|(name, _)| ObjectId(name));
    }
    turn.jobs.set_evict_bytes(bytes);
    bytes > 0
}

pub(super) fn parts(whole: u64, ppm: u64) -> u64 {
    (whole as u128 * ppm as u128 / 1_000_000) as u64
}
