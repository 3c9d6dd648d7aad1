//! The message that names a mini-batch.
//!
//! A mini-batch has two counts. *Tries* are attempts that user code ended: an exception, an illegal
//! result, a timeout, the death of its process; `run_max_try` limits them. *Lost deliveries* are
//! attempts that ended with their node: those that the queue counts and those in the descriptor.
//! From the third one on a mini-batch runs alone on its node, and `lost_delivery_max` limits them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::trace::lenient;
use crate::{ItemPath, MessageError, TraceParent, check_job_id, is_default};

/// One mini-batch of one job, in the task queue and in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its job.
    pub job_id: String,
    /// Position in the plan, from 0. Identity of the mini-batch, and its place in the output.
    pub mini_batch: u64,
    /// Tries that user code has spent on it.
    #[serde(default)]
    pub tries_spent: u32,
    /// Deliveries lost with their node, without those that the queue counts for this message.
    #[serde(default)]
    pub deliveries_lost: u32,
    /// Whether it is a copy: the speculative run of a mini-batch that runs far longer than its
    /// peers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub copy: bool,
    /// Whether an attempt on it was interrupted, through no fault of its own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub was_interrupted: bool,
    /// The nodes on which a try of it has failed: other nodes try it first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_on: Vec<String>,
    /// The trace of its message; `None` in the plan and without tracing.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// It has ended in an earlier round of its job, and runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Rerun>,
    /// The number that the script sees, if it is a mini-batch of another job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_as: Option<u64>,
    /// Source of the argument of `run`.
    pub work: Work,
}

/// How a later round runs a mini-batch. Its files are read as they are now: a bad one may have been
/// corrected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// The round of the job, from 1.
    pub round: u32,
    /// The object below `parts/` with the items that run and the rows of the others ([`crate::Kept`]); `None`: all items run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// Source of the argument of `run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// A list of files.
    Files {
        /// Position of the input in the job.
        input: u32,
        /// Absolute local paths or URLs, in order.
        paths: Vec<ItemPath>,
        /// Version of each path in the listing, in the same order; empty if all are local.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        versions: Vec<FileVersion>,
        /// The [stamp](FileVersion::stamp) of each path, in the same order, if all are local: a job may have a million
        /// paths, and a number is short.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stamps: Vec<u32>,
        /// Partition key values in the order of `partition_keys`; empty without keys.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key: Vec<(String, String)>,
    },
    /// Rows of one table, or of several with partition keys.
    Rows {
        /// Position of the input in the job.
        input: u32,
        /// Blocks in order; their rows are concatenated into one frame.
        blocks: Vec<Block>,
        /// Rows of the input before these; `None` if the plan did not count them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rows_before: Option<u64>,
        /// Partition key values in the order of `partition_keys`; empty without keys.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key: Vec<(String, String)>,
    },
    /// No input (`--rank_mini_batch_count`).
    Rank,
    /// A descriptor that is too large for the queue; the worker reads it from the plan.
    Planned {
        /// Chunk of the plan.
        chunk: u64,
        /// Line in the chunk, from 0.
        line: u64,
    },
}

/// The version of a file or object in the listing. A worker that finds another version fails the mini-batch ("input
/// changed since the job was planned") instead of mixing two versions of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// Size, which bounds a download before it starts.
    pub bytes: u64,
    /// ETag of an object, if the store has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Time of the last change of a local file, in nanoseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<i64>,
}

impl FileVersion {
    /// Returns the version of a local file.
    pub fn of_file(metadata: &Metadata) -> Self {
        Self::modified(metadata.len(), metadata.mtime(), metadata.mtime_nsec())
    }

    /// Returns the version of a local file of this size, modified at this time since the epoch.
    pub fn modified(bytes: u64, seconds: i64, nanoseconds: i64) -> Self {
        let modified = seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds);
        Self { bytes, etag: None, modified: Some(modified) }
    }

    /// Returns a short digest of size and time, which reveals a change. Never 0, which means an unknown version.
    pub fn stamp(&self) -> u32 {
        // The finaliser of SplitMix64: every bit of both numbers counts.
        let mut mixed = self.bytes.rotate_left(32) ^ self.modified.unwrap_or_default() as u64;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) as u32).max(1)
    }
}

/// A part of one table file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Absolute local path or URL.
    pub path: ItemPath,
    /// Version of the file in the listing, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<FileVersion>,
    /// Which rows of it.
    #[serde(flatten)]
    pub range: BlockRange,
    /// Values of all columns that come from the path (`partition_format`), in schema order after the columns of the
    /// file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_columns: Vec<(String, String)>,
}

/// A range of rows in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "range", rename_all = "snake_case")]
pub enum BlockRange {
    /// Text lines that start at a byte offset `s` of the file with `first <= s <= last`, without the header line. Block
    /// `k` of size `P` is `first = k == 0 ? 0 : k*P + 1`, `last = (k + 1) * P`.
    Lines {
        /// Smallest offset a line of this block can start at.
        first: u64,
        /// Largest offset a line of this block can start at.
        last: u64,
    },
    /// The whole text file, decompressed, with line breaks in quoted fields (`support_multi_line`).
    WholeText,
    /// Whole records of a text that must be read before it can be split, because it is compressed or has line breaks in
    /// quoted fields: its bytes `start .. end`, decompressed. The first range includes the header line.
    Records {
        /// First byte of the first record.
        start: u64,
        /// End of the last record.
        end: u64,
    },
    /// Rows `offset .. offset + rows` of one Parquet row group.
    RowGroup {
        /// Row group, from 0.
        row_group: u32,
        /// First row in the row group.
        offset: u64,
        /// Number of rows.
        rows: u64,
    },
}

impl Descriptor {
    /// Returns a mini-batch that has not run yet.
    pub fn new(job_id: impl Into<String>, mini_batch: u64, work: Work) -> Self {
        let job_id = job_id.into();
        Self {
            job_id,
            mini_batch,
            tries_spent: 0,
            deliveries_lost: 0,
            copy: false,
            was_interrupted: false,
            failed_on: Vec::new(),
            traceparent: None,
            again: None,
            shown_as: None,
            work,
        }
    }

    /// Returns the mini-batch of a plan as it runs again. What its plan has kept stays kept.
    pub fn run_again(mut self, again: Option<Rerun>) -> Self {
        let planned = self.again.take();
        self.again = match again {
            Some(Rerun { round, kept }) => {
                Some(Rerun { round, kept: kept.or(planned.and_then(|planned| planned.kept)) })
            }
            None => planned,
        };
        // Its files may be other versions than those of the plan.
        if let (Some(_), Work::Files { versions, stamps, .. }) = (&self.again, &mut self.work) {
            versions.clear();
            stamps.clear();
        }
        self
    }

    /// Reads a task message.
    pub fn of_message(body: &[u8]) -> Result<Self, MessageError> {
        let descriptor: Self = serde_json::from_slice(body)?;
        check_job_id(&descriptor.job_id)?;
        Ok(descriptor)
    }

    /// Returns one line that names the first item, for reports and error messages.
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

    /// Returns the number of rows of the input before those of a table; `None` if the plan did not count them.
    pub fn rows_before(&self) -> Option<u64> {
        match &self.work {
            Work::Rows { rows_before, .. } => *rows_before,
            Work::Files { .. } | Work::Rank | Work::Planned { .. } => None,
        }
    }

    /// Returns the number of items, if the plan knows it.
    pub fn items(&self) -> Option<u64> {
        match &self.work {
            Work::Files { paths, .. } => Some(paths.len() as u64),
            Work::Rows { blocks, .. } => blocks.iter().map(|block| block.range.rows()).sum(),
            Work::Rank => Some(1),
            Work::Planned { .. } => None,
        }
    }

    /// Returns one line that names an item, by its position in the argument of `run`. It says where rows count from,
    /// which is not the beginning of the file unless the plan knows that.
    pub fn item_detail(&self, item: u64) -> String {
        match &self.work {
            Work::Files { paths, .. } => {
                let path = usize::try_from(item).ok().and_then(|item| paths.get(item));
                path.map_or_else(|| self.detail(), ItemPath::display)
            }
            Work::Rows { blocks, .. } => {
                let mut row = item;
                for block in blocks {
                    match block.range {
                        BlockRange::RowGroup { row_group, offset, rows } if row < rows => {
                            let row = offset.saturating_add(row);
                            return format!(
                                "{} (row group {row_group}, row {row})",
                                block.path.display()
                            );
                        }
                        BlockRange::RowGroup { rows, .. } => row -= rows,
                        BlockRange::Lines { .. }
                        | BlockRange::WholeText
                        | BlockRange::Records { .. } => break,
                    }
                }
                match blocks.as_slice() {
                    [block] => format!("row {item}, counted from 0, of {}", block.rows_detail()),
                    _ => format!("row {item}, counted from 0, of {}", self.detail()),
                }
            }
            Work::Rank | Work::Planned { .. } => self.detail(),
        }
    }

    /// Returns the partition key values; empty without keys.
    pub fn key(&self) -> &[(String, String)] {
        match &self.work {
            Work::Files { key, .. } | Work::Rows { key, .. } => key,
            Work::Rank | Work::Planned { .. } => &[],
        }
    }
}

impl BlockRange {
    /// Returns the number of rows, if the plan knows it.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::RowGroup { rows, .. } => Some(*rows),
            Self::Lines { .. } | Self::WholeText | Self::Records { .. } => None,
        }
    }
}

impl Block {
    /// Returns whose rows the rows of the block are, as far as people can count them: the file, or a part of it.
    fn rows_detail(&self) -> String {
        let path = self.path.display();
        match self.range {
            BlockRange::Lines { first: 0, .. }
            | BlockRange::Records { start: 0, .. }
            | BlockRange::WholeText => path,
            BlockRange::Lines { first, last } => {
                format!("the lines of {path} that start at bytes {first} to {last}")
            }
            BlockRange::Records { start, end } => {
                format!("the records at bytes {start} to {end} of the text of {path}")
            }
            BlockRange::RowGroup { row_group, .. } => format!("row group {row_group} of {path}"),
        }
    }

    /// Returns the file and its rows, for people.
    pub fn detail(&self) -> String {
        match self.range {
            BlockRange::Lines { first, last } => {
                format!("{} (lines that start at bytes {first} to {last})", self.path.display())
            }
            BlockRange::WholeText => self.path.display(),
            BlockRange::Records { start, end } => {
                format!("{} (records at bytes {start} to {end} of its text)", self.path.display())
            }
            BlockRange::RowGroup { row_group, offset, rows } => {
                let end = offset.saturating_add(rows);
                format!("{} (row group {row_group}, rows {offset} to {end})", self.path.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_is_named_by_its_path_or_its_row() {
        let of = |work| Descriptor::new("job", 0, work);
        let paths = vec!["/a".into(), "/b".into()];
        let files =
            of(Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] });
        assert_eq!((files.items(), files.item_detail(1)), (Some(2), "/b".into()));
        let rows = |ranges: &[BlockRange]| {
            let block = |range: &BlockRange| Block {
                path: "/t".into(),
                version: None,
                range: *range,
                path_columns: vec![],
            };
            of(Work::Rows {
                input: 0,
                blocks: ranges.iter().map(block).collect(),
                rows_before: None,
                key: vec![],
            })
        };
        let group = |row_group, offset| BlockRange::RowGroup { row_group, offset, rows: 10 };
        let groups = rows(&[group(3, 90), group(4, 0)]);
        assert_eq!(
            (groups.items(), groups.item_detail(9)),
            (Some(20), "/t (row group 3, row 99)".into())
        );
        assert_eq!(groups.item_detail(12), "/t (row group 4, row 2)");
        let text = rows(&[BlockRange::Lines { first: 0, last: 50 }]);
        assert_eq!(
            (text.items(), text.item_detail(7)),
            (None, "row 7, counted from 0, of /t".into())
        );
        assert_eq!(rows(&[BlockRange::WholeText]).item_detail(7), "row 7, counted from 0, of /t");
        let later = rows(&[BlockRange::Lines { first: 51, last: 99 }]);
        assert_eq!(
            later.item_detail(7),
            "row 7, counted from 0, of the lines of /t that start at bytes 51 to 99"
        );
        let records = rows(&[BlockRange::Records { start: 51, end: 99 }]);
        assert_eq!(
            records.item_detail(7),
            "row 7, counted from 0, of the records at bytes 51 to 99 of the text of /t"
        );
        let several = rows(&[BlockRange::WholeText, BlockRange::WholeText]);
        assert_eq!(several.item_detail(7), "row 7, counted from 0, of /t and 1 more");
    }
}
