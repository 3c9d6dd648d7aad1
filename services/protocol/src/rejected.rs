//! The items of a success that have no result: those that one message can name, and the object in the store that names
//! all of them if there are more.

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use crate::{Attempt, AttemptStatus, ErrorReport, is_default};

/// Most entries of [`Attempt::rejected`] that travel: an attempt must fit into one message.
pub const REJECTED_MAX: usize = 256;

/// Most entries of [`RejectedPart::others`].
const CATEGORIES_MAX: usize = 10;

/// Category of the error of items for which `run()` returned no result.
pub const NO_RESULT: &str = "NoResult";

/// Most entries of [`Attempt::unread`]: an attempt must fit into one message.
pub const UNREAD_MAX: usize = 100;

/// A record of a table that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadRecord {
    /// Its file; empty for several records.
    pub path: String,
    /// Its place, for people: `data.csv, line 7`; empty for several records.
    pub place: String,
    /// Number of records: 1, or more for those that have no entry of their own.
    pub records: u64,
    /// Why. It may be shortened.
    pub message: String,
}

impl UnreadRecord {
    /// Category of its error.
    pub const CATEGORY: &str = "UnreadableRecord";
}

/// An item, or a range of items, that has no result in the success of its mini-batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// Position of its first item in the argument of `run()`, from 0.
    pub item: u64,
    /// Number of items: 1, or more if the range was not divided further.
    pub items: u64,
    /// The first item, for people: its path, or its file and row.
    pub detail: String,
    /// The item itself as a JSON object, if it is one row of a table; else empty. Long rows are shortened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub values: String,
    /// How its last run ended.
    pub status: AttemptStatus,
    /// Error of that run. Its texts may be shortened.
    pub error: ErrorReport,
    /// That run; `None`: the one in which the mini-batch succeeded, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<FailedRun>,
}

/// The object in the store that holds a [`RejectedList`], and what counting needs of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedPart {
    /// Name below `parts/`.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Number of rejected items, those of [`Attempt::rejected`] among them.
    pub items: u64,
    /// Whether a run failed for any of them. Rows that do not fit the schema of the job are no failure of a run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_failed_runs: bool,
    /// Numbers of the entries that [`Attempt::rejected`] leaves out, by the category of their errors. At most 10
    /// categories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<(String, u64)>,
}

/// All rejected items of a success, and the pieces of its rows: an object of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedList {
    /// As [`Attempt::rejected`].
    pub rejected: Vec<Rejected>,
    /// As [`Attempt::pieces`].
    pub pieces: Vec<(u64, u64)>,
}

/// The run of a range of items that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRun {
    /// Process.
    pub process: CompactString,
    /// Wall clock at its start, milliseconds since the epoch.
    pub started_at: u64,
}

impl Rejected {
    fn has_failed_run(&self) -> bool {
        self.status != AttemptStatus::IllegalResult
    }
}

impl Attempt {
    /// Whether it is a success without items that have failed, which counts as a failed mini-batch too. Rows that do not
    /// fit the schema of the job are no failure of a run.
    pub fn failed_in_part(&self) -> bool {
        self.extra_runs > 0
            || self.rejected_part.as_ref().is_some_and(|part| part.has_failed_runs)
            || self.rejected.iter().any(Rejected::has_failed_run)
    }

    /// Returns the number of rejected items.
    pub fn items_rejected(&self) -> u64 {
        match &self.rejected_part {
            Some(part) => part.items,
            None => self
                .rejected
                .iter()
                .fold(0, |items: u64, rejected| items.saturating_add(rejected.items)),
        }
    }

    /// Whether there are more than `max` rejected items, or pieces between them.
    pub fn has_long_lists(&self, max: usize) -> bool {
        self.rejected.len() > max || self.pieces.len() > max + 1
    }

    /// Moves rejected items and pieces to an object below `parts/` if there are more than `max` of them, at most
    /// [`REJECTED_MAX`]. Returns the name of the object and its content, which must be stored before the attempt is
    /// announced.
    pub fn move_rejected(
        &mut self,
        max: usize,
        name: impl FnOnce() -> String,
    ) -> Option<(String, Vec<u8>)> {
        if !self.has_long_lists(max) {
            return None;
        }
        let name = name();
        let items = self.items_rejected();
        let pieces = std::mem::take(&mut self.pieces);
        let list = RejectedList { rejected: std::mem::take(&mut self.rejected), pieces };
        let content = serde_json::to_vec(&list).expect("plain data");
        let mut rejected = list.rejected;
        let has_failed_runs = rejected.iter().any(Rejected::has_failed_run);
        let mut others: Vec<(String, u64)> = Vec::new();
        for Rejected { error, .. } in rejected.drain(max.min(rejected.len())..) {
            match others.iter().position(|(category, _)| *category == error.category) {
                Some(known) => others[known].1 += 1,
                None if others.len() < CATEGORIES_MAX => others.push((error.category, 1)),
                None => {}
            }
        }
        let bytes = content.len() as u64;
        self.rejected = rejected;
        self.rejected_part = Some(Box::new(RejectedPart {
            name: name.clone(),
            bytes,
            items,
            has_failed_runs,
            others,
        }));
        Some((name, content))
    }

    /// Whether it is a success for which `run()` returned nothing: then the items without a result are all its items.
    pub fn returned_nothing(&self) -> bool {
        let is_named =
            !(self.rejected.is_empty() && self.rejected_part.is_none() && self.unread.is_empty());
        self.status == AttemptStatus::Succeeded
            && self.succeeded == 0
            && self.failed() > 0
            && !is_named
    }

    /// Returns the number of items of a success that did not succeed and that nothing names.
    pub fn unnamed(&self) -> u64 {
        if self.status != AttemptStatus::Succeeded || self.returned_nothing() {
            return 0;
        }
        self.failed().saturating_sub(self.items_rejected()).saturating_sub(self.records_unread())
    }

    /// Returns the number of records that could not be read, although the attempt succeeded.
    pub fn records_unread(&self) -> u64 {
        self.unread.iter().fold(0, |records: u64, unread| records.saturating_add(unread.records))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(count: u64, status: impl Fn(u64) -> AttemptStatus) -> Attempt {
        let rejected = |item| Rejected {
            item,
            items: 2,
            status: status(item),
            error: ErrorReport {
                category: format!("Error{}", item % 20),
                ..ErrorReport::default()
            },
            ..Rejected::default()
        };
        Attempt {
            mini_batch: 7,
            try_number: 3,
            is_final: true,
            total: 3 * count,
            succeeded: count - 1,
            rejected: (0..count).map(rejected).collect(),
            pieces: (0..count).map(|item| (item, 4)).collect(),
            ..Attempt::default()
        }
    }

    #[test]
    fn message_that_can_hold_all_rejects_needs_no_object() {
        let mut attempt = attempt(REJECTED_MAX as u64, |_| AttemptStatus::RunRaised);
        let before = attempt.clone();
        assert_eq!(attempt.move_rejected(REJECTED_MAX, || panic!("no object")), None);
        assert_eq!(attempt, before);
    }

    #[test]
    fn rejects_that_one_message_cannot_hold_are_in_the_object() {
        let illegal_first = |item| {
            if item < 1000 { AttemptStatus::IllegalResult } else { AttemptStatus::RunRaised }
        };
        let mut attempt = attempt(5000, illegal_first);
        let before = attempt.clone();
        let moved = attempt.move_rejected(REJECTED_MAX, || "7-rejected".into());
        let (name, content) = moved.expect("too many for a message");
        assert_eq!(name, "7-rejected");
        let list: RejectedList = serde_json::from_slice(&content).expect("valid");
        assert_eq!((&list.rejected, &list.pieces), (&before.rejected, &before.pieces));
        assert_eq!((attempt.rejected.len(), attempt.pieces.len()), (REJECTED_MAX, 0));
        assert_eq!(attempt.rejected, before.rejected[..REJECTED_MAX]);
        let part = attempt.rejected_part.as_deref().expect("it names the object");
        assert_eq!(
            (part.name.as_str(), part.bytes, part.items),
            ("7-rejected", content.len() as u64, 10_000)
        );
        assert_eq!(part.others.len(), 10, "bounded");
        assert_eq!(
            part.others.iter().find(|(category, _)| category == "Error16").map(|(_, count)| *count),
            Some(238)
        );
        assert!(attempt.failed_in_part(), "some of the others failed in a run");
        assert_eq!((attempt.items_rejected(), attempt.unnamed()), (10_000, before.unnamed()));
        assert_eq!(attempt.unnamed(), 1);
        let header = serde_json::to_vec(&attempt).expect("plain data");
        assert_eq!(serde_json::from_slice::<Attempt>(&header).expect("valid"), attempt);
    }
}
