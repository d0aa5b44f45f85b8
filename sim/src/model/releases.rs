//! What gives leases back before they run out (I-11, I-13).

use super::sessions::Session;
use super::{Model, Verdict, check};
use crate::calls::Range;

impl Model {
    /// A lookup comes under this id: what the one before it held may be gone before the new one has
    /// taken anything (I-12).
    pub fn is_replacing(&mut self, request: &str) {
        if let Some(session) = self.sessions.get_mut(request) {
            session.is_vague = true;
        }
    }

    /// `free_lookup_locks`: gives back what this request holds of whole chunks in a range.
    pub fn free(&mut self, range: &Range, no_such_hold: bool) -> Verdict {
        let (now, is_spent) = (self.now, self.turn.is_spent);
        let vague =
            |known: &Session| known.is_vague || now >= known.last_used.0 + self.rules.session_ttl;
        let known = self.sessions.get(&*range.request);
        let may_be_unknown = known.is_none_or(|known| vague(known) || known.has_ended);
        let forgotten = known.is_some_and(|known| known.is_forgotten(self));
        let named = known.filter(|known| !forgotten && known.speaks_of(range));
        if named.is_none() {
            let may_be_silent = range.is_empty();
            return check(no_such_hold || may_be_silent, "F01: a release that names nothing");
        }
        check(!no_such_hold || may_be_unknown, "F01: a good release was called wrong")?;
        if no_such_hold {
            self.sessions.remove(&*range.request);
            return Ok(());
        }
        let session = self.sessions.get_mut(&*range.request).expect("found above");
        if !session.is_decided {
            session.was_freed |= !session.is_vague;
            session.is_vague = true;
            session.last_used.1 = now;
            return Ok(());
        }
        session.is_taken = true;
        if range.is_empty() && may_be_unknown {
            // Nothing is told of it whether the session is known or not: it may have been used.
            session.last_used.1 = now;
            return Ok(());
        }
        session.used(now);
        let rows = session.rows.len();
        let len = session.cells.len();
        let (first, end) = (range.first_chunk as usize * rows, range.end_chunk as usize * rows);
        let freed = first.min(len)..end.min(len).max(first.min(len));
        // Several releases of one session go one after the other.
        let is_later = is_spent || !session.freeing.is_empty();
        for cell in &mut session.cells[freed.clone()] {
            cell.least = 0;
            cell.most = if is_later { cell.most } else { 0 };
        }
        if is_later {
            session.freeing.push(freed);
        }
        Ok(())
    }

    /// `end_session`: the result is gone, leases linger once and for a fixed time (I-11, I-13).
    pub fn end_session(&mut self, request: &str) {
        let linger = self.now + self.rules.linger;
        let settled = self.settled;
        let Some(session) = self.sessions.get_mut(request) else { return };
        if session.has_ended {
            return;
        }
        session.has_ended = true;
        session.is_vague |= !session.is_decided;
        session.was_freed = false;
        // What has run out already does not come back.
        if !session.is_decided || settled < session.until.1 {
            session.until = (session.until.0.min(linger), linger);
        }
    }
}
