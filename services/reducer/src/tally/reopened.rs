//! What an ended job keeps when it is reopened, and what runs again.

use protocol::ErrorThresholds;

use super::{MiniBatchCounts, MiniBatchState, Tally};
use crate::failures::Failures;
use crate::nodes::Nodes;
use crate::thresholds::{exceeded, nothing_succeeded};

impl Tally {
    pub(super) fn reopen(&mut self) {
        for entry in &mut self.entries {
            match entry.state {
                MiniBatchState::Failed => self.items_failed -= u64::from(entry.total),
                MiniBatchState::Retrying | MiniBatchState::Pending => {}
                MiniBatchState::Succeeded => continue,
            }
            *entry = MiniBatchCounts::default();
        }
        self.failed = 0;
        self.retrying = 0;
        self.failures = Failures::default();
        self.warnings.reopen();
        self.ended_as = None;
        self.times_reopened += 1;
        self.begin_session();
    }

    /// Resets nodes, processes and a failure to plan, which belong to an earlier run.
    pub fn begin_session(&mut self) {
        self.nodes = Nodes::default();
        self.plan_failure = None;
    }

    /// Returns how often the job has been reopened.
    pub fn times_reopened(&self) -> u64 {
        self.times_reopened
    }

    /// Returns how often ended mini-batches became pending again: outcomes that were known before may be new since.
    pub(crate) fn times_reverted(&self) -> u64 {
        self.times_reopened + self.times_rows_lost
    }

    /// Returns the mini-batches that succeeded without some of their items, if these items alone would fail the reopened job
    /// again at once: nothing could continue it otherwise, however its script was corrected. `collects_rows`: a job without
    /// rows fails.
    pub(crate) fn that_fail_again(&self, limits: &ErrorThresholds, collects_rows: bool) -> Vec<u64> {
        let lacks_items = |mini_batch: &u64| {
            let entry = self.entry(*mini_batch);
            entry.state == MiniBatchState::Succeeded && entry.succeeded < entry.total
        };
        let incomplete: Vec<u64> = (0..self.seen()).filter(lacks_items).collect();
        if incomplete.is_empty() {
            return incomplete;
        }
        let mut reopened = self.clone();
        reopened.reopen();
        let has_nothing = collects_rows && reopened.is_complete() && nothing_succeeded(&reopened).is_some();
        let fails = has_nothing || exceeded(&reopened, limits, false).is_some();
        if fails { incomplete } else { Vec::new() }
    }
}
