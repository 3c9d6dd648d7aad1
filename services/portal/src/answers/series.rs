//! Attempts that ended, over time.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use engine::history::History;
use protocol::AttemptStatus;
use serde::{Deserialize, Serialize};

use crate::SharedState;
use crate::document::document;
use crate::error::Answer;
use crate::watched::View;

const POINTS_DEFAULT: usize = 240;
/// The narrowest bin.
const STEP_MILLISECONDS_MIN: u64 = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Wanted {
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

pub async fn series(
    State(shared): SharedState,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer<Response> {
    let view = shared.watched.get(&shared.options.jobs, &id).await?;
    Ok(document(&of(&view, &wanted).await?))
}

pub async fn of(view: &View, wanted: &Wanted) -> Answer<Series> {
    let points = wanted.points.unwrap_or(POINTS_DEFAULT).clamp(10, 1000);
    view.compute(move |view, history| Series { revision: view.revision(history), ..binned(history, points) }).await
}

fn binned(history: &History, points: usize) -> Series {
    let ends = || history.attempts().map(engine::history::Attempted::ended_at);
    let (Some(from), Some(to)) = (history.attempts().map(|attempt| attempt.started_at).min(), ends().max()) else {
        let (succeeded, failed, items) = Default::default();
        return Series { revision: String::new(), from: 0, step_ms: STEP_MILLISECONDS_MIN, succeeded, failed, items };
    };
    let step_ms = nice((to - from) / points as u64 + 1).max(STEP_MILLISECONDS_MIN);
    let count = usize::try_from((to - from) / step_ms + 1).unwrap_or(points);
    let (mut succeeded, mut failed, mut items) = (vec![0; count], vec![0; count], vec![0; count]);
    for attempt in history.attempts() {
        let bin = usize::try_from(attempt.ended_at().saturating_sub(from) / step_ms).unwrap_or(0).min(count - 1);
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
    const STEPS: [u64; 24] = [
        100,
        200,
        500,
        1000,
        2000,
        5000,
        10_000,
        15_000,
        30_000,
        60_000,
        120_000,
        300_000,
        600_000,
        900_000,
        1_800_000,
        3_600_000,
        7_200_000,
        10_800_000,
        21_600_000,
        43_200_000,
        86_400_000,
        172_800_000,
        604_800_000,
        2_592_000_000,
    ];
    STEPS.into_iter().find(|step| *step >= milliseconds).unwrap_or(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{history, tried};
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    #[test]
    fn bins_hold_every_attempt_once() {
        let attempts: Vec<_> =
            (0..1000).map(|n| tried(n, 1, if n % 10 == 0 { RunRaised } else { Succeeded })).collect();
        for points in [10, 97, 1000] {
            let series = binned(&history(&attempts), points);
            let lengths = [series.succeeded.len(), series.failed.len(), series.items.len()];
            assert!(lengths.iter().all(|length| *length == lengths[0] && *length <= points + 1), "{lengths:?}");
            assert_eq!((series.succeeded.iter().sum::<u32>(), series.failed.iter().sum::<u32>()), (900, 100));
            assert_eq!(series.items.iter().sum::<u64>(), 900 * 3);
        }
        assert!(binned(&History::default(), 10).items.is_empty());
    }
}
