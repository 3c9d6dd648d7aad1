//! A decorator that records the use of a queue: which calls are made, how long they take, and whether it answers.
//!
//! It wraps any [`Queue`], so neither backends nor callers know of it, and a role without observers pays nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use telemetry::metrics::{DESTINATION, ERROR, OPERATION};
use telemetry::{Duty, Health, metrics};
use tokio::time::Instant;

use crate::{Delivery, Depth, Error, Limits, Message, Queue, Receipt, Receive};

/// A wrapper around a queue.
#[derive(Debug)]
pub struct Observed {
    queue: Arc<dyn Queue>,
    name: &'static str,
    /// Healthy while the queue answers receives, and while the role does not receive.
    answers: Duty,
}

/// A receive that waits for its answer. Dropping it ends the wait.
struct PendingReceive<'a>(&'a Duty);

impl Drop for PendingReceive<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Observed {
    /// Wraps a queue. `name` is its role in the target (`tasks`, `results`, `control`, `dead-letters`).
    pub fn new(queue: Arc<dyn Queue>, name: &'static str, health: &Health) -> Self {
        Self { queue, name, answers: health.answering(format!("the queue of {name}")) }
    }

    async fn observe<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let answer = call.await;
        if answer.is_ok() {
            self.answers.answered();
        }
        let error = answer.as_ref().err().map_or("", Error::kind);
        let labels = [(DESTINATION, self.name), (OPERATION, operation), (ERROR, error)];
        metrics().queue_calls.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        answer
    }
}

#[async_trait]
impl Queue for Observed {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        let count = messages.len() as u64;
        self.observe("send", self.queue.send(messages)).await?;
        metrics()
            .messages_sent
            .get_or_create(&[(DESTINATION, self.name), (OPERATION, "send")])
            .inc_by(count);
        Ok(())
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        self.answers.asked(request.wait);
        let pending = PendingReceive(&self.answers);
        let answer = self.observe("receive", self.queue.receive(request)).await;
        // The caller retries a failed receive, so the wait goes on until one succeeds.
        std::mem::forget(pending);
        let deliveries = answer?;
        let labels = [(DESTINATION, self.name), (OPERATION, "receive")];
        metrics().messages_consumed.get_or_create(&labels).inc_by(deliveries.len() as u64);
        Ok(deliveries)
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        self.observe("extend", self.queue.extend(leases)).await
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        self.observe("acknowledge", self.queue.acknowledge(receipts)).await
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        self.observe("release", self.queue.release(receipts)).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.observe("depth", self.queue.depth()).await
    }

    fn limits(&self) -> Limits {
        self.queue.limits()
    }
}
