//! The desk's part for registrations: who may transfer, how, and what goes with whom.

use super::Engine;
use super::attachments::{Ended as Attached, Memory};
use super::clients::{Ended, Registered};
use super::turn::Turn;
use crate::config::TransferModes;
use crate::effect::{Answer, Outbox, Refusal};
use crate::event::{AttachFault, PagedRegistration, Registration};
use crate::fact::{Abort, Fact, InstanceEnd};
use crate::names::{Attachment, Connection, Device, InstanceId, KvRank, Layout, Reply};

impl Engine {
    pub(super) fn register(
        &mut self,
        reply: Reply,
        registration: &Registration<'_>,
        out: &mut Outbox,
    ) {
        let (instance, model) = (registration.instance, registration.model);
        let is_off = self.config.transfer_modes == TransferModes::ServerDriven;
        let off = is_off.then_some(Refusal::EngineDrivenOff);
        let unfit = || self.unfit(registration.world_size, registration.layout);
        if let Some(reason) = off.or_else(unfit) {
            return self.refuse(reply, instance, model, reason, out);
        }
        match self.admit(registration, None, out) {
            Ok(()) => {
                self.attachments.outdate(instance);
                out.answer(reply, Answer::Registered);
            }
            Err(reason) => self.refuse(reply, instance, model, reason, out),
        }
    }

    /// A server-driven registration is answered when its memory has been attached.
    pub(super) fn register_paged(
        &mut self,
        reply: Reply,
        registration: &PagedRegistration<'_>,
        out: &mut Outbox,
    ) {
        let PagedRegistration { instance, model, world_size, pages } = *registration;
        let is_off = self.config.transfer_modes == TransferModes::EngineDriven;
        let off = is_off.then_some(Refusal::ServerDrivenOff);
        let full = || self.attachments.is_full().then_some(Refusal::InstancesFull);
        let unfit = || self.unfit(world_size, pages.layout());
        if let Some(reason) = off.or_else(unfit).or_else(full) {
            return self.refuse(reply, instance, model, reason, out);
        }
        if !planted!(self.config, 54) {
            self.attachments.outdate(instance);
        }
        self.attachments.begin(reply, registration, out);
    }

    pub(super) fn attach_ended(
        &mut self,
        attachment: Attachment,
        outcome: Result<Device, AttachFault>,
        out: &mut Outbox,
    ) {
        let pending = match self.attachments.ended(attachment, outcome.is_ok(), out) {
            Attached::Stale => return out.tell(Fact::StaleEnding),
            Attached::Unwanted => return,
            Attached::Of(pending) => pending,
        };
        let (reply, instance, model) = (pending.reply, pending.instance, &*pending.model);
        if pending.is_outdated {
            let reason = Refusal::Malformed("the instance has left, or has registered anew since");
            return self.refuse(reply, instance, model, reason, out);
        }
        let device = match outcome {
            Ok(device) => device,
            Err(fault) => {
                return self.refuse(reply, instance, model, Refusal::Attach(fault), out);
            }
        };
        let (pages, world_size) = (pending.pages, pending.world_size);
        let (layout, block_size) = (pages.layout(), pages.tokens_per_block);
        let registration = Registration { instance, model, world_size, block_size, layout };
        match self.admit(&registration, Some(Memory { attachment, pages, device }), out) {
            Ok(()) => out.answer(reply, Answer::None),
            Err(reason) => {
                self.attachments.detach(attachment, out);
                self.refuse(reply, instance, model, reason, out);
            }
        }
    }

    /// Why nobody of this world can store objects of this layout, if so.
    fn unfit(&self, world_size: u32, layout: Layout) -> Option<Refusal> {
        let fits = layout.bytes().is_some_and(|bytes| self.l1.fits_ever(bytes));
        if KvRank::of(world_size, 0).is_none() {
            return Some(Refusal::WorldSize);
        }
        (!fits).then_some(Refusal::LayoutTooLarge)
    }

    /// Puts an instance on the table, in the place of one that had its id.
    fn admit(
        &mut self,
        registration: &Registration<'_>,
        memory: Option<Memory>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let mut turn = turn!(self, out);
        match self.clients.register(&mut turn, &mut self.layouts, registration, memory) {
            Registered::Full => return Err(Refusal::InstancesFull),
            Registered::Replaced(ended) => self.let_go(ended, Abort::Replaced, out),
            Registered::New | Registered::Known => {}
        }
        Ok(())
    }

    pub(super) fn refuse(
        &mut self,
        reply: Reply,
        instance: InstanceId,
        model: &str,
        reason: Refusal,
        out: &mut Outbox,
    ) {
        self.refusals.keep(self.now, instance, model, reason);
        out.tell(Fact::RegistrationRefused { instance, model: model.into(), reason });
        out.answer(reply, Answer::Refused(reason));
    }

    /// Memory that was registered over a connection goes with it, and so do its registrations.
    pub(super) fn end_attached(&mut self, connection: Connection, out: &mut Outbox) {
        if planted!(self.config, 53) {
            return;
        }
        for instance in self.attachments.connection_ended(connection) {
            self.work.spend(1);
            let why = (InstanceEnd::ConnectionEnded, Abort::ConnectionEnded);
            self.end_instance(instance, why, out);
        }
    }

    pub(super) fn end_instance(
        &mut self,
        instance: InstanceId,
        (why, abort): (InstanceEnd, Abort),
        out: &mut Outbox,
    ) {
        let mut turn = turn!(self, out);
        let ended = self.clients.end(&mut turn, &mut self.layouts, instance, why);
        if let Some(ended) = ended {
            self.let_go(ended, abort, out);
        }
    }

    /// What a registration that has ended had lent and lent us.
    fn let_go(&mut self, ended: Ended, abort: Abort, out: &mut Outbox) {
        self.copies.instance_ended(&mut turn!(self, out), ended, abort);
        if let Some(memory) = ended.memory {
            self.attachments.detach(memory.attachment, out);
            if planted!(self.config, 52) && abort == Abort::Replaced {
                out.effects.pop();
            }
        }
    }
}
