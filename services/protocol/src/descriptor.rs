//! The message that names a mini-batch.

use serde::{Deserialize, Serialize};

use crate::trace::lenient;
use crate::{ItemPath, TraceParent, is_job_id};

/// One mini-batch of one job, as it travels through the task queue and as it stands in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The job it belongs to.
    pub job_id: String,
    /// Position in the plan, from 0. Identity of the mini-batch, and its place in the output.
    pub mini_batch: u64,
    /// Tries that user code has already spent on it.
    #[serde(default)]
    pub tries_spent: u32,
    /// Deliveries already lost with their node, not counting those the queue itself counts for this message.
    #[serde(default)]
    pub deliveries_lost: u32,
    /// The trace that its message belongs to; `None` in the plan, and where nobody traces.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// What `run` is called with.
    pub work: Work,
}

/// What `run` is called with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// A list of files.
    Files {
        /// Position of the input in the job.
        input: u32,
        /// Absolute local paths or URLs, in order.
        paths: Vec<ItemPath>,
        /// What the listing knew of each path, in the same order; empty where all are local.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        versions: Vec<FileVersion>,
        /// Partition key values in the order of `partition_keys`; empty without keys.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key: Vec<(String, String)>,
    },
    /// Rows of one table, or, with partition keys, of several.
    Rows {
        /// Position of the input in the job.
        input: u32,
        /// Pieces in order; their rows are concatenated into one frame.
        blocks: Vec<Block>,
        /// Partition key values in the order of `partition_keys`; empty without keys.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key: Vec<(String, String)>,
    },
    /// No input (`--rank_mini_batch_count`).
    Rank,
    /// Too large for the queue: read it from the plan.
    Planned {
        /// Chunk of the plan.
        chunk: u64,
        /// Line in the chunk, from 0.
        line: u64,
    },
}

/// What a listing knows of an object: a worker that finds another one there fails the mini-batch ("input changed since
/// the job was planned") instead of mixing two versions of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// Size, so that downloads can be bounded before they start.
    pub bytes: u64,
    /// ETag, where the store has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// A piece of one table file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Absolute local path or URL.
    pub path: ItemPath,
    /// What the listing knew of the file; `None` where it is local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<FileVersion>,
    /// Which rows of it.
    #[serde(flatten)]
    pub range: BlockRange,
    /// Values of all columns that come from the path (`partition_format`), in schema order after the file's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_columns: Vec<(String, String)>,
}

/// Which rows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "range", rename_all = "snake_case")]
pub enum BlockRange {
    /// Text lines that start at a byte offset `s` with `first <= s <= last`, offsets counted in the whole file, its
    /// header line excluded. Block `k` of size `P` is `first = k == 0 ? 0 : k*P + 1`, `last = (k + 1) * P`.
    Lines {
        /// Smallest offset a line of this block can start at.
        first: u64,
        /// Largest offset a line of this block can start at.
        last: u64,
    },
    /// The whole text file, quoted line breaks honoured (`support_multi_line`).
    WholeText,
    /// Rows `offset .. offset + rows` of one Parquet row group.
    RowGroup {
        /// Row group, from 0.
        row_group: u32,
        /// First row, counted in the row group.
        offset: u64,
        /// Number of rows.
        rows: u64,
    },
}

impl Descriptor {
    /// Reads a task message; in the error, why it is none.
    pub fn of_message(body: &[u8]) -> Result<Self, String> {
        let descriptor: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match is_job_id(&descriptor.job_id) {
            true => Ok(descriptor),
            false => Err(format!("{:?} is no id of a job", descriptor.job_id)),
        }
    }

    /// One line that names the first item, for reports and error messages.
    pub fn detail(&self) -> String {
        match &self.work {
            Work::Files { paths, .. } => match paths.as_slice() {
                [] => "no files".to_owned(),
                [path] => path.display(),
                [path, rest @ ..] => format!("{} and {} more", path.display(), rest.len()),
            },
            Work::Rows { blocks, .. } => match blocks.as_slice() {
                [] => "no rows".to_owned(),
                [block] => block.detail(),
                [block, rest @ ..] => format!("{} and {} more", block.detail(), rest.len()),
            },
            Work::Rank => format!("rank {}", self.mini_batch),
            Work::Planned { chunk, line } => format!("plan chunk {chunk}, line {line}"),
        }
    }

    /// Partition key values, empty without keys.
    pub fn key(&self) -> &[(String, String)] {
        match &self.work {
            Work::Files { key, .. } | Work::Rows { key, .. } => key,
            Work::Rank | Work::Planned { .. } => &[],
        }
    }
}

impl BlockRange {
    /// Number of rows, where the plan knows it.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::RowGroup { rows, .. } => Some(*rows),
            Self::Lines { .. } | Self::WholeText => None,
        }
    }
}

impl Block {
    /// The file and the rows, for people.
    pub fn detail(&self) -> String {
        match self.range {
            BlockRange::Lines { first, last } => {
                format!("{} (lines that start at bytes {first} to {last})", self.path.display())
            }
            BlockRange::WholeText => self.path.display(),
            BlockRange::RowGroup { row_group, offset, rows } => {
                let end = offset.saturating_add(rows);
                format!("{} (row group {row_group}, rows {offset} to {end})", self.path.display())
            }
        }
    }
}
