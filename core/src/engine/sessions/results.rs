//! A lookup's result: handed out once, to a poll, a parked wait or a release. A wait whose
//! connection has ended gets none: it would be lost.

use super::{Phase, Sessions, Wait};
use crate::effect::Answer;
use crate::engine::alarms::Alarm;
use crate::engine::turn::Turn;
use crate::fact::Fact;
use crate::limits::WAITS_PER_SESSION_MAX;
use crate::names::{Connection, Reply};
use crate::slots::SlotName;
use crate::time::Duration;
use alloc::vec::Vec;

impl Sessions {
    pub fn query(&mut self, turn: &mut Turn, reply: Reply, request: &str) {
        #[cfg(feature = "planted")]
        if planted!(turn.config, 21)
            && let Some(session) = self.find(request).and_then(|name| self.sessions.find_mut(name))
            && let Phase::Found | Phase::Touching { .. } = session.phase
        {
            let before = session.taken_over.replace(reply.connection);
            if session.taken && before.is_some_and(|before| before != reply.connection) {
                return turn.out.answer(reply, Answer::Count(session.hit as u64));
            }
        }
        let answer = match self.find(request) {
            None => Answer::Count(0),
            Some(name) if self.is_looking(name) => Answer::None,
            Some(name) => Answer::Count(self.take_result(turn, name)),
        };
        turn.out.answer(reply, answer);
    }

    pub fn wait(&mut self, turn: &mut Turn, reply: Reply, request: &str, wait: Duration) {
        let looking = self.find(request).filter(|name| self.is_looking(*name));
        let has_room = |name: &SlotName| {
            let session = self.sessions.find(*name);
            session.is_some_and(|session| session.waits.len() < WAITS_PER_SESSION_MAX)
        };
        let may_park = !wait.is_zero() && !self.waits.is_full();
        let Some(session) = looking.filter(|name| may_park && has_room(name)) else {
            return self.query(turn, reply, request);
        };
        let wait_of = Wait { session, reply, timer: None };
        let name = self.waits.insert(wait_of).expect("room was checked");
        self.parked.entry(reply.connection).or_default().waits += 1;
        let timer = turn.alarms.arm(turn.now + wait, Alarm::WaitTimeout, name);
        self.waits.find_mut(name).expect("inserted above").timer = Some(timer);
        self.sessions.find_mut(session).expect("found above").waits.push(name);
    }

    /// A parked wait has run out: still loading.
    pub fn wait_expired(&mut self, turn: &mut Turn, wait: SlotName) {
        let Some(wait_of) = self.waits.find(wait) else { return };
        if let Some(session) = self.sessions.find_mut(wait_of.session) {
            session.waits.retain(|other| *other != wait);
        }
        if let Some(reply) = self.unpark(turn, wait) {
            turn.out.answer(reply, Answer::None);
        }
    }

    /// End of stream: what is still parked over this connection waits for nobody.
    pub fn connection_ended(&mut self, connection: Connection) {
        if let Some(parked) = self.parked.get_mut(&connection) {
            parked.has_ended = true;
        }
    }

    /// A wait is over. Whom to answer, if anybody is there.
    fn unpark(&mut self, turn: &mut Turn, wait: SlotName) -> Option<Reply> {
        let wait = self.waits.remove(wait).expect("listed while it is parked");
        wait.timer.iter().for_each(|timer| turn.alarms.cancel(*timer));
        let connection = wait.reply.connection;
        let parked = self.parked.get_mut(&connection).expect("every parked wait is counted");
        parked.waits -= 1;
        let has_ended = parked.has_ended;
        if parked.waits == 0 {
            self.parked.remove(&connection);
        }
        (!has_ended).then_some(wait.reply)
    }

    /// Every parked wait gets an answer: the server goes down.
    pub fn finish(&mut self, turn: &mut Turn) {
        let parked: Vec<SlotName> = self.waits.iter().map(|(name, _)| name).collect();
        for name in parked {
            let wait = self.waits.find(name).expect("listed above");
            if let Some(session) = self.sessions.find_mut(wait.session) {
                session.waits.clear();
            }
            if let Some(reply) = self.unpark(turn, name) {
                turn.out.answer(reply, Answer::Count(0));
            }
        }
    }

    /// Hands the result out: once, then 0.
    pub(super) fn take_result(&mut self, turn: &mut Turn, name: SlotName) -> u64 {
        let session = self.sessions.find_mut(name).expect("found by the caller");
        session.last_used = turn.now;
        if session.taken || matches!(session.phase, Phase::Lingering { .. }) {
            return 0;
        }
        session.taken = true;
        self.untaken -= 1;
        let fact = match (session.skipped, session.tenant) {
            (Some(why), _) => {
                let (model, salt) = (session.model.clone(), session.salt.clone());
                Fact::LookupSkipped { model, salt, why }
            }
            (None, Some(tenant)) => Fact::LookupTaken {
                tenant,
                requested_chunks: session.requested,
                hit_chunks: session.hit,
                l1_hit_chunks: session.l1_hit.min(session.hit),
                hit_keys: session.set.len() as u32,
                l1_hit_keys: session.set.len() as u32
                    - session.loaded.min(session.set.len() as u32),
                stop: session.stop,
            },
            // Without a name left for the tenant there is no label to count it under.
            (None, None) => return session.hit as u64,
        };
        let hit = session.hit as u64;
        turn.out.tell(fact);
        hit
    }

    /// A result that nobody will take any more.
    pub(super) fn settle_untaken(&mut self, name: SlotName) {
        let session = self.sessions.find_mut(name).expect("found by the caller");
        if !session.taken {
            session.taken = true;
            self.untaken -= 1;
        }
    }

    pub(super) fn answer_waits(&mut self, turn: &mut Turn, name: SlotName) {
        let session = self.sessions.find_mut(name).expect("found by the caller");
        let mut first = None;
        for wait in core::mem::take(&mut session.waits) {
            turn.spend(1);
            // What would be told to nobody is left to whoever asks next (I-14).
            let Some(reply) = self.unpark(turn, wait) else { continue };
            let hit = if self.is_looking(name) { 0 } else { self.take_result(turn, name) };
            let hit = if planted!(turn.config, 22) { *first.get_or_insert(hit) } else { hit };
            turn.out.answer(reply, Answer::Count(hit));
        }
    }
}
