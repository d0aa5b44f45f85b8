//! What must hold of client copies: pins, tickets, lists, and what writers and readers may hold
//! (I-2, I-6, I-7, P3).

use super::{Copies, Copy, Kind, Owned, Owner};
use crate::engine::alarms::Alarm;
use crate::engine::audit::{Claims, View, Violation, check, of_copy};
use crate::engine::clients::Clients;
use crate::engine::l1::objects::{Object, State};
use crate::limits::{BLOCKS_IN_FLIGHT_MAX, COPIES_PER_NAME_MAX, PAGE_COPIES_MAX};
use crate::names::{ObjectId, Ticket};
use crate::slots::SlotName;

impl Copies {
    /// Adds what copies claim of objects and alarms.
    pub(crate) fn audit(
        &self,
        view: &View,
        clients: &Clients,
        claims: &mut Claims,
    ) -> Result<(), Violation> {
        let (mut reads, mut lent, mut writes, mut tickets) = (0, 0, 0, 0);
        let (mut paged, mut blocks) = (0, 0);
        let mut lists = Lists::default();
        for (name, copy) in self.copies.iter() {
            copy.audit_objects(view, claims)?;
            copy.audit_lent(view)?;
            self.audit_name(name, copy, &mut lists)?;
            self.audit_owners(name, copy, clients, &mut lists)?;
            self.audit_end(name, copy, view)?;
            self.audit_timer(name, copy, view, claims)?;
            reads += copy.reads;
            lent += copy.lent_bytes;
            writes += if copy.lent_bytes > 0 { copy.objects.len() } else { 0 };
            let copies =
                |ticket: Ticket| matches!(self.tickets.find(ticket.0), Some(Owner::Paged(_)));
            paged += copy.stream.is_some_and(copies) as usize;
            blocks += copy.paged.map_or(0, |paged| paged.blocks as usize);
            tickets += copy.lent.is_some() as usize + copy.stream.is_some() as usize;
        }
        check(reads == self.reads, "I-11", "objects that readers pin are miscounted")?;
        check(lent == self.lent_bytes, "I-2", "lent bytes do not match the copies")?;
        let bounded = lent <= view.config.lent_bytes_max() || writes <= 1;
        check(bounded, "I-2", "writers hold more than their share")?;
        let bounded = reads <= view.config.limits.lease_cells;
        check(bounded, "I-11", "readers hold more than there are lease cells")?;
        check(tickets == self.tickets.len(), "I-6", "a copy whose ticket has ended")?;
        let counted = (paged, blocks) == (self.paged, self.blocks);
        check(counted, "I-2", "copies in flight are miscounted")?;
        let bounded = paged <= PAGE_COPIES_MAX && blocks <= BLOCKS_IN_FLIGHT_MAX;
        check(bounded, "P3", "more is being copied than may be at once")?;
        self.audit_tickets()?;
        let kept = (self.pending.len(), self.by_connection.len(), self.by_registration.len());
        let seen = (lists.names, lists.connections, lists.registrations);
        check(kept == seen, "I-6", "a list of copies without a copy")?;
        check(lists.listed == 2 * self.copies.len(), "I-6", "an owner lists what is not its own")?;
        check(lists.ended == self.ended, "I-6", "ended owners of copies are miscounted")
    }

    fn audit_tickets(&self) -> Result<(), Violation> {
        for (name, owner) in self.tickets.iter() {
            let ticket = Some(Ticket(name));
            let owned = match *owner {
                Owner::ClientCopy(copy) => {
                    self.copies.find(copy).is_some_and(|copy| copy.lent == ticket)
                }
                Owner::Send(copy) => self
                    .copies
                    .find(copy)
                    .is_some_and(|copy| copy.stream == ticket && copy.key.kind == Kind::Retrieve),
                Owner::Receive(copy) => self
                    .copies
                    .find(copy)
                    .is_some_and(|copy| copy.stream == ticket && copy.key.kind == Kind::Store),
                Owner::Paged(copy) => self
                    .copies
                    .find(copy)
                    .is_some_and(|copy| copy.stream == ticket && copy.lent.is_none()),
            };
            check(owned, "I-6", "a ticket without its copy")?;
        }
        Ok(())
    }

    /// Everything that owns a copy lists it, once, where the copy says.
    fn audit_owners(
        &self,
        name: SlotName,
        copy: &Copy,
        clients: &Clients,
        lists: &mut Lists,
    ) -> Result<(), Violation> {
        let connection = self.by_connection.get(&copy.connection);
        let at = copy.at_connection;
        check(is_listed(connection, at, name), "I-6", "a connection does not list its copy")?;
        lists.connections += lists.see(connection, at);
        let registration = self.by_registration.get(&copy.registration);
        let at = copy.at_registration;
        check(is_listed(registration, at, name), "I-6", "a registration does not list its copy")?;
        lists.registrations += lists.see(registration, at);
        // What is published counts for a registration that lives; of one that has ended, all
        // copies are known to be orphans.
        let lives = clients.is_registered(copy.key.instance, copy.registration);
        let has_ended = registration.is_some_and(|owned| owned.ended.is_some());
        check(lives != has_ended, "I-7", "a registration has ended, and its copies do not know")
    }

    /// A name lists exactly the copies that a commit may end.
    fn audit_name(&self, name: SlotName, copy: &Copy, lists: &mut Lists) -> Result<(), Violation> {
        let names = self.pending.get(&copy.key).map_or(&[][..], |names| &names[..]);
        let times = names.iter().filter(|other| **other == name).count();
        let expected = !copy.is_ending as usize;
        lists.names += (names.first() == Some(&name)) as usize;
        check(
            times == expected,
            "I-6",
            "a commit finds a copy that has ended, or does not find it",
        )?;
        let is_own = |other: &SlotName| {
            let other = self.copies.find(*other);
            other.is_some_and(|other| other.key == copy.key && !other.is_ending)
        };
        check(names.iter().all(is_own), "I-6", "a name lists a copy that has ended")?;
        check(names.len() <= COPIES_PER_NAME_MAX, "P3", "more copies than one name may have")
    }

    /// A copy is in somebody's hands, or it is being let go; whatever its event left unfinished
    /// has a job.
    fn audit_end(&self, name: SlotName, copy: &Copy, view: &View) -> Result<(), Violation> {
        if copy.is_ending {
            let ends_on = view.jobs.copy(name, of_copy::END);
            check(copy.lent.is_none(), "I-2", "memory is let go that a client has")?;
            check(copy.stream.is_none(), "I-2", "memory is let go while bytes flow")?;
            return check(ends_on, "I-2", "a copy is half let go, and no job goes on");
        }
        let is_held = copy.lent.is_some() || copy.stream.is_some();
        check(is_held, "I-2", "a pin without a ticket: nothing will end it")?;
        let owner = copy.stream.and_then(|ticket| self.tickets.find(ticket.0));
        let answers = matches!(owner, Some(Owner::Receive(_) | Owner::Paged(_)));
        check(copy.reply.is_some() == answers, "I-10", "a copy and its answer do not go together")?;
        let is_taken_back = copy.condemned.is_none() || copy.taken_back >= copy.objects.len();
        let takes_on = view.jobs.copy(name, of_copy::CONDEMN);
        check(is_taken_back || takes_on, "I-7", "a reservation is half condemned without a job")?;
        let at = copy.at_connection;
        let is_cut = self.is_cut(copy) && copy.lent.is_some();
        let is_seen = || view.jobs.ends_connection(copy.connection, at);
        check(!is_cut || is_seen(), "I-2", "slots outlive their connection")?;
        let at = copy.at_registration;
        let is_store = copy.key.kind == Kind::Store && copy.condemned.is_none();
        let is_left = is_store && self.is_orphan(copy);
        let is_seen = || view.jobs.ends_registration(copy.registration, at);
        check(!is_left || is_seen(), "I-7", "a reservation outlives its registration")
    }

    /// A reservation that is not committed is given up some time (I-11).
    fn audit_timer(
        &self,
        name: SlotName,
        copy: &Copy,
        view: &View,
        claims: &mut Claims,
    ) -> Result<(), Violation> {
        if copy.timer.is_some() {
            claims.timers += 1;
            let until = copy.started + view.config.write_ttl;
            let fires = view.alarms.will_fire(copy.timer, Alarm::WriteExpiry, name, until);
            return check(fires, "I-44", "a reservation outlives its write TTL");
        }
        let is_given_up = copy.condemned.is_some() || copy.is_ending;
        check(
            is_given_up || copy.key.kind == Kind::Retrieve,
            "I-11",
            "a reservation has no deadline",
        )
    }
}

impl Copy {
    fn audit_objects(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let is_store = self.key.kind == Kind::Store;
        for (at, id) in self.objects.iter().enumerate() {
            let object = object(view, *id)?;
            claims.of(*id).1 += 1;
            check(object.scope == self.key.scope, "I-48", "a copy of another scope's object")?;
            let is_right = match object.state {
                State::Staged => is_store && (self.is_ending || at >= self.taken_back),
                State::Resident => !is_store,
                State::Condemned => true,
            };
            check(is_right, "I-7", "an uncommitted slot is readable, or a reader has one")?;
        }
        let ordered = self.chunks.windows(2).all(|pair| pair[0] < pair[1]);
        check(ordered, "I-5", "a copy names a chunk twice")?;
        let whole = self.is_ending || self.chunks.len() == self.objects.len();
        check(whole, "I-5", "a copy has not one chunk for each object")
    }

    /// What one copy counts for in the shares of writers and of readers (P3).
    fn audit_lent(&self, view: &View) -> Result<(), Violation> {
        let (reads, lent) = (self.reads, self.lent_bytes);
        if self.key.kind == Kind::Retrieve {
            check(lent == 0, "I-2", "a reader counts as a writer")?;
            let whole = reads == self.objects.len() || (self.is_ending && reads > 0);
            return check(whole, "I-11", "a reader does not count for what it pins");
        }
        check(reads == 0, "I-11", "a writer counts as a reader")?;
        let mut bytes = 0;
        for id in &self.objects {
            bytes += object(view, *id)?.aligned;
        }
        if self.lent.is_some() {
            return check(lent == bytes, "I-2", "a writer does not count for what it was lent");
        }
        // One whose slots are back counts until the last of them is free; a body for none.
        check(lent == 0 || lent >= bytes, "I-2", "a writer counts for less than it holds")
    }
}

fn object<'a>(view: &View<'a>, id: ObjectId) -> Result<&'a Object, Violation> {
    let found = "a pin names memory that was given back";
    view.l1.objects.find(id.0).ok_or(Violation { invariant: "I-2", found })
}

fn is_listed(owned: Option<&Owned>, at: u32, name: SlotName) -> bool {
    owned.is_some_and(|owned| owned.names.get(at as usize) == Some(&name))
}

/// Lists that were seen, each counted at its first copy.
#[derive(Default)]
struct Lists {
    names: usize,
    connections: usize,
    registrations: usize,
    /// Copies in the lists of connections and registrations.
    listed: usize,
    ended: usize,
}

impl Lists {
    /// One where this is the first copy of its owner's list.
    fn see(&mut self, owned: Option<&Owned>, at: u32) -> usize {
        let Some(owned) = owned.filter(|_| at == 0) else { return 0 };
        self.listed += owned.names.len();
        self.ended += owned.ended.is_some() as usize;
        1
    }
}
