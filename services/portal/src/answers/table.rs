//! The table of mini-batches: sorted, filtered and paged here, so that the page never holds a million rows.

use std::collections::{HashMap, HashSet};

use axum::extract::Query;
use engine::FoundJob;
use engine::MiniBatchState;
use engine::history::{AttemptSummary, History, Origin, RecordAt, RecordedAttempt};
use protocol::{AttemptStatus, RunningMiniBatch};
use serde::{Deserialize, Serialize};

use super::words::listed;
use crate::document::Document;
use crate::error::Answer;
use crate::watched::View;

/// The word for mini-batches that have succeeded without some of their items.
const PARTIAL: &str = "partial";
const ROWS_DEFAULT: usize = 100;
const ROWS_MAX: usize = 500;
/// Rows whose texts one search reads: here, and in a store, where each read has a price.
const SEARCHED_HERE: usize = 20_000;
const SEARCHED_THERE: usize = 500;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TableQuery {
    pub state: String,
    pub sort: Sort,
    pub order: Option<Order>,
    pub offset: usize,
    pub limit: Option<usize>,
    pub q: String,
    pub first: Option<u64>,
    pub last: Option<u64>,
    pub node: Option<String>,
    pub process: Option<String>,
    pub error: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    #[default]
    MiniBatch,
    State,
    Duration,
    Run,
    Tries,
    Started,
    Items,
    FailedItems,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Asc,
    Desc,
}

#[derive(Debug, Serialize)]
pub struct Table {
    revision: String,
    total: u64,
    matching: usize,
    offset: usize,
    searched_all: bool,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub mini_batch: u64,
    pub state: &'static str,
    tries: u16,
    /// Whether the attempt that stands for it was a copy.
    copy: bool,
    deliveries_lost: u32,
    started_at: Option<u64>,
    seconds: Option<f32>,
    run_seconds: Option<f32>,
    process_seconds: Option<f32>,
    items: Option<u32>,
    items_failed: Option<u32>,
    node: Option<String>,
    process: Option<String>,
    detail: Option<String>,
    error: Option<String>,
}

/// A row before its texts are read.
#[derive(Debug)]
struct Draft {
    row: Row,
    shown: Option<RecordAt>,
    /// The latest attempt that failed.
    failed: Option<RecordAt>,
}

/// Returns the state of a mini-batch in a word. One that has ended may run a second time; then its end says more.
pub fn word(state: MiniBatchState, is_running: bool) -> &'static str {
    match state {
        MiniBatchState::Pending | MiniBatchState::Retrying if is_running => "running",
        MiniBatchState::Pending => "pending",
        MiniBatchState::Retrying => "retrying",
        MiniBatchState::Failed => "failed",
        MiniBatchState::Succeeded => "succeeded",
    }
}

/// Whether a mini-batch has succeeded without some of its items.
fn is_partial(state: MiniBatchState, shown: Option<&AttemptSummary>) -> bool {
    state == MiniBatchState::Succeeded && shown.is_some_and(|shown| shown.succeeded < shown.items)
}

pub async fn table(view: View, Query(query): Query<TableQuery>) -> Answer<Document<Table>> {
    of(&view, query).await.map(Document)
}

pub async fn of(view: &View, query: TableQuery) -> Answer<Table> {
    let limit = query.limit.unwrap_or(ROWS_DEFAULT).clamp(1, ROWS_MAX);
    let states = states(&query.state)?;
    let number: Option<u64> = query.q.trim().parse().ok();
    let texts = [query.q.trim(), query.error.trim()].map(str::to_lowercase);
    let [q, error] = if number.is_some() { [String::new(), texts[1].clone()] } else { texts };
    let is_search = !q.is_empty() || !error.is_empty();
    let offset = query.offset;
    let is_local = view.snapshot.store.folder().is_some();
    let searched = if is_local { SEARCHED_HERE } else { SEARCHED_THERE };
    let (found, total, drafts, revision, origin) = view
        .compute(move |view, history| {
            let running = Running::of(view);
            let mut selected = select(history, &running, &query, &states, number);
            let found = selected.len();
            let (from, to) =
                if is_search { (0, searched) } else { (offset, offset.saturating_add(limit)) };
            let drafts: Vec<_> = page(&mut selected, from, to)
                .map(|number| draft(history, &running, number))
                .collect();
            (found, history.mini_batches(), drafts, view.revision(history), history.origin())
        })
        .await?;
    let job = view.found();
    if !is_search {
        let rows = complete(&job, origin, drafts).await;
        return Ok(Table { revision, total, matching: found, offset, searched_all: true, rows });
    }
    let read = drafts.len();
    let rows = complete(&job, origin, drafts).await;
    let has = |text: &Option<String>, part: &str| {
        text.as_ref().is_some_and(|text| text.to_lowercase().contains(part))
    };
    let matches = |row: &Row| {
        (q.is_empty() || has(&row.detail, &q) || has(&row.error, &q))
            && (error.is_empty() || has(&row.error, &error))
    };
    let rows: Vec<Row> = rows.into_iter().filter(matches).collect();
    let matching = rows.len();
    let rows = rows.into_iter().skip(offset).take(limit).collect();
    Ok(Table { revision, total, matching, offset, searched_all: read == found, rows })
}

/// Returns the rows of these mini-batches.
pub async fn rows(view: &View, mini_batches: Vec<u64>) -> Answer<Vec<Row>> {
    let (drafts, origin) = view
        .compute(move |view, history| {
            let running = Running::of(view);
            let drafts = mini_batches
                .into_iter()
                .map(|number| draft(history, &running, number))
                .collect::<Vec<_>>();
            (drafts, history.origin())
        })
        .await?;
    Ok(complete(&view.found(), origin, drafts).await)
}

fn states(text: &str) -> Answer<HashSet<&'static str>> {
    let all = ["pending", "running", "succeeded", "failed", "retrying", PARTIAL];
    listed(text, "mini-batches", |word| all.into_iter().find(|state| *state == word))
}

/// Returns the selected mini-batches, each with its key to sort by.
fn select(
    history: &History,
    running: &Running,
    query: &TableQuery,
    states: &HashSet<&str>,
    number: Option<u64>,
) -> Vec<(u64, u32)> {
    let total = history.mini_batches().min(u64::from(u32::MAX));
    let (mut first, mut end) =
        (query.first.unwrap_or(0), query.last.map_or(total, |last| last.saturating_add(1)));
    if let Some(number) = number {
        (first, end) = (first.max(number), end.min(number.saturating_add(1)));
    }
    let is_named =
        |asked: &Option<String>, name: &str| asked.as_ref().is_none_or(|asked| asked == name);
    let processes: Option<Vec<bool>> =
        (query.node.is_some() || query.process.is_some()).then(|| {
            let names = history.processes().iter().map(|process| &process.name);
            names
                .map(|name| {
                    is_named(&query.node, &name.node) && is_named(&query.process, &name.process)
                })
                .collect()
        });
    let natural = match query.sort {
        Sort::MiniBatch | Sort::State | Sort::Started => Order::Asc,
        Sort::Duration | Sort::Run | Sort::Tries | Sort::Items | Sort::FailedItems => Order::Desc,
    };
    let is_descending = query.order.unwrap_or(natural) == Order::Desc;
    let mut selected = Vec::new();
    for mini_batch in first..end.min(total) {
        let (state, runs) = (history.state(mini_batch), running.get(mini_batch));
        let shown = history.shown(mini_batch);
        let is_asked = |word: &str| {
            states.contains(word) || states.contains(PARTIAL) && is_partial(state, shown)
        };
        if !states.is_empty() && !is_asked(word(state, runs.is_some())) {
            continue;
        }
        if let Some(processes) = &processes {
            let runs_there = runs.is_some_and(|runs| {
                is_named(&query.node, &runs.node) && is_named(&query.process, &runs.process)
            });
            if !runs_there && !shown.is_some_and(|shown| processes[usize::from(shown.process)]) {
                continue;
            }
        }
        let key = match key(history, query.sort, mini_batch, state, shown, runs) {
            // Mini-batches without a value come last in any order.
            None => u64::MAX,
            Some(key) if is_descending => u64::MAX - 1 - key,
            Some(key) => key,
        };
        selected.push((key, mini_batch as u32));
    }
    selected
}

fn key(
    history: &History,
    sort: Sort,
    mini_batch: u64,
    state: MiniBatchState,
    shown: Option<&AttemptSummary>,
    runs: Option<&RunningMiniBatch>,
) -> Option<u64> {
    // Numbers that are not negative sort like their bits.
    let bits = |seconds: f32| u64::from(seconds.max(0.0).to_bits());
    match sort {
        Sort::MiniBatch => Some(mini_batch),
        Sort::State => Some(match state {
            MiniBatchState::Failed => 0,
            MiniBatchState::Pending | MiniBatchState::Retrying if runs.is_some() => 1,
            MiniBatchState::Retrying => 2,
            MiniBatchState::Succeeded if is_partial(state, shown) => 3,
            MiniBatchState::Succeeded => 4,
            MiniBatchState::Pending => 5,
        }),
        Sort::Duration => shown.map(|shown| bits(shown.elapsed_seconds)),
        Sort::Run => shown.map(|shown| bits(shown.run_seconds)),
        Sort::Tries => history.attempts_of(mini_batch).next().map(|latest| latest.ordinal.into()),
        Sort::Started => {
            let started_at =
                runs.map(|runs| runs.since).or_else(|| shown.map(|shown| shown.started_at));
            started_at.map(|at| at.min(u64::MAX - 2))
        }
        Sort::Items => shown.map(|shown| shown.items.into()),
        Sort::FailedItems => shown.map(|shown| shown.items.saturating_sub(shown.succeeded).into()),
    }
}

/// Returns a page in order. Sorts no more than that.
fn page(selected: &mut [(u64, u32)], from: usize, to: usize) -> impl Iterator<Item = u64> {
    let (from, to) = (from.min(selected.len()), to.min(selected.len()));
    if from < to {
        if to < selected.len() {
            selected.select_nth_unstable(to);
        }
        if from > 0 {
            selected[..to].select_nth_unstable(from);
        }
        selected[from..to].sort_unstable();
    }
    selected[from..to].iter().map(|(_, mini_batch)| u64::from(*mini_batch))
}

fn draft(history: &History, running: &Running, mini_batch: u64) -> Draft {
    let shown = history.shown(mini_batch);
    let latest = history.attempts_of(mini_batch).next();
    let failed =
        history.attempts_of(mini_batch).find(|attempt| attempt.status != AttemptStatus::Succeeded);
    let name = shown.map(|shown| &history.processes()[usize::from(shown.process)].name);
    let state = word(history.state(mini_batch), running.get(mini_batch).is_some());
    let mut row = Row {
        mini_batch,
        state,
        tries: latest.map_or(0, |latest| latest.ordinal),
        copy: shown.is_some_and(AttemptSummary::is_copy),
        deliveries_lost: history.tally().deliveries_lost(mini_batch),
        started_at: shown.map(|shown| shown.started_at),
        seconds: shown.map(|shown| shown.elapsed_seconds),
        run_seconds: shown.map(|shown| shown.run_seconds),
        process_seconds: shown.map(|shown| shown.process_seconds),
        items: shown.map(|shown| shown.items),
        items_failed: shown.map(|shown| shown.items.saturating_sub(shown.succeeded)),
        node: name.map(|name| name.node.clone()),
        process: name.map(|name| name.process.clone()),
        detail: None,
        error: None,
    };
    if let Some(runs) = running.get(mini_batch).filter(|_| state == "running") {
        // The numbers of an earlier try would be read as those of this one.
        (row.seconds, row.run_seconds, row.process_seconds) = (None, None, None);
        (row.started_at, row.node, row.process) =
            (Some(runs.since), Some(runs.node.clone()), Some(runs.process.clone()));
    }
    Draft {
        row,
        shown: shown.map(|attempt| attempt.place),
        failed: failed.map(|attempt| attempt.place),
    }
}

/// The mini-batches that run, by their numbers.
struct Running<'a>(HashMap<u64, &'a RunningMiniBatch>);

impl<'a> Running<'a> {
    fn of(view: &'a View) -> Self {
        // Runs that began first come first, and a copy is not shown beside its original.
        Self(view.running().iter().rev().map(|running| (running.mini_batch, running)).collect())
    }

    fn get(&self, mini_batch: u64) -> Option<&'a RunningMiniBatch> {
        self.0.get(&mini_batch).copied()
    }
}

/// Reads the texts of rows.
async fn complete(job: &FoundJob, origin: Origin, drafts: Vec<Draft>) -> Vec<Row> {
    let other = |draft: &Draft| draft.failed.filter(|failed| Some(*failed) != draft.shown);
    let places: Vec<RecordAt> =
        drafts.iter().flat_map(|draft| [draft.shown, other(draft)]).flatten().collect();
    let mut records = job.recorded_attempts(origin, &places).await.into_iter();
    let mut record_at = |place: Option<RecordAt>| place.and_then(|_| records.next().flatten());
    let error_of = |record: &RecordedAttempt| {
        let error = record.attempt.error.as_deref();
        error.map(|error| one_line(&error.category, &error.message))
    };
    let completed = drafts.into_iter().map(|draft| {
        let (shown, failed) = (record_at(draft.shown), record_at(other(&draft)));
        let error = failed.as_ref().or(shown.as_ref()).and_then(error_of);
        Row { detail: shown.map(|record| record.attempt.detail), error, ..draft.row }
    });
    completed.collect()
}

/// Returns category and message of an error in one line.
pub fn one_line(category: &str, message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    match (category.is_empty(), message.is_empty()) {
        (_, true) => category.to_owned(),
        (true, false) => message.to_owned(),
        (false, false) => format!("{category}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    use super::*;
    use crate::fixtures::{history, stored, tried};

    fn numbers(history: &History, query: &TableQuery, from: usize, to: usize) -> Vec<u64> {
        let states = states(&query.state).expect("known");
        page(&mut select(history, &Running(HashMap::new()), query, &states, None), from, to)
            .collect()
    }

    fn jobs_history() -> History {
        let mut attempts: Vec<_> = (0..100).map(|n| tried(n, 1, Succeeded)).collect();
        for (number, seconds) in [(7, 9.0), (8, 0.25), (50, 3.0)] {
            attempts[number].elapsed_seconds = seconds;
        }
        attempts.push(tried(100, 1, RunRaised));
        attempts.push(tried(102, 1, RunRaised));
        attempts.last_mut().expect("one").is_final = true;
        history(&attempts)
    }

    #[test]
    fn pages_are_those_of_the_whole_sorted() {
        let history = jobs_history();
        for sort in [
            Sort::MiniBatch,
            Sort::State,
            Sort::Duration,
            Sort::Tries,
            Sort::Started,
            Sort::FailedItems,
        ] {
            for order in [None, Some(Order::Asc), Some(Order::Desc)] {
                let query = TableQuery { sort, order, ..TableQuery::default() };
                let whole = numbers(&history, &query, 0, 1000);
                assert_eq!(whole.len(), 103, "{sort:?}");
                let paged: Vec<u64> =
                    (0..11).flat_map(|n| numbers(&history, &query, n * 10, n * 10 + 10)).collect();
                assert_eq!(paged, whole, "{sort:?} {order:?}");
            }
        }
        let slowest = TableQuery { sort: Sort::Duration, ..TableQuery::default() };
        assert_eq!(numbers(&history, &slowest, 0, 2), [7, 50]);
        let slowest_reversed =
            TableQuery { sort: Sort::Duration, order: Some(Order::Asc), ..TableQuery::default() };
        assert_eq!(numbers(&history, &slowest_reversed, 0, 1), [8]);
        assert_eq!(numbers(&history, &slowest_reversed, 102, 103), [101], "it has no duration");
        let failed_first = TableQuery { sort: Sort::State, ..TableQuery::default() };
        assert_eq!(numbers(&history, &failed_first, 0, 2), [102, 100]);
    }

    #[test]
    fn filters_select() {
        let history = jobs_history();
        let by_state = |state: &str| {
            numbers(&history, &TableQuery { state: state.into(), ..TableQuery::default() }, 0, 1000)
        };
        assert_eq!(
            (by_state("failed"), by_state("retrying"), by_state("pending")),
            (vec![102], vec![100], vec![101])
        );
        assert_eq!(by_state("failed,pending"), [101, 102]);
        let range = TableQuery { first: Some(5), last: Some(7), ..TableQuery::default() };
        assert_eq!(numbers(&history, &range, 0, 10), [5, 6, 7]);
        let process = TableQuery { process: Some("process001".into()), ..TableQuery::default() };
        assert!(numbers(&history, &process, 0, 1000).iter().all(|number| number % 2 == 1));
        assert!(states("gone").is_err());
    }

    #[tokio::test]
    async fn texts_are_read_and_searched() {
        let mut attempts: Vec<_> = (0..20).map(|n| tried(n, 1, Succeeded)).collect();
        attempts.push(tried(20, 1, RunRaised));
        attempts.push(tried(20, 2, Succeeded));
        let (_folder, view) = stored(&attempts).await;
        let find = async |q: &str, error: &str| {
            let table =
                of(&view, TableQuery { q: q.into(), error: error.into(), ..TableQuery::default() })
                    .await
                    .expect("found");
            assert_eq!(table.matching, table.rows.len());
            table.rows
        };
        assert_eq!(find("", "").await.len(), 21);
        let rows = find("in/7.", "").await;
        assert_eq!(
            (rows.len(), rows[0].mini_batch, rows[0].detail.as_deref()),
            (1, 7, Some("/in/7.<b>png"))
        );
        assert_eq!(find("7", "").await.len(), 1, "a number is that of a mini-batch");
        let rows = find("", "BAD").await;
        assert_eq!((rows.len(), rows[0].error.as_deref()), (1, Some("ValueError: bad value")));
    }
}
