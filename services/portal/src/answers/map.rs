//! One byte for each mini-batch: the map of a million of them.

use std::ops::Range;

use axum::extract::Query;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::MiniBatchState;
use engine::history::{AttemptSummary, History};
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::error::{Answer, Refusal};
use crate::watched::View;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ColorBy {
    #[default]
    State,
    Tries,
    Duration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MapQuery {
    pub by: ColorBy,
    pub since: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Map {
    revision: String,
    by: ColorBy,
    total: u64,
    chunks: Vec<Chunk>,
}

#[derive(Debug, Serialize)]
struct Chunk {
    first: u64,
    bytes: String,
}

/// Cells that one answer holds at most. A job of more mini-batches shows the first.
const CELLS_MAX: u64 = 20_000_000;

pub async fn map(view: View, Query(query): Query<MapQuery>) -> Answer<Document<Map>> {
    of(&view, &query).await.map(Document)
}

pub async fn of(view: &View, query: &MapQuery) -> Answer<Map> {
    let by = query.by;
    let since = query.since.as_deref();
    if since.is_some_and(|since| since.is_empty() || since.len() > 64) {
        return Err(Refusal::bad("since is not a revision"));
    }
    let since = since.and_then(|since| view.version_of(since));
    view.compute(move |view, history| {
        let total = history.mini_batches().min(CELLS_MAX);
        let ranges = match since {
            None => std::iter::once(0..total).collect(),
            Some(version) => joined(history.changed_since(version), total),
        };
        let chunk = |range: Range<u64>| Chunk {
            first: range.start,
            bytes: STANDARD.encode(cells(history, by, range)),
        };
        Map {
            revision: view.revision(history),
            by,
            total,
            chunks: ranges.into_iter().map(chunk).collect(),
        }
    })
    .await
}

/// Joins adjacent ranges, and cuts them at the end.
fn joined(ranges: impl Iterator<Item = Range<u64>>, total: u64) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = range.start..range.end.min(total);
        match joined.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

fn cells(history: &History, by: ColorBy, range: Range<u64>) -> Vec<u8> {
    let cell = |mini_batch| match by {
        ColorBy::State => match history.state(mini_batch) {
            MiniBatchState::Pending => 0,
            MiniBatchState::Succeeded => match history.shown(mini_batch) {
                Some(attempt) if attempt.succeeded < attempt.items => 4,
                _ => 1,
            },
            MiniBatchState::Failed => 2,
            MiniBatchState::Retrying => 3,
        },
        ColorBy::Tries => {
            let latest = history.attempts_of(mini_batch).next();
            latest.map_or(0, |latest| u8::try_from(latest.ordinal).unwrap_or(u8::MAX))
        }
        ColorBy::Duration => history.shown(mini_batch).map_or(0, duration),
    };
    range.map(cell).collect()
}

/// Eight steps for each doubling, from one millisecond.
fn duration(attempt: &AttemptSummary) -> u8 {
    let steps = (f64::from(attempt.elapsed_seconds) * 1000.0).max(1.0).log2() * 8.0;
    1 + (steps.round() as u64).min(254) as u8
}

#[cfg(test)]
mod tests {
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    use super::*;
    use crate::fixtures::{history, tried, view};

    #[test]
    fn cell_shows_state_tries_and_duration() {
        let history = history(&[
            tried(0, 1, Succeeded),
            tried(1, 1, RunRaised),
            tried(1, 2, Succeeded),
            tried(3, 1, RunRaised),
        ]);
        assert_eq!(cells(&history, ColorBy::State, 0..5), [4, 4, 0, 3, 0]);
        assert_eq!(cells(&history, ColorBy::Tries, 0..5), [1, 2, 0, 1, 0]);
        let half_a_second = 1 + (500.0_f64.log2() * 8.0).round() as u8;
        assert_eq!(cells(&history, ColorBy::Duration, 0..3), [half_a_second, half_a_second, 0]);
    }

    #[test]
    fn adjacent_ranges_are_joined() {
        let ranges = [0..4096, 4096..8192, 12_288..16_384, 16_384..20_480];
        assert_eq!(joined(ranges.into_iter(), 13_000), [0..8192, 12_288..13_000]);
    }

    #[tokio::test]
    async fn later_answer_holds_only_changes() {
        let history = history(&[tried(0, 1, Succeeded)]);
        let version = history.version();
        let view = view(history);
        let ask = async |since: Option<&str>| {
            let query = MapQuery { since: since.map(str::to_owned), ..MapQuery::default() };
            of(&view, &query).await.expect("an answer").chunks.len()
        };
        assert_eq!(ask(None).await, 1);
        assert_eq!(ask(Some(&format!("test-{version}"))).await, 0);
        assert_eq!(ask(Some("another-1")).await, 1, "of an earlier load of the job");
    }
}
