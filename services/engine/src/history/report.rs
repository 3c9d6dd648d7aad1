//! Reads `processed_mini-batches.csv`, the report that outlives the ledger of a large completed job: one row for each
//! attempt.

use std::borrow::Cow;
use std::ops::Range;

use chrono::NaiveDateTime;
use protocol::{
    Attempt, AttemptCore, AttemptStatus, ErrorReport, JobResult, Phases, Planned, ProcessName,
    ResultEvent, Rows,
};

use super::{History, Origin, RecordAt};

/// Its path below `logs/`.
pub const PATH: &str = "sys/job_report/processed_mini-batches.csv";
/// How much of it is read at a time.
pub const PIECE_BYTES: u64 = 4 << 20;
const COLUMNS: usize = 21;

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
        let place = RecordAt {
            segment: 0,
            start: self.start + row.start as u64,
            length: u32::try_from(row.len()).unwrap_or(u32::MAX),
        };
        let text = String::from_utf8_lossy(&text[row]);
        let Some(row) = Row::read(&text) else { return };
        // Almost every row is a success, so none of its texts are copied.
        if row.status == AttemptStatus::Succeeded && !row.is_copy() {
            self.history.add_success(row.process(), &row.core, place);
        } else {
            self.history.add(&ResultEvent::Attempt(Box::new(row.attempt())), place);
        }
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

/// One row of the report.
struct Row<'a> {
    core: AttemptCore<(), (), ()>,
    status: AttemptStatus,
    cells: [Cow<'a, str>; COLUMNS],
}

impl<'a> Row<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let cells = cells(text.trim_end_matches(['\n', '\r']))?;
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
            ..,
        ] = &cells;
        let started: NaiveDateTime = started.parse().ok()?;
        Some(Self {
            core: AttemptCore {
                mini_batch: mini_batch.parse().ok()?,
                try_number: picked.parse().ok()?,
                deliveries_lost: 0,
                process: (),
                total: total.parse().ok()?,
                succeeded: succeeded.parse().ok()?,
                rows: Rows::None,
                columns: None,
                started_at: u64::try_from(started.and_utc().timestamp_millis()).ok()?,
                elapsed_seconds: elapsed.parse().ok()?,
                process_seconds: cpu.parse().ok()?,
                run_seconds: run.parse().ok()?,
                phases: phases(&cells),
                detail: (),
            },
            status: status_of(status)?,
            cells,
        })
    }

    fn process(&self) -> ProcessName<&str> {
        let [.., node, process, _, _, _, _, _] = &self.cells;
        ProcessName { node: unguarded(node), process: unguarded(process) }
    }

    /// Whether it was a copy.
    fn is_copy(&self) -> bool {
        self.cells[COLUMNS - 1] == "True"
    }

    fn attempt(&self) -> Attempt {
        let [.., category, message, detail, _node, _process, _, _, _, _, _] = &self.cells;
        let Self { core, status, .. } = self;
        let error = (*status != AttemptStatus::Succeeded).then(|| {
            let (category, message) =
                (unguarded(category).to_owned(), unguarded(message).to_owned());
            Box::new(ErrorReport { category, message, ..ErrorReport::default() })
        });
        let ProcessName { node, process } = self.process();
        Attempt {
            mini_batch: core.mini_batch,
            try_number: core.try_number,
            node: node.into(),
            process: process.into(),
            status: *status,
            is_final: *status == AttemptStatus::Succeeded,
            total: core.total,
            succeeded: core.succeeded,
            started_at: core.started_at,
            elapsed_seconds: core.elapsed_seconds,
            process_seconds: core.process_seconds,
            run_seconds: core.run_seconds,
            phases: core.phases,
            error,
            copy: self.is_copy(),
            detail: unguarded(detail).to_owned(),
            ..Attempt::default()
        }
    }
}

/// Returns the phases in the last cells, if they were measured.
fn phases(cells: &[Cow<'_, str>; COLUMNS]) -> Phases {
    let [.., waited, prepared, loaded, _reported, _copy] = cells;
    let read =
        || Some(Phases::new(waited.parse().ok()?, prepared.parse().ok()?, loaded.parse().ok()?));
    read().unwrap_or_default()
}

/// Returns the attempt of one row.
pub fn attempt_of(row: &[u8]) -> Option<Attempt> {
    Row::read(&String::from_utf8_lossy(row)).map(|row| row.attempt())
}

/// Returns a text without the mark that keeps spreadsheets from reading it as a formula.
fn unguarded(text: &str) -> &str {
    text.strip_prefix('\'')
        .filter(|rest| rest.starts_with(['=', '+', '-', '@', '\t', '\r']))
        .unwrap_or(text)
}

fn status_of(word: &str) -> Option<AttemptStatus> {
    use AttemptStatus::{
        LoadFailed, LoadTimedOut, LostTooOften, ProcessDied, RunRaised, RunTimedOut, Succeeded,
    };
    let all =
        [Succeeded, RunRaised, RunTimedOut, LoadFailed, LoadTimedOut, ProcessDied, LostTooOften];
    all.into_iter().find(|status| status.report_word() == word)
}

/// Returns the cells of a row, and copies only those with doubled quotes.
fn cells(row: &str) -> Option<[Cow<'_, str>; COLUMNS]> {
    let mut cells: [Cow<'_, str>; COLUMNS] = Default::default();
    let mut rest = row;
    for (position, cell) in cells.iter_mut().enumerate() {
        let end = match rest.strip_prefix('"') {
            Some(quoted) => {
                let mut end = quoted.find('"')?;
                while quoted[end + 1..].starts_with('"') {
                    end += 2 + quoted[end + 2..].find('"')?;
                }
                let text = &quoted[..end];
                *cell = if text.contains('"') {
                    text.replace("\"\"", "\"").into()
                } else {
                    text.into()
                };
                end + 2
            }
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                *cell = rest[..end].into();
                end
            }
        };
        rest = &rest[end..];
        if position + 1 < COLUMNS {
            rest = rest.strip_prefix(',')?;
        }
    }
    Some(cells)
}
