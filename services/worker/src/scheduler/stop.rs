//! The end of an agent: it returns unstarted mini-batches immediately, and waits a while for running ones.

use protocol::{Descriptor, ResultEvent};

use super::deadlines::SHUTDOWN_TIME;
use super::mini_batch::{MiniBatch, Stage};
use super::process::{Life, Process};
use super::{Action, Announcement, Moment, ProcessId, Scheduler, Stop};
use crate::lease::LeaseId;

impl Scheduler {
    pub(super) fn stop(&mut self, stop: Stop, now: Moment) {
        if !self.stop.raise(stop) {
            return;
        }
        if std::mem::take(&mut self.is_receiving) {
            self.act(Action::StopReceiving);
        }
        let patience = if stop == Stop::Finish { SHUTDOWN_TIME } else { self.config.grace };
        self.stop_deadline = Some(now.instant + patience);
        let sentence = match stop {
            Stop::No => "working",
            Stop::Finish => "the job is done",
            Stop::Drain => "draining: waiting for running mini-batches, returning the others",
            Stop::Kill => "stopping immediately",
        };
        self.log("INFO", sentence.to_owned());
        match stop {
            Stop::Kill => self.processes_where(|_| true).into_iter().for_each(|process| self.kill(process)),
            Stop::Drain => self.processes_where(|_| true).into_iter().for_each(|process| self.recall(process)),
            Stop::Finish if self.config.spec.speculation => self.kill_slower(),
            Stop::No | Stop::Finish => {}
        }
    }

    /// Returns whether the agent can close.
    pub fn is_over(&self, now: Moment) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::Kill => true,
            Stop::Finish | Stop::Drain => {
                let too_late = self.stop_deadline.is_some_and(|deadline| now.instant > deadline);
                too_late || self.processes().next().is_none()
            }
        }
    }

    /// Returns unstarted mini-batches while the agent stops, so that other nodes can run them immediately. Recalled
    /// ones follow when the process has answered.
    pub(super) fn return_waiting(&mut self) {
        if matches!(self.stop, Stop::Finish | Stop::Drain) {
            self.take_waiting().into_iter().for_each(|(lease, descriptor)| self.give_back(lease, descriptor));
        }
    }

    /// Returns mini-batches that might not end before the longest lease that the queue allows.
    pub(super) fn return_old(&mut self, now: Moment) {
        let Some(lease_max) = self.config.lease_max else { return };
        let limit = self.limit();
        let is_old = |mini_batch: &MiniBatch| {
            let age = now.instant - mini_batch.received;
            let waits = matches!(mini_batch.stage, Stage::Waiting { .. } | Stage::Ready(_));
            waits && age + limit > lease_max && age > lease_max / 4
        };
        let queues = [&mut self.waiting, &mut self.ready];
        let mut old = Vec::new();
        for queue in queues {
            old.extend(queue.iter().filter(|lease| self.mini_batches.get(lease).is_some_and(is_old)));
            queue.retain(|lease| !old.contains(lease));
        }
        for lease in old {
            if self.mini_batches.get(&lease).is_some_and(|mini_batch| mini_batch.isolation.is_some()) {
                self.cut_isolation(lease, now);
            } else if let Some(mini_batch) = self.mini_batches.remove(&lease) {
                self.give_back(lease, mini_batch.unspent());
            }
        }
    }

    pub(super) fn give_back(&mut self, lease: LeaseId, descriptor: Descriptor) {
        self.act(Action::Announce(Announcement::Return { lease, descriptor: Box::new(descriptor) }));
    }

    /// Removes and returns the mini-batches that are not in a pipe.
    fn take_waiting(&mut self) -> Vec<(LeaseId, Descriptor)> {
        let leases = self.waiting.drain(..).chain(self.preparing.drain(..)).chain(self.ready.drain(..));
        let leases = leases.chain(self.copies.drain(..));
        leases.filter_map(|lease| Some((lease, self.mini_batches.remove(&lease)?.unspent()))).collect()
    }

    /// Kills the remaining processes, and returns the mini-batches that the node still holds.
    pub fn close(&mut self) -> Vec<(LeaseId, Descriptor)> {
        if std::mem::take(&mut self.is_receiving) {
            self.act(Action::StopReceiving);
        }
        for process in self.processes_where(|_| true) {
            self.kill(process);
            self.forget(process);
        }
        let held = self.take_waiting();
        if !self.has_announced_stop {
            let cause = self.gave_up.clone();
            self.tell(ResultEvent::NodeStopped { node: self.config.node.clone(), cause });
        }
        self.log("INFO", format!("stopped; returning {} mini-batches", held.len()));
        held
    }

    pub(super) fn processes_where(&self, is_meant: impl Fn(&Process) -> bool) -> Vec<ProcessId> {
        self.processes().filter(|process| is_meant(process)).map(|process| process.id).collect()
    }

    /// Stops starting processes, and kills those that are in `init()`.
    pub(super) fn give_up(&mut self, cause: String) {
        self.log("ERROR", cause.clone());
        self.gave_up = Some(cause);
        self.processes_where(|process| matches!(process.life, Life::Starting | Life::InitFailed))
            .into_iter()
            .for_each(|process| self.kill(process));
        self.stop_if_alone();
    }

    /// Drains a node that has given up, once its last process has ended.
    pub(super) fn stop_if_alone(&mut self) {
        let Some(cause) = self.gave_up.clone() else { return };
        if self.stop == Stop::No && self.processes().next().is_none() {
            self.stop = Stop::Drain;
            self.has_announced_stop = true;
            self.tell(ResultEvent::NodeStopped { node: self.config.node.clone(), cause: Some(cause) });
        }
    }
}
