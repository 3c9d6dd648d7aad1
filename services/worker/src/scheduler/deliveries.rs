//! Moves mini-batches from the queue into the pipe of a process, and out of it.

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, Descriptor, Ending, ErrorReport, Isolate, Rejected, WaitTimes,
};

use super::attempt::of_rows;
use super::copies::copy_lost;
use super::mini_batch::MiniBatch;
use super::mini_batches::MiniBatches;
use super::pipe::PipedMiniBatch;
use super::process::{ExitKind, ProcessState};
use super::rejects::{add_values, values};
use super::{
    Action, Announcement, EndedAttempt, LeasedDelivery, Outcome, ProcessId, ProcessSnapshot,
    Scheduler, Timestamp, conclude, deliveries_lost,
};
use crate::lease::LeaseId;
use crate::memory_files::MemoryFile;
use crate::prepare::Preparation;

const RECEIVE_MAX: usize = 512;
/// From the limit of an attempt to the end of its lease: the agent acts first, and the queue redelivers the mini-batch
/// if the agent hangs.
const LEASE_GRACE: Duration = Duration::from_secs(5);

impl Scheduler {
    /// Requests more mini-batches if the node holds fewer than its processes will soon need.
    pub(super) fn receive(&mut self) {
        if self.is_receiving || !self.stopping.may_start() {
            return;
        }
        let depth = self.processes.depth();
        let held = self.mini_batches.len().saturating_sub(self.waiting_for_another_gpu());
        let wanted = (2 * depth).saturating_sub(held).min(RECEIVE_MAX);
        // A few mini-batches are not worth a call.
        if wanted == 0 || wanted * 4 < depth.min(RECEIVE_MAX) {
            return;
        }
        self.is_receiving = true;
        self.act(Action::Receive { messages_max: wanted });
    }

    pub(super) fn received(&mut self, deliveries: Vec<LeasedDelivery>, now: Timestamp) {
        self.is_receiving = false;
        for LeasedDelivery { lease, descriptor, receive_count, deaths, bytes } in deliveries {
            let lost = deliveries_lost(&descriptor, receive_count);
            if self.is_for_another_node(&descriptor) {
                self.mini_batches
                    .add(lease, MiniBatch::postponed(descriptor, lost, now.instant, bytes));
                continue;
            }
            let error = match descriptor.copy {
                true => (receive_count > 1).then(|| copy_lost(&descriptor)),
                false => self.quarantine_error(&descriptor, lost, deaths),
            };
            if error.is_none() && self.is_quarantined(&descriptor, lost) {
                let alone = MiniBatch::postponed(descriptor, lost, now.instant, bytes);
                self.received_quarantined(lease, alone, deaths, now);
                continue;
            }
            if error.is_some() && deaths > 0 {
                self.act(Action::EndAlone { mini_batch: descriptor.mini_batch });
            }
            let received = self.tried.take(&descriptor).unwrap_or(now.instant);
            let mini_batch = MiniBatch::received(descriptor, lost, received, bytes);
            match error {
                Some(error) => {
                    self.fail_unrun(lease, mini_batch, AttemptStatus::LostTooOften, error, now)
                }
                None => self.mini_batches.add(lease, mini_batch),
            }
        }
    }

    /// Prepares waiting mini-batches, as far as memory allows.
    pub(super) fn prepare_next(&mut self, now: Timestamp) {
        let (allowed, bytes_max) = (self.processes.allowed(), self.config.prefetch_bytes_max);
        let has_room = |held: &MiniBatches, bytes| {
            // One preparation at a time is allowed although others hang: its timeout tells why the
            // job makes no progress.
            let is_idle = held.preparing().len() == 0 && held.ready().len() == 0;
            is_idle || (held.preparations() <= allowed && held.bytes() + bytes <= bytes_max)
        };
        while self.stopping.is_working()
            && let Some(next) =
                self.mini_batches.prepare(self.config.fetches_checkpoints, has_room, now)
        {
            let (lease, descriptor, resumes_since) = next;
            self.act(Action::Prepare { lease, descriptor, resumes_since });
        }
    }

    pub(super) fn prepared(
        &mut self,
        lease: LeaseId,
        descriptor: Descriptor,
        preparation: Preparation,
        now: Timestamp,
    ) {
        // It may have taken too long, or the lease may be lost.
        let Some(prepared) = self.mini_batches.prepared(lease, descriptor, preparation, now) else {
            return;
        };
        match prepared {
            Ok(()) => {
                self.begin_rejected(lease, now);
                self.go_on();
            }
            Err(unprepared) => {
                let Some(mini_batch) = self.mini_batches.remove(lease) else { return };
                match unprepared {
                    Preparation::Unreachable(error) => {
                        self.pause_with(lease, mini_batch, error.message, now)
                    }
                    Preparation::NoRoom(error) if self.shares_disk() => {
                        self.pause_with(lease, mini_batch, error.message, now);
                    }
                    Preparation::Failed(error) | Preparation::NoRoom(error) => {
                        self.fail_unrun(lease, mini_batch, AttemptStatus::LoadFailed, error, now);
                    }
                    // All its records failed before `run()`, so the mini-batch is done.
                    Preparation::Empty(prepared) | Preparation::Ready(prepared) => {
                        let attempted = mini_batch.attempted(now, WaitTimes::default(), now);
                        let attempted = EndedAttempt { prepared: *prepared, ..attempted };
                        self.announce(lease, None, attempted, Ending::empty(), Bytes::new(), now);
                    }
                }
            }
        }
    }

    /// Fills the pipes. Processes share scarce mini-batches equally, so that the last ones do not queue in one process.
    pub(super) fn hand_over(&mut self, now: Timestamp) {
        if !self.stopping.is_working() || self.mini_batches.ready().len() == 0 {
            return;
        }
        let copies = self.hand_over_copies(now);
        self.hand_over_ranges(now);
        let share =
            (self.mini_batches.ready().len() - copies).div_ceil(self.processes.allowed().max(1));
        for slot in 0..self.processes.slots() {
            let process = self.processes.in_slot(slot).filter(|process| process.takes_work());
            let Some(process) = process else { continue };
            // Nothing waits behind the ranges of a mini-batch.
            let runs_ranges =
                process.pipe.back().is_some_and(|last| self.mini_batches.is_isolated(last.lease));
            let ready = self.mini_batches.ready().len() - copies;
            let quota = process.wanted().min(share).min(ready);
            if quota > 0 && !runs_ranges {
                let leases = self.choose(quota, ready, process.gpus.as_ref());
                self.hand_over_to(slot, &leases, now);
            }
        }
    }

    /// Hands mini-batches to the process in a slot.
    pub(super) fn hand_over_to(&mut self, slot: usize, leases: &[LeaseId], now: Timestamp) {
        let takes = self.processes.starts.takes();
        let process = self.processes.in_slot_mut(slot).filter(|_| !leases.is_empty());
        let Some(process) = process else { return };
        let (id, was_empty) = (process.id, process.pipe.is_empty());
        // Items that fail with a GPU may be good ones on another.
        let spec = &self.config.spec;
        let named_from =
            (spec.isolate != Isolate::Off && process.gpus.is_none()).then_some(spec.run_max_try);
        let doubted = self.isolations.are_items_doubted();
        let (frames, files) =
            self.mini_batches.hand_over(leases, process, named_from, doubted, takes, now);
        let front = was_empty.then(|| process.pipe.front()).flatten();
        self.act(Action::HandOver { process: id, frames, files });
        self.begin(front);
    }

    /// Starts the attempt of the first mini-batch in a pipe: its lease ends with its deadline.
    pub(super) fn begin(&mut self, front: Option<PipedMiniBatch>) {
        if let Some(front) = front {
            let deadline = front.deadline(self.limit()) + LEASE_GRACE;
            self.act(Action::Begin { lease: front.lease, deadline });
        }
    }

    /// Stops the work under a lost lease.
    pub(super) fn lease_lost(&mut self, lease: LeaseId, snapshots: &[ProcessSnapshot]) {
        let Some((id, sequence)) = self.mini_batches.lose_lease(lease) else { return };
        // Further back in the pipe it does no harm: without a lease, its outcome is not announced.
        let runs = snapshots.iter().any(|seen| seen.process == id && seen.sequence == sequence);
        let process = self.processes.get_mut(id).filter(|process| runs && !process.is_killed());
        let Some(process) = process else { return };
        process.pipe.remove(sequence);
        process.state = ProcessState::Killed(ExitKind::Expected);
        let message = format!("{} runs a mini-batch whose lease is lost, killing it", process.name);
        self.mini_batches.remove(lease);
        self.log("WARNING", message);
        self.act(Action::Kill(id));
    }

    /// Fails a mini-batch that no process has received, and that has left the node.
    pub(super) fn fail_unrun(
        &mut self,
        lease: LeaseId,
        mini_batch: MiniBatch,
        status: AttemptStatus,
        error: ErrorReport,
        now: Timestamp,
    ) {
        let (ending, descriptor) = (Ending::failed(status, error), &mini_batch.descriptor);
        if !descriptor.copy {
            self.compare(descriptor.mini_batch, &ending, false, now);
        }
        let attempted = mini_batch.attempted(now, WaitTimes::default(), now);
        self.announce(lease, None, attempted, ending, Bytes::new(), now);
    }

    /// Ends the attempt of a mini-batch that has just left the pipe of a process.
    pub(super) fn conclude(
        &mut self,
        process: ProcessId,
        handed: PipedMiniBatch,
        mut ending: Ending,
        rows: Bytes,
        now: Timestamp,
    ) {
        let lease = handed.lease;
        if let Some(mini_batch) = self.mini_batches.get(lease).filter(|held| !held.descriptor.copy)
        {
            let (number, is_range) =
                (mini_batch.descriptor.mini_batch, mini_batch.isolation.is_some());
            self.compare(number, &ending, is_range, now);
        }
        let divides = self.isolates(process, lease, &ending);
        if divides || self.mini_batches.is_isolated(lease) {
            return self.isolate(process, handed, divides, ending, rows, now);
        }
        ending.warnings.extend(self.warn_of_size(process, lease, &ending));
        if self.takes_kept(lease, &ending) {
            return self.isolate(process, handed, false, ending, rows, now);
        }
        let Some(mini_batch) = self.mini_batches.remove(lease) else { return };
        ending
            .warnings
            .extend(self.isolations.attempt_ended(&ending).then(|| self.warn_of_doubt()));
        let attempted = mini_batch.attempted(handed.began, handed.waits(), now);
        self.announce(lease, Some(process), attempted, ending, rows, now);
    }

    fn announce(
        &mut self,
        lease: LeaseId,
        process: Option<ProcessId>,
        mut attempted: EndedAttempt,
        ending: Ending,
        rows: Bytes,
        now: Timestamp,
    ) {
        let table = attempted.prepared.take_table();
        let row = attempted.only_row();
        let has_checkpoints = ending.has_checkpoints;
        let of_rows = of_rows(&attempted.descriptor, &ending, self.processes.starts.takes());
        let (mut attempt, next_try) = self.conclude_by(process, attempted, ending, now);
        if let Some((table, bytes)) = &table
            && let Some(row) =
                row.filter(|_| attempt.is_final && attempt.status != AttemptStatus::Succeeded)
        {
            attempt.values = values(&[row], table, *bytes).pop().unwrap_or_default();
        }
        self.reuse_table(table, &mut attempt.rejected);
        if let Some(next_try) = &next_try {
            self.tried.ended(next_try, now.instant);
        }
        self.announce_outcome(Outcome {
            lease,
            process,
            attempt,
            rows,
            next_try,
            has_checkpoints,
            of_rows,
        });
    }

    /// Returns the attempt of a process, if it has reached one, and the next try.
    pub(super) fn conclude_by(
        &self,
        process: Option<ProcessId>,
        attempted: EndedAttempt,
        ending: Ending,
        now: Timestamp,
    ) -> (Attempt, Option<Descriptor>) {
        let name = process
            .and_then(|process| self.processes.get(process))
            .map_or("", |process| process.name.as_str());
        let is_for_others = self.leaves_tries_to_others(&attempted.descriptor);
        let tries_max = if is_for_others { u32::MAX } else { self.config.spec.run_max_try };
        conclude(attempted, [self.config.node.as_str(), name], ending, tries_max, now)
    }

    /// Announces the outcome of an attempt.
    pub(super) fn announce_outcome(&mut self, outcome: Outcome) {
        if self.notices.first_attempt() {
            self.gpus.report_again();
        }
        let Attempt { mini_batch, status, copy, .. } = outcome.attempt;
        self.act(Action::Announce(Announcement::Outcome(Box::new(outcome))));
        if status == AttemptStatus::Succeeded && !copy {
            self.drop_copies_of(mini_batch);
        }
    }

    /// Lets the memory of a table be reused, once its rejected rows have been read.
    pub(super) fn reuse_table(
        &mut self,
        table: Option<(MemoryFile, u64)>,
        rejected: &mut [Rejected],
    ) {
        if let Some((table, bytes)) = table {
            add_values(rejected, &table, bytes);
            self.act(Action::ReuseTable(table));
        }
    }
}
