//! The totals of a plan.

use protocol::PlanPosition;
use serde::{Deserialize, Serialize};

/// `plan/complete.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanComplete {
    /// The number of mini-batches.
    pub mini_batches: u64,
    /// The number of items, if the plan knows it (for files, not for tables).
    pub items: Option<u64>,
    /// The number of listed files.
    pub files: u64,
    /// The digest of all input names, sizes and times or ETags, in order.
    pub inputs_digest: String,
    /// The names that the listing of the inputs left out.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub left_out: LeftOut,
}

/// The names that a listing left out: hidden ones, and those of entries that are neither files nor folders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The number of names. A folder counts once, regardless of its content.
    pub count: u64,
    /// The first names, each with its reason, for people. At most [`LeftOut::EXAMPLES_MAX`].
    pub examples: Vec<String>,
}

impl LeftOut {
    /// The largest number of examples.
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

    /// Returns whether the listing left nothing out.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns one line for people; `None` if the listing left nothing out.
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
