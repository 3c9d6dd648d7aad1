//! Second starts of slow mini-batches, *copies*: the reducer publishes them when processes have nothing to do.
//!
//! A copy is a delivery of its own. It only goes to a process without work, and its failure spends
//! no try, so a job can lose it at any time. The first start is dropped only once the reducer says
//! that a success is committed. Without an idle process the node returns a copy after a second.

use std::time::Duration;

use protocol::{Descriptor, ErrorReport};
use rustc_hash::FxHashSet;

use super::mini_batch::Stage;
use super::process::{Life, Process, Verdict};
use super::{Action, Announcement, Moment, Scheduler};
use crate::lease::LeaseId;

/// How long a node keeps what it does not run, a copy without an idle process or what other nodes should try first,
/// before it lets other nodes have it.
const POSTPONED_FOR: Duration = Duration::from_secs(1);
/// Runs that are shorter have no copy yet.
const LONG: Duration = Duration::from_secs(2);

impl Process {
    pub(super) fn is_idle(&self) -> bool {
        self.takes_work() && self.pipe.is_empty()
    }

    /// Whether it may have a mini-batch at once.
    pub(super) fn is_free(&self) -> bool {
        self.is_idle() && self.wanted() > 0
    }
}

impl Scheduler {
    /// Whether a run takes so long that its mini-batch may have been started a second time.
    pub fn has_long_run(&self, now: Moment) -> bool {
        let is_long = |process: &Process| {
            process
                .pipe
                .front()
                .is_some_and(|front| now.instant.duration_since(front.began.instant) >= LONG)
        };
        self.config.spec.speculation && self.processes.iter().any(is_long)
    }

    /// Prepares copies for idle processes, and returns those that would wait, together with what other nodes should try
    /// first.
    pub(super) fn tend_postponed(&mut self, now: Moment) {
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
        self.give_back_all(returned);
    }

    /// Hands copies to idle processes, never to one that runs the first start. Returns how many are left, behind all
    /// others that are ready.
    pub(super) fn hand_over_copies(&mut self, now: Moment) -> usize {
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
            self.log(
                "INFO",
                format!("{} starts mini-batch {number} a second time", process.name()),
            );
            self.hand_over_to(process.slot, &[lease], now);
        }
        left
    }

    /// Drops every delivery of mini-batches that were started twice and have succeeded.
    pub(super) fn settled(&mut self, mini_batches: &[u64]) {
        let settled: FxHashSet<u64> = mini_batches.iter().copied().collect();
        self.drop_where(|descriptor| settled.contains(&descriptor.mini_batch));
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
            Stage::Handed { is_lease_lost: true, .. } => return,
            Stage::Handed { process: id, sequence, .. } => {
                let Some(process) = self.processes.get_mut(id) else { return };
                // Behind another run, it is about to be recalled.
                if process.pipe.front().is_none_or(|front| front.sequence != sequence) {
                    return;
                }
                process.pipe.remove(sequence);
                let front = process.pipe.front();
                if !process.is_killed() {
                    process.life = Life::Killed(Verdict::Expected);
                    self.act(Action::Kill(id));
                }
                self.begin(front);
                let message = format!(
                    "another start of mini-batch {number} has succeeded, killing {}",
                    id.name()
                );
                self.log("INFO", message);
            }
            _ => {}
        }
        self.mini_batches.remove(lease);
        self.act(Action::Announce(Announcement::Drop { lease }));
    }

    /// Kills the processes that still run a mini-batch although the job is done.
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
            "the second start of mini-batch {} was lost with its node",
            descriptor.mini_batch
        ),
        ..ErrorReport::default()
    }
}
