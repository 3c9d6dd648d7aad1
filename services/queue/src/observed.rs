//! A queue that tells how it is used: which calls are made, how long they take, and whether it answers at all.
//!
//! It goes around any [`Queue`], so that no backend and no caller knows of it, and a role that nobody watches pays
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use telemetry::{Duty, Health};

use crate::{Delivery, Depth, Error, Limits, Message, Queue, Receipt, Receive};

/// Goes around a queue.
#[derive(Debug)]
pub struct Observed {
    queue: Arc<dyn Queue>,
    /// That it answers whoever receives: a role that does not receive has nothing to do.
    answers: Duty,
}

/// The receive that waits for its answer: dropped without one, nobody waits any more.
struct Asked<'a>(&'a Duty);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Observed {
    /// `name`: which queue of the target it is (`tasks`, `results`, `dead-letters`).
    pub fn new(queue: Arc<dyn Queue>, name: &str, health: &Health) -> Self {
        Self { queue, answers: health.answering(format!("the queue of {name}")) }
    }

    async fn observe<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let answer = call.await;
        if answer.is_ok() {
            self.answers.answered();
        }
        answer
    }
}

#[async_trait]
impl Queue for Observed {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        self.observe(self.queue.send(messages)).await
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        self.answers.asked(request.wait);
        let asked = Asked(&self.answers);
        let answer = self.observe(self.queue.receive(request)).await;
        // What failed is asked again, and is not answered before that succeeds.
        std::mem::forget(asked);
        answer
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        self.observe(self.queue.extend(leases)).await
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        self.observe(self.queue.acknowledge(receipts)).await
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        self.observe(self.queue.release(receipts)).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.observe(self.queue.depth()).await
    }

    fn limits(&self) -> Limits {
        self.queue.limits()
    }
}
