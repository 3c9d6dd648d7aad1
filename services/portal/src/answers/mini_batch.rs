//! One mini-batch: its items, every attempt with its error, its rows, and how to run it alone.

use axum::extract::{Path, State};
use engine::MiniBatchState;
use engine::first_rows::{FirstRows, first_stream_rows};
use engine::history::{AttemptSummary, Origin, RecordAt, RecordedAttempt};
use engine::{JobStore, LogFile, RejectedMiniBatch};
use protocol::{AttemptStatus, Descriptor, ErrorReport, OutputFormat, Rows as RowLocation, Work};
use serde::Serialize;

use super::frames::{Frame, frames};
use super::job::Wait;
use super::phases::{Phase, phases, valid_seconds};
use super::speculative_run::{self, SpeculativeRun};
use super::table;
use super::test_case::{TestCase, test_case};
use crate::SharedState;
use crate::document::Document;
use crate::error::{Answer, Refusal};
use crate::watched::View;

const ITEMS_MAX: usize = 200;
const ATTEMPTS_MAX: usize = 100;
const ROWS_MAX: usize = 100;
/// Rejected items, or ranges of them, that are shown.
const REJECTED_MAX: usize = 50;
/// Bytes of a part that are read to show its first rows.
const PART_BYTES_MAX: usize = 4 << 20;
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Shown bytes of the output of an attempt.
const PRINTED_BYTES_MAX: u64 = 16 << 10;

#[derive(Debug, Serialize)]
pub struct MiniBatch {
    revision: String,
    mini_batch: u64,
    state: &'static str,
    tries: u16,
    deliveries_lost: u32,
    items: Items,
    key: Vec<(String, String)>,
    attempts: Vec<Attempt>,
    speculative_run: Option<SpeculativeRun>,
    wait: Option<Wait>,
    /// Items that were rejected although the mini-batch succeeded.
    rejected: Rejected,
    rows: Rows,
    previous_failed: Option<u64>,
    next_failed: Option<u64>,
    can_run_again: bool,
    test_case: Option<TestCase>,
}

#[derive(Debug, Default, Serialize)]
struct Items {
    total: Option<u64>,
    shown: Vec<Item>,
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct Item {
    path: String,
    range: Option<String>,
}

#[derive(Debug, Serialize)]
struct Attempt {
    try_number: u32,
    /// Whether it was a copy.
    copy: bool,
    status: &'static str,
    status_text: &'static str,
    counts: bool,
    is_final: bool,
    node: String,
    process: String,
    started_at: u64,
    ended_at: u64,
    phases: Vec<Phase>,
    elapsed_seconds: f64,
    run_seconds: f64,
    process_seconds: f64,
    items: u64,
    succeeded: u64,
    error: Option<Error>,
    /// Its output from Python, the end of each part.
    printed: Vec<Printed>,
    logs: Vec<Log>,
    warnings: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Rejected {
    items: u64,
    /// The first ones, each with its error; a range of items is one.
    shown: Vec<RejectedItem>,
}

#[derive(Debug, Serialize)]
struct RejectedItem {
    items: u64,
    detail: String,
    values: String,
    process: String,
    error: Error,
}

#[derive(Debug, Serialize)]
struct Error {
    category: String,
    message: String,
    traceback: String,
    frames: Vec<Frame>,
    log: String,
    printed: String,
}

#[derive(Debug, Serialize)]
struct Printed {
    path: String,
    from: u64,
    to: u64,
    text: String,
    /// Whether `text` lacks the beginning.
    truncated: bool,
}

#[derive(Debug, Serialize)]
struct Log {
    path: String,
    from: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
struct Rows {
    available: bool,
    reason: Option<String>,
    columns: Option<Vec<String>>,
    cells: Vec<Vec<Option<String>>>,
    text: Option<String>,
    truncated: bool,
    bytes: u64,
}

/// The facts about a mini-batch in the history.
struct FromHistory {
    revision: String,
    state: MiniBatchState,
    deliveries_lost: u32,
    attempts: Vec<AttemptSummary>,
    origin: Origin,
    previous_failed: Option<u64>,
    next_failed: Option<u64>,
}

pub async fn mini_batch(
    State(shared): SharedState,
    view: View,
    Path((_, number)): Path<(String, u64)>,
) -> Answer<Document<MiniBatch>> {
    of(&view, number, &shared.options.flags()).await.map(Document)
}

/// Returns the document of a mini-batch. `flags`: the words of commands that name the target.
pub async fn of(view: &View, number: u64, flags: &str) -> Answer<MiniBatch> {
    let known = view
        .compute(move |view, history| {
            let total = history.mini_batches();
            if number >= total {
                return None;
            }
            let is_failed = |other: &u64| history.state(*other) == MiniBatchState::Failed;
            let mut attempts: Vec<_> =
                history.attempts_of(number).take(ATTEMPTS_MAX).copied().collect();
            attempts.reverse();
            Some(FromHistory {
                revision: view.revision(history),
                state: history.state(number),
                deliveries_lost: history.tally().deliveries_lost(number),
                attempts,
                origin: history.origin(),
                previous_failed: (0..number).rev().find(is_failed),
                next_failed: (number + 1..total).find(is_failed),
            })
        })
        .await?;
    let Some(known) = known else {
        return Err(Refusal::not_found(format!(
            "there is no mini-batch {number} in this job, or none is known yet"
        )));
    };
    let store = &view.snapshot.store;
    let places: Vec<RecordAt> = known.attempts.iter().map(|attempt| attempt.place).collect();
    let records = view.found().recorded_attempts(known.origin, &places).await;
    let descriptor = view.found().descriptor(number).await;
    let logs = store.logs().await.unwrap_or_default();
    let speculative_run = speculative_run::of(view, number, known.state, &known.attempts).await;
    let counting = known.attempts.iter().position(AttemptSummary::counts);
    let counting_record = counting.and_then(|position| records[position].as_ref());
    let rows = rows(view, known.state, counting_record).await;
    let has_rejected = |record: &&RecordedAttempt| {
        record.attempt.status == AttemptStatus::Succeeded
            && record.attempt.succeeded < record.attempt.total
    };
    let rejected = match counting_record.filter(has_rejected) {
        Some(record) => rejected(view, &record.attempt, descriptor.as_ref()).await?,
        None => Rejected::default(),
    };
    let progress = view.snapshot.status.progress.as_ref();
    let waiting = progress
        .and_then(|progress| progress.waiting.iter().find(|wait| wait.mini_batch == Some(number)));
    let running = view.running().iter().find(|running| running.mini_batch == number);
    let last = known.attempts.len().saturating_sub(1);
    let mut printed = Vec::with_capacity(records.len());
    for record in &records {
        printed.push(match record {
            Some(record) => printed_by(view, &record.attempt, &logs).await,
            None => Vec::new(),
        });
    }
    let attempts = known.attempts.iter().zip(&records).zip(printed).enumerate();
    let attempts = attempts.filter_map(|(position, ((attempted, record), printed))| {
        let decides = known.state == MiniBatchState::Failed && position == last;
        Some(attempt(attempted, &record.as_ref()?.attempt, decides, printed, &logs))
    });
    let detail = records.iter().flatten().next_back().map(|record| record.attempt.detail.as_str());
    Ok(MiniBatch {
        revision: known.revision,
        mini_batch: number,
        state: table::word(known.state, running.is_some()),
        tries: known.attempts.last().map_or(0, |attempt| attempt.ordinal),
        deliveries_lost: known.deliveries_lost,
        items: items(descriptor.as_ref(), known.attempts.last(), detail),
        key: descriptor.as_ref().map_or_else(Vec::new, |descriptor| descriptor.key().to_vec()),
        attempts: attempts.collect(),
        speculative_run,
        rejected,
        wait: waiting.map(Wait::from).or_else(|| running.map(Wait::from)),
        rows,
        previous_failed: known.previous_failed,
        next_failed: known.next_failed,
        can_run_again: descriptor.as_ref().is_some_and(engine::can_run_alone),
        test_case: descriptor
            .and_then(|descriptor| test_case(&view.snapshot.spec, &descriptor, flags)),
    })
}

impl From<&ErrorReport> for Error {
    fn from(error: &ErrorReport) -> Self {
        Self {
            category: error.category.clone(),
            message: error.message.clone(),
            frames: frames(&error.traceback),
            traceback: error.traceback.clone(),
            log: error.log.clone(),
            printed: error.printed.clone(),
        }
    }
}

/// Returns the items that a success has rejected.
async fn rejected(
    view: &View,
    success: &protocol::Attempt,
    descriptor: Option<&Descriptor>,
) -> Answer<Rejected> {
    let (store, spec) = (&view.snapshot.store, &view.snapshot.spec);
    let mini_batch = RejectedMiniBatch::of(store, success.clone(), descriptor.cloned()).await?;
    let mut rejected = Rejected::default();
    for reject in mini_batch.rejects(&spec.inputs) {
        rejected.items += reject.items;
        if rejected.shown.len() < REJECTED_MAX {
            rejected.shown.push(RejectedItem {
                items: reject.items,
                detail: reject.detail,
                values: reject.values.to_owned(),
                process: reject.process.to_owned(),
                error: Error::from(&*reject.error),
            });
        }
    }
    Ok(rejected)
}

fn items(
    descriptor: Option<&Descriptor>,
    latest: Option<&AttemptSummary>,
    detail: Option<&str>,
) -> Items {
    let counted = latest.map(|latest| u64::from(latest.items)).filter(|items| *items > 0);
    match descriptor.map(|descriptor| &descriptor.work) {
        Some(Work::Files { paths, .. }) => {
            let shown =
                paths.iter().take(ITEMS_MAX).map(|path| Item { path: path.display(), range: None });
            Items { total: Some(paths.len() as u64), shown: shown.collect(), kind: "files" }
        }
        Some(Work::Rows { blocks, .. }) => {
            let known: Option<u64> = blocks.iter().map(|block| block.range.rows()).sum();
            let shown = blocks.iter().take(ITEMS_MAX).map(|block| {
                let path = block.path.display();
                let detail = block.detail();
                let range = detail
                    .strip_prefix(&*path)
                    .map(|range| range.trim().trim_matches(['(', ')']).to_owned());
                Item { range: range.filter(|range| !range.is_empty()), path }
            });
            Items { total: counted.or(known), shown: shown.collect(), kind: "rows" }
        }
        Some(Work::Rank) => Items { total: counted, shown: vec![], kind: "rank" },
        Some(Work::Planned { .. }) | None => {
            let shown = detail
                .map(|detail| Item { path: detail.to_owned(), range: None })
                .into_iter()
                .collect();
            Items { total: counted, shown, kind: "unknown" }
        }
    }
}

fn attempt(
    attempted: &AttemptSummary,
    recorded: &protocol::Attempt,
    decides: bool,
    printed: Vec<Printed>,
    logs: &[LogFile],
) -> Attempt {
    let (node, process) = (recorded.node.to_string(), recorded.process.to_string());
    let names = [
        recorded.error.as_ref().map(|error| error.log.clone()).unwrap_or_default(),
        format!("user/stdout/{node}/{process}.stdout.txt"),
        format!("user/stderr/{node}/{process}.stderr.txt"),
        format!("user/error/{node}/{process}.txt"),
        format!("sys/node/{node}/{process}.txt"),
    ];
    let mut own: Vec<Log> = Vec::new();
    for path in names {
        if !own.iter().any(|known| known.path == path)
            && logs.iter().any(|file| file.path == path && file.bytes > 0)
        {
            let from = printed.iter().find(|part| part.path == path).map(|part| part.from);
            own.push(Log { path, from });
        }
    }
    Attempt {
        try_number: recorded.try_number,
        copy: recorded.copy,
        status: recorded.status.word(),
        status_text: status_text(recorded.status),
        counts: attempted.counts() || decides,
        is_final: attempted.is_final(),
        node,
        process,
        started_at: recorded.started_at,
        ended_at: attempted.ended_at(),
        phases: phases(recorded),
        elapsed_seconds: valid_seconds(recorded.elapsed_seconds),
        run_seconds: valid_seconds(recorded.run_seconds),
        process_seconds: valid_seconds(recorded.process_seconds),
        items: recorded.total,
        succeeded: recorded.succeeded,
        error: recorded.error.as_deref().map(Error::from),
        printed,
        logs: own,
        warnings: recorded.warnings.iter().map(|warning| warning.message.clone()).collect(),
    }
}

/// Returns the output of an attempt. If logs cannot be read, the page shows the rest.
async fn printed_by(view: &View, attempt: &protocol::Attempt, logs: &[LogFile]) -> Vec<Printed> {
    let mut shown = Vec::new();
    let parts = view.found().printed(attempt, logs).await.unwrap_or_default();
    let bytes_max = PRINTED_BYTES_MAX / parts.len().max(1) as u64;
    for engine::Printed { path, range } in parts {
        let from = range.start.max(range.end.saturating_sub(bytes_max));
        let Ok(read) = view.snapshot.store.log_range(&path, from..range.end).await else {
            continue;
        };
        let (truncated, text) = (from > range.start, String::from_utf8_lossy(&read));
        let text = match text.split_once('\n') {
            // The end of one long line is better than nothing.
            Some((_, whole_lines)) if truncated && !whole_lines.is_empty() => {
                whole_lines.to_owned()
            }
            _ => text.into_owned(),
        };
        shown.push(Printed { path, from: range.start, to: range.end, text, truncated });
    }
    shown
}

fn status_text(status: AttemptStatus) -> &'static str {
    match status {
        AttemptStatus::Succeeded => "succeeded",
        AttemptStatus::RunRaised => "run() raised an exception",
        AttemptStatus::IllegalResult => "run() returned a value that is not a valid result",
        AttemptStatus::RunTimedOut => "run() exceeded its time",
        AttemptStatus::LoadFailed => "the mini-batch could not be read",
        AttemptStatus::LoadTimedOut => "reading the mini-batch took too long",
        AttemptStatus::ProcessDied => "the Python process ended",
        AttemptStatus::LostTooOften => "it was lost with its node too often",
    }
}

async fn rows(view: &View, state: MiniBatchState, record: Option<&RecordedAttempt>) -> Rows {
    let none = |reason: &str| Rows { reason: Some(reason.to_owned()), ..Rows::default() };
    if state != MiniBatchState::Succeeded {
        return none("only a successful attempt has rows");
    }
    let Some(record) = record else {
        return none("they are no longer recorded; the output of the job has them");
    };
    let format = view.snapshot.spec.output.format;
    let (bytes, size) = match &record.attempt.rows {
        RowLocation::None => return none("this job keeps no rows, or they are no longer recorded"),
        RowLocation::Inline => (record.rows.clone(), record.rows.len() as u64),
        RowLocation::Part { name, bytes } => match part(&view.snapshot.store, name).await {
            Some(read) => (read, *bytes),
            None => {
                return none("the parts of a completed job are removed; its output has the rows");
            }
        },
    };
    if format == OutputFormat::Text {
        let mut text =
            String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into_owned();
        let end = text.match_indices('\n').nth(ROWS_MAX - 1).map_or(text.len(), |(at, _)| at + 1);
        text.truncate(end);
        let truncated = text.len() < bytes.len();
        return Rows {
            available: true,
            text: Some(text),
            truncated,
            bytes: size,
            ..Rows::default()
        };
    }
    let is_whole = bytes.len() as u64 >= size;
    let read = tokio::task::spawn_blocking(move || first_stream_rows(&bytes, ROWS_MAX)).await;
    match read {
        Ok(Ok(FirstRows { columns, cells, is_all })) => Rows {
            available: true,
            columns,
            cells,
            truncated: !(is_all && is_whole),
            bytes: size,
            ..Rows::default()
        },
        Ok(Err(error)) => none(&format!("they cannot be shown: {error}")),
        Err(_) => none("they cannot be shown"),
    }
}

/// Reads the beginning of a part.
async fn part(store: &JobStore, name: &str) -> Option<bytes::Bytes> {
    let mut stream = store.part_stream(name).await.ok()?;
    let mut read = bytes::BytesMut::new();
    while read.len() < PART_BYTES_MAX
        && let Some(piece) = stream.next().await.ok()?
    {
        read.extend_from_slice(&piece);
    }
    Some(read.freeze())
}

#[cfg(test)]
mod tests {
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    use super::*;
    use crate::fixtures::{stored, tried};

    #[tokio::test]
    async fn attempts_have_errors_frames_and_rows() {
        let attempts = [tried(0, 1, Succeeded), tried(1, 1, RunRaised), tried(1, 2, Succeeded)];
        let (_folder, view) = stored(&attempts).await;
        let found = of(&view, 1, "").await.expect("it is there");
        assert_eq!((found.state, found.tries, found.attempts.len()), ("succeeded", 2, 2));
        let error = found.attempts[0].error.as_ref().expect("it failed");
        assert_eq!((error.frames.len(), found.attempts[1].counts), (2, true));
        assert_eq!(found.rows.text.as_deref(), Some("row of 1\n"));
        assert_eq!(
            of(&view, 9, "").await.expect_err("none").status,
            axum::http::StatusCode::NOT_FOUND
        );
    }
}
