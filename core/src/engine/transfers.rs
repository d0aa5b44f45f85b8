//! The desk's part for transfers: whose they are, and which of the four operations they ask for.

use super::Engine;
use super::clients::Mode;
use super::copies::{Asker, BLOCKS_PER_CELL, Blocks, Committer, Kind};
use super::scopes::ScopeKey;
use super::turn::Turn;
use crate::effect::{Answer, Outbox};
use crate::event::{Ask, Keys};
use crate::fact::{AllocatedBlock, Fact, RequestFault};
use crate::names::{InstanceId, KvRank, Reply};
use crate::{SeededHash, limits};
use core::hash::BuildHasher;

impl Engine {
    /// The four transfer operations of an engine-driven client.
    pub(super) fn transfer(&mut self, reply: Reply, ask: &Ask<'_>, out: &mut Outbox) {
        let (instance, keys, operation, negative) = match ask {
            Ask::PrepareStore { instance, keys } => {
                (*instance, keys, "prepare_store", Answer::NoContext)
            }
            Ask::CommitStore { instance, keys, .. } => {
                (*instance, keys, "commit_store", Answer::Bool(false))
            }
            Ask::PrepareRetrieve { instance, keys } => {
                (*instance, keys, "prepare_retrieve", Answer::RetrieveMiss)
            }
            Ask::CommitRetrieve { instance, keys } => {
                (*instance, keys, "commit_retrieve", Answer::Bool(false))
            }
            _ => unreachable!("the desk sends transfers only"),
        };
        let asker = match self.find_asker(reply, instance, keys, out) {
            Ok(asker) => asker,
            Err(fault) => {
                self.commit_late(reply, ask, out);
                out.tell(Fact::RequestFaulted { operation, fault });
                return out.answer(reply, negative);
            }
        };
        let mut turn = turn!(self, out);
        match ask {
            Ask::PrepareStore { .. } => self.copies.prepare_store(&mut turn, &asker, keys),
            Ask::PrepareRetrieve { .. } => {
                let sessions = &mut self.sessions;
                self.copies.prepare_retrieve(&mut turn, sessions, &asker, keys);
            }
            Ask::CommitRetrieve { .. } => {
                self.copies.commit_retrieve(&mut turn, &asker, keys);
                out.answer(reply, Answer::Bool(true));
            }
            Ask::CommitStore { inline_bytes: 0, .. } => {
                self.copies.commit_store(&mut turn, &asker, keys);
                self.clients.has_mode(instance, Mode::SharedMemory);
            }
            Ask::CommitStore { .. } => {
                self.copies.receive(&mut turn, &asker, keys);
            }
            _ => unreachable!("the desk sends transfers only"),
        }
    }

    /// `store` and `retrieve` of a server-driven client.
    pub(super) fn copy_blocks(&mut self, reply: Reply, ask: &Ask<'_>, out: &mut Outbox) {
        let (instance, keys, ids, operation, skip_tokens) = match *ask {
            Ask::Store { instance, keys, blocks } => (instance, keys, blocks, "store", 0),
            Ask::Retrieve { instance, keys, blocks, skip_tokens } => {
                (instance, keys, blocks, "retrieve", skip_tokens)
            }
            _ => unreachable!("the desk sends copies only"),
        };
        let found = self.find_asker(reply, instance, &keys, out);
        let found = found.and_then(|asker| {
            let memory = self.clients.find(instance).and_then(|known| known.memory);
            let memory = memory.ok_or(RequestFault::NoMemory)?;
            let each = memory.pages.blocks_per_chunk() as usize;
            let wanted = keys.chunks().len() * each;
            let ids = ids.get(..wanted).filter(|_| ids.len().is_multiple_of(each));
            let ids = ids.ok_or(RequestFault::BadBlocks)?;
            if ids.iter().any(|id| *id >= memory.pages.blocks) {
                return Err(RequestFault::BadBlocks);
            }
            Ok((asker, Blocks { memory, ids, skip_tokens }))
        });
        let (asker, blocks) = match found {
            Ok(found) => found,
            Err(fault) => {
                out.tell(Fact::RequestFaulted { operation, fault });
                return out.answer(reply, Answer::EventFlag(false));
            }
        };
        let mut turn = turn!(self, out);
        match ask {
            Ask::Store { .. } => self.copies.store_blocks(&mut turn, &asker, &keys, &blocks),
            _ => {
                let sessions = &mut self.sessions;
                self.copies.retrieve_blocks(&mut turn, sessions, &asker, &keys, &blocks);
            }
        }
    }

    /// What an engine does with its own blocks changes nothing here; it is passed on.
    pub(super) fn blocks_allocated(
        &mut self,
        instance: InstanceId,
        model: &str,
        blocks: &[AllocatedBlock],
        out: &mut Outbox,
    ) {
        if blocks.is_empty() {
            return;
        }
        self.tells_blocks = true;
        self.work.spend_own(blocks.len().div_ceil(BLOCKS_PER_CELL));
        let (model, blocks) = (model.into(), blocks.into());
        out.tell(Fact::BlocksAllocated { instance, model, blocks });
    }

    pub(super) fn session_ended(&mut self, request: &str, out: &mut Outbox) {
        if self.tells_blocks {
            let request = SeededHash::of_requests(self.config.seed).hash_one(request);
            out.tell(Fact::SessionEnded { request });
        }
    }

    /// A commit that its registration has not lived to see ends its copy all the same.
    fn commit_late(&mut self, reply: Reply, ask: &Ask<'_>, out: &mut Outbox) {
        let (instance, keys, kind) = match ask {
            Ask::CommitStore { instance, keys, .. } => (*instance, keys, Kind::Store),
            Ask::CommitRetrieve { instance, keys } => (*instance, keys, Kind::Retrieve),
            _ => return,
        };
        let request = self.copies.request_hash(keys.request);
        let by = Committer { request, connection: reply.connection };
        let mut turn = turn!(self, out);
        match ask {
            Ask::CommitStore { inline_bytes: 1.., .. } => {
                self.copies.body_unregistered(&mut turn, by, instance, keys);
            }
            _ => self.copies.commit_unregistered(&mut turn, by, kind, instance, keys),
        }
    }

    /// Who asks for a transfer: a registered instance, for its own model, as one of its ranks.
    fn find_asker(
        &mut self,
        reply: Reply,
        instance: InstanceId,
        keys: &Keys<'_>,
        out: &mut Outbox,
    ) -> Result<Asker, RequestFault> {
        let now = self.clients.heard(&self.config, self.now, instance);
        let known = self.clients.seen(now, instance).ok_or(RequestFault::UnknownInstance)?;
        let is_other = known.world_size != keys.world_size && !planted!(self.config, 28);
        if *known.model != *keys.model || is_other {
            return Err(RequestFault::BadKey);
        }
        let row = keys.worker.ok_or(RequestFault::NoWorker)?;
        let rank = KvRank::of(keys.world_size, row).ok_or(RequestFault::BadKey)?;
        if keys.chunks().len() > limits::REQUEST_CHUNKS_MAX {
            return Err(RequestFault::BadKey);
        }
        let (layout, registration) = (known.layout, known.registration);
        let offers = known.offers(self.config.pool);
        let scopes = &mut self.l1.scopes;
        let tenant = scopes.name_tenant(keys.model, keys.salt, &mut out.facts);
        let tenant = tenant.ok_or(RequestFault::TableFull)?;
        let key = ScopeKey { tenant, rank, group: 0, layout };
        let scope = scopes.name_scope(key).ok_or(RequestFault::TableFull)?;
        let bytes = layout.bytes().expect("registrations without bytes are refused");
        let connection = reply.connection;
        let request = self.copies.request_hash(keys.request);
        Ok(Asker {
            instance,
            registration,
            connection,
            reply,
            request,
            layout,
            bytes,
            scope,
            row,
            offers,
        })
    }
}
