//! What the engine has to do with lower tiers: its orders, in names that outlive it, and its news
//! of them.

use super::{Bench, Seen};
use crate::calls::Call;
use crate::model::{Key, News, Scope, Serving, StoreEnd, TierNews, Use};
use crate::orders::{Ending, Lies, Name, Noted, Order};
use crate::transcript::Input;
use kvtide_core::effect::{Effect, Note, Outbox};
use kvtide_core::engine::Engine;
use kvtide_core::event::Event;
use kvtide_core::fact::{AdapterState, Fact, FactKey, KeyRange, L2LoadEnd, L2StoreEnd};
use kvtide_core::names::{AdapterId, L2Key, ScopeId, Ticket};
use kvtide_core::time::Instant;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Bench {
    /// Endings of orders, as the engine is told of them.
    pub(super) fn tier_ended(&mut self, now: Instant, input: &Input) {
        let Input::TierEnded { ticket, ending } = input else { return };
        let ticket = *ticket;
        let event = match ending {
            Ending::Probe(found) => Event::ProbeEnded { ticket, found: found.as_deref() },
            Ending::Store(outcome) => Event::StoreEnded { ticket, outcome: *outcome },
            Ending::Load(outcome) => Event::LoadEnded { ticket, outcome: *outcome },
            Ending::Delete(outcome) => Event::DeleteEnded { ticket, outcome: *outcome },
            Ending::Digest(digest) => Event::DigestEnded { ticket, digest: *digest },
            Ending::Scrub(digest) => Event::ScrubEnded { ticket, digest: *digest },
        };
        self.engine.handle(now, event, &mut self.out);
    }

    /// What is known of an event before its news is heard.
    pub(super) fn before_news(&mut self, input: &Input) -> Result<(), String> {
        match input {
            Input::AttachEnded { attachment, outcome } => {
                self.due = self.model.attach_ended(*attachment, outcome.is_ok());
                (self.was_due, self.fault) = (self.due, outcome.err());
                self.attaching = Some(*attachment);
                Ok(())
            }
            Input::AdapterAdded { adapter, setup } => self.model.adapter_added(*adapter, setup),
            Input::Asked { call: Call::Lookup { range }, .. } => {
                self.model.is_replacing(&range.request);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Scopes that a lookup has named first.
    pub(super) fn learn_scope(&mut self, scope: ScopeId, key: &FactKey) {
        if self.scopes.contains_key(&scope) {
            return;
        }
        let name = Name::of(&self.engine, &L2Key { hash: key.hash, scope });
        let (world_size, rank) = (name.rank.0 >> 24, name.rank.0 >> 16 & 0xff);
        let layout = self.engine.layout_of(scope);
        let Name { model, salt, .. } = name;
        self.scopes.insert(scope, Rc::new(Scope { model, salt, world_size, rank, layout }));
    }

    fn names(&self, range: KeyRange, out: &Outbox) -> Vec<(Name, u64)> {
        let named = range.of(&out.keys).iter().map(|key| {
            let of = L2Key { hash: key.hash, scope: key.scope };
            (Name::of(&self.engine, &of), key.bytes)
        });
        named.collect()
    }

    /// News of lower tiers, in their order.
    pub(super) fn tier_news(&self, fact: &Fact, out: &Outbox, news: &mut Vec<TierNews>) {
        let mut each = |adapter: AdapterId, keys: &KeyRange, make: &dyn Fn(Told) -> TierNews| {
            let named = self.names(*keys, out).into_iter();
            news.extend(named.map(|(name, bytes)| make(Told { adapter, name, bytes })));
        };
        match fact {
            Fact::AdapterChanged { adapter, state } => {
                news.push(TierNews::State { adapter: *adapter, state: serving(*state) });
            }
            Fact::L2StoreEnded { adapter, keys, end, .. } => each(*adapter, keys, &|told| {
                TierNews::StoreEnded { adapter: told.adapter, name: told.name, end: stored(*end) }
            }),
            Fact::L2StoreDropped { adapter, keys, .. } => each(*adapter, keys, &|told| {
                TierNews::StoreDropped { adapter: told.adapter, name: told.name }
            }),
            Fact::L2LoadEnded { adapter, keys, end, .. } => {
                each(*adapter, keys, &|told| TierNews::LoadEnded {
                    adapter: told.adapter,
                    name: told.name,
                    is_loaded: *end == L2LoadEnd::Loaded,
                    is_damaged: *end == L2LoadEnd::Digest,
                })
            }
            Fact::L2Stored { adapter, keys } => each(*adapter, keys, &|told| {
                let Told { adapter, name, bytes } = told;
                TierNews::Has { adapter, name, bytes }
            }),
            Fact::L2Removed { adapter, keys, .. } => each(*adapter, keys, &|told| {
                TierNews::HasNoMore { adapter: told.adapter, name: told.name }
            }),
            Fact::L2PrefetchFailed { .. } => news.push(TierNews::Failed),
            _ => {}
        }
    }

    /// What was loaded has the bytes of what was once committed under its key (P1).
    pub(super) fn learn_origins(&mut self, news: &News) -> Result<(), String> {
        for (key, what) in &news.uses {
            if *what != Use::Published {
                continue;
            }
            let Some(number) = self.model.number(key) else { continue };
            let Some(place) = self.places.get(&number) else {
                return Err("P1: published without having been loaded".into());
            };
            let mut content = self.memory.content(*place)?;
            let first = content.next().flatten().ok_or("P1: published without bytes")?;
            let is_mixed = content.any(|tag| tag != Some(first));
            drop(content);
            if is_mixed {
                return Err("P1: a loaded object has the bytes of two".into());
            }
            let is_sealed = self.model.was_sealed(number);
            if !self.ledger.allows(&key.name(), first, key.scope.layout, is_sealed) {
                let (tag, name) = (first.0, key.name());
                return Err(format!(
                    "P1: {name:?} was loaded with bytes {tag:x} never stored there"
                ));
            }
            self.memory.set_origin(number, first);
        }
        Ok(())
    }

    /// A digest was made of what lies somewhere.
    pub(super) fn note_digest(&mut self, ticket: Ticket, digest: u32) {
        if let Some(name) = self.model.digested(ticket) {
            self.ledger.digested(name, digest);
        }
    }

    /// What was committed may be read under its name from now on, wherever it comes from.
    pub(super) fn note_committed(&mut self, news: &News) {
        for key in &news.committed {
            if let Some(number) = self.model.number(key) {
                let tag = self.memory.tag(number);
                self.ledger.committed(key.name(), tag, key.scope.layout);
            }
        }
    }

    /// Every order, put to the model; the world has to carry it out.
    pub(super) fn orders(&mut self, out: &Outbox, seen: &mut Vec<Seen>) -> Result<(), String> {
        let mut loads = self.submitted_loads(out)?;
        let is_cut = |ticket| out.effects.contains(&Effect::Cancel { ticket });
        for effect in &out.effects {
            let order = match *effect {
                Effect::Answer { .. }
                | Effect::Send { .. }
                | Effect::Receive { .. }
                | Effect::Attach { .. }
                | Effect::Detach { .. }
                | Effect::Copy { .. }
                | Effect::OperatorAnswer { .. } => continue,
                Effect::Probe { ticket, adapter, keys } => {
                    let names = out.l2_keys(keys).iter().map(|key| Name::of(&self.engine, key));
                    Order::Probe { ticket, adapter, names: names.collect() }
                }
                Effect::StoreObject { ticket, adapter, key, place } => {
                    let object = self.memory.owner(place)?.ok_or("R-6: stored what never was")?;
                    self.memory.check(place, object)?;
                    let what = Lies { place, object };
                    Order::Store { ticket, adapter, name: Name::of(&self.engine, &key), what }
                }
                Effect::LoadObject { ticket, adapter, key, place } => {
                    let of_adapter = loads.entry(adapter).or_default();
                    let loaded = (!of_adapter.is_empty()).then(|| of_adapter.remove(0));
                    let loaded = loaded.ok_or("I-49: a load that nobody was told of")?;
                    let object = self.model.begin_load(&loaded, place, is_cut(ticket))?;
                    let model = &self.model;
                    self.memory
                        .lend(place, object, |other| other != object && model.is_in_use(other))?;
                    self.places.insert(object, place);
                    let what = Lies { place, object };
                    Order::Load { ticket, adapter, name: Name::of(&self.engine, &key), what }
                }
                Effect::DeleteObject { ticket, adapter, key, quarantine } => {
                    let name = Name::of(&self.engine, &key);
                    Order::Delete { ticket, adapter, name, quarantine }
                }
                Effect::Digest { ticket, key, place } => {
                    let object = self.memory.owner(place)?.ok_or("a digest of what never was")?;
                    let what = Lies { place, object };
                    Order::Digest { ticket, name: Name::of(&self.engine, &key), what }
                }
                Effect::Scrub { ticket, adapter, key, bytes } => {
                    let name = Name::of(&self.engine, &key);
                    Order::Scrub { ticket, adapter, name, bytes }
                }
                Effect::Cancel { ticket } => Order::Cancel { ticket },
                Effect::Note { adapter, key, note } => {
                    let name = Name::of(&self.engine, &key);
                    self.check_note(&name, note)?;
                    Order::Note { adapter, name, note: noted(note) }
                }
                Effect::AdapterClosed { adapter } => Order::Closed { adapter },
            };
            self.model.ordered(&order)?;
            seen.push(Seen::Ordered(order));
        }
        Ok(())
    }

    /// An index is told of no digest but of those that were made.
    fn check_note(&self, name: &Name, note: Note) -> Result<(), String> {
        match note {
            Note::Stored { seal: Some(seal), .. }
                if !self.ledger.knows_digest(name, seal.digest) =>
            {
                Err(format!("I-20: {name:?} was noted with a digest that nobody has made"))
            }
            _ => Ok(()),
        }
    }

    /// What is told to be loaded, in the order of the orders.
    fn submitted_loads(&self, out: &Outbox) -> Result<BTreeMap<AdapterId, Vec<Key>>, String> {
        let mut loads: BTreeMap<AdapterId, Vec<Key>> = BTreeMap::new();
        for fact in &out.facts {
            if let Fact::L2LoadSubmitted { adapter, keys } = fact {
                loads.entry(*adapter).or_default().extend(self.keys(*keys, out)?);
            }
        }
        Ok(loads)
    }
}

impl Name {
    /// What the engine calls an object in the effect at hand.
    pub(crate) fn of(engine: &Engine, key: &L2Key) -> Name {
        let name = engine.l2_name(key);
        Name {
            model: name.model.as_ref().into(),
            salt: name.salt.into(),
            rank: name.rank,
            group: name.group as u16,
            hash: key.hash,
        }
    }
}

// The model has words of its own: what it judges does not teach it any.

fn serving(state: AdapterState) -> Serving {
    match state {
        AdapterState::Scanning => Serving::Scanning,
        AdapterState::Ready => Serving::Ready,
        AdapterState::Tripped => Serving::Tripped,
        AdapterState::Draining => Serving::Draining,
        AdapterState::Gone => Serving::Gone,
    }
}

fn stored(end: L2StoreEnd) -> StoreEnd {
    match end {
        L2StoreEnd::Stored => StoreEnd::Stored,
        L2StoreEnd::Present => StoreEnd::Present,
        L2StoreEnd::NoSpace | L2StoreEnd::Io | L2StoreEnd::TimedOut => StoreEnd::Failed,
    }
}

fn noted(note: Note) -> Noted {
    match note {
        Note::Stored { bytes, seal } => Noted::Stored { bytes, seal },
        Note::Used => Noted::Used,
        Note::Removed => Noted::Removed,
    }
}

/// One object that a fact names.
struct Told {
    adapter: AdapterId,
    name: Name,
    bytes: u64,
}
