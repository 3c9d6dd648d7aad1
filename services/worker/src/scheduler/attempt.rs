//! The record of an attempt, and whether another try follows.

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{Attempt, AttemptStatus, Descriptor, Ending, Phases, Rows, TableForm, WaitTimes};
use rustc_hash::FxHashMap;

use super::rejects::rejected;
use super::{ProcessId, Timestamp};
use crate::lease::LeaseId;
use crate::prepare::Prepared;

/// Most failed tries whose end a node remembers until the next try. If another node makes that try, the entry stays
/// unread.
const TRIED_MAX: usize = 10_000;

/// The mini-batches whose last try failed here, and which will be tried again.
#[derive(Debug, Default)]
pub(super) struct PreviousTries(FxHashMap<u64, LastTry>);

#[derive(Debug)]
struct LastTry {
    tries_spent: u32,
    ended: Instant,
    /// How often this node left the next try to others.
    left: u32,
}

impl PreviousTries {
    /// Notes that a try has ended, before the next one.
    pub(super) fn ended(&mut self, next: &Descriptor, now: Instant) {
        if self.0.len() < TRIED_MAX {
            let last = LastTry { tries_spent: next.tries_spent, ended: now, left: 0 };
            self.0.insert(next.mini_batch, last);
        }
    }

    /// Returns when the try before this one ended, if it was made here, and forgets it.
    pub(super) fn take(&mut self, next: &Descriptor) -> Option<Instant> {
        if next.copy || next.tries_spent == 0 {
            return None;
        }
        let LastTry { tries_spent, ended, .. } = self.0.remove(&next.mini_batch)?;
        (tries_spent == next.tries_spent).then_some(ended)
    }

    /// Leaves a try to other nodes, but not more often than this. Returns whether it does.
    pub(super) fn leave(&mut self, next: &Descriptor, left_max: u32) -> bool {
        let last = self.0.get_mut(&next.mini_batch);
        let Some(last) =
            last.filter(|last| last.tries_spent == next.tries_spent && last.left < left_max)
        else {
            return false;
        };
        last.left += 1;
        true
    }
}

/// A mini-batch whose attempt has just ended.
pub(crate) struct EndedAttempt {
    pub descriptor: Descriptor,
    /// Deliveries lost before this one.
    pub deliveries_lost: u32,
    pub prepared: Prepared,
    /// When it was received, or the try before it ended on this node.
    pub received: Instant,
    /// How long its preparation took.
    pub preparation: Duration,
    pub began: Timestamp,
    /// How long it waited for limits and services.
    pub waited: WaitTimes,
}

impl EndedAttempt {
    /// Returns the row of a mini-batch that has only one, by its position in the table.
    pub(super) fn only_row(&self) -> Option<u64> {
        (self.prepared.total == 1).then_some(0)
    }
}

/// The outcome of an attempt, with the next try if one follows.
#[derive(Debug)]
pub struct Outcome {
    /// If it is lost by now, the agent announces nothing.
    pub lease: LeaseId,
    /// The process that made the attempt; `None`: no process received the mini-batch.
    pub process: Option<ProcessId>,
    /// The announcer decides where its rows go. `traceparent` is that of the mini-batch.
    pub attempt: Attempt,
    pub rows: Bytes,
    pub next_try: Option<Descriptor>,
    /// Whether the mini-batch has checkpoints, which are superfluous once a success is announced.
    pub has_checkpoints: bool,
    /// The mini-batch, if rows of a table are rejected, and how the script got them: the announcer names their places in
    /// files.
    pub of_rows: Option<Box<(Descriptor, TableForm)>>,
}

/// Returns the mini-batch if it has rows, which an attempt that ended like this may have rejected.
pub(super) fn of_rows(
    descriptor: &Descriptor,
    ending: &Ending,
    takes: TableForm,
) -> Option<Box<(Descriptor, TableForm)>> {
    let rejects_any = ending.status != AttemptStatus::Succeeded || !ending.failed_items.is_empty();
    (rejects_any && matches!(descriptor.work, protocol::Work::Rows { .. }))
        .then(|| Box::new((descriptor.clone(), takes)))
}

/// Returns the attempt as it is announced, and the descriptor of the next try if another follows: after less than
/// `tries_max`, or on other nodes. The process is empty if none has received the mini-batch.
pub(crate) fn conclude(
    attempted: EndedAttempt,
    [node, process]: [&str; 2],
    ending: Ending,
    tries_max: u32,
    now: Timestamp,
) -> (Attempt, Option<Descriptor>) {
    let EndedAttempt {
        descriptor,
        deliveries_lost,
        prepared,
        received,
        preparation,
        began,
        waited: waits,
    } = attempted;
    let try_number = descriptor.tries_spent.saturating_add(1);
    let succeeded = ending.status == AttemptStatus::Succeeded;
    let is_final =
        succeeded || try_number >= tries_max || ending.status == AttemptStatus::LostTooOften;
    let elapsed = now.instant.duration_since(began.instant).as_secs_f64();
    let (load_seconds, run_seconds) = match ending.status {
        // The process could no longer report it.
        AttemptStatus::RunTimedOut | AttemptStatus::ProcessDied => {
            let load_seconds = ending.load_seconds.min(elapsed);
            (load_seconds, elapsed - load_seconds)
        }
        AttemptStatus::LoadTimedOut => (elapsed, 0.0),
        _ => (ending.load_seconds, ending.run_seconds),
    };
    let waited = began.instant.duration_since(received).saturating_sub(preparation);
    let warnings_total = prepared.warnings.total + ending.warnings.len() as u64;
    let mut warnings = prepared.warnings.first;
    warnings.extend(ending.warnings);
    let returned = if succeeded { ending.returned.min(prepared.passed) } else { 0 };
    let without_result = if succeeded { prepared.passed - returned } else { 0 };
    let attempt = Attempt {
        mini_batch: descriptor.mini_batch,
        try_number,
        round: descriptor.again.as_ref().map_or(0, |again| again.round),
        deliveries_lost,
        node: node.into(),
        process: process.into(),
        status: ending.status,
        is_final,
        total: prepared.total,
        succeeded: returned,
        rows: Rows::None,
        columns: ending.columns,
        started_at: began.milliseconds,
        elapsed_seconds: elapsed.max(load_seconds + run_seconds),
        process_seconds: ending.process_seconds,
        run_seconds,
        phases: Phases::new(waited.as_secs_f64(), preparation.as_secs_f64(), load_seconds),
        error: ending.error.filter(|_| !succeeded).map(Box::new),
        warnings,
        warnings_total,
        warning_kinds: prepared.warnings.kinds,
        rejected: rejected(ending.failed_items, without_result, |item| {
            descriptor.item_detail(item)
        }),
        rejected_part: None,
        unread: if succeeded { prepared.unread } else { Vec::new() },
        pieces: ending.pieces,
        extra_runs: 0,
        items_kept: ending.items_kept.min(returned),
        waited: waits,
        values: String::new(),
        copy: descriptor.copy,
        asked_limits: false,
        detail: descriptor.detail(),
        traceparent: descriptor.traceparent,
    };
    let next_try = (!is_final && !descriptor.copy).then(|| {
        let mut failed_on = descriptor.failed_on;
        if !failed_on.iter().any(|failed| failed == node) {
            failed_on.push(node.to_owned());
        }
        Descriptor { tries_spent: try_number, deliveries_lost, failed_on, ..descriptor }
    });
    (attempt, next_try)
}

#[cfg(test)]
mod tests {
    use protocol::{ErrorReport, FailedItems, Work};

    use super::*;
    use crate::scheduler::tests::{self, moment};

    fn attempted(tries_spent: u32) -> EndedAttempt {
        let paths = vec!["/a".into(), "/b".into()];
        let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
        let descriptor = Descriptor { tries_spent, ..tests::descriptor(7, work) };
        tests::attempted(descriptor, moment())
    }

    const WORKER: [&str; 2] = ["0", "process000"];

    #[test]
    fn failed_try_is_followed_by_another_until_they_are_spent() {
        for (tries_spent, last) in [(0, false), (1, false), (2, true)] {
            let ending = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
            let (attempt, next) = conclude(attempted(tries_spent), WORKER, ending, 3, moment());
            assert_eq!((attempt.try_number, attempt.is_final), (tries_spent + 1, last));
            let next = next.map(|next| (next.tries_spent, next.deliveries_lost));
            assert_eq!(next, (!last).then_some((tries_spent + 1, 2)));
            assert_eq!((attempt.total, attempt.failed()), (2, 2));
        }
        let ending = Ending::failed(AttemptStatus::LostTooOften, ErrorReport::default());
        let (attempt, next) = conclude(attempted(0), WORKER, ending, 3, moment());
        assert_eq!((attempt.is_final, next), (true, None));
    }

    #[test]
    fn result_longer_than_its_input_counts_as_long_as_its_input() {
        for (returned, succeeded) in [(0, 0), (1, 1), (2, 2), (9, 2)] {
            let (attempt, next) =
                conclude(attempted(0), WORKER, Ending { returned, ..Ending::empty() }, 3, moment());
            assert_eq!((attempt.total, attempt.succeeded, next), (2, succeeded, None));
        }
    }

    #[test]
    fn failed_items_of_a_success_are_rejected() {
        let failed = |(item, status)| {
            let error = ErrorReport { category: "KeyError".into(), ..ErrorReport::default() };
            FailedItems { item, items: 1, status, error }
        };
        for status in [AttemptStatus::IllegalResult, AttemptStatus::RunRaised] {
            let failed_items = [(1, status), (2, status)].map(failed).to_vec();
            let ending =
                Ending { returned: 1, failed_items, pieces: vec![(0, 5)], ..Ending::empty() };
            let (attempt, next) = conclude(attempted(0), WORKER, ending, 3, moment());
            assert_eq!(
                (attempt.total, attempt.succeeded, attempt.is_final, next),
                (2, 1, true, None)
            );
            let [rejected] = &attempt.rejected[..] else {
                panic!("no more than have no result: {attempt:?}")
            };
            assert_eq!((rejected.item, rejected.items, rejected.detail.as_str()), (1, 1, "/b"));
            assert_eq!((rejected.status, rejected.error.category.as_str()), (status, "KeyError"));
            assert_eq!((rejected.run.as_ref(), attempt.pieces), (None, vec![(0, 5)]));
        }
    }

    #[test]
    fn killed_run_lasted_from_its_start_to_its_kill() {
        for (status, seconds) in
            [(AttemptStatus::RunTimedOut, 5.0), (AttemptStatus::RunRaised, 0.0)]
        {
            let began = moment();
            let ending = Ending::failed(status, ErrorReport::default());
            let ended = Timestamp { instant: began.instant + Duration::from_secs(5), ..began };
            let (attempt, _) =
                conclude(EndedAttempt { began, ..attempted(0) }, WORKER, ending, 3, ended);
            assert_eq!((attempt.run_seconds, attempt.elapsed_seconds), (seconds, 5.0));
        }
    }

    #[test]
    fn phases_of_an_attempt_add_up() {
        use AttemptStatus::{LoadFailed, LoadTimedOut, ProcessDied, RunTimedOut, Succeeded};
        // It was received at 0 s, prepared from 1 s to 4 s, handed over at 6 s, and ended at 16 s.
        for (status, [load, run], [loaded, ran, reported]) in [
            (Succeeded, [2.0, 5.0], [2.0, 5.0, 3.0]),
            (LoadFailed, [9.0, 0.0], [9.0, 0.0, 1.0]),
            (LoadTimedOut, [0.0, 0.0], [10.0, 0.0, 0.0]),
            (RunTimedOut, [2.0, 0.0], [2.0, 8.0, 0.0]),
            (ProcessDied, [f64::INFINITY, 0.0], [10.0, 0.0, 0.0]),
        ] {
            let received = Instant::now();
            let after = |seconds| Timestamp {
                instant: received + Duration::from_secs(seconds),
                milliseconds: 0,
            };
            let (began, preparation) = (after(6), Duration::from_secs(3));
            let ending = Ending { status, load_seconds: load, run_seconds: run, ..Ending::empty() };
            let attempted = EndedAttempt { received, preparation, began, ..attempted(0) };
            let (attempt, _) = conclude(attempted, WORKER, ending, 3, after(16));
            assert_eq!(attempt.phases, Phases::new(3.0, 3.0, loaded), "{status:?}");
            assert_eq!((attempt.elapsed_seconds, attempt.run_seconds), (10.0, ran), "{status:?}");
            assert_eq!(attempt.phases.reported_seconds(10.0, ran), reported, "{status:?}");
        }
    }
}
