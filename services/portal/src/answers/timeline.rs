//! Processes as rows, attempts as bars: shows gaps, stragglers and durations.

use std::collections::{HashMap, HashSet};

use axum::extract::Query;
use engine::history::{AttemptSummary, History};
use protocol::{AttemptStatus, RunningMiniBatch, milliseconds_since_epoch};
use serde::{Deserialize, Serialize};

use super::table::{Row, rows};
use crate::attempt_statistics::Percentiles;
use crate::document::Document;
use crate::error::Answer;
use crate::watched::View;

const BARS_DEFAULT: usize = 4000;
const BINS: u64 = 400;
/// The status of a bar of a mini-batch that runs.
const RUNNING: u8 = 5;
/// Processes that are drawn; a job of more shows the first.
const PROCESSES_MAX: usize = 2000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TimelineQuery {
    from: Option<u64>,
    to: Option<u64>,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
pub struct Timeline {
    revision: String,
    from: u64,
    to: u64,
    now: u64,
    processes: Vec<Process>,
    bars: Option<Bars>,
    bins: Option<Bins>,
    attempts: usize,
    percentiles: Vec<Percentiles>,
    slowest: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Process {
    node: String,
    process: String,
    attempts: u64,
    failed: u64,
    busy_seconds: f64,
}

#[derive(Debug, Default, Serialize)]
struct Bars {
    process: Vec<usize>,
    mini_batch: Vec<u32>,
    start: Vec<i64>,
    end: Vec<i64>,
    loaded: Vec<f32>,
    run: Vec<f32>,
    status: Vec<u8>,
    /// Whether it was a copy.
    copy: Vec<bool>,
}

#[derive(Debug, Serialize)]
struct Bins {
    step_ms: u64,
    busy: Vec<Vec<f32>>,
    failed: Vec<Vec<u32>>,
}

pub async fn timeline(
    view: View,
    Query(query): Query<TimelineQuery>,
) -> Answer<Document<Timeline>> {
    of(&view, query).await.map(Document)
}

pub async fn of(view: &View, query: TimelineQuery) -> Answer<Timeline> {
    let (mut timeline, numbers) = view
        .compute(move |view, history| {
            let (percentiles, slowest) = {
                let mut measured = view.measured();
                measured.update(history);
                (measured.percentiles(), measured.slowest())
            };
            let drawn = drawn(history, view.running(), milliseconds_since_epoch(), &query);
            (Timeline { revision: view.revision(history), percentiles, ..drawn }, slowest)
        })
        .await?;
    timeline.slowest = rows(view, numbers).await?;
    Ok(timeline)
}

fn drawn(
    history: &History,
    running: &[RunningMiniBatch],
    now: u64,
    query: &TimelineQuery,
) -> Timeline {
    let worked = || history.processes().iter().filter(|process| process.attempts > 0);
    let began = running.iter().map(|running| running.since).min();
    let started = worked().map(|process| process.first_at).chain(began).min();
    // A quick attempt may begin and end in the last millisecond.
    let ended =
        worked().map(|process| process.last_at.saturating_add(1)).chain(began.map(|_| now)).max();
    let from = query.from.or(started).unwrap_or_default();
    let to = query.to.or(ended).unwrap_or_default().max(from.saturating_add(1));
    let open = Open::of(history, running);
    let (order, places) = ordered(history, &open);
    let is_inside =
        |attempt: &&AttemptSummary| attempt.started_at < to && attempt.ended_at() >= from;
    let is_whole = query.from.is_none() && query.to.is_none();
    let attempts = if is_whole {
        history.attempts_kept()
    } else {
        history.attempts().filter(is_inside).count()
    };
    let limit = query.limit.unwrap_or(BARS_DEFAULT).clamp(100, 20_000);
    let inside = || {
        let placed = history.attempts().filter(is_inside);
        placed.filter_map(|attempt| Some((places[usize::from(attempt.process)]?, attempt)))
    };
    let (mut bars, mut bins) = (None, None);
    if attempts <= limit {
        let mut all = Bars::default();
        let after = |time: u64| {
            i64::try_from(time).unwrap_or(i64::MAX) - i64::try_from(from).unwrap_or(i64::MAX)
        };
        for (process, attempt) in inside() {
            all.process.push(process);
            all.mini_batch.push(attempt.mini_batch);
            all.start.push(after(attempt.started_at));
            all.end.push(after(attempt.ended_at()));
            all.loaded.push(attempt.phases.loaded_seconds);
            all.run.push(attempt.run_seconds);
            all.status.push(status(attempt));
            all.copy.push(attempt.is_copy());
        }
        for (position, running) in &open.0 {
            let Some(process) = places[*position].filter(|_| running.since < to && now >= from)
            else {
                continue;
            };
            all.process.push(process);
            all.mini_batch.push(u32::try_from(running.mini_batch).unwrap_or(u32::MAX));
            all.start.push(after(running.since));
            all.end.push(after(now.max(running.since)));
            all.loaded.push(0.0);
            all.run.push(0.0);
            all.status.push(RUNNING);
            all.copy.push(false);
        }
        bars = Some(all);
    } else {
        let step_ms = ((to - from) / BINS).max(1);
        let count = usize::try_from((to - from).div_ceil(step_ms)).unwrap_or(1).max(1);
        let mut busy = vec![vec![0.0_f32; count]; order.len()];
        let mut failed = vec![vec![0; count]; order.len()];
        let bin_of = |at: u64| usize::try_from(at / step_ms).unwrap_or(0).min(count - 1);
        let mut add = |process: usize, start: u64, end: u64| {
            let (start, end) = (start.max(from) - from, end.min(to).saturating_sub(from));
            let first = bin_of(start);
            for (bin, share) in busy[process][first..=bin_of(end).max(first)].iter_mut().enumerate()
            {
                let bin_start = ((first + bin) as u64).saturating_mul(step_ms);
                let overlap =
                    end.min(bin_start.saturating_add(step_ms)).saturating_sub(start.max(bin_start));
                *share += overlap as f32 / step_ms as f32;
            }
            bin_of(end)
        };
        for (process, attempt) in inside() {
            let last = add(process, attempt.started_at, attempt.ended_at());
            failed[process][last] += u32::from(attempt.status != AttemptStatus::Succeeded);
        }
        for (position, running) in
            open.0.iter().filter(|(_, running)| running.since < to && now >= from)
        {
            if let Some(process) = places[*position] {
                add(process, running.since, now);
            }
        }
        // Prepared attempts of one process may overlap.
        busy.iter_mut()
            .flatten()
            .for_each(|share| *share = (share.min(1.0) * 1000.0).round() / 1000.0);
        bins = Some(Bins { step_ms, busy, failed });
    }
    let processes = order.iter().map(|position| {
        let process = &history.processes()[*position];
        Process {
            node: process.name.node.clone(),
            process: process.name.process.clone(),
            attempts: process.attempts,
            failed: process.failed,
            busy_seconds: process.busy_seconds,
        }
    });
    Timeline {
        revision: String::new(),
        from,
        to,
        now,
        processes: processes.collect(),
        bars,
        bins,
        attempts,
        percentiles: Vec::new(),
        slowest: Vec::new(),
    }
}

/// The mini-batches that run, with the positions of their processes.
struct Open<'a>(Vec<(usize, &'a RunningMiniBatch)>);

impl<'a> Open<'a> {
    fn of(history: &History, running: &'a [RunningMiniBatch]) -> Self {
        let names = history.processes().iter().map(|process| &process.name).enumerate();
        let positions: HashMap<(&str, &str), usize> =
            names.map(|(position, name)| ((&*name.node, &*name.process), position)).collect();
        let placed = |running: &'a RunningMiniBatch| {
            Some((*positions.get(&(&*running.node, &*running.process))?, running))
        };
        Self(running.iter().filter_map(placed).collect())
    }
}

/// Returns the positions of the processes that are drawn, sorted by name; and for each position its place among them.
fn ordered(history: &History, open: &Open) -> (Vec<usize>, Vec<Option<usize>>) {
    let processes = history.processes();
    let runs: HashSet<usize> = open.0.iter().map(|(position, _)| *position).collect();
    let has_work = |position: &usize| processes[*position].attempts > 0 || runs.contains(position);
    let mut order: Vec<usize> = (0..processes.len()).filter(has_work).collect();
    order.sort_by(|one, other| {
        let name = |position: &usize| {
            (&processes[*position].name.node, &processes[*position].name.process)
        };
        name(one).cmp(&name(other))
    });
    order.truncate(PROCESSES_MAX);
    let mut places = vec![None; processes.len()];
    order.iter().enumerate().for_each(|(place, position)| places[*position] = Some(place));
    (order, places)
}

fn status(attempt: &AttemptSummary) -> u8 {
    match attempt.status {
        AttemptStatus::Succeeded => 0,
        AttemptStatus::RunTimedOut | AttemptStatus::LoadTimedOut => 3,
        AttemptStatus::ProcessDied | AttemptStatus::LostTooOften => 4,
        _ if attempt.is_final() => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    use super::*;
    use crate::fixtures::{history, tried};

    #[test]
    fn many_attempts_become_bins() {
        let attempts: Vec<_> =
            (0..1000).map(|n| tried(n, 1, if n == 5 { RunRaised } else { Succeeded })).collect();
        let history = history(&attempts);
        let few = drawn(
            &history,
            &[],
            0,
            &TimelineQuery { limit: Some(20_000), ..TimelineQuery::default() },
        );
        let bars = few.bars.expect("all of them");
        assert_eq!(
            (bars.process.len(), bars.status.iter().filter(|status| **status == 1).count()),
            (1000, 1)
        );
        let many = drawn(
            &history,
            &[],
            0,
            &TimelineQuery { limit: Some(100), ..TimelineQuery::default() },
        );
        let bins = many.bins.expect("too many");
        assert_eq!((bins.busy.len(), bins.failed.iter().flatten().sum::<u32>()), (2, 1));
        assert!(bins.busy.iter().flatten().all(|share| (0.0..=1.0).contains(share)));
        // Each process works half a second, every half second.
        assert!(bins.busy[0][10..100].iter().all(|share| *share > 0.9), "{:?}", bins.busy[0]);
        let window = drawn(
            &history,
            &[],
            0,
            &TimelineQuery { from: Some(many.from), to: Some(many.from + 1000), limit: None },
        );
        assert_eq!(window.attempts, 4);
    }

    #[test]
    fn running_attempts_are_drawn_until_now() {
        let history = history(&[tried(0, 1, Succeeded)]);
        let name = &history.processes()[0].name;
        let running = |process: &str, since| RunningMiniBatch {
            mini_batch: 7,
            node: name.node.clone(),
            process: process.to_owned(),
            phase: protocol::SlotPhase::Run,
            since,
        };
        let began = history.processes()[0].last_at + 100;
        let open = [running(&name.process, began), running("of which no event has arrived", began)];
        let drawn = drawn(&history, &open, began + 2000, &TimelineQuery::default());
        let bars = drawn.bars.expect("two");
        assert_eq!(
            (bars.status, bars.mini_batch, drawn.to),
            (vec![0, RUNNING], vec![0, 7], began + 2000)
        );
        assert_eq!(bars.end[1] - bars.start[1], 2000);
    }
}
