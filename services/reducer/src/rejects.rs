//! Finds the rejected items ("rejects") of a job in the ledger and the plan.
//!
//! The ledger is the truth: the last attempt of a failed mini-batch names the error, a success names the items that were
//! isolated from it and the records that could not be read, and the plan names the places of items.
//! `index.rs` remembers where these records are, `read.rs` reads them in the order of the input with bounded memory, this
//! file makes one [`Reject`] of each item, and `tables.rs` writes them as CSV and Parquet. `write.rs` puts the tables into
//! the log tree when a job ends: not beside the output, because the next step of a pipeline reads that whole folder.
//! `rounds.rs` runs them again.
//!
//! Items for which `run()` returned no result without an error are counted as failed. If it returned nothing for a
//! mini-batch, these are all its items. Else nothing tells which items they are: those of a mini-batch are one reject
//! without a place, which a retry cannot run.

mod groups;
mod index;
mod list;
mod read;
mod tables;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;
use std::sync::LazyLock;

use protocol::{
    Attempt, AttemptStatus, Block, BlockRange, Descriptor, ErrorReport, FailedRun, Input, Rejected,
    UnreadRecord, Work,
};
use storage::JobStore;

pub use groups::{FirstReject, RejectGroup, RejectGroups};
pub(crate) use index::RejectIndex;
use list::complete;
pub use read::Rejects;

/// A mini-batch with rejected items.
#[derive(Clone, Debug, PartialEq)]
pub struct RejectedMiniBatch {
    /// The attempt that decided about it.
    pub attempt: Attempt,
    /// The mini-batch as it was planned; `None` if its plan cannot be read.
    pub descriptor: Option<Descriptor>,
    /// The problem with the object that lists all its rejected items; `None` if it is readable or absent.
    pub list_lost: Option<String>,
}

/// A rejected item, or rows of a table that failed together.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject<'a> {
    /// Mini-batch.
    pub mini_batch: u64,
    /// Position of the first of its items in the mini-batch, from 0; `None`: `run()` did not get it, or it is unknown.
    pub item: Option<u64>,
    /// Number of items: 1, or more where rows failed together.
    pub items: u64,
    /// Name of the input in the job file; empty without inputs.
    pub input: &'a str,
    /// File of the item, or of the first row; empty if unknown.
    pub path: String,
    /// Number of the first row among all rows of the input, from 0, where the plan counted them.
    pub row: Option<u64>,
    /// Range of bytes of the text that holds the rows, as the plan divided it.
    pub bytes: Option<(u64, u64)>,
    /// Partition key values as a JSON object; empty without keys.
    pub key: String,
    /// The item for people.
    pub detail: String,
    /// The row as a JSON object; empty where no single row is known to be at fault, and for files.
    pub values: &'a str,
    /// How the last try ended.
    pub status: AttemptStatus,
    /// The error of the last try.
    pub error: Cow<'a, ErrorReport>,
    /// Number of tries.
    pub tries: u32,
    /// Node of the last try.
    pub node: &'a str,
    /// Process of the last run of the item; empty if none received it.
    pub process: &'a str,
    /// Start of that run, milliseconds since 1970.
    pub started_at: u64,
}

/// Items of a mini-batch that share an error.
struct Range<'a> {
    item: u64,
    items: u64,
    detail: &'a str,
    values: &'a str,
    status: AttemptStatus,
    error: Option<&'a ErrorReport>,
    /// `None`: the attempt.
    run: Option<&'a FailedRun>,
}

/// The error of an attempt that recorded none.
static NO_ERROR: ErrorReport = ErrorReport {
    category: String::new(),
    message: String::new(),
    traceback: String::new(),
    log: String::new(),
    printed: String::new(),
};

/// The error of the items of a mini-batch for which `run()` returned nothing.
static NOTHING_RETURNED: LazyLock<ErrorReport> =
    LazyLock::new(|| ErrorReport::no_result("run() returned nothing for its mini-batch"));

impl RejectedMiniBatch {
    /// Returns a mini-batch with all its rejected items, given the attempt that decided about it.
    pub async fn of(
        store: &JobStore,
        mut attempt: Attempt,
        descriptor: Option<Descriptor>,
    ) -> anyhow::Result<Self> {
        let list_lost =
            complete(store, &mut attempt).await?.err().map(|error| format!("{error:#}"));
        Ok(Self { attempt, descriptor, list_lost })
    }

    /// Returns its rejected items in the order of the input: one for each file, and one for rows that failed together. Then
    /// the records that could not be read, and the items that nothing names.
    pub fn rejects<'a>(&'a self, inputs: &'a [Input]) -> impl Iterator<Item = Reject<'a>> {
        let key = key(self.descriptor.as_ref());
        let [key_of_unread, key_of_unnamed] = [key.clone(), key.clone()];
        let rejected = self.ranges().flat_map(move |range| {
            let key = key.clone();
            let files = self.files_of(&range);
            let parts = files.unwrap_or(1);
            (0..parts).map(move |part| self.reject(&range, files.map(|_| part), &key, inputs))
        });
        let unread = self
            .unread()
            .iter()
            .map(move |record| self.unread_reject(record, &key_of_unread, inputs));
        let unnamed = Some(self.attempt.unnamed()).filter(|items| *items > 0);
        let unnamed = unnamed.map(move |items| self.unnamed_reject(items, &key_of_unnamed, inputs));
        rejected.chain(unread).chain(unnamed)
    }

    /// Whether a retry can run any of its rejects: their places are known.
    pub fn can_run_again(&self) -> bool {
        self.is_rejected_whole() || !self.attempt.rejected.is_empty()
    }

    /// Returns its rejected items in order, as the first one and the end: neighbours together.
    pub fn rejected_ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for range in self.ranges() {
            let end = range.item.saturating_add(range.items);
            match ranges.last_mut().filter(|(_, last)| *last == range.item) {
                Some((_, last)) => *last = end,
                None => ranges.push((range.item, end)),
            }
        }
        ranges
    }

    /// Whether all its items are rejected for one cause.
    pub fn is_rejected_whole(&self) -> bool {
        // In a job of rejected items, a failed mini-batch names its items.
        let has_failed =
            self.attempt.status != AttemptStatus::Succeeded && self.attempt.rejected.is_empty();
        has_failed || self.attempt.returned_nothing()
    }

    /// Returns the records that could not be read. A mini-batch that failed is rejected with all its items.
    fn unread(&self) -> &[UnreadRecord] {
        if self.attempt.status == AttemptStatus::Succeeded { &self.attempt.unread } else { &[] }
    }

    fn unread_reject<'a>(
        &'a self,
        record: &'a UnreadRecord,
        key: &str,
        inputs: &'a [Input],
    ) -> Reject<'a> {
        let error = ErrorReport {
            category: UnreadRecord::CATEGORY.to_owned(),
            message: record.message.clone(),
            ..ErrorReport::default()
        };
        // Those of several records follow the ones that are named.
        let detail = match self.unread().iter().rfind(|named| !named.place.is_empty()) {
            Some(last) if record.place.is_empty() => format!("after {}", last.place),
            _ => record.place.clone(),
        };
        Reject {
            path: record.path.clone(),
            detail,
            status: AttemptStatus::LoadFailed,
            ..self.reject_without_place(record.records, Cow::Owned(error), key, inputs)
        }
    }

    fn unnamed_reject<'a>(&'a self, items: u64, key: &str, inputs: &'a [Input]) -> Reject<'a> {
        let attempt = &self.attempt;
        let (status, message) = match (attempt.rejected.last(), &self.list_lost) {
            (Some(last), Some(why)) => {
                (last.status, format!("the list of these items cannot be read: {why}"))
            }
            _ => (
                AttemptStatus::IllegalResult,
                "run() returned no result for them, and did not say which".to_owned(),
            ),
        };
        let error = ErrorReport::no_result(&message);
        Reject {
            detail: format!("{items} of {} items", attempt.total),
            status,
            process: &attempt.process,
            ..self.reject_without_place(items, Cow::Owned(error), key, inputs)
        }
    }

    fn reject_without_place<'a>(
        &'a self,
        items: u64,
        error: Cow<'a, ErrorReport>,
        key: &str,
        inputs: &'a [Input],
    ) -> Reject<'a> {
        let attempt = &self.attempt;
        Reject {
            mini_batch: attempt.mini_batch,
            item: None,
            items,
            input: self.input(inputs),
            path: String::new(),
            row: None,
            bytes: None,
            key: key.to_owned(),
            detail: String::new(),
            values: "",
            status: attempt.status,
            error,
            tries: attempt.try_number,
            node: &attempt.node,
            process: "",
            started_at: attempt.started_at,
        }
    }

    /// Returns the name of its input; empty if unknown.
    fn input<'a>(&self, inputs: &'a [Input]) -> &'a str {
        match self.descriptor.as_ref().map(|descriptor| &descriptor.work) {
            Some(Work::Files { input, .. } | Work::Rows { input, .. }) => {
                inputs.get(*input as usize).map_or("", |input| &input.name)
            }
            _ => "",
        }
    }

    /// Returns the ranges of items that failed, each with its error.
    fn ranges(&self) -> impl Iterator<Item = Range<'_>> {
        let attempt = &self.attempt;
        let (status, error) = match attempt.status {
            AttemptStatus::Succeeded => (AttemptStatus::IllegalResult, Some(&*NOTHING_RETURNED)),
            status => (status, attempt.error.as_deref()),
        };
        let whole = self.is_rejected_whole().then(|| Range {
            item: 0,
            items: self.items(),
            detail: &attempt.detail,
            values: &attempt.values,
            status,
            error,
            run: None,
        });
        let has_succeeded = whole.is_none();
        let isolated =
            attempt.rejected.iter().filter(move |rejected| has_succeeded && rejected.items > 0);
        let isolated =
            isolated.map(|Rejected { item, items, detail, values, status, error, run }| Range {
                item: *item,
                items: *items,
                detail,
                values,
                status: *status,
                error: Some(error),
                run: run.as_ref(),
            });
        whole.into_iter().chain(isolated)
    }

    /// Returns the number of items of the mini-batch. A mini-batch that fails has at least one.
    fn items(&self) -> u64 {
        let planned = self.descriptor.as_ref().and_then(Descriptor::items);
        self.attempt.total.max(planned.unwrap_or_default()).max(1)
    }

    /// Returns the number of files of a range, if all its items are files.
    fn files_of(&self, range: &Range<'_>) -> Option<u64> {
        let Work::Files { paths, .. } = &self.descriptor.as_ref()?.work else { return None };
        let end = range.item.checked_add(range.items)?;
        (end <= paths.len() as u64).then_some(range.items)
    }

    /// Returns one item of a range of files, or a whole range of rows (`file`: `None`).
    fn reject<'a>(
        &'a self,
        range: &Range<'a>,
        file: Option<u64>,
        key: &str,
        inputs: &'a [Input],
    ) -> Reject<'a> {
        let attempt = &self.attempt;
        let item = range.item + file.unwrap_or_default();
        let work = self.descriptor.as_ref().map(|descriptor| &descriptor.work);
        let items = if file.is_some() { 1 } else { range.items };
        let error = Cow::Borrowed(range.error.unwrap_or(&NO_ERROR));
        let mut reject = Reject {
            item: Some(item),
            detail: range.detail.to_owned(),
            values: range.values,
            status: range.status,
            process: range.run.map_or(&attempt.process, |run| &run.process),
            started_at: range.run.map_or(attempt.started_at, |run| run.started_at),
            ..self.reject_without_place(items, error, key, inputs)
        };
        match work {
            Some(Work::Files { paths, .. }) if file.is_some() => {
                reject.path = paths[item as usize].display();
                reject.detail.clone_from(&reject.path);
            }
            Some(Work::Rows { blocks, rows_before, .. }) => {
                reject.row = rows_before.and_then(|before| before.checked_add(item));
                let block = block_of(blocks, item);
                reject.path = block.map_or_else(String::new, |block| block.path.display());
                // Several blocks have several ranges.
                reject.bytes =
                    block.filter(|_| blocks.len() == 1 || reject.items == 1).and_then(bytes_of);
            }
            _ => {}
        }
        reject
    }
}

/// Returns the block that holds a row of the mini-batch; `None` if the plan did not count the rows before it.
fn block_of(blocks: &[Block], row: u64) -> Option<&Block> {
    let mut before = 0_u64;
    for (position, block) in blocks.iter().enumerate() {
        let Some(rows) = block.range.rows() else {
            let is_certain = blocks.len() == 1 || row == 0 && position == 0;
            return is_certain.then_some(block);
        };
        before = before.saturating_add(rows);
        if row < before {
            return Some(block);
        }
    }
    None
}

fn bytes_of(block: &Block) -> Option<(u64, u64)> {
    match block.range {
        BlockRange::Lines { first, last } => Some((first, last)),
        BlockRange::Records { start, end } => Some((start, end)),
        BlockRange::WholeText | BlockRange::RowGroup { .. } => None,
    }
}

/// Returns the partition key values as a JSON object in their order; empty without keys.
fn key(descriptor: Option<&Descriptor>) -> String {
    let values = descriptor.map(Descriptor::key).unwrap_or_default();
    if values.is_empty() {
        return String::new();
    }
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let fields: Vec<_> =
        values.iter().map(|(name, value)| format!("{}: {}", quoted(name), quoted(value))).collect();
    format!("{{{}}}", fields.join(", "))
}
