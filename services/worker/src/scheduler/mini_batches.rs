//! The mini-batches that this node holds. Pure.
//!
//! A mini-batch that no process holds is in the queue of its stage. Only this file changes stages, and it updates the queues
//! with them. One that another node has lost comes before the others, because its items have waited longest.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use protocol::{Descriptor, Kept, MiniBatchFrame, TableForm};
use rustc_hash::FxHashMap;

use super::Timestamp;
use super::isolation::Isolation;
use super::mini_batch::{MiniBatch, Stage};
use super::pipe::PipedMiniBatch;
use super::process::{Process, ProcessId};
use crate::lease::LeaseId;
use crate::prepare::{Preparation, Prepared};

/// The mini-batches under leases of this node.
#[derive(Default)]
pub(super) struct MiniBatches {
    held: FxHashMap<LeaseId, MiniBatch>,
    /// The leases in each stage before a process holds the mini-batch, in order.
    waiting: VecDeque<LeaseId>,
    postponed: VecDeque<LeaseId>,
    preparing: VecDeque<LeaseId>,
    ready: VecDeque<LeaseId>,
    /// The mini-batches that run in ranges, in the order of their beginning.
    isolated: Vec<LeaseId>,
    /// How many are copies.
    copies: usize,
    /// The sum of their memory, which every preparation needs.
    bytes: u64,
    /// Abandoned preparations that still run, with the memory that they may occupy: they took too long, or the node
    /// lost their lease. A file system that hangs must not get more and more readers.
    abandoned: FxHashMap<LeaseId, u64>,
}

impl MiniBatches {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &MiniBatch> {
        self.held.values()
    }

    pub(super) fn get(&self, lease: LeaseId) -> Option<&MiniBatch> {
        self.held.get(&lease)
    }

    /// Returns the leases of those that are meant.
    pub(super) fn leases(&self, is_meant: impl Fn(&MiniBatch) -> bool) -> Vec<LeaseId> {
        let meant = self.held.iter().filter(|(_, held)| is_meant(held));
        let mut leases: Vec<LeaseId> = meant.map(|(lease, _)| *lease).collect();
        leases.sort_unstable();
        leases
    }

    /// Returns the memory that they and abandoned preparations occupy or will occupy.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many preparations have not ended.
    pub(super) fn preparations(&self) -> usize {
        self.preparing.len() + self.abandoned.len()
    }

    /// Whether the node holds a mini-batch that no process holds.
    pub(super) fn has_unstarted(&self) -> bool {
        self.has_postponed() || self.unstarted() > 0
    }

    /// Returns the number of those that no process has, without the postponed ones.
    pub(super) fn unstarted(&self) -> usize {
        self.waiting.len() + self.preparing.len() + self.ready.len()
    }

    pub(super) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    pub(super) fn has_copies(&self) -> bool {
        self.copies > 0
    }

    pub(super) fn preparing(&self) -> impl ExactSizeIterator<Item = &MiniBatch> {
        self.preparing.iter().map(|lease| &self.held[lease])
    }

    /// Returns the leases of those that wait for a process, in order.
    pub(super) fn ready(&self) -> impl ExactSizeIterator<Item = LeaseId> {
        self.ready.iter().copied()
    }

    /// Returns the leases of those that run in ranges.
    pub(super) fn isolated(&self) -> &[LeaseId] {
        &self.isolated
    }

    /// Whether a mini-batch is handed over in ranges.
    pub(super) fn is_isolated(&self, lease: LeaseId) -> bool {
        self.isolated.contains(&lease)
    }

    pub(super) fn isolation_mut(&mut self, lease: LeaseId) -> Option<&mut Isolation> {
        self.held.get_mut(&lease)?.isolation.as_deref_mut()
    }

    fn queue(&mut self, stage: &Stage) -> Option<&mut VecDeque<LeaseId>> {
        match stage {
            Stage::Waiting { .. } => Some(&mut self.waiting),
            Stage::Postponed { .. } => Some(&mut self.postponed),
            Stage::Preparing { .. } => Some(&mut self.preparing),
            Stage::Ready(_) => Some(&mut self.ready),
            Stage::PipedMiniBatch { .. } => None,
        }
    }

    /// Adds a mini-batch that the node has received.
    pub(super) fn add(&mut self, lease: LeaseId, mini_batch: MiniBatch) {
        self.copies += usize::from(mini_batch.descriptor.copy);
        self.bytes += mini_batch.bytes();
        if let Some(queue) = self.queue(&mini_batch.stage) {
            put(queue, lease, &mini_batch);
        }
        self.held.insert(lease, mini_batch);
    }

    /// Lets the first of the postponed copies wait for memory.
    pub(super) fn resume_copies(&mut self, count: usize) {
        let is_copy =
            |lease: &LeaseId| self.held.get(lease).is_some_and(|held| held.descriptor.copy);
        let resumed: Vec<LeaseId> =
            self.postponed.iter().copied().filter(is_copy).take(count).collect();
        resumed.into_iter().for_each(|lease| self.resume(lease));
    }

    /// Lets one of the postponed ones wait for memory.
    pub(super) fn resume(&mut self, lease: LeaseId) {
        if let Some(MiniBatch { stage, .. }) = self.held.get_mut(&lease)
            && let Stage::Postponed { bytes } = *stage
        {
            *stage = Stage::Waiting { bytes };
            self.postponed.retain(|postponed| *postponed != lease);
            self.waiting.push_back(lease);
        }
    }

    /// Begins to prepare the first one that waits, if there is room for its bytes: returns its lease, and when it was
    /// received if other nodes may have checkpoints of it. Those before it, which need no preparation, are ready now.
    pub(super) fn prepare(
        &mut self,
        fetches_checkpoints: bool,
        has_room: impl FnOnce(&Self, u64) -> bool,
        now: Timestamp,
    ) -> Option<(LeaseId, Box<Descriptor>, Option<Instant>)> {
        loop {
            let lease = self.waiting.front().copied()?;
            let next = self.held.get_mut(&lease)?;
            let resumes_since = (fetches_checkpoints && next.resumes()).then_some(next.received);
            if resumes_since.is_none()
                && let Some(prepared) = Prepared::without_reading(&next.descriptor)
            {
                self.bytes += prepared.bytes;
                next.stage = Stage::Ready(Box::new(prepared));
                self.waiting.pop_front();
                put(&mut self.ready, lease, next);
                continue;
            }
            let Stage::Waiting { bytes } = next.stage else { unreachable!("it waits") };
            if !has_room(self, bytes) {
                return None;
            }
            self.waiting.pop_front();
            self.preparing.push_back(lease);
            self.bytes += bytes;
            let next = self.held.get_mut(&lease)?;
            next.stage = Stage::Preparing { bytes, since: now.instant };
            return Some((lease, Box::new(next.descriptor.clone()), resumes_since));
        }
    }

    /// Takes the end of a preparation, and the descriptor, which may have been a pointer into the plan. The mini-batch is
    /// ready now, unless there is another result, which is returned. `None`: the node does not hold it any more.
    pub(super) fn prepared(
        &mut self,
        lease: LeaseId,
        descriptor: Descriptor,
        preparation: Preparation,
        now: Timestamp,
    ) -> Option<Result<(), Preparation>> {
        self.bytes -= self.abandoned.remove(&lease).unwrap_or(0);
        let mini_batch = self.held.get_mut(&lease)?;
        mini_batch.preparation = mini_batch.preparing_for(now.instant)?;
        mini_batch.descriptor = Descriptor { copy: mini_batch.descriptor.copy, ..descriptor };
        match preparation {
            Preparation::Ready(prepared) => {
                self.bytes = self.bytes - mini_batch.bytes() + prepared.bytes;
                mini_batch.stage = Stage::Ready(prepared);
                self.preparing.retain(|preparing| *preparing != lease);
                put(&mut self.ready, lease, mini_batch);
                Some(Ok(()))
            }
            other => {
                // It has ended, and occupies nothing.
                self.bytes -= mini_batch.bytes();
                mini_batch.stage = Stage::Waiting { bytes: 0 };
                self.preparing.retain(|preparing| *preparing != lease);
                self.waiting.push_front(lease);
                Some(Err(other))
            }
        }
    }

    /// Makes copies the last ones that are ready, and returns them.
    pub(super) fn put_copies_last(&mut self) -> Vec<LeaseId> {
        let is_copy =
            |lease: &LeaseId| self.held.get(lease).is_some_and(|held| held.descriptor.copy);
        if self.copies == 0 || !self.ready.iter().any(is_copy) {
            return Vec::new();
        }
        let (copies, others): (Vec<_>, Vec<_>) = self.ready.iter().copied().partition(is_copy);
        self.ready = others.into_iter().chain(copies.iter().copied()).collect();
        copies
    }

    /// Moves mini-batches that are ready into the pipe of a process. Returns the frames for it, and the memory files of
    /// their tables. From the try `named_from` on, answers may name failed items, but not those of copies.
    pub(super) fn hand_over(
        &mut self,
        leases: &[LeaseId],
        process: &mut Process,
        named_from: Option<u32>,
        doubted: bool,
        takes: TableForm,
        now: Timestamp,
    ) -> (Vec<MiniBatchFrame>, Vec<Arc<OwnedFd>>) {
        let (mut frames, mut files) = (Vec::with_capacity(leases.len()), Vec::new());
        for lease in leases {
            let Some(mini_batch) = self.held.get_mut(lease) else {
                unreachable!("the node holds it")
            };
            let sequence = process.pipe.hand_over(*lease, now);
            let (named_from, doubted) =
                if mini_batch.descriptor.copy { (None, false) } else { (named_from, doubted) };
            let (frame, file) =
                mini_batch.hand_over(process.id, sequence, named_from, doubted, takes);
            frames.push(frame);
            files.extend(file);
        }
        match self.ready.iter().take(leases.len()).eq(leases) {
            true => drop(self.ready.drain(..leases.len())),
            false => self.ready.retain(|ready| !leases.contains(ready)),
        }
        (frames, files)
    }

    /// Makes mini-batches that have left a pipe the next ones to hand over, in the same order, unless their leases are
    /// lost. `was_interrupted`: the process has ended, and may have worked on them.
    pub(super) fn take_back(&mut self, handed: &[PipedMiniBatch], was_interrupted: bool) {
        for PipedMiniBatch { lease, .. } in handed.iter().rev() {
            match self.held.get_mut(lease) {
                None => {}
                Some(MiniBatch {
                    stage: Stage::PipedMiniBatch { is_lease_lost: true, .. },
                    ..
                }) => drop(self.remove(*lease)),
                Some(mini_batch) => {
                    mini_batch.descriptor.was_interrupted |= was_interrupted;
                    self.wait_again(*lease);
                }
            }
        }
    }

    /// Makes a mini-batch that has left a pipe the next one to hand over.
    pub(super) fn wait_again(&mut self, lease: LeaseId) {
        let Some(mini_batch) = self.held.get_mut(&lease) else { return };
        let stage = std::mem::replace(&mut mini_batch.stage, Stage::Waiting { bytes: 0 });
        let Stage::PipedMiniBatch { prepared, .. } = stage else {
            unreachable!("it was in a pipe")
        };
        mini_batch.stage = Stage::Ready(prepared);
        self.ready.push_front(lease);
    }

    /// Takes the rows that an earlier round has kept of a mini-batch that is ready.
    pub(super) fn take_kept(&mut self, lease: LeaseId) -> Option<(Kept, Bytes)> {
        match &mut self.held.get_mut(&lease)?.stage {
            Stage::Ready(prepared) => prepared.kept.take(),
            _ => None,
        }
    }

    /// Begins to hand over ranges of a mini-batch.
    pub(super) fn isolate(&mut self, lease: LeaseId, isolation: Isolation) {
        if let Some(mini_batch) = self.held.get_mut(&lease) {
            mini_batch.isolation = Some(Box::new(isolation));
            self.isolated.push(lease);
        }
    }

    /// Removes a mini-batch, which is in no pipe any more.
    pub(super) fn remove(&mut self, lease: LeaseId) -> Option<MiniBatch> {
        let mini_batch = self.forget(lease)?;
        if let Some(queue) = self.queue(&mini_batch.stage) {
            queue.retain(|queued| *queued != lease);
        }
        Some(mini_batch)
    }

    fn forget(&mut self, lease: LeaseId) -> Option<MiniBatch> {
        let mini_batch = self.held.remove(&lease)?;
        self.copies -= usize::from(mini_batch.descriptor.copy);
        match mini_batch.stage {
            Stage::Preparing { bytes, .. } => drop(self.abandoned.insert(lease, bytes)),
            _ => self.bytes -= mini_batch.bytes(),
        }
        if mini_batch.isolation.is_some() {
            self.isolated.retain(|isolated| *isolated != lease);
        }
        Some(mini_batch)
    }

    /// Notes that a lease is lost, and removes its mini-batch unless it is in a pipe: returns in which, and the number of
    /// the hand-over.
    pub(super) fn lose_lease(&mut self, lease: LeaseId) -> Option<(ProcessId, u64)> {
        if let Stage::PipedMiniBatch { process, sequence, is_lease_lost, .. } =
            &mut self.held.get_mut(&lease)?.stage
        {
            *is_lease_lost = true;
            return Some((*process, *sequence));
        }
        self.remove(lease);
        None
    }

    /// Removes and returns the mini-batches that match and that no process holds.
    pub(super) fn take(
        &mut self,
        is_meant: impl Fn(&MiniBatch) -> bool,
    ) -> Vec<(LeaseId, MiniBatch)> {
        let mut taken = Vec::new();
        for queue in [&mut self.waiting, &mut self.preparing, &mut self.ready, &mut self.postponed]
        {
            queue.retain(|lease| {
                let goes = self.held.get(lease).is_some_and(&is_meant);
                taken.extend(goes.then_some(*lease));
                !goes
            });
        }
        taken.into_iter().filter_map(|lease| Some((lease, self.forget(lease)?))).collect()
    }

    /// Removes and returns the mini-batches that no process holds, except one.
    pub(super) fn take_except(&mut self, kept: Option<LeaseId>) -> Vec<(LeaseId, MiniBatch)> {
        let mut leases = self.leases(|held| !matches!(held.stage, Stage::PipedMiniBatch { .. }));
        leases.retain(|lease| Some(*lease) != kept);
        leases.into_iter().filter_map(|lease| Some((lease, self.remove(lease)?))).collect()
    }

    /// Removes and returns up to `count` of those that wait or are ready, the last ones first, but none that
    /// runs in ranges.
    pub(super) fn take_last(&mut self, count: usize) -> Vec<(LeaseId, MiniBatch)> {
        let mut taken = Vec::new();
        for queue in [&mut self.waiting, &mut self.ready] {
            while taken.len() < count
                && let Some(lease) = queue.pop_back_if(|lease| !self.isolated.contains(lease))
            {
                taken.push(lease);
            }
        }
        taken.into_iter().filter_map(|lease| Some((lease, self.forget(lease)?))).collect()
    }
}

/// Adds a mini-batch to a queue: first if another node has lost it, or last.
fn put(queue: &mut VecDeque<LeaseId>, lease: LeaseId, mini_batch: &MiniBatch) {
    match mini_batch.deliveries_lost > 0 {
        true => queue.push_front(lease),
        false => queue.push_back(lease),
    }
}
