//! The way of mini-batches from the queue into the pipe of a process, and out of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{AttemptStatus, Descriptor, Ending, ErrorReport, Isolate, MiniBatchFrame, Rejected, Waited};

use super::copies::copy_lost;
use super::mini_batch::{MiniBatch, Stage, lost_too_often};
use super::pipe::Handed;
use super::process::{Life, Process, Verdict};
use super::rejects::{add_values, values};
use super::{
    Action, Attempted, Delivered, Moment, Outcome, ProcessId, Scheduler, Sighting, Stop, conclude, deliveries_lost,
};
use crate::lease::LeaseId;
use crate::memory_files::MemoryFile;
use crate::prepare::{Preparation, Prepared};

const RECEIVE_MAX: usize = 512;
/// From the limit of an attempt to the end of its lease: the agent acts first, and the queue redelivers the mini-batch
/// if the agent hangs.
const LEASE_GRACE: Duration = Duration::from_secs(5);
/// Most failed tries whose end a node remembers until the next try. If another node makes that try, the entry stays
/// unread.
const TRIED_MAX: usize = 10_000;

impl Scheduler {
    /// Requests more mini-batches if the node holds fewer than its processes will soon need.
    pub(super) fn receive(&mut self) {
        if self.is_receiving || self.stop != Stop::No || self.gave_up.is_some() {
            return;
        }
        let depth = self.depth();
        let held = self.mini_batches.len().saturating_sub(self.waiting_for_another_gpu());
        let wanted = (2 * depth).saturating_sub(held).min(RECEIVE_MAX);
        // A few mini-batches are not worth a call.
        if wanted == 0 || wanted * 4 < depth.min(RECEIVE_MAX) {
            return;
        }
        self.is_receiving = true;
        self.act(Action::Receive { messages_max: wanted });
    }

    /// Returns the number of mini-batches that the processes should hold.
    pub(super) fn depth(&self) -> usize {
        let depth_of = |process: &Process| process.depth(self.limits);
        self.used_slots().map(|slot| self.slots[slot].process.as_deref().map_or(1, depth_of)).sum()
    }

    pub(super) fn received(&mut self, deliveries: Vec<Delivered>, now: Moment) {
        self.is_receiving = false;
        let limit = self.config.spec.lost_delivery_max;
        for Delivered { lease, descriptor, receive_count, bytes } in deliveries {
            let lost = deliveries_lost(&descriptor, receive_count);
            if self.is_for_another_node(descriptor.mini_batch) {
                self.give_back(lease, Descriptor { deliveries_lost: lost, ..descriptor });
                continue;
            }
            let error = match descriptor.copy {
                true => (receive_count > 1).then(|| copy_lost(&descriptor)),
                false => (lost > limit).then(|| lost_too_often(&descriptor, lost, limit, &self.config.node)),
            };
            let is_copy = descriptor.copy;
            self.copies_held.extend(is_copy.then_some(lease));
            let mini_batch = MiniBatch {
                received: self.waits_since(&descriptor).unwrap_or(now.instant),
                descriptor,
                deliveries_lost: lost,
                preparation: Duration::ZERO,
                stage: Stage::Waiting { bytes },
                isolation: None,
            };
            self.mini_batches.insert(lease, mini_batch);
            match error {
                Some(error) => self.fail_unrun(lease, AttemptStatus::LostTooOften, error, now),
                None if is_copy => self.copies.push(lease),
                None => self.waiting.push_back(lease),
            }
        }
    }

    /// Whether the node holds mini-batches that no process has.
    pub(super) fn has_unstarted(&self) -> bool {
        let leases = [self.waiting.len(), self.preparing.len(), self.ready.len(), self.copies.len()];
        leases.iter().any(|held| *held > 0)
    }

    /// Returns when the try before the next one ended, if it was made here.
    fn waits_since(&mut self, next: &Descriptor) -> Option<Instant> {
        if next.copy || next.tries_spent == 0 {
            return None;
        }
        let (tries_spent, ended) = self.tried.remove(&next.mini_batch)?;
        (tries_spent == next.tries_spent).then_some(ended)
    }

    /// Prepares waiting mini-batches, as far as memory allows.
    pub(super) fn prepare_next(&mut self, now: Moment) {
        while self.stop == Stop::No
            && let Some(lease) = self.waiting.front().copied()
        {
            let Some(next) = self.mini_batches.get_mut(&lease) else { unreachable!("the node holds it") };
            let fetches = self.config.fetches_checkpoints && next.resumes();
            if !fetches && let Some(prepared) = Prepared::without_reading(&next.descriptor) {
                next.stage = Stage::Ready(Box::new(prepared));
                self.waiting.pop_front();
                self.ready.push_back(lease);
                continue;
            }
            let Stage::Waiting { bytes } = next.stage else { unreachable!("it waits") };
            let held: u64 = self.mini_batches.values().map(MiniBatch::bytes).sum();
            let idle = self.preparing.is_empty() && self.ready.is_empty();
            let full = self.preparing.len() > self.allowed || held + bytes > self.config.prefetch_bytes_max;
            if full && !idle {
                return;
            }
            self.waiting.pop_front();
            self.preparing.push(lease);
            let Some(next) = self.mini_batches.get_mut(&lease) else { unreachable!("the node holds it") };
            next.stage = Stage::Preparing { bytes, since: now.instant };
            let descriptor = Box::new(next.descriptor.clone());
            self.act(Action::Prepare { lease, descriptor, fetches });
        }
    }

    pub(super) fn prepared(&mut self, lease: LeaseId, descriptor: Descriptor, preparation: Preparation, now: Moment) {
        // The preparation took too long, or the lease is lost.
        let Some(mini_batch) = self.mini_batches.get_mut(&lease) else { return };
        self.preparing.retain(|preparing| *preparing != lease);
        mini_batch.descriptor = descriptor;
        mini_batch.preparation = mini_batch.preparing_for(now.instant);
        match preparation.of_replay(&mini_batch.descriptor) {
            Preparation::NoRoom(error) if self.config.share.is_some() => {
                self.no_room_for(lease, error.message, now);
            }
            Preparation::Ready(prepared) => {
                mini_batch.stage = Stage::Ready(prepared);
                self.ready.push_back(lease);
                self.has_room();
            }
            // All its records failed before `run()`, so the mini-batch is done.
            Preparation::Empty(prepared) => self.conclude_unrun(lease, *prepared, Ending::empty(), now),
            Preparation::Failed(error) | Preparation::NoRoom(error) => {
                self.fail_unrun(lease, AttemptStatus::LoadFailed, error, now)
            }
        }
    }

    /// Fills the pipes. Processes share scarce mini-batches equally, so that the last ones do not queue in one process.
    pub(super) fn hand_over(&mut self, now: Moment) {
        if self.stop != Stop::No || self.ready.is_empty() {
            return;
        }
        let copies = self.hand_over_copies(now);
        self.hand_over_ranges(now);
        self.hand_over_ready(now);
        self.ready.extend(copies);
    }

    fn hand_over_ready(&mut self, now: Moment) {
        let share = self.ready.len().div_ceil(self.allowed.max(1));
        for slot in 0..self.slots.len() {
            let process = self.slots[slot].process.as_deref();
            let Some(process) = process.filter(|process| process.takes_work()) else { continue };
            // Nothing waits behind the ranges of a mini-batch.
            let runs_ranges = process.pipe.back().is_some_and(|last| self.isolations.has(last.lease));
            let quota = process.wanted(self.limits).min(share).min(self.ready.len());
            if quota > 0 && !runs_ranges {
                let gpu = process.gpu;
                let leases = self.take_ready(quota, gpu);
                self.hand_over_to(slot, leases, now);
            }
        }
    }

    /// Hands mini-batches to the process in a slot.
    pub(super) fn hand_over_to(&mut self, slot: usize, leases: Vec<LeaseId>, now: Moment) {
        let Some(process) = self.slots[slot].process.as_deref_mut().filter(|_| !leases.is_empty()) else { return };
        let (id, was_empty) = (process.id, process.pipe.is_empty());
        let (mut frames, mut files) = (Vec::with_capacity(leases.len()), Vec::new());
        // Items that fail with a GPU may be good ones on another.
        let spec = &self.config.spec;
        let named_from = (spec.isolate != Isolate::Off && process.gpu.is_none()).then_some(spec.run_max_try);
        let doubted = self.isolations.are_items_doubted();
        for lease in leases {
            let Some(mini_batch) = self.mini_batches.get_mut(&lease) else { unreachable!("the node holds it") };
            let sequence = process.pipe.hand_over(lease, now);
            frames.push(MiniBatchFrame { doubted, ..mini_batch.hand_over(id, sequence, named_from) });
            files.extend(mini_batch.table());
        }
        let front = was_empty.then(|| process.pipe.front()).flatten();
        self.act(Action::HandOver { process: id, frames, files });
        self.begin(front);
    }

    /// Starts the attempt of the first mini-batch in a pipe: its lease ends with its deadline.
    pub(super) fn begin(&mut self, front: Option<Handed>) {
        if let Some(front) = front {
            let deadline = front.deadline(self.limit()) + LEASE_GRACE;
            self.act(Action::Begin { lease: front.lease, deadline });
        }
    }

    /// Makes mini-batches from a pipe the next ones to hand over, in the same order.
    pub(super) fn take_back(&mut self, handed: Vec<Handed>) {
        for Handed { lease, .. } in handed.into_iter().rev() {
            let Some(mini_batch) = self.mini_batches.remove(&lease) else { continue };
            match mini_batch.stage {
                Stage::Handed { is_lease_lost: true, .. } => {}
                Stage::Handed { prepared, .. } => {
                    let stage = Stage::Ready(prepared);
                    self.mini_batches.insert(lease, MiniBatch { stage, ..mini_batch });
                    self.ready.push_front(lease);
                }
                _ => unreachable!("it was in a pipe"),
            }
        }
    }

    /// Stops the work under a lost lease.
    pub(super) fn lease_lost(&mut self, lease: LeaseId, sightings: &[Sighting]) {
        let Some(mini_batch) = self.mini_batches.get_mut(&lease) else { return };
        if let Stage::Handed { process: id, sequence, is_lease_lost, .. } = &mut mini_batch.stage {
            let (id, sequence) = (*id, *sequence);
            *is_lease_lost = true;
            // Further back in the pipe it does no harm: without a lease, its outcome is not announced.
            let runs = sightings.iter().any(|seen| seen.process == id && seen.sequence == sequence);
            let Some(process) = self.process_mut(id).filter(|process| runs && !process.is_killed()) else { return };
            process.pipe.remove(sequence);
            process.life = Life::Killed(Verdict::Expected);
            let message = format!("{} runs a mini-batch whose lease is lost, killing it", process.name);
            self.log("WARNING", message);
            self.act(Action::Kill(id));
        } else {
            self.waiting.retain(|waiting| *waiting != lease);
            self.preparing.retain(|preparing| *preparing != lease);
            self.ready.retain(|ready| *ready != lease);
            self.copies.retain(|copy| *copy != lease);
        }
        self.mini_batches.remove(&lease);
    }

    /// Fails a mini-batch that no process has received.
    pub(super) fn fail_unrun(&mut self, lease: LeaseId, status: AttemptStatus, error: ErrorReport, now: Moment) {
        let Some(mini_batch) = self.mini_batches.get(&lease) else { return };
        let prepared = Prepared::unreadable(&mini_batch.descriptor);
        self.conclude_unrun(lease, prepared, Ending::failed(status, error), now);
    }

    fn conclude_unrun(&mut self, lease: LeaseId, prepared: Prepared, ending: Ending, now: Moment) {
        let Some(mini_batch) = self.mini_batches.remove(&lease) else { return };
        // Its preparation may have taken too long.
        let preparation = mini_batch.preparing_for(now.instant);
        let MiniBatch { descriptor, deliveries_lost, received, .. } = mini_batch;
        let attempted = Attempted {
            descriptor,
            deliveries_lost,
            prepared,
            received,
            preparation,
            began: now,
            waited: Waited::default(),
        };
        self.announce(lease, None, attempted, ending, Bytes::new(), now);
    }

    /// Ends the attempt of a mini-batch that has just left the pipe of a process.
    pub(super) fn conclude(
        &mut self,
        process: ProcessId,
        handed: Handed,
        mut ending: Ending,
        rows: Bytes,
        now: Moment,
    ) {
        let Handed { lease, began, .. } = handed;
        let waited = handed.waits();
        let Some(mini_batch) = self.mini_batches.remove(&lease) else { return };
        if mini_batch.isolation.is_some() || self.isolates(process, &mini_batch, &ending) {
            return self.isolate(process, handed, mini_batch, ending, rows, now);
        }
        ending.warnings.extend(self.warn_of_size(process, &mini_batch, &ending));
        if self.takes_kept(&mini_batch, &ending) {
            return self.isolate(process, handed, mini_batch, ending, rows, now);
        }
        ending.warnings.extend(self.isolations.attempt_ended(&ending).then(|| self.warn_of_doubt()));
        let MiniBatch { descriptor, deliveries_lost, stage, received, preparation, .. } = mini_batch;
        let Stage::Handed { prepared, .. } = stage else { unreachable!("it was in a pipe") };
        let prepared = prepared.given(self.takes_arrow);
        let attempted = Attempted { descriptor, deliveries_lost, prepared, received, preparation, began, waited };
        self.announce(lease, Some(process), attempted, ending, rows, now);
    }

    fn announce(
        &mut self,
        lease: LeaseId,
        process: Option<ProcessId>,
        mut attempted: Attempted,
        ending: Ending,
        rows: Bytes,
        now: Moment,
    ) {
        let table = attempted.prepared.take_table();
        let row = attempted.only_row();
        let name = process.and_then(|process| self.process(process)).map_or("", |process| process.name.as_str());
        let worker = [self.config.node.as_str(), name];
        let has_checkpoints = ending.has_checkpoints;
        let (mut attempt, next_try) = conclude(attempted, worker, ending, self.config.spec.run_max_try, now);
        if let Some((table, bytes)) = &table
            && let Some(row) = row.filter(|_| attempt.is_final && attempt.status != AttemptStatus::Succeeded)
        {
            attempt.values = values(&[row], table, *bytes).pop().unwrap_or_default();
        }
        self.reuse_table(table, &mut attempt.rejected);
        if let Some(next_try) = next_try.as_ref().filter(|_| self.tried.len() < TRIED_MAX) {
            self.tried.insert(next_try.mini_batch, (next_try.tries_spent, now.instant));
        }
        let (number, has_succeeded) = (attempt.mini_batch, attempt.status == AttemptStatus::Succeeded && !attempt.copy);
        let outcome = Box::new(Outcome { lease, process, attempt, rows, next_try, has_checkpoints });
        self.announce_outcome(outcome);
        if has_succeeded {
            self.drop_copies_of(number);
        }
    }

    /// Lets the memory of a table be reused, once its rejected rows have been read.
    pub(super) fn reuse_table(&mut self, table: Option<(MemoryFile, u64)>, rejected: &mut [Rejected]) {
        if let Some((table, bytes)) = table {
            add_values(rejected, &table, bytes);
            self.act(Action::ReuseTable(table));
        }
    }
}

impl MiniBatch {
    /// Returns how long its preparation has taken so far, or took.
    fn preparing_for(&self, now: Instant) -> Duration {
        match self.stage {
            Stage::Preparing { since, .. } => now.duration_since(since),
            _ => self.preparation,
        }
    }

    /// Moves the mini-batch into a pipe, and returns the frame for the process. From the try `named_from` on, its answer
    /// may name failed items.
    pub(super) fn hand_over(&mut self, process: ProcessId, sequence: u64, named_from: Option<u32>) -> MiniBatchFrame {
        let stage = std::mem::replace(&mut self.stage, Stage::Waiting { bytes: 0 });
        let Stage::Ready(prepared) = stage else { unreachable!("it is ready") };
        let try_number = self.descriptor.tries_spent.saturating_add(1);
        let frame = MiniBatchFrame {
            sequence,
            mini_batch: self.descriptor.mini_batch,
            try_number,
            items: match &self.isolation {
                Some(isolation) => isolation.next().map(|items| (items.start, items.end)),
                None => self.descriptor.replays.and_then(|replays| replays.rows),
            },
            only_kept: self.isolation.as_ref().is_some_and(|isolation| isolation.next_is_kept()),
            resumes: self.resumes(),
            names_failed_items: named_from.is_some_and(|first| try_number >= first),
            doubted: false,
            replays: self.descriptor.replays.map(|replays| (replays.mini_batch, replays.item)),
            key: self.descriptor.key().to_vec(),
            rows_before: self.descriptor.rows_before(),
            payload: prepared.payload.clone(),
        };
        self.stage = Stage::Handed { process, sequence, prepared, is_lease_lost: false };
        frame
    }

    pub(super) fn table(&self) -> Option<std::sync::Arc<std::os::fd::OwnedFd>> {
        match &self.stage {
            Stage::Handed { prepared, .. } => Some(prepared.file.as_ref()?.file.clone()),
            _ => None,
        }
    }
}
