//! The counts and states that follow from the events of a job. A pure fold without I/O or clock, so that a restarted
//! reducer reaches the same state from the same ledger.
//!
//! Delivered at least once, counted once: exactly one successful attempt of each mini-batch counts, the first in the
//! ledger. A success replaces an earlier failure, a failure never replaces a success, and an attempt that is announced
//! twice changes nothing the second time.

mod effort;
mod rounds;
mod warnings;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use protocol::{
    Attempt, AttemptCore, AttemptStatus, Counts, ErrorReport, FileVersion, JobState, Planned,
    ProcessName, Progress, ResultEvent,
};

use crate::batch::{Event, RecordView};
use crate::failures::Failures;
use crate::nodes::Nodes;
pub use effort::Effort;
use rounds::{JobRound, RunsAgain};
pub use warnings::Warnings;

/// Mini-batches that failed when they ran again, so that their earlier results stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unimproved {
    /// Their number.
    pub count: u64,
    /// The first one, and its error in one line.
    pub first: Option<(u64, String)>,
}

/// The state of a mini-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MiniBatchState {
    /// No attempt has ended.
    #[default]
    Pending,
    /// The last try failed, and another follows.
    Retrying,
    /// All tries are spent.
    Failed,
    /// One attempt succeeded.
    Succeeded,
}

impl MiniBatchState {
    /// Whether no other attempt is expected.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The effect of an event on the tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The attempt counts: its rows are the rows of the mini-batch.
    Won,
    /// The event was new.
    Counted,
    /// The event was known, or too late to matter.
    Nothing,
}

/// One mini-batch in 20 bytes, because there may be ten million. Item counts saturate at `u32::MAX`, far more than one
/// result can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MiniBatchCounts {
    total: u32,
    succeeded: u32,
    /// Largest number of a failed try.
    tries: u32,
    /// Largest number of a failed try that another was to follow.
    retries: u32,
    deliveries_lost: u16,
    state: MiniBatchState,
}

/// Reserves memory for this many mini-batches, if available, because a growing vector copies itself repeatedly.
pub(crate) fn reserve<T>(entries: &mut Vec<T>, mini_batches: u64) {
    let more = usize::try_from(mini_batches).unwrap_or(usize::MAX).saturating_sub(entries.len());
    // If this fails, the vector grows step by step.
    let _ = entries.try_reserve_exact(more);
}

/// The fold of all committed events.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    entries: Vec<MiniBatchCounts>,
    planned: Option<Planned>,
    plan_failure: Option<String>,
    succeeded: u64,
    failed: u64,
    retrying: u64,
    items_succeeded: u64,
    items_failed: u64,
    /// Items without a result of mini-batches that run again, and have not ended.
    items_again: u64,
    retries: u64,
    deliveries_lost: u64,
    warnings: Warnings,
    duplicates: u64,
    effort: Effort,
    /// Items that were rejected from mini-batches that succeeded.
    items_rejected: HashMap<u64, u64>,
    /// Mini-batches that have spent their tries, and succeeded without the items that were rejected.
    partly_failed: HashSet<u64>,
    /// Mini-batches whose speculative run succeeded first.
    copies_won: BTreeSet<u64>,
    asked_limits: bool,
    ended_as: Option<(JobState, Option<String>, Option<Box<ErrorReport>>)>,
    /// Empty until the second round begins.
    rounds: Vec<JobRound>,
    /// The output that was written before the last round.
    written: Option<FileVersion>,
    /// Mini-batches that run again in one of these rounds, until they end.
    again: BTreeMap<u64, RunsAgain>,
    /// Mini-batches that failed when they ran again.
    unimproved: Unimproved,
    /// How often rows were lost, so that successes were reverted.
    times_rows_lost: u64,
    failures: Failures,
    /// Of these, the last attempts of failed mini-batches: what is left when only rejected items run again.
    last_failures: Failures,
    /// Of these, the rejected items of successes: what is left when only failed mini-batches run again.
    last_rejects: Failures,
    nodes: Nodes,
}

impl Tally {
    /// Applies one event.
    pub fn apply(&mut self, event: &ResultEvent) -> Effect {
        match event {
            ResultEvent::Attempt(attempt) => {
                self.nodes.attempt_ended(&attempt.node, &attempt.process);
                let effect = self.apply_attempt(attempt);
                self.compare_nodes(attempt, effect);
                self.duplicates += u64::from(effect == Effect::Nothing);
                effect
            }
            ResultEvent::Planned(planned) => {
                let effect = if self.planned.is_some() { Effect::Nothing } else { Effect::Counted };
                self.planned.get_or_insert_with(|| planned.clone());
                self.plan_failure = None;
                reserve(&mut self.entries, planned.mini_batches);
                effect
            }
            ResultEvent::PlanFailed { cause } => {
                self.plan_failure.get_or_insert_with(|| cause.clone());
                Effect::Counted
            }
            ResultEvent::Round(round) => {
                self.begin_round(round);
                Effect::Counted
            }
            ResultEvent::RowsLost { mini_batches } => {
                self.times_rows_lost += 1;
                mini_batches.iter().for_each(|&mini_batch| self.lose(mini_batch));
                Effect::Counted
            }
            ResultEvent::Ended { .. } if self.ended_as.is_some() => Effect::Nothing,
            ResultEvent::Ended { state, cause, error } => {
                error.iter().for_each(|error| self.failures.job_ended_by(error));
                self.ended_as = Some((*state, cause.clone(), error.clone()));
                if *state != JobState::Completed {
                    self.restore_all_earlier();
                }
                Effect::Counted
            }
            ResultEvent::Duplicates { count } => {
                self.duplicates += count;
                Effect::Counted
            }
            ResultEvent::Job { .. } => Effect::Nothing,
            other => {
                if let ResultEvent::InitFailed { error, .. } = other {
                    self.failures.init_failed(error);
                }
                self.nodes.apply(other);
                Effect::Counted
            }
        }
    }

    /// Applies one record of a batch.
    pub(crate) fn apply_record(&mut self, record: RecordView<'_>) -> Effect {
        match record.event {
            Event::Success(success) => {
                let process = record.process(success.process);
                self.nodes.attempt_ended(&process.node, &process.process);
                self.nodes.exclusions.succeeded(&process.node, success.mini_batch);
                self.apply_success(success)
            }
            Event::Other(event) => self.apply(event),
        }
    }

    /// Applies an ordinary success of this process, in any form of its texts.
    pub fn apply_success_of<P, T, C>(
        &mut self,
        process: ProcessName<&str>,
        success: &AttemptCore<P, T, C>,
    ) -> Effect {
        self.nodes.attempt_ended(process.node, process.process);
        self.nodes.exclusions.succeeded(process.node, success.mini_batch);
        self.apply_success(success)
    }

    fn apply_success<P, T, C>(&mut self, success: &AttemptCore<P, T, C>) -> Effect {
        let effect = match self.delivered(success.mini_batch, 0, success.deliveries_lost) {
            Some(index) => self.succeed(index, success.total, success.succeeded),
            None => Effect::Nothing,
        };
        self.duplicates += u64::from(effect == Effect::Nothing);
        effect
    }

    /// Whether an event would change nothing, because it was committed before or is too late to matter.
    pub(crate) fn is_known(&self, event: &Event) -> bool {
        match event {
            Event::Success(success) => {
                self.is_known_success(success.mini_batch, 0, success.deliveries_lost)
            }
            Event::Other(event) => self.is_known_event(event),
        }
    }

    fn is_known_event(&self, event: &ResultEvent) -> bool {
        match event {
            ResultEvent::Attempt(attempt) => self.is_known_attempt(attempt),
            ResultEvent::Planned(_) => self.planned.is_some() && self.plan_failure.is_none(),
            ResultEvent::PlanFailed { .. } => self.plan_failure.is_some(),
            ResultEvent::Ended { .. } => self.ended_as.is_some(),
            ResultEvent::Job { .. } => true,
            _ => false,
        }
    }

    fn is_known_success(&self, mini_batch: u64, round: u32, deliveries_lost: u32) -> bool {
        let entry = self.entry(mini_batch);
        self.is_outside_plan(mini_batch)
            || self.is_of_earlier_round(mini_batch, round)
            || entry.state == MiniBatchState::Succeeded
                && deliveries_lost <= u32::from(entry.deliveries_lost)
    }

    fn is_known_attempt(&self, attempt: &Attempt) -> bool {
        if attempt.status == AttemptStatus::Succeeded {
            return self.is_known_success(
                attempt.mini_batch,
                attempt.round,
                attempt.deliveries_lost,
            );
        }
        let entry = self.entry(attempt.mini_batch);
        if self.is_outside_plan(attempt.mini_batch)
            || self.is_of_earlier_round(attempt.mini_batch, attempt.round)
        {
            return true;
        }
        if attempt.deliveries_lost > u32::from(entry.deliveries_lost) {
            return false;
        }
        if attempt.try_number > entry.tries {
            return false;
        }
        match entry.state {
            MiniBatchState::Pending => false,
            _ if !attempt.is_final => attempt.try_number <= entry.retries,
            MiniBatchState::Retrying => false,
            MiniBatchState::Failed => attempt.total <= u64::from(entry.total),
            MiniBatchState::Succeeded => true,
        }
    }

    /// Whether the plan is complete and does not have this mini-batch.
    pub fn is_outside_plan(&self, mini_batch: u64) -> bool {
        self.planned.as_ref().is_some_and(|planned| mini_batch >= planned.mini_batches)
    }

    fn apply_attempt(&mut self, attempt: &Attempt) -> Effect {
        self.asked_limits |= attempt.asked_limits;
        let Some(index) =
            self.delivered(attempt.mini_batch, attempt.round, attempt.deliveries_lost)
        else {
            return Effect::Nothing;
        };
        if attempt.status != AttemptStatus::Succeeded {
            let effect = self.fail(index, attempt);
            self.effort.add(attempt, effect);
            return effect;
        }
        let effect = self.succeed(index, attempt.total, attempt.succeeded);
        if effect == Effect::Won {
            self.warnings.succeeded(attempt);
            if attempt.copy {
                self.copies_won.insert(attempt.mini_batch);
            }
            if !attempt.rejected.is_empty() {
                self.items_rejected.insert(attempt.mini_batch, attempt.items_rejected());
                if attempt.failed_in_part() {
                    self.partly_failed.insert(attempt.mini_batch);
                }
                self.failures.items_rejected(attempt);
                self.last_rejects.items_rejected(attempt);
            }
        }
        self.effort.add(attempt, effect);
        effect
    }

    /// Compares the nodes by an attempt. One that succeeds without a single item counts as a failure.
    fn compare_nodes(&mut self, attempt: &Attempt, effect: Effect) {
        let has_result = attempt.succeeded > 0 || attempt.rejected.is_empty();
        match attempt.status {
            AttemptStatus::Succeeded if has_result => {
                self.nodes.exclusions.succeeded(&attempt.node, attempt.mini_batch)
            }
            // No node is to blame.
            AttemptStatus::LostTooOften => {}
            _ if effect == Effect::Nothing => {}
            _ => self.nodes.exclusions.failed(&attempt.node, attempt.mini_batch),
        }
    }

    /// Records that an attempt of a mini-batch ended after this many lost deliveries. Returns the position of the
    /// entry, or `None` outside the plan, and for an attempt of an earlier round.
    fn delivered(&mut self, mini_batch: u64, round: u32, deliveries_lost: u32) -> Option<usize> {
        if self.is_outside_plan(mini_batch) || self.is_of_earlier_round(mini_batch, round) {
            return None;
        }
        let index = usize::try_from(mini_batch).expect("64-bit machine");
        if self.entries.len() <= index {
            self.entries.resize(index + 1, MiniBatchCounts::default());
        }
        let lost = u16::try_from(deliveries_lost).unwrap_or(u16::MAX);
        let entry = &mut self.entries[index];
        self.deliveries_lost += u64::from(lost.saturating_sub(entry.deliveries_lost));
        entry.deliveries_lost = entry.deliveries_lost.max(lost);
        Some(index)
    }

    fn succeed(&mut self, index: usize, total: u64, succeeded: u64) -> Effect {
        self.drops_earlier(index as u64);
        let entry = &mut self.entries[index];
        match entry.state {
            MiniBatchState::Succeeded => return Effect::Nothing,
            MiniBatchState::Failed => {
                self.failed -= 1;
                self.items_failed -= u64::from(entry.total);
                self.failures.forgive(index as u64);
                self.last_failures.forgive(index as u64);
            }
            MiniBatchState::Retrying => {
                self.retrying -= 1;
                self.failures.forgive(index as u64);
            }
            MiniBatchState::Pending => {}
        }
        entry.state = MiniBatchState::Succeeded;
        entry.total = u32::try_from(total).unwrap_or(u32::MAX);
        entry.succeeded = u32::try_from(succeeded).unwrap_or(u32::MAX).min(entry.total);
        self.succeeded += 1;
        self.items_succeeded += u64::from(entry.succeeded);
        self.items_failed += u64::from(entry.total - entry.succeeded);
        self.failures.attempt_succeeded();
        Effect::Won
    }

    fn fail(&mut self, index: usize, attempt: &Attempt) -> Effect {
        let entry = &mut self.entries[index];
        let mut effect = Effect::Nothing;
        if attempt.try_number > entry.tries {
            entry.tries = attempt.try_number;
            self.failures.attempt_failed(attempt);
            effect = Effect::Counted;
        }
        if !attempt.is_final {
            self.retries += u64::from(attempt.try_number.saturating_sub(entry.retries));
            entry.retries = entry.retries.max(attempt.try_number);
            if entry.state == MiniBatchState::Pending {
                entry.state = MiniBatchState::Retrying;
                self.retrying += 1;
            }
            if effect == Effect::Counted && entry.state == MiniBatchState::Retrying {
                self.failures.retried(attempt);
            }
            return effect;
        }
        // If the items could not be counted, there was at least one: empty mini-batches do not fail.
        let total = u32::try_from(attempt.total).unwrap_or(u32::MAX).max(1);
        match entry.state {
            MiniBatchState::Succeeded => return effect,
            MiniBatchState::Failed => {
                // One attempt could not count the items, and another could.
                self.items_failed += u64::from(total.saturating_sub(entry.total));
                entry.total = entry.total.max(total);
                return effect;
            }
            MiniBatchState::Retrying => self.retrying -= 1,
            MiniBatchState::Pending => {}
        }
        if self.restores_earlier(index, attempt) {
            return Effect::Counted;
        }
        let entry = &mut self.entries[index];
        entry.state = MiniBatchState::Failed;
        entry.total = total;
        self.failed += 1;
        self.items_failed += u64::from(total);
        self.failures.given_up(attempt);
        self.last_failures.attempt_failed(attempt);
        self.last_failures.given_up(attempt);
        self.warnings.given_up(attempt);
        Effect::Counted
    }

    /// Reverts a success whose rows were lost. The tries spent on the mini-batch stay spent.
    fn lose(&mut self, mini_batch: u64) {
        self.loses_earlier(mini_batch);
        let entry = usize::try_from(mini_batch).ok().and_then(|index| self.entries.get_mut(index));
        let Some(entry) = entry.filter(|entry| entry.state == MiniBatchState::Succeeded) else {
            return;
        };
        self.succeeded -= 1;
        self.items_succeeded -= u64::from(entry.succeeded);
        self.items_failed -= u64::from(entry.total - entry.succeeded);
        self.items_rejected.remove(&mini_batch);
        self.partly_failed.remove(&mini_batch);
        self.copies_won.remove(&mini_batch);
        *entry =
            MiniBatchCounts { state: MiniBatchState::Pending, total: 0, succeeded: 0, ..*entry };
    }

    /// Returns the state of a mini-batch.
    pub fn state(&self, mini_batch: u64) -> MiniBatchState {
        self.entry(mini_batch).state
    }

    /// Returns the tries that user code has spent on a mini-batch, for `tries_spent` of its next descriptor.
    pub fn tries_spent(&self, mini_batch: u64) -> u32 {
        self.entry(mini_batch).tries
    }

    /// Returns the deliveries of a mini-batch lost with their node, for `deliveries_lost` of its next descriptor.
    pub fn deliveries_lost(&self, mini_batch: u64) -> u32 {
        u32::from(self.entry(mini_batch).deliveries_lost)
    }

    fn entry(&self, mini_batch: u64) -> MiniBatchCounts {
        usize::try_from(mini_batch)
            .ok()
            .and_then(|index| self.entries.get(index))
            .copied()
            .unwrap_or_default()
    }

    /// Returns one more than the largest mini-batch with an attempt.
    pub fn seen(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns the totals of the plan, once known.
    pub fn planned(&self) -> Option<&Planned> {
        self.planned.as_ref()
    }

    /// Returns why the job cannot be planned; `None`: it can.
    pub fn plan_failure(&self) -> Option<&str> {
        self.plan_failure.as_deref()
    }

    /// Returns the committed end of the job, its cause, and the failure behind it that no other event reports.
    pub fn ended_as(&self) -> Option<(JobState, Option<&str>, Option<&ErrorReport>)> {
        self.ended_as
            .as_ref()
            .map(|(state, cause, error)| (*state, cause.as_deref(), error.as_deref()))
    }

    /// Returns the counts of mini-batches. `total` is 0 until the plan is complete.
    pub fn mini_batches(&self) -> Counts {
        let total = self.planned.as_ref().map_or(0, |planned| planned.mini_batches);
        Counts { total, succeeded: self.succeeded, failed: self.failed }
    }

    /// Returns the counts of items. `total` is that of the plan if known, else the items of ended mini-batches.
    pub fn items(&self) -> Counts {
        let ended = self.items_succeeded + self.items_failed;
        let total = self
            .planned
            .as_ref()
            .and_then(|planned| planned.items)
            .unwrap_or(ended + self.items_again);
        Counts { total, succeeded: self.items_succeeded, failed: self.items_failed }
    }

    /// Returns the mini-batches that failed in the last round, so that their earlier results stay.
    pub fn unimproved(&self) -> &Unimproved {
        &self.unimproved
    }

    /// Returns the number of mini-batches that will not be attempted again.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed
    }

    /// Whether the plan is complete and all its mini-batches have ended.
    pub fn is_complete(&self) -> bool {
        self.planned.as_ref().is_some_and(|planned| self.ended() >= planned.mini_batches)
    }

    /// Returns the number of mini-batches whose latest attempt failed, whether or not another try follows.
    pub fn currently_failed(&self) -> u64 {
        self.failed + self.retrying
    }

    /// Returns the number of failed mini-batches that have another try.
    pub fn retrying(&self) -> u64 {
        self.retrying
    }

    /// Returns the number of failed tries that another followed.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Returns the number of deliveries lost with their node, for all mini-batches.
    pub fn deliveries_lost_total(&self) -> u64 {
        self.deliveries_lost
    }

    /// Returns the warnings of the attempts that count: successes, and the last attempts of failed mini-batches.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Returns the extra cost of its attempts beyond one run of each mini-batch, and the savings.
    pub fn effort(&self) -> Effort {
        self.effort.clone()
    }

    /// Returns the number of mini-batches whose speculative run succeeded first.
    pub fn copies_won(&self) -> u64 {
        self.copies_won.len() as u64
    }

    /// Whether any process has asked for the `limits` of the job.
    pub fn asked_limits(&self) -> bool {
        self.asked_limits
    }

    /// Returns the number of items that were rejected from mini-batches that succeeded.
    pub fn items_rejected(&self) -> u64 {
        self.items_rejected.values().sum()
    }

    /// Returns the number of failed items of mini-batches that succeeded: the rejected ones, and those without a result.
    pub(crate) fn items_failed_of_successes(&self) -> u64 {
        let succeeded = |entry: &&MiniBatchCounts| entry.state == MiniBatchState::Succeeded;
        let failed = |entry: &MiniBatchCounts| u64::from(entry.total - entry.succeeded);
        self.entries.iter().filter(succeeded).map(failed).sum()
    }

    /// Returns the number of mini-batches that have spent their tries, and succeeded without the items that were rejected.
    pub fn partly_failed(&self) -> u64 {
        self.partly_failed.len() as u64
    }

    /// Returns the number of attempts that changed nothing.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Writes the counts into a report of progress.
    pub(crate) fn write_counts(&self, progress: &mut Progress) {
        progress.planned = self.planned.is_some();
        progress.mini_batches = self.mini_batches();
        progress.items = self.items();
        progress.retries = self.retries;
        (progress.extra_runs, progress.items_kept) =
            (self.effort.extra_runs, self.effort.items_kept);
        progress.waited = self.effort.waited;
        progress.retrying = self.retrying;
        progress.rounds = self.round_results();
    }

    /// Returns the failures, grouped.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Returns the nodes and processes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }
}

#[cfg(test)]
mod tests;
