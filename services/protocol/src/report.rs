//! How a job stands, and how it ended: what `status`, `run --json` and `result.json` show.

use serde::{Deserialize, Serialize};

use crate::{JobState, Waiting};

/// A count that has three sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All there are; 0 while it is not known.
    pub total: u64,
    /// Succeeded, finally.
    pub succeeded: u64,
    /// Failed, finally.
    pub failed: u64,
}

/// `progress.json`: overwritten while the job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Wall clock of this report, milliseconds since the epoch.
    pub at: u64,
    /// Wall clock at which the job was started or last resumed, milliseconds since the epoch.
    pub started_at: u64,
    /// Whether `mini_batches.total` is final.
    pub planned: bool,
    /// Mini-batches.
    pub mini_batches: Counts,
    /// Items of the mini-batches that ended.
    pub items: Counts,
    /// Attempts that failed and are tried again.
    pub retries: u64,
    /// Python processes that are up.
    pub processes: u64,
    /// Nodes that have taken part since the job was started or opened again; 0: no worker has come yet.
    #[serde(default)]
    pub nodes: u64,
    /// What keeps reducers from going on with the job, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What takes unusually long, latest first. At most 16.
    pub waiting: Vec<Waiting>,
}

/// `result.json`: written once, when the job ends. Also what `run --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// Identity of the job.
    pub job_id: String,
    /// How it ended.
    pub state: JobState,
    /// Why, in one line; `None` when completed.
    pub cause: Option<String>,
    /// Path of the final file, or of the output folder for `summary_only`; `None`: nothing was written.
    pub output: Option<String>,
    /// The `logs` folder.
    pub logs: String,
    /// Mini-batches.
    pub mini_batches: Counts,
    /// Items.
    pub items: Counts,
    /// Values that did not fit, rows that were not as planned, results longer than their input: all told in
    /// `logs/sys/warning/`.
    #[serde(default)]
    pub warnings: u64,
    /// Deliveries of attempts that were committed already.
    #[serde(default)]
    pub duplicates_dropped: u64,
    /// The first mini-batches that failed, at most 10.
    #[serde(default)]
    pub failed_mini_batches: Vec<FailedMiniBatch>,
    /// From start, or last resumption, to end.
    pub elapsed_seconds: f64,
    /// Whether the result of an earlier job was taken.
    pub reused: bool,
}

/// A mini-batch whose tries are spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedMiniBatch {
    /// Which.
    pub mini_batch: u64,
    /// First item, for people.
    pub detail: String,
    /// Category and message of its last error, in one line.
    pub error: String,
    /// File below `logs/` to open next; may be empty.
    pub log: String,
}
