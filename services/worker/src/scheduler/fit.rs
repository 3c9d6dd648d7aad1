//! How many processes the job has on a node that divides its processes among several jobs, and which GPUs they use
//! first. Pure.
//!
//! Surplus processes end like worn-out ones: they get no more mini-batches, the scheduler takes back those that they have
//! not started, and asks them to exit once they have answered the rest. So a smaller share interrupts no run, and nothing
//! runs twice.

use std::cmp::Reverse;

use super::process::Life;
use super::{Moment, ProcessId, Scheduler, Stop};

/// What a job may have on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Processes, at least one.
    pub processes: u32,
    /// GPUs that its processes take first. Another GPU is better than none.
    pub gpus: Vec<u32>,
}

impl Scheduler {
    /// Starts processes, or lets surplus ones end.
    pub(super) fn fit(&mut self, share: Share, now: Moment) {
        self.gpus.prefer(share.gpus);
        let allowed = (share.processes as usize).clamp(1, self.slots.len().max(1));
        let before = std::mem::replace(&mut self.allowed, allowed);
        if before == allowed || self.stop != Stop::No || self.gave_up.is_some() {
            return;
        }
        self.log("INFO", format!("the job may have {allowed} of {} processes on this node now", self.slots.len()));
        if allowed < before { self.shrink() } else { self.grow(now) }
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
        let keeps_its_gpu = process.gpu.is_none_or(|gpu| self.gpus.prefers(gpu));
        (2, keeps_its_gpu, life, Reverse(slot))
    }

    fn grow(&mut self, now: Moment) {
        while !self.is_full() && self.gave_up.is_none() {
            // Without a GPU, the script would be slow, or fail.
            let lacks_gpu = self.gpus.are_exhausted() && self.slots.len() <= self.config.gpus as usize;
            let is_empty = |slot: &usize| self.slots[*slot].process.is_none() && !self.is_used(*slot);
            let empty = (0..self.slots.len()).find(is_empty).filter(|_| !lacks_gpu);
            if let Some(id) = self.surplus(|life| matches!(life, Life::Starting | Life::Working)) {
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

    fn surplus(&self, is_meant: impl Fn(&Life) -> bool) -> Option<ProcessId> {
        self.processes().find(|process| process.is_surplus && is_meant(&process.life)).map(|process| process.id)
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
