//! Lists the inputs of a job, plans its mini-batches, and publishes their descriptors.
//!
//! The one idea: the plan is a pure function of the job and the content of its inputs, made as a stream and stored in
//! chunks before anything is published. So mini-batch numbers never change, workers start during the listing, and
//! repeating the same steps continues the work of a partitioner that crashed.
//!
//! # Mini-batches
//!
//! | input | mini-batch |
//! |---|---|
//! | files | `mini_batch_size` files of one folder; files and globs between two folders count as one folder |
//! | text table | a byte range of one file, or a number of rows of one file; at the ends of records where it is compressed or with `support_multi_line` |
//! | Parquet | a row group of one file, or a number of rows of it |
//! | with `partition_keys` | all files, or all rows, with the same values of the keys; sorted by these values |
//! | `--rank_mini_batch_count` | none: `run` is called without input |
//!
//! A listing walks folders top down and follows links: first the files of a folder sorted by name, then its
//! sub-folders. A glob returns files in the order of their whole paths. Names are compared as bytes, and empty files
//! count like any other. A listing leaves out pipes, sockets and devices, and hidden names: those that begin with a
//! dot, and for tables those that begin with an underscore, unless a pattern names them. A broken link counts as a
//! file: it fails when it is read. Empty tables have no mini-batch.
//!
//! Tables of an input with a `partition_format` get columns from the path, as text, after the columns of the file and
//! in the order of the format.
//!
//! # Absent on purpose
//!
//! The partitioner does not run, retry or count mini-batches, and reads only the heads of a few tables: an unreadable
//! file is a failed item, not a failed plan, unless the plan needs its columns or row groups.

mod blocks;
mod chunk;
mod describe;
mod error;
mod glob;
mod inputs;
mod largest;
mod listing;
mod pace;
mod partition_format;
mod plan;
mod publish;
mod remote;
mod schema;
mod survey;
mod walk;

pub use error::{Error, Result};
pub use inputs::Inputs;
pub use largest::LargestMiniBatch;
pub use partition_format::{FormatError, PartitionFormat};
pub use plan::{Plan, inputs_digest};
pub use publish::{Partitioner, plan_is_damaged};
pub use schema::MissingColumn;
pub use survey::{Survey, survey};
pub use tables::{Sketch, encoding_for};

/// The tries and lost deliveries of a pending mini-batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Tries that user code has spent on it.
    pub tries_spent: u32,
    /// Deliveries that were lost with their nodes.
    pub deliveries_lost: u32,
    /// How it runs again, if it has ended in an earlier round.
    pub again: Option<protocol::Rerun>,
}

/// The progress of planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanProgress {
    /// Files listed, ahead of `mini_batches`.
    pub files: u64,
    /// Mini-batches with a descriptor in the plan.
    pub mini_batches: u64,
    /// Mini-batches published by this call.
    pub published: u64,
}
