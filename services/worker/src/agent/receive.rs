//! From the queue to what a process can be handed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{AttemptStatus, Descriptor, ErrorReport};
use queue::{Delivery, Receive};
use tokio_util::task::AbortOnDropHandle;

use super::processes::Slot;
use super::{Dispatcher, Event, Preparing, Stop, Waiting};
use crate::dead_letters::bury;
use crate::lease::LeaseId;
use crate::prepare;
use crate::slot::{Ending, InPipe, Prepared, deliveries_lost, lost_too_often};
use crate::{Agent, CrashPoint};

/// How long one receive call waits for the first message.
const RECEIVE_WAIT: Duration = Duration::from_secs(20);
/// Mini-batches asked for at once, at most.
const RECEIVE_MAX: usize = 512;

impl Dispatcher {
    // ---- receive ---------------------------------------------------------------------------------------------

    /// Asks the queue for more when less is held than the processes will soon need.
    pub(super) fn receive(&mut self) {
        if self.receiving.is_some() || self.stop != Stop::No || self.gave_up.is_some() {
            return;
        }
        let depth: usize = self.slots.iter().map(Slot::depth).sum();
        let wanted = (2 * depth).saturating_sub(self.unanswered()).min(RECEIVE_MAX);
        // Few at a time are not worth a call.
        if wanted == 0 || wanted * 4 < depth.min(RECEIVE_MAX) {
            return;
        }
        let (tasks, events, visibility) = (self.agent.tasks.clone(), self.events.clone(), self.agent.timing.lease_step);
        self.receiving = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let request = Receive { messages_max: wanted, visibility, wait: RECEIVE_WAIT };
            let asked = tokio::time::Instant::now();
            let deliveries = tasks.receive(request).await;
            if matches!(deliveries, Err(queue::Error::Unavailable { .. })) {
                // The one place that paces a queue which is away.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let _ = events.send(Event::Received { asked, deliveries });
        })));
    }

    /// Mini-batches that are held and that no process has answered.
    fn unanswered(&self) -> usize {
        let in_pipes: usize = self.slots.iter().map(Slot::handed).sum();
        self.to_prepare.len() + self.preparing.len() + self.ready.len() + in_pipes
    }

    pub(super) async fn received(
        &mut self,
        asked: tokio::time::Instant,
        deliveries: Result<Vec<Delivery>, queue::Error>,
    ) -> Result<()> {
        self.receiving = None;
        let deliveries = match deliveries {
            Ok(deliveries) => deliveries,
            Err(error @ queue::Error::Unavailable { .. }) => {
                tracing::warn!("cannot receive from the task queue, trying again: {error}");
                return Ok(());
            }
            Err(error) => return Err(error).context("receive from the task queue"),
        };
        if !deliveries.is_empty() {
            (self.agent.crash)(CrashPoint::AfterReceive);
        }
        for delivery in deliveries {
            let read = Descriptor::of_message(&delivery.body);
            let descriptor = match read.and_then(|descriptor| self.preparer.check(&descriptor).map(|()| descriptor)) {
                Ok(descriptor) => descriptor,
                Err(reason) => {
                    self.log
                        .main("ERROR", &format!("a message that is no mini-batch of the job was removed: {reason}"));
                    let Agent { tasks, node, dead_letters, .. } = &self.agent;
                    let buried = bury(tasks.as_ref(), dead_letters.as_deref(), node, delivery, &reason).await;
                    buried.context("remove a message")?;
                    continue;
                }
            };
            let deliveries_lost = deliveries_lost(&descriptor, delivery.receive_count);
            let waiting = Waiting { lease: self.leases.hold(delivery.receipt, asked), descriptor, deliveries_lost };
            let limit = self.agent.spec.lost_delivery_max;
            match lost_too_often(&waiting.descriptor, deliveries_lost, limit, &self.agent.node) {
                Some(error) => self.fail_unrun(waiting, AttemptStatus::LostTooOften, error).await?,
                None => self.to_prepare.push_back(waiting),
            }
        }
        Ok(())
    }

    // ---- prepare ---------------------------------------------------------------------------------------------

    /// Prepares what waits, as far as memory allows.
    pub(super) fn prepare_next(&mut self) {
        if self.stop != Stop::No {
            return;
        }
        while let Some(next) = self.to_prepare.front() {
            if let Some(prepared) = self.preparer.at_once(next.lease, &next.descriptor, next.deliveries_lost) {
                self.to_prepare.pop_front();
                self.ready.push_back(prepared);
                continue;
            }
            let bytes = prepare::expected_bytes(&next.descriptor);
            let idle = self.preparing.is_empty() && self.ready.is_empty();
            let full = self.preparing.len() > self.slots.len()
                || self.prepared_bytes() + bytes > self.agent.prefetch_bytes_max;
            if full && !idle {
                return;
            }
            let Some(waiting) = self.to_prepare.pop_front() else { return };
            let Waiting { lease, descriptor, deliveries_lost } = waiting.clone();
            self.preparing.insert(lease, Preparing { waiting, bytes, since: Instant::now() });
            let (preparer, events) = (self.preparer.clone(), self.events.clone());
            tokio::spawn(async move {
                let preparation = preparer.prepare(lease, descriptor, deliveries_lost).await;
                let _ = events.send(Event::Prepared(lease, preparation));
            });
        }
    }

    fn prepared_bytes(&self) -> u64 {
        let preparing: u64 = self.preparing.values().map(|preparing| preparing.bytes).sum();
        let ready: u64 = self.ready.iter().map(|prepared| prepared.bytes).sum();
        let in_pipes: u64 = self.slots.iter().filter_map(|slot| Some(slot.running.as_ref()?.pipe.bytes())).sum();
        preparing + ready + in_pipes
    }

    pub(super) async fn prepared(&mut self, lease: LeaseId, preparation: prepare::Preparation) -> Result<()> {
        // Not there: it took too long, and has been given up.
        if self.preparing.remove(&lease).is_none() {
            return Ok(());
        }
        match preparation {
            prepare::Preparation::Ready(prepared) => self.ready.push_back(*prepared),
            prepare::Preparation::Empty(prepared) => {
                // Never reaches `run()`: it is done, with whatever records failed before.
                let ending = Ending {
                    status: AttemptStatus::Succeeded,
                    returned: 0,
                    columns: None,
                    error: None,
                    run_seconds: 0.0,
                    process_seconds: 0.0,
                };
                self.conclude(None, InPipe::unrun(*prepared), ending, Bytes::new()).await?;
            }
            prepare::Preparation::Failed(prepared, error) => {
                let ending = Ending::failed(AttemptStatus::LoadFailed, error);
                self.conclude(None, InPipe::unrun(*prepared), ending, Bytes::new()).await?;
            }
        }
        Ok(())
    }

    /// A disk or a network that does not answer holds up its own mini-batch only, and not for ever.
    pub(super) async fn give_up_slow_preparations(&mut self) -> Result<()> {
        let limit = self.limit();
        let slow = self.preparing.extract_if(|_, preparing| preparing.since.elapsed() > limit);
        for (_, Preparing { waiting, .. }) in slow.collect::<Vec<_>>() {
            let error = ErrorReport {
                category: "LoadTimeout".into(),
                message: format!(
                    "mini-batch {} could not be read within {} seconds (run_invocation_timeout plus \
                     task_overhead_timeout): {}",
                    waiting.descriptor.mini_batch,
                    limit.as_secs(),
                    waiting.descriptor.detail()
                ),
                ..ErrorReport::default()
            };
            self.fail_unrun(waiting, AttemptStatus::LoadTimedOut, error).await?;
        }
        Ok(())
    }

    async fn fail_unrun(&mut self, waiting: Waiting, status: AttemptStatus, error: ErrorReport) -> Result<()> {
        let prepared = Prepared::unreadable(waiting.lease, waiting.descriptor, waiting.deliveries_lost);
        let ending = Ending::failed(status, error);
        self.conclude(None, InPipe::unrun(prepared), ending, Bytes::new()).await
    }
}
