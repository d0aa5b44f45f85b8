//! Every way in which copies are let go without their commit: the end of a connection or of a
//! registration, the write TTL.
//!
//! The invariant: an end counts from its event on (`Owned::ended`), whether or not each copy that
//! it is about has been visited; visiting is work like any other and may take several turns. Lists
//! are walked from their last entry to the first: leaving copies only ever move a later one down,
//! so none is passed over.

use super::{Copies, Copy, Ending, Kind};
use crate::engine::clients::{Ended, Mode};
use crate::engine::jobs::Job;
use crate::engine::turn::Turn;
use crate::fact::{Abort, Fact, LeaseEnd};
use crate::names::Connection;
use crate::slots::SlotName;

impl Copies {
    /// End of stream: nothing is read or written over this connection any more.
    pub fn connection_ended(&mut self, turn: &mut Turn, connection: Connection) {
        let Some(owned) = self.by_connection.get_mut(&connection) else { return };
        // What still streams over it ends by its own ticket.
        self.ended += owned.ended.is_none() as usize;
        owned.ended = Some(Abort::ConnectionEnded);
        let left = owned.names.len() as u32;
        if let Some(left) = self.end_connection_some(turn, connection, left) {
            turn.jobs.push(Job::EndConnection { connection, left });
        }
    }

    /// Goes on with the copies below `left` of a connection that has ended. What is still left.
    pub fn end_connection_some(
        &mut self,
        turn: &mut Turn,
        connection: Connection,
        mut left: u32,
    ) -> Option<u32> {
        while left > 0 {
            if turn.is_spent() {
                return Some(left);
            }
            turn.spend(1);
            left -= 1;
            let owned = self.by_connection.get(&connection)?;
            let Some(name) = owned.names.get(left as usize).copied() else { continue };
            let lent = |copy: &Copy| copy.lent.is_some();
            let was_lent = planted!(turn.config, 35) && self.copies.find(name).is_some_and(lent);
            self.end_lent(name);
            let copy = self.copies.find(name).expect("listed while it exists");
            let is_dead = planted!(turn.config, 4) && copy.condemned == Some(Abort::Reaped);
            let is_dead = is_dead || was_lent && copy.reply.is_some();
            if (copy.stream.is_some() && !is_dead) || copy.is_ending {
                continue;
            }
            let how = match copy.key.kind {
                Kind::Store => Ending::Abort(Abort::ConnectionEnded),
                Kind::Retrieve => Ending::Unread,
            };
            self.end(turn, name, how);
        }
        None
    }

    /// A registration has ended: what it has not committed will not be published.
    pub fn instance_ended(&mut self, turn: &mut Turn, instance: Ended, why: Abort) {
        let registration = instance.registration;
        let Some(owned) = self.by_registration.get_mut(&registration) else { return };
        self.ended += owned.ended.is_none() as usize;
        owned.ended = Some(why);
        owned.wrote_slots = instance.mode == Mode::SharedMemory;
        let left = owned.names.len() as u32;
        if let Some(left) = self.end_instance_some(turn, registration, left) {
            turn.jobs.push(Job::EndInstance { registration, left });
        }
    }

    /// Goes on with the copies below `left` of a registration that has ended. What is still left.
    pub fn end_instance_some(
        &mut self,
        turn: &mut Turn,
        registration: SlotName,
        mut left: u32,
    ) -> Option<u32> {
        while left > 0 {
            if turn.is_spent() {
                return Some(left);
            }
            turn.spend(1);
            left -= 1;
            let owned = self.by_registration.get(&registration)?;
            let why = owned.ended?;
            let Some(name) = owned.names.get(left as usize).copied() else { continue };
            let copy = self.copies.find(name).expect("listed while it exists");
            let blocks = copy.paged.map_or(0, |paged| paged.blocks as usize);
            if planted!(turn.config, 50) && blocks > 0 && copy.key.kind == Kind::Store {
                (self.paged, self.blocks) = (self.paged - 1, self.blocks - blocks);
                self.end(turn, name, Ending::Abort(why));
                continue;
            }
            let is_arriving = copy.stream.is_some() && copy.lent.is_some();
            if copy.key.kind == Kind::Store && !(planted!(turn.config, 5) && is_arriving) {
                self.condemn(turn, name, why);
            }
        }
        None
    }

    /// The write TTL has passed without a commit.
    pub fn write_expired(&mut self, turn: &mut Turn, name: SlotName) {
        if let Some(copy) = self.copies.find_mut(name) {
            copy.timer = None;
            self.condemn(turn, name, Abort::WriteTtl);
        }
    }

    /// Frees the keys of a reservation; its memory stays with the client.
    fn condemn(&mut self, turn: &mut Turn, name: SlotName, why: Abort) {
        let Some(copy) = self.copies.find_mut(name) else { return };
        if copy.condemned.is_some() || copy.is_ending {
            return;
        }
        copy.condemned = Some(why);
        if !self.condemn_some(turn, name) {
            turn.jobs.push(Job::Condemn { copy: name });
        }
    }

    /// Goes on with taking back a reservation's keys. True when it has none left.
    pub fn condemn_some(&mut self, turn: &mut Turn, name: SlotName) -> bool {
        let Some(copy) = self.copies.find_mut(name) else { return true };
        let Some(why) = copy.condemned else { return true };
        let mark = turn.out.mark();
        while copy.taken_back < copy.objects.len() && !turn.is_spent() {
            turn.spend(1);
            turn.l1.condemn_staged(copy.objects[copy.taken_back], turn.out);
            copy.taken_back += 1;
        }
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::WriteAborted { keys, why });
        }
        copy.taken_back >= copy.objects.len()
    }

    /// Lets a copy go, over several turns where it has many objects.
    pub(super) fn end(&mut self, turn: &mut Turn, name: SlotName, how: Ending) {
        // A copy that is being let go is no commit's any more.
        self.unlist(name);
        self.copies.find_mut(name).expect("ended while it exists").is_ending = true;
        if !self.end_some(turn, name, how) {
            turn.jobs.push(Job::EndCopy { copy: name, how });
        }
    }

    /// Goes on with letting a copy's objects go. True when it has ended.
    pub fn end_some(&mut self, turn: &mut Turn, name: SlotName, how: Ending) -> bool {
        let mark = turn.out.mark();
        let Some(copy) = self.copies.find_mut(name) else { return true };
        while !turn.is_spent() {
            let Some(id) = copy.objects.pop() else { break };
            turn.spend(1);
            match how {
                Ending::Abort(_) => {
                    let id = if planted!(turn.config, 31) { turn.l1.newest(id) } else { id };
                    turn.l1.condemn_staged(id, turn.out);
                }
                Ending::Unread => turn.l1.push_key(id, turn.out),
                Ending::Unpin => {}
            }
            turn.l1.unpin(id);
        }
        let ended = copy.objects.is_empty();
        let keys = turn.out.keys_since(mark);
        match how {
            _ if keys.is_empty() => {}
            Ending::Abort(why) => turn.out.tell(Fact::WriteAborted { keys, why }),
            Ending::Unread => {
                let why = LeaseEnd::ConnectionEnded;
                turn.out.tell(Fact::ReadFinished { keys, why });
            }
            Ending::Unpin => unreachable!("nothing is told of a read that was told of"),
        }
        if ended {
            self.remove(turn, name);
        }
        ended
    }

    /// Why nothing of a copy is to be published any more, if so.
    pub(super) fn given_up(&self, copy: &Copy) -> Option<Abort> {
        let of_registration = || self.by_registration.get(&copy.registration)?.ended;
        copy.condemned.or_else(|| if self.ended == 0 { None } else { of_registration() })
    }

    /// Whether the registration that a copy was lent under has ended.
    pub(super) fn is_orphan(&self, copy: &Copy) -> bool {
        let owned = || self.by_registration.get(&copy.registration);
        self.ended > 0 && owned().is_some_and(|owned| owned.ended.is_some())
    }

    /// Whether the instance of a copy whose registration has ended wrote to slots.
    pub(super) fn wrote_slots(&self, copy: &Copy) -> bool {
        self.by_registration.get(&copy.registration).is_some_and(|owned| owned.wrote_slots)
    }

    /// Whether the connection that a copy was lent over has ended.
    pub(super) fn is_cut(&self, copy: &Copy) -> bool {
        let owned = || self.by_connection.get(&copy.connection);
        self.ended > 0 && owned().is_some_and(|owned| owned.ended.is_some())
    }
}
