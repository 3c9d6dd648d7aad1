//! Pauses the node while its disk is full, it has too few file descriptors, or a store does not
//! answer. Neither a script nor an input is to blame, so a pause costs no try. The node takes no more
//! mini-batches of the job for a while, returns those that it has not prepared, for other nodes, and
//! says why.

use std::time::{Duration, Instant};

use super::deadlines::wait_of_node;
use super::mini_batch::{MiniBatch, Stage};
use super::{Action, ProcessId, Scheduler, Timestamp};
use crate::lease::LeaseId;

/// From a failure until the node tries again.
const PAUSE: Duration = Duration::from_secs(10);

/// Whether the node pauses.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Since when something has failed.
    failing_since: Option<Instant>,
    /// Until when the node tries nothing that may fail.
    until: Option<Instant>,
}

impl Scheduler {
    /// Whether the node waits before it takes mini-batches again.
    pub(super) fn is_paused(&self, now: Timestamp) -> bool {
        self.pause.until.is_some_and(|until| now.instant < until)
    }

    /// Whether other jobs use the disk, and may free it.
    pub(super) fn shares_disk(&self) -> bool {
        self.config.allocation.is_some()
    }

    /// Ends the pause: a mini-batch was read, or a process has started.
    pub(super) fn go_on(&mut self) {
        self.pause = Pause::default();
    }

    /// Pauses because a mini-batch could not be prepared, which is not to blame and goes back.
    pub(super) fn pause_with(
        &mut self,
        lease: LeaseId,
        mini_batch: MiniBatch,
        message: String,
        now: Timestamp,
    ) {
        self.begin_pause(message, now);
        self.return_mini_batch(lease, mini_batch.unspent());
    }

    /// A process could not start because the disk is full.
    pub(super) fn no_room_to_start(&mut self, process: ProcessId, message: String, now: Timestamp) {
        self.begin_pause(message, now);
        if !self.stopping.may_start() {
            return self.stop_if_alone();
        }
        if let Some(until) = self.pause.until.filter(|_| !self.processes.are_full()) {
            self.processes.start_later(process.slot, until);
        }
    }

    fn begin_pause(&mut self, message: String, now: Timestamp) {
        let since = *self.pause.failing_since.get_or_insert(now.instant);
        if !self.is_paused(now) {
            self.log("ERROR", message.clone());
            let waiting =
                wait_of_node(&self.config.node, now.instant - since, now.milliseconds, message);
            self.act(Action::Notice { process: None, waiting: Box::new(waiting) });
        }
        self.pause.until = Some(now.instant + PAUSE);
        self.stop_receiving();
        let has_process = !self.processes.have_ended();
        let returned = self.mini_batches.take(|mini_batch| match mini_batch.stage {
            Stage::Waiting { .. } => true,
            Stage::Ready(_) => !has_process,
            _ => false,
        });
        self.return_all(returned);
    }
}
