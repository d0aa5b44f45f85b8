//! From lower tiers to L1.

use crate::config::Limits;

#[derive(Clone, Debug)]
pub struct Promote {}

impl Promote {
    pub fn new(_limits: &Limits, _seed: u64) -> Promote {
        Promote {}
    }
}
