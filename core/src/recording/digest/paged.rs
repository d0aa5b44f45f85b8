//! The words of what is told about server-driven transfers and engines' own blocks.

use super::{Digest, Folder};
use crate::fact::{AllocatedBlock, Fact, TransferEnd};
use crate::names::Device;
use crate::recording::secret::Naming;

impl<N: Naming> Folder<'_, N> {
    /// Adds nothing for a fact of another kind.
    pub(super) fn paged_fact(&mut self, fact: &Fact) {
        let digest = &mut *self.digest;
        match fact {
            Fact::TransferSubmitted { direction, device } => {
                digest.word(*direction as u64);
                digest.device(*device);
            }
            Fact::TransferEnded(end) => {
                let TransferEnd { direction, device, instance, tenant, keys, bytes, took } = *end;
                digest.word(direction as u64);
                digest.device(device);
                digest.word(instance.0 as u64);
                digest.pair(tenant.0, keys);
                digest.word(bytes);
                digest.word(took.as_nanos() as u64);
            }
            Fact::BlocksAllocated { instance, model, blocks } => {
                digest.word(instance.0 as u64);
                digest.text(model);
                digest.word(blocks.len() as u64);
                for AllocatedBlock { request, tokens, block } in blocks {
                    digest.word(self.naming.number(*request));
                    digest.word(self.naming.number(*tokens));
                    digest.word((*block).into());
                }
            }
            // A replay has another number for this request: its own name is none any more. The
            // event says which one it was.
            Fact::SessionEnded { request: _ } => {}
            _ => {}
        }
    }
}

impl Digest {
    fn device(&mut self, device: Device) {
        self.word(match device {
            Device::Host => 0,
            Device::Card(card) => 1 + u64::from(card),
        });
    }
}
