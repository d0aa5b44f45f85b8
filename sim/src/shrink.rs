//! The shortest list of deeds that still fails: parts of a failing run are left out for as long as
//! what is left breaks the same rule (delta debugging).
//!
//! The invariant: every list that is tried is one that honest clients could have sent. Places are
//! written as long as they are lent, no stray commit speaks for somebody else's writer, and what
//! must not be left over is looked for after everybody has left.

use crate::bench::Bench;
use crate::deeds::{Deed, Stage};
use crate::panics;
use crate::profile::Profile;
use crate::rest;
use crate::transcript::Input;
use crate::world::World;
use kvtide_core::config::Config;
use kvtide_core::time::Instant;
use std::collections::BTreeSet;

/// A failing run, made short.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub rule: String,
    /// Deeds that are left, and how many there were.
    pub left: usize,
    pub of: usize,
    /// The transcript of what is left.
    pub lines: Vec<String>,
}

type List = Vec<(Instant, Deed)>;

/// Runs a profile once more and shortens what it did. None where it does not fail, or where what it
/// did does not fail without the clients that did it.
pub fn shrink(profile: Profile) -> Option<Shrunk> {
    let config = profile.config.clone();
    let mut world = World::new(profile, 0);
    world.record();
    let rule = panics::caught(|| world.run()).err()?;
    let list = world.take_deeds();
    let of = list.len();
    let mut search = Search { config, rule: kind(&rule), deeds_left: DEEDS_MAX };
    search.fails(&list).then_some(())?;
    let list = search.shorten(list);
    let mut stage = Stage::new(Bench::new(search.config.clone(), LINES_MAX));
    let rule = panics::caught(|| play(&mut stage, &list, &search.rule)).err()?;
    let lines = stage.bench.transcript.lines().map(String::from).collect();
    Some(Shrunk { rule, left: list.len(), of, lines })
}

struct Search {
    config: Config,
    rule: String,
    /// What may still be tried, in deeds.
    deeds_left: usize,
}

impl Search {
    /// Whether a list breaks the rule.
    fn fails(&mut self, list: &List) -> bool {
        self.deeds_left = self.deeds_left.saturating_sub(list.len());
        let mut stage = Stage::new(Bench::new(self.config.clone(), 0));
        let broken = panics::caught(|| play(&mut stage, list, &self.rule));
        broken.is_err_and(|rule| kind(&rule) == self.rule)
    }

    fn shorten(&mut self, mut list: List) -> List {
        // What the server before knew is gone.
        let is_start = |(_, deed): &(Instant, Deed)| matches!(deed, Deed::Other(Input::Restarted));
        if let Some(start) = list.iter().rposition(is_start) {
            let rest: List = list[start..].to_vec();
            if self.fails(&rest) {
                list = rest;
            }
        }
        let names: BTreeSet<_> = list.iter().filter_map(|(_, deed)| deed.connection()).collect();
        for name in names {
            self.without(&mut list, |deed| deed.connection() == Some(name));
        }
        let mut size = list.len().div_ceil(2);
        while size > 0 && self.deeds_left > 0 {
            let before = list.len();
            self.without_parts(&mut list, size);
            // Large parts first, then whole requests, then what is left of them.
            if size > 64 && size / 2 <= 64 {
                self.without_requests(&mut list);
            }
            // Once more with single deeds, as long as that helps.
            let again = size == 1 && list.len() < before;
            size = if again { 1 } else { size / 2 };
        }
        list
    }

    fn without_requests(&mut self, list: &mut List) {
        let requests: BTreeSet<String> =
            list.iter().filter_map(|(_, deed)| deed.request()).map(String::from).collect();
        for request in requests {
            self.without(list, |deed| deed.request() == Some(&request));
        }
    }

    fn without(&mut self, list: &mut List, is_left_out: impl Fn(&Deed) -> bool) {
        let shorter: List = list.iter().filter(|(_, deed)| !is_left_out(deed)).cloned().collect();
        if self.deeds_left > 0 && shorter.len() < list.len() && self.fails(&shorter) {
            *list = shorter;
        }
    }

    /// Leaves out parts of a size, from the last to the first: what came late holds up least.
    fn without_parts(&mut self, list: &mut List, size: usize) {
        let mut end = list.len();
        while end > 0 && self.deeds_left > 0 {
            let start = end.saturating_sub(size);
            let shorter: List = list[..start].iter().chain(&list[end..]).cloned().collect();
            if self.fails(&shorter) {
                *list = shorter;
            }
            end = start;
        }
    }
}

/// Does everything again; where the rule is one about what is left, lets everybody leave first.
fn play(stage: &mut Stage, list: &List, rule: &str) -> Result<(), String> {
    for (at, deed) in list {
        stage.play(*at, deed)?;
    }
    if !rule.starts_with("P2") && !rule.starts_with("P4") {
        return Ok(());
    }
    let longest = rest::longest(stage.bench.engine().config());
    stage.leave()?;
    let end = stage.now + longest;
    while stage.now < end {
        let now = end.min(stage.now + longest / 8);
        for _ in 0..rest::TICKS {
            stage.tick(now)?;
            if stage.bench.engine().deadline().is_none_or(|(at, _)| at > now) {
                break;
            }
        }
    }
    rest::check_answered(&stage.bench)?;
    rest::check_quiet(&stage.bench)
}

/// A broken rule without what differs from run to run: numbers, and what was asked.
fn kind(rule: &str) -> String {
    let (head, tail) = rule.split_once(": ").unwrap_or(("", rule));
    let end = tail.find(|each: char| each.is_ascii_digit() || matches!(each, '{' | '(' | '"'));
    format!("{head}: {}", &tail[..end.unwrap_or(tail.len())])
}

/// Deeds over all tries: some minutes.
const DEEDS_MAX: usize = 6_000_000;
/// Of the transcript of what is left.
const LINES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{Call, Range};
    use crate::deeds::Sense;
    use crate::profile::Faults;
    use kvtide_core::config::{Limits, PoolKind};
    use kvtide_core::names::{Connection, InstanceId, Reply};
    use kvtide_core::slots::SlotName;

    /// A quiet run of one worker that writes to slots, and what is needed to shorten it.
    fn quiet() -> (Search, List) {
        let mut profile = Profile { faults: Faults::none(), inline: 0, ..Profile::of(1) };
        profile.events = 600;
        profile.groups.truncate(1);
        profile.groups[0].world_size = 1;
        profile.config.pool = PoolKind::Shared;
        profile.config.limits = Limits { work_units: 16, ..Limits::default() };
        let config = profile.config.clone();
        let mut world = World::new(profile, 0);
        world.record();
        world.run().expect("nothing goes wrong");
        (Search { config, rule: String::new(), deeds_left: 200_000 }, world.take_deeds())
    }

    fn asked(list: &List) -> usize {
        list.iter().filter(|(_, deed)| matches!(deed, Deed::Asked { .. })).count()
    }

    #[test]
    fn of_a_run_with_a_turn_that_is_too_long_its_two_requests_are_left() {
        let (mut search, mut list) = quiet();
        search.rule = "P3: Asked ".into();
        assert!(!search.fails(&list));
        // No simulated client is of such a world: the bench allows for none.
        let Some((instance, layout)) = list.iter().find_map(|(_, deed)| match deed {
            Deed::Asked { call: Call::Register { instance, layout, .. }, .. } => {
                Some((*instance, *layout))
            }
            _ => None,
        }) else {
            panic!("nobody registers");
        };
        let Some(range) = list.iter().find_map(|(_, deed)| match deed {
            Deed::Asked { call: Call::Lookup { range }, .. } => Some(range.clone()),
            _ => None,
        }) else {
            panic!("nobody looks anything up");
        };
        let (instance, world_size) = (InstanceId(instance.0 + 1_000), 200);
        let model = range.model.clone();
        let range = Range { world_size, ..range };
        let calls =
            [Call::Register { instance, model, world_size, layout }, Call::Lookup { range }];
        for (nth, call) in (1..).zip(calls) {
            let connection = Connection(SlotName { index: 900, generation: 0 });
            let reply = Reply { connection, request: SlotName { index: nth, generation: 9 } };
            let at = list.len() * nth as usize / 3;
            list.insert(at, (list[at].0, Deed::Asked { reply, call, sense: Sense::Plain }));
        }
        assert!(search.fails(&list));
        let list = search.shorten(list);
        assert_eq!((asked(&list), list.len()), (2, 2), "{list:?}");
    }

    #[test]
    fn a_writer_that_did_not_write_commits_nothing() {
        let (mut search, mut list) = quiet();
        list.retain(|(_, deed)| !matches!(deed, Deed::Wrote { .. }));
        search.rule = "P1: wrong bytes at ".into();
        assert!(!search.fails(&list), "a client that lies about its own bytes");
    }

    #[test]
    fn a_rule_is_the_same_whatever_numbers_it_was_broken_with() {
        assert_eq!(kind("P1: wrong bytes at 4096: None"), kind("P1: wrong bytes at 8: Some(3)"));
        assert_ne!(kind("audit, I-6: a ticket"), kind("audit, I-7: a ticket"));
        assert_eq!(kind("panic: clock went back: Instant(4)"), "panic: clock went back: Instant");
    }
}
