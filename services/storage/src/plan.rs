//! The totals of a plan.

use protocol::PlanPosition;
use serde::{Deserialize, Serialize};

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
    /// Names among the inputs that are not part of them.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub left_out: LeftOut,
}

/// Names that a listing left out: hidden ones, and those of neither files nor folders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Number of names. A folder counts once, regardless of its content.
    pub count: u64,
    /// The first names, each with its reason, for people. At most [`LeftOut::EXAMPLES_MAX`].
    pub examples: Vec<String>,
}

impl LeftOut {
    /// Maximum number of names shown.
    pub const EXAMPLES_MAX: usize = 5;

    /// Counts one more name.
    pub fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < Self::EXAMPLES_MAX {
            self.examples.push(example());
        }
    }

    /// Adds the names that another part of the listing left out.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        let room = Self::EXAMPLES_MAX.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    /// Returns whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns one line for people; `None` if nothing was left out.
    pub fn line(&self) -> Option<String> {
        let more = self.count.saturating_sub(self.examples.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let examples = self.examples.join(", ");
        (self.count > 0).then(|| format!("left out of the inputs: {examples}{more}"))
    }
}

impl PlanComplete {
    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        PlanPosition::chunks_for(self.mini_batches)
    }
}
