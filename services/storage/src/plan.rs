//! The plan: every mini-batch of a job, in chunks.

use serde::{Deserialize, Serialize};

/// Mini-batches in one chunk of the plan; the last chunk holds what is left. A constant of the format: the place of
/// any mini-batch follows from its number.
///
/// Small enough that work can start early, and that a chunk of mini-batches of a thousand files each is no burden.
pub const PLAN_CHUNK_MINI_BATCHES: u64 = 512;

/// `plan/complete.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanComplete {
    /// Number of mini-batches.
    pub mini_batches: u64,
    /// Number of items, where the plan knows it (files).
    pub items: Option<u64>,
    /// Number of files listed.
    pub files: u64,
    /// Digest of all input names, sizes and times or ETags, in order.
    pub inputs_digest: String,
}

impl PlanComplete {
    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.mini_batches.div_ceil(PLAN_CHUNK_MINI_BATCHES)
    }
}
