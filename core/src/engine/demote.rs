//! From L1 to lower tiers.

use crate::config::Limits;

#[derive(Clone, Debug)]
pub struct Demote {}

impl Demote {
    pub fn new(_limits: &Limits, _seed: u64) -> Demote {
        Demote {}
    }
}
