//! Reads what an engine's scheduler tells of its own blocks (`report_block_allocation`).
//!
//! ```text
//! record = request id, n block ids, m token ids
//! block i has tokens i*t .. (i+1)*t, where t = ceil(m / n)     (spec/metrics §3.7)
//! ```
//!
//! The one invariant: neither a request id nor a token id gets any further. Both are told by a
//! number under the key of this run.

use crate::SeededHash;
use crate::event::AllocatedBlock;
use crate::limits::ALLOCATED_BLOCKS_MAX;
use crate::wire::fields::List;
use crate::wire::request::BlockAllocation;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};

/// The report that was read last.
#[derive(Debug)]
pub struct Allocated {
    requests: SeededHash,
    tokens: SeededHash,
    blocks: Vec<AllocatedBlock>,
}

impl Allocated {
    pub fn new(seed: u64) -> Allocated {
        let (requests, tokens) = (SeededHash::of_requests(seed), SeededHash::of_tokens(seed));
        Allocated { requests, tokens, blocks: Vec::new() }
    }

    /// Takes in a report. False where it is not one: block ids that are no places in a table, or
    /// more blocks than a report may have. Then nothing of it is kept. Tokens without a new block
    /// go on in an older one, which is none of these rows' business.
    pub fn read(&mut self, records: &List<'_, BlockAllocation<'_>>) -> bool {
        self.blocks.clear();
        let is_good = records.iter().all(|record| self.read_record(&record));
        if !is_good {
            self.blocks.clear();
        }
        is_good
    }

    pub fn blocks(&self) -> &[AllocatedBlock] {
        &self.blocks
    }

    fn read_record(&mut self, record: &BlockAllocation<'_>) -> bool {
        let (ids, tokens) = (&record.new_block_ids, &record.new_token_ids);
        if ids.is_empty() {
            return true;
        }
        if self.blocks.len() + ids.len() > ALLOCATED_BLOCKS_MAX {
            return false;
        }
        let request = self.requests.hash_one(record.req_id);
        let each = tokens.len().div_ceil(ids.len());
        let mut tokens = tokens.iter();
        for id in ids.iter() {
            let Ok(block) = u32::try_from(id) else { return false };
            let mut hasher = self.tokens.build_hasher();
            let mut count = 0;
            for token in tokens.by_ref().take(each) {
                hasher.write_i64(token);
                count += 1;
            }
            // A block without tokens is not told of.
            if count > 0 {
                let tokens = hasher.finish();
                self.blocks.push(AllocatedBlock { request, tokens, block });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fields::Wire;
    use crate::wire::msgpack::{Reader, Writer};

    type Record<'a> = (&'a str, &'a [i64], &'a [i64]);

    fn read(allocated: &mut Allocated, records: &[Record<'_>]) -> bool {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.array(records.len());
        for (request, blocks, tokens) in records {
            writer.map(3);
            writer.str("req_id");
            writer.str(request);
            for (name, numbers) in [("new_block_ids", blocks), ("new_token_ids", tokens)] {
                writer.str(name);
                writer.array(numbers.len());
                numbers.iter().for_each(|number| writer.i64(*number));
            }
        }
        let list = List::read(&mut Reader::new(&bytes)).expect("it is a list of records");
        allocated.read(&list)
    }

    #[test]
    fn tokens_are_shared_out_and_empty_blocks_left_out() {
        let mut allocated = Allocated::new(1);
        let records: &[Record<'_>] = &[
            ("a", &[1, 2], &[10, 11, 12, 13]),
            ("b", &[7], &[10, 11]),
            // Two each: the last block gets one, the one after it none.
            ("b", &[3, 4, 5, 6], &[10, 11, 12, 13, 14]),
            ("c", &[], &[]),
            ("d", &[9], &[]),
            ("d", &[], &[10]),
        ];
        assert!(read(&mut allocated, records));
        let blocks = allocated.blocks();
        let ids: Vec<u32> = blocks.iter().map(|block| block.block).collect();
        assert_eq!(ids, [1, 2, 7, 3, 4, 5]);
        assert_eq!(blocks[0].tokens, blocks[2].tokens);
        assert_eq!(blocks[1].tokens, blocks[4].tokens);
        assert_ne!(blocks[0].tokens, blocks[1].tokens);
        assert_eq!(blocks[0].request, blocks[1].request);
        assert_ne!(blocks[0].request, blocks[2].request);
        assert_eq!(blocks[0].request, SeededHash::of_requests(1).hash_one("a"));
    }

    #[test]
    fn another_run_has_other_numbers() {
        let (mut one, mut other) = (Allocated::new(1), Allocated::new(2));
        for allocated in [&mut one, &mut other] {
            assert!(read(allocated, &[("a", &[1], &[10, 11])]));
        }
        assert_ne!(one.blocks()[0].tokens, other.blocks()[0].tokens);
        assert_ne!(one.blocks()[0].request, other.blocks()[0].request);
    }

    #[test]
    fn what_is_no_report_leaves_nothing() {
        let mut allocated = Allocated::new(1);
        let too_many: Vec<i64> = (0..ALLOCATED_BLOCKS_MAX as i64 + 1).collect();
        let bad: &[Record<'_>] =
            &[("a", &[-1], &[10]), ("a", &[1 << 32], &[10]), ("a", &too_many, &[10])];
        for record in bad {
            assert!(!read(&mut allocated, &[("a", &[1], &[10]), *record]), "{record:?}");
            assert_eq!(allocated.blocks(), []);
        }
        assert!(read(&mut allocated, &[("a", &too_many[1..], &[10])]));
        assert_eq!(allocated.blocks().len(), 1);
    }
}
