//! Attempts that ended, over time.

use axum::extract::Query;
use engine::history::History;
use protocol::AttemptStatus;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::error::Answer;
use crate::watched::View;

const POINTS_DEFAULT: usize = 240;
/// The narrowest bin.
const STEP_MILLISECONDS_MIN: u64 = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SeriesQuery {
    points: Option<usize>,
}

#[derive(Debug, Serialize)]
pub struct Series {
    revision: String,
    from: u64,
    step_ms: u64,
    succeeded: Vec<u32>,
    failed: Vec<u32>,
    items: Vec<u64>,
}

pub async fn series(view: View, Query(query): Query<SeriesQuery>) -> Answer<Document<Series>> {
    of(&view, &query).await.map(Document)
}

pub async fn of(view: &View, query: &SeriesQuery) -> Answer<Series> {
    let points = query.points.unwrap_or(POINTS_DEFAULT).clamp(10, 1000);
    view.compute(move |view, history| Series {
        revision: view.revision(history),
        ..binned(history, points)
    })
    .await
}

fn binned(history: &History, points: usize) -> Series {
    let ends = || history.attempts().map(engine::history::AttemptSummary::ended_at);
    let (Some(from), Some(to)) =
        (history.attempts().map(|attempt| attempt.started_at).min(), ends().max())
    else {
        let (succeeded, failed, items) = Default::default();
        return Series {
            revision: String::new(),
            from: 0,
            step_ms: STEP_MILLISECONDS_MIN,
            succeeded,
            failed,
            items,
        };
    };
    let step_ms = nice((to - from) / points as u64 + 1).max(STEP_MILLISECONDS_MIN);
    let count = usize::try_from((to - from) / step_ms + 1).unwrap_or(points);
    let (mut succeeded, mut failed, mut items) = (vec![0; count], vec![0; count], vec![0; count]);
    for attempt in history.attempts() {
        let bin = usize::try_from(attempt.ended_at().saturating_sub(from) / step_ms)
            .unwrap_or(0)
            .min(count - 1);
        match attempt.status {
            AttemptStatus::Succeeded => {
                succeeded[bin] += 1;
                if attempt.counts() {
                    items[bin] += u64::from(attempt.succeeded);
                }
            }
            _ => failed[bin] += 1,
        }
    }
    Series { revision: String::new(), from, step_ms, succeeded, failed, items }
}

/// Returns the next step that people read easily: 100 ms, 200 ms, 500 ms, 1 s, … 1 min, 2 min, 5 min, …
fn nice(milliseconds: u64) -> u64 {
    const DAY: u64 = 86_400;
    const SECONDS: [u64; 21] = [
        1,
        2,
        5,
        10,
        15,
        30,
        60,
        120,
        300,
        600,
        900,
        1800,
        3600,
        7200,
        10_800,
        21_600,
        43_200,
        DAY,
        2 * DAY,
        7 * DAY,
        30 * DAY,
    ];
    let steps = [100, 200, 500].into_iter().chain(SECONDS.map(|seconds| seconds * 1000));
    steps.into_iter().find(|step| *step >= milliseconds).unwrap_or(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{history, tried};
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    #[test]
    fn bins_hold_every_attempt_once() {
        let attempts: Vec<_> = (0..1000)
            .map(|n| tried(n, 1, if n % 10 == 0 { RunRaised } else { Succeeded }))
            .collect();
        for points in [10, 97, 1000] {
            let series = binned(&history(&attempts), points);
            let lengths = [series.succeeded.len(), series.failed.len(), series.items.len()];
            assert!(
                lengths.iter().all(|length| *length == lengths[0] && *length <= points + 1),
                "{lengths:?}"
            );
            assert_eq!(
                (series.succeeded.iter().sum::<u32>(), series.failed.iter().sum::<u32>()),
                (900, 100)
            );
            assert_eq!(series.items.iter().sum::<u64>(), 900 * 3);
        }
        assert!(binned(&History::default(), 10).items.is_empty());
    }
}
