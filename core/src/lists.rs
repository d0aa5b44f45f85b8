//! Several doubly linked lists over one range of numbered nodes, without memory per element:
//! occupants of a run, objects of a tenant, ghosts of an eviction policy.
//!
//! Invariant: a node is in at most one list. The caller remembers in which; the lists check it
//! only as far as their ends show it.

use alloc::vec;
use alloc::vec::Vec;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lists {
    ends: Vec<Ends>,
    links: Vec<Link>,
}

/// Node numbers are stored plus one, so that fresh zeroed memory is an empty list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    before: u32,
    after: u32,
}

impl Lists {
    /// `lists` empty lists over the nodes `0..nodes`.
    pub fn new(lists: usize, nodes: usize) -> Lists {
        assert!(nodes < u32::MAX as usize, "a node number has 32 bits");
        Lists { ends: vec![Ends::default(); lists], links: vec![Link::default(); nodes] }
    }

    pub fn push_back(&mut self, list: u32, node: u32) {
        let ends = &mut self.ends[list as usize];
        assert!(self.links[node as usize] == Link::default(), "the node is in no list");
        self.links[node as usize].before = ends.tail;
        match ends.tail {
            0 => ends.head = node + 1,
            tail => self.links[tail as usize - 1].after = node + 1,
        }
        ends.tail = node + 1;
        ends.len += 1;
    }

    pub fn push_front(&mut self, list: u32, node: u32) {
        let ends = &mut self.ends[list as usize];
        assert!(self.links[node as usize] == Link::default(), "the node is in no list");
        self.links[node as usize].after = ends.head;
        match ends.head {
            0 => ends.tail = node + 1,
            head => self.links[head as usize - 1].before = node + 1,
        }
        ends.head = node + 1;
        ends.len += 1;
    }

    /// Takes `node` out of `list`, which it is in.
    pub fn remove(&mut self, list: u32, node: u32) {
        let ends = &mut self.ends[list as usize];
        assert!(ends.len > 0, "a list that is left had a member");
        let link = core::mem::take(&mut self.links[node as usize]);
        match link.before {
            0 => {
                assert!(ends.head == node + 1, "a node without one before is its list's head");
                ends.head = link.after;
            }
            before => self.links[before as usize - 1].after = link.after,
        }
        match link.after {
            0 => {
                assert!(ends.tail == node + 1, "a node without one after is its list's tail");
                ends.tail = link.before;
            }
            after => self.links[after as usize - 1].before = link.before,
        }
        ends.len -= 1;
    }

    pub fn head(&self, list: u32) -> Option<u32> {
        self.ends[list as usize].head.checked_sub(1)
    }

    /// The node after `node` in its list.
    pub fn after(&self, node: u32) -> Option<u32> {
        self.links[node as usize].after.checked_sub(1)
    }

    /// Head to tail.
    pub fn iter(&self, list: u32) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(self.head(list), |node| self.after(*node))
    }

    pub fn len(&self, list: u32) -> u32 {
        self.ends[list as usize].len
    }

    pub fn is_empty(&self, list: u32) -> bool {
        self.len(list) == 0
    }

    /// Bytes taken at start.
    pub fn memory_bytes(&self) -> u64 {
        (self.ends.capacity() * size_of::<Ends>() + self.links.capacity() * size_of::<Link>())
            as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn nodes_keep_their_order_in_each_list() {
        let mut lists = Lists::new(2, 5);
        lists.push_back(0, 3);
        lists.push_back(0, 1);
        lists.push_front(0, 4);
        lists.push_back(1, 0);
        assert_eq!(lists.iter(0).collect::<Vec<_>>(), [4, 3, 1]);
        lists.remove(0, 3);
        assert_eq!(lists.iter(0).collect::<Vec<_>>(), [4, 1]);
        lists.remove(0, 4);
        lists.remove(0, 1);
        assert!(lists.is_empty(0));
        assert_eq!(lists.head(1), Some(0));
        lists.push_back(1, 4);
        assert_eq!(lists.iter(1).collect::<Vec<_>>(), [0, 4]);
    }
}
