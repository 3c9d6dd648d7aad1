//! Ends an agent: it returns unstarted mini-batches immediately, and waits a while for running
//! ones.
//!
//! SIGTERM and spot notices drain a node: it publishes unstarted mini-batches again and then
//! acknowledges them, at no cost of a try, and running ones may end within `--grace` (30 s).
//! Workers and reducers exit within 90 s; ECS allows 120.

use std::time::Instant;

use protocol::{Descriptor, ResultEvent};

use super::deadlines::SHUTDOWN_TIME;
use super::mini_batch::{MiniBatch, Stage};
use super::process::ProcessState;
use super::{Action, Announcement, Scheduler, Stop, Timestamp};
use crate::lease::LeaseId;

/// Whether the agent works, and why it stops.
#[derive(Debug, Default)]
pub(super) struct Stopping {
    stop: Stop,
    /// When the time for an orderly stop is over; `None`: the node works, or has no process left.
    deadline: Option<Instant>,
    /// The cause, once the node starts no more processes.
    gave_up: Option<String>,
    /// The reducer knows that this node stops, because it has given up.
    is_announced: bool,
}

impl Stopping {
    /// Whether the agent is not asked to stop.
    pub(super) fn is_working(&self) -> bool {
        self.stop == Stop::No
    }

    /// Whether processes may still start.
    pub(super) fn may_start(&self) -> bool {
        self.is_working() && self.gave_up.is_none()
    }

    /// Whether running mini-batches may end.
    fn is_orderly(&self) -> bool {
        matches!(self.stop, Stop::Finish | Stop::Drain)
    }

    /// Drains a node that has given up. Returns the cause, unless it stops already.
    fn drain(&mut self) -> Option<String> {
        let cause = self.gave_up.clone().filter(|_| self.is_working())?;
        (self.stop, self.is_announced) = (Stop::Drain, true);
        Some(cause)
    }
}

impl Scheduler {
    pub(super) fn stop(&mut self, stop: Stop, now: Timestamp) {
        if !self.stopping.stop.raise(stop) {
            return;
        }
        self.stop_receiving();
        let patience = if stop == Stop::Finish { SHUTDOWN_TIME } else { self.config.grace };
        self.stopping.deadline = Some(now.instant + patience);
        let sentence = match stop {
            Stop::No => "working",
            Stop::Finish => "the job is done",
            Stop::Drain => "draining: waiting for running mini-batches, returning the others",
            Stop::Kill => "stopping immediately",
        };
        self.log("INFO", sentence.to_owned());
        match stop {
            Stop::Kill => {
                self.processes.ids(|_| true).into_iter().for_each(|process| self.kill(process))
            }
            Stop::Drain => {
                self.processes.ids(|_| true).into_iter().for_each(|process| self.recall(process))
            }
            Stop::Finish if self.config.spec.speculation => self.kill_slower(),
            Stop::No | Stop::Finish => {}
        }
    }

    /// Returns whether the agent can close.
    pub fn is_over(&self, now: Timestamp) -> bool {
        let too_late = self.stopping.deadline.is_some_and(|deadline| now.instant > deadline);
        self.stopping.stop == Stop::Kill
            || (self.stopping.is_orderly() && (too_late || self.processes.have_ended()))
    }

    /// Cancels the request for mini-batches.
    pub(super) fn stop_receiving(&mut self) {
        if std::mem::take(&mut self.is_receiving) {
            self.act(Action::StopReceiving);
        }
    }

    /// Returns unstarted mini-batches while the agent stops, so that other nodes can run them immediately. Recalled
    /// ones follow when the process has answered.
    pub(super) fn return_waiting(&mut self) {
        if self.stopping.is_orderly() {
            let unstarted = self.mini_batches.take(|_| true);
            self.return_all(unstarted);
        }
    }

    /// Returns mini-batches that might not end before the longest lease that the queue allows.
    pub(super) fn return_old(&mut self, now: Timestamp) {
        let Some(lease_max) = self.config.lease_max else { return };
        let limit = self.limit();
        let is_old = |mini_batch: &MiniBatch| {
            let age = now.instant - mini_batch.received;
            let waits = matches!(mini_batch.stage, Stage::Waiting { .. } | Stage::Ready(_));
            waits && age + limit > lease_max && age > lease_max / 4
        };
        for (lease, mini_batch) in self.mini_batches.take(is_old) {
            match mini_batch.isolation {
                Some(_) => self.cut_isolation(lease, mini_batch, now),
                None => self.return_mini_batch(lease, mini_batch.unspent()),
            }
        }
    }

    pub(super) fn return_all(&mut self, mini_batches: Vec<(LeaseId, MiniBatch)>) {
        mini_batches
            .into_iter()
            .for_each(|(lease, mini_batch)| self.return_mini_batch(lease, mini_batch.unspent()));
    }

    pub(super) fn return_mini_batch(&mut self, lease: LeaseId, descriptor: Descriptor) {
        self.act(Action::Announce(Announcement::Return {
            lease,
            descriptor: Box::new(descriptor),
        }));
    }

    /// Kills the remaining processes, and returns the mini-batches that the node still holds.
    pub fn close(&mut self) -> Vec<(LeaseId, Descriptor)> {
        self.stop_receiving();
        for process in self.processes.ids(|_| true) {
            self.kill(process);
            self.forget(process);
        }
        let held = self.mini_batches.take(|_| true);
        self.end_alone();
        if !self.stopping.is_announced {
            let cause = self.stopping.gave_up.clone();
            self.tell(ResultEvent::NodeStopped { node: self.config.node.clone(), cause });
        }
        self.log("INFO", format!("stopped; returning {} mini-batches", held.len()));
        held.into_iter().map(|(lease, mini_batch)| (lease, mini_batch.unspent())).collect()
    }

    /// Stops starting processes, and kills those that are in `init()`.
    pub(super) fn give_up(&mut self, cause: String) {
        self.log("ERROR", cause.clone());
        self.stopping.gave_up = Some(cause);
        let starting = self.processes.ids(|process| {
            matches!(process.state, ProcessState::Starting | ProcessState::InitFailed)
        });
        starting.into_iter().for_each(|process| self.kill(process));
        self.stop_if_alone();
    }

    /// Drains a node that has given up, once its last process has ended.
    pub(super) fn stop_if_alone(&mut self) {
        if self.processes.have_ended()
            && let Some(cause) = self.stopping.drain()
        {
            self.tell(ResultEvent::NodeStopped {
                node: self.config.node.clone(),
                cause: Some(cause),
            });
        }
    }
}
