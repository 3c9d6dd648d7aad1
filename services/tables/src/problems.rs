//! Bad records: counted by kind, and the first few reported with file, line, column and value.
//!
//! A kind becomes one sentence in the summary of a job: what was lost in which column, how often, where first, and
//! what to set. Every value that differs from the file belongs to a kind.

use std::collections::BTreeMap;
use std::fmt::Display;

use arrow::temporal_conversions::timestamp_ns_to_datetime;
use protocol::{
    ColumnType, MismatchPolicy, RECORD_FAILED, TableColumn, TableFormat, TableOptions, TypeRules,
    UNREAD_MAX, UnreadRecord, WARNING_KINDS_MAX, Warning, WarningKind,
};

use crate::WINDOW_ROWS;
use crate::problem::Problem;
use crate::source::{Text, TextFile};

/// Maximum number of warnings with text; further warnings are only counted.
pub const WARNINGS_MAX: usize = 10;

/// Maximum distance over which line numbers are counted. Beyond it, a message names the byte.
const LINE_COUNT_BYTES_MAX: u64 = 1 << 30;

/// Maximum bytes of a value in a message.
const VALUE_BYTES_MAX: usize = 60;

/// Maximum bytes of the reason why a record failed, besides its place.
const REASON_BYTES_MAX: usize = 300;

/// Maximum number of checkpoints, which avoid counting the lines of a file once per block.
const CHECKPOINTS_MAX: usize = 1024;

/// Known line numbers of files.
#[derive(Default)]
pub(crate) struct LineNumbers {
    /// Number of lines before a file's byte offset at which a line starts.
    checkpoints: BTreeMap<(String, u64), u64>,
}

impl LineNumbers {
    /// Returns the number of lines before `offset`, where a line starts; `None` if counting would take too long.
    fn before(&mut self, file: &TextFile, offset: u64) -> Option<u64> {
        let key = |offset| (file.name.clone(), offset);
        let near = self.checkpoints.range(key(0)..=key(offset)).next_back();
        let (from, mut lines) = near.map_or((0, 0), |((_, from), lines)| (*from, *lines));
        if offset - from > LINE_COUNT_BYTES_MAX || file.has_holes {
            return None;
        }
        file.scan(from, offset, |piece| lines += memchr::memchr_iter(b'\n', piece).count() as u64)
            .ok()?;
        if self.checkpoints.len() >= CHECKPOINTS_MAX {
            self.checkpoints.clear();
        }
        self.checkpoints.insert(key(offset), lines);
        Some(lines)
    }
}

/// The origin of a block's text, which names places in it.
pub(crate) struct Origin<'a> {
    pub file: &'a TextFile,
    pub text: &'a Text,
    pub lines: &'a mut LineNumbers,
}

impl Origin<'_> {
    /// Returns the number of lines of the file before the text.
    pub fn lines_before(&mut self) -> Option<u64> {
        self.text.lines_before.or_else(|| self.lines.before(self.file, self.text.offset))
    }

    /// Returns `data.csv, line 7` for a position in the text.
    fn describe(&mut self, position: usize) -> String {
        let name = &self.file.name;
        match self.lines_before() {
            Some(before) => {
                let inside =
                    memchr::memchr_iter(b'\n', &self.text.as_slice()[..position]).count() as u64;
                format!("{name}, line {}", before + inside + 1)
            }
            None => format!("{name}, byte {}", self.text.offset + position as u64),
        }
    }
}

/// One kind of problem, and its number of occurrences.
#[derive(Clone)]
struct Counted {
    problem: Problem,
    column: Option<String>,
    count: u64,
    first: String,
    column_type: Option<ColumnType>,
}

impl Counted {
    fn is(&self, problem: Problem, column: Option<&str>) -> bool {
        self.problem == problem && self.column.as_deref() == column
    }
}

/// The problems of the records of one mini-batch.
pub(crate) struct Problems {
    policy: MismatchPolicy,
    warnings: Vec<(Problem, Warning)>,
    total: u64,
    kinds: Vec<Counted>,
    /// Rows in the columns that must not reach the frame.
    failed_rows: Vec<usize>,
    /// The first records that failed, with their rows in the columns, if they have one.
    unread: Vec<(Option<usize>, UnreadRecord)>,
    /// Number of records that did not become rows.
    pub unread_records: u64,
}

impl Problems {
    pub fn new(policy: MismatchPolicy) -> Self {
        Self {
            policy,
            warnings: Vec::new(),
            total: 0,
            kinds: Vec::new(),
            failed_rows: Vec::new(),
            unread: Vec::new(),
            unread_records: 0,
        }
    }

    /// Fails a record. `row` is its row in the columns; `None` if it did not become one.
    fn fail(
        &mut self,
        row: Option<usize>,
        origin: &mut Origin,
        position: usize,
        reason: impl FnOnce() -> String,
    ) {
        match row {
            Some(row) => self.failed_rows.push(row),
            None => self.unread_records += 1,
        }
        // Several cells of a row may fail it. The last entry counts the records without an entry of their own.
        if self.unread.len() < UNREAD_MAX - 1
            && !(row.is_some() && self.unread.iter().any(|(known, _)| *known == row))
        {
            let (path, place) = (origin.file.name.clone(), origin.describe(position));
            self.unread.push((
                row,
                UnreadRecord { path, place, records: 1, message: shortened(reason()) },
            ));
        }
    }

    /// Returns entries for the `records` that failed; the last one counts those without an entry of their own.
    pub fn unread(&self, records: u64) -> Vec<UnreadRecord> {
        with_rest(self.unread.iter().map(|(_, unread)| unread.clone()).collect(), records)
    }

    /// Returns the entries and warnings about whole lines, which do not depend on columns: lines that are not rows, and
    /// invalid bytes.
    pub fn of_lines(&self, options: &TableOptions) -> (Vec<UnreadRecord>, Warnings) {
        let is_of_lines =
            |problem: Problem| matches!(problem, Problem::NoObject | Problem::InvalidBytes);
        let unread =
            self.unread.iter().filter(|(row, _)| row.is_none()).map(|(_, unread)| unread.clone());
        let kinds: Vec<Counted> =
            self.kinds.iter().filter(|kind| is_of_lines(kind.problem)).cloned().collect();
        let lines = Self {
            warnings: self
                .warnings
                .iter()
                .filter(|(problem, _)| is_of_lines(*problem))
                .cloned()
                .collect(),
            total: kinds.iter().map(|kind| kind.count).sum(),
            kinds,
            ..Self::new(self.policy)
        };
        (with_rest(unread.collect(), self.unread_records), lines.finish(options))
    }

    /// Returns whether a record that does not fit fails.
    fn fails(&self, problem: Problem) -> bool {
        self.policy == MismatchPolicy::Reject && problem.can_fail()
    }

    /// Counts a problem, and adds its text if it is among the first or the first of its kind. `message` gets the place.
    fn add(
        &mut self,
        problem: Problem,
        (column, value): (Option<&str>, Option<&[u8]>),
        place: impl FnOnce() -> String,
        message: impl FnOnce(&str) -> String,
    ) {
        self.total += 1;
        let column_type = value.and_then(|value| problem.type_for(value));
        let is_new = match self.kinds.iter().position(|known| known.is(problem, column)) {
            Some(index) => {
                let known = &mut self.kinds[index];
                known.count += 1;
                known.column_type = known.column_type.max(column_type);
                false
            }
            None => self.kinds.len() < WARNING_KINDS_MAX,
        };
        let is_worded = self.warnings.len() < WARNINGS_MAX;
        if !is_new && !is_worded {
            return;
        }
        let place = place();
        if is_worded {
            self.warnings.push((problem, Warning { message: message(&place) }));
        }
        if is_new {
            let first =
                value.map_or_else(|| place.clone(), |value| format!("{place}: {}", quoted(value)));
            self.kinds.push(Counted {
                problem,
                column: column.map(str::to_owned),
                count: 1,
                first,
                column_type,
            });
        }
    }

    /// Adds an unreadable record, which fails under any policy.
    pub fn unreadable_record(
        &mut self,
        origin: &mut Origin,
        position: usize,
        reason: impl Display,
    ) {
        self.fail(None, origin, position, || reason.to_string());
        let message = |place: &str| format!("{place}: {reason}; {RECORD_FAILED}");
        self.add(Problem::NoObject, (None, None), || origin.describe(position), message);
    }

    /// Adds a value that does not fit its column completely, in row `row` of the mini-batch.
    pub fn misfit(
        &mut self,
        origin: &mut Origin,
        position: usize,
        row: usize,
        column: &str,
        value: &[u8],
        Misfit { problem, became }: Misfit,
    ) {
        let fails = self.fails(problem);
        if fails {
            let reason =
                || format!("column \"{column}\": {} is not {}", quoted(value), problem.expected());
            self.fail(Some(row), origin, position, reason);
        }
        let message = |place: &str| {
            let (what, outcome) = problem.words();
            let value = quoted(value);
            match problem {
                _ if problem.keeps_value() => {
                    format!(
                        "{place}, column \"{column}\": {value} is read as {became}; {what}: {outcome}"
                    )
                }
                _ if fails => {
                    format!(
                        "{place}, column \"{column}\": {value} is not {}; {RECORD_FAILED}",
                        problem.expected()
                    )
                }
                _ => format!(
                    "{place}, column \"{column}\": {value} is not {}; read as {became}",
                    problem.expected()
                ),
            }
        };
        self.add(problem, (Some(column), Some(value)), || origin.describe(position), message);
    }

    /// Adds `count` values of a column for which the rules of the original choose one of two readings. `value` is one of
    /// these values.
    pub fn doubtful(&mut self, count: u64, place: &str, column: &TableColumn, value: &[u8]) {
        let (problem, reading) = match column.column_type {
            ColumnType::Boolean => {
                let only = "because the rows that decide the type hold only such codes";
                (Problem::CodesAsTruth, format!("as a truth value, {only}"))
            }
            _ => {
                let none = "because no row that decides the type shows their order";
                (Problem::MonthFirst, format!("with the month before the day, {none}"))
            }
        };
        let column = column.name.as_str();
        let message = |place: &str| {
            format!("{place}, column \"{column}\": {} is read {reading}", quoted(value))
        };
        self.add(problem, (Some(column), Some(value)), || place.to_owned(), message);
        if let Some(known) = self.kinds.iter_mut().find(|known| known.is(problem, Some(column))) {
            known.count += count - 1;
        }
        self.total += count - 1;
    }

    /// Adds a whole number that changes because its column has missing values.
    pub fn rounded(
        &mut self,
        place: impl FnOnce() -> String,
        column: &str,
        value: i128,
        rounded: f64,
    ) {
        let text = value.to_string();
        let message = |place: &str| {
            format!(
                "{place}, column \"{column}\": {value} is rounded to {rounded} because other values of the column are \
                 missing"
            )
        };
        self.add(Problem::Rounded, (Some(column), Some(text.as_bytes())), place, message);
    }

    /// Adds a loss of information in a whole record, which `defect` describes. `row` is its row in the columns, which
    /// is removed if the record fails; `None` if the columns do not have it.
    pub fn defect(
        &mut self,
        problem: Problem,
        (origin, position): (&mut Origin, usize),
        row: Option<usize>,
        column: Option<&str>,
        defect: impl Display,
    ) {
        let fails = self.fails(problem);
        if fails {
            self.fail(row, origin, position, || defect.to_string());
        }
        let message = |place: &str| {
            format!("{place}: {defect}; {}", if fails { RECORD_FAILED } else { problem.words().1 })
        };
        self.add(problem, (column, None), || origin.describe(position), message);
    }

    /// Adds a file whose header differs from that of the first file.
    pub fn other_header(&mut self, name: &str) {
        let message = |name: &str| {
            format!(
                "{name}: its header differs from that of the first file, whose column names are used"
            )
        };
        self.add(Problem::OtherHeader, (None, None), || name.to_owned(), message);
    }

    /// Adds a value that holds U+FFFD in place of invalid bytes, or of half of a surrogate pair.
    pub fn replaced(
        &mut self,
        problem: Problem,
        origin: &mut Origin,
        position: usize,
        column: &str,
        value: &[u8],
    ) {
        if memchr::memmem::find(value, "\u{FFFD}".as_bytes()).is_none() {
            return;
        }
        let what = match problem {
            Problem::HalfPair => "half of a surrogate pair was",
            _ => "bytes that are not valid in the file's encoding were",
        };
        let message = |place: &str| {
            format!("{place}, column \"{column}\": {what} replaced by U+FFFD in {}", quoted(value))
        };
        self.add(problem, (Some(column), Some(value)), || origin.describe(position), message);
    }

    /// Returns one flag per row, `true` for failed rows; `None` if none failed.
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

    /// Returns the warnings.
    pub fn finish(self, options: &TableOptions) -> Warnings {
        let fails = self.policy == MismatchPolicy::Reject;
        let kinds = self.kinds.into_iter().map(|mut counted| {
            let (what, outcome) = counted.problem.words();
            if options.format == TableFormat::Jsonl && counted.column_type == Some(ColumnType::Text)
            {
                // This type keeps JSON values that the other turns into text.
                counted.column_type = Some(ColumnType::Json);
            }
            let outcome = if fails && counted.problem.can_fail() { RECORD_FAILED } else { outcome };
            let remedy = remedy(&counted, options);
            let Counted { column, count, first, column_type, .. } = counted;
            WarningKind {
                column,
                problem: format!("{what}, {outcome}"),
                count,
                first,
                remedy,
                column_type,
            }
        });
        Warnings {
            first: self.warnings.into_iter().map(|(_, warning)| warning).collect(),
            total: self.total,
            kinds: kinds.collect(),
        }
    }
}

/// Adds an entry for the records that have none.
fn with_rest(mut unread: Vec<UnreadRecord>, records: u64) -> Vec<UnreadRecord> {
    let rest = records.saturating_sub(unread.len() as u64);
    if rest > 0 {
        let message =
            format!("more than {} records of the mini-batch could not be read", unread.len());
        unread.push(UnreadRecord {
            path: String::new(),
            place: String::new(),
            records: rest,
            message,
        });
    }
    unread
}

/// The warnings for users about the rows of a mini-batch.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    /// The first [`WARNINGS_MAX`].
    pub first: Vec<Warning>,
    /// Number of all.
    pub total: u64,
    /// All by kind, for a summary.
    pub kinds: Vec<WarningKind>,
}

impl Warnings {
    /// Adds the warnings of `more`.
    pub fn extend(&mut self, more: Self) {
        self.first.extend(more.first);
        self.first.truncate(WARNINGS_MAX);
        self.total += more.total;
        self.kinds.extend(more.kinds);
        self.kinds.truncate(WARNING_KINDS_MAX);
    }
}

/// Returns the remedy for a kind of problem.
fn remedy(counted: &Counted, options: &TableOptions) -> String {
    let column = counted.column.as_deref().unwrap_or_default();
    if let Some(column_type) = counted.column_type {
        let setting = format!("columns: {{{}: {}}}", yaml_key(column), column_type.name());
        return match (counted.problem, options.column_types.get(column)) {
            (Problem::OffsetDropped, _) if options.format.is_delimited() => {
                format!(
                    "to keep them, set {setting}, or types: pandas with columns: {{{}: timestamp}}",
                    yaml_key(column)
                )
            }
            (Problem::CodesAsTruth, _) => format!("to keep them, set types: pandas, or {setting}"),
            (problem, None) if problem.keeps_value() => format!("to keep them, set {setting}"),
            (_, Some(given)) => {
                format!("`columns` makes it {}: correct the values, or set {setting}", given.name())
            }
            (_, None) => {
                let rows = match options.types {
                    TypeRules::Original => format!("the first {WINDOW_ROWS} rows"),
                    TypeRules::Pandas => "some rows of the files".to_owned(),
                };
                let order = column_type == ColumnType::DateTimeDayFirst;
                let condition = if order { " if days come first" } else { "" };
                format!("its type comes from {rows}: set {setting}{condition}")
            }
        };
    }
    match counted.problem {
        Problem::BrokenQuote | Problem::BrokenHeader => {
            "where fields hold line breaks, set support_multi_line: true".to_owned()
        }
        Problem::OpenQuote => "close the quote in the file".to_owned(),
        Problem::LoneCr => "convert CR to LF (`tr '\\r' '\\n'`) if it should end a line".to_owned(),
        Problem::FewCells | Problem::ManyCells => {
            "correct the rows, or check delimiter and quotes".to_owned()
        }
        Problem::InvalidBytes => {
            let encoding = &options.encoding;
            format!(
                "the files are read as {encoding}: set encoding to theirs, such as windows-1252"
            )
        }
        Problem::HalfPair => {
            "write the other half, or keep the text whole where it is cut".to_owned()
        }
        Problem::OtherHeader => {
            "to read each file by its own header, set header: all_files_different_headers"
                .to_owned()
        }
        Problem::NoObject => "write one JSON object a line".to_owned(),
        _ => format!("to read it, set columns: {{{}: json}}", yaml_key(column)),
    }
}

/// Returns a name in the form of a key in a one-line YAML mapping.
fn yaml_key(name: &str) -> String {
    const RESERVED: [&str; 10] =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];
    let is_word = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
        && !RESERVED.contains(&name.to_ascii_lowercase().as_str());
    if is_word { name.to_owned() } else { format!("{name:?}") }
}

/// A value that does not fit its column completely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Misfit {
    pub problem: Problem,
    /// The value in the column instead.
    pub became: Replacement,
}

/// The value in a column in place of one that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Replacement {
    Missing,
    Integer(i64),
    Float(f64),
    /// Nanoseconds since the epoch.
    Time(i64),
}

impl Display for Replacement {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => formatter.write_str("missing"),
            Self::Integer(value) => value.fmt(formatter),
            Self::Float(value) => write!(formatter, "{value:?}"),
            Self::Time(value) => match timestamp_ns_to_datetime(*value) {
                Some(time) => time.fmt(formatter),
                None => value.fmt(formatter),
            },
        }
    }
}

/// Cuts a reason to [`REASON_BYTES_MAX`] bytes.
fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        reason.push('…');
    }
    reason
}

/// Returns a value for messages: in quotes, in one line of limited length.
fn quoted(value: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&value[..value.len().min(VALUE_BYTES_MAX)]);
    let ellipsis = if value.len() > VALUE_BYTES_MAX { "…" } else { "" };
    let escaped: String = shown
        .chars()
        .map(|character| {
            if character.is_control() {
                character.escape_default().to_string()
            } else {
                character.into()
            }
        })
        .collect();
    format!("\"{escaped}{ellipsis}\"")
}
