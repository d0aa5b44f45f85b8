//! Whose bytes may be read under a name: everything that was ever committed under it, by this
//! server, those before it, or somebody else who uses the same tier (design P1).

use crate::memory::Tag;
use crate::orders::Name;
use kvtide_core::names::Layout;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Whose bytes, and of which layout; what others have stored has any.
    committed: BTreeMap<Name, Vec<(Tag, Option<Layout>)>>,
    /// Digests that were made of what was there under a name.
    digests: BTreeSet<(Name, u32)>,
}

impl Ledger {
    pub fn committed(&mut self, name: Name, tag: Tag, layout: Layout) {
        self.committed.entry(name).or_default().push((tag, Some(layout)));
    }

    pub fn foreign(&mut self, name: &Name, tag: Tag) {
        self.committed.entry(name.clone()).or_default().push((tag, None));
    }

    /// Whether a reader of this layout may get these bytes under this name. Without a seal nothing
    /// tells layouts of one size apart: names at rest hold none (spec/transfer §1.6).
    pub fn allows(&self, name: &Name, tag: Tag, layout: Layout, is_sealed: bool) -> bool {
        let entries = self.committed.get(name).into_iter().flatten();
        entries.filter(|(known, _)| *known == tag).any(|(_, of)| match of {
            None => true,
            Some(of) => *of == layout || (!is_sealed && of.bytes() == layout.bytes()),
        })
    }

    pub fn digested(&mut self, name: Name, digest: u32) {
        self.digests.insert((name, digest));
    }

    /// Whether a digest is one that was made, and not made up.
    pub fn knows_digest(&self, name: &Name, digest: u32) -> bool {
        self.digests.contains(&(name.clone(), digest))
    }
}
