//! Runs mini-batches that may kill their node alone on it.
//!
//! The queue counts the deliveries of everything that a dead node held, so this count blames
//! mini-batches that only waited, or ran beside the guilty one, in this job or another. Once
//! several deliveries of a mini-batch were lost, it is in *quarantine*: it runs while the node
//! holds nothing else. So if the node dies, the mini-batch is guilty, and nothing else is lost with
//! it. The node remembers such deaths on its disk, and after the second one the mini-batch fails.
//! Between them the job waits, so that other jobs have the node in the meantime. Where no disk
//! survives, `lost_delivery_max` ends it.

use std::time::{Duration, Instant};

use protocol::{Descriptor, ErrorReport};

use super::mini_batch::{MiniBatch, Stage, lost_too_often};
use super::{Action, Scheduler, Timestamp};
use crate::lease::LeaseId;
use crate::node_lock::Access;

/// Lost deliveries that put a mini-batch into quarantine, or fewer if the job allows fewer.
const QUARANTINE_LOST: u32 = 3;
/// Deaths of the node with a mini-batch alone, after which it fails, or a fifth of `lost_delivery_max` if that is more: such a
/// death says more than a lost delivery, which others may have caused.
const DEATHS_MAX: u32 = 2;
/// How long other jobs have the node after each such death.
const PAUSE: Duration = Duration::from_secs(10);

/// The mini-batch of a job that has to run alone on this node.
#[derive(Debug)]
pub(super) struct Quarantine {
    began: Instant,
    access: Access,
    held: Option<LeaseId>,
    /// The mini-batch, once it may run.
    running: Option<u64>,
}

impl Quarantine {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, access: Access::default(), held: None, running: None }
    }
}

impl Scheduler {
    /// Whether the job needs exclusive use of the node.
    pub fn wants_to_be_alone(&self) -> bool {
        self.quarantine.held.is_some()
    }

    /// Whether the node holds mini-batches of the job.
    pub fn holds_any(&self) -> bool {
        self.mini_batches.len() > 0
    }

    /// Sets the access of the job to this node.
    pub fn access(&mut self, access: Access) {
        self.quarantine.access = access;
    }

    pub(super) fn is_quarantined(&self, descriptor: &Descriptor, lost: u32) -> bool {
        lost > 0
            && lost >= QUARANTINE_LOST.min(self.config.spec.lost_delivery_max)
            && !descriptor.copy
    }

    /// Returns the error of a mini-batch whose deliveries were lost too often.
    pub(super) fn quarantine_error(
        &self,
        descriptor: &Descriptor,
        lost: u32,
        deaths: u32,
    ) -> Option<ErrorReport> {
        let (max, node) = (self.config.spec.lost_delivery_max, &self.config.node);
        let number = descriptor.mini_batch;
        if lost > max {
            return Some(lost_too_often(descriptor, lost, max, node));
        }
        let is_guilty = self.is_quarantined(descriptor, lost) && deaths >= DEATHS_MAX.max(max / 5);
        is_guilty.then(|| ErrorReport {
            message: format!(
                "mini-batch {number} was lost with its node {lost} times, and the last {deaths} times nothing else ran \
                 there: does it crash the machine, for lack of memory?"
            ),
            ..lost_too_often(descriptor, lost, max, node)
        })
    }

    /// Takes a mini-batch that has to run alone, of which the job holds one at a time. The others return to the queue.
    pub(super) fn received_quarantined(
        &mut self,
        lease: LeaseId,
        mini_batch: MiniBatch,
        deaths: u32,
        now: Timestamp,
    ) {
        let waits = now.instant.saturating_duration_since(self.quarantine.began) < PAUSE * deaths;
        if !waits && self.quarantine.held.is_some() {
            return self.return_mini_batch(lease, mini_batch.unspent());
        }
        if !waits {
            self.quarantine.held = Some(lease);
        }
        self.mini_batches.add(lease, mini_batch);
    }

    /// Makes room for a mini-batch that has to run alone, of this job or another, and lets it run once the node holds
    /// nothing else.
    pub(super) fn process_quarantine(&mut self) {
        let is_gone =
            self.quarantine.held.is_some_and(|lease| self.mini_batches.get(lease).is_none());
        if is_gone {
            self.quarantine.held = None;
            self.end_alone();
        }
        if self.may_work_beside_others() {
            return;
        }
        self.stop_receiving();
        self.processes.ids(|_| true).into_iter().for_each(|process| self.recall(process));
        let kept = self.quarantine.held.filter(|_| self.quarantine.access != Access::Denied);
        let returned = self.mini_batches.take_except(kept);
        self.quarantine.held =
            self.quarantine.held.filter(|lease| self.mini_batches.get(*lease).is_some());
        self.return_all(returned);
        if let Some(lease) = kept
            .filter(|_| self.quarantine.access == Access::Exclusive && self.mini_batches.len() == 1)
            && let Some(MiniBatch { stage: Stage::Postponed { .. }, descriptor, .. }) =
                self.mini_batches.get(lease)
        {
            let mini_batch = descriptor.mini_batch;
            self.log(
                "WARNING",
                format!(
                    "mini-batch {mini_batch} was lost with its nodes, so it runs alone on this one"
                ),
            );
            self.quarantine.running = Some(mini_batch);
            self.act(Action::BeginAlone { mini_batch });
            self.mini_batches.resume(lease);
        }
    }

    /// Whether no mini-batch needs exclusive use of the node.
    pub(super) fn may_work_beside_others(&self) -> bool {
        self.quarantine.held.is_none() && self.quarantine.access != Access::Denied
    }

    pub(super) fn is_in_quarantine(&self, lease: LeaseId) -> bool {
        self.quarantine.held == Some(lease)
    }

    /// Records that the mini-batch that ran alone has not killed the node.
    pub(super) fn end_alone(&mut self) {
        if let Some(mini_batch) = self.quarantine.running.take() {
            self.act(Action::EndAlone { mini_batch });
        }
    }
}
