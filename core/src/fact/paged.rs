//! What is told of server-driven transfers and of engines' own blocks.

use crate::effect::Direction;
use crate::names::{Device, InstanceId, TenantId};
use crate::time::Duration;

/// How a server-driven transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferEnd {
    pub direction: Direction,
    pub device: Device,
    pub instance: InstanceId,
    pub tenant: TenantId,
    /// Object keys that were stored or retrieved; 0 where the copy failed.
    pub keys: u32,
    /// What these have together.
    pub bytes: u64,
    /// From its order to its ending; zero where nothing was ordered.
    pub took: Duration,
}

/// One block that an engine has given to a request, and what is in it. Neither the request's id nor
/// token ids get this far: both are numbers that mean something within one run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBlock {
    /// `SeededHash::of_requests` of the request id.
    pub request: u64,
    /// `SeededHash::of_tokens` of its token ids.
    pub tokens: u64,
    /// Its place in the engine's block table.
    pub block: u32,
}
