//! A queue as one role sees it: calls fail and take long, messages come twice; and bugs can be planted in front of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{AttemptStatus, Descriptor, ResultEvent, decode_records, encode_record};
use queue::{
    Delivery, Depth, Error, Limits, MemoryOptions, MemoryQueue, Message, Queue, Receipt, Receive,
};

use crate::actor::Actor;
use crate::counts::{Counts, rounds};
use crate::weather::Bug;
use crate::witness::{JobWitness, Witness, descriptor, events};

/// From the death of a node until its mini-batches are redelivered.
const REDELIVERED_MAX: Duration = Duration::from_secs(10);
/// The largest message of SQS.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The role, and its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    NodeTasks,
    NodeResults,
    /// For what it publishes, speculative runs included.
    ReducerTasks,
    ReducerResults,
}

impl Side {
    fn is_of_tasks(self) -> bool {
        matches!(self, Self::NodeTasks | Self::ReducerTasks)
    }
}

/// One role's view of a queue of a job.
#[derive(Debug)]
pub(crate) struct QueueLayer {
    /// The queue of the role: for tasks, bundles of the service's messages.
    pub inner: Arc<dyn Queue>,
    /// The queue of the service.
    pub service: Arc<MemoryQueue>,
    pub counts: Counts,
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub side: Side,
    pub bug: Option<Bug>,
    /// The queue of tasks beside one of results, for bugs about the order of the two.
    pub tasks: Option<Arc<QueueLayer>>,
    /// Deliveries that the node has received, for bugs that end them.
    pub held: std::sync::Mutex<Vec<Receipt>>,
}

impl QueueLayer {
    async fn call<T>(&self, work: impl AsyncFnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let failed = || Error::Unavailable {
            queue: format!("{:?}", self.side),
            source: "bad weather".into(),
        };
        self.actor.call(failed, work).await
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// A node may die right after the call.
    fn check_lease(&self, lease: Duration) {
        if self.side == Side::NodeTasks && lease > REDELIVERED_MAX {
            self.witness.report(
                "mini-batches of a dead node are redelivered within ten seconds",
                format!("{lease:?}"),
            );
        }
    }

    async fn acknowledge_as_is(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        self.call(async || {
            self.witness.jobs().for_each(|job| match self.side {
                Side::NodeTasks => job.acknowledged_tasks(receipts),
                _ => job.acknowledged_results(receipts),
            });
            self.inner.acknowledge(receipts).await
        })
        .await
    }
}

#[async_trait]
impl Queue for QueueLayer {
    async fn send(&self, mut messages: Vec<Message>) -> Result<(), Error> {
        if self.has(Bug::ForgetsTries) && self.side == Side::NodeTasks {
            messages.iter_mut().for_each(forget_tries);
        }
        if self.has(Bug::AcknowledgesBeforeAnnouncing)
            && self.side == Side::NodeResults
            && let Some(tasks) = &self.tasks
        {
            let held = std::mem::take(&mut *tasks.held.lock().expect("no holder panics"));
            let _ = tasks.acknowledge_as_is(&held).await;
        }
        if self.has(Bug::CopiesTwice) && self.side == Side::ReducerTasks {
            let copies = messages.iter().filter(|message| descriptor(&message.body).copy);
            messages.extend(copies.cloned().collect::<Vec<_>>());
        }
        if self.has(Bug::TellsNoReason) && self.side == Side::NodeResults {
            messages.retain(|message| !events(&message.body).iter().any(is_reason));
        }
        self.call(async || {
            match self.side {
                Side::NodeTasks => self.witness.published(&messages, JobWitness::published_by_node),
                Side::NodeResults => self.witness.announced(&messages),
                Side::ReducerTasks => {
                    self.witness.published(&messages, JobWitness::published_by_reducer);
                    self.witness.begun(&messages);
                }
                Side::ReducerResults => {}
            }
            for message in &mut messages {
                let bundle_max = self.actor.weather().bundle_max;
                if self.side == Side::ReducerTasks && bundle_max > 0 {
                    message.bundle_max = bundle_max;
                }
                if self.actor.happens(|weather| weather.reorder) {
                    message.delay = self.actor.dice().time(Duration::from_secs(30));
                }
            }
            // A reducer expects progress only after it has heard of processes.
            let may_vanish =
                |message: &Message| self.side.is_of_tasks() || has_attempts(&message.body);
            messages.retain(|message| {
                !may_vanish(message) || !self.actor.happens(|weather| weather.vanish)
            });
            if self.actor.weather().drives_time {
                for _ in 1..rounds(messages.iter().map(|message| message.body.len())) {
                    self.actor.wait_for_answer().await;
                }
            }
            self.counts.sent(&messages);
            // The queue keeps no more of each than its bytes.
            let sent = messages.iter().map(|message| Message {
                body: Bytes::copy_from_slice(&message.body),
                ..message.clone()
            });
            self.inner.send(sent.collect()).await
        })
        .await
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        if request.messages_max > 0 {
            self.check_lease(request.visibility);
        }
        let receive = async || {
            if self.actor.happens(|weather| weather.duplicate) {
                self.service.duplicate_next(1);
            }
            let mut deliveries = self.inner.receive(request).await?;
            self.counts.received(deliveries.len());
            self.actor.dice().shuffle(&mut deliveries);
            if self.side == Side::NodeTasks {
                self.witness.delivered(&deliveries);
                if self.bug.is_some() {
                    let receipts = deliveries.iter().map(|delivery| delivery.receipt.clone());
                    self.held.lock().expect("no holder panics").extend(receipts);
                }
            } else {
                for delivery in &deliveries {
                    self.witness.of_results(&delivery.body).delivered_results(delivery);
                }
            }
            Ok::<_, Error>(deliveries)
        };
        let mut deliveries = self.call(receive).await?;
        if self.has(Bug::ForgetsLostDeliveries) && self.side == Side::NodeTasks {
            deliveries.iter_mut().for_each(|delivery| delivery.receive_count = 1);
        }
        if self.side == Side::ReducerResults {
            if self.has(Bug::AcknowledgesBeforeCommitting) {
                let receipts: Vec<_> =
                    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
                let _ = self.acknowledge_as_is(&receipts).await;
            }
            let distort = match self.bug {
                Some(Bug::CountsDuplicates) => Some(renumber as fn(&Witness, &Delivery) -> Bytes),
                Some(Bug::FailureBeatsSuccess) => Some(drop_late_successes as _),
                _ => None,
            };
            if let Some(distort) = distort {
                deliveries
                    .iter_mut()
                    .for_each(|delivery| delivery.body = distort(&self.witness, delivery));
            }
        }
        Ok(deliveries)
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        leases.iter().for_each(|(_, lease)| self.check_lease(*lease));
        // An agent that has them only when the answer comes is not told.
        let of_agents = self.witness.handed_of(leases.iter().map(|(receipt, _)| receipt));
        let lost = self.call(async || self.inner.extend(leases).await).await?;
        if self.side == Side::NodeTasks {
            let told: Vec<Receipt> =
                lost.iter().filter(|receipt| of_agents.contains(receipt)).cloned().collect();
            self.witness.jobs().for_each(|job| job.told_lost(&told));
        }
        Ok(if self.has(Bug::IgnoresLostLeases) { vec![] } else { lost })
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        if self.has(Bug::EndsBundlesEarly) && self.side == Side::NodeTasks {
            let held = std::mem::take(&mut *self.held.lock().expect("no holder panics"));
            let _ = self.inner.acknowledge(&held).await;
        }
        self.acknowledge_as_is(receipts).await
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        self.call(async || self.inner.release(receipts).await).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.call(async || self.inner.depth().await).await
    }

    fn limits(&self) -> Limits {
        let limits = self.inner.limits();
        let has_delays = self.side != Side::NodeTasks || self.actor.weather().has_delays;
        Limits { delay_max: if has_delays { limits.delay_max } else { Duration::ZERO }, ..limits }
    }
}

/// A queue for roles that neither send nor receive. It keeps no message, so that it needs no memory.
#[derive(Debug)]
pub(crate) struct Nowhere;

#[async_trait]
impl Queue for Nowhere {
    async fn send(&self, _: Vec<Message>) -> Result<(), Error> {
        Ok(())
    }

    async fn receive(&self, _: Receive) -> Result<Vec<Delivery>, Error> {
        Ok(Vec::new())
    }

    async fn extend(&self, _: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        Ok(Vec::new())
    }

    async fn acknowledge(&self, _: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        Ok(Vec::new())
    }

    async fn release(&self, _: &[Receipt]) -> Result<(), Error> {
        Ok(())
    }

    async fn depth(&self) -> Result<Depth, Error> {
        Ok(Depth::default())
    }

    fn limits(&self) -> Limits {
        let options =
            MemoryOptions { message_bytes_max: MESSAGE_BYTES_MAX, ..MemoryOptions::default() };
        MemoryQueue::new(options).limits()
    }
}

/// Whether a node tells why it cannot work on a job.
fn is_reason(event: &ResultEvent) -> bool {
    matches!(event, ResultEvent::NodeStopped { cause: Some(_), .. })
}

fn has_attempts(body: &[u8]) -> bool {
    events(body).iter().any(|event| matches!(event, ResultEvent::Attempt(_)))
}

fn forget_tries(message: &mut Message) {
    let descriptor = Descriptor { tries_spent: 0, ..descriptor(&message.body) };
    message.body = serde_json::to_vec(&descriptor).expect("descriptors always serialise").into();
}

/// Rewrites the events of a message; `None` leaves an event out.
fn rewrite(body: &Bytes, change: impl Fn(ResultEvent) -> Option<ResultEvent>) -> Bytes {
    let mut rewritten = Vec::new();
    for record in decode_records(body) {
        let record = record.expect("only records are sent");
        if let Some(event) = change(record.event) {
            encode_record(&event, &body[record.rows], &mut rewritten);
        }
    }
    rewritten.into()
}

fn renumber(witness: &Witness, delivery: &Delivery) -> Bytes {
    let mini_batches = witness.of_results(&delivery.body).job.mini_batches;
    let count = u64::from(delivery.receive_count - 1) * mini_batches;
    rewrite(&delivery.body, |event| match event {
        ResultEvent::Attempt(mut attempt) => {
            attempt.mini_batch += count;
            Some(ResultEvent::Attempt(attempt))
        }
        event => Some(event),
    })
}

fn drop_late_successes(witness: &Witness, delivery: &Delivery) -> Bytes {
    let witness = witness.of_results(&delivery.body);
    rewrite(&delivery.body, |event| match event {
        ResultEvent::Attempt(attempt)
            if attempt.status == AttemptStatus::Succeeded
                && witness.has_failed(attempt.mini_batch) =>
        {
            None
        }
        event => Some(event),
    })
}
