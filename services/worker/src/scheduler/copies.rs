//! Second starts of slow mini-batches, *copies*: the reducer publishes them when processes have nothing to do.
//!
//! A copy is a delivery of its own. It only goes to a process without work, and its failure spends no try, so a job can
//! lose it at any time. The first start is dropped only once the reducer says that a success is committed.

use std::time::Duration;

use protocol::{Descriptor, ErrorReport};

use super::mini_batch::Stage;
use super::process::{Life, Process, Verdict};
use super::{Action, Announcement, Moment, Scheduler};
use crate::lease::LeaseId;

/// How long a node without an idle process keeps a copy, before it lets other nodes have it.
const COPY_WAIT: Duration = Duration::from_secs(1);
/// Runs that are shorter have no copy yet.
const LONG: Duration = Duration::from_secs(2);

impl Process {
    pub(super) fn is_idle(&self) -> bool {
        self.takes_work() && self.pipe.is_empty()
    }
}

impl Scheduler {
    /// Whether a run takes so long that its mini-batch may have been started a second time.
    pub fn has_long_run(&self, now: Moment) -> bool {
        let is_long = |process: &Process| {
            process.pipe.front().is_some_and(|front| now.instant.duration_since(front.began.instant) >= LONG)
        };
        self.config.spec.speculation && self.processes().any(is_long)
    }

    /// Prepares copies for idle processes, and returns those that would wait.
    pub(super) fn tend_copies(&mut self, now: Moment) {
        if self.copies.is_empty() {
            return;
        }
        let mut idle = self.processes().filter(|process| process.is_idle()).count();
        for lease in std::mem::take(&mut self.copies) {
            let Some(mini_batch) = self.mini_batches.get(&lease) else { continue };
            if idle > 0 {
                idle -= 1;
                self.waiting.push_back(lease);
            } else if now.instant.duration_since(mini_batch.received) >= COPY_WAIT {
                if let Some(mini_batch) = self.mini_batches.remove(&lease) {
                    self.give_back(lease, mini_batch.unspent());
                }
            } else {
                self.copies.push(lease);
            }
        }
    }

    /// Hands copies to idle processes, never to one that runs the first start. Takes the others from those that are
    /// ready, and returns them.
    pub(super) fn hand_over_copies(&mut self, now: Moment) -> Vec<LeaseId> {
        if !self.holds_copies() {
            return Vec::new();
        }
        let is_copy = |lease: &LeaseId| self.mini_batches.get(lease).is_some_and(|held| held.descriptor.copy);
        if !self.ready.iter().any(is_copy) {
            return Vec::new();
        }
        let (copies, others): (Vec<_>, Vec<_>) = self.ready.drain(..).partition(is_copy);
        self.ready.extend(others);
        let mut kept = Vec::new();
        for lease in copies {
            let is_fit = |process: &Process| {
                process.is_idle() && process.wanted(self.limits) > 0 && self.may_run(lease, process.gpu)
            };
            let idle = self.processes().find(|process| is_fit(process)).map(|process| process.id);
            let process = idle.and_then(|idle| self.slots[idle.slot].process.as_deref_mut());
            let (Some(process), Some(mini_batch)) = (process, self.mini_batches.get_mut(&lease)) else {
                kept.push(lease);
                continue;
            };
            let id = process.id;
            let sequence = process.pipe.hand_over(lease, now);
            let front = process.pipe.front();
            let frames = vec![mini_batch.hand_over(id, sequence, None)];
            let files = mini_batch.table().into_iter().collect();
            let message = format!("{} starts mini-batch {} a second time", id.name(), mini_batch.descriptor.mini_batch);
            self.log("INFO", message);
            self.act(Action::HandOver { process: id, frames, files });
            self.begin(front);
        }
        kept
    }

    /// Whether the node may hold copies. Without them, nothing looks through the mini-batches of the node for one.
    fn holds_copies(&mut self) -> bool {
        let held = &self.mini_batches;
        self.copies_held.retain(|lease| held.contains_key(lease));
        !self.copies_held.is_empty()
    }

    /// Drops every delivery of mini-batches that were started twice and have succeeded.
    pub(super) fn settled(&mut self, mini_batches: &[u64]) {
        self.drop_where(|descriptor| mini_batches.contains(&descriptor.mini_batch));
    }

    /// Drops the copies of a mini-batch that has just succeeded on this node.
    pub(super) fn drop_copies_of(&mut self, mini_batch: u64) {
        if self.holds_copies() {
            self.drop_where(|descriptor| descriptor.copy && descriptor.mini_batch == mini_batch);
        }
    }

    fn drop_where(&mut self, is_meant: impl Fn(&Descriptor) -> bool) {
        let meant = self.mini_batches.iter().filter(|(_, held)| is_meant(&held.descriptor));
        let mut leases: Vec<LeaseId> = meant.map(|(lease, _)| *lease).collect();
        leases.sort_unstable();
        leases.into_iter().for_each(|lease| self.drop_delivery(lease));
    }

    fn drop_delivery(&mut self, lease: LeaseId) {
        let Some(mini_batch) = self.mini_batches.get(&lease) else { return };
        let number = mini_batch.descriptor.mini_batch;
        match mini_batch.stage {
            Stage::Handed { is_lease_lost: true, .. } => return,
            Stage::Handed { process: id, sequence, .. } => {
                let Some(process) = self.process_mut(id) else { return };
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
                let message = format!("another start of mini-batch {number} has succeeded, killing {}", id.name());
                self.log("INFO", message);
            }
            Stage::Waiting { .. } | Stage::Preparing { .. } | Stage::Ready(_) => {
                self.waiting.retain(|waiting| *waiting != lease);
                self.preparing.retain(|preparing| *preparing != lease);
                self.ready.retain(|ready| *ready != lease);
                self.copies.retain(|copy| *copy != lease);
            }
        }
        self.mini_batches.remove(&lease);
        self.act(Action::Announce(Announcement::Drop { lease }));
    }

    /// Kills the processes that still run a mini-batch although the job is done.
    pub(super) fn kill_slower(&mut self) {
        let slower = self.processes_where(|process| !process.pipe.is_empty());
        slower.into_iter().for_each(|process| self.kill(process));
    }
}

/// Returns the error of a copy that was lost with its node.
pub(super) fn copy_lost(descriptor: &Descriptor) -> ErrorReport {
    ErrorReport {
        category: "LostTooOften".into(),
        message: format!("the second start of mini-batch {} was lost with its node", descriptor.mini_batch),
        ..ErrorReport::default()
    }
}
