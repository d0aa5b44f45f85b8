//! Facts, in the words of the model.

use super::Bench;
use crate::calls::Call;
use crate::model::{Aborted, Key, News, Removed, Scope};
use crate::transcript::Input;
use kvtide_core::effect::Outbox;
use kvtide_core::fact::{Abort, Fact, InstanceEnd, KeyRange, Removal, RequestFault};
use std::rc::Rc;

impl Bench {
    /// The scope of a transfer is learnt when something is reserved in it first.
    pub(super) fn learn_scopes(&mut self, input: &Input, out: &Outbox) {
        let Input::Asked { call, .. } = input else { return };
        let (Call::PrepareStore { instance, range } | Call::CommitStore { instance, range, .. }) =
            call
        else {
            return;
        };
        let Some((_, known)) = self.model.instances().find(|(id, _)| *id == instance) else {
            return;
        };
        let layout = known.layout;
        for fact in &out.facts {
            let (Fact::WriteReserved { keys } | Fact::WriteRefused { keys, .. }) = fact else {
                continue;
            };
            for key in keys.of(&out.keys) {
                let scope = Scope {
                    model: range.model.clone(),
                    salt: range.salt.clone(),
                    world_size: range.world_size,
                    rank: range.worker.unwrap_or_default(),
                    layout,
                };
                self.scopes.entry(key.scope).or_insert_with(|| Rc::new(scope));
            }
        }
    }

    pub(super) fn news(&self, out: &Outbox) -> Result<News, String> {
        let mut news = News::default();
        for fact in &out.facts {
            match fact {
                Fact::WriteReserved { keys } => news.reserved.extend(self.keys(*keys, out)?),
                Fact::WriteFinished { keys } => news.committed.extend(self.keys(*keys, out)?),
                Fact::WriteAborted { keys, why } => {
                    let why = match why {
                        Abort::WriteTtl => Aborted::WriteTtl,
                        Abort::ConnectionEnded => Aborted::StreamEnded,
                        Abort::Unregistered | Abort::Reaped | Abort::Replaced => {
                            Aborted::InstanceEnded
                        }
                        Abort::ForcedClear => Aborted::Forced,
                        Abort::Body => Aborted::Body,
                    };
                    let keys = self.keys(*keys, out)?;
                    news.aborted.extend(keys.into_iter().map(|key| (key, why)));
                }
                Fact::Evicted { keys, why } => {
                    let why = match why {
                        Removal::Watermark | Removal::Pressure | Removal::Table => Removed::ForRoom,
                        Removal::Clear => Removed::Cleared,
                        Removal::ForcedClear => Removed::Forced,
                    };
                    let keys = self.keys(*keys, out)?;
                    news.removed.extend(keys.into_iter().map(|key| (key, why)));
                }
                Fact::InstanceEnded { instance, why } => {
                    news.instances_ended.push((*instance, *why == InstanceEnd::Reaped));
                }
                Fact::Retrieved { keys, .. } => news.retrieved += keys.len() as usize,
                Fact::WriteRefused { keys, .. } => news.refused.extend(self.keys(*keys, out)?),
                Fact::RequestFaulted { fault: RequestFault::NoSuchHold, .. } => {
                    news.no_such_hold = true;
                }
                _ => {}
            }
        }
        Ok(news)
    }

    fn keys(&self, range: KeyRange, out: &Outbox) -> Result<Vec<Key>, String> {
        let named = range.of(&out.keys).iter().map(|key| {
            let scope = self.scopes.get(&key.scope).ok_or("I-49: news of an unknown scope")?;
            Ok(Key { scope: scope.clone(), hash: key.hash })
        });
        named.collect()
    }
}
