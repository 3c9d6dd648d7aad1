//! Reads `processed_mini-batches.csv`, the report that outlives the ledger of a large completed job: one row for each
//! attempt.

use std::ops::Range;

use chrono::NaiveDateTime;
use protocol::{Attempt, AttemptStatus, ErrorReport, EventRef, JobResult, Planned, ResultEvent, Rows};

use super::{History, Origin, Place};

/// Its path below `logs/`.
pub const PATH: &str = "sys/job_report/processed_mini-batches.csv";
/// How much of it is read at a time.
pub const PIECE_BYTES: u64 = 4 << 20;
const COLUMNS: usize = 16;

/// Adds the rows of the report to a history.
#[derive(Debug)]
pub struct Reader {
    history: History,
    /// The beginning of an incomplete row.
    rest: Vec<u8>,
    /// Position of `rest` in the file.
    start: u64,
    is_past_header: bool,
}

impl Reader {
    pub fn new(result: Option<&JobResult>) -> Self {
        let mut history = History::default();
        history.begin(Origin::Report);
        if let Some(result) = result.filter(|result| result.mini_batches.total > 0) {
            let (mini_batches, items) = (result.mini_batches.total, Some(result.items.total));
            history.tally.apply(&ResultEvent::Planned(Planned { mini_batches, items }));
        }
        Self { history, rest: Vec::new(), start: 0, is_past_header: false }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let text = std::mem::take(&mut self.rest);
        let mut end = 0;
        while let Some(length) = row_length(&text[end..]) {
            let row = end..end + length;
            end = row.end;
            if std::mem::replace(&mut self.is_past_header, true) {
                self.row(&text, row);
            }
        }
        self.rest = text[end..].to_vec();
        self.start += end as u64;
    }

    fn row(&mut self, text: &[u8], row: Range<usize>) {
        let Some(attempt) = attempt_of(&text[row.clone()]) else { return };
        let length = u32::try_from(row.len()).unwrap_or(u32::MAX);
        let place = Place { segment: 0, start: self.start + row.start as u64, length };
        self.history.add(&EventRef::Other(ResultEvent::Attempt(Box::new(attempt))), place);
    }

    pub fn finish(self) -> History {
        self.history
    }
}

/// Returns the length of the first row with its line break, which quotes may contain; `None` if it is incomplete.
fn row_length(text: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    text.iter()
        .position(|byte| {
            is_quoted ^= *byte == b'"';
            *byte == b'\n' && !is_quoted
        })
        .map(|end| end + 1)
}

/// Returns the attempt of one row.
pub fn attempt_of(row: &[u8]) -> Option<Attempt> {
    let text = String::from_utf8_lossy(row);
    let cells = cells(text.trim_end_matches(['\n', '\r']));
    let [
        mini_batch,
        picked,
        _pid,
        started,
        total,
        succeeded,
        _failed,
        elapsed,
        cpu,
        run,
        status,
        category,
        message,
        detail,
        node,
        process,
    ]: &[String; COLUMNS] = cells.first_chunk()?;
    let status = status_of(status)?;
    let error = (status != AttemptStatus::Succeeded).then(|| {
        let (category, message) = (unguarded(category).to_owned(), unguarded(message).to_owned());
        Box::new(ErrorReport { category, message, ..ErrorReport::default() })
    });
    let started = NaiveDateTime::parse_from_str(started, "%Y-%m-%dT%H:%M:%S%.f").ok()?;
    Some(Attempt {
        mini_batch: mini_batch.parse().ok()?,
        try_number: picked.parse().ok()?,
        deliveries_lost: 0,
        node: unguarded(node).into(),
        process: unguarded(process).into(),
        status,
        is_final: status == AttemptStatus::Succeeded,
        total: total.parse().ok()?,
        succeeded: succeeded.parse().ok()?,
        rows: Rows::None,
        columns: None,
        started_at: u64::try_from(started.and_utc().timestamp_millis()).ok()?,
        elapsed_seconds: elapsed.parse().ok()?,
        process_seconds: cpu.parse().ok()?,
        run_seconds: run.parse().ok()?,
        error,
        warnings: vec![],
        warnings_total: 0,
        warning_kinds: vec![],
        detail: unguarded(detail).to_owned(),
        traceparent: None,
    })
}

/// Returns a text without the mark that keeps spreadsheets from reading it as a formula.
fn unguarded(text: &str) -> &str {
    text.strip_prefix('\'').filter(|rest| rest.starts_with(['=', '+', '-', '@', '\t', '\r'])).unwrap_or(text)
}

fn status_of(word: &str) -> Option<AttemptStatus> {
    use AttemptStatus::{LoadFailed, LoadTimedOut, LostTooOften, ProcessDied, RunRaised, RunTimedOut, Succeeded};
    let all = [Succeeded, RunRaised, RunTimedOut, LoadFailed, LoadTimedOut, ProcessDied, LostTooOften];
    all.into_iter().find(|status| status.report_word() == word)
}

fn cells(row: &str) -> Vec<String> {
    let mut cells = Vec::with_capacity(COLUMNS);
    let mut cell = String::new();
    let mut characters = row.chars().peekable();
    let mut is_quoted = false;
    while let Some(character) = characters.next() {
        match character {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    cells.push(cell);
    cells
}
