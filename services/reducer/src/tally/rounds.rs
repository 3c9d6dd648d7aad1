//! The results that a job keeps when another round begins, and the mini-batches that run again.
//!
//! A mini-batch that runs its rejected items again is pending. Its items with results count all the time. If it fails, its
//! other counts return; if it succeeds, the new counts replace all of them.

use protocol::{Attempt, FileVersion, JobState, Kept, Rerun, Round, RoundResult};

use super::{MiniBatchCounts, MiniBatchState, Tally};
use crate::failures::{Failures, error_sentence};
use crate::nodes::Nodes;

/// A round of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct JobRound {
    id: String,
    /// Digest of its script.
    script: String,
    /// Without its counts while it is the last one.
    result: RoundResult,
}

/// A mini-batch that runs again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunsAgain {
    /// The round, from 1.
    round: u32,
    /// Its earlier success, unless it had failed.
    earlier: Option<EarlierSuccess>,
    /// Number of its items without a result.
    lacks: u64,
    /// Whether the round has begun while the job ran.
    is_live: bool,
}

/// The success of a mini-batch in an earlier round.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EarlierSuccess {
    counts: MiniBatchCounts,
    items_rejected: Option<u64>,
    is_partly_failed: bool,
    /// Whether an object holds its rows, so that only the other items run.
    is_kept: bool,
}

impl Tally {
    /// Begins another round. Unless it continues an interrupted one, unfinished mini-batches get
    /// all their tries again.
    pub(crate) fn begin_round(&mut self, round: &Round) {
        if self.rounds.is_empty() {
            self.rounds.push(JobRound::default());
        }
        let mut last = self.last_result(round.is_live.then_some(JobState::Running));
        let is_unwritten = last.only_output && round.output.is_none();
        if is_unwritten && last.state == Some(JobState::Completed) {
            // No event says that an output could not be written.
            last.state = (!round.goes_on).then_some(JobState::Failed);
        }
        self.rounds.last_mut().expect("it has one").result = last;
        let failed = self.failed;
        let has_begun_anew = !(round.goes_on || round.is_live);
        let planned = self
            .planned
            .as_ref()
            .filter(|_| has_begun_anew)
            .map_or(0, |planned| planned.mini_batches);
        let unfinished = planned.saturating_sub(self.succeeded + failed);
        let number = u32::try_from(self.rounds.len()).unwrap_or(u32::MAX);
        if !round.goes_on {
            self.run_anew(round, number);
        }
        self.ended_as = None;
        self.written = round.output.clone().or(self.written.take());
        let result = RoundResult {
            at: Some(round.at),
            goes_on: round.goes_on,
            failed: failed - self.failed,
            rejected: round.items + self.lacking(number),
            unfinished,
            only_output: has_begun_anew && self.is_complete(),
            has_other_script: round.has_other_script,
            ..RoundResult::default()
        };
        self.rounds.push(JobRound { id: round.id.clone(), script: round.script.clone(), result });
        if !round.is_live {
            // Everything is published anew.
            self.again.values_mut().for_each(|again| again.is_live = false);
            self.begin_session();
        }
    }

    /// Returns the mini-batches that run again in rounds after this one that have begun while the job ran.
    pub(crate) fn run_again_since(&self, round: u64) -> Vec<u64> {
        let is_later = |again: &RunsAgain| again.is_live && u64::from(again.round) > round;
        self.again
            .iter()
            .filter(|(_, again)| is_later(again))
            .map(|(mini_batch, _)| *mini_batch)
            .collect()
    }

    /// Returns the number of items without a result of the successes that a round runs as a whole.
    fn lacking(&self, round: u32) -> u64 {
        let is_whole =
            |again: &&RunsAgain| again.earlier.as_ref().is_some_and(|earlier| !earlier.is_kept);
        self.again
            .values()
            .filter(|again| again.round == round)
            .filter(is_whole)
            .map(|again| again.lacks)
            .sum()
    }

    /// Returns the result of the last round. `open`: its state if no event has ended the job, and
    /// not all has ended.
    fn last_result(&self, open: Option<JobState>) -> RoundResult {
        let state = self.ended_as.as_ref().map(|(state, ..)| *state);
        let state = state.or(if self.is_complete() { Some(JobState::Completed) } else { open });
        let last = self.rounds.last().map(|round| round.result.clone()).unwrap_or_default();
        RoundResult { state, mini_batches: self.mini_batches(), items: self.items(), ..last }
    }

    /// Returns the rounds of the job; none if there was only one.
    pub fn round_results(&self) -> Vec<RoundResult> {
        let [before @ .., _] = self.rounds.as_slice() else { return Vec::new() };
        let last = self.last_result(Some(JobState::Running));
        before.iter().map(|round| round.result.clone()).chain([last]).collect()
    }

    /// Returns the digest of the script of the last round; `None`: it is the first.
    pub(crate) fn script(&self) -> Option<&str> {
        self.rounds.last().map(|round| round.script.as_str())
    }

    /// Returns the version of the output that the job wrote in an earlier round.
    pub fn written(&self) -> Option<&FileVersion> {
        self.written.as_ref()
    }

    fn run_anew(&mut self, round: &Round, number: u32) {
        let forgets_failures = round.failed || self.failed == 0;
        let runs_rejects = !(round.rejects.is_empty() && round.whole.is_empty());
        if forgets_failures {
            self.last_failures = Failures::default();
            self.failures = self.last_rejects.clone();
        }
        if runs_rejects {
            self.last_rejects = Failures::default();
            self.failures = self.last_failures.clone();
        }
        for (mini_batch, entry) in (0..).zip(&mut self.entries) {
            match entry.state {
                MiniBatchState::Failed if round.failed => {
                    let lacks = u64::from(entry.total);
                    self.items_failed -= lacks;
                    self.items_again += lacks;
                    let again =
                        RunsAgain { round: number, earlier: None, lacks, is_live: round.is_live };
                    self.again.insert(mini_batch, again);
                }
                MiniBatchState::Failed | MiniBatchState::Succeeded => continue,
                MiniBatchState::Retrying | MiniBatchState::Pending if round.is_live => continue,
                MiniBatchState::Retrying | MiniBatchState::Pending => {}
            }
            *entry = MiniBatchCounts::default();
        }
        if round.failed {
            self.failed = 0;
            self.warnings.reopen();
        }
        for (mini_batches, is_kept) in [(&round.rejects, true), (&round.whole, false)] {
            let again =
                RunsAgain { round: number, earlier: None, lacks: 0, is_live: round.is_live };
            mini_batches
                .iter()
                .for_each(|&mini_batch| self.run_again(mini_batch, again.clone(), is_kept));
        }
        if !round.is_live {
            self.retrying = 0;
        }
        self.unimproved = Default::default();
    }

    fn run_again(&mut self, mini_batch: u64, again: RunsAgain, is_kept: bool) {
        let entry = usize::try_from(mini_batch).ok().and_then(|index| self.entries.get_mut(index));
        let Some(entry) = entry.filter(|entry| entry.state == MiniBatchState::Succeeded) else {
            return;
        };
        let counts = std::mem::take(entry);
        self.succeeded -= 1;
        let lacks = u64::from(counts.total - counts.succeeded);
        self.items_failed -= lacks;
        self.items_again += lacks;
        let items_rejected = self.items_rejected.remove(&mini_batch);
        let is_partly_failed = self.partly_failed.remove(&mini_batch);
        let earlier = Some(EarlierSuccess { counts, items_rejected, is_partly_failed, is_kept });
        self.again.insert(mini_batch, RunsAgain { earlier, lacks, ..again });
    }

    /// Whether an attempt belongs to a round before the one that replaces the result of its
    /// mini-batch: its success has been counted.
    pub(super) fn is_of_earlier_round(&self, mini_batch: u64, round: u32) -> bool {
        let is_earlier = |again: &RunsAgain| again.earlier.is_some() && round < again.round;
        !self.again.is_empty() && self.again.get(&mini_batch).is_some_and(is_earlier)
    }

    /// Forgets the earlier result of a mini-batch, because it succeeds.
    pub(super) fn drops_earlier(&mut self, mini_batch: u64) {
        if !self.again.is_empty()
            && self.entry(mini_batch).state != MiniBatchState::Succeeded
            && let Some(RunsAgain { earlier, lacks, .. }) = self.again.remove(&mini_batch)
        {
            self.items_succeeded -=
                earlier.map_or(0, |earlier| u64::from(earlier.counts.succeeded));
            self.items_again -= lacks;
        }
    }

    /// Restores the earlier result of a mini-batch, because it has failed. Returns whether it had
    /// one.
    pub(super) fn restores_earlier(&mut self, index: usize, attempt: &Attempt) -> bool {
        let mini_batch = attempt.mini_batch;
        let Some(RunsAgain { earlier, lacks, .. }) = self.again.remove(&mini_batch) else {
            return false;
        };
        self.items_again -= lacks;
        let Some(earlier) = earlier else { return false };
        self.restore_earlier(index, earlier);
        self.failures.forgive(mini_batch);
        self.unimproved.count += 1;
        self.unimproved.first.get_or_insert_with(|| {
            let error = attempt.error.as_deref().map(error_sentence);
            (mini_batch, error.unwrap_or_else(|| attempt.status.report_word().to_owned()))
        });
        true
    }

    /// Restores the earlier results of unfinished mini-batches: no other attempt of the round
    /// counts.
    pub(super) fn restore_all_earlier(&mut self) {
        let earlier: Vec<_> =
            self.again.extract_if(.., |_, again| again.earlier.is_some()).collect();
        for (mini_batch, RunsAgain { earlier, lacks, .. }) in earlier {
            self.items_again -= lacks;
            let index = usize::try_from(mini_batch).expect("64-bit machine");
            self.retrying -= u64::from(self.entries[index].state == MiniBatchState::Retrying);
            earlier.into_iter().for_each(|earlier| self.restore_earlier(index, earlier));
        }
    }

    fn restore_earlier(&mut self, index: usize, earlier: EarlierSuccess) {
        let EarlierSuccess { counts, items_rejected, is_partly_failed, .. } = earlier;
        let tried = self.entries[index];
        // The spent tries stay, so that a message that is delivered twice changes nothing.
        self.entries[index] =
            MiniBatchCounts { tries: tried.tries, retries: tried.retries, ..counts };
        self.entries[index].deliveries_lost = counts.deliveries_lost.max(tried.deliveries_lost);
        self.succeeded += 1;
        self.items_failed += u64::from(counts.total - counts.succeeded);
        let mini_batch = index as u64;
        self.items_rejected.extend(items_rejected.map(|items| (mini_batch, items)));
        self.partly_failed.extend(is_partly_failed.then_some(mini_batch));
    }

    /// Forgets the earlier result of a pending mini-batch, because its rows are lost.
    pub(super) fn loses_earlier(&mut self, mini_batch: u64) {
        if let Some(RunsAgain { earlier, lacks, .. }) = self.again.get_mut(&mini_batch)
            && let Some(earlier) = earlier.take()
        {
            self.items_succeeded -= u64::from(earlier.counts.succeeded);
            self.items_again -= std::mem::take(lacks);
        }
    }

    /// Returns how a mini-batch runs again; `None`: it runs for the first time.
    pub fn again(&self, mini_batch: u64) -> Option<Rerun> {
        let &RunsAgain { round, ref earlier, .. } = self.again.get(&mini_batch)?;
        let is_kept = earlier.as_ref().is_some_and(|earlier| earlier.is_kept);
        let kept = is_kept.then(|| Kept::name(mini_batch, &self.rounds[round as usize].id));
        Some(Rerun { round, kept })
    }

    /// Returns the mini-batches that have succeeded without some of their items.
    pub(crate) fn incomplete(&self) -> Vec<u64> {
        let lacks_items = |mini_batch: &u64| {
            let entry = self.entry(*mini_batch);
            entry.state == MiniBatchState::Succeeded && entry.succeeded < entry.total
        };
        (0..self.seen()).filter(lacks_items).collect()
    }

    /// Resets nodes, processes and a failure to plan, which belong to an earlier run.
    pub fn begin_session(&mut self) {
        self.nodes = Nodes::default();
        self.plan_failure = None;
    }

    /// Returns the number of rounds after the first.
    pub fn rounds(&self) -> u64 {
        self.rounds.len().saturating_sub(1) as u64
    }

    /// Returns how often ended mini-batches became pending again: outcomes that were known before may be new since.
    pub(crate) fn times_reverted(&self) -> u64 {
        self.rounds() + self.times_rows_lost
    }
}
