//! What is told of stores below L1: every tier answers for every object it was to have (I-18).

use super::below::{Has, StoreEnd, TierNews};
use super::{Model, News, Verdict, check};
use crate::orders::Name;
use kvtide_core::names::{AdapterId, Layout};

impl TierNews {
    /// The object whose store they are of.
    fn stored(&self) -> Option<&Name> {
        match self {
            TierNews::StoreEnded { name, .. } | TierNews::StoreDropped { name, .. } => Some(name),
            _ => None,
        }
    }
}

impl Model {
    /// A tier has answered for a name: once, for everybody who waits for it.
    fn answered(&mut self, adapter: AdapterId, name: &Name, is_good: bool) -> Verdict {
        let owed = self.below.owed.remove(&(adapter, name.clone())).unwrap_or_default();
        check(!owed.is_empty(), "I-18: told of a store that nobody waits for, or twice")?;
        let keeps = self.below.tier(adapter)?.setup.keeps_data;
        for owed in owed {
            let demotion = self.below.demotions.entry(owed.object).or_default();
            demotion.owed -= owed.must as u32;
            demotion.good += (is_good && keeps) as u32;
            demotion.bad += !is_good as u32;
        }
        Ok(())
    }

    /// News of stores that were owed before this event; those of names that it commits follow.
    pub(super) fn hear_stores_owed(&mut self, news: &News) -> Verdict {
        let commits = |name: &Name| news.committed.iter().any(|key| key.name() == *name);
        let early = news.below.iter().filter(|told| told.stored().is_some_and(|of| !commits(of)));
        early.cloned().collect::<Vec<_>>().iter().try_for_each(|told| self.hear_store(told))
    }

    /// News of stores, after the commit that the same event may be about.
    pub fn hear_stores(&mut self, news: &News) -> Verdict {
        let commits = |name: &Name| news.committed.iter().any(|key| key.name() == *name);
        let late = news.below.iter().filter(|told| told.stored().is_some_and(commits));
        late.cloned().collect::<Vec<_>>().iter().try_for_each(|told| self.hear_store(told))
    }

    fn hear_store(&mut self, told: &TierNews) -> Verdict {
        match told {
            TierNews::StoreEnded { adapter, name, end } => match end {
                StoreEnd::Stored | StoreEnd::Present => {
                    if *end == StoreEnd::Present {
                        // It may have another size, which keeps nothing of ours.
                        let waiting = self.below.owed.get(&(*adapter, name.clone()));
                        for owed in waiting.into_iter().flatten() {
                            let demotion = self.below.demotions.entry(owed.object);
                            demotion.or_default().is_vague = true;
                        }
                    }
                    self.answered(*adapter, name, true)?;
                    let tier = self.below.tier(*adapter)?;
                    let layout = tier.layouts.get(name).and_then(Layout::bytes);
                    let bytes = layout.unwrap_or_default();
                    let has = Has::found(bytes);
                    tier.barred.remove(name);
                    let has = tier.has.entry(name.clone()).or_insert(has);
                    // Of what a probe has told nobody may have heard, and this tells no seal.
                    if *end == StoreEnd::Present && has.is_probed {
                        has.sealed = None;
                    }
                }
                StoreEnd::Failed => {}
            },
            TierNews::StoreDropped { adapter, name, .. } => {
                self.answered(*adapter, name, false)?;
            }
            _ => {}
        }
        Ok(())
    }
}
