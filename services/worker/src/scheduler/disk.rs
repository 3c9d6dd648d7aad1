//! A full disk on a node that jobs share: no script and no input is to blame, so it costs no try. The node takes no more
//! mini-batches of the job for a while, returns those that it has not prepared, for other nodes, and says why.

use std::time::{Duration, Instant};

use super::deadlines::wait_of_node;
use super::mini_batch::Stage;
use super::{Action, Moment, ProcessId, Scheduler};
use crate::lease::LeaseId;

/// From a failure for want of room until the next try.
const PAUSE: Duration = Duration::from_secs(10);

/// What the node knows about its disk.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Since when something has failed for want of room.
    missing_since: Option<Instant>,
    /// Until when the node tries nothing that needs room.
    pause_until: Option<Instant>,
}

impl Scheduler {
    /// Whether the node waits before it takes mini-batches again.
    pub(super) fn waits_for_room(&self, now: Moment) -> bool {
        self.room.pause_until.is_some_and(|until| now.instant < until)
    }

    /// Whether a full disk is the business of others as well, and they may free it.
    pub(super) fn shares_disk(&self) -> bool {
        self.config.share.is_some()
    }

    /// A mini-batch was prepared, or a process has started.
    pub(super) fn has_room(&mut self) {
        self.room = Room::default();
    }

    /// A mini-batch could not be prepared.
    pub(super) fn no_room_for(&mut self, lease: LeaseId, message: String, now: Moment) {
        self.pause_for_room(message, now);
        if let Some(mini_batch) = self.mini_batches.remove(lease) {
            self.give_back(lease, mini_batch.unspent());
        }
    }

    /// A process could not start.
    pub(super) fn no_room_to_start(&mut self, process: ProcessId, message: String, now: Moment) {
        self.pause_for_room(message, now);
        if !self.stopping.may_start() {
            return self.stop_if_alone();
        }
        if let Some(until) = self.room.pause_until.filter(|_| !self.processes.are_full()) {
            self.processes.start_later(process.slot, until);
        }
    }

    fn pause_for_room(&mut self, message: String, now: Moment) {
        let since = *self.room.missing_since.get_or_insert(now.instant);
        if !self.waits_for_room(now) {
            self.log("ERROR", message.clone());
            let waiting = wait_of_node(&self.config.node, now.instant - since, now.milliseconds, message);
            self.act(Action::Notice { process: None, waiting: Box::new(waiting) });
        }
        self.room.pause_until = Some(now.instant + PAUSE);
        self.stop_receiving();
        let has_process = !self.processes.have_ended();
        let returned = self.mini_batches.take(|mini_batch| match mini_batch.stage {
            Stage::Waiting { .. } => true,
            Stage::Ready(_) => !has_process,
            _ => false,
        });
        self.give_back_all(returned);
    }
}
