//! The share of one group in the queue.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until};

use super::state::{Answer, Arrived, Shared};
use crate::clock::deadline;
use crate::{Delivery, Depth, Error, LeaseClock, Limits, Message, Queue, Receipt, Receive};

/// The share of one group in a shared queue: a [`Queue`] that delivers only messages of the group.
///
/// [`depth`](Queue::depth) counts the whole shared queue, and callers may send messages to any group.
#[derive(Debug)]
pub struct View {
    shared: Arc<Shared>,
    group: String,
}

impl View {
    pub(super) fn new(shared: Arc<Shared>, group: String) -> Self {
        Self { shared, group }
    }

    /// Returns since when no delivery of the group has been held here, by the reader or waiting for it; `None` if one
    /// is, or if the view is closed.
    pub fn quiet_since(&self) -> Option<Instant> {
        self.shared.group_quiet_since(&self.group)
    }

    /// Sets the leases to the duration that the reader requested, unless at least half of that is left, and leaves out
    /// deliveries whose lease is lost.
    async fn hand_over(&self, taken: Vec<Arrived>, visibility: Duration) -> Result<Vec<Delivery>, Error> {
        let now = LeaseClock::System.now();
        let is_timed = self.shared.queue.limits().timed_lease;
        let differs = |arrived: &Arrived| {
            let lease = arrived.leased_until - arrived.delivery.leased_at;
            let left = arrived.leased_until.saturating_duration_since(now);
            !is_timed || lease < visibility || lease > visibility + visibility / 8 || left < visibility / 2
        };
        let leases: Vec<(Receipt, Duration)> = taken
            .iter()
            .filter(|arrived| differs(arrived))
            .map(|arrived| (arrived.delivery.receipt.clone(), visibility))
            .collect();
        let mut taken = Taken { view: self, arrived: taken };
        if !leases.is_empty() {
            let lost = self.shared.queue.extend(&leases).await?;
            self.shared.ended(&self.group, &lost);
            taken.arrived.retain(|arrived| !lost.contains(&arrived.delivery.receipt));
            let extended: HashSet<&Receipt> = leases.iter().map(|(receipt, _)| receipt).collect();
            for arrived in taken.arrived.iter_mut().filter(|arrived| extended.contains(&arrived.delivery.receipt)) {
                arrived.delivery.leased_at = now;
                arrived.leased_until = now + visibility;
            }
        }
        Ok(std::mem::take(&mut taken.arrived).into_iter().map(|arrived| arrived.delivery).collect())
    }
}

/// Deliveries on their way to the reader. They wait again if the reader is dropped meanwhile.
struct Taken<'a> {
    view: &'a View,
    arrived: Vec<Arrived>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.arrived.is_empty() {
            self.view.shared.put_back(&self.view.group, std::mem::take(&mut self.arrived));
        }
    }
}

/// An ask that ends when it is dropped.
struct Asking<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.shared.end_ask(self.id);
    }
}

#[async_trait]
impl Queue for View {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        self.shared.queue.send(messages).await
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        if request.messages_max == 0 {
            return Ok(Vec::new());
        }
        let deadline = deadline(request.wait);
        loop {
            let taken = {
                let wait = deadline.saturating_duration_since(Instant::now());
                let asking =
                    Asking { shared: &self.shared, id: self.shared.ask(&self.group, Receive { wait, ..request }) };
                loop {
                    let mut answered = std::pin::pin!(self.shared.answered.notified());
                    answered.as_mut().enable();
                    match self.shared.answer(asking.id) {
                        Answer::Deliveries(taken) => break taken,
                        Answer::Failed(error) => return Err(error),
                        Answer::Empty => return Ok(Vec::new()),
                        Answer::Wait => {}
                    }
                    tokio::select! {
                        () = answered => {}
                        () = sleep_until(deadline), if Instant::now() < deadline => {}
                    }
                }
            };
            let deliveries = self.hand_over(taken, request.visibility).await?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let lost = self.shared.queue.extend(leases).await?;
        self.shared.ended(&self.group, &lost);
        Ok(lost)
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let lost = self.shared.queue.acknowledge(receipts).await?;
        self.shared.ended(&self.group, receipts);
        Ok(lost)
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        self.shared.queue.release(receipts).await?;
        self.shared.ended(&self.group, receipts);
        Ok(())
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.shared.queue.depth().await
    }

    fn limits(&self) -> Limits {
        self.shared.queue.limits()
    }
}
