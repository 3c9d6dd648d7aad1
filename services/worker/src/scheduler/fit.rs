//! How many processes the job has on a node that divides its processes among several jobs, and which GPUs they use.
//! Pure.
//!
//! Surplus processes end like worn-out ones: they get no more mini-batches, the scheduler takes back those that they have
//! not started, and asks them to exit once they have answered the rest. So a smaller share interrupts no run, and nothing
//! runs twice. A process with a GPU that the job has no longer ends in the same way, and another one follows it if the
//! job may have as many. The node learns which GPUs are still in use, and gives none of them to another job.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::process::{Life, Process};
use super::{Action, Announcement, Moment, Outcome, ProcessId, Scheduler, Stop};

/// What a job may have on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Processes; none while the job waits for a GPU, or makes room for other jobs.
    pub processes: u32,
    /// GPUs that its processes may use. A job with more processes than GPUs shares them among its processes.
    pub gpus: Vec<u32>,
    /// Number of this share: what the agent says is in use holds for the last share that it knew.
    pub number: u64,
}

/// What an agent says about processes and GPUs, under a share with this number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    pub number: u64,
    /// Processes of the job that have not ended.
    pub processes: usize,
    /// `init()` has returned in one of them.
    pub is_ready: bool,
    /// An attempt of the job has ended here, so a turn was of use.
    pub has_ended_one: bool,
    /// GPUs that processes of the job may use.
    pub gpus: BTreeSet<u32>,
    /// GPUs that keep failing, so that the job uses them no longer.
    pub failing: BTreeSet<u32>,
}

impl Scheduler {
    /// Starts processes, or lets surplus ones end.
    pub(super) fn fit(&mut self, share: Share, now: Moment) {
        let used = self.processes().filter_map(|process| process.gpu).collect();
        self.gpus.own(&share, &used);
        let allowed = (share.processes as usize).min(self.slots.len());
        let before = std::mem::replace(&mut self.allowed, allowed);
        if self.stop != Stop::No || self.gave_up.is_some() {
            return;
        }
        let displaced = self.displace();
        if before != allowed {
            self.log("INFO", format!("the job may have {allowed} of {} processes on this node now", self.slots.len()));
        }
        if self.used_slots().count() > allowed {
            self.shrink()
        } else {
            self.grow(now)
        }
        displaced.into_iter().for_each(|process| self.recall(process));
    }

    /// Marks the processes with a GPU that the job has no longer. Returns those that were not marked before.
    fn displace(&mut self) -> Vec<ProcessId> {
        let (gpus, slots) = (&self.gpus, &mut self.slots);
        let mut displaced = Vec::new();
        for process in slots.iter_mut().filter_map(|slot| slot.process.as_deref_mut()) {
            let is_displaced = process.gpu.iter().chain(&process.sees).any(|gpu| !gpus.owns(*gpu));
            if is_displaced && !std::mem::replace(&mut process.is_displaced, is_displaced) {
                displaced.push(process.id);
            }
            process.is_displaced = is_displaced;
        }
        displaced
    }

    /// Returns the processes of the job, and which GPUs they may use, if that has changed since the last call.
    pub fn in_use(&mut self) -> Option<InUse> {
        let processes = || self.slots.iter().filter_map(|slot| slot.process.as_deref());
        let is_ready = || processes().any(|process| matches!(process.life, Life::Working));
        let in_use =
            self.gpus.in_use(processes().flat_map(|process| process.gpu.iter().chain(&process.sees).copied()))?;
        let has_ended_one = self.has_ended_one;
        Some(InUse { processes: processes().count(), is_ready: is_ready(), has_ended_one, ..in_use })
    }

    /// Announces the outcome of an attempt.
    pub(super) fn announce_outcome(&mut self, outcome: Box<Outcome>) {
        if !std::mem::replace(&mut self.has_ended_one, true) {
            self.gpus.report_again();
        }
        self.act(Action::Announce(Announcement::Outcome(outcome)));
    }

    /// Whether a slot has a process that stays, or gets one.
    fn is_used(&self, slot: usize) -> bool {
        let slot = &self.slots[slot];
        slot.start_at.is_some() || slot.process.as_deref().is_some_and(|process| !process.is_surplus)
    }

    /// Returns the slots that have a process that stays, or get one.
    pub(super) fn used_slots(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|slot| self.is_used(*slot))
    }

    /// Whether the job has all processes that it may have.
    pub(super) fn is_full(&self) -> bool {
        self.used_slots().count() >= self.allowed
    }

    fn shrink(&mut self) {
        let mut used: Vec<usize> = self.used_slots().collect();
        used.sort_by_key(|slot| self.worth(*slot));
        for slot in used.iter().copied().take(used.len().saturating_sub(self.allowed)) {
            self.slots[slot].start_at = None;
            let Some(process) = self.slots[slot].process.as_deref_mut() else { continue };
            process.is_surplus = true;
            let id = process.id;
            self.recall(id);
        }
        self.has_shrunk = true;
    }

    /// Returns how much is lost if a slot is given up: a process with work is worth the most.
    fn worth(&self, slot: usize) -> (u8, bool, u8, Reverse<usize>) {
        let Some(process) = self.slots[slot].process.as_deref() else { return (0, false, 0, Reverse(slot)) };
        let life = match process.life {
            Life::Starting => 0,
            Life::Working if process.pipe.is_empty() => 1,
            Life::Working => 2,
            Life::InitFailed | Life::Finishing { .. } | Life::Killed(_) | Life::Ended(_) => {
                return (1, false, 0, Reverse(slot));
            }
        };
        (2, !process.is_displaced, life, Reverse(slot))
    }

    fn grow(&mut self, now: Moment) {
        while !self.is_full() && self.gave_up.is_none() {
            // Without a GPU, the script would be slow, or fail.
            let lacks_gpu = self.gpus.are_exhausted() && self.slots.len() <= self.config.gpus as usize;
            let is_empty = |slot: &usize| self.slots[*slot].process.is_none() && !self.is_used(*slot);
            let empty = (0..self.slots.len()).find(is_empty).filter(|_| !lacks_gpu);
            let stays =
                |process: &Process| matches!(process.life, Life::Starting | Life::Working) && !process.is_displaced;
            if let Some(id) = self.surplus(stays) {
                self.keep(id);
            } else if let Some(slot) = empty {
                self.plan_start(slot, None, now);
            } else if let Some(id) = self.surplus(|_| true) {
                // Another process follows it.
                self.keep(id);
            } else {
                return;
            }
        }
    }

    fn surplus(&self, is_meant: impl Fn(&Process) -> bool) -> Option<ProcessId> {
        self.processes().find(|process| process.is_surplus && is_meant(process)).map(|process| process.id)
    }

    fn keep(&mut self, id: ProcessId) {
        if let Some(process) = self.process_mut(id) {
            process.is_surplus = false;
        }
    }

    /// Returns mini-batches that fewer processes will not need soon to the queue, the last ones first.
    pub(super) fn return_excess(&mut self) {
        if !std::mem::take(&mut self.has_shrunk) || self.stop != Stop::No {
            return;
        }
        let unstarted = self.waiting.len() + self.preparing.len() + self.ready.len();
        let mut excess = unstarted.saturating_sub(self.depth());
        let mut returned = Vec::new();
        for queue in [&mut self.waiting, &mut self.ready] {
            while excess > 0
                && let Some(lease) = queue.pop_back_if(|lease| {
                    self.mini_batches.get(&*lease).is_some_and(|mini_batch| mini_batch.isolation.is_none())
                })
            {
                excess -= 1;
                returned.push(lease);
            }
        }
        for lease in returned {
            if let Some(mini_batch) = self.mini_batches.remove(&lease) {
                self.give_back(lease, mini_batch.unspent());
            }
        }
    }
}
