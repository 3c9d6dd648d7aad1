//! Decides how many processes the job has on a node with several jobs, and which GPUs they use.
//! Pure.
//!
//! Surplus processes end like worn-out ones: they get no more mini-batches, the scheduler takes
//! back those that they have not started, and asks them to exit once they have answered the rest.
//! So a smaller allocation interrupts no run, and nothing runs twice. A process with a GPU that the
//! job has no longer ends in the same way, and another one follows it if the job may have as many.
//! The node learns which GPUs are still in use, and gives none of them to another job.

use std::collections::BTreeSet;

use super::process::{Process, ProcessState};
use super::{Scheduler, Timestamp};
use crate::gpu::processes_with_gpus;

/// The processes and GPUs that the agent of a job may use now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentAllocation {
    /// Processes; none while the job waits for a GPU, or makes room for other jobs.
    pub processes: u32,
    /// GPUs that its processes may use. A job with more processes than GPUs shares them among its processes.
    pub gpus: Vec<u32>,
    /// Number of this allocation: a report of the agent refers to the last allocation that it had
    /// received.
    pub number: u64,
}

/// The processes and GPUs of an agent, under the allocation with this number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationReport {
    pub number: u64,
    /// Processes of the job that have not ended.
    pub processes: usize,
    /// `init()` has returned in one of them.
    pub is_ready: bool,
    /// An attempt of the job has ended here, so its time slice was of use.
    pub has_ended_one: bool,
    /// GPUs that processes of the job may use.
    pub gpus: BTreeSet<u32>,
    /// GPUs that keep failing, so that the job uses them no longer.
    pub failing: BTreeSet<u32>,
}

impl Scheduler {
    /// Starts processes, or lets surplus ones end.
    pub(super) fn fit(&mut self, allocation: AgentAllocation, now: Timestamp) {
        self.gpus.own(&allocation);
        let has_other_number = self.processes.allow(allocation.processes);
        if !self.stopping.may_start() {
            return;
        }
        let displaced = self.processes.displace(&self.gpus);
        if has_other_number {
            let (allowed, all) = (self.processes.allowed(), self.processes.slots());
            self.log(
                "INFO",
                format!("the job may have {allowed} of {all} processes on this node now"),
            );
        }
        match self.processes.shrink() {
            Some(surplus) => surplus.into_iter().for_each(|process| self.recall(process)),
            None => self.grow(now),
        }
        displaced.into_iter().for_each(|process| self.recall(process));
    }

    /// Returns the processes of the job, and which GPUs they may use, if that has changed since the last call.
    pub fn in_use(&mut self) -> Option<AllocationReport> {
        let processes = || self.processes.iter();
        let gpus = processes().flat_map(Process::visible_gpus).copied();
        let in_use = self.gpus.in_use(gpus)?;
        let is_ready = processes().any(|process| matches!(process.state, ProcessState::Working));
        let has_ended_one = self.notices.has_ended_one();
        Some(AllocationReport { processes: processes().count(), is_ready, has_ended_one, ..in_use })
    }

    fn grow(&mut self, now: Timestamp) {
        while !self.processes.are_full() && self.stopping.may_start() {
            // Without a GPU, the script would be slow, or fail.
            let with_gpus = processes_with_gpus(&self.config.spec, self.config.gpus);
            let lacks_gpu =
                self.gpus.are_exhausted() && self.processes.slots() <= with_gpus as usize;
            let stays = |process: &Process| {
                matches!(process.state, ProcessState::Starting | ProcessState::Working)
                    && !process.is_displaced
            };
            if self.processes.keep(stays) {
                continue;
            }
            match self.processes.first_empty_slot().filter(|_| !lacks_gpu) {
                Some(slot) => self.plan_start(slot, None, now),
                // Another process follows it.
                None if self.processes.keep(|_| true) => {}
                None => return,
            }
        }
    }

    /// Returns mini-batches that fewer processes will not need soon to the queue, the last ones first.
    pub(super) fn return_excess(&mut self) {
        if self.processes.have_shrunk() && self.stopping.is_working() {
            let excess = self.mini_batches.unstarted().saturating_sub(self.processes.depth());
            let returned = self.mini_batches.take_last(excess);
            self.return_all(returned);
        }
    }
}
