//! Lists the inputs of a job, plans its mini-batches, and publishes their descriptors.
//!
//! The one idea: the plan is a pure function of the job and of what its inputs hold, made as a stream and stored in
//! chunks before anything is published from it. So mini-batch numbers never change, workers start while the listing is
//! still going on, and a partitioner that crashed is continued by doing the same again.
//!
//! # What makes a mini-batch
//!
//! | input | mini-batch |
//! |---|---|
//! | files | `mini_batch_size` files of one folder; files and globs between two folders count as one folder |
//! | text table | a byte range of one file, or a number of rows of one file; the whole file with `support_multi_line` |
//! | Parquet | a row group of one file, or a number of rows of it |
//! | with `partition_keys` | all files, or all rows, with the same values of the keys; sorted by these |
//! | `--rank_mini_batch_count` | nothing: `run` is called without input |
//!
//! Folders are walked top down, links followed: the files of a folder sorted by name, then its sub-folders. A glob gives
//! files in the order of their whole paths. Names are compared as bytes, hidden and empty files count like any other,
//! and pipes, sockets and devices are left out. A link that cannot be followed counts as a file: it fails where it is
//! read, and is reported there. Empty tables make no mini-batch.
//!
//! Tables of an input with a `partition_format` get columns from the path, as text, after the file's own columns and in
//! the order of the format: those named by `partition_keys`, or all where there are no keys.
//!
//! # Absent on purpose
//!
//! Nothing here runs, retries or counts mini-batches, and nothing but the head of a few tables is read: a file that
//! cannot be read is a failed item, not a failed plan, unless its columns or its row groups are needed.

mod blocks;
mod chunk;
mod error;
mod glob;
mod listing;
mod partition_format;
mod plan;
mod publish;
mod remote;
mod schema;
mod walk;

pub use error::{Error, Result};
pub use partition_format::PartitionFormat;
pub use plan::{Plan, inputs_digest, inputs_digest_with, plan, plan_with};
pub use publish::Partitioner;
pub use schema::MissingColumn;

/// What a mini-batch that still has to be done has already spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Tries that user code has spent on it.
    pub tries_spent: u32,
    /// Deliveries lost with their node.
    pub deliveries_lost: u32,
}

/// How far planning is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanProgress {
    /// Files listed. Runs ahead of `mini_batches`.
    pub files: u64,
    /// Mini-batches whose descriptors stand in the plan.
    pub mini_batches: u64,
    /// Mini-batches published by this call.
    pub published: u64,
}
