//! Memory of engines that the server copies from and to: what every block holds, and what it
//! should hold.
//!
//! The invariant: a block changes by its own engine, or by a copy that was asked to write it. What
//! must hold what is known from what engines compute and from retrieves that were answered true;
//! between a retrieve and its answer, and after one that failed, nothing is known of its blocks.

use crate::memory::Tag;
use std::collections::BTreeMap;

/// One engine's memory. It outlives the server, and its engine where that dies amid a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Whose bytes, and which block of an object they are.
pub type Held = Option<(Tag, u32)>;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    now: Held,
    due: Held,
    /// Nobody knows what it should hold.
    is_open: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Devices {
    blocks: BTreeMap<(DeviceId, u32), Block>,
    computed: u64,
}

impl Devices {
    /// An engine computes an object's share of a chunk into these blocks. Nobody else has the same
    /// bytes.
    pub fn compute(&mut self, device: DeviceId, ids: &[u32]) {
        self.computed += 1;
        let tag = Tag::computed(self.computed);
        for (part, id) in (0..).zip(ids) {
            let held = Some((tag, part));
            let block = Block { now: held, due: held, is_open: *id == NULL };
            self.blocks.insert((device, *id), block);
        }
    }

    /// What these blocks hold, if that is one object's bytes in their order.
    pub fn object(&self, device: DeviceId, ids: &[u32]) -> Option<Tag> {
        let tag = self.held(device, *ids.first()?)?.0;
        let is_part = |(part, id): (u32, &u32)| self.held(device, *id) == Some((tag, part));
        (0..).zip(ids).all(is_part).then_some(tag)
    }

    pub fn held(&self, device: DeviceId, id: u32) -> Held {
        self.blocks.get(&(device, id)).and_then(|block| block.now)
    }

    /// The server writes a block.
    pub fn fill(&mut self, device: DeviceId, id: u32, held: Held) {
        self.blocks.entry((device, id)).or_default().now = held;
    }

    /// A copy that was asked for may write this block.
    pub fn open(&mut self, device: DeviceId, id: u32) {
        self.blocks.entry((device, id)).or_default().is_open = true;
    }

    /// A copy has ended well that was to write this block.
    pub fn expect(&mut self, device: DeviceId, id: u32, held: Held) {
        let block = self.blocks.entry((device, id)).or_default();
        (block.due, block.is_open) = (held, id == NULL);
    }

    /// Every block of a device holds what it should hold (P1).
    pub fn check(&self, device: DeviceId) -> Result<(), String> {
        let of_device = (device, 0)..=(device, u32::MAX);
        let wrong = |block: &Block| !block.is_open && block.now != block.due;
        match self.blocks.range(of_device).find(|(_, block)| wrong(block)) {
            None => Ok(()),
            Some(((_, id), block)) => Err(format!(
                "P1: block {id} of device {} holds {:?} instead of {:?}",
                device.0, block.now, block.due
            )),
        }
    }
}

/// The block that engines name where they have none. Nobody cares what it holds.
pub const NULL: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_nobody_was_asked_to_write_must_not_change() {
        let (mut devices, device) = (Devices::default(), DeviceId(1));
        devices.compute(device, &[3, 5]);
        let tag = devices.object(device, &[3, 5]).expect("computed");
        assert_eq!(devices.object(device, &[5, 3]), None);
        devices.fill(device, 5, None);
        assert!(devices.check(device).is_err());
        devices.open(device, 5);
        assert!(devices.check(device).is_ok());
        devices.expect(device, 5, Some((tag, 1)));
        assert!(devices.check(device).is_err());
        devices.fill(device, 5, Some((tag, 1)));
        assert!(devices.check(device).is_ok());
    }
}
