//! Bad records: counted, and the first few told with file, line, column and value.

use std::collections::BTreeMap;
use std::fmt::Display;

use protocol::{MismatchPolicy, Warning};

use crate::source::{Text, TextFile};

/// Warnings that are told in full; more are only counted.
pub const WARNINGS_MAX: usize = 10;

/// Farthest a line number is counted for. Beyond it a message names the byte.
const LINE_COUNT_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a value that a message shows.
const VALUE_BYTES_MAX: usize = 60;

/// Checkpoints kept, so that each file is counted through once and not once a block.
const CHECKPOINTS_MAX: usize = 1024;

/// What is known about the line numbers of files.
#[derive(Default)]
pub(crate) struct LineNumbers {
    /// File and byte offset of a line's start to the number of lines before it.
    checkpoints: BTreeMap<(String, u64), u64>,
}

impl LineNumbers {
    /// Lines before `offset`, where a line starts; `None` where it would take too long to tell.
    fn before(&mut self, file: &TextFile, offset: u64) -> Option<u64> {
        let key = |offset| (file.name().to_owned(), offset);
        let near = self.checkpoints.range(key(0)..=key(offset)).next_back();
        let (from, mut lines) = near.map_or((0, 0), |((_, from), lines)| (*from, *lines));
        if offset - from > LINE_COUNT_BYTES_MAX || file.has_holes {
            return None;
        }
        file.scan(from, offset, |piece| lines += memchr::memchr_iter(b'\n', piece).count() as u64).ok()?;
        if self.checkpoints.len() >= CHECKPOINTS_MAX {
            self.checkpoints.clear();
        }
        self.checkpoints.insert(key(offset), lines);
        Some(lines)
    }
}

/// Where a block's text comes from, so that a place in it can be named.
pub(crate) struct Place<'a> {
    pub file: &'a TextFile,
    pub text: &'a Text,
    pub lines: &'a mut LineNumbers,
}

impl Place<'_> {
    /// `data.csv, line 7` for a position in the text.
    fn describe(&mut self, position: usize) -> String {
        let name = self.file.name();
        match self.lines.before(self.file, self.text.offset) {
            Some(before) => {
                let inside = memchr::memchr_iter(b'\n', &self.text.as_slice()[..position]).count() as u64;
                format!("{name}, line {}", before + inside + 1)
            }
            None => format!("{name}, byte {}", self.text.offset + position as u64),
        }
    }
}

/// What is wrong with the records of one mini-batch.
pub(crate) struct Problems {
    policy: MismatchPolicy,
    warnings: Vec<Warning>,
    total: u64,
    /// Rows that are in the columns but must not reach the frame.
    failed_rows: Vec<usize>,
    /// Records that did not even become rows.
    pub unread_records: u64,
}

impl Problems {
    pub fn new(policy: MismatchPolicy) -> Self {
        Self { policy, warnings: Vec::new(), total: 0, failed_rows: Vec::new(), unread_records: 0 }
    }

    /// Whether a record that does not fit fails.
    pub fn fails(&self) -> bool {
        self.policy == MismatchPolicy::Error
    }

    /// Counts a warning, and words it if it is one of the first.
    pub fn warn(&mut self, message: impl FnOnce() -> String) {
        self.total += 1;
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(Warning { message: message() });
        }
    }

    /// A record that cannot be read, whatever the policy is.
    pub fn unreadable_record(&mut self, place: &mut Place, position: usize, reason: impl Display) {
        self.unread_records += 1;
        self.warn(|| format!("{}: {reason}; the record failed", place.describe(position)));
    }

    /// A value that does not fit its column, in row `row` of the mini-batch.
    pub fn misfit(&mut self, place: &mut Place, position: usize, row: usize, column: &str, value: &[u8], what: Misfit) {
        let outcome = if self.fails() {
            self.failed_rows.push(row);
            "the record failed".to_owned()
        } else {
            format!("read as {}", what.became)
        };
        self.warn(|| {
            let place = place.describe(position);
            format!("{place}, column \"{column}\": {} is no {}; {outcome}", quoted(value), what.expected)
        });
    }

    /// Something about a whole record that loses information.
    pub fn defect(&mut self, place: &mut Place, position: usize, row: Option<usize>, defect: impl Display, mend: &str) {
        let outcome = if self.fails() {
            match row {
                Some(row) => self.failed_rows.push(row),
                None => self.unread_records += 1,
            }
            "the record failed"
        } else {
            mend
        };
        self.warn(|| format!("{}: {defect}; {outcome}", place.describe(position)));
    }

    /// Bytes that are no text, in a cell that keeps them as U+FFFD.
    pub fn replaced(&mut self, place: &mut Place, position: usize, column: &str, value: &[u8]) {
        self.warn(|| {
            let place = place.describe(position);
            format!(
                "{place}, column \"{column}\": bytes that are not valid in the file's encoding were replaced by U+FFFD \
                 in {}",
                quoted(value)
            )
        });
    }

    /// One flag a row, `true` for those that failed; `None` if all are fine.
    pub fn failed_rows(&self, rows: usize) -> Option<Vec<bool>> {
        if self.failed_rows.is_empty() {
            return None;
        }
        let mut failed = vec![false; rows];
        for &row in &self.failed_rows {
            failed[row] = true;
        }
        Some(failed)
    }

    /// The warnings, and how many there were.
    pub fn into_warnings(self) -> (Vec<Warning>, u64) {
        (self.warnings, self.total)
    }
}

/// A value that does not fit its column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Misfit {
    /// `integer`, `number`, …
    pub expected: &'static str,
    /// What stands in the column instead.
    pub became: Became,
}

/// What stands in the column instead of a value that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Became {
    Missing,
    Integer(i64),
    Float(f64),
}

impl Display for Became {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => formatter.write_str("missing"),
            Self::Integer(value) => value.fmt(formatter),
            Self::Float(value) => write!(formatter, "{value:?}"),
        }
    }
}

/// A value for people: one line, not too long.
fn quoted(value: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&value[..value.len().min(VALUE_BYTES_MAX)]);
    let ellipsis = if value.len() > VALUE_BYTES_MAX { "…" } else { "" };
    let escaped: String = shown
        .chars()
        .map(|character| if character.is_control() { character.escape_default().to_string() } else { character.into() })
        .collect();
    format!("\"{escaped}{ellipsis}\"")
}
