//! Decides which mini-batches are isolated, and handles the result of each range.

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    AttemptStatus, Ending, FailedRun, Isolate, OutputAction, OutputFormat, Payload, Warning, Work,
};

use super::isolation::{Isolation, IsolationOutcome};
use super::mini_batch::{MiniBatch, Stage};
use super::pipe::PipedMiniBatch;
use super::{Action, Outcome, ProcessId, Scheduler, Timestamp};
use crate::lease::LeaseId;

/// Mini-batches in a row of which no range succeeds, after which a node isolates no more.
const HOPELESS_MAX: u32 = 3;
/// Failed runs of ranges in a row, after which a node isolates no more: many mini-batches may be
/// isolated side by side.
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
}

impl Isolations {
    fn are_over(&self) -> bool {
        self.hopeless >= HOPELESS_MAX || self.vain_runs >= VAIN_RUNS_MAX || self.are_items_doubted()
    }

    /// Whether a process should give up a mini-batch after a few failed items. The next success
    /// resets this.
    pub(super) fn are_items_doubted(&self) -> bool {
        self.given_up >= HOPELESS_MAX
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
    pub(super) fn isolates(&self, process: ProcessId, lease: LeaseId, ending: &Ending) -> bool {
        self.items_to_isolate(process, lease, ending)
            .is_some_and(|items| (2..=self.config.spec.isolate_items_max).contains(&items))
    }

    /// Whether the results that the script has handed back still count, after a mini-batch that is not divided has failed
    /// for good. `isolate: off` keeps mini-batches whole, unless `partition_keys` is the reason for it.
    pub(super) fn takes_kept(&self, lease: LeaseId, ending: &Ending) -> bool {
        let spec = &self.config.spec;
        ending.has_checkpoints
            && spec.output.action == OutputAction::AppendRow
            && (spec.isolate != Isolate::Off || !spec.partition_keys.is_empty())
            && is_of_user_code(ending.status)
            && self.mini_batches.get(lease).is_some_and(|mini_batch| self.is_last_try(mini_batch))
    }

    fn is_last_try(&self, mini_batch: &MiniBatch) -> bool {
        let descriptor = &mini_batch.descriptor;
        !descriptor.copy
            && descriptor.tries_spent.saturating_add(1) >= self.config.spec.run_max_try
            && !self.leaves_tries_to_others(descriptor)
    }

    /// Returns a warning if only the size of a mini-batch prevents runs of its ranges.
    pub(super) fn warn_of_size(
        &mut self,
        process: ProcessId,
        lease: LeaseId,
        ending: &Ending,
    ) -> Option<Warning> {
        let items = self.items_to_isolate(process, lease, ending)?;
        let max = self.config.spec.isolate_items_max;
        let number = self.mini_batches.get(lease)?.descriptor.mini_batch;
        (items > max).then(|| {
            self.warn(format!(
                "mini-batch {number} has {items} items, more than isolate_items_max ({max}), so all of them fail \
                 together; raise isolate_items_max, or set a smaller mini_batch_size"
            ))
        })
    }

    /// Returns the number of items of a mini-batch whose failure is followed by runs of its ranges, if its size allows.
    fn items_to_isolate(&self, process: ProcessId, lease: LeaseId, ending: &Ending) -> Option<u64> {
        let (spec, status) = (&self.config.spec, ending.status);
        if spec.isolate == Isolate::Off || status == AttemptStatus::Succeeded {
            return None;
        }
        let mini_batch = self.mini_batches.get(lease)?;
        let prepared = mini_batch.prepared()?;
        let is_isolated = is_of_user_code(status)
            && !ending.items_tried
            && self.is_last_try(mini_batch)
            && !matches!(*prepared.payload, Payload::Rank)
            && !self.isolations.are_over()
            && self.lost_gpus(process, ending).is_none();
        is_isolated.then_some(prepared.passed)
    }

    /// Begins the isolation of a mini-batch whose last try has ended, or takes the result of a range. `divides`: not only
    /// the results count that the script has handed back.
    pub(super) fn isolate(
        &mut self,
        process: ProcessId,
        handed: PipedMiniBatch,
        divides: bool,
        ending: Ending,
        rows: Bytes,
        now: Timestamp,
    ) {
        let lease = handed.lease;
        let lost_gpus = self.lost_gpus(process, &ending);
        let has_other_gpus = lost_gpus.is_some_and(|gpus| self.has_other_gpus_than(gpus));
        let lost_gpus = lost_gpus.is_some();
        match self.mini_batches.isolation_mut(lease) {
            None => self.begin_isolation(process, handed, divides, ending, now),
            Some(isolation) => {
                isolation.handed(&handed);
                isolation.process = Some(process);
                if !isolation.next_is_kept() {
                    let failed = ending.status != AttemptStatus::Succeeded;
                    self.isolations.vain_runs =
                        if failed { self.isolations.vain_runs.saturating_add(1) } else { 0 };
                }
                if !lost_gpus {
                    let run = FailedRun {
                        process: process.name().into(),
                        started_at: handed.began.milliseconds,
                    };
                    isolation.ended(ending, rows, run, now.instant);
                } else if !(has_other_gpus && isolation.again()) {
                    // No item is at fault, so none is rejected for it.
                    isolation.give_up();
                }
            }
        }
        let Some(MiniBatch { isolation: Some(isolation), .. }) = self.mini_batches.get(lease)
        else {
            return;
        };
        let is_given_up =
            self.isolations.are_over() && isolation.has_no_success() && !isolation.next_is_kept();
        let has_next = isolation.next().is_some() && !is_given_up;
        self.goes_on(lease, now);
        if has_next {
            self.act(Action::Wait { lease });
            self.mini_batches.wait_again(lease);
        } else if let Some(mini_batch) = self.mini_batches.remove(lease) {
            self.end_isolation(lease, mini_batch, Some(process), now);
        }
    }

    fn begin_isolation(
        &mut self,
        process: ProcessId,
        handed: PipedMiniBatch,
        divides: bool,
        ending: Ending,
        now: Timestamp,
    ) {
        let Some(mini_batch) = self.mini_batches.get(handed.lease) else { return };
        let number = mini_batch.descriptor.mini_batch;
        let passed = mini_batch.prepared().map_or(0, |prepared| prepared.passed);
        let items = 0..passed;
        let (division, how) = match divides {
            true => (self.config.spec.isolate, format!("running its {passed} items in ranges")),
            false => (Isolate::Off, "taking the results that it has handed back".to_owned()),
        };
        let until = now.instant + Duration::from_secs(self.config.spec.isolation_seconds_max());
        let mut isolation =
            Isolation::new(items, division, ending, process, [handed.began, now], until);
        isolation.waited = handed.waits();
        self.mini_batches.isolate(handed.lease, isolation);
        self.log("INFO", format!("mini-batch {number} has spent its tries, {how}"));
    }

    /// Lets a mini-batch that is ready run only the items that an earlier round has rejected.
    pub(super) fn begin_rejected(&mut self, lease: LeaseId, now: Timestamp) {
        let spec = &self.config.spec;
        let (division, tries) = (spec.isolate, spec.run_max_try);
        let until = now.instant + Duration::from_secs(spec.ranges_seconds_max());
        let Some((kept, rows)) = self.mini_batches.take_kept(lease) else { return };
        self.mini_batches
            .isolate(lease, Isolation::of_round(kept, rows, division, tries, now, until));
    }

    /// Hands ranges to the processes that have run others of the same mini-batch, and so have its items at hand.
    pub(super) fn hand_over_ranges(&mut self, now: Timestamp) {
        for position in 0..self.mini_batches.isolated().len() {
            let lease = self.mini_batches.isolated()[position];
            let Some(MiniBatch { stage: Stage::Ready(_), isolation: Some(isolation), .. }) =
                self.mini_batches.get(lease)
            else {
                continue;
            };
            // Any process may begin what an earlier round has rejected.
            let Some(id) = isolation.process else { continue };
            let process = self.processes.get(id);
            if process.is_some_and(|process| {
                process.is_free() && self.may_run(lease, process.gpus.as_ref())
            }) {
                self.hand_over_to(id.slot, &[lease], now);
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
    pub(super) fn cut_isolation(
        &mut self,
        lease: LeaseId,
        mut mini_batch: MiniBatch,
        now: Timestamp,
    ) {
        if let Some(isolation) = &mut mini_batch.isolation {
            isolation.abandon("the queue does not let a node keep a mini-batch any longer");
            self.end_isolation(lease, mini_batch, None, now);
        }
    }

    /// Announces an isolated mini-batch, which has left the node.
    fn end_isolation(
        &mut self,
        lease: LeaseId,
        mut mini_batch: MiniBatch,
        process: Option<ProcessId>,
        now: Timestamp,
    ) {
        let Some(isolation) = mini_batch.isolation.take() else { return };
        let (began, waited, only_kept) = (isolation.began, isolation.waited, isolation.only_kept());
        let by_position = self.config.spec.output.format == OutputFormat::Text;
        let isolated =
            isolation.finish(|item| mini_batch.descriptor.item_detail(item), by_position, now);
        let saved = isolated.has_succeeded();
        let IsolationOutcome { ending, rows, pieces, rejected, warnings_total, extra_runs, ended } =
            isolated;
        let mut attempted = mini_batch.attempted(began, waited, now);
        let (table, passed) = (attempted.prepared.take_table(), attempted.prepared.passed);
        let has_checkpoints = ending.has_checkpoints;
        let more_warnings = warnings_total - ending.warnings.len() as u64;
        let of_rows = matches!(attempted.descriptor.work, Work::Rows { .. });
        let of_rows = of_rows
            .then(|| Box::new((attempted.descriptor.clone(), self.processes.starts.takes())));
        let (mut attempt, next_try) = self.conclude_by(process, attempted, ending, ended);
        let number = attempt.mini_batch;
        attempt.warnings_total += more_warnings;
        (attempt.rejected, attempt.pieces, attempt.extra_runs) = (rejected, pieces, extra_runs);
        self.reuse_table(table, &mut attempt.rejected);
        let message = match saved {
            true => {
                let items: u64 = attempt.rejected.iter().map(|rejected| rejected.items).sum();
                format!(
                    "mini-batch {number}: {items} of {passed} items rejected after {extra_runs} extra runs"
                )
            }
            false if only_kept => {
                format!("mini-batch {number}: no result that it has handed back could be read")
            }
            false => format!(
                "mini-batch {number}: none of its ranges succeeded in {extra_runs} extra runs"
            ),
        };
        self.log(if saved { "INFO" } else { "WARNING" }, message);
        if !saved && let Some(process) = process.and_then(|process| self.processes.get_mut(process))
        {
            process.health.failed();
        }
        if !only_kept {
            self.isolations.hopeless =
                if saved { 0 } else { self.isolations.hopeless.saturating_add(1) };
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
        self.announce_outcome(Outcome {
            lease,
            process,
            attempt,
            rows,
            next_try,
            has_checkpoints,
            of_rows,
        });
    }
}
