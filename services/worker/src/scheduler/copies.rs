//! Copies of slow mini-batches, which the reducer publishes when processes are idle.
//!
//! A copy is a delivery of its own. It goes only to an idle process, and its failure spends no try,
//! so a job can lose it at any time. The node drops the original only once the reducer says that a
//! success is committed. Without an idle process the node returns a copy after a second.

use std::time::Duration;

use protocol::{Descriptor, ErrorReport};
use rustc_hash::FxHashSet;

use super::mini_batch::Stage;
use super::process::{ExitKind, Process, ProcessState};
use super::{Action, Announcement, Scheduler, Timestamp};
use crate::lease::LeaseId;

/// How long a node holds a postponed mini-batch before it returns it: a copy without an idle
/// process, or a mini-batch that other nodes should try first.
const POSTPONED_FOR: Duration = Duration::from_secs(1);
/// Shorter runs have no copy yet.
const LONG: Duration = Duration::from_secs(2);

impl Process {
    pub(super) fn is_idle(&self) -> bool {
        self.takes_work() && self.pipe.is_empty()
    }

    /// Whether it may get a mini-batch at once.
    pub(super) fn is_free(&self) -> bool {
        self.is_idle() && self.wanted() > 0
    }
}

impl Scheduler {
    /// Whether a run is long enough for a reducer to have copied its mini-batch.
    pub fn has_long_run(&self, now: Timestamp) -> bool {
        let is_long = |process: &Process| {
            process
                .pipe
                .front()
                .is_some_and(|front| now.instant.duration_since(front.began.instant) >= LONG)
        };
        self.config.spec.speculation && self.processes.iter().any(is_long)
    }

    /// Prepares copies for idle processes, and returns to the queue copies without one, and
    /// mini-batches that other nodes should try first.
    pub(super) fn process_postponed(&mut self, now: Timestamp) {
        if !self.mini_batches.has_postponed() {
            return;
        }
        self.mini_batches
            .resume_copies(self.processes.iter().filter(|process| process.is_idle()).count());
        let leases = self.mini_batches.leases(|mini_batch| {
            let waits = matches!(mini_batch.stage, Stage::Postponed { .. });
            waits && now.instant.duration_since(mini_batch.received) >= POSTPONED_FOR
        });
        let leases =
            leases.into_iter().filter(|lease| !self.is_in_quarantine(*lease)).collect::<Vec<_>>();
        let returned =
            leases.into_iter().filter_map(|lease| Some((lease, self.mini_batches.remove(lease)?)));
        let returned = returned.collect();
        self.return_all(returned);
    }

    /// Hands copies to idle processes, never to the one that runs the original. Returns the number
    /// of copies left, which come after all other ready mini-batches.
    pub(super) fn hand_over_copies(&mut self, now: Timestamp) -> usize {
        let mut left = 0;
        for lease in self.mini_batches.put_copies_last() {
            let is_fit = |process: &&Process| {
                process.is_free() && self.may_run(lease, process.gpus.as_ref())
            };
            let process = self.processes.iter().find(is_fit).map(|process| process.id);
            let (Some(process), Some(mini_batch)) = (process, self.mini_batches.get(lease)) else {
                left += 1;
                continue;
            };
            let number = mini_batch.descriptor.mini_batch;
            self.log("INFO", format!("{} runs mini-batch {number} speculatively", process.name()));
            self.hand_over_to(process.slot, &[lease], now);
        }
        left
    }

    /// Drops every delivery of copied mini-batches that have succeeded.
    pub(super) fn decided(&mut self, mini_batches: &[u64]) {
        let decided: FxHashSet<u64> = mini_batches.iter().copied().collect();
        self.drop_where(|descriptor| decided.contains(&descriptor.mini_batch));
    }

    /// Drops the copies of a mini-batch that has just succeeded on this node.
    pub(super) fn drop_copies_of(&mut self, mini_batch: u64) {
        if self.mini_batches.has_copies() {
            self.drop_where(|descriptor| descriptor.copy && descriptor.mini_batch == mini_batch);
        }
    }

    fn drop_where(&mut self, is_meant: impl Fn(&Descriptor) -> bool) {
        let leases = self.mini_batches.leases(|held| is_meant(&held.descriptor));
        leases.into_iter().for_each(|lease| self.drop_delivery(lease));
    }

    fn drop_delivery(&mut self, lease: LeaseId) {
        let Some(mini_batch) = self.mini_batches.get(lease) else { return };
        let number = mini_batch.descriptor.mini_batch;
        match mini_batch.stage {
            Stage::PipedMiniBatch { is_lease_lost: true, .. } => return,
            Stage::PipedMiniBatch { process: id, sequence, .. } => {
                let Some(process) = self.processes.get_mut(id) else { return };
                // Behind another run, it is about to be recalled.
                if process.pipe.front().is_none_or(|front| front.sequence != sequence) {
                    return;
                }
                process.pipe.remove(sequence);
                let front = process.pipe.front();
                if !process.is_killed() {
                    process.state = ProcessState::Killed(ExitKind::Expected);
                    self.act(Action::Kill(id));
                }
                self.begin(front);
                let message = format!(
                    "another run of mini-batch {number} has succeeded, killing {}",
                    id.name()
                );
                self.log("INFO", message);
            }
            _ => {}
        }
        self.mini_batches.remove(lease);
        self.act(Action::Announce(Announcement::Drop { lease }));
    }

    /// Kills the processes that still run a copied mini-batch although the job is done.
    pub(super) fn kill_slower(&mut self) {
        let slower = self.processes.ids(|process| !process.pipe.is_empty());
        slower.into_iter().for_each(|process| self.kill(process));
    }
}

/// Returns the error of a copy that was lost with its node.
pub(super) fn copy_lost(descriptor: &Descriptor) -> ErrorReport {
    ErrorReport {
        category: "LostTooOften".into(),
        message: format!(
            "the speculative run of mini-batch {} was lost with its node",
            descriptor.mini_batch
        ),
        ..ErrorReport::default()
    }
}
