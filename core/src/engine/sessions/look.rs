//! One lookup, chunk after chunk: probe every row, lease what is there, stop at the first hole.

use super::{Phase, Session};
use crate::engine::fold::Next;
use crate::engine::l1::{Found, Key, PROBES, Probes};
use crate::engine::promote::Wanted;
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{LeaseEnd, LookupStop};
use crate::names::ChunkHash;
use crate::slots::SlotName;

impl Session {
    /// Goes on as far as the turn's budget reaches. True when the result is decided. `given` are
    /// the hashes while the request is at hand; what is left over is kept for the next turn.
    pub(super) fn look(&mut self, turn: &mut Turn, given: Option<&[ChunkHash]>) -> bool {
        let Phase::Looking { fold, next, hashes: kept } = &mut self.phase else { return true };
        let hashes = given.unwrap_or(kept);
        let (set, scopes, readers) = (&mut self.set, &self.scopes, self.readers);
        let rows = scopes.len();
        let mut stop = LookupStop::Complete;
        let mut decided = *next >= self.reach;
        // Cells are probed some chunks ahead, few at first: most misses are at the beginning.
        let (mut probes, mut at, mut ahead) = (Probes::new(), 0, PROBES_FIRST);
        #[cfg(feature = "planted")]
        probes.append(&mut self.probed);
        while !decided {
            if at == probes.len() {
                if turn.is_spent() {
                    break;
                }
                let chunks = (ahead.min(turn.work.left()) / rows).max(1);
                let chunks = chunks.min((self.reach - *next) as usize);
                turn.spend(chunks * rows);
                let hashes = hashes[*next as usize..][..chunks].iter();
                let keys = hashes
                    .flat_map(|hash| scopes.iter().map(|scope| Key { hash: *hash, scope: *scope }));
                probes.clear();
                turn.l1.find_all(keys, &mut probes);
                (at, ahead) = (0, PROBES);
            }
            let step = fold.feed(|row| {
                stop = match probes[at + row] {
                    Found::Resident(id) => {
                        set.take(turn.l1, id, readers);
                        return true;
                    }
                    Found::Staged => LookupStop::InFlight,
                    Found::Absent if row == 0 => LookupStop::Absent,
                    Found::Absent => LookupStop::RankMissing,
                };
                false
            });
            at += rows;
            *next += 1;
            decided = step == Next::Decided || *next >= self.reach;
            #[cfg(feature = "planted")]
            if planted!(turn.config, 13) && !decided && turn.is_spent() {
                // What was found goes on with the next turn.
                self.probed.extend(probes.drain(at..));
                break;
            }
        }
        self.hit = fold.hit();
        self.stop = match stop {
            LookupStop::Complete if self.reach < self.requested => LookupStop::NoRoom,
            stop => stop,
        };
        if !decided && let Some(given) = given {
            *kept = given[..self.reach as usize].to_vec();
        }
        decided
    }

    /// What lower tiers are to be asked for, where they can help: the lookup waits for them.
    pub(super) fn wants_more(
        &mut self,
        turn: &mut Turn,
        name: SlotName,
        given: Option<&[ChunkHash]>,
    ) -> Option<Wanted> {
        // What is on its way into L1 may be a load that can be joined.
        let is_short = matches!(
            self.stop,
            LookupStop::Absent | LookupStop::RankMissing | LookupStop::InFlight
        );
        let tenant = self.tenant.filter(|_| is_short && self.hit < self.reach)?;
        let Phase::Looking { hashes: kept, .. } = &self.phase else { return None };
        let hashes = given.unwrap_or(kept);
        let hashes = hashes[self.hit as usize..self.reach as usize].to_vec();
        self.trim(turn);
        self.phase = Phase::Seeking;
        Some(Wanted {
            session: name,
            tenant,
            scopes: self.scopes.clone(),
            readers: self.readers,
            requested: self.requested,
            hashes,
        })
    }

    /// Whether the result does not stand yet.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.phase, Phase::Looking { .. } | Phase::Seeking)
    }

    /// Gives back what was taken of the chunk in which the hit ended. Rows are full here: a row
    /// with a window would also give back what lies before it.
    pub(super) fn trim(&mut self, turn: &mut Turn) {
        let keep = (self.hit * self.set.rows()) as usize;
        let first = match planted!(turn.config, 25) {
            true => keep.max(self.set.len().saturating_sub(1)),
            false => keep,
        };
        for at in first..self.set.len() {
            turn.spend(1);
            self.set.end_cell(turn.l1, at, LeaseEnd::Trimmed);
        }
        self.set.truncate(keep);
    }

    /// Cells below this one were leased, and nobody has been told yet.
    pub(super) fn untold(&self) -> usize {
        match self.phase {
            Phase::Looking { .. } | Phase::Seeking => self.set.len(),
            Phase::Touching { left } | Phase::Lingering { left } => left,
            Phase::Found => 0,
        }
    }

    /// Whether a key is about what this session has looked up.
    pub(super) fn speaks_of(&self, keys: &Keys) -> bool {
        *self.model == *keys.model && *self.salt == *keys.salt && self.world_size == keys.world_size
    }
}

/// Cells of the first probes of a turn.
const PROBES_FIRST: usize = 4;
