//! Facts, in the words of the model.

use super::{Bench, Told};
use crate::calls::Call;
use crate::model::{Aborted, Key, Missed, News, Refused, Removed, Scope, Use};
use crate::transcript::Input;
use kvtide_core::effect::Outbox;
use kvtide_core::fact::RequestFault;
use kvtide_core::fact::{Abort, Fact, InstanceEnd, KeyRange, NoRoom, ReadFailure, Removal};
use std::rc::Rc;

impl Bench {
    /// The scope of a transfer is learnt when something is reserved in it first.
    pub(super) fn learn_scopes(&mut self, input: &Input, out: &Outbox) {
        let Input::Asked { call, .. } = input else { return };
        let (Call::PrepareStore { instance, range }
        | Call::CommitStore { instance, range, .. }
        | Call::Store { instance, range, .. }) = call
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

    pub(super) fn news(&mut self, input: &Input, out: &Outbox) -> Result<News, String> {
        let mut news = News::default();
        // What is reserved and published is a client's, or a load's.
        let is_client = matches!(input, Input::Asked { call, .. } if call.stores())
            || matches!(input, Input::ReceiveEnded { .. } | Input::CopyEnded { .. });
        for fact in &out.facts {
            self.tier_news(fact, out, &mut news.below);
            match fact {
                Fact::WriteReserved { keys } if !is_client => {
                    for key in keys.of(&out.keys) {
                        self.learn_scope(key.scope, key);
                    }
                    let keys = self.keys(*keys, out)?;
                    news.uses.extend(keys.into_iter().map(|key| (key, Use::Reserved)));
                }
                Fact::WriteFinished { keys } if !is_client => {
                    let keys = self.keys(*keys, out)?;
                    news.uses.extend(keys.into_iter().map(|key| (key, Use::Published)));
                }
                Fact::WriteAborted { keys, why: Abort::Load | Abort::Digest } => {
                    let keys = self.keys(*keys, out)?;
                    news.uses.extend(keys.into_iter().map(|key| (key, Use::GivenUp)));
                }
                Fact::WriteReserved { keys } => news.reserved.extend(self.keys(*keys, out)?),
                Fact::WriteFinished { keys } => news.committed.extend(self.keys(*keys, out)?),
                Fact::WriteAborted { keys, why } => {
                    let why = aborted(*why);
                    let keys = self.keys(*keys, out)?;
                    news.aborted.extend(keys.into_iter().map(|key| (key, why)));
                }
                Fact::Evicted { keys, why } => {
                    let why = removed(*why);
                    let keys = self.keys(*keys, out)?;
                    news.uses.extend(keys.into_iter().map(|key| (key, Use::Removed(why))));
                }
                Fact::Accessed { keys } => {
                    let keys = self.keys(*keys, out)?;
                    news.uses.extend(keys.into_iter().map(|key| (key, Use::Touched)));
                }
                Fact::InstanceEnded { instance, why } => {
                    news.instances_ended.push((*instance, *why == InstanceEnd::Reaped));
                }
                Fact::Retrieved { keys, .. } => news.retrieved += keys.len() as usize,
                Fact::WriteRefused { keys, why } => {
                    let why = refused(*why);
                    let keys = self.keys(*keys, out)?;
                    news.refused.extend(keys.into_iter().map(|key| (key, why)));
                }
                Fact::ReadFailed { why, .. } => {
                    news.missed = Some(missed(*why));
                }
                Fact::RequestFaulted { fault: RequestFault::NoSuchHold, .. } => {
                    news.no_such_hold = true;
                }
                Fact::RequestFaulted { fault: RequestFault::TableFull, .. } => {
                    news.table_full = true;
                }
                Fact::EvictionTick { used_bytes, triggered, .. } => {
                    news.watermark = Some((*used_bytes, *triggered));
                }
                _ => {}
            }
        }
        Ok(news)
    }

    /// What is told of leases adds up: no more of them have ended than have begun (I-52).
    pub(super) fn hear_leases(&mut self, out: &Outbox) -> Result<(), String> {
        for fact in &out.facts {
            let (keys, leases, units) = match fact {
                Fact::ReadReserved { keys, readers } => (keys, 1, *readers as i64),
                Fact::ReadFinished { keys, .. } => (keys, -1, -1),
                Fact::Evicted { keys, why: Removal::ForcedClear } => {
                    for key in keys.of(&out.keys) {
                        self.leases.entry((key.scope, key.hash)).or_default().is_taken = true;
                    }
                    continue;
                }
                _ => continue,
            };
            if keys.is_empty() {
                return Err("I-49: news of no lease".into());
            }
            for key in keys.of(&out.keys) {
                let key = (key.scope, key.hash);
                let told = self.leases.entry(key).or_default();
                told.cells += leases;
                told.units += units;
                if told.units < 0 {
                    self.overdrawn.insert(key);
                } else {
                    self.overdrawn.remove(&key);
                }
            }
        }
        if !self.overdrawn.is_empty() {
            return Err("I-52: more leases have ended than had begun".into());
        }
        Ok(())
    }

    /// The other way round, when nobody holds anything: every lease that was told to begin was told
    /// to end, for every reader or for all that had not come yet at once.
    pub fn check_leases(&self) -> Result<(), String> {
        let is_open = |told: &Told| told.cells > 0 && !told.is_taken;
        match self.leases.values().find(|told| is_open(told)) {
            None => Ok(()),
            Some(told) => Err(format!("P4: I-52: leases were never told to end: {told:?}")),
        }
    }

    /// Gauges are absolute: what is told last of the arena and of instances is what is (I-50).
    pub(super) fn hear_gauges(&self, input: &Input, out: &Outbox) -> Result<(), String> {
        let told = out.facts.iter().rev().find_map(|fact| match fact {
            Fact::Gauges(gauges) => Some(gauges),
            _ => None,
        });
        let Some(told) = told else {
            let must = matches!(input, Input::ArenaGrown { .. });
            return if must {
                Err("I-50: more memory, and nobody was told".into())
            } else {
                Ok(())
            };
        };
        let status = self.engine.status();
        let arena = (told.l1_total_bytes, told.l1_configured_bytes);
        if arena != (status.total_bytes, status.configured_bytes) {
            return Err("I-50: the capacity that was told is not the true one".into());
        }
        Ok(())
    }

    pub(super) fn keys(&self, range: KeyRange, out: &Outbox) -> Result<Vec<Key>, String> {
        let named = range.of(&out.keys).iter().map(|key| {
            let scope = self.scopes.get(&key.scope).ok_or("I-49: news of an unknown scope")?;
            Ok(Key { scope: scope.clone(), hash: key.hash })
        });
        named.collect()
    }
}

fn refused(why: NoRoom) -> Refused {
    match why {
        NoRoom::Held => Refused::Held,
        NoRoom::Growing => Refused::Growing,
        NoRoom::ObjectTable => Refused::Table,
        NoRoom::SizeClasses => Refused::Classes,
        NoRoom::Lent => Refused::Lent,
        NoRoom::Busy => Refused::Busy,
        NoRoom::Trimmed => Refused::Trimmed,
    }
}

fn removed(why: Removal) -> Removed {
    match why {
        Removal::Watermark | Removal::Table => Removed::InOrder,
        Removal::Pressure => Removed::ForRoom,
        Removal::Clear => Removed::Cleared,
        Removal::ForcedClear | Removal::Operator => Removed::Forced,
        Removal::Temporary => Removed::Temporary,
        Removal::Demoted => Removed::Demoted,
    }
}

fn aborted(why: Abort) -> Aborted {
    match why {
        Abort::WriteTtl => Aborted::WriteTtl,
        Abort::ConnectionEnded => Aborted::StreamEnded,
        Abort::Unregistered | Abort::Reaped | Abort::Replaced => Aborted::InstanceEnded,
        Abort::ForcedClear => Aborted::Forced,
        Abort::Body | Abort::Copy => Aborted::Body,
        Abort::Load | Abort::Digest => unreachable!("what was to be loaded is no client's"),
    }
}

fn missed(why: ReadFailure) -> Missed {
    match why {
        ReadFailure::NotFound => Missed::NotFound,
        ReadFailure::NotLeased => Missed::NotLeased,
        ReadFailure::Layout => Missed::OtherKey,
    }
}
