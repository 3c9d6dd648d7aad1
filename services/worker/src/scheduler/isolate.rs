//! Which mini-batches are isolated, and what follows from each range.

use std::time::Duration;

use bytes::Bytes;
use protocol::{AttemptStatus, Ending, FailedRun, Isolate, OutputAction, OutputFormat, Payload, Warning};

use super::isolation::{Isolated, Isolation};
use super::mini_batch::{MiniBatch, Stage};
use super::pipe::Handed;
use super::{Action, Attempted, Moment, Outcome, ProcessId, Scheduler, conclude};
use crate::lease::LeaseId;

/// Mini-batches in a row of which no range succeeds, after which a node isolates no more.
const HOPELESS_MAX: u32 = 3;
/// Runs of ranges in a row that fail, after which it does the same: many mini-batches may be isolated side by side.
const VAIN_RUNS_MAX: u32 = 256;

/// Whether an attempt was ended by the script, or by one of its items.
fn is_of_user_code(status: AttemptStatus) -> bool {
    matches!(
        status,
        AttemptStatus::RunRaised
            | AttemptStatus::IllegalResult
            | AttemptStatus::RunTimedOut
            | AttemptStatus::ProcessDied
    )
}

/// The isolations of a node.
#[derive(Debug, Default)]
pub(super) struct Isolations {
    /// Mini-batches in a row of which no range has succeeded.
    hopeless: u32,
    /// Runs of ranges in a row that have failed.
    vain_runs: u32,
    /// Attempts in a row that gave up because their items fail one by one.
    given_up: u32,
    has_told: bool,
    /// The mini-batches that are isolated; some may be gone.
    leases: Vec<LeaseId>,
}

impl Isolations {
    fn are_over(&self) -> bool {
        self.hopeless >= HOPELESS_MAX || self.vain_runs >= VAIN_RUNS_MAX || self.are_items_doubted()
    }

    /// Whether a process should give a mini-batch up after a few failed items. The next success ends the doubt.
    pub(super) fn are_items_doubted(&self) -> bool {
        self.given_up >= HOPELESS_MAX
    }

    pub(super) fn has_any(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Whether a mini-batch is handed over in ranges.
    pub(super) fn has(&self, lease: LeaseId) -> bool {
        self.leases.contains(&lease)
    }

    /// Notes the end of an attempt whose process tries item by item. Returns whether the node should warn.
    pub(super) fn attempt_ended(&mut self, ending: &Ending) -> bool {
        match ending.status {
            AttemptStatus::Succeeded => self.given_up = 0,
            _ => self.given_up = self.given_up.saturating_add(u32::from(ending.gave_up)),
        }
        self.are_items_doubted() && !std::mem::replace(&mut self.has_told, true)
    }
}

impl Scheduler {
    /// Whether the failure of a mini-batch is followed by runs of its ranges.
    pub(super) fn isolates(&self, process: ProcessId, mini_batch: &MiniBatch, ending: &Ending) -> bool {
        self.items_to_isolate(process, mini_batch, ending)
            .is_some_and(|items| (2..=self.config.spec.isolate_items_max).contains(&items))
    }

    /// Whether the results that the script has handed back still count, after a mini-batch that is not divided has failed
    /// for good. `isolate: off` keeps mini-batches whole, unless `partition_keys` is the reason for it.
    pub(super) fn takes_kept(&self, mini_batch: &MiniBatch, ending: &Ending) -> bool {
        let spec = &self.config.spec;
        ending.has_checkpoints
            && spec.output.action == OutputAction::AppendRow
            && (spec.isolate != Isolate::Off || !spec.partition_keys.is_empty())
            && is_of_user_code(ending.status)
            && self.is_last_try(mini_batch)
    }

    fn is_last_try(&self, mini_batch: &MiniBatch) -> bool {
        let descriptor = &mini_batch.descriptor;
        !descriptor.copy && descriptor.tries_spent.saturating_add(1) >= self.config.spec.run_max_try
    }

    /// Returns a warning if only the size of a mini-batch prevents runs of its ranges.
    pub(super) fn warn_of_size(
        &mut self,
        process: ProcessId,
        mini_batch: &MiniBatch,
        ending: &Ending,
    ) -> Option<Warning> {
        let items = self.items_to_isolate(process, mini_batch, ending)?;
        let max = self.config.spec.isolate_items_max;
        let number = mini_batch.descriptor.mini_batch;
        (items > max).then(|| {
            self.warn(format!(
                "mini-batch {number} has {items} items, more than isolate_items_max ({max}), so all of them fail \
                 together; raise isolate_items_max, or set a smaller mini_batch_size"
            ))
        })
    }

    /// Returns the number of items of a mini-batch whose failure is followed by runs of its ranges, if its size allows.
    fn items_to_isolate(&self, process: ProcessId, mini_batch: &MiniBatch, ending: &Ending) -> Option<u64> {
        let (spec, status) = (&self.config.spec, ending.status);
        if spec.isolate == Isolate::Off || status == AttemptStatus::Succeeded {
            return None;
        }
        let Stage::Handed { prepared, .. } = &mini_batch.stage else { return None };
        let is_isolated = is_of_user_code(status)
            && !ending.items_tried
            && self.is_last_try(mini_batch)
            && !matches!(*prepared.payload, Payload::Rank)
            && !self.isolations.are_over()
            && self.lost_gpu(process, ending).is_none();
        is_isolated.then_some(prepared.passed)
    }

    /// Begins the isolation of a mini-batch whose last try has ended, or takes the result of a range.
    pub(super) fn isolate(
        &mut self,
        process: ProcessId,
        handed: Handed,
        mini_batch: MiniBatch,
        ending: Ending,
        rows: Bytes,
        now: Moment,
    ) {
        let divides = self.isolates(process, &mini_batch, &ending);
        let MiniBatch { stage, isolation, .. } = mini_batch;
        let Stage::Handed { prepared, .. } = stage else { unreachable!("it was in a pipe") };
        let number = mini_batch.descriptor.mini_batch;
        let isolation = match isolation {
            Some(mut isolation) => {
                isolation.handed(&handed);
                isolation.process = process;
                let failed = ending.status != AttemptStatus::Succeeded;
                if !isolation.next_is_kept() {
                    self.isolations.vain_runs = if failed { self.isolations.vain_runs.saturating_add(1) } else { 0 };
                }
                match self.lost_gpu(process, &ending) {
                    // No item is at fault, so none is rejected for it.
                    Some(gpu) if self.has_other_gpu_than(gpu) && isolation.again() => {}
                    Some(_) => isolation.give_up(),
                    None => {
                        let run = FailedRun { process: process.name().into(), started_at: handed.began.milliseconds };
                        isolation.ended(ending, rows, run, now.instant);
                    }
                }
                isolation
            }
            None => {
                let until = now.instant + Duration::from_secs(self.config.spec.isolation_seconds_max());
                let moments = [handed.began, now];
                let first =
                    mini_batch.descriptor.replays.and_then(|replays| replays.rows).map_or(0, |(first, _)| first);
                let items = first..first.saturating_add(prepared.passed);
                let (mut isolation, how) = match divides {
                    true => {
                        let isolation =
                            Isolation::new(items, self.config.spec.isolate, ending, process, moments, until);
                        (isolation, format!("running its {} items in ranges", prepared.passed))
                    }
                    false => (
                        Isolation::of_kept(items, ending, process, moments, until),
                        "taking the results that it has handed back".to_owned(),
                    ),
                };
                self.log("INFO", format!("mini-batch {number} has spent its tries, {how}"));
                isolation.waited = handed.waits();
                self.isolations.leases.push(handed.lease);
                Box::new(isolation)
            }
        };
        let is_given_up = self.isolations.are_over() && isolation.is_vain() && !isolation.next_is_kept();
        let goes_on = isolation.next().is_some() && !is_given_up;
        let (stage, isolation) = (Stage::Ready(prepared), Some(isolation));
        self.mini_batches.insert(handed.lease, MiniBatch { stage, isolation, ..mini_batch });
        self.goes_on(handed.lease, now);
        if goes_on {
            self.act(Action::Wait { lease: handed.lease });
            self.ready.push_front(handed.lease);
        } else {
            self.end_isolation(handed.lease, Some(process), now);
        }
    }

    /// Hands ranges to the processes that have run others of the same mini-batch, and so have its items at hand.
    pub(super) fn hand_over_ranges(&mut self, now: Moment) {
        let held = &self.mini_batches;
        self.isolations.leases.retain(|lease| held.get(lease).is_some_and(|held| held.isolation.is_some()));
        for position in 0..self.isolations.leases.len() {
            let lease = self.isolations.leases[position];
            let Some(MiniBatch { stage: Stage::Ready(_), isolation: Some(isolation), .. }) =
                self.mini_batches.get(&lease)
            else {
                continue;
            };
            let process = isolation.process;
            let is_free = self.process(process).is_some_and(|process| {
                process.is_idle() && process.wanted(self.limits) > 0 && self.may_run(lease, process.gpu)
            });
            if is_free {
                self.ready.retain(|ready| *ready != lease);
                self.hand_over_to(process.slot, vec![lease], now);
            }
        }
    }

    /// Warns that the node has found no item that succeeds.
    pub(super) fn warn_of_doubt(&mut self) -> Warning {
        self.warn(format!(
            "no item of the last mini-batches succeeded, so node {} tries only a few items of each and divides no more \
             mini-batches whose tries are spent, until an item succeeds",
            self.config.node
        ))
    }

    fn warn(&mut self, message: String) -> Warning {
        self.log("WARNING", message.clone());
        Warning { message }
    }

    /// Ends the isolation of a mini-batch that might not end before the longest lease that the queue allows.
    pub(super) fn cut_isolation(&mut self, lease: LeaseId, now: Moment) {
        let isolation = self.mini_batches.get_mut(&lease).and_then(|mini_batch| mini_batch.isolation.as_mut());
        if let Some(isolation) = isolation {
            isolation.abandon("the queue does not let a node keep a mini-batch any longer");
            self.end_isolation(lease, None, now);
        }
    }

    /// Announces an isolated mini-batch, which is in no pipe.
    fn end_isolation(&mut self, lease: LeaseId, process: Option<ProcessId>, now: Moment) {
        let Some(mini_batch) = self.mini_batches.remove(&lease) else { return };
        let MiniBatch { descriptor, deliveries_lost, received, preparation, stage, isolation } = mini_batch;
        let Some(isolation) = isolation else { return };
        let Stage::Ready(mut prepared) = stage else { unreachable!("it waits for a process, or waited last") };
        let table = prepared.take_table();
        let (began, waited, only_kept) = (isolation.began, isolation.waited, isolation.only_kept);
        let by_position = matches!(self.config.spec.output.format, OutputFormat::Text | OutputFormat::Csv);
        let isolated = isolation.finish(|item| descriptor.item_detail(item), by_position, now);
        let (saved, passed, number) = (isolated.has_succeeded(), prepared.passed, descriptor.mini_batch);
        let Isolated { ending, rows, pieces, rejected, warnings_total, extra_runs, ended } = isolated;
        let name = process.and_then(|process| self.process(process)).map_or("", |process| process.name.as_str());
        let worker = [self.config.node.as_str(), name];
        let has_checkpoints = ending.has_checkpoints;
        let more_warnings = warnings_total - ending.warnings.len() as u64;
        let prepared = prepared.given(self.takes_arrow);
        let attempted = Attempted { descriptor, deliveries_lost, prepared, received, preparation, began, waited };
        let (mut attempt, next_try) = conclude(attempted, worker, ending, self.config.spec.run_max_try, ended);
        attempt.warnings_total += more_warnings;
        (attempt.rejected, attempt.pieces, attempt.extra_runs) = (rejected, pieces, extra_runs);
        self.reuse_table(table, &mut attempt.rejected);
        let message = match saved {
            true => {
                let items: u64 = attempt.rejected.iter().map(|rejected| rejected.items).sum();
                format!("mini-batch {number}: {items} of {passed} items rejected after {extra_runs} extra runs")
            }
            false if only_kept => format!("mini-batch {number}: no result that it has handed back could be read"),
            false => format!("mini-batch {number}: none of its ranges succeeded in {extra_runs} extra runs"),
        };
        self.log(if saved { "INFO" } else { "WARNING" }, message);
        if !saved && let Some(process) = process.and_then(|process| self.process_mut(process)) {
            process.condition.failed();
        }
        if !only_kept {
            self.isolations.hopeless = if saved { 0 } else { self.isolations.hopeless.saturating_add(1) };
        }
        if self.isolations.are_over() && !std::mem::replace(&mut self.isolations.has_told, true) {
            let warning = self.warn(format!(
                "no range of the last mini-batches succeeded, so node {} divides no more mini-batches whose tries are \
                 spent",
                self.config.node
            ));
            attempt.warnings.push(warning);
            attempt.warnings_total += 1;
        }
        let outcome = Box::new(Outcome { lease, process, attempt, rows, next_try, has_checkpoints });
        self.announce_outcome(outcome);
        if saved {
            self.drop_copies_of(number);
        }
    }
}
